//! When and what is decided, without a network and without the exchange.
//!
//! A plan that is late is asked for again: the measuring rank's message may say "not yet", ranks then take the step as they are
//! and ask at the next one, so that nobody waits for a thread. A task shares the window's memory instead of owning it, so
//! a state saved meanwhile has the window, a task that is dropped loses nothing, and a result is known by the memory it
//! was made from. It brings no backend: where it runs is the business of who runs it.

use super::accordion::Highest;
use super::check::check_layer;
use super::decide::Decided;
use super::groups::Groups;
use super::identity::identity;
use super::meter::Meter;
use super::window::{self, Window};
use super::{Config, Decision, Objective, PlanResult, PlanTask, Policy, Tensor, TimeModel};
use super::{Uncompressed, message};
use crate::compress::Setting;
use crate::error::{expect_distinct, expect_len};
use crate::gradient::{Values, with_elements};
use crate::internal::select::check_finite;
use crate::{CoreError, Error};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZero;

/// The decisions of a [`Controller`](super::Controller) without its exchange, for trainers that have their own: observes
/// gradients, in any order and bucket, plans on any thread, and tells all ranks when which settings take effect.
///
/// A step is [`begin_step`](Planner::begin_step); where a decision [is due](Planner::is_due), one broadcast of
/// [`message`](Planner::message) and [`adopt`](Planner::adopt); [`observe`](Planner::observe) with what gradients there
/// are; [`end_step`](Planner::end_step).
///
/// ```
/// use lgreco_train::backend::Portable;
/// use lgreco_train::controller::{Config, Planner, Tensor};
/// use lgreco_train::exchange::{Collective, threads};
/// use lgreco_train::gradient::{Dtype, Values};
/// use lgreco_train::search::{Method, Search};
///
/// let settings = threads::run(2, |mut worker| {
///     let mut config = Config::new(Search::new(Method::TopK));
///     (config.schedule.warmup, config.schedule.window, config.schedule.lead) = (6, 2, 3);
///     let root = config.measuring_rank;
///     let layers = vec![Tensor::new("fc1", &[64, 64], Dtype::F32)?];
///     let mut planner = Planner::new(config, layers, worker.rank(), worker.world_size())?;
///     let (mut setting, mut thread) = (None, None);
///     for step in 0..8 {
///         planner.begin_step(0.1)?;
///         if planner.is_due() {
///             if let Some(thread) = thread.take() {
///                 let result = std::thread::JoinHandle::join(thread).unwrap();
///                 planner.hand_in(result); // one that is not there yet is waited for by asking again at the next step
///             }
///             let mut message = planner.message();
///             worker.broadcast(root, &mut message).map_err(lgreco_train::Error::from)?;
///             if let Some(adopted) = planner.adopt(&message)? {
///                 assert_eq!(step, 6);
///                 setting = Some(adopted.settings[0]);
///             }
///         }
///         let gradient: Vec<f32> = (0..4096).map(|i| (i as f32 + step as f32).sin().powi(5)).collect();
///         planner.observe(0, Values::F32(&gradient))?;
///         planner.end_step()?;
///         if let Some(task) = planner.take_task() {
///             thread = Some(std::thread::spawn(move || task.run(&mut Portable))); // while three steps are taken
///         }
///     }
///     Ok::<_, lgreco_train::Error>(setting.unwrap().to_string())
/// });
/// assert_eq!(settings[0], settings[1]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Planner {
    pub(super) config: Arc<Config>,
    pub(super) tensors: Arc<[Tensor]>,
    pub(super) groups: Arc<Groups>,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// Of the configuration and the model.
    pub(super) identity: u64,
    pub(super) stage: Stage,
    /// Steps taken.
    pub(super) step: u64,
    /// The step of the next decision.
    pub(super) due: Option<u64>,
    pub(super) window: Window,
    /// Whether this step's gradients belong to the window.
    pub(super) watches: bool,
    /// The measuring rank's gradient norms at the last decision; empty before.
    pub(super) norms: Vec<f64>,
    pub(super) highest: Highest,
    /// Of this step.
    pub(super) rate: f64,
    /// Whether the learning rate has fallen at the step of a decision.
    pub(super) fell: bool,
    pub(super) decision: Option<Decision>,
    pub(super) time: TimeModel,
    /// Of a controller that measures seconds.
    pub(super) meter: Option<Meter>,
    /// Whether the caller has decided what is due.
    pub(super) given: bool,
    /// What the measuring rank has to tell.
    pub(super) result: Option<PlanResult>,
}

