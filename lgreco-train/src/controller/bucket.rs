//! A bucket: layers that are exchanged together, from gradients to means and residuals.
//!
//! The controller lends a bucket its layers. The bucket owns the states of these layers while it is exchanged, so its type has no
//! lifetime parameter and needs no locks. A C handle, a future or another thread can hold a bucket. While a layer is lent, nothing
//! else can use it.

use super::NonFinite;
use super::arena::{Arena, Needs};
use super::layer_plan::StepPlan;
use super::lent_layer::{LentLayer, is_too_large};
use super::par_layers;
use super::spare::Spare;
use super::tensor::check_layer;
use crate::compress::Setting;
use crate::exchange::{
    Agreement, Flight, Host, IN_PLACE, Moment, Part, Program, Request, Round, Route, is_of_others, request_in,
    request_of, share_of_others,
};
use crate::gradient::{Dtype, ValuesMut};
use crate::{CoreError, Error};
use lgreco::error::expect_len;

/// Progress of a bucket's exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Progress {
    Open,
    UnderWay,
    /// The gradients have become means, and the residuals have been updated.
    Exchanged,
    /// Some rank's gradient was not finite. Residuals are unchanged.
    Broken,
    /// The exchange has failed on all ranks.
    Failed,
    /// The exchange has failed on this rank only.
    FailedAlone,
    /// This rank has closed the bucket in the middle of its exchange.
    GivenUp,
}

/// Layers that are exchanged together in one step. A [`Controller`](super::Controller) lends a bucket its layers with their
/// residuals, so that different buckets can be exchanged at the same time, on any threads.
///
/// [`submit`](Bucket::submit) takes the gradients. [`next`](Bucket::next) asks for collectives until the gradients are means.
/// [`Controller::close`](super::Controller::close) takes the bucket back. If a bucket is dropped instead, the residuals of its
/// layers are lost, and the controller refuses these layers until a saved state is loaded.
///
/// ```
/// use lgreco_train::controller::{Config, Controller, Tensor};
/// use lgreco_train::exchange::{Collective, threads};
/// use lgreco_train::gradient::{Dtype, ValuesMut};
/// use lgreco_train::search::{Method, Search};
///
/// let means = threads::run(2, |mut worker| {
///     let config = Config::new(Search::new(Method::Qsgd));
///     let layers = ["fc1", "fc2"].map(|name| Tensor::new(name, &[8, 8], Dtype::F32));
///     let layers = layers.into_iter().collect::<Result<Vec<_>, _>>()?;
///     let mut controller = Controller::new(config, layers, worker.rank(), worker.world_size())?;
///
///     controller.begin_step(0.1)?;
///     while let Some(request) = controller.control()? { // none at most steps
///         request.perform(&mut worker)?;
///     }
///     let mut gradients = [[1.0; 64], [worker.rank() as f32; 64]];
///     for layer in [1, 0] { // in the order of the backward pass
///         let mut bucket = controller.open(&[layer])?;
///         let mut values = [ValuesMut::F32(&mut gradients[layer])];
///         bucket.submit(&mut values)?;
///         while let Some(request) = bucket.next(&mut values)? {
///             request.perform(&mut worker)?; // or start it here, and go on when it is done
///         }
///         controller.close(bucket)?;
///     }
///     controller.finish_step()?;
///     Ok::<_, lgreco_train::Error>(gradients.map(|values| values[0]))
/// });
/// assert_eq!(means, [Ok([1.0, 0.5]), Ok([1.0, 0.5])]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Bucket {
    pub(super) arena: Arena,
    pub(super) moment: Moment,
    pub(super) agreement: Agreement,
    /// Whether relative errors are measured.
    pub(super) measured: bool,
    pub(super) needs: Needs,
    /// The pool from which scratch memory is taken, and to which it is returned.
    pub(super) spare: Spare,
    /// The number of this step in a decision's window, counted from 1; 0 outside a window.
    pub(super) window_step: u64,
    pub(super) non_finite: NonFinite,
    /// This rank's error from before the exchange, which the bucket's messages report to all ranks.
    pub(super) failure: Option<Error>,
    /// This rank's error from after the bucket's last message, which the next bucket or step reports to the other ranks.
    pub(super) late: Option<Error>,
    /// Whether only this rank has failed, so that the other ranks may have their means.
    pub(super) alone: bool,
    /// Whether some rank's gradient was not finite.
    pub(super) not_finite: bool,
    /// Whether the exchange has failed only because ranks differ, for instance in settings.
    pub(super) differs: bool,
    /// Whether this rank could not read a message after which no other message follows. The other ranks may have read theirs.
    pub(super) unread: bool,
    /// Number of bytes that this rank has sent.
    pub(super) bytes: u64,
    /// The time at which the controller lent the bucket.
    pub(super) began: Option<f64>,
    /// The clock, if seconds are measured.
    pub(super) clock: Option<fn() -> f64>,
    /// Seconds that this rank has spent computing.
    pub(super) computing: f64,
    /// Number of bytes that this rank puts on the wire, if seconds are measured.
    pub(super) wire: f64,
    pub(super) flight: Option<Flight>,
    /// Whether the bucket has asked for a collective.
    pub(super) asked: bool,
    /// The number by which the controller recognises the bucket.
    pub(super) ticket: u64,
    pub(super) progress: Progress,
}

