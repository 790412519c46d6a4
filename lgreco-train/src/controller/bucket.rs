//! Layers that are exchanged together, from gradients to means and residuals.
//!
//! A bucket is lent its layers, it does not borrow them. It owns their states while it is exchanged, so it has no
//! lifetime: it can wait in a C handle, a future or another thread, and needs no locks. A layer that is lent is
//! refused elsewhere.

use super::NonFinite;
use super::arena::{Arena, Kept, recycled, split_rest};
use super::buffers::grow;
use super::check::{check, first_non_finite, non_finite};
use super::layer_plan::{LayerPlan, Left, Needs};
use super::spread;
use super::view::{Places, list_of, unless_failed};
use super::window;
use crate::compress::{Aggregation, Compressor, Setting};
#[cfg(doc)]
use crate::exchange::Route;
use crate::exchange::{
    Agreement, Flight, Host, Moment, Part, Program, Request, Round, is_of_others, request_in, request_of, widen_part,
};
use crate::feedback::squared_norm;
use crate::gradient::{Gradient, Values, ValuesMut};
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::vec::Vec;

/// Where a bucket is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Progress {
    Open,
    UnderWay,
    /// Gradients are means, and what layers remember is that of the next step.
    Exchanged,
    /// Some rank's gradient was not finite; nothing else has changed.
    Broken,
    Failed,
    /// The others have not.
    FailedAlone,
}

/// Layers that are exchanged together in one step, lent by a [`Controller`](super::Controller) with all that this rank
/// keeps of them, so that buckets can be worked on at the same time, on any thread.
///
/// [`submit`](Bucket::submit) takes the gradients; [`next`](Bucket::next) says which collectives to perform, until the
/// gradients are means; the controller [takes it back](super::Controller::close). A bucket that is dropped instead takes the
/// residuals of its layers along: the controller then refuses them until a saved state is loaded.
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
///     while let Some(request) = controller.control()? { // at most steps there is nothing to do
///         request.perform(&mut worker)?;
///     }
///     let mut gradients = [[1.0; 64], [worker.rank() as f32; 64]];
///     for layer in [1, 0] { // as the backward pass goes
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
    /// Whether what is of use during a call alone is kept for the next bucket, as there is one at a time.
    pub(super) keeps_scratch: bool,
    /// Which step of a decision's window this is; 0 for none.
    pub(super) window_steps: u64,
    pub(super) non_finite: NonFinite,
    /// What has gone wrong on this rank before, and is to be told to all.
    pub(super) failure: Option<Error>,
    /// What has gone wrong on this rank after the exchange, and is to be told at the next.
    pub(super) late: Option<Error>,
    /// Whether some rank's gradient was not finite.
    pub(super) not_finite: bool,
    /// Whether all ranks have found that they differ.
    pub(super) differs: bool,
    pub(super) bytes: u64,
    pub(super) began: Option<f64>,
    /// By which it measures what it computes and sends, if it does.
    pub(super) clock: Option<fn() -> f64>,
    pub(super) computing: f64,
    pub(super) wire: f64,
    pub(super) flight: Option<Flight>,
    /// By which the controller knows it.
    pub(super) ticket: u64,
    pub(super) progress: Progress,
}

