//! One worker's end of the training loop.

use super::agreement;
use super::arena::Arenas;
use super::bucket::Progress;
use super::check::{check_layer, non_finite};
use super::codes::Choice;
use super::identity::{Field, fields};
use super::layer::{Fate, LayerState, Switch};
use super::meter::Sample;
use super::planner::Planner;
use super::stage::{Control, Taken};
use super::{Config, NonFinite, Outcome, Report, Seconds, Tensor};
#[cfg(doc)]
use crate::CoreError;
use crate::Error;
use crate::backend::{Backend, Portable};
use crate::checksum::Hash;
use lgreco::error::expect_len;
use crate::exchange::{Collective, Place};
use crate::gradient::{Element, ValuesMut, with_elements};
use crate::rng::Stream;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// One worker's end of the training loop: decides when and how hard to compress, compresses, exchanges, and remembers.
///
/// See the [module](crate::controller) for the order of a step and an example that trains.
///
/// ```
/// # use lgreco_testing::controller::alone;
/// # use lgreco_train::search::Method;
/// # let (controller, _) = alone(Method::TopK)?;
/// assert_eq!((controller.steps(), controller.decision()), (0, None));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Controller {
    /// Steps, configuration, layers and decisions.
    pub(super) planner: Planner,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) states: Vec<LayerState>,
    /// Steps in which some rank's gradient was not finite.
    pub(super) non_finite: u64,
    /// An error of this rank alone that the others have not been told yet.
    pub(super) late: Option<Error>,
    /// Layers of which ranks know that they all exchange them together, and when they last have.
    pub(super) agreed: BTreeMap<Vec<usize>, u64>,
    /// Buffers that no bucket has.
    pub(super) arenas: Arenas,
    pub(super) control: Control,
    /// Buckets lent so far.
    pub(super) lendings: u64,
    /// What the buckets of this step have come to.
    pub(super) taken: Taken,
    /// Of the settings.
    plan: u64,
    pub(super) backend: Box<dyn Backend + Send>,
}

impl Controller {
    /// A controller for a model whose layers are `tensors`, on rank `rank` of `world_size`. All ranks must give the same
    /// configuration and layers; the first step compares all of them but the clock, and [`Error::PeerOption`] names the first
    /// that differs.
    ///
    /// ```
    /// # use lgreco_train::{controller::{Config, Controller, Tensor}, exchange::threads::ThreadCollective, gradient::Dtype};
    /// # use lgreco_train::search::{Method, Search};
    /// # let worker = ThreadCollective::group(1).remove(0);
    /// let tensors = vec![Tensor::new("weight", &[64, 64], Dtype::F32)?];
    /// let mut config = Config::new(Search::new(Method::PowerSgd));
    /// config.schedule.warmup = 1;
    /// let refused = Controller::new(config, tensors, worker.rank(), worker.world_size()).err().unwrap();
    /// assert_eq!(refused.to_string(), "warm-up is 1, expected at least 2 steps");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Parameter`], [`CoreError::Length`] for what makes no sense in the configuration;
    /// [`CoreError::DuplicateName`]; [`CoreError::OutOfMemory`].
    ///
    /// # Complexity
    /// O(n log n) in the layers. On the measuring rank it allocates an f32 per element of the model.
    pub fn new(config: Config, tensors: Vec<Tensor>, rank: u32, world_size: u32) -> Result<Self, Error> {
        let Place { rank, world } = Place::new(rank, world_size)?;
        let planner = Planner::new(config, tensors, rank, world)?;
        let (config, tensors) = (&planner.config, &planner.tensors);
        let mut controller = Controller {
            rank,
            world,
            states: tensors.iter().map(|_| LayerState::new(config)).collect(),
            non_finite: 0,
            late: None,
            agreed: BTreeMap::new(),
            arenas: Arenas::default(),
            control: Control::new(world)?,
            lendings: 0,
            taken: Taken::default(),
            plan: 0,
            backend: Box::new(Portable),
            planner,
        };
        controller.plan = controller.plan_hash();
        Ok(controller)
    }

