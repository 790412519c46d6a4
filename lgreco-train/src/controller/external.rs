//! Support for layers whose gradients the caller exchanges itself, for instance in a device's memory. The controller still keeps
//! the schedule, window, decisions, settings and saved states of these layers. The caller exchanges the buckets of these layers,
//! and keeps the residuals between steps.

use super::Controller;
use super::layer::BucketStatus;
use super::tensor::{check_layer, expect_finite};
use super::window;
use crate::gradient::Values;
use crate::{CoreError, Error};
use lgreco::error::expect_len;

/// Methods by which the caller reports its own exchanges to a [`Controller`]. [`Controller::external`] returns this value.
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

impl Controller {
    /// Access for callers that exchange the gradients of some layers themselves, for instance on a device.
    pub fn external(&mut self) -> External<'_> {
        External(self)
    }
}

impl External<'_> {
    /// Whether this rank must [observe](External::observe) the gradients of the present step.
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

    /// Adds this rank's own, uncompressed gradient of layer `layer` to the window's mean. Call this method once per layer and step.
    /// This method does nothing in steps that need no gradient ([`watches`](External::watches)). A layer that is not observed in a
    /// step keeps its mean.
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
    /// [`Error::StepOrder`] unless a step has begun and its control requests are done; [`Error::NoSuchLayer`];
    /// [`Error::LayerDtype`] and [`Error::LayerMismatch`] for another element type or number of elements;
    /// [`Error::NonFiniteGradient`] for NaN and infinity. After a gradient that is not finite, the window begins anew with the next
    /// step.
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

    /// Records that a device has added this rank's own, uncompressed gradient of layer `layer` to the device's mean of the window.
    /// [`observe`](External::observe) does the same on the host. This method does nothing in steps that need no gradient
    /// ([`watches`](External::watches)). The next plan task then needs [`PlanTask::run_with`](super::PlanTask::run_with), which has
    /// an example. No decision is made until the task's result is handed in. The task can be taken even if the
    /// [lead](super::Schedule::lead) is 0. Gradients of that layer that `observe` gets in other steps of the window are ignored.
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

    /// The number of the present step in its window, from 1; 0 if its gradients are not [needed](External::watches).
    pub fn window_step(&self) -> u64 {
        if self.watches() { self.0.scheduler.window_step() } else { 0 }
    }

    /// Whether the next decision needs gradients on a device, because they were [recorded](External::note_observed) and have not
    /// been discarded since. The device must keep these gradients.
    pub fn observes_elsewhere(&self) -> bool {
        self.0.scheduler.window.is_elsewhere()
    }

    /// Gives the controller a layer's mean over the window so far, in f32, if a device [has it](External::note_observed).
    ///
    /// Call this method before a state is saved, or if the device can no longer measure the mean, but not while buckets are
    /// exchanged. Afterwards, the controller has the mean until the device gets another gradient of the layer. A task that was
    /// taken before does not use this mean. This method does nothing on ranks other than the measuring rank.
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
    /// [`Error::StepOrder`] between the control requests and the end of a step; [`Error::NoSuchLayer`]; [`CoreError::Length`] unless
    /// there is one value per element.
    pub fn set_observed(&mut self, layer: usize, mean: &[f32]) -> Result<(), Error> {
        if self.0.control.expect_open().is_ok() {
            let expected = "a call between two steps, or before `control` is done";
            return Err(Error::StepOrder { what: "buckets may be under way", expected });
        }
        self.0.expect_layer(layer)?;
        expect_len("values of a window's mean", self.0.scheduler.tensors[layer].shape.elements(), mean.len())?;
        if self.0.scheduler.measures() {
            self.0.scheduler.window.bring(layer, mean);
        }
        Ok(())
    }

    /// Begins the window of the next decision anew. Call this method between two steps, if the last step's gradients were
    /// [observed](External::observe) and the step has failed on the device. If a plan task was taken before,
    /// [`hand_in`](super::Planning::hand_in) drops the task's result.
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
    /// A pass over the window's mean gradient.
    pub fn forget_observed(&mut self) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        self.0.scheduler.forget();
        Ok(())
    }

    /// Records that the caller exchanges these layers in the present step, under their settings, with
    /// [`Route::AllGather`](crate::exchange::Route) or [`Route::Sharded`](crate::exchange::Route). The controller counts the bytes
    /// of these layers. No bucket of the step may contain these layers. If the length of a payload depends on its values, the
    /// largest length is counted.
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
    /// [`Error::StepOrder`] unless a step has begun and its control requests are done, or for a layer that the step has already
    /// exchanged; [`Error::NoSuchLayer`]; [`Error::InFlight`] for a layer in a bucket. The layers before the refused one are
    /// recorded as exchanged.
    pub fn note_exchanged(&mut self, layers: &[usize]) -> Result<(), Error> {
        self.0.control.expect_open()?;
        for &layer in layers {
            self.0.expect_lendable(layer)?;
            self.note_sent(layer, self.0.states[layer].plan.sent_len)?;
        }
        Ok(())
    }

    /// Records that a layer was exchanged, and that `bytes` bytes were sent for it.
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

    /// Records, between two steps, the relative squared error of a layer's compression in the last step, for
    /// [`Metrics::relative_error`](super::Metrics). The number is ignored for layers that are sent uncompressed.
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
    /// [`CoreError::Parameter`] for a number that is negative or not finite.
    pub fn record_error(&mut self, layer: usize, relative_error: f64) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        self.0.expect_layer(layer)?;
        let state = &mut self.0.states[layer];
        let sound = relative_error.is_finite() && relative_error >= 0.0;
        CoreError::require(sound, "a relative error", relative_error, "a finite number >= 0")?;
        if state.plan.choice.uncompressed.is_none() {
            state.relative_error = Some(relative_error);
        }
        Ok(())
    }
}
