use crate::pointers::SizedStruct;
use crate::status::Failure;
use lgreco_train::feedback::{Residual, Storage};

/// What a compressor remembers between steps: LGRECO_FEEDBACK_...
pub type lgreco_feedback = u32;

/// Nothing.
pub const LGRECO_FEEDBACK_NONE: lgreco_feedback = 0;
/// Error feedback: what was not sent; `gain`, `reset_every`, `storage`.
pub const LGRECO_FEEDBACK_RESIDUAL: lgreco_feedback = 1;

/// What a residual is kept in: LGRECO_STORAGE_...
pub type lgreco_storage = u32;

/// 4 bytes per element, exact.
pub const LGRECO_STORAGE_F32: lgreco_storage = 0;
/// 2 bytes per element, stochastically rounded.
pub const LGRECO_STORAGE_BF16: lgreco_storage = 1;
/// About 1 byte per element, stochastically rounded.
pub const LGRECO_STORAGE_INT8: lgreco_storage = 2;

/// Whose compressor it is, and what it remembers. Begin with LGRECO_COMPRESSOR_OPTIONS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_compressor_options {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Seed of the run, the same on every rank; 0 by default.
    pub seed: u64,
    /// Index of the layer in the model; with `seed` it names PowerSGD's start matrix; 0 by default.
    pub layer_index: u32,
    /// Number of this worker. Workers must differ here, or their rounding errors do not average out; 0 by default.
    pub rank: u32,
    /// LGRECO_FEEDBACK_NONE by default.
    pub feedback: lgreco_feedback,
    /// Residuals: how much of an error is remembered, in (0, 1]; 1 by default.
    pub gain: f32,
    /// Residuals: zeroed after every so many steps; 0, the default, for never.
    pub reset_every: u32,
    /// Residuals: LGRECO_STORAGE_F32 by default.
    pub storage: lgreco_storage,
}

impl Default for lgreco_compressor_options {
    fn default() -> Self {
        lgreco_compressor_options {
            struct_size: size_of::<lgreco_compressor_options>(),
            seed: 0,
            layer_index: 0,
            rank: 0,
            feedback: LGRECO_FEEDBACK_NONE,
            gain: Residual::CLASSIC.gain,
            reset_every: Residual::CLASSIC.reset_every,
            storage: LGRECO_STORAGE_F32,
        }
    }
}

// SAFETY: repr(C), starts with a usize, numbers only.
unsafe impl SizedStruct for lgreco_compressor_options {
    const WHAT: &'static str = "compressor options";
}

impl lgreco_compressor_options {
    pub(super) fn residual(&self) -> Result<Option<Residual>, Failure> {
        let storage = storage(self.storage)?;
        let residual = Residual { gain: self.gain, reset_every: self.reset_every, storage };
        Ok(match self.feedback {
            LGRECO_FEEDBACK_NONE => None,
            LGRECO_FEEDBACK_RESIDUAL => Some(residual),
            found => return Err(Failure::UnknownConstant { what: "feedback", found }),
        })
    }
}

pub(super) fn storage(code: lgreco_storage) -> Result<Storage, Failure> {
    match code {
        LGRECO_STORAGE_F32 => Ok(Storage::F32),
        LGRECO_STORAGE_BF16 => Ok(Storage::Bf16),
        LGRECO_STORAGE_INT8 => Ok(Storage::Int8),
        found => Err(Failure::UnknownConstant { what: "storage", found }),
    }
}
