//! A step with blocking collectives.

use super::agreement;
use super::bucket::Progress;
use super::tensor::{check_layer, expect_finite};
use super::{Controller, NonFinite, Outcome, Report};
#[cfg(doc)]
use crate::CoreError;
use crate::Error;
use crate::exchange::Collective;
use crate::gradient::{Element, ValuesMut, with_elements};
use alloc::vec::Vec;
use lgreco::error::expect_len;

impl Controller {
    /// Takes a step: `gradients`, one per layer, become their means over the workers. All ranks must call this method in every step
    /// with the same `learning_rate`, which only Accordion uses.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # use lgreco_train::gradient::ValuesMut;
    /// let (mut weight, mut bias) = (vec![1.0; 4096], vec![0.5; 64]); // from the backward pass
    /// let gradients = &mut [&mut weight[..], &mut bias[..]].map(ValuesMut::from);
    /// let report = controller.step(&mut worker, gradients, 0.1)?;
    /// assert_eq!((report.step, report.bytes_in, bias[0]), (0, 4 * (4096 + 64), 0.5)); // now the means
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// If one rank fails, all ranks fail. The rank at fault returns the error itself, and the other ranks return [`Error::Peer`]
    /// with the error's code.
    ///
    /// These errors come before anything has changed, so the step may be repeated: [`CoreError::Length`] and
    /// [`Error::LayerMismatch`] when gradients do not fit the layers; [`Error::NonFiniteGradient`] under [`NonFinite::Error`];
    /// [`CoreError::Parameter`] for a learning rate that is negative or not finite; [`Error::OtherPlace`] when the collective has
    /// another rank or number of workers; [`Error::StepOrder`] while another step is under way; [`Error::PeerOption`] when ranks
    /// differ in configuration, layers, settings, step or learning rate; [`Error::NoMessage`] when the collective has dropped a
    /// rank's message; the errors of search and solver when a decision fails.
    ///
    /// These errors come during the exchange: [`Error::OfLayer`], [`Error::PeerMessage`]. The step is then over, and its gradients
    /// are undefined. Residuals of buckets that were exchanged before the error are updated, and the next step works. If only some
    /// ranks could not read a message, the models now differ. All further steps then fail on all ranks with
    /// [`Error::PeerOption`], until all ranks have loaded a state. With
    /// [`Route::Sharded`](crate::exchange::Route), an overflow in a rank's shard is an error on that rank at once, and on all ranks
    /// at the next bucket or step. Under [`NonFinite::Skip`], if a later bucket of the step reports the overflow, the other ranks
    /// skip the step, and all residuals are the same as before the step. If a residual of a rank is not finite, the next step
    /// reports that to all ranks and fails. The step that fails for this reason may be repeated. After [`Error::Collective`], the
    /// step is [abandoned](Controller::abandon_step).
    ///
    /// # Complexity
    /// A pass over the gradients, the exchange, and up to three passes for residuals. Allocates only at decisions.
    pub fn step<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
        learning_rate: f64,
    ) -> Result<Report, Error> {
        let Controller { rank: own_rank, world: own_world, .. } = *self;
        let (rank, world) = (collective.rank(), collective.world_size());
        if (rank, world) != (own_rank, own_world) {
            return Err(self.step_failed(collective, Error::OtherPlace { rank, world, own_rank, own_world }));
        }
        if let Err(error) = self.control.expect_idle() {
            return Err(self.step_failed(collective, error));
        }
        let local = self.provide_once().and_then(|()| self.check(gradients));
        let local = local.and_then(|()| match (expect_all_finite(gradients), self.scheduler.config.non_finite) {
            (Err(error), NonFinite::Error) => Err(error),
            (finite, _) => Ok(finite.is_err()),
        });
        let broken = self.agree_to_step(collective, local, learning_rate)?;
        if broken {
            self.non_finite += 1;
            return self.without_compression(collective, gradients);
        }
        let mut failed_alone = None;
        for group in 0..self.scheduler.groups.ranges.len() {
            let range = self.scheduler.groups.ranges[group].clone();
            let mut bucket = match self.open_group(range.clone()) {
                Ok(bucket) => bucket,
                Err(error) => {
                    self.totals.incomplete = true;
                    self.end_step();
                    return Err(error);
                }
            };
            let exchanged = bucket.exchange(collective, &mut gradients[range]);
            let alone = bucket.progress == Progress::FailedAlone;
            self.close(bucket)?;
            match exchanged {
                Ok(()) => {}
                // The other ranks continue. The next bucket reports the error to the other ranks.
                Err(error) if alone => failed_alone = failed_alone.or(Some(error)),
                Err(error @ Error::Collective { .. }) => {
                    self.abandon_step()?;
                    return Err(error);
                }
                Err(error) => {
                    self.end_step();
                    return Err(error);
                }
            }
        }
        // Even if this rank has failed, this call restores its residuals if the other ranks skip the step.
        let report = self.finish_step()?;
        failed_alone.map_or(Ok(report), Err)
    }

    /// Declares, in place of [`step`](Controller::step), that this rank's trainer failed. A message reports this failure to all
    /// ranks. All ranks then fail, so that no rank waits for this one. Returns `failure`. If the message could not be sent, returns
    /// [`Error::Collective`], or [`CoreError::OutOfMemory`] if there was no memory for the message. Nothing changes, and the step
    /// may be taken again.
    ///
    /// ```
    /// # use lgreco_train::{controller::{Config, Controller}, exchange::{Collective, threads}};
    /// # use lgreco_train::search::{Method, Search};
    /// use lgreco_train::{CoreError, Error};
    /// const FAILURE: Error = Error::Core(CoreError::OutOfMemory { words: 9 });
    /// let results = threads::run(2, |mut worker| {
    ///     let mut controller = Controller::new(Config::new(Search::new(Method::TopK)), vec![], worker.rank(), worker.world_size()).unwrap();
    ///     match worker.rank() {
    ///         0 => controller.step(&mut worker, &mut [], 0.1).map(drop),
    ///         _ => Err(controller.step_failed(&mut worker, FAILURE)),
    ///     }
    /// });
    /// assert_eq!(results, [Err(Error::Peer { rank: 1, code: 7 }), Err(FAILURE)]);
    /// ```
    pub fn step_failed<C: Collective + ?Sized>(&self, collective: &mut C, failure: Error) -> Error {
        agreement::tell(collective, self.world, failure)
    }

    /// Agrees with all ranks on this step, and switches settings if a switch is due. Returns whether some rank's gradient is not
    /// finite.
    fn agree_to_step<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        local: Result<bool, Error>,
        learning_rate: f64,
    ) -> Result<bool, Error> {
        self.begin(learning_rate, Some(local))?;
        loop {
            let performed = match self.control() {
                Ok(None) => return Ok(self.control.broken()),
                Ok(Some(request)) => request.perform(collective).map_err(Error::from),
                Err(error) => Err(error),
            };
            if let Err(error) = performed {
                let code = Error::NON_FINITE_GRADIENT;
                if error.code() == code || matches!(error, Error::Peer { code: of_peer, .. } if of_peer == code) {
                    self.non_finite += 1;
                }
                self.control.cancel();
                return Err(error);
            }
        }
    }

    /// `Err` unless gradients have the lengths and element types of the layers.
    fn check(&self, gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
        let tensors = &self.scheduler.tensors;
        expect_len("gradients, one per layer", tensors.len(), gradients.len())?;
        let mut layers = tensors.iter().zip(gradients).enumerate();
        layers.try_for_each(|(layer, (tensor, gradient))| {
            check_layer(layer, tensor.shape, tensor.dtype, gradient.values())
        })
    }

    /// Ends a step in which some rank's gradient is not finite.
    fn without_compression<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
    ) -> Result<Report, Error> {
        if self.scheduler.config.non_finite == NonFinite::PassThrough {
            for range in self.scheduler.groups.ranges.clone() {
                if let Err(error) = average_uncompressed(collective, &mut gradients[range]) {
                    self.abandon_step()?;
                    return Err(error);
                }
            }
            let report = self.finish_step()?;
            return Ok(Report { outcome: Outcome::PassedThrough, bytes_out: report.bytes_in, ..report });
        }
        let mut report = self.finish_step()?;
        report.outcome = Outcome::Skipped;
        gradients.iter_mut().for_each(|gradient| gradient.write(core::iter::repeat(0.0)));
        Ok(report)
    }
}

/// Averages gradients without compression, with their NaN and infinity.
fn average_uncompressed<C: Collective + ?Sized>(
    collective: &mut C,
    gradients: &mut [ValuesMut<'_>],
) -> Result<(), Error> {
    let mut sum = Vec::new();
    for gradient in gradients.iter() {
        with_elements!(gradient.values(), v => sum.extend(v.iter().map(|x| x.to_f32())));
    }
    collective.all_reduce_sum(&mut sum)?;
    let world = collective.world_size() as f32;
    let mut means = sum.iter().map(|sum| sum / world);
    gradients.iter_mut().for_each(|gradient| gradient.write(means.by_ref()));
    Ok(())
}

fn expect_all_finite(gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
    gradients.iter().enumerate().try_for_each(|(layer, gradient)| expect_finite(layer, gradient.values()))
}
