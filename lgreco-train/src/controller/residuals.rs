//! Changes residuals when a trainer skips an update, changes its loss scale, or exchanges gradients itself.

use super::Controller;
use super::layer::Undo;
use crate::feedback::{Memory, Residual};
use crate::rng::Stream;
use crate::{CoreError, Error};
use lgreco::error::expect_len;

/// The residuals of a [`Controller`], returned by [`Controller::residuals`].
///
/// ```
/// # use lgreco_testing::controller::alone;
/// # use lgreco_train::search::Method;
/// # let (mut controller, _) = alone(Method::TopK)?;
/// controller.residuals().set(0, &[0.5; 4096])?;
/// let mut residual = [0.0; 4096];
/// controller.residual(0, &mut residual)?;
/// assert_eq!(residual, [0.5; 4096]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Residuals<'a>(&'a mut Controller);

impl Controller {
    /// Access to this rank's residuals, to change them.
    pub fn residuals(&mut self) -> Residuals<'_> {
        Residuals(self)
    }
}

impl Residuals<'_> {
    /// Replaces the residual of layer `layer` by these values, f32 in row-major order, for instance after an exchange by the
    /// caller. Under a setting without error feedback, the new values are sent once, with the next gradient. The last step can then
    /// no longer be rolled back.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let (mut before, mut after) = ([0.0; 4096], [0.0; 4096]);
    /// controller.residual(0, &mut before)?;
    /// before[17] += 1.0;
    /// controller.residuals().set(0, &before)?;
    /// controller.residual(0, &mut after)?;
    /// assert_eq!(before, after);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] if the present step has exchanged the layer, or while the ranks still agree on the step; [`Error::InFlight`] while a bucket has the layer;
    /// [`Error::NoSuchLayer`]; [`CoreError::Length`] unless there is one value per element; [`CoreError::Overflow`] for a value
    /// that is not finite or too large for the residual's format; [`CoreError::OutOfMemory`]. On an error, nothing has changed.
    pub fn set(&mut self, layer: usize, values: &[f32]) -> Result<(), Error> {
        if self.0.control.is_idle() {
            self.0.expect_layer(layer)?;
        } else {
            // Control requests may end with a switch that replaces residuals.
            self.0.control.expect_open()?;
            self.0.expect_lendable(layer)?;
        }
        let (state, shape) = (&mut self.0.states[layer], self.0.scheduler.tensors[layer].shape);
        expect_len("residual values", shape.elements(), values.len())?;
        let (seed, step) = (self.0.scheduler.config.search.seed, self.0.scheduler.step as u32);
        let stream = Stream { seed, step, layer: layer as u32, rank: self.0.rank };
        match &mut state.memory {
            Some(memory) => memory.set(values, stream)?,
            None if values.iter().all(|&value| value == 0.0) => {}
            None => {
                let mut memory = Memory::owned(Residual::CLASSIC, shape)?;
                memory.set(values, stream)?;
                state.memory = Some(memory);
            }
        }
        (state.undo, state.spent) = (Undo::Nothing, None);
        Ok(())
    }

    /// Multiplies all residuals by `factor`, because the scale of the loss and of the gradients has changed by this factor. All
    /// ranks must call this method with the same factor.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let norm = controller.metrics(0).residual_norm.unwrap_or_default();
    /// controller.residuals().rescale(0.5)?;
    /// assert_eq!(controller.metrics(0).residual_norm, Some(0.5 * norm));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Parameter`] unless `factor` is positive and finite; [`CoreError::Overflow`] when a residual no longer fits its format;
    /// [`Error::StepOrder`] while a step is under way. On an error, no residual has changed.
    ///
    /// # Complexity
    /// Three passes over the residuals. The last step can then no longer be rolled back.
    pub fn rescale(&mut self, factor: f32) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        CoreError::require(
            factor > 0.0 && factor.is_finite(),
            "rescaling factor",
            factor.into(),
            "positive and finite",
        )?;
        let memories = || self.0.states.iter().filter_map(|state| state.memory.as_ref());
        memories().try_for_each(|memory| memory.check_rescale(factor))?;
        let (seed, step, rank) = (self.0.scheduler.config.search.seed, self.0.scheduler.step as u32, self.0.rank);
        for (layer, state) in self.0.states.iter_mut().enumerate() {
            state.undo = Undo::Nothing;
            let stream = Stream { seed, step, layer: layer as u32, rank };
            state.memory.iter_mut().try_for_each(|memory| memory.rescale(factor, stream))?;
        }
        Ok(())
    }

    /// Sets each residual value to zero where the mean of the last step is not zero. `means` has one f32 slice per layer. The step
    /// can then no longer be rolled back. [`Outer::forget_moved`](crate::outer::Outer) explains the purpose.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// controller.residuals().forget_moved(&[&[1.0; 4096], &[0.0; 64]])?;
    /// assert_eq!(controller.metrics(0).residual_norm, Some(0.0));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way; [`CoreError::Length`] unless `means` has one slice per layer and one value
    /// per element. On an error, nothing has changed.
    ///
    /// # Complexity
    /// A pass over the means and the residuals.
    pub fn forget_moved(&mut self, means: &[&[f32]]) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        expect_len("means, one per layer", self.0.states.len(), means.len())?;
        for (tensor, mean) in self.0.scheduler.tensors.iter().zip(means) {
            expect_len("values of a mean", tensor.shape.elements(), mean.len())?;
        }
        for (state, mean) in self.0.states.iter_mut().zip(means) {
            state.undo = Undo::Nothing;
            state.memory.iter_mut().try_for_each(|memory| memory.forget(mean))?;
        }
        Ok(())
    }

    /// Restores the residuals from before the last step, because the trainer has not applied the means of this step. For instance,
    /// a loss scaler has skipped the update. [`Controller::steps`] still counts the step. PowerSGD's factors and the residuals of
    /// layers that the step has not exchanged do not change. All ranks must call this method. Only the last step can be rolled
    /// back.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let [mut before, mut after] = [[0.0; 4096]; 2];
    /// controller.residual(0, &mut before)?;
    /// step_alone(&mut controller, &mut worker)?;
    /// controller.residuals().roll_back()?;
    /// controller.residual(0, &mut after)?;
    /// assert_eq!(before, after);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way, and without [`undo`](super::Config::undo) in the configuration. On an error,
    /// nothing has changed.
    ///
    /// # Complexity
    /// O(layers).
    pub fn roll_back(&mut self) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        if self.0.states.iter().any(|state| state.undo == Undo::Lost) {
            return Err(Error::StepOrder {
                what: "the residuals of the step before are not kept",
                expected: "a configuration with `undo`",
            });
        }
        self.0.states.iter_mut().for_each(|state| state.undo());
        Ok(())
    }
}