impl Bucket {
    /// The layers, in the order in which their gradients are given.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = usize> {
        self.arena.kept.iter().map(|kept| kept.plan.index)
    }

    /// The collectives that [`next`](Bucket::next) will ask for, in order, with their sizes, so that memory can be reserved or
    /// registered beforehand. There are fewer if the exchange fails.
    ///
    /// # Errors
    /// None that [`Controller::open`](super::Controller::open) has not had.
    pub fn rounds(&self) -> Result<impl Iterator<Item = Round>, Error> {
        let specs = self.arena.kept.iter().map(Kept::spec);
        let program = Program::new(specs.clone(), self.moment, self.agreement, 0)?;
        Ok(program.rounds(specs).map(|(_, round)| round))
    }

    /// What was to be told to all and has not been, because there were no gradients.
    pub(super) fn untold(&self) -> Option<Error> {
        self.failure.filter(|_| self.progress == Progress::Open)
    }

    /// Says that a layer has no gradient on this rank in this step: whatever stands in its place counts as zeros, and its
    /// residual stays where it is instead of going out to where the means may not be applied; by
    /// [`Route::ScatterReduce`] it takes up what compressing this rank's share of the mean loses. Comes before
    /// [`submit`](Bucket::submit). Other ranks may have a gradient; PowerSGD starts afresh there if none has.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when there are gradients already; [`Error::NotInBucket`].
    pub fn withhold(&mut self, layer: usize) -> Result<(), Error> {
        self.expect_open()?;
        let kept = self.arena.kept.iter_mut().find(|kept| kept.plan.index == layer);
        let kept = kept.ok_or(Error::NotInBucket { layer })?;
        let form = (kept.plan.shape, kept.plan.dtype);
        kept.plan = LayerPlan::of(layer, form, &kept.state, [self.measured, true], self.moment.route);
        Ok(())
    }

    fn expect_open(&self) -> Result<(), Error> {
        match self.progress {
            Progress::Open => Ok(()),
            _ => Err(Error::StepOrder { what: "the bucket has gradients", expected: "an open one" }),
        }
    }

    /// Takes the gradients of this step, one per layer, adds residuals and compresses. What is wrong with them is told to
    /// all ranks, so that [`next`](Bucket::next) fails on every rank.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when there are gradients already.
    ///
    /// # Complexity
    /// Encodes every layer. Allocates what it is computed in, and frees it.
    pub fn submit(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        self.expect_open()?;
        let start = self.now();
        let begun = self.begin(gradients);
        self.computing += self.now() - start;
        begun
    }

    /// Says in place of [`submit`](Bucket::submit) that this rank has no gradients to give, because its trainer has failed:
    /// all ranks are told, so that none waits for it. [`next`](Bucket::next), which then takes no gradients, fails on every rank,
    /// on this one with `failure`.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when there are gradients already.
    pub fn submit_failure(&mut self, failure: Error) -> Result<(), Error> {
        self.expect_open()?;
        self.failure = self.failure.or(Some(failure));
        self.begin(&mut [])
    }

    /// 0 where nothing is measured.
    fn now(&self) -> f64 {
        self.clock.map_or(0.0, |clock| clock())
    }

    fn begin(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        if self.failure.is_none() {
            self.failure = check(&self.arena.kept, gradients).err();
        }
        if self.failure.is_none() {
            self.failure = self.offer(gradients).err();
        }
        let Arena { kept, offered, sent, workspace, scratch, list } = &mut self.arena;
        self.failure = self.failure.or(grow(scratch, self.needs.compressing).err());
        let (moment, agreement, failure) = (self.moment, self.agreement, self.failure);
        let room = Places { offered, rest: &mut [] };
        let present = unless_failed(failure, gradients);
        let mut layers = list_of(kept, room, present, self.late, core::mem::take(list));
        let flight = Flight::begin(
            &mut Host { layers: &mut layers, workspace, scratch: Some(scratch) },
            moment,
            agreement,
            failure,
        );
        for (to, layer) in sent.iter_mut().zip(&layers) {
            *to = layer.sent;
            self.late = self.late.or(layer.late);
        }
        *list = recycled(layers);
        self.drop_scratch();
        let mut flight = flight?;
        if let (None, Some(Error::Core(CoreError::NonFinite { .. }))) = (failure, flight.failure())
            && let Some(error) = first_non_finite(&self.arena.kept, gradients)
        {
            flight.fail(error);
        }
        (self.flight, self.progress) = (Some(flight), Progress::UnderWay);
        Ok(())
    }

    /// Goes on, once the collective asked for before is done, until the next one; `None` when the gradients are means and
    /// residuals have taken note. `gradients` are those of [`submit`](Bucket::submit).
    ///
    /// By [`Route::Sharded`] this rank's shards become means, and the other elements are of no use.
    ///
    /// Where some rank's gradient is not finite, all gradients of the bucket become zeros on every rank under
    /// [`NonFinite::Skip`], and NaN under [`NonFinite::PassThrough`], so that a loss scaler finds them. Residuals stay as they are.
    ///
    /// # Errors
    /// Those of [`Flight::next`], on all ranks alike; gradients are then of no use, residuals are unchanged, but that those of layers
    /// whose mean was being made may be what is left already, without [`undo`](super::Config::undo).
    /// [`Error::LayerOverflow`] when a mean does not fit its layer's element type, on all ranks. By [`Route::Sharded`] what
    /// is wrong with one rank's shard fails there; the others are told by the next bucket or step.
    /// [`Error::StepOrder`] when there are no gradients yet, [`Error::LayerMismatch`], [`CoreError::Length`] when they are of
    /// other lengths than before.
    ///
    /// # Complexity
    /// In all, decodes every payload and takes up to three passes for residuals. Allocates what it is computed in, and at the last
    /// call an f32 per element of layers whose residual is in fewer bits, and frees it.
    pub fn next<'b>(&'b mut self, gradients: &'b mut [ValuesMut<'_>]) -> Result<Option<Request<'b>>, Error> {
        let world = self.moment.world_size;
        Ok(match self.next_part(gradients)? {
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

    /// [`next`](Bucket::next), but for the request itself: the part that it is about.
    pub(super) fn next_part(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        match self.progress {
            Progress::UnderWay => {}
            Progress::Exchanged | Progress::Broken => return Ok(None),
            Progress::Open => return Err(Error::StepOrder { what: "the bucket is open", expected: "gradients" }),
            Progress::Failed | Progress::FailedAlone => {
                return Err(Error::StepOrder { what: "the bucket has failed", expected: "another" });
            }
        }
        let start = self.now();
        let advanced = self.advance(gradients);
        self.drop_scratch();
        self.computing += self.now() - start;
        advanced
    }

    /// The request about a part in the bucket's own memory.
    pub(super) fn request(&mut self, part: Part) -> Result<Request<'_>, Error> {
        let begun = Error::StepOrder { what: "the bucket is open", expected: "gradients" };
        let flight = self.flight.as_ref().ok_or(begun)?;
        request_in(part, flight.program(), &mut self.arena.workspace)
    }

    /// Notes bytes that this rank sends.
    pub(super) fn note_wire(&mut self, bytes: f64) {
        if self.clock.is_some() {
            self.wire += bytes;
        }
    }

    /// Goes on until the next part that is exchanged.
    fn advance(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        let Some(flight) = &mut self.flight else { return Ok(None) };
        let failure = self.failure;
        if failure.is_none() {
            check(&self.arena.kept, gradients)?;
        }
        let averaging = flight.is_averaging();
        let rest = if averaging { self.arena.rest() } else { 0 };
        let words = if averaging { self.needs.averaging + rest.div_ceil(2) } else { self.needs.compressing };
        let Arena { kept, offered, workspace, scratch, list, .. } = &mut self.arena;
        if let Err(error) = grow(scratch, words) {
            if averaging {
                return self.fail(error, true, gradients);
            }
            flight.fail(error);
        }
        let (rest, scratch) = split_rest(scratch, rest);
        let present = unless_failed(failure, gradients);
        let room = Places { offered, rest };
        let mut layers = list_of(kept, room, present, self.late, core::mem::take(list));
        let advanced = flight.advance(&mut Host { layers: &mut layers, workspace, scratch: Some(scratch) });
        let mut late = None;
        for layer in &layers {
            late = late.or(layer.late);
        }
        *list = recycled(layers);
        self.late = self.late.or(late);
        match advanced {
            Ok(Some(part)) => Ok(Some(part)),
            Ok(None) => self.remember().map(|()| None),
            Err(error) => {
                let alone = flight.failed_alone();
                self.fail(error, alone, gradients)
            }
        }
    }

    /// Frees what is of use during a call alone, so that buckets in flight do not have it.
    fn drop_scratch(&mut self) {
        if !self.keeps_scratch {
            self.arena.scratch = Vec::new();
        }
    }

    /// Ends without means.
    fn fail(&mut self, error: Error, alone: bool, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        self.note_failure(error, alone);
        if self.progress != Progress::Broken {
            return Err(error);
        }
        self.fill_broken(gradients);
        Ok(None)
    }

    /// Ends without means, whether or not the exchange has ended: other ranks, outside its group, have failed. Residuals are what
    /// they were, if they can be taken back. The error is the same kind on all ranks.
    pub(super) fn revoke(&mut self, error: Error) {
        self.note_failure(error, false);
        self.arena.kept.iter_mut().for_each(|kept| kept.state.undo());
    }

    fn note_failure(&mut self, error: Error, alone: bool) {
        self.progress = if alone { Progress::FailedAlone } else { Progress::Failed };
        // Nothing is remembered of this exchange.
        self.late = alone.then_some(error);
        self.not_finite = is_too_large(&error);
        self.differs = !alone && is_of_others(error);
        if !self.not_finite || self.non_finite == NonFinite::Error {
            return;
        }
        if matches!(error, Error::LayerOverflow { .. }) {
            // The scaler hears of it from the NaN.
            self.late = None;
        }
        self.progress = Progress::Broken;
    }

    /// Replaces gradients of a bucket that some rank's gradient has spoilt.
    pub(super) fn fill_broken(&self, gradients: &mut [ValuesMut<'_>]) {
        let value = if self.non_finite == NonFinite::Skip { 0.0 } else { f32::NAN };
        gradients.iter_mut().for_each(|gradient| gradient.write(core::iter::repeat(value)));
    }

    /// Adds gradients to the window's means and residuals to gradients: what is offered to compressors.
    fn offer(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        let steps = self.window_steps;
        let Arena { kept, offered, .. } = &mut self.arena;
        let len = |kept: &Kept| kept.plan.offered();
        spread::for_each(kept, gradients, offered, &len, &|kept, gradient, offered| {
            let LayerPlan { index, shape, left, measured, withheld, .. } = kept.plan;
            if withheld {
                gradient.write(core::iter::repeat(0.0));
                offered.fill(0.0);
            }
            if steps > 0 {
                window::add(&mut kept.window, gradient.values(), steps);
            }
            if withheld {
                return Ok(());
            }
            let values = match gradient {
                ValuesMut::F32(values) if left != Left::Instead => {
                    let finite = kept.memory().is_none_or(|memory| memory.compensate_in_place(values));
                    let found = if finite { None } else { non_finite(index, Values::F32(values)) };
                    found.map_or(Ok(()), Err)?;
                    &**values
                }
                _ => {
                    let gradient = Gradient::new(gradient.values(), shape)?;
                    match kept.memory() {
                        Some(memory) if memory.compensate(&gradient, offered).is_err() => {
                            non_finite(index, Values::F32(offered)).map_or(Ok(()), Err)?;
                        }
                        // What is not finite the compressor finds.
                        None if left == Left::Instead => drop(widen_part(&gradient, 0, 1.0, offered)),
                        _ => {}
                    }
                    offered
                }
            };
            if measured {
                kept.norms[0] = squared_norm(values);
            }
            Ok(())
        })
    }

    /// Gradients have become means, and residuals take note of what is left.
    fn remember(&mut self) -> Result<(), Error> {
        let Moment { seed, step, rank, reduce_dtype, .. } = self.moment;
        let rest = self.arena.rest();
        let Arena { kept, offered, scratch, sent, .. } = &mut self.arena;
        let mut places = Places { offered, rest: split_rest(scratch, rest).0 };
        for (kept, &sent) in kept.iter_mut().zip(&*sent) {
            let LayerPlan { index, setting, shape, dtype, left, measured, withheld, repays, .. } = kept.plan;
            let stream = Stream { seed, step, layer: index as u32, rank };
            let Places { offered, rest } = places.take(&kept.plan);
            let rest = match left {
                Left::Instead => Some(&*offered),
                Left::Beside => Some(&*rest),
                Left::Nowhere | Left::Norm | Left::InPlace => None,
            };
            let Kept { state, norms: [all, lost], .. } = kept;
            if measured {
                match (left, rest) {
                    (Left::Norm, _) => {}
                    (_, Some(rest)) => *lost = squared_norm(rest),
                    (_, None) => *lost = squared_norm(state.left(shape)),
                }
                state.relative_error = Some(if *all > 0.0 { *lost / *all } else { 0.0 });
            }
            let remembered = match (repays, withheld) {
                (true, _) => state.repay(rest.unwrap_or_default(), stream),
                (false, false) => state.remember(rest, self.late, stream),
                (false, true) => Ok(()),
            };
            self.late = self.late.or(remembered.err());
            let sent = match setting {
                // Without a header.
                Setting::Dense => (shape.elements() * dtype.bytes().min(reduce_dtype.bytes())) as u64,
                _ if setting.traits().aggregation != Aggregation::WholePayloads => {
                    setting.exchanged_len(shape, dtype, reduce_dtype)? as u64
                }
                _ => sent,
            };
            let counts = &mut state.counts;
            counts.steps += 1;
            counts.bytes_in += (shape.elements() * dtype.bytes()) as u64;
            counts.bytes_out += sent;
            self.bytes += sent;
        }
        self.progress = Progress::Exchanged;
        Ok(())
    }
}

/// Whether values, or their sums, were too large for the types in which they are computed or sent, on this rank or another: a
/// loss scaler then has to be told.
fn is_too_large(error: &Error) -> bool {
    let code = match error {
        Error::Peer { code, .. } => *code,
        error => error.code(),
    };
    let overflow = CoreError::ElementOverflow { index: 0, value: 0.0 }.code();
    code == Error::NON_FINITE_GRADIENT || code == overflow
}
