//! What a trainer does to residuals when it skips an update, changes the scale of its loss or has lost its network.

use super::Controller;
use super::layer::Undo;
use crate::Error;
use crate::error::expect_len;
use crate::rng::Stream;

impl Controller {
    /// Takes back what the last step has done to residuals, because its means have not been applied: a loss scaler has skipped
    /// the update, say. The step still counts, PowerSGD's factors stay, and layers that the step has not exchanged keep
    /// theirs. Every rank does it or none. Once only: the residuals of the step before are gone.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let [mut before, mut after] = [[0.0; 4096]; 2];
    /// controller.residual(0, &mut before)?;
    /// step_alone(&mut controller, &mut worker)?;
    /// controller.roll_back()?;
    /// controller.residual(0, &mut after)?;
    /// assert_eq!(before, after);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way, and where the residuals before it are gone: the configuration has to ask
    /// for [`undo`](super::Config::undo). Then nothing has changed.
    ///
    /// # Complexity
    /// O(layers).
    pub fn roll_back(&mut self) -> Result<(), Error> {
        self.control.expect_idle()?;
        if self.states.iter().any(|state| state.undo == Undo::Lost) {
            return Err(Error::StepOrder {
                what: "the residuals of the step before are not kept",
                expected: "a configuration with `undo`",
            });
        }
        self.states.iter_mut().for_each(|state| state.undo());
        Ok(())
    }

    /// Gives up the step under way, because a collective has failed: it may be begun again, and residuals are what they were
    /// before it, if the configuration asks for [`undo`](super::Config::undo). If not, those of layers whose exchange was done
    /// are what it has left. A collection of gradients for the next decision begins anew. All buckets are taken back first, wherever
    /// they are, once the engine no longer touches their memory.
    ///
    /// Ranks may have got differently far, and differ in settings and factors: whatever they go on with, in a new group of
    /// whoever is left, all [load](Controller::load) the plan of one of them, each with its own residuals.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// controller.begin_step(0.1)?;
    /// controller.abandon_step()?; // the network has failed
    /// assert_eq!(controller.steps(), 4);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InFlight`] when a bucket has not been taken back; [`Error::StepOrder`] when no step is under way.
    ///
    /// # Complexity
    /// O(layers), and a pass over the collected gradients if there are any.
    pub fn abandon_step(&mut self) -> Result<(), Error> {
        if self.control.is_idle() {
            return Err(Error::StepOrder { what: "no step is under way", expected: "one that has begun" });
        }
        self.expect_taken_back()?;
        if self.control.expect_open().is_ok() {
            self.states.iter_mut().for_each(|state| state.undo());
            self.planner.reopen();
            self.late = self.taken.late;
        }
        self.control.cancel();
        Ok(())
    }

    /// Multiplies all residuals by `factor`, because gradients are from now on so many times what they were: the scale of the
    /// loss has changed. Every rank does it with the same factor, or none.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let norm = controller.metrics(0).residual_norm.unwrap_or_default();
    /// controller.rescale_residuals(0.5)?;
    /// assert_eq!(controller.metrics(0).residual_norm, Some(0.5 * norm));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Parameter`](crate::CoreError::Parameter) unless `factor` is positive and finite,
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) when a residual no longer fits its format: then no residual has changed. [`Error::StepOrder`] while a step is under way.
    ///
    /// # Complexity
    /// Three passes over the residuals. The last step can then no longer be rolled back.
    pub fn rescale_residuals(&mut self, factor: f32) -> Result<(), Error> {
        self.control.expect_idle()?;
        Error::require(factor > 0.0 && factor.is_finite(), "rescaling factor", factor.into(), "positive and finite")?;
        let memories = || self.states.iter().filter_map(|state| state.memory.as_ref());
        memories().try_for_each(|memory| memory.check_rescale(factor))?;
        let (seed, step, rank) = (self.planner.config.search.seed, self.planner.step as u32, self.rank);
        for (layer, state) in self.states.iter_mut().enumerate() {
            state.undo = Undo::Nothing;
            let stream = Stream { seed, step, layer: layer as u32, rank };
            state.memory.iter_mut().try_for_each(|memory| memory.rescale(factor, stream))?;
        }
        Ok(())
    }

    /// Forgets residuals where the means of the last step, f32 and one slice per layer, are not zero. An estimate (EF21) stays
    /// what it is. The step can then no longer be rolled back. [`Outer::forget_moved`](crate::outer::Outer) says what it is for.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// controller.forget_moved(&[&[1.0; 4096], &[0.0; 64]])?;
    /// assert_eq!(controller.metrics(0).residual_norm, Some(0.0));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way; [`CoreError::Length`](crate::CoreError::Length) for means of another
    /// number or length than the layers: then nothing is forgotten.
    ///
    /// # Complexity
    /// A pass over the means and the residuals.
    pub fn forget_moved(&mut self, means: &[&[f32]]) -> Result<(), Error> {
        self.control.expect_idle()?;
        expect_len("means, one per layer", self.states.len(), means.len())?;
        for (tensor, mean) in self.planner.tensors.iter().zip(means) {
            expect_len("values of a mean", tensor.shape.elements(), mean.len())?;
        }
        for (state, mean) in self.states.iter_mut().zip(means) {
            state.undo = Undo::Nothing;
            state.memory.iter_mut().try_for_each(|memory| memory.forget(mean))?;
        }
        Ok(())
    }
}
