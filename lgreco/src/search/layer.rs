//! The options of one layer: candidates to measure, duplicates and hopeless ones removed.

use super::range::{Family, Method, Weighing};
use crate::compress::adacomp::AdaComp;
use crate::compress::hard_threshold::HardThreshold;
use crate::compress::loco::LoCo;
use crate::compress::powersgd::effective_rank;
use crate::compress::qsgd::{Qsgd, Rounding, Scale};
use crate::compress::sidco::{Fit, Sidco};
use crate::compress::topk::TopK;
use crate::compress::{Candidates, Compressor, Setting};
use crate::gradient::{Dtype, Shape};
use crate::table::Choice;
use crate::{Error, Result};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// QSGD as searched: max-norm buckets of 512, stochastic rounding (QSGD §5, the setting that recovered accuracy).
const QSGD: Qsgd = Qsgd { bits: 4, bucket: 512, scale: Scale::MaxNorm, rounding: Rounding::Stochastic };
/// Power iterations of the simulation, as in the L-GreCo authors' code.
const POWER_ITERATIONS: u32 = 5;

enum Row {
    Qsgd(Vec<u8>),
    TopK(Dtype, Vec<u32>),
    QuantisedTopK(Vec<u32>, Vec<u8>),
    PowerSgd(Vec<u32>),
    CltK(Vec<u32>),
    Each(Vec<Setting>),
}

pub(super) struct LayerOptions {
    rows: Vec<Row>,
    labels: Vec<String>,
    default: usize,
}

/// The options of a layer after measuring: choices with labels, their settings, and the default.
pub(super) struct Assembled {
    pub labelled: Vec<(String, Choice)>,
    pub settings: Vec<Setting>,
    pub default: u32,
}

impl LayerOptions {
    pub(super) fn new(families: &[Family], beside: &[Setting], shape: Shape, dtype: Dtype) -> Result<Self> {
        let (mut rows, mut labels, mut default) = (Vec::new(), Vec::new(), None);
        for (index, family) in families.iter().enumerate() {
            if let Some(each) = each(family, dtype) {
                if index == 0 {
                    let above = |parameter: &f64| *parameter <= family.default * (1.0 + 1e-9);
                    default = Some(family.parameters().iter().filter(|parameter| above(parameter)).count() - 1);
                }
                labels.extend(family.parameters().into_iter().map(|parameter| family.method.label(parameter)));
                rows.push(Row::Each(each));
                continue;
            }
            let (mut values, mut names): (Vec<u32>, Vec<String>) = (Vec::new(), Vec::new());
            for parameter in family.parameters() {
                let value = match family.method {
                    Method::TopK | Method::CltK => TopK::with_density(parameter, shape.elements(), dtype)?.keep,
                    Method::PowerSgd => effective_rank(shape, parameter as u32) as u32,
                    _ => parameter as u32,
                };
                if values.last() != Some(&value) {
                    values.push(value);
                    names.push(family.method.label(parameter));
                }
                if index == 0 && parameter <= family.default * (1.0 + 1e-9) {
                    default = Some(values.len() - 1);
                }
            }
            let bits = family.widths.bits();
            let few = bits.iter().map(|bits| format!(" bits {bits}"));
            let few: Vec<_> =
                names.iter().flat_map(|name| few.clone().map(move |bits| format!("{name}{bits}"))).collect();
            let keeps = if bits.is_empty() { Vec::new() } else { values.clone() };
            if !family.widths.full() {
                // What the budget is taken from stays, as the one option in full.
                let at = default.filter(|_| index == 0);
                (values, names) = (at.map(|at| (values[at], names.swap_remove(at)))).into_iter().unzip();
                default = default.map(|default| if index == 0 { 0 } else { default });
            }
            labels.extend(names);
            rows.push(match family.method {
                Method::TopK => Row::TopK(dtype, values),
                Method::CltK => Row::CltK(values),
                Method::PowerSgd => Row::PowerSgd(values),
                _ => Row::Qsgd(values.into_iter().map(|bits| bits as u8).collect()),
            });
            if !bits.is_empty() {
                labels.extend(few);
                rows.push(Row::QuantisedTopK(keeps, bits));
            }
        }
        let fits = |setting: &Setting| match setting.payload_len(shape, dtype) {
            Err(Error::Parameter { .. }) => None,
            result => Some(result.map(|_| *setting)),
        };
        let beside = beside.iter().filter_map(fits).collect::<Result<Vec<_>>>()?;
        labels.extend(beside.iter().map(|setting| format!("{setting}")));
        if !beside.is_empty() {
            rows.push(Row::Each(beside));
        }
        // A row without candidates is nothing to measure.
        rows.retain(|row| !matches!(row, Row::TopK(_, keeps) if keeps.is_empty()));
        let default = default.ok_or(Error::Length { what: "methods to search", expected: 1, found: 0 })?;
        Ok(LayerOptions { rows, labels, default })
    }

