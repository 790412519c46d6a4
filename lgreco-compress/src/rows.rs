//! Groups settings into rows of the error table. Each row is measured in as few passes as its method allows.

use super::quantised_topk::QuantisedTopK;
use super::{Candidates, Compressor, Setting};
use alloc::vec::Vec;

/// A list of settings, grouped into [`Candidates`]. Consecutive settings of one method that differ in one parameter are
/// measured together.
///
/// ```
/// use lgreco_compress::{Candidates, Rows, Setting};
/// let settings: Vec<Setting> = ["qsgd 4", "qsgd 2", "topk 3"].map(|text| text.parse().unwrap()).into();
/// let rows = Rows::of(&settings);
/// assert!(matches!(rows.iter().next(), Some(Candidates::Qsgd { bits: &[4, 2], .. })));
/// assert_eq!((rows.iter().count(), rows.places()), (2, 3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rows(Vec<Row>);

#[derive(Clone, Debug)]
struct Row {
    settings: Vec<Setting>,
    /// The settings' numbers of bits, for methods that vary the number of bits. Numbers of kept elements and ranks are
    /// in `counts`.
    bits: Vec<u8>,
    counts: Vec<u32>,
}

impl Rows {
    /// Groups these settings into rows, keeping their order.
    ///
    /// # Complexity
    /// O(settings). Allocates.
    pub fn of(settings: &[Setting]) -> Rows {
        let mut rows: Vec<Row> = Vec::new();
        for run in settings.chunk_by(|a, b| base(a) == base(b)) {
            match run[0] {
                Setting::QuantisedTopK(_) => grids(run, &mut rows),
                _ => rows.push(Row::of(run)),
            }
        }
        Rows(rows)
    }

    /// The rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = Candidates<'_>> {
        self.0.iter().map(Row::candidates)
    }

    /// Total number of values in all rows ([`Candidates::len`]).
    pub fn places(&self) -> usize {
        self.iter().map(|row| row.len()).sum()
    }

    /// Yields each setting with its measured squared error. Also yields the payload's length in bytes if the length
    /// depends on the gradient's values. `squared_errors` holds [`places`](Rows::places) values, row after row.
    pub fn measured(&self, squared_errors: &[f64]) -> impl Iterator<Item = (Setting, f64, Option<usize>)> {
        let mut rest = squared_errors;
        self.0.iter().flat_map(move |row| {
            let (errors, others) = rest.split_at(row.candidates().len());
            rest = others;
            row.settings.iter().enumerate().map(move |(index, setting)| {
                let len = errors.get(row.settings.len() + index).filter(|_| !setting.has_fixed_len());
                (*setting, errors[index], len.map(|&len| len as usize))
            })
        })
    }
}

impl Row {
    fn of(run: &[Setting]) -> Row {
        let (mut bits, mut counts) = (Vec::new(), Vec::new());
        for setting in run {
            match setting {
                Setting::Qsgd(qsgd) => bits.push(qsgd.bits),
                Setting::Eden(eden) => bits.push(eden.bits),
                Setting::TopK(top) => counts.push(top.keep),
                Setting::CltK(clt) => counts.push(clt.keep),
                Setting::PowerSgd(power) => counts.push(power.rank),
                _ => {}
            }
        }
        Row { settings: run.into(), bits, counts }
    }

    fn candidates(&self) -> Candidates<'_> {
        let Row { settings, bits, counts } = self;
        match settings[0] {
            Setting::Qsgd(base) => Candidates::Qsgd { base, bits },
            Setting::Eden(base) => Candidates::Eden { base, bits },
            Setting::TopK(top) => Candidates::TopK { values: top.values, keeps: counts },
            Setting::QuantisedTopK(_) => Candidates::QuantisedTopK { keeps: counts, bits },
            Setting::PowerSgd(power) => Candidates::PowerSgd { iterations: power.iterations, ranks: counts },
            Setting::CltK(_) => Candidates::CltK { keeps: counts },
            _ => Candidates::Each(settings),
        }
    }
}

