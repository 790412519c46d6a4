use super::context::lgreco_context;
use super::gradient::{dtype, lgreco_dtype};
use crate::pointers::{self, Output, fill, read_struct, sized_struct};
use crate::status::{Failure, Result, lgreco_status, one_of};
use core::ffi::c_char;
use lgreco_train::CoreError;

use lgreco_train::compress::{
    Setting,
    adacomp::AdaComp,
    clt::CltK,
    eden::{self, Eden},
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
/// Quantisation after a random rotation, in blocks of 4096 (EDEN): `bits` (1 to 8), and as `scale` LGRECO_SCALE_UNBIASED or
/// LGRECO_SCALE_LEAST_SQUARES.
pub const LGRECO_METHOD_EDEN: lgreco_method = 10;
/// TopK at positions that one worker, in turn, chooses for all (CLT-k of ScaleCom): `keep`. TopK's payload.
pub const LGRECO_METHOD_CLT_K: lgreco_method = 32;
/// The magnitudes from `lambda` on: `values` too. TopK's payload, whose length the values decide.
pub const LGRECO_METHOD_HARD_THRESHOLD: lgreco_method = 33;
/// The magnitudes from an estimate of the k-th largest on (SIDCo): `density`, `fit`, `stages`, `values`. TopK's payload,
/// whose length the values decide.
pub const LGRECO_METHOD_SIDCO: lgreco_method = 34;

/// Which interval the levels of a QSGD bucket divide, or how long EDEN makes blocks: LGRECO_SCALE_...
pub type lgreco_scale = u32;

/// Plus and minus the largest magnitude.
pub const LGRECO_SCALE_MAX_NORM: lgreco_scale = 0;
/// From the smallest to the largest value (CGX).
pub const LGRECO_SCALE_MIN_MAX: lgreco_scale = 1;

/// Of EDEN: blocks that are right on average.
pub const LGRECO_SCALE_UNBIASED: lgreco_scale = 0;
/// Of EDEN: blocks of the least squared error.
pub const LGRECO_SCALE_LEAST_SQUARES: lgreco_scale = 1;

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
    /// LGRECO_METHOD_DENSE, the default, or another.
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

// SAFETY: repr(C), starts with a usize; numbers only.
sized_struct!(
    "setting",
    lgreco_setting {
        bits: 4,
        bucket: 512,
        keep: 1,
        rank: 4,
        iterations: 1,
        density: 0.01,
        stages: 1,
        bin: 500,
        group: LoCo::default().group,
    }
);

/// A number of bits that fits core's type; core says whether it makes sense.
pub(super) fn bits(bits: u32) -> Result<u8, CoreError> {
    u8::try_from(bits).map_err(|_| CoreError::Parameter { what: "bits", value: bits.into(), expected: "1 to 8" })
}

impl lgreco_setting {
    pub(crate) fn to_core(self) -> Result<Setting> {
        Ok(match self.method {
            LGRECO_METHOD_DENSE => Setting::Dense,
            LGRECO_METHOD_QSGD => Setting::Qsgd(Qsgd {
                bits: bits(self.bits)?,
                bucket: self.bucket,
                scale: one_of("scale", self.scale, [Scale::MaxNorm, Scale::MinMax])?,
                rounding: one_of("rounding", self.rounding, [Rounding::Stochastic, Rounding::Nearest])?,
            }),
            LGRECO_METHOD_EDEN => Setting::Eden(Eden {
                bits: bits(self.bits)?,
                scale: one_of("scale", self.scale, [eden::Scale::Unbiased, eden::Scale::LeastSquares])?,
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
                fit: one_of("fit", self.fit, [Fit::Exponential, Fit::GammaPareto, Fit::Pareto])?,
                stages: self.stages,
                values: dtype(self.values)?,
            }),
            found => return Err(Failure::UnknownConstant { what: "method", found }),
        })
    }

    pub(crate) fn from_core(setting: Setting) -> lgreco_setting {
        let mut s = lgreco_setting::default();
        match setting {
            Setting::Dense => s.method = LGRECO_METHOD_DENSE,
            Setting::Qsgd(Qsgd { bits, bucket, scale, rounding }) => {
                (s.method, s.bits, s.bucket) = (LGRECO_METHOD_QSGD, bits.into(), bucket);
                s.scale = scale as lgreco_scale;
                s.rounding = match rounding {
                    Rounding::Stochastic => LGRECO_ROUNDING_STOCHASTIC,
                    Rounding::Nearest => LGRECO_ROUNDING_NEAREST,
                };
            }
            Setting::Eden(Eden { bits, scale }) => {
                (s.method, s.bits, s.scale) = (LGRECO_METHOD_EDEN, bits.into(), scale as lgreco_scale);
            }
            Setting::TopK(TopK { keep, values }) => {
                (s.method, s.keep, s.values) = (LGRECO_METHOD_TOPK, keep, values as lgreco_dtype);
            }
            Setting::QuantisedTopK(QuantisedTopK { keep, bits }) => {
                (s.method, s.keep, s.bits) = (LGRECO_METHOD_QUANTISED_TOPK, keep, bits.into());
            }
            Setting::PowerSgd(PowerSgd { rank, iterations }) => {
                (s.method, s.rank, s.iterations) = (LGRECO_METHOD_POWERSGD, rank, iterations);
            }
            Setting::AdaComp(AdaComp { bin }) => (s.method, s.bin) = (LGRECO_METHOD_ADACOMP, bin),
            Setting::LoCo(LoCo { group }) => (s.method, s.group) = (LGRECO_METHOD_LOCO, group),
            Setting::CltK(CltK { keep }) => (s.method, s.keep) = (LGRECO_METHOD_CLT_K, keep),
            Setting::HardThreshold(HardThreshold { lambda, values }) => {
                (s.method, s.lambda, s.values) = (LGRECO_METHOD_HARD_THRESHOLD, lambda, values as lgreco_dtype);
            }
            Setting::Sidco(Sidco { density, fit, stages, values }) => {
                (s.method, s.density, s.fit) = (LGRECO_METHOD_SIDCO, density, fit as lgreco_sidco_fit);
                (s.stages, s.values) = (stages, values as lgreco_dtype);
            }
            // C has no methods of its own yet.
            other => s.method = other.data().0.into(),
        }
        s
    }
}

/// Bytes that hold any setting's text and the NUL after it.
pub const LGRECO_SETTING_TEXT_BYTES: usize = 64;

/// Writes a setting as text with a NUL after it, such as "qsgd 4", "topk 786" or "powersgd 4 iterations 2", as it stands in
/// table and plan files; `length`, which must not be NULL, receives the number of bytes before the NUL. README.md has the
/// words.
///
/// LGRECO_LENGTH when `capacity` is not above that number: `length` is then set all the same, and `text` may be NULL.
/// LGRECO_UNKNOWN_CONSTANT, LGRECO_PARAMETER. Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_setting_to_text(
    context: *mut lgreco_context,
    setting: *const lgreco_setting,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(context, |_| {
        let written = read_struct(setting)?.to_core()?.to_string();
        // Only what is in range can be read again.
        written.parse::<Setting>()?;
        Output { what: "text", to: text, capacity, length }.write_text(&written)
    })
}

/// Fills `setting` with what `text`, which ends with a NUL, says, as lgreco_setting_to_text writes it. Whether the setting
/// fits a layer is for the calls that use it to say.
///
/// LGRECO_SETTING_WORD for a word that is unknown there, LGRECO_SETTING_SYNTAX where another word or a number is expected:
/// the message names the word; LGRECO_PARAMETER for a parameter out of range; LGRECO_TEXT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_setting_from_text(
    context: *mut lgreco_context,
    text: *const c_char,
    setting: *mut lgreco_setting,
) -> lgreco_status {
    call!(context, |_| { fill(setting, || Ok(lgreco_setting::from_core(pointers::text(text, "text")?.parse()?))) })
}
