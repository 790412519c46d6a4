//! One worker's controller: its parts, and how settings change.

use super::agreement_state::{Control, StepTotals};
use super::arena::Arenas;
use super::buffers::list;
use super::decision::LayerSetting;
use super::identity::{Field, fields};
use super::layer::{LayerState, Switch};
use super::layer_plan::LayerPlan;
use super::schedule::Scheduler;
use super::spare::Spare;
use super::{Config, Tensor};
#[cfg(doc)]
use crate::CoreError;
use crate::Error;
use crate::backend::{Backend, Portable};
use crate::checksum::Hash;
use crate::exchange::Place;
use crate::rng::Stream;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

/// One worker's part of training: it decides on settings, compresses gradients, exchanges them and keeps residuals.
///
/// See the [module](crate::controller) for the order of a step and an example that trains.
///
/// | role | methods |
/// |---|---|
/// | construct | [`new`](Self::new), [`with_backend`](Self::with_backend) |
/// | step | [`step`](Self::step), [`step_failed`](Self::step_failed); in parts: [`begin_step`](Self::begin_step), [`control`](Self::control), [`finish_step`](Self::finish_step), [`abandon_step`](Self::abandon_step) |
/// | buckets | [`open`](Self::open), [`close`](Self::close); exchanges by the caller: [`external`](Self::external) |
/// | plans | [`planning`](Self::planning) |
/// | state | [`save`](Self::save), [`save_only`](Self::save_only), [`save_part`](Self::save_part), [`load`](Self::load), [`residuals`](Self::residuals) |
/// | inspect | [`tensors`](Self::tensors), [`steps`](Self::steps), [`setting`](Self::setting), [`decision`](Self::decision), [`metrics`](Self::metrics), [`residual`](Self::residual), [`non_finite_steps`](Self::non_finite_steps) |
///
/// [`Summary::of`](super::Summary::of) describes a controller in one line, and [`MemoryUse::of`](super::MemoryUse::of) predicts its
/// memory.
///
/// ```
/// # use lgreco_testing::controller::alone;
/// # use lgreco_train::search::Method;
/// # let (controller, _) = alone(Method::TopK)?;
/// assert_eq!((controller.steps(), controller.decision()), (0, None));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Controller {
    /// Configuration, layers, number of steps, and decisions.
    pub(super) scheduler: Scheduler,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) states: Vec<LayerState>,
    /// Number of steps in which some rank's gradient was not finite.
    pub(super) non_finite: u64,
    /// An error of this rank that no message has reported to the other ranks yet.
    pub(super) late: Option<Error>,
    /// Sets of layers that all ranks agreed to exchange as one bucket.
    pub(super) agreed: BTreeSet<Vec<usize>>,
    /// Buffers that no bucket uses at the moment.
    pub(super) arenas: Arenas,
    /// Scratch memory of buckets in flight. With two levels, also memory for their messages inside the node.
    pub(super) spare: Spare,
    /// The agreement before a step.
    pub(super) control: Control,
    /// Number of buckets lent so far.
    pub(super) lendings: u64,
    /// Sums over the buckets of this step.
    pub(super) totals: StepTotals,
    /// Checksum of the settings.
    plan: u64,
    /// The caller's values that must be the same on all ranks at this step.
    pub(crate) beside: Vec<Field>,
    /// The backend on which decisions measure gradients.
    pub(super) backend: Box<dyn Backend + Send>,
}

