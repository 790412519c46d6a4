//! Settings as numbers: in the planner's broadcast and in saved states.

use super::Uncompressed;
use crate::Error;
use crate::compress::Setting;
use crate::compress::adacomp::AdaComp;
use crate::compress::clt::CltK;
use crate::compress::hard_threshold::HardThreshold;
use crate::compress::loco::LoCo;
use crate::compress::powersgd::PowerSgd;
use crate::compress::qsgd::{Qsgd, Rounding, Scale};
use crate::compress::quantised_topk::QuantisedTopK;
use crate::compress::sidco::{Fit, Sidco};
use crate::compress::topk::TopK;
use crate::gradient::Dtype;

/// Words of a coded choice.
pub(super) const WORDS: usize = 2;

/// What a layer is given: its setting and, where that is uncompressed, why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub setting: Setting,
    pub uncompressed: Option<Uncompressed>,
}

impl Choice {
    pub(super) const fn dense(why: Uncompressed) -> Choice {
        Choice { setting: Setting::Dense, uncompressed: Some(why) }
    }

    /// Method and reason in the low bytes of the first word, parameters above and in the second.
    pub(super) fn encode(&self) -> [u64; WORDS] {
        let [method, parameters, number] = match self.setting {
            Setting::Dense => [0; 3],
            Setting::Qsgd(c) => {
                let rounding = match c.rounding {
                    Rounding::Nearest => 0,
                    Rounding::Stochastic => 1,
                };
                [1, c.bits as u64 | (c.scale as u64) << 8 | rounding << 16, c.bucket as u64]
            }
            Setting::TopK(c) => [2, c.values as u64, c.keep as u64],
            Setting::PowerSgd(c) => [3, c.iterations as u64, c.rank as u64],
            Setting::CltK(c) => [4, 0, c.keep as u64],
            Setting::HardThreshold(c) => [5, c.values as u64, c.lambda.to_bits() as u64],
            Setting::Sidco(c) => {
                [6, c.values as u64 | (c.fit as u64) << 8 | (c.stages as u64) << 16, c.density.to_bits()]
            }
            Setting::AdaComp(c) => [7, 0, c.bin as u64],
            Setting::LoCo(c) => [8, 0, c.group as u64],
            Setting::QuantisedTopK(c) => [9, c.bits as u64, c.keep as u64],
        };
        let reason = self.uncompressed.map_or(0, |why| why as u64 + 1);
        [method | reason << 8 | parameters << 16, number]
    }

    /// The choice that encodes to exactly these words.
    pub(super) fn decode(words: [u64; WORDS]) -> Result<Choice, Error> {
        let wrong = Error::saved("a layer's setting", words[0]);
        let (parameters, number) = (words[0] >> 16, words[1] as u32);
        let byte = |shift: u32| (parameters >> shift) as u8;
        let values = || Dtype::from_code(byte(0)).map_err(|_| wrong);
        let setting = match words[0] as u8 {
            0 => Setting::Dense,
            1 => Setting::Qsgd(Qsgd {
                bits: byte(0),
                bucket: number,
                scale: if byte(8) == 0 { Scale::MaxNorm } else { Scale::MinMax },
                rounding: if byte(16) == 0 { Rounding::Nearest } else { Rounding::Stochastic },
            }),
            2 => Setting::TopK(TopK { keep: number, values: values()? }),
            3 => Setting::PowerSgd(PowerSgd { rank: number, iterations: parameters as u32 }),
            4 => Setting::CltK(CltK { keep: number }),
            5 => Setting::HardThreshold(HardThreshold { lambda: f32::from_bits(number), values: values()? }),
            6 => {
                let fits = [Fit::Exponential, Fit::GammaPareto, Fit::Pareto];
                let fit = fits.into_iter().find(|&fit| fit as u8 == byte(8)).ok_or(wrong)?;
                let (density, stages) = (f64::from_bits(words[1]), (parameters >> 16) as u32);
                Setting::Sidco(Sidco { density, fit, stages, values: values()? })
            }
            7 => Setting::AdaComp(AdaComp { bin: number }),
            8 => Setting::LoCo(LoCo { group: number }),
            9 => Setting::QuantisedTopK(QuantisedTopK { keep: number, bits: byte(0) }),
            _ => return Err(wrong),
        };
        let uncompressed = match (words[0] >> 8) as u8 {
            0 => None,
            reason => Some(*Uncompressed::ALL.get(reason as usize - 1).ok_or(wrong)?),
        };
        let choice = Choice { setting, uncompressed };
        let told = uncompressed.is_some() == (setting == Setting::Dense);
        if told && choice.encode() == words { Ok(choice) } else { Err(wrong) }
    }
}