    pub(super) fn candidates(&self) -> impl Iterator<Item = Candidates<'_>> {
        self.rows.iter().map(|row| match row {
            Row::Qsgd(bits) => Candidates::Qsgd { base: QSGD, bits },
            Row::TopK(values, keeps) => Candidates::TopK { values: *values, keeps },
            Row::QuantisedTopK(keeps, bits) => Candidates::QuantisedTopK { keeps, bits },
            Row::PowerSgd(ranks) => Candidates::PowerSgd { iterations: POWER_ITERATIONS, ranks },
            Row::CltK(keeps) => Candidates::CltK { keeps },
            Row::Each(settings) => Candidates::Each(settings),
        })
    }

    /// Places of all rows.
    pub(super) fn measured(&self) -> usize {
        self.candidates().map(|row| row.len()).sum()
    }

    pub(super) fn into_options(
        self,
        shape: Shape,
        [dtype, reduce_dtype]: [Dtype; 2],
        squared_errors: &[f64],
        weighing: Weighing,
    ) -> Result<Assembled> {
        let bits = |setting: &Setting| Ok::<u64, Error>(8 * setting.exchanged_len(shape, dtype, reduce_dtype)? as u64);
        let dense_size = bits(&Setting::Dense)?;
        // Row by row: the errors, and behind them, where the values decide these, the payloads' lengths.
        let (mut measured, mut rest) = (Vec::new(), squared_errors);
        for candidates in self.candidates() {
            let (row, others) = rest.split_at(candidates.len());
            let settings: Vec<Setting> = (0..row.len()).map_while(|index| candidates.setting(index)).collect();
            for (index, setting) in settings.iter().enumerate() {
                let size = match row.get(settings.len() + index) {
                    Some(&len) if !setting.has_fixed_len() => 8 * len as u64,
                    _ => bits(setting)?,
                };
                measured.push((*setting, row[index], size));
            }
            rest = others;
        }
        let mut assembled = Assembled { labelled: Vec::new(), settings: Vec::new(), default: 0 };
        let mut dense_at = None;
        for (index, ((setting, squared, size), label)) in measured.into_iter().zip(self.labels).enumerate() {
            let place = if size < dense_size {
                assembled.labelled.push((label, Choice { size, error: weighing.error(&setting, squared) }));
                assembled.settings.push(setting);
                assembled.settings.len() - 1
            } else {
                *dense_at.get_or_insert_with(|| {
                    assembled.labelled.push(("dense".into(), Choice { size: dense_size, error: 0.0 }));
                    assembled.settings.push(Setting::Dense);
                    assembled.settings.len() - 1
                })
            };
            if index == self.default {
                assembled.default = place as u32;
            }
        }
        Ok(assembled)
    }
}

/// The settings of methods that are measured one by one; `None` of others.
fn each(family: &Family, values: Dtype) -> Option<Vec<Setting>> {
    let setting = |parameter: f64| match family.method {
        Method::Sidco => Some(Setting::Sidco(Sidco { density: parameter, fit: Fit::default(), stages: 1, values })),
        Method::HardThreshold => Some(Setting::HardThreshold(HardThreshold { lambda: parameter as f32, values })),
        Method::AdaComp => Some(Setting::AdaComp(AdaComp { bin: parameter as u32 })),
        Method::LoCo => Some(Setting::LoCo(LoCo { group: parameter as u32 })),
        _ => None,
    };
    family.parameters().into_iter().map(setting).collect()
}
