//! Settings as numbers: a method's id and four parameters, for messages, saved states and fingerprints.

use super::Setting;
use super::adacomp::AdaComp;
use super::clt::CltK;
use super::hard_threshold::HardThreshold;
use super::loco::LoCo;
use super::powersgd::PowerSgd;
use super::qsgd::{Qsgd, Rounding, Scale};
use super::quantised_topk::QuantisedTopK;
use super::sidco::{Fit, Sidco};
use super::topk::TopK;
use super::wire::Method;
use crate::gradient::Dtype;
use crate::{Error, Result};
use lgreco_core::method::{Methods, OwnSetting, Parameters};

/// Methods whose payloads are TopK's have ids that stand in no payload.
const CLT_K: u8 = 7;
const HARD_THRESHOLD: u8 = 8;
const SIDCO: u8 = 9;

impl Setting {
    /// The method's id and its parameters: as in a payload's header, and for methods whose payloads are TopK's, 7 (CLT-k),
    /// 8 (hard thresholds) and 9 (SIDCo).
    ///
    /// ```
    /// use lgreco_compress::{Setting, qsgd::Qsgd};
    /// let setting = Setting::Qsgd(Qsgd { bits: 3, bucket: 128, ..Qsgd::default() });
    /// assert_eq!(setting.data(), (1, [3, 128, 0, 1]));
    /// ```
    pub fn data(&self) -> (u8, Parameters) {
        match *self {
            Setting::Dense => (Method::Dense.id(), [0; 4]),
            Setting::Qsgd(c) => {
                let rounding = match c.rounding {
                    Rounding::Nearest => 0,
                    Rounding::Stochastic => 1,
                };
                (Method::Qsgd.id(), [c.bits.into(), c.bucket, c.scale as u32, rounding])
            }
            Setting::TopK(c) => (Method::TopK.id(), [c.keep, c.values as u32, 0, 0]),
            Setting::QuantisedTopK(c) => (Method::QuantisedTopK.id(), [c.keep, c.bits.into(), 0, 0]),
            Setting::PowerSgd(c) => (Method::PowerSgd.id(), [c.rank, c.iterations, 0, 0]),
            Setting::AdaComp(c) => (Method::AdaComp.id(), [c.bin, 0, 0, 0]),
            Setting::LoCo(c) => (Method::LoCo.id(), [c.group, 0, 0, 0]),
            Setting::CltK(c) => (CLT_K, [c.keep, 0, 0, 0]),
            Setting::HardThreshold(c) => (HARD_THRESHOLD, [c.lambda.to_bits(), c.values as u32, 0, 0]),
            Setting::Sidco(c) => {
                let density = c.density.to_bits();
                (SIDCO, [density as u32, (density >> 32) as u32, c.fit as u32 | (c.values as u32) << 8, c.stages])
            }
            Setting::Own(own) => (own.method().id(), *own.parameters()),
        }
    }

    /// The setting that has exactly this [`data`](Setting::data).
    ///
    /// # Errors
    /// [`Error::UnknownMethod`] for an id that neither lgreco nor `methods` have; [`Error::Parameter`] for numbers that are
    /// not a setting's.
    pub fn from_data(id: u8, parameters: Parameters, methods: &Methods) -> Result<Setting> {
        let [a, b, c, d] = parameters;
        let of = |code: u32| Dtype::from_code(code.try_into().unwrap_or(u8::MAX));
        let setting = match id {
            CLT_K => Setting::CltK(CltK { keep: a }),
            HARD_THRESHOLD => Setting::HardThreshold(HardThreshold { lambda: f32::from_bits(a), values: of(b)? }),
            SIDCO => {
                let fits = [Fit::Exponential, Fit::GammaPareto, Fit::Pareto];
                let fit = fits.into_iter().find(|&fit| fit as u32 == c & 0xff);
                let fit = fit.ok_or(Error::Parameter {
                    what: "SIDCo's fit",
                    value: f64::from(c & 0xff),
                    expected: "0 to 2",
                })?;
                let density = f64::from_bits(u64::from(a) | u64::from(b) << 32);
                Setting::Sidco(Sidco { density, fit, stages: d, values: of(c >> 8)? })
            }
            _ => match Method::from_id(id).ok_or(Error::UnknownMethod { id })? {
                Method::Dense => Setting::Dense,
                Method::Qsgd => Setting::Qsgd(Qsgd {
                    bits: a as u8,
                    bucket: b,
                    scale: if c == 0 { Scale::MaxNorm } else { Scale::MinMax },
                    rounding: if d == 0 { Rounding::Nearest } else { Rounding::Stochastic },
                }),
                Method::TopK => Setting::TopK(TopK { keep: a, values: of(b)? }),
                Method::QuantisedTopK => Setting::QuantisedTopK(QuantisedTopK { keep: a, bits: b as u8 }),
                Method::PowerSgd => Setting::PowerSgd(PowerSgd { rank: a, iterations: b }),
                Method::AdaComp => Setting::AdaComp(AdaComp { bin: a }),
                Method::LoCo => Setting::LoCo(LoCo { group: a }),
                Method::Own(id) => {
                    let method = methods.find(id).ok_or(Error::UnknownMethod { id })?;
                    Setting::Own(OwnSetting::new(method, parameters)?)
                }
            },
        };
        setting.check()?;
        // Whatever else is in the numbers was written by nobody.
        let (_, expected) = setting.data();
        let same = expected == parameters;
        let odd = expected.iter().zip(&parameters).find(|(expected, found)| expected != found);
        let value = odd.map_or(0.0, |(_, &found)| found.into());
        Error::require(same, "parameter of a setting", value, "one that the method has").map(|()| setting)
    }

    /// What of [`data`](Setting::data) all ranks must have alike to decode each other's payloads: not PowerSGD's iterations,
    /// nor SIDCo's stages, of which each rank has its own number.
    pub fn agreed(&self) -> (u8, Parameters) {
        match *self {
            Setting::PowerSgd(c) => Setting::PowerSgd(PowerSgd { iterations: 0, ..c }).data(),
            Setting::Sidco(c) => Setting::Sidco(Sidco { stages: 0, ..c }).data(),
            ref other => other.data(),
        }
    }
}
