//! Layers whose gradients are exchanged elsewhere: in the memory of a device, say. Schedule, window, decisions, settings and
//! saved states are the controller's all the same; buckets, and between steps residuals, are those of whoever exchanges.

use super::Controller;
use super::tensor::{check_layer, expect_finite};
use super::layer::BucketStatus;
use super::window;
use crate::compress::Setting;
use lgreco::error::expect_len;
use crate::gradient::Values;
use crate::{CoreError, Error};

/// What a [`Controller`] is told of exchanges elsewhere, by [`Controller::external`].
///
/// ```
/// # use lgreco_testing::controller::alone;
/// # use lgreco_train::search::Method;
/// # let (mut controller, _) = alone(Method::TopK)?;
/// controller.begin_step(0.1)?;
/// assert!(controller.control()?.is_none());
/// controller.external().note_exchanged(&[0, 1])?; // a device has made the means
/// assert_eq!(controller.finish_step()?.bytes_out, 4 * (4096 + 64));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct External<'a>(pub(super) &'a mut Controller);

impl External<'_> {
    /// Whether gradients of the step under way are to be [observed](External::observe), on this rank.
    ///
    /// ```
    /// # use lgreco_testing::controller::alone;
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, _) = alone(Method::TopK)?; // two steps of warm-up, both of them in the window
    /// assert!(!controller.external().watches()); // no step is under way
    /// controller.begin_step(0.1)?;
    /// assert!(controller.control()?.is_none() && controller.external().watches());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn watches(&self) -> bool {
        self.0.control.expect_open().is_ok() && self.0.scheduler.watches()
    }

    /// Takes note of layer `layer`'s own, uncompressed gradient, which is exchanged elsewhere, once in a step; does nothing
    /// where none is [asked for](External::watches). A layer that is not observed in a step counts as it did on average
    /// before.
    ///
    /// ```
    /// # use lgreco_testing::controller::alone;
    /// # use lgreco_train::{gradient::Values, search::Method};
    /// # let (mut controller, _) = alone(Method::TopK)?;
    /// controller.begin_step(0.1)?;
    /// assert!(controller.control()?.is_none());
    /// controller.external().observe(0, Values::F32(&[1.0; 4096]))?;
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step has begun and its control requests are done; [`Error::NoSuchLayer`]; [`Error::LayerDtype`] and
    /// [`Error::LayerMismatch`] when it has another type or number of elements. [`Error::NonFiniteGradient`] for NaN and infinity: the
    /// window then begins anew with the next step.
    ///
    /// # Complexity
    /// A pass over the gradient.
    pub fn observe(&mut self, layer: usize, gradient: Values<'_>) -> Result<(), Error> {
        self.0.control.expect_open()?;
        self.0.expect_layer(layer)?;
        let scheduler = &mut self.0.scheduler;
        let tensor = &scheduler.tensors[layer];
        check_layer(layer, tensor.shape, tensor.dtype, gradient)?;
        if scheduler.watches() {
            if let Err(error) = expect_finite(layer, gradient) {
                scheduler.forget();
                return Err(error);
            }
            let steps = scheduler.window.steps;
            window::add(&mut scheduler.window.means_mut()[layer], gradient, steps);
        }
        Ok(())
    }

    /// Takes note that layer `layer`'s own, uncompressed gradient of this step is kept elsewhere, on a device say, as the
    /// mean of the window that [`observe`](External::observe) would make of it; does nothing where none is
    /// [asked for](External::watches). The next task then needs [`PlanTask::run_with`](super::PlanTask::run_with), which
    /// has an example, and until it has been run no decision is made: also without a [lead](super::Schedule::lead) it is
    /// there to be taken. What is observed here of that layer in other steps of the window is not looked at.
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step has begun and its control requests are done; [`Error::NoSuchLayer`].
    pub fn note_observed(&mut self, layer: usize) -> Result<(), Error> {
        self.0.control.expect_open()?;
        self.0.expect_layer(layer)?;
        if self.0.scheduler.watches() {
            self.0.scheduler.window.note_elsewhere(layer);
        }
        Ok(())
    }

    /// Which of the window's steps the one under way is, from 1 on, where its gradients are to be [observed](External::watches);
    /// else 0.
    pub fn window_step(&self) -> u64 {
        if self.watches() { self.0.scheduler.window_step() } else { 0 }
    }

    /// Whether gradients of the next decision are kept elsewhere, by a step that was [noted](External::note_observed) and has not been
    /// forgotten since, so that whoever has them must keep them.
    pub fn observes_elsewhere(&self) -> bool {
        self.0.scheduler.window.is_elsewhere()
    }

    /// Unless buckets are exchanged: takes a layer's mean of the window so far, in f32, which was
    /// [kept elsewhere](External::note_observed), for a saved state, or because the device can no longer measure it. From
    /// then on it is here, unless it is observed elsewhere again; a task that is out is not told. Does nothing on other ranks
    /// than the measuring one.
    ///
    /// ```
    /// # use lgreco_testing::controller::alone_with_lead;
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, _) = alone_with_lead(Method::TopK, 1)?;
    /// for _ in 0..2 { // the second is one to plan by
    ///     controller.begin_step(0.1)?;
    ///     assert!(controller.control()?.is_none());
    ///     controller.external().note_observed(0)?;
    ///     controller.external().note_exchanged(&[0, 1])?;
    ///     controller.finish_step()?;
    /// }
    /// assert!(controller.save().is_err());
    /// controller.external().set_observed(0, &[1.0; 4096])?; // as the device has it
    /// assert!(controller.save().is_ok());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way whose control requests are done; [`Error::NoSuchLayer`], [`CoreError::Length`](crate::CoreError::Length) unless there is one value per element.
    pub fn set_observed(&mut self, layer: usize, mean: &[f32]) -> Result<(), Error> {
        if self.0.control.expect_open().is_ok() {
            return Err(Error::StepOrder { what: "a step is under way", expected: "its end" });
        }
        self.0.expect_layer(layer)?;
        expect_len("values of a window's mean", self.0.scheduler.tensors[layer].shape.elements(), mean.len())?;
        if self.0.scheduler.measures() {
            self.0.scheduler.window.bring(layer, mean);
        }
        Ok(())
    }

    /// Between two steps: collects gradients for the next decision anew, because the last step, whose gradients were
    /// [observed](External::observe), has failed elsewhere. A task that is out is not waited for.
    ///
    /// ```
    /// # use lgreco_testing::controller::alone_with_lead;
    /// # use lgreco_train::{gradient::Values, search::Method};
    /// # let (mut controller, _) = alone_with_lead(Method::TopK, 1)?;
    /// for _ in 0..2 { // the second is one to plan by
    ///     controller.begin_step(0.1)?;
    ///     assert!(controller.control()?.is_none());
    ///     controller.external().observe(0, Values::F32(&[1.0; 4096]))?;
    ///     controller.external().note_exchanged(&[0, 1])?;
    ///     controller.finish_step()?;
    /// }
    /// assert!(controller.planning().take_task().is_some());
    /// controller.external().forget_observed()?;
    /// assert!(controller.planning().take_task().is_none());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way.
    ///
    /// # Complexity
    /// A pass over the collected gradients.
    pub fn forget_observed(&mut self) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        self.0.scheduler.forget();
        Ok(())
    }

    /// Takes note that layers are exchanged elsewhere in the step under way, under their settings and by
    /// [`Route::AllGather`](crate::exchange::Route) or [`Route::Sharded`](crate::exchange::Route): what they send is counted, and no bucket of the step may have them. Where values decide how long
    /// a payload is, the longest is counted.
    ///
    /// ```
    /// # use lgreco_testing::controller::alone;
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, _) = alone(Method::TopK)?;
    /// controller.begin_step(0.1)?;
    /// assert!(controller.control()?.is_none());
    /// controller.external().note_exchanged(&[1])?;
    /// assert!(controller.open(&[1]).is_err());
    /// assert_eq!((controller.finish_step()?.bytes_out, controller.metrics(1).steps), (4 * 64, 1));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step has begun and its control requests are done, or when a layer has been exchanged in it;
    /// [`Error::NoSuchLayer`], [`Error::InFlight`] for one in a bucket. Layers before that one
    /// are counted then.
    pub fn note_exchanged(&mut self, layers: &[usize]) -> Result<(), Error> {
        self.0.control.expect_open()?;
        let reduce_dtype = self.0.scheduler.config.search.reduce_dtype;
        for &layer in layers {
            self.0.expect_lendable(layer)?;
            let (setting, tensor) = (self.0.states[layer].choice.setting, &self.0.scheduler.tensors[layer]);
            let bytes = match setting {
                // Without a header.
                Setting::Dense => tensor.shape.elements() * tensor.dtype.bytes().min(reduce_dtype.bytes()),
                setting => setting.exchanged_len(tensor.shape, tensor.dtype, reduce_dtype)?,
            };
            self.note_sent(layer, bytes as u64)?;
        }
        Ok(())
    }

    /// The same of a layer, with the bytes that it took.
    fn note_sent(&mut self, layer: usize, bytes: u64) -> Result<(), Error> {
        self.0.control.expect_open()?;
        self.0.expect_lendable(layer)?;
        let state = &mut self.0.states[layer];
        state.status = BucketStatus::Exchanged;
        state.counts.steps += 1;
        state.counts.bytes_in += self.0.scheduler.tensors[layer].bytes();
        state.counts.bytes_out += bytes;
        self.0.totals.bytes_out += bytes;
        self.0.totals.told = true;
        Ok(())
    }

    /// Between two steps: the relative squared error of what a layer was compressed to elsewhere in the last one, as
    /// [`Metrics::relative_error`](super::Metrics) has it. Layers that are sent uncompressed have none.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// controller.external().record_error(0, 0.25)?;
    /// controller.external().record_error(1, 0.25)?; // the bias
    /// assert_eq!([0, 1].map(|layer| controller.metrics(layer).relative_error), [Some(0.25), None]);
    /// assert!(controller.external().record_error(0, f64::NAN).is_err() && controller.external().record_error(2, 0.0).is_err());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way; [`Error::NoSuchLayer`];
    /// [`CoreError::Parameter`](crate::CoreError::Parameter) for what is not finite or negative.
    pub fn record_error(&mut self, layer: usize, relative_error: f64) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        self.0.expect_layer(layer)?;
        let state = &mut self.0.states[layer];
        let sound = relative_error.is_finite() && relative_error >= 0.0;
        CoreError::require(sound, "a relative error", relative_error, "a finite number >= 0")?;
        if state.choice.uncompressed.is_none() {
            state.relative_error = Some(relative_error);
        }
        Ok(())
    }
}
