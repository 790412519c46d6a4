use super::gradient::{LGRECO_DTYPE_F32, dtype, lgreco_dtype};
use crate::pointers::SizedStruct;
use crate::status::Failure;
use lgreco_train::CoreError;
use lgreco_train::compress::{
    Setting,
    adacomp::AdaComp,
    clt::CltK,
    hard_threshold::HardThreshold,
    loco::LoCo,
    powersgd::PowerSgd,
    qsgd::{Qsgd, Rounding, Scale},
    quantised_topk::QuantisedTopK,
    sidco::{Fit, Sidco},
    topk::TopK,
};

/// A compression method: LGRECO_METHOD_...; below 32 the codes are those in payload headers.
pub type lgreco_method = u32;

/// Uncompressed.
pub const LGRECO_METHOD_DENSE: lgreco_method = 0;
/// Bucketed quantisation: `bits`, `bucket`, `scale`, `rounding`.
pub const LGRECO_METHOD_QSGD: lgreco_method = 1;
/// The largest magnitudes: `keep`, `values`.
pub const LGRECO_METHOD_TOPK: lgreco_method = 2;
/// A product of two thin matrices: `rank`, `iterations`.
pub const LGRECO_METHOD_POWERSGD: lgreco_method = 3;
/// What stands out of its bin, as plus or minus one magnitude (AdaComp): `bin`. The values decide the payload's length.
pub const LGRECO_METHOD_ADACOMP: lgreco_method = 4;
/// 4 bits per element, to nearest (LoCo): `group`.
pub const LGRECO_METHOD_LOCO: lgreco_method = 5;
/// TopK whose kept values travel in a few bits: `keep`, `bits` (1 to 8, the sign among them).
pub const LGRECO_METHOD_QUANTISED_TOPK: lgreco_method = 6;
/// TopK at positions that one worker, in turn, chooses for all (CLT-k of ScaleCom): `keep`. TopK's payload.
pub const LGRECO_METHOD_CLT_K: lgreco_method = 32;
/// The magnitudes from `lambda` on: `values` too. TopK's payload, whose length the values decide.
pub const LGRECO_METHOD_HARD_THRESHOLD: lgreco_method = 33;
/// The magnitudes from an estimate of the k-th largest on (SIDCo): `density`, `fit`, `stages`, `values`. TopK's payload,
/// whose length the values decide.
pub const LGRECO_METHOD_SIDCO: lgreco_method = 34;
/// QSGD, TopK and PowerSGD, chosen per layer; for lgreco_search_options only.
pub const LGRECO_METHOD_HYBRID: lgreco_method = 256;

/// Which interval the levels of a QSGD bucket divide: LGRECO_SCALE_...
pub type lgreco_scale = u32;

/// Plus and minus the largest magnitude.
pub const LGRECO_SCALE_MAX_NORM: lgreco_scale = 0;
/// From the smallest to the largest value (CGX).
pub const LGRECO_SCALE_MIN_MAX: lgreco_scale = 1;

/// How QSGD rounds between two levels: LGRECO_ROUNDING_...
pub type lgreco_rounding = u32;

/// At random, right on average.
pub const LGRECO_ROUNDING_STOCHASTIC: lgreco_rounding = 0;
/// To the nearer one.
pub const LGRECO_ROUNDING_NEAREST: lgreco_rounding = 1;

/// Which distributions SIDCo fits to magnitudes: LGRECO_SIDCO_FIT_...
pub type lgreco_sidco_fit = u32;

/// Exponential in all stages (SIDCo-E), the cheapest.
pub const LGRECO_SIDCO_FIT_EXPONENTIAL: lgreco_sidco_fit = 0;
/// Gamma first, then generalised Pareto (SIDCo-GP).
pub const LGRECO_SIDCO_FIT_GAMMA_PARETO: lgreco_sidco_fit = 1;
/// Generalised Pareto in all stages (SIDCo-P).
pub const LGRECO_SIDCO_FIT_PARETO: lgreco_sidco_fit = 2;

