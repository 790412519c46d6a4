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
    /// The gain `a` in (0, 1] of `m + a (g − ĝ)`: 1 is classic error feedback, ScaleCom's beta, 1 − LoCo's beta.
    pub gain: f32,
    /// The memory is zeroed after every so many steps; 0 for never.
    pub reset_every: u32,
    /// What the memory is kept in.
    pub storage: Storage,
}

impl Residual {
    /// Classic error feedback: everything is remembered, exactly, for ever.
    pub const CLASSIC: Residual = Residual { gain: 1.0, reset_every: 0, storage: Storage::F32 };
    /// LoCo: a moving average of errors in 8 bits, forgotten every 512 steps.
    pub const LOCO: Residual = Residual { gain: 0.2, reset_every: 512, storage: Storage::Int8 };

    /// Whether what is remembered is what has not been sent, in f32, and nothing else.
    pub(crate) fn is_plain(self) -> bool {
        self.gain == 1.0 && self.storage == Storage::F32
    }

    /// Words of 8 bytes that a memory of this shape takes: all its state.
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
