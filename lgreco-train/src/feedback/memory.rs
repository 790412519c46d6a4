//! The memory of one layer on one rank.
//!
//! A plain residual has an f32 per element. The residual is added to a trainer's f32 gradients in place, and the sum is compressed
//! where the gradients were. This sum minus the worker's own contribution is the next residual. So a residual takes one value per
//! element, and a second value per element only if steps can be rolled back.

use super::kernels::{Commit, Update, add, largest, offer, squared_norm};
use super::values::{MAGNITUDE, plain_values};
use super::{Residual, storage};
use crate::gradient::{Element, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::simd::dispatch_with;
use crate::{CoreError, Error};
use lgreco::compress::spread::spread_parts;
use lgreco::error::{expect_len, expect_room};

/// The residual of one layer on one worker, in a buffer `W` of words: borrowed (`&mut [u64]`) or owned (`Vec<u64>`).
///
/// ```
/// use lgreco_train::compress::{Compressor, Setting, topk::TopK};
/// use lgreco_train::feedback::{Memory, Residual};
/// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_train::rng::Stream;
///
/// let shape = Shape::new(3, 1)?;
/// let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
/// let mut words = vec![0; Residual::CLASSIC.state_len(shape)];
/// let mut memory = Memory::new(Residual::CLASSIC, shape, &mut words[..])?;
///
/// let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32)];
/// let mut payload = vec![0; setting.payload_len(shape, Dtype::F32)?];
/// let gradient = Gradient::new(Values::F32(&[3.0, 2.0, 1.0]), shape)?;
/// let mut sent = [0.0; 3];
/// for (step, expected) in [[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [6.0, 0.0, 0.0]].into_iter().enumerate() {
///     let stream = Stream { step: step as u32, ..Stream::default() };
///     memory.step(&setting, &gradient, stream, &mut workspace, &mut payload, &mut sent)?;
///     assert_eq!(sent, expected);
/// }
/// memory.values(&mut sent)?;
/// assert_eq!(sent, [0.0, 2.0, 3.0]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Memory<W> {
    pub(super) residual: Residual,
    pub(super) shape: Shape,
    pub(super) steps: u64,
    pub(super) words: W,
}

impl Memory<alloc::vec::Vec<u64>> {
    /// A memory of zeros that owns its words.
    ///
    /// # Errors
    /// The errors of [`Memory::new`]; [`CoreError::OutOfMemory`].
    pub fn owned(residual: Residual, shape: Shape) -> Result<Self, Error> {
        let len = residual.state_len(shape);
        let mut words = alloc::vec::Vec::new();
        words.try_reserve_exact(len).map_err(|_| CoreError::OutOfMemory { words: len })?;
        words.resize(len, 0);
        Memory::new(residual, shape, words)
    }
}

impl<W: AsRef<[u64]> + AsMut<[u64]>> Memory<W> {
    /// A memory of zeros in `words`, whose previous content does not matter.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `words` is shorter than [`Residual::state_len`]; [`CoreError::Parameter`] when the gain
    /// is outside (0, 1].
    pub fn new(residual: Residual, shape: Shape, mut words: W) -> Result<Self, Error> {
        residual.check()?;
        expect_room("state words", residual.state_len(shape), words.as_ref().len())?;
        words.as_mut().fill(0);
        Ok(Memory { residual, shape, steps: 0, words })
    }

    /// How the residual is kept: its gain, resets and format.
    pub const fn residual(&self) -> Residual {
        self.residual
    }

    /// The shape of the layer.
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of updates so far.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Squared L2 norm of the residual.
    pub fn squared_norm(&self) -> f64 {
        let (storage, elements) = (self.residual.storage, self.shape.elements());
        dispatch_with!((elements, self.words.as_ref(), storage), squared_norm)
    }

    /// Writes the residual to `values`, row-major, for inspection or for another worker.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `values` does not have one f32 per element.
    pub fn values(&self, values: &mut [f32]) -> Result<(), Error> {
        expect_len("memory values", self.shape.elements(), values.len())?;
        self.offer_values::<f32>(&[], values);
        Ok(())
    }