/// What a step begins with.
pub(super) enum Turn {
    Nothing,
    /// The measuring rank tells what it has decided.
    Broadcast,
    /// All ranks know what to do.
    Known(Decided),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Idle,
    /// A decision is due.
    Begun,
    Open,
}

/// New settings, from this step on, the same on every rank.
///
/// ```
/// use lgreco_train::controller::Adopted;
/// let saves = |adopted: &Adopted| adopted.decision.pays() == Some(true);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    /// What was decided.
    pub decision: Decision,
    /// By layer.
    pub settings: Vec<Setting>,
    /// By layer, why it is sent uncompressed, if it is.
    pub uncompressed: Vec<Option<Uncompressed>>,
}

impl Planner {
    /// For a model whose layers are `tensors`, on rank `rank` of `world_size`. All ranks give the same configuration and
    /// layers; of the configuration, `feedback` is what the trainer remembers under each setting, and what is about the
    /// exchange is not looked at.
    ///
    /// # Errors
    /// Those of [`Controller::new`](super::Controller::new); [`CoreError::Parameter`] for
    /// [`Objective::MeasuredSeconds`].
    ///
    /// # Complexity
    /// O(n log n) in the layers. Allocates, on the measuring rank, an f32 per element of the model.
    pub fn new(config: Config, tensors: Vec<Tensor>, rank: u32, world_size: u32) -> Result<Planner, Error> {
        if config.measures_seconds() {
            let (what, expected) = ("exchanges that a planner can measure", "another objective than measured seconds");
            return Err(Error::Core(CoreError::Parameter { what, value: 0.0, expected }));
        }
        Planner::made(config, tensors, rank, world_size)
    }

    /// [`new`](Planner::new), also for a controller.
    pub(super) fn made(mut config: Config, tensors: Vec<Tensor>, rank: u32, world_size: u32) -> Result<Planner, Error> {
        config.check(&tensors, world_size)?;
        config.search.workers = config.search.workers.or(NonZero::new(world_size));
        expect_distinct(tensors.iter().map(|tensor| &*tensor.name))?;
        let adapts = config.policy != Policy::Uncompressed;
        let measures = adapts && rank == config.measuring_rank;
        let groups = Groups::new(&tensors, config.bucket_bytes);
        Ok(Planner {
            rank,
            world: world_size,
            identity: identity(&config, &tensors, world_size),
            stage: Stage::Idle,
            step: 0,
            due: adapts.then_some(config.schedule.warmup),
            window: if measures { Window::new(&tensors) } else { Window::default() },
            watches: false,
            norms: vec![],
            highest: Highest::default(),
            rate: 0.0,
            fell: false,
            decision: None,
            time: TimeModel::new(groups.ranges.len()),
            meter: config.measures_seconds().then(|| Meter::new(vec![Setting::Dense; tensors.len()])),
            given: false,
            result: None,
            groups: Arc::new(groups),
            tensors: tensors.into(),
            config: Arc::new(config),
        })
    }

    /// The last decision; `None` before the first.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Steps taken; the number of the next one, or of the one under way.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Adds a sample to the [`TimeModel`], as [`Controller::record_sync`](super::Controller::record_sync) does.
    ///
    /// # Errors
    /// Those of [`TimeModel::record`].
    pub fn record_sync(&mut self, bytes: &[u64], seconds: f64) -> Result<(), Error> {
        self.time.record(bytes, seconds)
    }

    /// Begins a step. All ranks do, with the same `learning_rate`; only Accordion looks at it, and after a fall the
    /// settings that it returns are those of this step, as after [`set_settings`](Planner::set_settings).
    ///
    /// # Errors
    /// [`Error::StepOrder`] when a step is under way; [`CoreError::Parameter`] for a learning rate that is not finite or
    /// negative.
    pub fn begin_step(&mut self, learning_rate: f64) -> Result<Option<Adopted>, Error> {
        self.expect(Stage::Idle)?;
        check_rate(learning_rate)?;
        match self.next(learning_rate)? {
            Turn::Broadcast => {
                self.stage = Stage::Begun;
                Ok(None)
            }
            Turn::Known(decided) => {
                let adopted = self.adopted(decided);
                self.open(false);
                Ok(Some(adopted))
            }
            Turn::Nothing => {
                self.open(false);
                Ok(None)
            }
        }
    }

