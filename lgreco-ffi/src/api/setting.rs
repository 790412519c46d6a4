use super::gradient::{LGRECO_DTYPE_F32, dtype, lgreco_dtype};
use crate::pointers::Versioned;
use crate::status::Failure;
use lgreco_core::Error;
use lgreco_core::compress::{
    Setting,
    powersgd::PowerSgd,
    qsgd::{Qsgd, Rounding, Scale},
    topk::TopK,
};

/// A compression method: LGRECO_METHOD_...; those of settings are the ones in payload headers.
pub type lgreco_method = u32;

/// Uncompressed.
pub const LGRECO_METHOD_DENSE: lgreco_method = 0;
/// Bucketed quantisation: `bits`, `bucket`, `scale`, `rounding`.
pub const LGRECO_METHOD_QSGD: lgreco_method = 1;
/// The largest magnitudes: `keep`, `values`.
pub const LGRECO_METHOD_TOPK: lgreco_method = 2;
/// A product of two thin matrices: `rank`, `iterations`.
pub const LGRECO_METHOD_POWERSGD: lgreco_method = 3;
/// All of them, chosen per layer; for lgreco_search_options only.
pub const LGRECO_METHOD_HYBRID: lgreco_method = 256;

/// A method this version of the C API has no fields for; only read, of states that Rust programs saved.
pub const LGRECO_METHOD_OTHER: lgreco_method = 257;

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

/// A compressor with its parameters. Begin with LGRECO_SETTING_INIT; fields of other methods are not looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_setting {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// LGRECO_METHOD_DENSE, the default, or another, but not LGRECO_METHOD_HYBRID or LGRECO_METHOD_OTHER.
    pub method: lgreco_method,
    /// QSGD: bits per element, 1 to 8; 4 by default.
    pub bits: u32,
    /// QSGD: elements per bucket, at least 1; 512 by default.
    pub bucket: u32,
    /// QSGD: LGRECO_SCALE_MAX_NORM by default.
    pub scale: lgreco_scale,
    /// QSGD: LGRECO_ROUNDING_STOCHASTIC by default.
    pub rounding: lgreco_rounding,
    /// TopK: number of elements sent, 1 to all; 1 by default.
    pub keep: u32,
    /// TopK: type the values are sent in; LGRECO_DTYPE_F32 by default.
    pub values: lgreco_dtype,
    /// PowerSGD: rank, at least 1; 4 by default.
    pub rank: u32,
    /// PowerSGD: power iterations, at least 1; 1 by default.
    pub iterations: u32,
    /// Must be 0.
    pub reserved: u32,
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
            reserved: 0,
        }
    }
}

// SAFETY: repr(C), starts with a usize, integers only.
unsafe impl Versioned for lgreco_setting {
    const WHAT: &'static str = "setting";
    const FIRST_SIZE: usize = 48;
}

/// A number of bits that fits core's type; core says whether it makes sense.
pub(super) fn bits(bits: u32) -> Result<u8, Error> {
    u8::try_from(bits).map_err(|_| Error::Parameter { what: "bits", value: bits.into(), expected: "1 to 8" })
}

impl lgreco_setting {
    pub(crate) fn to_core(self) -> Result<Setting, Failure> {
        if self.reserved != 0 {
            return Err(Failure::UnknownConstant { what: "reserved field of a setting", found: self.reserved });
        }
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
            LGRECO_METHOD_POWERSGD => Setting::PowerSgd(PowerSgd { rank: self.rank, iterations: self.iterations }),
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
            Setting::PowerSgd(PowerSgd { rank, iterations }) => {
                lgreco_setting { method: LGRECO_METHOD_POWERSGD, rank, iterations, ..other }
            }
            Setting::CltK(_)
            | Setting::HardThreshold(_)
            | Setting::Sidco(_)
            | Setting::AdaComp(_)
            | Setting::LoCo(_) => lgreco_setting { method: LGRECO_METHOD_OTHER, ..other },
        }
    }
}