    /// Replaces the residual by `values`, rounded with the random bits of `stream` if the format requires it. The
    /// values may be sums that include residuals of workers that have left.
    ///
    /// # Errors
    /// [`CoreError::Length`]; [`CoreError::Overflow`] when a value is not finite or too large for the format.
    pub fn set(&mut self, values: &[f32], stream: Stream) -> Result<(), Error> {
        expect_len("memory values", self.shape.elements(), values.len())?;
        self.commit::<f32>(Update::Replace, &[], values, stream)
    }

    /// Multiplies the residual by `factor`, the new loss scale divided by the old one. The products are exact for powers of two,
    /// except for underflow.
    ///
    /// ```
    /// # use lgreco_train::feedback::{Memory, Residual};
    /// # use lgreco_train::{gradient::Shape, rng::Stream};
    /// # let shape = Shape::new(2, 1)?;
    /// # let mut memory = Memory::owned(Residual::CLASSIC, shape)?;
    /// memory.set(&[1.0, -2.0], Stream::default())?;
    /// memory.rescale(0.5, Stream::default())?; // the loss scale was halved
    /// let mut values = [0.0; 2];
    /// memory.values(&mut values)?;
    /// assert_eq!(values, [0.5, -1.0]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Parameter`] unless `factor` is positive and finite; [`CoreError::Overflow`].
    pub fn rescale(&mut self, factor: f32, stream: Stream) -> Result<(), Error> {
        CoreError::require(
            factor > 0.0 && factor.is_finite(),
            "rescaling factor",
            factor.into(),
            "positive and finite",
        )?;
        self.commit::<f32>(Update::Scale { factor }, &[], &[], stream)
    }

    /// `Err` if [`rescale`](Memory::rescale) by this factor would overflow.
    pub(crate) fn check_rescale(&self, factor: f32) -> Result<(), Error> {
        let (storage, elements) = (self.residual.storage, self.shape.elements());
        let largest = f32::from_bits(dispatch_with!((elements, self.words.as_ref(), storage), largest));
        Ok(CoreError::require_finite(largest * factor <= storage.largest(), "the residual")?)
    }

    /// Sets the residual to zero where `places` is not zero.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `places` does not have one number per element.
    pub(crate) fn forget(&mut self, places: &[f32]) -> Result<(), Error> {
        expect_len("memory values", self.shape.elements(), places.len())?;
        storage::clear(self.residual.storage, self.words.as_mut(), places);
        Ok(())
    }

    /// Writes the compressor's input of this step, `m + g`. This method is the first half of [`step`](Memory::step).
    ///
    /// ```
    /// # use lgreco_train::feedback::{Memory, Residual};
    /// # use lgreco_train::{gradient::Shape, rng::Stream};
    /// # let shape = Shape::new(2, 1)?;
    /// # let mut memory = Memory::owned(Residual::CLASSIC, shape)?;
    /// # use lgreco_train::gradient::{Gradient, Values};
    /// memory.set(&[0.5, 0.0], Stream::default())?;
    /// let mut compensated = [0.0; 2];
    /// memory.compensate(&Gradient::new(Values::F32(&[1.0, 2.0]), shape)?, &mut compensated)?;
    /// assert_eq!(compensated, [1.5, 2.0]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::NonFinite`] with the gradient's first element that is not finite; [`CoreError::Overflow`] when a sum exceeds
    /// f32; [`CoreError::Length`].
    ///
    /// # Complexity
    /// One pass.
    pub fn compensate(&self, gradient: &Gradient<'_>, compensated: &mut [f32]) -> Result<(), Error> {
        self.check_shape(gradient.shape())?;
        expect_len("compensated values", self.shape.elements(), compensated.len())?;
        let finite = match self.is_plain() {
            true => {
                let residual = &bytemuck::cast_slice(self.words.as_ref())[..compensated.len()];
                with_elements!(gradient.values(), g => add_gradient(residual, g, compensated))
            }
            false => with_elements!(gradient.values(), g => self.offer_values(g, compensated)) <= f32::MAX.to_bits(),
        };
        if !finite {
            crate::compress::check_finite(gradient)?;
        }
        Ok(CoreError::require_finite(finite, "gradient plus residual")?)
    }