    /// Whether this step begins with a broadcast of the measuring rank's [`message`](Planner::message); the same on every
    /// rank.
    pub fn is_due(&self) -> bool {
        self.due.is_some_and(|due| self.step >= due)
    }

    /// What the measuring rank broadcasts: what it has decided, the code of the error that it has met, or that it has not
    /// decided yet. On other ranks as many bytes, for what they receive.
    ///
    /// # Complexity
    /// 16 bytes per layer.
    pub fn message(&self) -> Vec<u8> {
        bytemuck::cast_slice(&self.words()).to_vec()
    }

    /// Takes what the measuring rank has broadcast; the settings of this step if they are new, `None` if nothing has been
    /// decided yet: then the next step is asked.
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step has begun in which a decision is due. What the measuring rank has met: there the
    /// error itself, elsewhere [`Error::Peer`]. [`Error::PeerPlan`] when it has another configuration, model, step or
    /// learning rate than this rank; [`Error::PeerMessage`], [`CoreError::Length`] when it is no message. The step may
    /// then be begun again, and the measuring rank may take the task again.
    pub fn adopt(&mut self, message: &[u8]) -> Result<Option<Adopted>, Error> {
        self.expect(Stage::Begun)?;
        self.stage = Stage::Idle;
        expect_len("bytes of the decision's message", 8 * message::words(self.tensors.len()), message.len())?;
        let words: Vec<u64> = message.as_chunks().0.iter().map(|&bytes| u64::from_ne_bytes(bytes)).collect();
        let decided = match self.read(&words)? {
            Some(decided) => Some(decided),
            None => self.undecided()?,
        };
        let adopted = decided.map(|decided| self.adopted(decided));
        self.open(false);
        Ok(adopted)
    }

    /// Whether gradients of this step are to be observed, on this rank.
    pub fn watches(&self) -> bool {
        self.watches && self.measures()
    }

    /// Takes note of layer `layer`'s own, uncompressed gradient, once in a step; does nothing where none is
    /// [asked for](Planner::watches). A layer that is not observed in a step counts as it did on average before.
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step is under way and no decision is due in it that has not been adopted;
    /// [`Error::LayerMismatch`] when there is no such layer, or it has another type or number of elements.
    /// [`Error::NonFiniteGradient`] for NaN and infinity: the window then begins anew with the next step.
    pub fn observe(&mut self, layer: usize, gradient: Values<'_>) -> Result<(), Error> {
        self.expect(Stage::Open)?;
        self.expect_layer(layer)?;
        let tensor = &self.tensors[layer];
        check_layer(layer, tensor.shape, tensor.dtype, gradient)?;
        if self.watches() {
            if let Err(CoreError::NonFinite { index, value }) = with_elements!(gradient, v => check_finite(v)) {
                self.forget();
                return Err(Error::NonFiniteGradient { layer, index, value });
            }
            let steps = self.window.steps;
            window::add(&mut self.window.means_mut()[layer], gradient, steps);
        }
        Ok(())
    }

    /// Takes note that layer `layer`'s own, uncompressed gradient of this step is kept elsewhere, on a device say, as the mean of the
    /// window that [`observe`](Planner::observe) would make of it; does nothing where none is [asked for](Planner::watches). The
    /// next task then needs [`PlanTask::run_with`], and until it has been run no decision is made: also without a
    /// [lead](super::Schedule::lead) it is there to be taken. What is [observed](Planner::observe) here of that layer in other steps of the
    /// window is not looked at.
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step is under way and no decision is due in it that has not been adopted;
    /// [`Error::LayerMismatch`] when there is no such layer.
    pub fn note_observed(&mut self, layer: usize) -> Result<(), Error> {
        self.expect(Stage::Open)?;
        self.expect_layer(layer)?;
        if self.watches() {
            self.window.note_elsewhere(layer);
        }
        Ok(())
    }

