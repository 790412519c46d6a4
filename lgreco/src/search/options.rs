//! The options of one layer: lists its candidates, and removes duplicates and candidates that save nothing.

use super::range::{Family, Weighing};
use crate::compress::{Candidates, Compressor, Rows, Setting};
use crate::gradient::{Dtype, Shape};
use crate::table::Choice;
use crate::{Error, Result};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub(super) struct LayerOptions {
    rows: Rows,
    labels: Vec<String>,
    default: usize,
}

/// The options of a layer after measurement: labelled choices, their settings and the default.
pub(super) struct Assembled {
    pub labelled: Vec<(String, Choice)>,
    pub settings: Vec<Setting>,
    pub default: u32,
}

impl LayerOptions {
    pub(super) fn new(families: &[Family], beside: &[Setting], shape: Shape, dtype: Dtype) -> Result<Self> {
        let (mut settings, mut labels, mut default) = (Vec::new(), Vec::new(), None);
        for (index, family) in families.iter().enumerate() {
            // On a small layer, several parameters may give the same setting. The setting gets the label of the first
            // parameter that gives it.
            let (mut full, mut names): (Vec<Setting>, Vec<String>) = (Vec::new(), Vec::new());
            for parameter in family.parameters() {
                let setting = (family.method.planned().setting)(parameter, shape, dtype)?;
                if full.last() != Some(&setting) {
                    full.push(setting);
                    names.push(family.method.label(parameter).to_string());
                }
                if index == 0 && parameter <= family.default * (1.0 + 1e-9) {
                    default = Some(full.len() - 1);
                }
            }
            let bits = family.widths.bits();
            let few: Vec<_> =
                full.iter().zip(&names).flat_map(|(setting, name)| in_few_bits(setting, name, &bits)).collect();
            if !family.widths.full() {
                // The budget is computed from the default option, so this option keeps full values in any case.
                let at = default.filter(|_| index == 0);
                (full, names) = (at.map(|at| (full[at], names.swap_remove(at)))).into_iter().unzip();
                default = default.map(|default| if index == 0 { 0 } else { default });
            }
            settings.extend(full);
            labels.extend(names);
            few.into_iter().for_each(|(setting, name)| {
                settings.push(setting);
                labels.push(name);
            });
        }
        for setting in beside {
            match setting.payload_len(shape, dtype) {
                Err(Error::Parameter { .. }) => continue,
                fits => fits?,
            };
            settings.push(*setting);
            labels.push(setting.to_string());
        }
        let default = default.ok_or(Error::Length { what: "methods to search", expected: 1, found: 0 })?;
        Ok(LayerOptions { rows: Rows::of(&settings), labels, default })
    }

    pub(super) fn candidates(&self) -> impl Iterator<Item = Candidates<'_>> {
        self.rows.iter()
    }

    /// Total length of all rows.
    pub(super) fn measured(&self) -> usize {
        self.rows.places()
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
        let mut measured = Vec::new();
        for (setting, squared, len) in self.rows.measured(squared_errors) {
            measured.push((setting, squared, len.map_or_else(|| bits(&setting), |len| Ok(8 * len as u64))?));
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

/// For TopK: the settings that quantise the kept values to each number of `bits`, with their names. Empty for other
/// methods.
fn in_few_bits(setting: &Setting, name: &str, bits: &[u8]) -> Vec<(Setting, String)> {
    bits.iter().filter_map(|&bits| Some((setting.in_few_bits(bits)?, format!("{name} bits {bits}")))).collect()
}
