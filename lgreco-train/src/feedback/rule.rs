//! How a memory is kept: which quantity, in which format, with which gain.

use super::Storage;
use super::kernels::Update;
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

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(self.gain > 0.0 && self.gain <= 1.0) {
            return Err(Error::Core(CoreError::Parameter {
                what: "residual gain",
                value: self.gain as f64,
                expected: "in (0, 1]",
            }));
        }
        Ok(())
    }
}

impl Default for Residual {
    fn default() -> Self {
        Residual::CLASSIC
    }
}

/// What is remembered.
///
/// ```
/// use lgreco_train::feedback::{Memory, Residual, Rule};
/// use lgreco_train::gradient::Shape;
/// let shape = Shape::new(8, 8)?;
/// let memory = Memory::owned(Rule::Residual(Residual { gain: 0.1, ..Residual::CLASSIC }), shape)?;
/// let estimate = Memory::owned(Rule::Ef21, shape)?;
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Error feedback: the gradient mass that has not been sent.
    Residual(Residual),
    /// EF-mixed: error feedback through TopK, where half of the `k` entries (rounded up) are those of the largest
    /// abs g and half those of the largest abs m; places freed by overlap go to the largest abs p outside. Every entry
    /// sends `p`. The memory cannot be starved by large fresh gradients, nor these by an old memory.
    ///
    /// This is our definition: that of the paper which names the method (arXiv 2401.07788) was not available.
    Mixed(Residual),
    /// EF21: the receiver's estimate of this worker's gradient, in f32; payloads correct it. They sum like any others,
    /// if the receivers add the sum to a running one, and a lost payload is lost for good.
    Ef21,
    /// EF21+: as EF21, but a payload may also replace the estimate. One more byte per message says which. The receiver keeps
    /// an estimate per sender, as at a pipeline cut or in a parameter server: what replaces an estimate cannot be summed.
    Ef21Plus,
}

impl Rule {
    /// Words of 8 bytes that a memory of this shape takes: all its state.
    ///
    /// ```
    /// use lgreco_train::feedback::{Residual, Rule};
    /// use lgreco_train::gradient::Shape;
    /// let shape = Shape::new(64, 576)?;
    /// assert_eq!(Rule::Residual(Residual::CLASSIC).state_len(shape), 4 * 64 * 576 / 8);
    /// assert_eq!(Rule::Residual(Residual::LOCO).state_len(shape), 64 * 576 / 8 + 72 / 8);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub const fn state_len(&self, shape: Shape) -> usize {
        self.residual().storage.bytes(shape.elements()).div_ceil(8) as usize
    }

    /// What applies of the parameters of a residual; estimates are kept exactly.
    pub(super) const fn residual(&self) -> Residual {
        match self {
            Rule::Residual(residual) | Rule::Mixed(residual) => *residual,
            Rule::Ef21 | Rule::Ef21Plus => Residual::CLASSIC,
        }
    }

    /// The update of a step, for all rules that have only one.
    pub(super) const fn update(&self) -> Update {
        match self {
            Rule::Residual(residual) | Rule::Mixed(residual) => Update::Residual { gain: residual.gain },
            Rule::Ef21 | Rule::Ef21Plus => Update::Correct,
        }
    }

    /// The rule's name, for messages.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Rule::Residual(_) => "residual",
            Rule::Mixed(_) => "EF-mixed",
            Rule::Ef21 => "EF21",
            Rule::Ef21Plus => "EF21+",
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.residual().check()
    }
}