    /// Updates the residual after compression. `decoded` is this worker's own decoded payload, not the average over workers.
    /// `gradient` must be the gradient that [`compensate`](Memory::compensate) got. This method is the second half of
    /// [`step`](Memory::step).
    ///
    /// ```
    /// # use lgreco_train::feedback::{Memory, Residual};
    /// # use lgreco_train::{gradient::Shape, rng::Stream};
    /// # let shape = Shape::new(2, 1)?;
    /// # let mut memory = Memory::owned(Residual::CLASSIC, shape)?;
    /// # use lgreco_train::gradient::{Gradient, Values};
    /// let gradient = Gradient::new(Values::F32(&[1.0, 2.0]), shape)?;
    /// memory.update(&gradient, &[0.0, 2.0], Stream::default())?; // the second was sent
    /// let mut values = [0.0; 2];
    /// memory.values(&mut values)?;
    /// assert_eq!((values, memory.steps()), ([1.0, 0.0], 1));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Overflow`] when the new memory is not finite or does not fit its format; [`CoreError::Length`]. On failure,
    /// the memory is unchanged.
    ///
    /// # Complexity
    /// Two passes, of which the first only reads.
    pub fn update(&mut self, gradient: &Gradient<'_>, decoded: &[f32], stream: Stream) -> Result<(), Error> {
        self.check_shape(gradient.shape())?;
        expect_len("decoded values", self.shape.elements(), decoded.len())?;
        let update = Update::Residual { gain: self.residual.gain };
        with_elements!(gradient.values(), g => self.commit(update, g, decoded, stream))?;
        self.count();
        Ok(())
    }

    /// Adds the residual to `values`, a gradient, and returns whether the sum is finite. The sum is the compressor's input.
    pub(crate) fn compensate_in_place(&self, values: &mut [f32]) -> bool {
        if self.is_plain() {
            return add_plain(&bytemuck::cast_slice(self.words.as_ref())[..values.len()], values);
        }
        let (storage, words) = (self.residual.storage, self.words.as_ref());
        dispatch_with!((storage, words, values), add) <= f32::MAX.to_bits()
    }

    /// Updates the residual with the compression error `rest`: `m ← (1 − a) m + a rest`.
    ///
    /// # Errors
    /// [`CoreError::Overflow`] when the new memory is not finite or does not fit its format. On failure, the memory is unchanged.
    pub(crate) fn keep(&mut self, rest: &[f32], stream: Stream) -> Result<(), Error> {
        self.commit::<f32>(Update::Keep { gain: self.residual.gain }, &[], rest, stream)?;
        self.count();
        Ok(())
    }

    /// Adds `values` to the residual, without counting a step.
    ///
    /// # Errors
    /// The errors of [`keep`](Memory::keep).
    pub(crate) fn add(&mut self, values: &[f32], stream: Stream) -> Result<(), Error> {
        self.commit(Update::Residual { gain: 1.0 }, values, &[], stream)
    }

    /// Makes the plain residual in `next` the present residual, and counts a step. `next` gets the old residual.
    pub(crate) fn replace(&mut self, next: &mut W) {
        self.swap_words(next);
        self.count();
    }

    /// Exchanges the memory's words for `words`, which have the same length.
    pub(crate) fn swap_words(&mut self, words: &mut W) {
        core::mem::swap(&mut self.words, words);
    }

    /// Copies the memory's words, for a later [`undo`](Memory::undo).
    pub(crate) fn copy_words(&self, to: &mut [u64]) {
        to.copy_from_slice(self.words.as_ref());
    }

    /// Goes back one step, to the content in `words`.
    pub(crate) fn undo(&mut self, words: &mut W) {
        self.swap_words(words);
        self.steps = self.steps.saturating_sub(1);
    }

    /// The values of a plain residual.
    pub(crate) fn plain_mut(&mut self) -> &mut [f32] {
        plain_values(self.words.as_mut(), self.shape)
    }

    /// Whether error feedback is in f32 with a gain of 1, so that the residual is exactly the compression error.
    pub(crate) fn is_plain(&self) -> bool {
        self.residual.is_plain()
    }

