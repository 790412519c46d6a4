//! Layers that are exchanged together, from gradients to means and residuals.
//!
//! A bucket is lent its layers, it does not borrow them. It owns their states while it is exchanged, so it has no
//! lifetime: it can wait in a C handle, a future or another thread, and needs no locks. A layer that is lent is
//! refused elsewhere.

use super::NonFinite;
use super::arena::{Arena, Kept, recycled};
use super::check::{check, first_non_finite, relative_error};
use super::layer::LayerState;
use super::lens::{Facts, Lens};
use super::spread;
use super::view::{Places, When, list_of};
use super::window;
use crate::compress::{Compressor, Setting};
use crate::exchange::{
    Agreement, Flight, Host, Moment, Part, Program, Request, Round, Route, Spec, is_of_others, request_in,
    workspace_len,
};
use crate::feedback::plain_values;
use crate::gradient::{Dtype, Gradient, Values, ValuesMut, first_too_large};
use crate::rng::Stream;
use crate::{CoreError, Error};

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
///     let mut controller = Controller::new(config, layers, &worker)?;
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
    /// Whether they ever are, so that there is room for it.
    pub(super) measurable: bool,
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

/// Words of workspace for layers of these settings.
pub(super) fn words<'a>(
    layers: impl Iterator<Item = Spec<'a>> + Clone,
    route: Route,
    world: u32,
) -> Result<usize, Error> {
    let narrow = workspace_len(layers.clone(), route, world)?;
    // With a residual, f32 is compressed.
    let wide = layers.map(|spec| Spec { dtype: Dtype::F32, ..spec });
    Ok(narrow.max(workspace_len(wide, route, world)?))
}

impl Bucket {
    /// Makes room for the exchange.
    pub(super) fn reserve(&mut self) -> Result<(), Error> {
        let kept = self.arena.kept.iter();
        let words = words(kept.clone().map(Kept::spec), self.moment.route, self.moment.world_size)?;
        self.arena.reserve(kept.len(), self.lens(self.measurable), words)?;
        self.arena.kept.iter_mut().try_for_each(|kept| kept.state.reserve(kept.shape))
    }

    /// Values of the buffers.
    fn lens(&self, measured: bool) -> Lens {
        let lens =
            self.arena.kept.iter().map(|kept| Facts::of(kept, self.moment.route, measured).lens(kept.shape.elements()));
        lens.fold(Lens::default(), Lens::add)
    }