/// The next collective of a bucket that may be [joined](Bucket::join).
pub enum Joined<'b> {
    /// The collective on this memory.
    Request(Request<'b>),
    /// An all-reduce of all gradients of the bucket, as one piece of f32 values.
    Gradients,
}

impl Bucket {
    /// The layers, in the order of their gradients.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = usize> {
        self.arena.layers.iter().map(|layer| layer.state.plan.index)
    }

    /// The collectives that [`next`](Bucket::next) will ask for, in order, with their sizes. A caller can reserve or register
    /// memory for these collectives beforehand. If the exchange fails, there are fewer collectives. For a
    /// [joined](Bucket::join) bucket, one all-reduce takes the place of its layers' all-reduces.
    ///
    /// # Errors
    /// The errors of [`Controller::open`](super::Controller::open). A bucket that was opened successfully has none of these errors.
    pub fn rounds(&self) -> Result<impl Iterator<Item = Round>, Error> {
        let specs = self.arena.layers.iter().map(LentLayer::spec);
        let program = Program::new(specs.clone(), self.moment, self.agreement, 0)?;
        Ok(program.rounds(specs).map(|(_, round)| round))
    }

    /// This rank's failure, if no message has reported it because the bucket has asked for no collective.
    pub(super) fn untold(&self) -> Option<Error> {
        self.failure.filter(|_| matches!(self.progress, Progress::Open | Progress::UnderWay) && !self.asked)
    }

    /// Declares, before [`submit`](Bucket::submit), that a layer has no gradient on this rank in this step. The values that are
    /// submitted for this layer are treated as zeros. The layer's residual stays unchanged, because the trainer might not apply the
    /// layer's mean. There is one exception: with [`Route::ScatterReduce`], the error of compressing this rank's share of the mean
    /// is added to the residual. Other ranks may have a gradient of the layer. If no rank has a gradient of the layer, PowerSGD
    /// restarts from random factors.
    ///
    /// # Errors
    /// [`Error::StepOrder`] after [`submit`](Bucket::submit); [`Error::NotInBucket`].
    pub fn withhold(&mut self, layer: usize) -> Result<(), Error> {
        self.expect_open()?;
        let lent = self.arena.layers.iter_mut().find(|lent| lent.state.plan.index == layer);
        let lent = lent.ok_or(Error::NotInBucket { layer })?;
        lent.step = StepPlan { joined: lent.step.joined, ..lent.state.in_step(self.measured, true) };
        Ok(())
    }

    /// Declares, before [`submit`](Bucket::submit), that the gradients lie in one piece of memory, layer after layer. All ranks must
    /// declare this for the same buckets. If the bucket has only uncompressed f32 layers, of 65,536 elements or more together, and
    /// sums are f32, [`next_joined`](Bucket::next_joined) sums them all by one collective, without copies. Returns whether it will.
    /// In other buckets, the declaration has no effect.
    ///
    /// # Errors
    /// [`Error::StepOrder`] after [`submit`](Bucket::submit).
    pub fn join(&mut self) -> Result<bool, Error> {
        self.expect_open()?;
        let Moment { route, reduce_dtype, .. } = self.moment;
        let sums = route != Route::Sharded && reduce_dtype == Dtype::F32;
        let specs = self.arena.layers.iter().map(LentLayer::spec);
        let elements: usize = specs.clone().map(|spec| spec.shape.elements()).sum();
        let mut alike = specs.map(|spec| spec.setting == Setting::Dense && spec.in_place && spec.shape.elements() > 0);
        let joined = sums && elements >= IN_PLACE && alike.all(|suits| suits);
        self.arena.layers.iter_mut().for_each(|lent| lent.step.joined = joined);
        Ok(joined)
    }

    fn expect_open(&self) -> Result<(), Error> {
        match self.progress {
            Progress::Open => Ok(()),
            _ => Err(Error::StepOrder {
                what: "the bucket has its gradients already",
                expected: "a bucket before `submit`",
            }),
        }
    }

    /// Takes the gradients of this step, one per layer, adds residuals and compresses. If a gradient is invalid, this rank's
    /// messages report the error to all ranks, and [`next`](Bucket::next) fails on all ranks.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when the bucket has gradients already.
    ///
    /// # Complexity
    /// Encodes every layer. The call takes scratch memory, which other buckets of the step use afterwards.
    pub fn submit(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        self.expect_open()?;
        let start = self.now();
        let begun = self.begin(gradients);
        self.computing += self.now() - start;
        begun
    }

    /// Declares, in place of [`submit`](Bucket::submit), that this rank has no gradients because its trainer failed. This rank's
    /// messages report the failure to all ranks, so that no rank waits for this one. [`next`](Bucket::next) then takes no
    /// gradients, and fails on every rank: on this rank with `failure`, on the other ranks with [`Error::Peer`]. A bucket without
    /// elements has no messages, unless its layers are exchanged together for the first time. Without messages, the bucket fails on
    /// this rank only, and the next bucket or step reports the failure to all ranks.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when the bucket has gradients already.
    pub fn submit_failure(&mut self, failure: Error) -> Result<(), Error> {
        self.expect_open()?;
        self.failure = self.failure.or(Some(failure));
        self.begin(&mut [])
    }

    /// The time on the clock; 0 if seconds are not measured.
    fn now(&self) -> f64 {
        self.clock.map_or(0.0, |clock| clock())
    }

    fn begin(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        let offered = self.failure.map_or(Ok(()), Err).and_then(|()| self.offer(gradients));
        self.failure = offered.and(self.spare.provide(&mut self.arena.scratch, self.needs.compressing)).err();
        let (moment, agreement, failure) = (self.moment, self.agreement, self.failure);
        let present = unless_failed(failure, gradients);
        let begin = |host: &mut Host<'_, '_>| Flight::begin(host, moment, agreement, failure);
        let (flight, late) = self.arena.exchange(present, self.late, 0, begin);
        self.late = late;
        self.drop_scratch();
        (self.flight, self.progress) = (Some(flight?), Progress::UnderWay);
        Ok(())
    }

    /// Checks the gradients, adds them to the window's means, and then adds residuals to the gradients.
    fn offer(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        check(&self.arena.layers, gradients)?;
        let step = self.window_step;
        let Arena { layers, offered, .. } = &mut self.arena;
        let len = |lent: &LentLayer| lent.step.offered_len;
        par_layers::for_each(layers, gradients, offered, &len, &|lent, gradient, room| lent.offer(gradient, room, step))
    }

    /// Computes until the next collective, and returns its request. The previous collective must be complete. `None` means that the
    /// gradients have become means, and that residuals are updated. `gradients` must be the gradients that
    /// [`submit`](Bucket::submit) got.
    ///
    /// With [`Route::Sharded`], this rank's shards become means, and the other elements are undefined.
    ///
    /// If some rank's gradient is not finite, all gradients of the bucket become zeros on every rank under [`NonFinite::Skip`].
    /// Under [`NonFinite::PassThrough`], they become NaN, so that a loss scaler finds the overflow. Residuals stay unchanged. With
    /// [`Route::Sharded`] and [`NonFinite::PassThrough`], a mean may not fit its layer's element type. In that case, the gradients
    /// become NaN only on the rank that has this mean in its shard.
    ///
    /// # Errors
    /// The errors of [`Flight::next`], on all ranks alike. After such an error, gradients are undefined, and residuals are
    /// unchanged. Without [`undo`](super::Config::undo), however, residuals of layers that were being averaged may already contain
    /// this step's compression error. [`Error::OfLayer`] when a mean does not fit its layer's element type, on all ranks. With
    /// [`Route::Sharded`], an error of one rank's shard is returned on that rank only; the next bucket or step reports the error to
    /// the other ranks. An error in a bucket without elements is also returned on this rank only, unless the bucket's layers are
    /// exchanged together for the first time. [`Error::StepOrder`] before [`submit`](Bucket::submit). [`Error::LayerMismatch`] and
    /// [`CoreError::Length`] when `gradients` are not the submitted gradients.
    ///
    /// # Complexity
    /// All calls together decode every payload, and take up to three passes for residuals. Each call takes scratch memory, as
    /// [`submit`](Bucket::submit) does. The scratch memory of the last call includes an f32 per element of some f32 layers. These
    /// are the layers whose residual has a gain below 1 or is stored in fewer than 32 bits.
    pub fn next<'b>(&'b mut self, gradients: &'b mut [ValuesMut<'_>]) -> Result<Option<Request<'b>>, Error> {
        let part = self.next_part(gradients)?;
        self.requested(part, gradients)
    }

    /// The request for a part that is sent now.
    fn requested<'b>(
        &'b mut self,
        part: Option<Part>,
        gradients: &'b mut [ValuesMut<'_>],
    ) -> Result<Option<Request<'b>>, Error> {
        let world = self.moment.world_size;
        Ok(match part {
            Some(Part::Dense { place }) => {
                let request = request_of(&mut gradients[place as usize])?;
                self.note_wire(request.wire_bytes(world));
                Some(request)
            }
            Some(part) => {
                let bytes = self.request(part)?.wire_bytes(world);
                self.note_wire(bytes);
                Some(self.request(part)?)
            }
            None => None,
        })
    }

    /// Like [`next`](Bucket::next), but one collective sums all gradients of a bucket that was [joined](Bucket::join).
    ///
    /// # Errors
    /// The errors of [`next`](Bucket::next).
    pub fn next_joined<'b>(&'b mut self, gradients: &'b mut [ValuesMut<'_>]) -> Result<Option<Joined<'b>>, Error> {
        let part = self.next_part(gradients)?;
        let joined = self.arena.layers.iter().all(|lent| lent.step.joined);
        match &mut self.flight {
            Some(flight) if joined && matches!(part, Some(Part::Dense { .. })) => flight.join_in_place(),
            _ => return self.requested(part, gradients).map(|request| request.map(Joined::Request)),
        }
        let values: usize = self.arena.layers.iter().map(|lent| lent.state.plan.shape.elements()).sum();
        self.note_wire(8.0 * values as f64 * share_of_others(self.moment.world_size));
        Ok(Some(Joined::Gradients))
    }

    /// Like [`next`](Bucket::next), but returns the part of the exchange that is sent next, instead of a request.
    pub(super) fn next_part(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        match self.progress {
            Progress::UnderWay => {}
            Progress::Exchanged | Progress::Broken => return Ok(None),
            Progress::Open => {
                return Err(Error::StepOrder {
                    what: "the bucket has no gradients yet",
                    expected: "`submit` before `next`",
                });
            }
            Progress::Failed | Progress::FailedAlone | Progress::GivenUp => {
                return Err(Error::StepOrder { what: "the bucket has failed", expected: "`close` and another bucket" });
            }
        }
        let start = self.now();
        let advanced = self.advance(gradients);
        self.drop_scratch();
        self.computing += self.now() - start;
        advanced
    }

    /// The request for a part of the exchange that is in the bucket's own memory.
    pub(super) fn request(&mut self, part: Part) -> Result<Request<'_>, Error> {
        let open = Error::StepOrder { what: "the bucket has no gradients yet", expected: "`submit` before `next`" };
        let flight = self.flight.as_ref().ok_or(open)?;
        request_in(part, flight.program(), &mut self.arena.workspace)
    }

    /// Counts bytes that this rank sends.
    pub(super) fn note_wire(&mut self, bytes: f64) {
        if self.clock.is_some() {
            self.wire += bytes;
        }
    }

    /// Computes until the next part of the exchange that needs a collective.
    fn advance(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        let Some(flight) = &mut self.flight else { return Ok(None) };
        let failure = self.failure;
        if failure.is_none() {
            check(&self.arena.layers, gradients)?;
        }
        let averaging = flight.is_averaging();
        let rest = if averaging { self.arena.rest() } else { 0 };
        let words = if averaging { self.needs.averaging + rest.div_ceil(2) } else { self.needs.compressing };
        if let Err(error) = self.spare.provide(&mut self.arena.scratch, words) {
            if averaging {
                return self.fail(error, true, gradients);
            }
            flight.fail(error);
        }
        let present = unless_failed(failure, gradients);
        let (advanced, late) = self.arena.exchange(present, self.late, rest, |host| flight.advance(host));
        self.late = late;
        match advanced {
            Ok(Some(part)) => {
                self.asked = true;
                Ok(Some(part))
            }
            Ok(None) => {
                self.bytes += self.arena.remember(self.arena.rest(), &self.moment, &mut self.late);
                self.progress = Progress::Exchanged;
                Ok(None)
            }
            Err(error) => {
                // Without a collective, no message has reported the error.
                let alone = flight.failed_alone() || !self.asked;
                self.unread = averaging && !alone && matches!(error, Error::PeerMessage { .. });
                self.fail(error, alone, gradients)
            }
        }
    }

    /// Gives the scratch memory back, so that buckets in flight do not hold it.
    fn drop_scratch(&mut self) {
        self.spare.release(&mut self.arena.scratch);
    }

    /// Ends the exchange with an error. `alone` is true if only this rank has failed.
    fn fail(&mut self, error: Error, alone: bool, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        self.note_failure(error, alone);
        if self.progress != Progress::Broken {
            return Err(error);
        }
        self.fill_broken(gradients);
        Ok(None)
    }

    /// Whether the bucket is in the middle of its exchange.
    pub(super) fn is_unfinished(&self) -> bool {
        self.progress == Progress::UnderWay && self.asked
    }

    /// Ends a bucket that the caller closes in the middle of its exchange. Residuals are restored if their earlier values are kept.
    /// `told` is the error that messages have reported to all ranks; if there is none, the other ranks may have their means.
    pub(super) fn give_up(&mut self, told: Option<Error>) {
        match told {
            Some(error) => self.note_failure(error, false),
            None => (self.progress, self.alone, self.late) = (Progress::GivenUp, true, None),
        }
        self.arena.layers.iter_mut().for_each(|lent| lent.state.undo());
    }

    /// Ends the bucket without means, because a rank outside this exchange's group has failed. The exchange itself may already be
    /// complete. Residuals are restored if their earlier values are kept. The error must be of the same kind on all ranks, unless
    /// this rank fails `alone`.
    pub(super) fn revoke(&mut self, error: Error, alone: bool) {
        self.note_failure(error, alone);
        self.arena.layers.iter_mut().for_each(|lent| lent.state.undo());
    }

    /// Records the error that ends the exchange. The error determines the final content of the gradients, and what the next message
    /// reports.
    fn note_failure(&mut self, error: Error, alone: bool) {
        self.alone = alone;
        self.progress = if alone { Progress::FailedAlone } else { Progress::Failed };
        // Residuals keep their old values, so errors in the new residuals no longer matter.
        self.late = alone.then_some(error);
        self.not_finite = is_too_large(&error);
        self.differs = !alone && !self.unread && is_of_others(error);
        let is_error = match self.non_finite {
            NonFinite::Error => true,
            // If only this rank has failed, the other ranks do not skip the step.
            NonFinite::Skip => alone,
            NonFinite::PassThrough => false,
        };
        if !self.not_finite || is_error {
            return;
        }
        if matches!(error, Error::OfLayer { error: CoreError::ElementOverflow { .. }, .. }) {
            // A loss scaler finds the overflow as NaN in the gradients, so no message needs to report it.
            self.late = None;
        }
        self.progress = Progress::Broken;
    }

    /// Overwrites the bucket's gradients with zeros or NaN, because some rank's gradient was not finite.
    pub(super) fn fill_broken(&self, gradients: &mut [ValuesMut<'_>]) {
        let value = if self.non_finite == NonFinite::Skip { 0.0 } else { f32::NAN };
        gradients.iter_mut().for_each(|gradient| gradient.write(core::iter::repeat(value)));
    }
}

/// `Err` unless the gradients have the lengths and element types of the layers.
fn check(layers: &[LentLayer], gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
    expect_len("gradients, one per layer", layers.len(), gradients.len())?;
    let mut layers = layers.iter().zip(gradients);
    layers.try_for_each(|(lent, gradient)| {
        let plan = &lent.state.plan;
        check_layer(plan.index, plan.shape, plan.dtype, gradient.values())
    })
}

/// Returns the gradients. On a rank that has failed, returns an empty slice, because its gradients may be invalid.
fn unless_failed<'g, 'v>(failure: Option<Error>, gradients: &'g mut [ValuesMut<'v>]) -> &'g mut [ValuesMut<'v>] {
    if failure.is_some() { &mut [] } else { gradients }
}