impl Controller {
    /// A controller for a model with the layers `tensors`, on rank `rank` of `world_size`. All ranks must give the same configuration
    /// and layers. The first step compares everything except the clock, and [`Error::PeerOption`] names the first difference.
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
    /// [`CoreError::Parameter`], [`CoreError::Length`] for an option outside its range; [`CoreError::DuplicateName`];
    /// [`CoreError::OutOfMemory`].
    ///
    /// # Complexity
    /// O(n log n) in the layers. The first step of each window allocates an f32 per element of the model on the measuring rank.
    pub fn new(config: Config, tensors: Vec<Tensor>, rank: u32, world_size: u32) -> Result<Self, Error> {
        let Place { rank, world } = Place::new(rank, world_size)?;
        let scheduler = Scheduler::new(config, tensors, rank, world)?;
        let Scheduler { config, tensors, .. } = &scheduler;
        let mut states = list(tensors.len())?;
        for (index, tensor) in tensors.iter().enumerate() {
            states.push(LayerState::new(LayerPlan::before_decisions(index, tensor, config)?));
        }
        let mut controller = Controller {
            rank,
            world,
            states,
            non_finite: 0,
            late: None,
            agreed: BTreeSet::new(),
            arenas: Arenas::default(),
            spare: Spare::shared(),
            control: Control::new(world)?,
            lendings: 0,
            totals: StepTotals::default(),
            plan: 0,
            beside: vec![],
            backend: Box::new(Portable),
            scheduler,
        };
        controller.plan = controller.plan_hash();
        Ok(controller)
    }

    /// Makes decisions measure on `backend` instead of the portable one.
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

    /// The clock, if the configuration has one.
    pub(super) fn now(&self) -> Option<f64> {
        self.scheduler.config.clock.map(|clock| clock())
    }

    /// Checksum of everything that must be the same on all ranks at this step.
    pub(super) fn fingerprint(&self) -> u64 {
        let own = Hash(self.scheduler.fingerprint()).add(self.plan);
        self.beside.iter().fold(own, |hash, field| hash.add(field.word)).0
    }

    /// Everything that must be the same on all ranks at this step.
    pub(super) fn fields(&self) -> Vec<Field> {
        let Scheduler { config, tensors, .. } = &self.scheduler;
        let of_run = fields(config, tensors, self.world);
        let mut all: Vec<Field> = self.beside.iter().copied().chain(of_run).collect();
        all.extend(self.scheduler.step_fields());
        all.push(self.settings_in_use());
        all
    }

    fn settings_in_use(&self) -> Field {
        let plans = || self.states.iter().map(|state| &state.plan);
        let settings = plans().flat_map(|plan| plan.choice.encode());
        Field::checksum("settings in use", settings.chain(plans().filter_map(LayerPlan::own_len)))
    }

    fn plan_hash(&self) -> u64 {
        self.settings_in_use().word
    }

    /// Prepares a switch of `states` to the settings `choices` at `step`.
    pub(super) fn prepare(
        &self,
        states: &[LayerState],
        choices: &[LayerSetting],
        step: u64,
    ) -> Result<Vec<Switch>, Error> {
        let Scheduler { config, tensors, .. } = &self.scheduler;
        let (seed, step) = (config.search.seed, step as u32);
        let mut switches = list(states.len())?;
        for (layer, ((state, tensor), &choice)) in states.iter().zip(&**tensors).zip(choices).enumerate() {
            let plan = LayerPlan::new(layer, tensor, choice, config)?;
            switches.push(state.prepare(plan, Stream { seed, step, layer: layer as u32, rank: self.rank })?);
        }
        Ok(switches)
    }

    /// Switches to prepared settings.
    pub(super) fn switch(&mut self, switches: Vec<Switch>) {
        self.states.iter_mut().zip(switches).for_each(|(state, switch)| state.commit(switch));
        self.plan = self.plan_hash();
        self.begin_metering();
    }

    /// Discards the measured seconds, which do not apply to the new settings.
    fn begin_metering(&mut self) {
        self.totals.unmetered = false;
        if let Some(meter) = &mut self.scheduler.meter {
            meter.switch(self.states.iter().map(|state| state.plan.choice.setting).collect());
        }
    }

    /// Replaces the states of all layers by those from a saved controller.
    pub(super) fn install(&mut self, states: Vec<LayerState>) {
        self.states = states;
        self.plan = self.plan_hash();
        self.begin_metering();
        self.agreed.clear();
        self.control.met = false;
        self.control.cancel();
    }

    /// `Err` while a layer is lent to a bucket.
    pub(super) fn expect_taken_back(&self) -> Result<(), Error> {
        let lent = self.states.iter().position(|state| state.lent != 0);
        lent.map_or(Ok(()), |layer| Err(Error::InFlight { layer }))
    }
}
