//! One worker's end of the training loop.

use super::accordion::Highest;
use super::agreement::{self, agree};
use super::buckets::{Buckets, Moment, workspace};
use super::codes::Choice;
use super::decide::{Answer, Question, refused, suited, uniform};
use super::layer::{LayerState, Switch};
use super::window::Window;
use super::{
    Cause, Config, Decision, Feedback, NonFinite, Outcome, Policy, Report, Seconds, Tensor, TimeModel, decision,
};
use crate::backend::{Backend, Portable};
use crate::checksum::Hash;
use crate::compress::{Setting, check_finite};
use crate::error::{expect_distinct, expect_len};
use crate::exchange::{Collective, Place};
use crate::feedback::Residual;
use crate::gradient::{Gradient, ValuesMut};
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// What ranks ask each other before a step: whether a gradient is not finite, whether the measuring rank could decide.
const BROKEN: u64 = 1;
const MEASURABLE: u64 = 2;

/// One worker's end of the training loop: decides when and how hard to compress, compresses, exchanges, and remembers.
///
/// See the [module](crate::controller) for the order of a step and an example that trains.
///
/// ```
/// # use lgreco_train::{search::Method, testing::controller::alone};
/// # let (controller, _) = alone(Method::TopK)?;
/// assert_eq!((controller.steps(), controller.decision()), (0, None));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Controller {
    pub(super) config: Config,
    pub(super) tensors: Vec<Tensor>,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) states: Vec<LayerState>,
    pub(super) step: u64,
    /// The step of the next decision.
    pub(super) due: Option<u64>,
    pub(super) window: Window,
    /// The measuring rank's gradient norms at the last decision; empty before.
    pub(super) norms: Vec<f64>,
    pub(super) learning_rate: Highest,
    pub(super) decision: Option<Decision>,
    pub(super) time: TimeModel,
    /// Steps in which some rank's gradient was not finite.
    pub(super) non_finite: u64,
    /// An error of this rank alone that the others have not been told yet.
    pub(super) late: Option<Error>,
    pub(super) buckets: Buckets,
    /// Room for agreements.
    words: Vec<u64>,
    /// Of the configuration and the model.
    identity: u64,
    /// Of the settings.
    plan: u64,
    backend: Box<dyn Backend + Send>,
}