    pub(super) fn check_shape(&self, shape: Shape) -> Result<(), Error> {
        expect_len("rows of the gradient", self.shape.rows(), shape.rows())?;
        Ok(expect_len("columns of the gradient", self.shape.cols(), shape.cols())?)
    }

    fn offer_values<T: Element>(&self, gradient: &[T], offered: &mut [f32]) -> u32 {
        let (storage, words) = (self.residual.storage, self.words.as_ref());
        dispatch_with!((storage, words, gradient, offered), offer)
    }

    /// Counts a step, and sets the memory to zeros if a reset is due.
    pub(crate) fn count(&mut self) {
        self.steps = self.steps.saturating_add(1);
        let period = self.residual.reset_every;
        if period > 0 && self.steps.is_multiple_of(period as u64) {
            self.words.as_mut().fill(0);
        }
    }

    /// Applies `update`, if the result fits the memory's format.
    fn commit<T: Element>(
        &mut self,
        update: Update,
        gradient: &[T],
        decoded: &[f32],
        stream: Stream,
    ) -> Result<(), Error> {
        let (storage, elements) = (self.residual.storage, self.shape.elements());
        // The memory uses another seed than the payload, because memory and payload must not be rounded with the same random bits.
        let stream = Stream { seed: stream.seed ^ u64::from_le_bytes(*b"feedback"), ..stream };
        let mut pass = |store| {
            let words = self.words.as_mut();
            dispatch_with!(Commit { update, storage, words, elements, gradient, decoded, store }, Commit::run)
        };
        CoreError::require_finite(pass(None) <= storage.largest().to_bits(), "the residual")?;
        pass(Some(stream));
        Ok(())
    }
}

/// Writes a plain residual plus `gradient` to `sum`, and returns whether the whole sum is finite.
fn add_gradient<T: Element>(residual: &[f32], gradient: &[T], sum: &mut [f32]) -> bool {
    #[inline(always)]
    fn run<T: Element>((residual, gradient, sum): (&[f32], &[T], &mut [f32]), (): ()) -> bool {
        let mut largest = 0;
        for ((sum, residual), gradient) in sum.iter_mut().zip(residual).zip(gradient) {
            *sum = residual + gradient.to_f32();
            largest = largest.max(sum.to_bits() & MAGNITUDE);
        }
        largest < f32::INFINITY.to_bits()
    }
    spread_parts!(sum.len(), 1, (residual, gradient, sum), (), run)
}

/// Adds a plain residual to `values`, and returns whether the whole sum is finite.
fn add_plain(residual: &[f32], values: &mut [f32]) -> bool {
    #[inline(always)]
    fn run((residual, values): (&[f32], &mut [f32]), (): ()) -> bool {
        let mut largest = 0;
        for (value, residual) in values.iter_mut().zip(residual) {
            *value += residual;
            largest = largest.max(value.to_bits() & MAGNITUDE);
        }
        largest < f32::INFINITY.to_bits()
    }
    spread_parts!(values.len(), 1, (residual, values), (), run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feedback::{Residual, Storage};
    use std::vec::Vec;

    #[test]
    fn what_is_forgotten_is_zero_and_all_else_as_it_was() {
        let shape = Shape::new(600, 1).unwrap();
        let values: Vec<f32> = (0..600).map(|i| Stream::default().word(i) as i32 as f32 / 2f32.powi(31)).collect();
        let places: Vec<f32> = (0..600).map(|i| if i % 7 == 2 { -0.5 } else { 0.0 }).collect();
        for storage in [Storage::F32, Storage::Bf16, Storage::Int8] {
            let mut memory = Memory::owned(Residual { storage, ..Residual::CLASSIC }, shape).unwrap();
            memory.set(&values, Stream::default()).unwrap();
            let [mut before, mut after] = [[f32::NAN; 600]; 2];
            memory.values(&mut before).unwrap();
            memory.forget(&places).unwrap();
            memory.values(&mut after).unwrap();
            for (i, (before, after)) in before.iter().zip(after).enumerate() {
                assert_eq!(after.to_bits(), if i % 7 == 2 { 0 } else { before.to_bits() }, "{storage:?}, element {i}");
            }
            assert!(matches!(memory.forget(&places[1..]), Err(Error::Core(CoreError::Length { .. }))));
        }
    }
}
