//! Saving a controller, as a whole or in parts.

use super::layer::Counts;
use super::state_format::{MAGIC, NONE, PART_MAGIC, UNMEASURED_VERSION, VERSION};
use super::{Cause, Controller, Decision, Timing};
use crate::Error;
use crate::feedback::Memory;
use crate::state::Writer;
use alloc::vec::Vec;

/// Which part of a controller is saved.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// use lgreco_train::controller::Contents;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # step_alone(&mut controller, &mut worker)?;
/// let small = controller.save_only(Contents::WithoutWindow)?; // 4 bytes per element of the model less, where it measures
/// assert_eq!(controller.save()?.len() - small.len(), 4 * (4096 + 64));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// The whole state, with which a run continues bit for bit.
    #[default]
    Everything,
    /// Everything except the window's mean gradient. After loading, the window of the next decision begins anew. The decision is
    /// made at its scheduled step if the new window has at least one gradient by then.
    WithoutWindow,
}

impl Controller {
    /// This rank's state as bytes, in the same format on every machine. Every rank saves its own state. A controller that
    /// [loads](Controller::load) this state continues bit for bit. The state contains neither the configuration nor a plan task
    /// under way. The state also lacks settings from [`set_settings`](super::Planning::set_settings) to which no step has switched
    /// yet. A controller whose configuration has these settings switches to them after loading the state.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// let saved = controller.save()?;
    /// assert_eq!(saved[..8], *b"lgreco-c");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OfLayer`] when a residual of this rank is not finite and no message has reported this to the other ranks yet;
    /// [`Error::InFlight`] while a bucket has a layer; [`Error::StepOrder`] while a step is under way, and if a device
    /// [has](super::External::note_observed) gradients of the window that were not [brought](super::External::set_observed) to the
    /// host.
    ///
    /// # Complexity
    /// A pass over residuals and factors, and on the measuring rank over the window's mean gradient.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        self.save_only(Contents::Everything)
    }

    /// Like [`save`](Controller::save), with a choice of contents.
    ///
    /// # Errors
    /// As [`save`](Controller::save).
    pub fn save_only(&self, contents: Contents) -> Result<Vec<u8>, Error> {
        self.expect_saveable(contents)?;
        let mut to = self.writer(MAGIC);
        self.save_run(contents, &mut to);
        to.numbers([self.scheduler.tensors.len() as u64]);
        (0..self.states.len()).for_each(|layer| self.save_layer(layer, contents, &mut to));
        Ok(to.sealed())
    }

    /// A part of this rank's state, for checkpoints that map names to values: the part of a layer, or with `None` the part that
    /// belongs to no layer. [`load`](Controller::load) takes all parts in any order.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// use lgreco_train::controller::Contents;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let parts = [None, Some(0), Some(1)].map(|layer| controller.save_part(layer, Contents::Everything).unwrap());
    /// let parts: [&[u8]; 3] = parts.each_ref().map(Vec::as_slice);
    /// let (mut continued, _) = alone(Method::TopK)?;
    /// continued.load(&parts, &parts)?;
    /// assert!(continued.save()? == controller.save()?);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`save`](Controller::save).
    ///
    /// # Panics
    /// If the model has no layer `layer`.
    pub fn save_part(&self, layer: Option<usize>, contents: Contents) -> Result<Vec<u8>, Error> {
        self.expect_saveable(contents)?;
        let mut to = self.writer(PART_MAGIC);
        to.numbers([u64::from(layer.is_some())]);
        match layer {
            None => self.save_run(contents, &mut to),
            Some(layer) => self.save_layer(layer, contents, &mut to),
        }
        Ok(to.sealed())
    }

    fn expect_saveable(&self, contents: Contents) -> Result<(), Error> {
        self.late.map_or(Ok(()), Err)?;
        let mut layers = 0..self.states.len();
        if contents == Contents::Everything && layers.any(|layer| self.scheduler.window.mean(layer).is_err()) {
            let (what, expected) =
                ("a device has gradients of the window", "`set_observed` with their means before `save`");
            return Err(Error::StepOrder { what, expected });
        }
        match self.states.iter().position(|state| state.lent != 0) {
            Some(layer) => Err(Error::InFlight { layer }),
            None => self.control.expect_idle(),
        }
    }

    fn writer(&self, magic: u64) -> Writer {
        let version = if self.scheduler.meter.is_some() { VERSION } else { UNMEASURED_VERSION };
        let mut to = Writer::new(magic, version);
        to.numbers([self.rank.into(), self.world.into(), self.scheduler.step]);
        to
    }

    fn save_run(&self, contents: Contents, to: &mut Writer) {
        let scheduler = &self.scheduler;
        let window_steps = if contents == Contents::Everything { scheduler.window.steps } else { 0 };
        to.numbers([scheduler.due.unwrap_or(NONE), window_steps, scheduler.highest.0.to_bits(), self.non_finite]);
        let decision = scheduler.decision.unwrap_or(Decision::without_plan(0, Cause::Schedule));
        to.numbers([scheduler.decision.is_some() as u64]);
        to.numbers(decision.encode());
        to.numbers([scheduler.groups.ranges.len() as u64, 0]);
        if let Some(meter) = &scheduler.meter {
            to.numbers(Timing::encode(decision.timing.as_ref()));
            to.numbers(meter.compute.numbers().map(f64::to_bits));
            to.numbers([meter.link.numbers().count() as u64]);
            to.numbers(meter.link.numbers().map(f64::to_bits));
        }
    }

    fn save_layer(&self, layer: usize, contents: Contents, to: &mut Writer) {
        let (scheduler, state) = (&self.scheduler, &self.states[layer]);
        let tensor = &scheduler.tensors[layer];
        to.numbers([tensor.name.len() as u64]);
        to.bytes(tensor.name.as_bytes());
        to.numbers([tensor.shape.rows() as u64, tensor.shape.cols() as u64, tensor.dtype as u64]);
        let Counts { steps, bytes_in, bytes_out, not_contractive } = state.counts;
        to.numbers(state.plan.choice.encode());
        to.numbers([steps, bytes_in, bytes_out, not_contractive]);
        let norm = scheduler.norms.get(layer).copied();
        to.numbers([state.relative_error, norm].map(|number| number.unwrap_or(f64::NAN).to_bits()));
        to.values(&state.factor);
        let mean = scheduler.window.mean(layer).ok().flatten().filter(|_| contents == Contents::Everything);
        to.numbers([mean.is_some() as u64]);
        to.values(mean.unwrap_or_default());
        let len = state.memory.as_ref().map_or(0, Memory::part_len);
        to.numbers([len as u64]);
        if let Some(memory) = &state.memory {
            memory.save_part(to.room(len));
        }
    }
}