impl Controller {
    /// A controller for a model whose layers are `tensors`, at `collective`'s rank. All ranks must give the same
    /// configuration and layers; the first step finds out if layers, schedules, seeds, routes, feedback or what is to be
    /// done with [`NonFinite`] gradients differ. What the measuring rank alone acts upon is not compared.
    ///
    /// ```
    /// # use lgreco_train::{controller::{Config, Controller, Tensor}, exchange::threads::ThreadCollective, gradient::Dtype};
    /// # use lgreco_train::search::{Method, Search};
    /// # let worker = ThreadCollective::group(1).remove(0);
    /// let tensors = vec![Tensor::new("weight", &[64, 64], Dtype::F32)?];
    /// let mut config = Config::new(Search::new(Method::PowerSgd));
    /// config.schedule.warmup = 1;
    /// let refused = Controller::new(config, tensors, &worker).err().unwrap();
    /// assert_eq!(refused.to_string(), "warm-up is 1, expected at least 2 steps");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Parameter`], [`CoreError::Length`] for what makes no sense in the configuration;
    /// [`CoreError::DuplicateName`]; [`CoreError::OutOfMemory`].
    ///
    /// # Complexity
    /// O(n log n) in the layers. Allocates three f32 per element of the largest bucket, on the measuring rank one more per
    /// element of the model, and what uncompressed exchanges need.
    pub fn new<C: Collective + ?Sized>(config: Config, tensors: Vec<Tensor>, collective: &C) -> Result<Self, Error> {
        let Place { rank, world } = Place::of(collective)?;
        config.check(&tensors, world)?;
        expect_distinct(tensors.iter().map(|tensor| &*tensor.name))?;
        let adapts = config.policy != Policy::Uncompressed;
        let measures = adapts && rank == config.measuring_rank;
        let means = tensors.iter().filter(|_| measures).map(|tensor| vec![0.0; tensor.shape.elements()]).collect();
        let mut buckets = Buckets::new(&tensors, config.bucket_bytes);
        buckets.resize(workspace(buckets.workspace_len(&tensors, |_| Setting::Dense, config.route, world)?)?);
        let mut controller = Controller {
            rank,
            world,
            states: tensors.iter().map(|_| LayerState::new(&config.policy)).collect(),
            step: 0,
            due: adapts.then_some(config.schedule.warmup),
            window: Window { steps: 0, means },
            norms: vec![],
            learning_rate: Highest::default(),
            decision: None,
            time: TimeModel::new(buckets.len()),
            non_finite: 0,
            late: None,
            buckets,
            words: vec![0; agreement::words(world as usize)],
            identity: identity(&config, &tensors, world),
            plan: 0,
            backend: Box::new(Portable),
            config,
            tensors,
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
    /// let controller = Controller::new(config, tensors, &worker)?.with_backend(Box::new(Portable));
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
    /// # use lgreco_train::{search::Method, testing::controller::{alone, step_alone}};
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
    /// [`CoreError::Parameter`] for a learning rate that is not finite or negative, and when rank or number of workers
    /// changed; [`Error::PeerPlan`] when ranks differ in configuration, layers, settings, step or learning rate; those
    /// of search and planner when a decision fails.
    ///
    /// In the middle of the exchange: [`CoreError::Overflow`], [`CoreError::ElementOverflow`], [`Error::PeerMessage`].
    /// The step is then over, all of its gradients are of no use, and the residuals of the buckets exchanged before
    /// have taken note of it; the next step works. [`CoreError::Overflow`] of a residual alone is told by the next
    /// step, which then may be repeated. After [`Error::Collective`] ranks may differ: restore a saved state.
    ///
    /// # Complexity
    /// A pass over the gradients, the exchange, and up to three passes for a residual. Allocates at decisions only.
    pub fn step<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
        learning_rate: f64,
    ) -> Result<Report, Error> {
        if (collective.rank(), collective.world_size()) != (self.rank, self.world) {
            let value = collective.rank() as f64;
            return Err(Error::Core(CoreError::Parameter {
                what: "rank",
                value,
                expected: "that of the controller, of as many workers",
            }));
        }
        let start = self.now();
        let local = self.late.take().map_or(Ok(()), Err).and_then(|()| self.check(gradients, learning_rate));
        let local = local.and_then(|()| match (first_non_finite(gradients), self.config.non_finite) {
            (Some(error), NonFinite::Error) => Err(error),
            (found, _) => Ok(found.map_or(0, |_| BROKEN) | if self.measurable() { MEASURABLE } else { 0 }),
        });
        let answers = match agree(collective, local, self.fingerprint(learning_rate), &mut self.words) {
            Err(error @ (Error::NonFiniteGradient { .. } | Error::Peer { code: Error::NON_FINITE_GRADIENT, .. })) => {
                self.non_finite += 1;
                return Err(error);
            }
            answers => answers?,
        };
        let broken = answers & BROKEN != 0;
        let switched = self.adapt(collective, learning_rate, answers & MEASURABLE != 0)?;
        let planned = self.now();

        let step = self.step;
        self.step += 1;
        let bytes_in = self.tensors.iter().map(Tensor::bytes).sum();
        let mut report = Report { step, outcome: Outcome::Exchanged, switched, bytes_in, bytes_out: 0, seconds: None };
        if !broken {
            if self.due.is_some_and(|due| step.saturating_add(self.config.schedule.window) >= due) {
                self.window.add(gradients);
            }
            report.bytes_out = self.exchange(collective, gradients, step)?;
        } else {
            self.non_finite += 1;
            self.without_compression(collective, gradients, &mut report)?;
        }
        if let (Some(start), Some(planned), Some(end)) = (start, planned, self.now()) {
            report.seconds = Some(Seconds { planning: planned - start, exchange: end - planned });
        }
        Ok(report)
    }

    /// Whether this rank decides for all, and has seen a gradient to decide by.
    fn measurable(&self) -> bool {
        self.rank == self.config.measuring_rank && self.window.steps > 0
    }

    fn now(&self) -> Option<f64> {
        self.config.clock.map(|clock| clock())
    }

    fn check(&self, gradients: &[ValuesMut<'_>], learning_rate: f64) -> Result<(), Error> {
        expect_len("gradients, one per layer", self.tensors.len(), gradients.len())?;
        for (layer, (tensor, gradient)) in self.tensors.iter().zip(gradients).enumerate() {
            let (values, mismatch) =
                (gradient.values(), |what, expected, found| Err(Error::LayerMismatch { layer, what, expected, found }));
            if values.dtype() != tensor.dtype {
                return mismatch("the code of the element type", tensor.dtype as usize, values.dtype() as usize);
            }
            if values.len() != tensor.shape.elements() {
                return mismatch("the number of values", tensor.shape.elements(), values.len());
            }
        }
        if !(learning_rate.is_finite() && learning_rate >= 0.0) {
            let expected = "a finite number >= 0";
            return Err(Error::Core(CoreError::Parameter { what: "learning rate", value: learning_rate, expected }));
        }
        Ok(())
    }

    /// What all ranks must agree on at this step.
    fn fingerprint(&self, learning_rate: f64) -> u64 {
        let rate = if self.config.accordion().is_some() { learning_rate } else { 0.0 };
        let schedule = [self.step, self.due.unwrap_or(u64::MAX)];
        [self.plan, rate.to_bits()].into_iter().chain(schedule).fold(Hash(self.identity), Hash::add).0
    }

    fn plan_hash(&self) -> u64 {
        let words = self.states.iter().flat_map(|state| state.choice.encode());
        words.fold(Hash::START, Hash::add).0
    }

    /// Decides if it is time to and the measuring rank can, and switches.
    fn adapt<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        learning_rate: f64,
        measurable: bool,
    ) -> Result<bool, Error> {
        let mut highest = self.learning_rate;
        let accordion = self.config.accordion().filter(|_| self.step >= self.config.schedule.warmup);
        let fell = accordion.is_some_and(|accordion| highest.falls(&accordion, learning_rate));
        let due = measurable && self.due.is_some_and(|due| self.step >= due);
        let Answer { decision, choices, norms } = if due {
            self.decide(collective, fell)?
        } else if let (true, Some(accordion)) = (fell, accordion) {
            let low = vec![accordion.low; self.tensors.len()];
            let choices = uniform(&self.config, &self.tensors, Some(&low))?.into_iter().zip(&self.tensors);
            let choices: Vec<_> = choices.map(|(choice, tensor)| suited(&self.config, tensor, choice)).collect();
            let mut decision = Decision::without_plan(self.step, Cause::LearningRate);
            decision.not_contractive = refused(&choices);
            Answer { decision, choices, norms: vec![] }
        } else {
            self.learning_rate = highest;
            return Ok(false);
        };
        self.switch(collective, &choices)?;
        self.decision = Some(decision);
        self.learning_rate = Highest(learning_rate);
        if due {
            self.due = self.config.next_decision(self.step);
            self.window.clear();
            self.norms = norms;
        }
        Ok(true)
    }

    /// Measures and plans on one rank, for all.
    fn decide<C: Collective + ?Sized>(&mut self, collective: &mut C, fell: bool) -> Result<Answer, Error> {
        let root = self.config.measuring_rank;
        let answer = if self.rank == root {
            let question = Question {
                config: &self.config,
                tensors: &self.tensors,
                step: self.step,
                window: &self.window,
                norms: &self.norms,
                fell,
                time: &self.time,
                bucket_of: &self.buckets.of,
                backend: &mut *self.backend,
            };
            question.answer()
        } else {
            Err(Error::Peer { rank: root, code: 0 })
        };
        let mut words = decision::message(self.tensors.len(), answer.as_ref());
        words.iter_mut().for_each(|word| *word = word.to_le());
        collective.broadcast(root, bytemuck::cast_slice_mut(&mut words))?;
        words.iter_mut().for_each(|word| *word = u64::from_le(*word));
        if self.rank == root { answer } else { decision::read(root, &words) }
    }

    /// Gives every layer its new setting, on all ranks or on none.
    fn switch<C: Collective + ?Sized>(&mut self, collective: &mut C, choices: &[Choice]) -> Result<(), Error> {
        let prepared = self.prepare(&self.states, choices, self.step);
        let ready = prepared.as_ref().map(|_| 0).map_err(|error| *error);
        agree(collective, ready, self.step, &mut self.words)?;
        let (switches, room) = prepared?;
        self.states.iter_mut().zip(switches).for_each(|(state, switch)| state.commit(switch));
        self.buckets.resize(room);
        self.plan = self.plan_hash();
        Ok(())
    }

    /// What giving `states` the settings `choices` at `step` needs: the parts that change, and the workspace.
    pub(super) fn prepare(
        &self,
        states: &[LayerState],
        choices: &[Choice],
        step: u64,
    ) -> Result<(Vec<Switch>, Vec<u64>), Error> {
        let layers = states.iter().zip(&self.tensors).zip(choices).enumerate();
        let switches = layers.map(|(layer, ((state, tensor), &choice))| {
            let (seed, step) = (self.config.search.seed, step as u32);
            state.prepare(choice, &self.config, tensor, Stream { seed, step, layer: layer as u32, rank: self.rank })
        });
        let switches = switches.collect::<Result<Vec<_>, _>>()?;
        let setting = |layer: usize| choices[layer].setting;
        let words = self.buckets.workspace_len(&self.tensors, setting, self.config.route, self.world)?;
        Ok((switches, workspace(words)?))
    }

    /// Takes over layers that were loaded.
    pub(super) fn install(&mut self, states: Vec<LayerState>, room: Vec<u64>) {
        self.states = states;
        self.buckets.resize(room);
        self.plan = self.plan_hash();
    }

    fn exchange<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
        step: u64,
    ) -> Result<u64, Error> {
        let moment = Moment {
            route: self.config.route,
            seed: self.config.search.seed,
            step: step as u32,
            rank: self.rank,
            measured: self.config.metrics_every > 0 && step.is_multiple_of(self.config.metrics_every),
        };
        let mut bytes = 0;
        for bucket in 0..self.buckets.len() {
            let start = self.now();
            let (tensors, states) = (&self.tensors, &mut self.states);
            bytes += self.buckets.exchange(bucket, collective, tensors, states, gradients, moment, &mut self.late)?;
            if let (Some(start), Some(end)) = (start, self.now()) {
                let states = &mut self.states[self.buckets.layers(bucket)];
                states.iter_mut().for_each(|state| *state.bucket_seconds.get_or_insert(0.0) += end - start);
            }
        }
        Ok(bytes)
    }

