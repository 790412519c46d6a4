//! From a list of settings to rows that are measured together.

use crate::device::Device;
use lgreco_train::CoreError;
use lgreco_train::backend::Job;
use lgreco_train::compress::{
    Candidates, Compressor, Setting, adacomp::AdaComp, check_finite, clt::CltK, hard_threshold::HardThreshold,
    loco::LoCo, powersgd::PowerSgd, qsgd::Qsgd, quantised_topk::QuantisedTopK, sidco::Sidco, topk::TopK,
};
use lgreco_train::gradient::Gradient;
use lgreco_train::rng::Stream;

/// Squared error and payload bytes of each setting; each run of like settings is one row.
pub(super) fn measure(
    device: &Device,
    gradient: Gradient<'_>,
    settings: &[Setting],
    stream: Stream,
) -> Result<Vec<(f64, usize)>, CoreError> {
    let mut measured = Vec::with_capacity(settings.len());
    for run in settings.chunk_by(|a, b| base(a) == base(b)) {
        let row = Row::of(run);
        let (mut errors, mut lens) = (vec![0.0; run.len()], vec![0; run.len()]);
        match row.candidates(&run[0]) {
            Some(candidates) => device.row(&Job { gradient, candidates, stream }, &mut errors, &mut lens)?,
            None => {
                check_finite(&gradient)?;
                lens.fill(Setting::Dense.payload_len(gradient.shape(), gradient.values().dtype())?);
            }
        }
        measured.extend(errors.into_iter().zip(lens));
    }
    Ok(measured)
}

/// The setting without what may differ within a run.
fn base(setting: &Setting) -> Setting {
    match *setting {
        Setting::Dense => Setting::Dense,
        Setting::Qsgd(qsgd) => Setting::Qsgd(Qsgd { bits: 0, ..qsgd }),
        Setting::TopK(top) => Setting::TopK(TopK { keep: 0, ..top }),
        Setting::QuantisedTopK(top) => Setting::QuantisedTopK(QuantisedTopK { keep: 0, ..top }),
        Setting::PowerSgd(power) => Setting::PowerSgd(PowerSgd { rank: 0, ..power }),
        Setting::CltK(_) => Setting::CltK(CltK { keep: 0 }),
        Setting::HardThreshold(hard) => Setting::HardThreshold(HardThreshold { lambda: 0.0, ..hard }),
        Setting::AdaComp(_) => Setting::AdaComp(AdaComp { bin: 0 }),
        Setting::LoCo(_) => Setting::LoCo(LoCo { group: 0 }),
        Setting::Sidco(sidco) => Setting::Sidco(Sidco { density: 0.0, ..sidco }),
    }
}

/// What differs within a run, in the types that candidates take.
#[derive(Default)]
struct Row {
    bits: Vec<u8>,
    counts: Vec<u32>,
    lambdas: Vec<f32>,
    densities: Vec<f64>,
}

impl Row {
    fn of(run: &[Setting]) -> Row {
        let mut row = Row::default();
        for setting in run {
            match *setting {
                Setting::Dense => {}
                Setting::Qsgd(Qsgd { bits, .. }) => row.bits.push(bits),
                Setting::HardThreshold(HardThreshold { lambda, .. }) => row.lambdas.push(lambda),
                Setting::Sidco(Sidco { density, .. }) => row.densities.push(density),
                Setting::QuantisedTopK(QuantisedTopK { keep, bits }) => {
                    row.counts.push(keep);
                    row.bits = vec![bits];
                }
                Setting::TopK(TopK { keep: count, .. })
                | Setting::CltK(CltK { keep: count })
                | Setting::PowerSgd(PowerSgd { rank: count, .. })
                | Setting::AdaComp(AdaComp { bin: count })
                | Setting::LoCo(LoCo { group: count }) => row.counts.push(count),
            }
        }
        row
    }

    /// The row whose settings are like `first`; `None` for uncompressed ones.
    fn candidates(&self, first: &Setting) -> Option<Candidates<'_>> {
        let Row { bits, counts, lambdas, densities } = self;
        Some(match *first {
            Setting::Dense => return None,
            Setting::Qsgd(base) => Candidates::Qsgd { base, bits },
            Setting::TopK(top) => Candidates::TopK { values: top.values, keeps: counts },
            Setting::QuantisedTopK(_) => Candidates::QuantisedTopK { keeps: counts, bits },
            Setting::PowerSgd(power) => Candidates::PowerSgd { iterations: power.iterations, ranks: counts },
            Setting::CltK(_) => Candidates::CltK { keeps: counts },
            Setting::HardThreshold(hard) => Candidates::HardThreshold { values: hard.values, lambdas },
            Setting::AdaComp(_) => Candidates::AdaComp { bins: counts },
            Setting::LoCo(_) => Candidates::LoCo { groups: counts },
            Setting::Sidco(base) => Candidates::Sidco { base, densities },
        })
    }
}