    /// The layers, in the order in which their gradients are given.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = usize> {
        self.arena.kept.iter().map(|kept| kept.index)
    }

    /// The collectives that [`next`](Bucket::next) will ask for, in order, with their sizes, so that memory can be reserved or
    /// registered beforehand. There are fewer if the exchange fails.
    ///
    /// # Errors
    /// None that [`Controller::open`](super::Controller::open) has not had.
    pub fn rounds(&self) -> Result<impl Iterator<Item = Round> + use<>, Error> {
        let specs = self.arena.kept.iter().map(Kept::spec);
        let program = Program::new(specs, self.moment, self.agreement, 0)?;
        Ok(program.rounds().map(|(_, round)| round))
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
        let layers = self.arena.kept.len();
        let place = self.arena.kept.iter_mut().find(|kept| kept.index == layer);
        place.map(|kept| kept.withheld = true).ok_or(Error::NotInBucket { layer })?;
        // Without its residual it may need other buffers.
        self.arena.reserve(layers, self.lens(self.measured), 0)
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
    /// Encodes every layer. Allocates nothing; with the feature `rayon` as [`next`](Bucket::next).
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
        let (moment, agreement, failure) = (self.moment, self.agreement, self.failure);
        let when = if failure.is_some() { When::Failed } else { When::Begin };
        let Arena { kept, mean, offered, own, sent, workspace, list } = &mut self.arena;
        let room = Places { mean, offered, own };
        let mut layers = list_of(kept, room, gradients, when, &moment, self.measured, core::mem::take(list))?;
        let flight = Flight::begin(&mut Host { layers: &mut layers, workspace }, moment, agreement, failure);
        sent.iter_mut().zip(&layers).for_each(|(to, layer)| *to = layer.sent);
        *list = recycled(layers);
        let mut flight = flight?;
        if flight.failure().is_none() {
            let start = self.now();
            self.add_to_window(gradients)?;
            // Steps of a window are not those that plans are about.
            self.computing -= self.now() - start;
        }
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
    /// Those of [`Flight::next`], on all ranks alike; gradients are then of no use, residuals are unchanged.
    /// [`CoreError::ElementOverflow`] when a mean does not fit its layer's element type, on all ranks. By [`Route::Sharded`] what
    /// is wrong with one rank's shard fails there; the others are told by the next bucket or step.
    /// [`Error::StepOrder`] when there are no gradients yet, [`Error::LayerMismatch`], [`CoreError::Length`] when they are of
    /// other lengths than before.
    ///
    /// # Complexity
    /// In all, decodes every payload and takes up to three passes for residuals. Allocates nothing; with the feature
    /// `rayon` layers are handed to its threads, whose queue now and then does.
    pub fn next(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Request<'_>>, Error> {
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
        self.computing += self.now() - start;
        match (advanced?, &self.flight) {
            (Some(part), Some(flight)) => {
                let request = request_in(part, flight.program(), &mut self.arena.workspace)?;
                if self.clock.is_some() {
                    self.wire += request.wire_bytes(self.moment.world_size);
                }
                Ok(Some(request))
            }
            _ => Ok(None),
        }
    }

    /// [`next`](Bucket::next), but for the request itself: the part that it is about.
    fn advance(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        let Some(flight) = &mut self.flight else { return Ok(None) };
        let failure = self.failure;
        if failure.is_none() {
            check(&self.arena.kept, gradients)?;
        }
        let when = if failure.is_some() { When::Failed } else { When::Next };
        let Arena { kept, mean, offered, own, workspace, list, .. } = &mut self.arena;
        let (room, moment) = (Places { mean, offered, own }, &self.moment);
        let mut layers = list_of(kept, room, gradients, when, moment, self.measured, core::mem::take(list))?;
        let advanced = flight.advance(&mut Host { layers: &mut layers, workspace });
        let mut late = None;
        for layer in &layers {
            late = late.or(layer.late);
        }
        *list = recycled(layers);
        self.late = self.late.or(late);
        match advanced {
            Ok(Some(part)) => return Ok(Some(part)),
            Ok(None) => {}
            Err(error) => {
                let alone = flight.failed_alone();
                return self.fail(error, alone, gradients);
            }
        }
        match self.take_means(gradients) {
            Ok(()) => self.progress = Progress::Exchanged,
            Err(error) => return self.fail(error, self.moment.route == Route::Sharded, gradients),
        }
        Ok(None)
    }

    /// Ends without means.
    fn fail(&mut self, error: Error, alone: bool, gradients: &mut [ValuesMut<'_>]) -> Result<Option<Part>, Error> {
        self.progress = if alone { Progress::FailedAlone } else { Progress::Failed };
        // Nothing is remembered of this exchange.
        self.late = alone.then_some(error);
        self.not_finite =
            matches!(error, Error::NonFiniteGradient { .. } | Error::Peer { code: Error::NON_FINITE_GRADIENT, .. });
        self.differs = !alone && is_of_others(error);
        if !self.not_finite || self.non_finite == NonFinite::Error {
            return Err(error);
        }
        self.progress = Progress::Broken;
        let value = if self.non_finite == NonFinite::Skip { 0.0 } else { f32::NAN };
        gradients.iter_mut().for_each(|gradient| gradient.write(core::iter::repeat(value)));
        Ok(None)
    }

    /// Adds the gradients to the window's means.
    fn add_to_window(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        let steps = self.window_steps;
        if steps == 0 {
            return Ok(());
        }
        spread::for_each(&mut self.arena.kept, gradients, &mut [], &|_| 0, &|kept, gradient, _| {
            window::add(&mut kept.window, gradient.values(), steps);
            Ok(())
        })
    }

    /// Writes what is to be compressed where there is a residual.
    fn offer(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        let (route, measured) = (self.moment.route, self.measured);
        let Arena { kept, offered, .. } = &mut self.arena;
        let len = |kept: &Kept| Facts::of(kept, route, measured).lens(kept.shape.elements()).offered;
        spread::for_each(kept, gradients, offered, &len, &|kept, gradient, offered| {
            if kept.withheld {
                gradient.write(core::iter::repeat(0.0));
                return Ok(());
            }
            let LayerState { memory: Some(memory), pending, .. } = &mut kept.state else { return Ok(()) };
            let offered = if memory.is_plain() { plain_values(pending, kept.shape) } else { offered };
            let compensated = memory.compensate(&Gradient::new(gradient.values(), kept.shape)?, offered);
            let layer = kept.index;
            compensated.map_err(|error| match error {
                Error::Core(CoreError::NonFinite { index, value }) => Error::NonFiniteGradient { layer, index, value },
                error => error,
            })
        })
    }

    /// Gradients become means, and residuals take note.
    fn take_means(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        let Moment { seed, step, rank, route, reduce_dtype, .. } = self.moment;
        let facts = |kept: &Kept, measured| {
            let facts = Facts::of(kept, route, measured);
            (facts, facts.lens(kept.shape.elements()))
        };
        let Arena { kept, mean, offered, own, sent, .. } = &mut self.arena;
        let mut means = &mean[..];
        for kept in kept.iter() {
            let mean = means.split_off(..facts(kept, self.measured).1.mean).unwrap_or_default();
            let wanted = kept.spec().wanted(route, rank);
            let mean = &mean[..wanted.len().min(mean.len())];
            if let Some(index) = first_too_large(mean, kept.dtype) {
                return Err(Error::Core(CoreError::ElementOverflow {
                    index: wanted.start + index,
                    value: mean[index],
                }));
            }
        }
        let mut places = Places { mean, offered, own };
        for ((kept, gradient), &sent) in kept.iter_mut().zip(gradients).zip(&*sent) {
            let stream = Stream { seed, step, layer: kept.index as u32, rank };
            let (shape, (facts, lens)) = (kept.shape, facts(kept, self.measured));
            let Places { mean, offered, own } = places.take(lens);
            let own: &[f32] = own;
            if self.measured && facts.owns && !kept.withheld {
                let state = &mut kept.state;
                state.relative_error = Some(match &state.memory {
                    Some(memory) if memory.is_plain() => {
                        relative_error(Values::F32(plain_values(&mut state.pending, shape)), own)
                    }
                    Some(_) => relative_error(Values::F32(offered), own),
                    None => relative_error(gradient.values(), own),
                });
            }
            if facts.repays {
                self.late = self.late.or(kept.state.repay(own, offered, stream).err());
            }
            let own = facts.owns.then_some(own);
            if !kept.withheld {
                let remembered = kept.state.remember(&Gradient::new(gradient.values(), shape)?, own, self.late, stream);
                self.late = self.late.or(remembered.err());
            }
            let setting = kept.state.choice.setting;
            let bytes = (shape.elements() * kept.dtype.bytes()) as u64;
            let sent = match setting {
                // Without a header.
                Setting::Dense => (shape.elements() * kept.dtype.bytes().min(reduce_dtype.bytes())) as u64,
                _ if setting.has_fixed_len() => setting.exchanged_len(shape, kept.dtype, reduce_dtype)? as u64,
                _ => sent,
            };
            let counts = &mut kept.state.counts;
            counts.steps += 1;
            counts.bytes_in += bytes;
            counts.bytes_out += sent;
            self.bytes += sent;
            if !facts.in_place {
                let wanted = kept.spec().wanted(route, rank);
                let mean = &mean[..wanted.len()];
                gradient.part(wanted).narrow(mean)?;
            }
        }
        Ok(())
    }
}
