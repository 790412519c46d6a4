//! How a residual is kept: in which format, with which gain, for how long.

use super::Storage;
use crate::gradient::Shape;
use crate::{CoreError, Error};

/// How much of a new compression error is remembered, in which format, and for how long.
///
/// ```
/// use lgreco_train::feedback::{Residual, Storage};
/// let scalecom = Residual { gain: 0.1, ..Residual::CLASSIC }; // for large batches
/// let half_the_memory = Residual { storage: Storage::Bf16, ..Residual::CLASSIC };
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// The gain `a` of `m + a (g − ĝ)`, in (0, 1]. The gain is 1 for classic error feedback, beta for ScaleCom, and 1 −
    /// beta for LoCo.
    pub gain: f32,
    /// Number of steps after which the memory is set to zeros; 0 for never.
    pub reset_every: u32,
    /// The format of the memory.
    pub storage: Storage,
}

impl Residual {
    /// Classic error feedback: everything is remembered, exactly, for ever.
    pub const CLASSIC: Residual = Residual { gain: 1.0, reset_every: 0, storage: Storage::F32 };
    /// LoCo: a moving average of errors in 8 bits, set to zeros every 512 steps.
    pub const LOCO: Residual = Residual { gain: 0.2, reset_every: 512, storage: Storage::Int8 };

    /// Whether the residual is exactly the compression error, in f32.
    pub(crate) fn is_plain(self) -> bool {
        self.gain == 1.0 && self.storage == Storage::F32
    }

    /// Number of 8-byte words that a memory of this shape takes.
    ///
    /// ```
    /// use lgreco_train::feedback::Residual;
    /// use lgreco_train::gradient::Shape;
    /// let shape = Shape::new(64, 576)?;
    /// assert_eq!(Residual::CLASSIC.state_len(shape), 4 * 64 * 576 / 8);
    /// assert_eq!(Residual::LOCO.state_len(shape), 64 * 576 / 8 + 72 / 8);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub const fn state_len(&self, shape: Shape) -> usize {
        self.storage.bytes(shape.elements()).div_ceil(8) as usize
    }

    /// `Err` unless the gain is in (0, 1].
    ///
    /// # Errors
    /// [`CoreError::Parameter`].
    pub fn check(&self) -> Result<(), Error> {
        Ok(CoreError::require(self.gain > 0.0 && self.gain <= 1.0, "residual gain", self.gain.into(), "in (0, 1]")?)
    }
}

impl Default for Residual {
    fn default() -> Self {
        Residual::CLASSIC
    }
}