    /// Between two steps: takes a layer's mean of the window's steps so far, in f32, which was [kept elsewhere](Planner::note_observed),
    /// for a saved state, or because the device can no longer measure it. From then on it is here, unless it is observed elsewhere
    /// again; a task that is out is not told. Does nothing on other ranks than the measuring one.
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way; [`Error::LayerMismatch`] when there is no such layer,
    /// [`CoreError::Length`] unless there is one value per element.
    ///
    /// # Complexity
    /// A copy.
    pub fn set_observed(&mut self, layer: usize, mean: &[f32]) -> Result<(), Error> {
        self.expect(Stage::Idle)?;
        self.expect_layer(layer)?;
        expect_len("values of a window's mean", self.tensors[layer].shape.elements(), mean.len())?;
        if self.measures() {
            self.window.bring(layer, mean);
        }
        Ok(())
    }

    fn expect_layer(&self, layer: usize) -> Result<(), Error> {
        let layers = self.tensors.len();
        let missing = Error::LayerMismatch { layer, what: "layers", expected: layers, found: layer };
        self.tensors.get(layer).map(drop).ok_or(missing)
    }

    /// Other settings for a fixed policy, as [`Controller::set_settings`](super::Controller::set_settings) gives them; the
    /// next [`begin_step`](Planner::begin_step) returns them.
    ///
    /// # Errors
    /// Those of [`Controller::set_settings`](super::Controller::set_settings).
    pub fn set_settings(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        self.expect(Stage::Idle)?;
        self.fix(settings)
    }

    /// Ends the step.
    ///
    /// # Errors
    /// As [`observe`](Planner::observe).
    pub fn end_step(&mut self) -> Result<(), Error> {
        self.expect(Stage::Open)?;
        self.close();
        Ok(())
    }

    /// The work of the next decision, once, when all of its gradients have been seen: between the end of a step and the
    /// decision's message. On other ranks than the measuring one there is none.
    pub fn take_task(&mut self) -> Option<PlanTask> {
        let due = self.due.filter(|due| self.step.saturating_add(self.config.schedule.lead) >= *due)?;
        if self.watches || self.window.steps == 0 || !self.measures() {
            return None;
        }
        let means = self.window.share()?;
        let meter = self.meter.as_mut();
        let costs = meter.and_then(|meter| meter.costs(due, &self.config, &self.tensors, self.world));
        Some(PlanTask {
            means,
            costs,
            elsewhere: self.window.elsewhere(),
            config: self.config.clone(),
            tensors: self.tensors.clone(),
            groups: self.groups.clone(),
            step: due.max(self.step),
            norms: self.norms.clone(),
            // Without a lead it is this step's rate that counts, which may have been given before it was looked at.
            fell: if self.config.schedule.lead == 0 { self.falls(self.rate) } else { self.fell },
            time: match self.config.objective {
                Objective::Bits | Objective::MeasuredSeconds => TimeModel::new(0),
                Objective::Seconds(_) => self.time.clone(),
            },
        })
    }

    /// Takes what became of a task, to be told to all ranks when the decision is due; whether anybody still waits for it.
    /// Nobody does when a saved state has been loaded since, or the learning rate has fallen instead.
    pub fn hand_in(&mut self, result: PlanResult) -> bool {
        let awaited = self.window.is_of(&result.means);
        if awaited {
            if let Some(meter) = &mut self.meter {
                result.trials.iter().for_each(|trial| meter.compute.try_out(trial.family, trial.work, trial.seconds));
            }
            self.result = Some(result);
        }
        awaited
    }

    fn expect(&self, stage: Stage) -> Result<(), Error> {
        if self.stage == stage {
            return Ok(());
        }
        Err(match self.stage {
            Stage::Idle => Error::StepOrder { what: "no step is under way", expected: "one that has begun" },
            Stage::Begun => Error::StepOrder { what: "a decision is due", expected: "its message" },
            Stage::Open => Error::StepOrder { what: "a step is under way", expected: "its end" },
        })
    }
}

pub(super) fn check_rate(learning_rate: f64) -> Result<(), Error> {
    if learning_rate.is_finite() && learning_rate >= 0.0 {
        return Ok(());
    }
    Err(Error::Core(CoreError::Parameter {
        what: "learning rate",
        value: learning_rate,
        expected: "a finite number >= 0",
    }))
}