    /// Measures on another backend than the portable one.
    ///
    /// ```
    /// # use lgreco_train::{controller::{Config, Controller, Tensor}, backend::Portable, exchange::threads::ThreadCollective};
    /// # use lgreco_train::search::{Method, Search};
    /// # let (config, tensors, worker) = (Config::new(Search::new(Method::TopK)), vec![], ThreadCollective::group(1).remove(0));
    /// let controller = Controller::new(config, tensors, worker.rank(), worker.world_size())?.with_backend(Box::new(Portable));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn with_backend(mut self, backend: Box<dyn Backend + Send>) -> Self {
        self.backend = backend;
        self
    }

    /// Takes a step: `gradients`, one per layer, become their means over the workers. All ranks call it, at every step,
    /// with the same `learning_rate` (only Accordion looks at it).
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
    /// Whatever fails on one rank fails on all: there with the error itself, elsewhere with [`Error::Peer`] and its code.
    ///
    /// Before anything has changed, so that the step may be repeated: [`CoreError::Length`], [`Error::LayerMismatch`]
    /// when gradients are not those of the layers; [`Error::NonFiniteGradient`] under [`NonFinite::Error`];
    /// [`CoreError::Parameter`] for a learning rate that is not finite or negative; [`Error::OtherPlace`] when rank or number of
    /// workers changed; [`Error::StepOrder`] when a step is under way; [`Error::PeerOption`] when ranks differ in configuration,
    /// layers, settings, step or learning rate; those of search and planner when a decision fails.
    ///
    /// In the middle of the exchange: [`CoreError::Overflow`], [`Error::LayerOverflow`], [`Error::PeerMessage`].
    /// The step is then over, all of its gradients are of no use, and the residuals of the buckets exchanged before
    /// have taken note of it; the next step works. By [`Route::Sharded`](crate::exchange::Route) what overflows in one rank's
    /// shard fails there, and on all ranks at the next bucket or step. [`CoreError::Overflow`] of a residual alone is told by the next
    /// step, which then may be repeated. After [`Error::Collective`] the step is [abandoned](Controller::abandon_step).
    ///
    /// # Complexity
    /// A pass over the gradients, the exchange, and up to three passes for a residual. Allocates at decisions only.
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
        let local = local.and_then(|()| match (first_non_finite(gradients), self.planner.config.non_finite) {
            (Some(error), NonFinite::Error) => Err(error),
            (found, _) => Ok(found.is_some()),
        });
        let broken = self.agree_to_step(collective, local, learning_rate)?;
        if broken {
            self.non_finite += 1;
            return self.without_compression(collective, gradients);
        }
        let mut failed_alone = None;
        for group in 0..self.planner.groups.ranges.len() {
            let range = self.planner.groups.ranges[group].clone();
            let mut bucket = match self.open_group(range.clone()) {
                Ok(bucket) => bucket,
                Err(error) => {
                    self.taken.incomplete = true;
                    self.end_step();
                    return Err(error);
                }
            };
            let exchanged = bucket.exchange(collective, &mut gradients[range]);
            let alone = bucket.progress == Progress::FailedAlone;
            self.close(bucket)?;
            match exchanged {
                Ok(()) => {}
                // The others go on, and are told by the next bucket.
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
        match failed_alone {
            None => self.finish_step(),
            Some(error) => {
                self.end_step();
                Err(error)
            }
        }
    }

    /// Says in place of [`step`](Controller::step) that this rank cannot take it, because its trainer has failed: all ranks are
    /// told, so that none waits for it, and fail. Returns what went wrong: `failure`, or, where the others could not be told,
    /// [`Error::Collective`]. Nothing has changed, and the step may be taken again.
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
        // The collective may be of another size, or this rank in another place, than the controller knows.
        let mut words = agreement::failed(collective.world_size(), failure);
        match collective.all_gather(bytemuck::cast_slice_mut(&mut words)) {
            Ok(()) => failure,
            Err(error) => error.into(),
        }
    }

    /// Finds out whether all ranks can take this step and want the same, decides and switches if it is time to; returns
    /// whether some rank's gradient is not finite.
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

    pub(super) fn now(&self) -> Option<f64> {
        self.planner.config.clock.map(|clock| clock())
    }

    fn check(&self, gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
        let tensors = &self.planner.tensors;
        expect_len("gradients, one per layer", tensors.len(), gradients.len())?;
        let mut layers = tensors.iter().zip(gradients).enumerate();
        layers.try_for_each(|(layer, (tensor, gradient))| {
            check_layer(layer, tensor.shape, tensor.dtype, gradient.values())
        })
    }

    /// What all ranks must agree on at this step.
    pub(super) fn fingerprint(&self) -> u64 {
        Hash(self.planner.fingerprint()).add(self.plan).0
    }

    /// All that ranks must agree on at this step.
    pub(super) fn fields(&self) -> Vec<Field> {
        let Planner { config, tensors, .. } = &self.planner;
        let mut all = fields(config, tensors, self.world);
        all.extend(self.planner.step_fields());
        all.push(self.settings_in_use());
        all
    }

    fn settings_in_use(&self) -> Field {
        Field::checksum("settings in use", self.states.iter().flat_map(|state| state.choice.encode()))
    }

    fn plan_hash(&self) -> u64 {
        self.settings_in_use().word
    }

    /// What giving `states` the settings `choices` at `step` changes.
    pub(super) fn prepare(&self, states: &[LayerState], choices: &[Choice], step: u64) -> Result<Vec<Switch>, Error> {
        let Planner { config, tensors, .. } = &self.planner;
        let layers = states.iter().zip(&**tensors).zip(choices).enumerate();
        let switches = layers.map(|(layer, ((state, tensor), &choice))| {
            let (seed, step) = (config.search.seed, step as u32);
            state.prepare(choice, config, tensor, Stream { seed, step, layer: layer as u32, rank: self.rank })
        });
        switches.collect()
    }

    pub(super) fn switch(&mut self, switches: Vec<Switch>) {
        self.states.iter_mut().zip(switches).for_each(|(state, switch)| state.commit(switch));
        self.plan = self.plan_hash();
        self.begin_metering();
    }

    /// Other settings take other times.
    fn begin_metering(&mut self) {
        self.taken.unmetered = false;
        if let Some(meter) = &mut self.planner.meter {
            meter.switch(self.states.iter().map(|state| state.choice.setting).collect());
        }
    }

    /// Takes over layers that were loaded.
    pub(super) fn install(&mut self, states: Vec<LayerState>) {
        self.states = states;
        self.plan = self.plan_hash();
        self.begin_metering();
        self.agreed.clear();
        self.control.met = false;
        self.control.cancel();
    }

    /// A step in which some rank's gradient is not finite.
    fn without_compression<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
    ) -> Result<Report, Error> {
        let mut report = self.finish_step()?;
        if self.planner.config.non_finite == NonFinite::PassThrough {
            (report.outcome, report.bytes_out) = (Outcome::PassedThrough, report.bytes_in);
            for range in &self.planner.groups.ranges {
                pass(collective, &mut gradients[range.clone()])?;
            }
            return Ok(report);
        }
        report.outcome = Outcome::Skipped;
        gradients.iter_mut().for_each(|gradient| gradient.write(core::iter::repeat(0.0)));
        Ok(report)
    }

    /// Ends the step, whose buckets have all been exchanged and taken back. Layers that were in no bucket keep their
    /// residuals.
    ///
    /// # Errors
    /// [`Error::InFlight`] when a bucket has not been taken back; [`Error::StepOrder`] when no step is under way.
    pub fn finish_step(&mut self) -> Result<Report, Error> {
        self.control.expect_open()?;
        self.expect_taken_back()?;
        let (step, taken) = (self.planner.step, self.taken);
        let switched = self.control.switched;
        let outcome = match self.states.iter().any(|state| state.fate == Fate::Failed) {
            true => Outcome::Failed,
            false if !taken.broken => Outcome::Exchanged,
            false if self.planner.config.non_finite == NonFinite::Skip => Outcome::Skipped,
            false => Outcome::PassedThrough,
        };
        if outcome == Outcome::Skipped {
            // Nothing of the step is applied, that of its other buckets neither.
            self.states.iter_mut().for_each(|state| state.undo());
        }
        if taken.not_finite {
            self.non_finite += 1;
        }
        let bytes_in = self.planner.tensors.iter().map(Tensor::bytes).sum();
        let seconds = taken.planned.zip(self.now());
        let seconds = seconds.map(|((planning, start), end)| Seconds { planning, exchange: end - start });
        let exchanged = outcome == Outcome::Exchanged && self.states.iter().any(|state| state.fate == Fate::Exchanged);
        match (&mut self.planner.meter, seconds) {
            (Some(meter), _) if meter.elsewhere => {
                (self.taken.unmetered, self.taken.in_window) = (exchanged, self.planner.watches);
            }
            (Some(meter), Some(seconds)) if exchanged => {
                let Taken { wire: bytes, computing, .. } = taken;
                meter.record(Sample { bytes, seconds: seconds.exchange, computing });
            }
            _ => {}
        }
        if taken.told {
            self.planner.given = self.planner.given.in_agreement();
        }
        self.end_step();
        Ok(Report { step, outcome, switched, bytes_in, bytes_out: taken.bytes_out, seconds })
    }

    pub(super) fn expect_taken_back(&self) -> Result<(), Error> {
        let lent = self.states.iter().position(|state| state.lent != 0);
        lent.map_or(Ok(()), |layer| Err(Error::InFlight { layer }))
    }

    /// The next step is another one.
    fn end_step(&mut self) {
        if self.taken.incomplete {
            self.planner.forget();
        }
        self.planner.close();
        self.control.cancel();
    }
}

/// Averages gradients as they are, uncompressed, with whatever is not finite in them.
fn pass<C: Collective + ?Sized>(collective: &mut C, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
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

fn first_non_finite(gradients: &[ValuesMut<'_>]) -> Option<Error> {
    gradients.iter().enumerate().find_map(|(layer, gradient)| non_finite(layer, gradient.values()))
}