/// A compressor with its parameters. Begin with LGRECO_SETTING_INIT; fields of other methods are not looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_setting {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// LGRECO_METHOD_DENSE, the default, or another, but not LGRECO_METHOD_HYBRID.
    pub method: lgreco_method,
    /// QSGD: bits per element, 1 to 8; quantised TopK: bits per kept value, 1 to 8; 4 by default.
    pub bits: u32,
    /// QSGD: elements per bucket, at least 1; 512 by default.
    pub bucket: u32,
    /// QSGD: LGRECO_SCALE_MAX_NORM by default.
    pub scale: lgreco_scale,
    /// QSGD: LGRECO_ROUNDING_STOCHASTIC by default.
    pub rounding: lgreco_rounding,
    /// TopK, quantised TopK, CLT-k: number of elements sent, 1 to all; 1 by default.
    pub keep: u32,
    /// TopK, hard thresholds, SIDCo: type the values are sent in; LGRECO_DTYPE_F32 by default.
    pub values: lgreco_dtype,
    /// PowerSGD: rank, at least 1; 4 by default.
    pub rank: u32,
    /// PowerSGD: power iterations, 1 to 1000; 1 by default.
    pub iterations: u32,
    /// Hard thresholds: the least magnitude sent, positive and finite; 0 by default, so that it must be set.
    pub lambda: f32,
    /// SIDCo: the wanted share of elements, in (0, 1]; 0.01 by default.
    pub density: f64,
    /// SIDCo: LGRECO_SIDCO_FIT_EXPONENTIAL by default.
    pub fit: lgreco_sidco_fit,
    /// SIDCo: number of stages, at least 1; 1 by default.
    pub stages: u32,
    /// AdaComp: elements per bin, at least 1; 500 by default, for convolutions the authors take 50.
    pub bin: u32,
    /// LoCo: elements per group, at least 1; 512 by default.
    pub group: u32,
}

impl Default for lgreco_setting {
    fn default() -> Self {
        lgreco_setting {
            struct_size: size_of::<lgreco_setting>(),
            method: LGRECO_METHOD_DENSE,
            bits: 4,
            bucket: 512,
            scale: LGRECO_SCALE_MAX_NORM,
            rounding: LGRECO_ROUNDING_STOCHASTIC,
            keep: 1,
            values: LGRECO_DTYPE_F32,
            rank: 4,
            iterations: 1,
            lambda: 0.0,
            density: 0.01,
            fit: LGRECO_SIDCO_FIT_EXPONENTIAL,
            stages: 1,
            bin: 500,
            group: LoCo::default().group,
        }
    }
}

// SAFETY: repr(C), starts with a usize, numbers only.
unsafe impl SizedStruct for lgreco_setting {
    const WHAT: &'static str = "setting";
}

/// A number of bits that fits core's type; core says whether it makes sense.
pub(super) fn bits(bits: u32) -> Result<u8, CoreError> {
    u8::try_from(bits).map_err(|_| CoreError::Parameter { what: "bits", value: bits.into(), expected: "1 to 8" })
}