    /// A step in which some rank's gradient is not finite.
    fn without_compression<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
        report: &mut Report,
    ) -> Result<(), Error> {
        if self.config.non_finite == NonFinite::PassThrough {
            (report.outcome, report.bytes_out) = (Outcome::PassedThrough, report.bytes_in);
            return (0..self.buckets.len()).try_for_each(|bucket| self.buckets.pass(bucket, collective, gradients));
        }
        report.outcome = Outcome::Skipped;
        gradients.iter_mut().for_each(|gradient| gradient.write(core::iter::repeat(0.0)));
        Ok(())
    }
}

fn first_non_finite(gradients: &[ValuesMut<'_>]) -> Option<Error> {
    gradients.iter().enumerate().find_map(|(layer, gradient)| {
        let column = crate::gradient::Shape::new(gradient.values().len(), 1)
            .and_then(|shape| Gradient::new(gradient.values(), shape));
        match column.and_then(|gradient| check_finite(&gradient)) {
            Err(CoreError::NonFinite { index, value }) => Some(Error::NonFiniteGradient { layer, index, value }),
            _ => None,
        }
    })
}

/// What must be the same on all ranks from the beginning.
fn identity(config: &Config, tensors: &[Tensor], world: u32) -> u64 {
    let schedule = config.schedule;
    let numbers = [schedule.warmup, schedule.period, schedule.window, config.search.seed, config.bucket_bytes as u64];
    let kinds = [world as u64, config.route as u64, config.non_finite as u64, config.measuring_rank as u64];
    let tensors = tensors.iter().flat_map(|tensor| {
        let name = tensor.name.bytes().map(u64::from);
        name.chain([tensor.shape.rows() as u64, tensor.shape.cols() as u64, tensor.dtype as u64])
    });
    let levels = config.accordion().map_or([0; 2], |accordion| [accordion.low, accordion.drop].map(f64::to_bits));
    let Feedback { qsgd, loco, others } = config.feedback;
    let residual = |Residual { gain, reset_every, storage }: Residual| {
        [1 + storage as u64, gain.to_bits() as u64, reset_every as u64]
    };
    let feedback = [qsgd, loco, others].into_iter().flat_map(|rule| rule.map_or([0; 3], residual));
    let words = numbers.into_iter().chain(kinds).chain(levels).chain(feedback).chain(tensors);
    words.fold(Hash::START, Hash::add).0
}