/// The setting without the parameter that may differ within a row. All settings that are measured separately map to
/// `Dense`, so that consecutive settings of this kind share a row.
fn base(setting: &Setting) -> Setting {
    let mut base = *setting;
    match &mut base {
        Setting::Qsgd(qsgd) => qsgd.bits = 0,
        Setting::Eden(eden) => eden.bits = 0,
        Setting::TopK(top) => top.keep = 0,
        Setting::QuantisedTopK(top) => (top.keep, top.bits) = (0, 0),
        Setting::PowerSgd(power) => power.rank = 0,
        Setting::CltK(clt) => clt.keep = 0,
        _ => base = Setting::Dense,
    }
    base
}

/// Makes rows of TopK in few bits. Every number of kept values in a row has the same list of bits, so that one pass
/// measures the whole row.
fn grids(run: &[Setting], rows: &mut Vec<Row>) {
    let of = |setting: &Setting| match *setting {
        Setting::QuantisedTopK(top) => top,
        _ => QuantisedTopK { keep: 0, bits: 0 },
    };
    let mut rest = run;
    while let Some(first) = rest.first().map(of) {
        let alike = |group: &&[Setting]| group.iter().all(|setting| of(setting).keep == of(&group[0]).keep);
        let width = rest.iter().take_while(|setting| of(setting).keep == first.keep).count();
        let bits: Vec<u8> = rest[..width].iter().map(|setting| of(setting).bits).collect();
        let same =
            |group: &&[Setting]| alike(group) && group.iter().map(|setting| of(setting).bits).eq(bits.iter().copied());
        let groups = rest.chunks(width).take_while(same).count();
        let (row, others) = rest.split_at(groups * width);
        let counts = row.iter().step_by(width).map(|setting| of(setting).keep).collect();
        rows.push(Row { settings: row.into(), bits, counts });
        rest = others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::{Dtype, Gradient, Shape, Values};
    use crate::rng::Stream;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    const TEXTS: [&str; 16] = [
        "dense",
        "qsgd 2",
        "qsgd 4",
        "qsgd 4 bucket 64",
        "topk 3",
        "topk 9",
        "topk 9 f16",
        "topk 3 bits 2",
        "topk 3 bits 4",
        "topk 9 bits 2",
        "topk 9 bits 4",
        "powersgd 1",
        "powersgd 2 iterations 3",
        "clt-k 5",
        "hard-threshold 0.5",
        "sidco 0.1",
    ];

    proptest! {
        #[test]
        fn rows_have_the_settings_in_order_and_their_errors(list in prop::collection::vec(0..TEXTS.len(), 0..20)) {
            let settings: Vec<Setting> = list.iter().map(|&at| TEXTS[at].parse().unwrap()).collect();
            let rows = Rows::of(&settings);
            let values: Vec<f32> = (0..96).map(|i| ((i * i) as f32).sin()).collect();
            let gradient = Gradient::new(Values::F32(&values), Shape::new(12, 8).unwrap()).unwrap();
            let measure = |candidates: Candidates<'_>| {
                let mut workspace = vec![!0; candidates.measure_workspace_len(gradient.shape(), Dtype::F32)];
                let mut row = vec![f64::NAN; candidates.len()];
                candidates.measure(&gradient, Stream::default(), &mut workspace, &mut row).unwrap();
                row
            };
            let errors: Vec<f64> = rows.iter().flat_map(measure).collect();
            prop_assert_eq!(errors.len(), rows.places());
            let measured: Vec<_> = rows.measured(&errors).collect();
            prop_assert!(measured.iter().map(|of| of.0).eq(settings.iter().copied()));
            for (setting, squared, len) in measured {
                let alone = measure(Candidates::Each(&[setting]));
                let close = (squared - alone[0]).abs() <= 1e-12 * alone[0];
                prop_assert!(close, "{}: {} {}", setting, squared, alone[0]);
                prop_assert_eq!(len, alone.get(1).map(|&len| len as usize));
            }
        }
    }

    #[test]
    fn neighbours_share_rows() {
        let count = |texts: &[&str]| {
            Rows::of(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>()).iter().count()
        };
        assert_eq!(count(&["topk 3 bits 4", "topk 3 bits 2", "topk 9 bits 4", "topk 9 bits 2"]), 1);
        assert_eq!(count(&["topk 3 bits 4", "topk 3 bits 2", "topk 9 bits 2", "topk 9 bits 4"]), 2);
        assert_eq!(count(&["qsgd 2", "qsgd 3", "topk 3", "topk 4", "qsgd 2", "sidco 0.1", "loco 8", "dense"]), 4);
        assert_eq!(count(&[]), 0);
    }
}