impl lgreco_setting {
    pub(crate) fn to_core(self) -> Result<Setting, Failure> {
        Ok(match self.method {
            LGRECO_METHOD_DENSE => Setting::Dense,
            LGRECO_METHOD_QSGD => Setting::Qsgd(Qsgd {
                bits: bits(self.bits)?,
                bucket: self.bucket,
                scale: match self.scale {
                    LGRECO_SCALE_MAX_NORM => Scale::MaxNorm,
                    LGRECO_SCALE_MIN_MAX => Scale::MinMax,
                    found => return Err(Failure::UnknownConstant { what: "scale", found }),
                },
                rounding: match self.rounding {
                    LGRECO_ROUNDING_STOCHASTIC => Rounding::Stochastic,
                    LGRECO_ROUNDING_NEAREST => Rounding::Nearest,
                    found => return Err(Failure::UnknownConstant { what: "rounding", found }),
                },
            }),
            LGRECO_METHOD_TOPK => Setting::TopK(TopK { keep: self.keep, values: dtype(self.values)? }),
            LGRECO_METHOD_QUANTISED_TOPK => {
                Setting::QuantisedTopK(QuantisedTopK { keep: self.keep, bits: bits(self.bits)? })
            }
            LGRECO_METHOD_POWERSGD => Setting::PowerSgd(PowerSgd { rank: self.rank, iterations: self.iterations }),
            LGRECO_METHOD_ADACOMP => Setting::AdaComp(AdaComp { bin: self.bin }),
            LGRECO_METHOD_LOCO => Setting::LoCo(LoCo { group: self.group }),
            LGRECO_METHOD_CLT_K => Setting::CltK(CltK { keep: self.keep }),
            LGRECO_METHOD_HARD_THRESHOLD => {
                Setting::HardThreshold(HardThreshold { lambda: self.lambda, values: dtype(self.values)? })
            }
            LGRECO_METHOD_SIDCO => Setting::Sidco(Sidco {
                density: self.density,
                fit: match self.fit {
                    LGRECO_SIDCO_FIT_EXPONENTIAL => Fit::Exponential,
                    LGRECO_SIDCO_FIT_GAMMA_PARETO => Fit::GammaPareto,
                    LGRECO_SIDCO_FIT_PARETO => Fit::Pareto,
                    found => return Err(Failure::UnknownConstant { what: "fit", found }),
                },
                stages: self.stages,
                values: dtype(self.values)?,
            }),
            found => return Err(Failure::UnknownConstant { what: "method", found }),
        })
    }

    pub(crate) fn from_core(setting: Setting) -> lgreco_setting {
        let other = lgreco_setting::default();
        match setting {
            Setting::Dense => other,
            Setting::Qsgd(Qsgd { bits, bucket, scale, rounding }) => lgreco_setting {
                method: LGRECO_METHOD_QSGD,
                bits: bits.into(),
                bucket,
                scale: match scale {
                    Scale::MaxNorm => LGRECO_SCALE_MAX_NORM,
                    Scale::MinMax => LGRECO_SCALE_MIN_MAX,
                },
                rounding: match rounding {
                    Rounding::Stochastic => LGRECO_ROUNDING_STOCHASTIC,
                    Rounding::Nearest => LGRECO_ROUNDING_NEAREST,
                },
                ..other
            },
            Setting::TopK(TopK { keep, values }) => {
                lgreco_setting { method: LGRECO_METHOD_TOPK, keep, values: values as lgreco_dtype, ..other }
            }
            Setting::QuantisedTopK(QuantisedTopK { keep, bits }) => {
                lgreco_setting { method: LGRECO_METHOD_QUANTISED_TOPK, keep, bits: bits.into(), ..other }
            }
            Setting::PowerSgd(PowerSgd { rank, iterations }) => {
                lgreco_setting { method: LGRECO_METHOD_POWERSGD, rank, iterations, ..other }
            }
            Setting::AdaComp(AdaComp { bin }) => lgreco_setting { method: LGRECO_METHOD_ADACOMP, bin, ..other },
            Setting::LoCo(LoCo { group }) => lgreco_setting { method: LGRECO_METHOD_LOCO, group, ..other },
            Setting::CltK(CltK { keep }) => lgreco_setting { method: LGRECO_METHOD_CLT_K, keep, ..other },
            Setting::HardThreshold(HardThreshold { lambda, values }) => {
                lgreco_setting { method: LGRECO_METHOD_HARD_THRESHOLD, lambda, values: values as lgreco_dtype, ..other }
            }
            Setting::Sidco(Sidco { density, fit, stages, values }) => lgreco_setting {
                method: LGRECO_METHOD_SIDCO,
                density,
                fit: match fit {
                    Fit::Exponential => LGRECO_SIDCO_FIT_EXPONENTIAL,
                    Fit::GammaPareto => LGRECO_SIDCO_FIT_GAMMA_PARETO,
                    Fit::Pareto => LGRECO_SIDCO_FIT_PARETO,
                },
                stages,
                values: values as lgreco_dtype,
                ..other
            },
        }
    }
}
