//! Runs arbitrary sequences of controller calls on threads. Checks that all ranks have the same bits, that no gradient
//! mass is lost, and that nothing panics.

use crate::reseal;
use core::cell::Cell;
use lgreco_train::backend::Portable;
use lgreco_train::compress::Setting;
use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::clt::CltK;
use lgreco_train::compress::eden::{self, Eden};
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::powersgd::PowerSgd;
use lgreco_train::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::sidco::{Fit, Sidco};
use lgreco_train::compress::topk::TopK;
use lgreco_train::controller::{
    Accordion, Budget, Config, Controller, Feedback, Legacy, NonFinite, Objective, Outcome, PlanTask, Policy, RampUp,
    Report, Schedule, Tensor,
};
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::exchange::{Collective, Route};
use lgreco_train::feedback::Residual;
use lgreco_train::gradient::{Bf16, Dtype, Element, ValuesMut};
use lgreco_train::plan::{Solver, exact::Limits};
use lgreco_train::rng::Stream;
use lgreco_train::search::{Method, Search};
use lgreco_train::{CoreError, Error};

/// A run of a small model, made from arbitrary bytes.
#[derive(Clone, Debug)]
pub struct Script {
    /// Number of workers, 1 to 3.
    pub world: u32,
    /// The configuration.
    pub config: Config,
    /// What happens in each step.
    pub events: Vec<Event>,
}

/// One step of a [`Script`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Gradients of this scale, a power of two.
    Step(f32),
    /// Like `Step(1.0)`, but one rank has a value that is NaN or infinite.
    NonFinite(u32, f32),
    /// Like `Step(1.0)`, but one rank's gradients have another shape.
    Misshaped(u32),
    /// Like `Step(1.0)`, at half the learning rate of the previous step.
    SlowDown,
    /// All ranks stop, and new ranks continue from the saved states.
    Restart,
    /// Like `Step(1.0)`. If the next decision has a task before this step, the task is dropped, run or kept.
    Plan(Planning),
}

/// What happens to the task of a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Planning {
    /// The task is dropped, so the step makes the plan itself.
    Dropped,
    /// The task is run and its result handed in, even if the decision no longer needs it.
    Run,
    /// The task is kept, so the decision is late.
    Kept,
}

/// Observations of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// The result of each step, or the code of its error.
    pub steps: Vec<Result<Taken, u32>>,
    /// Means minus gradients by element, summed over the exchanged steps.
    pub balance: Vec<f64>,
    /// The residuals at the end.
    pub residual: Vec<f32>,
    /// For each layer, a bound on the rounding error of any element.
    pub rounding: Vec<f64>,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The outcome of the exchange.
    pub outcome: Outcome,
    /// The settings, as text.
    pub settings: Vec<String>,
    /// The bits of the means.
    pub means: Vec<u32>,
}

/// One setting of every compressor, for layers of at least three elements.
pub const SETTINGS: [Setting; 11] = [
    Setting::Dense,
    Setting::Qsgd(Qsgd { bits: 4, bucket: 16, scale: Scale::MaxNorm, rounding: Rounding::Stochastic }),
    Setting::TopK(TopK { keep: 3, values: Dtype::F32 }),
    Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 }),
    Setting::CltK(CltK { keep: 3 }),
    Setting::HardThreshold(HardThreshold { lambda: 0.75, values: Dtype::F32 }),
    Setting::Sidco(Sidco { density: 0.1, fit: Fit::Pareto, stages: 2, values: Dtype::F32 }),
    Setting::AdaComp(AdaComp { bin: 16 }),
    Setting::LoCo(LoCo { group: 32 }),
    Setting::QuantisedTopK(QuantisedTopK { keep: 3, bits: 3 }),
    Setting::Eden(Eden { bits: 2, scale: eden::Scale::Unbiased }),
];

/// The layers of the small model: matrices, a bias, a 16-bit tensor and an empty one.
///
/// # Panics
/// Never.
pub fn model() -> Vec<Tensor> {
    let layers: [(&str, &[usize], Dtype); 5] = [
        ("embedding", &[12, 10], Dtype::F32),
        ("bias", &[20], Dtype::F32),
        ("head", &[6, 2, 4], Dtype::F32),
        ("half", &[8, 9], Dtype::Bf16),
        ("none", &[0, 3], Dtype::F32),
    ];
    layers.map(|(name, dims, dtype)| Tensor::new(name, dims, dtype).expect("a small tensor")).into()
}

/// A controller that is alone in its group, for a matrix `weight` and a `bias`. The controller has two steps of
/// warm-up, then a decision every three steps. Examples in the documentation use this controller.
///
/// # Errors
/// Returns the errors of [`Controller::new`].
pub fn alone(method: Method) -> Result<(Controller, ThreadCollective), Error> {
    alone_on(method, Schedule { warmup: 2, period: 3, window: 2, lead: 0 })
}

fn alone_on(method: Method, schedule: Schedule) -> Result<(Controller, ThreadCollective), Error> {
    let worker = ThreadCollective::group(1).remove(0);
    let config = Config { schedule, undo: true, ..Config::new(Search::new(method)) };
    let layers = vec![Tensor::new("weight", &[64, 64], Dtype::F32)?, Tensor::new("bias", &[64], Dtype::F32)?];
    Ok((Controller::new(config, layers, worker.rank(), worker.world_size())?, worker))
}

/// Like [`alone`], with three steps of warm-up, a window of one step and a
/// [`lead`](lgreco_train::controller::Schedule::lead).
///
/// # Errors
/// Returns the errors of [`Controller::new`].
pub fn alone_with_lead(method: Method, lead: u64) -> Result<(Controller, ThreadCollective), Error> {
    alone_on(method, Schedule { warmup: 3, period: 3, window: 1, lead })
}

/// A step of [`alone`] on generated gradients.
///
/// # Errors
/// Returns the errors of [`Controller::step`].
pub fn step_alone(controller: &mut Controller, worker: &mut ThreadCollective) -> Result<Report, Error> {
    let mut gradients = [4096, 64].map(|len| uniform(0, controller.steps() as u32, 0, len, 1.0));
    controller.step(worker, &mut gradients.each_mut().map(|gradient| ValuesMut::F32(gradient)), 0.1)
}

std::thread_local! {
    static READINGS: Cell<u32> = const { Cell::new(0) };
}

/// A clock that advances by a microsecond at every reading by this thread.
fn clock() -> f64 {
    READINGS.set(READINGS.get() + 1);
    1e-6 * f64::from(READINGS.get())
}

impl Script {
    /// Makes a script from arbitrary bytes.
    pub fn from_bytes(bytes: &[u8]) -> Script {
        let (&first, rest) = bytes.split_first().unwrap_or((&0, &[]));
        Script::of_workers(1 + first as u32 % 3, rest)
    }

    fn of_workers(world: u32, bytes: &[u8]) -> Script {
        let mut bytes = bytes.iter().copied();
        let mut next = || bytes.next().unwrap_or(0) as u32;
        let method = Method::COMPARED[next() as usize % 5];
        let mut search = Search::new(method);
        search.min_elements = 16;
        search.seed = next() as u64;
        let (low, high) = match method {
            Method::TopK => (0.05, 0.005),
            Method::Eden | Method::Hybrid => (6.0, 3.0),
            _ => (8.0, 4.0),
        };
        let accordion = Accordion::new(low, high);
        // The solver needs few states for a few layers. Clearing the workspace for the default number of states would
        // take longer than everything else.
        let solver = Solver::Exact(Limits { states: 1 << 8 });
        let mut config = Config::new(search);
        let policy = next();
        // The default settings meet both budgets.
        config.budget = [Budget::Error, Budget::Size][policy as usize / 9 % 2];
        config.policy = match policy % 9 {
            0 => Policy::Uncompressed,
            1 => Policy::Uniform,
            2 => Policy::Fixed(
                model()
                    .iter()
                    .map(|tensor| match tensor.shape().elements() {
                        0 => Setting::Dense,
                        _ => SETTINGS[next() as usize % SETTINGS.len()],
                    })
                    .collect(),
            ),
            3 => Policy::KMeans { clusters: 2 },
            4 => Policy::Accordion(accordion),
            5 => Policy::LGreco { solver, accordion: None },
            6 => Policy::LGreco { solver: Solver::Dp { levels: 100 }, accordion: None },
            7 => Policy::Legacy(Legacy { sizes: vec![300], levels: vec![vec![low, high], vec![high, low]], steps: 6 }),
            _ => Policy::LGreco { solver, accordion: Some(accordion) },
        };
        let by_default =
            matches!(config.policy, Policy::Uniform | Policy::KMeans { .. } | Policy::LGreco { accordion: None, .. });
        config.ramp_up = (by_default && next() % 2 == 0).then_some(RampUp { first: low, steps: 5 });
        config.schedule.warmup = 2 + next() as u64 % 2;
        config.schedule.period = 1 + next() as u64 % 4;
        config.schedule.window = 1 + next() as u64 % 3;
        config.schedule.lead = next() as u64 % config.schedule.warmup.min(config.schedule.period);
        config.feedback = Feedback::always(Residual::CLASSIC);
        config.bucket_bytes = [0, 400, 1 << 20][next() as usize % 3];
        config.route = [Route::AllGather, Route::ScatterReduce, Route::Sharded][next() as usize % 3];
        config.non_finite = [NonFinite::Error, NonFinite::Skip, NonFinite::PassThrough][next() as usize % 3];
        config.measuring_rank = next() % world;
        config.metrics_every = next() as u64 % 3;
        if next() % 4 == 1 {
            (config.objective, config.clock) = (Objective::MeasuredSeconds, Some(clock as fn() -> f64));
        }
        let event = |byte: u8, scale: u8| match byte % 16 {
            0 => Event::NonFinite(scale as u32 % world, if scale.is_multiple_of(2) { f32::NAN } else { f32::INFINITY }),
            1 => Event::Misshaped(scale as u32 % world),
            2 => Event::SlowDown,
            3 | 4 => Event::Restart,
            5 => Event::Plan([Planning::Dropped, Planning::Run, Planning::Kept][scale as usize % 3]),
            _ => Event::Step(f32::from_bits((127 - 8 + (scale as u32) % 16) << 23)),
        };
        let rest: Vec<u8> = bytes.take(60).collect();
        let events = rest.as_chunks::<2>().0.iter().map(|&[kind, scale]| event(kind, scale)).collect();
        Script { world, config, events }
    }

    fn tensors(&self) -> Vec<Tensor> {
        if self.config.route == Route::Sharded { sharded(model(), self.world) } else { model() }
    }

    /// Runs the script on threads. Returns the observations of each rank.
    ///
    /// # Panics
    /// Panics if a saved state cannot be restored.
    pub fn run(&self) -> Vec<Log> {
        threads::run(self.world, |mut worker| self.rank(&mut worker))
    }

    fn rank(&self, worker: &mut ThreadCollective) -> Log {
        READINGS.set(0);
        let make = |worker: &ThreadCollective| {
            Controller::new(self.config.clone(), self.tensors(), worker.rank(), worker.world_size())
                .expect("a sound configuration")
        };
        let (mut controller, mut rate, mut kept) = (make(worker), 1.0, None);
        let sizes = || model().into_iter().map(|tensor| tensor.shape().elements());
        let mut log = Log { balance: vec![0.0; sizes().sum()], rounding: vec![0.0; sizes().count()], ..Log::default() };
        for (index, event) in self.events.iter().enumerate() {
            match event {
                Event::SlowDown => rate *= 0.5,
                Event::Restart => match controller.save() {
                    Ok(saved) => {
                        controller = make(worker);
                        let loaded = controller.load(&[&saved], &[&saved]).expect("what was saved");
                        assert!(loaded.missing.is_empty() && loaded.extra.is_empty() && loaded.misshaped.is_empty());
                        assert!(controller.save().as_ref() == Ok(&saved), "a state changes by being restored");
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::OfLayer { error: CoreError::Overflow { .. }, .. }), "{error}")
                    }
                },
                Event::Plan(planning) => {
                    let task: Option<PlanTask> = kept.take().or_else(|| controller.planning().take_task());
                    match planning {
                        Planning::Dropped => drop(task),
                        Planning::Run => drop(task.map(|task| controller.planning().hand_in(task.run(&mut Portable)))),
                        Planning::Kept => kept = task,
                    }
                }
                _ => {}
            }
            self.step(worker, &mut controller, *event, index as u32, rate, &mut log);
        }
        for (layer, size) in sizes().enumerate() {
            let mut values = vec![f32::NAN; size];
            controller.residual(layer, &mut values).expect("one place per element");
            log.residual.extend(values);
        }
        log
    }

    fn step(
        &self,
        worker: &mut ThreadCollective,
        controller: &mut Controller,
        event: Event,
        index: u32,
        rate: f64,
        log: &mut Log,
    ) {
        let scale = if let Event::Step(scale) = event { scale } else { 1.0 };
        let mut gradients = gradients(worker.rank(), index, scale);
        match event {
            Event::NonFinite(rank, value) if rank == worker.rank() => gradients.0[0][7] = value,
            Event::Misshaped(rank) if rank == worker.rank() => {
                gradients.0[2].pop();
            }
            _ => {}
        }
        let before = gradients.values();
        let norms: Vec<f64> = (0..controller.tensors().len())
            .map(|layer| controller.metrics(layer).residual_norm.unwrap_or(0.0))
            .collect();
        let result = controller.step(worker, &mut gradients.views(), rate);
        let mut after = gradients.values();
        let exchanged = matches!(result, Ok(Report { outcome: Outcome::Exchanged, .. }));
        if exchanged && self.config.route == Route::Sharded {
            for (values, tensor) in after.iter_mut().zip(controller.tensors()) {
                all_shards(worker, tensor, values);
            }
        }
        let settings = (0..norms.len()).map(|layer| format!("{}", controller.setting(layer)));
        log.steps.push(match result {
            Ok(report) => {
                let means = after.concat().iter().map(|x| x.to_bits()).collect();
                if report.outcome == Outcome::Exchanged {
                    let moved = after.concat().into_iter().zip(before.concat());
                    log.balance.iter_mut().zip(moved).for_each(|(sum, (to, from))| *sum += to as f64 - from as f64);
                    for (layer, rounding) in log.rounding.iter_mut().enumerate() {
                        let norm = |values: &[f32]| values.iter().map(|&x| x.abs() as f64).sum::<f64>();
                        let size = norm(&before[layer]) + norm(&after[layer]) + norms[layer];
                        *rounding += size * narrowing(controller.tensors()[layer].dtype());
                    }
                }
                Ok(Taken { outcome: report.outcome, settings: settings.collect(), means })
            }
            Err(error) => Err(match error {
                Error::Peer { code, .. } => code,
                error => error.code(),
            }),
        });
    }
}

/// Divides the tensors into shards of rows. The shards are as equal as possible, and the last rank has the largest.
pub fn sharded(tensors: Vec<Tensor>, world: u32) -> Vec<Tensor> {
    let shard = |tensor: Tensor| {
        let (rows, cols) = (tensor.shape().rows() as u64, tensor.shape().cols() as u64);
        let ends: Vec<u64> = (1..=u64::from(world)).map(|rank| rows * rank / u64::from(world) * cols).collect();
        tensor.with_shards(&ends)
    };
    tensors.into_iter().map(shard).collect()
}

/// Replaces `values` outside this rank's shard by the other ranks' shards.
pub fn all_shards(worker: &mut ThreadCollective, tensor: &Tensor, values: &mut [f32]) {
    let end = |rank: usize| tensor.shards()[rank] as usize;
    let rank = worker.rank() as usize;
    values[..rank.checked_sub(1).map_or(0, end)].fill(0.0);
    values[end(rank)..].fill(0.0);
    worker.all_reduce_sum(values).expect("all are there");
}

/// Relative bound on the rounding errors of a mean of this type and of sums over three workers.
fn narrowing(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 64.0 * f32::EPSILON as f64,
        _ => 1.0 / 128.0,
    }
}

/// Uniform values on [-1, 1), times `scale`.
fn uniform(rank: u32, step: u32, layer: u32, len: usize, scale: f32) -> Vec<f32> {
    let stream = Stream { seed: 3, step, layer, rank };
    (0..len as u64).map(|i| ((stream.word(i) >> 20) as f32 / 2048.0 - 1.0) * scale).collect()
}

/// The gradients of the small model, in which the last tensor but one has 16 bits.
struct Gradients([Vec<f32>; 4], Vec<Bf16>);

fn gradients(rank: u32, step: u32, scale: f32) -> Gradients {
    let layer = |layer: u32, len: usize| uniform(rank, step, layer, len, scale);
    Gradients(
        [layer(0, 120), layer(1, 20), layer(2, 48), vec![]],
        layer(3, 72).iter().map(|&x| Bf16::from_f32(x)).collect(),
    )
}

impl Gradients {
    fn views(&mut self) -> [ValuesMut<'_>; 5] {
        let [a, b, c, none] = &mut self.0;
        [ValuesMut::F32(a), ValuesMut::F32(b), ValuesMut::F32(c), ValuesMut::Bf16(&mut self.1), ValuesMut::F32(none)]
    }

    fn values(&self) -> [Vec<f32>; 5] {
        let [a, b, c, none] = self.0.clone();
        [a, b, c, self.1.iter().map(|x| x.to_f32()).collect(), none]
    }
}

/// Runs a script and checks four properties. All ranks got the same means, settings and errors, bit for bit. For every
/// element, the means and the mean residual add up to the mean gradients. Warm-up steps are uncompressed. The same
/// script gives the same bits again.
///
/// # Panics
/// Panics if a check fails.
pub fn check(script: &Script) {
    let logs = script.run();
    check_logs(script, &logs);
    assert_eq!(logs, script.run(), "a run repeated differs");
}

fn check_logs(script: &Script, logs: &[Log]) {
    for log in logs {
        for (step, (found, expected)) in log.steps.iter().zip(&logs[0].steps).enumerate() {
            assert_eq!(found, expected, "step {step}: ranks differ");
        }
    }
    let world = logs.len() as f64;
    let layers: Vec<usize> = model().iter().map(|tensor| tensor.shape().elements()).collect();
    let layer_of = |element: usize| {
        layers
            .iter()
            .scan(0, |end, len| {
                *end += len;
                Some(*end)
            })
            .position(|end| element < end)
    };
    for element in 0..logs[0].balance.len() {
        let layer = layer_of(element).expect("an element of a layer");
        let lost = logs.iter().map(|log| log.balance[element] + log.residual[element] as f64).sum::<f64>() / world;
        let rounding = logs.iter().map(|log| log.rounding[layer]).sum::<f64>();
        assert!(lost.abs() <= rounding, "element {element} of all lost {lost}, rounding explains {rounding}");
    }
    let warmup = script.config.schedule.warmup as usize;
    let exchanged = logs[0].steps.iter().flatten().take(warmup);
    exchanged.for_each(|taken| assert!(taken.settings.iter().all(|setting| setting == "dense")));
}

/// Checks arbitrary bytes as a script of about eight steps, enough for two decisions. The script runs twice if the
/// number of bytes is a multiple of eight. The number of workers depends on the sum of the bytes. Usually there is one
/// worker, because with more workers the threads spend most of their time waiting for each other.
///
/// # Panics
/// Panics if a check fails.
pub fn check_bytes(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(30)];
    let world = match bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>() % 16 {
        0 => 3,
        1 | 2 => 2,
        _ => 1,
    };
    let script = Script::of_workers(world, bytes);
    match bytes.len().is_multiple_of(8) {
        true => check(&script),
        false => check_logs(&script, &script.run()),
    }
}

/// Checks arbitrary bytes as a saved state of the small model on one worker, or as a part of a state. Each input is
/// also loaded with a corrected checksum.
///
/// # Panics
/// Panics if a loaded state does not save to the same bytes, or if a refusal changed the controller.
pub fn check_state(bytes: &[u8]) {
    check_loads(bytes);
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    check_loads(&sealed);
}

fn check_loads(bytes: &[u8]) {
    let worker = ThreadCollective::group(1).remove(0);
    let mut config = Config::new(Search::new(Method::Hybrid));
    config.feedback = Feedback::always(Residual::CLASSIC);
    let mut controller =
        Controller::new(config, model(), worker.rank(), worker.world_size()).expect("a sound configuration");
    let before = controller.save().expect("nothing has failed");
    match controller.load(&[bytes], &[bytes]) {
        Err(_) => assert!(controller.save() == Ok(before), "a refusal changed the controller"),
        Ok(loaded) => assert!(!loaded.missing.is_empty(), "a part is not the whole"),
    }
    let before = controller.save().expect("nothing has failed");
    match controller.load(&[bytes], &[bytes]) {
        Err(_) => assert!(controller.save() == Ok(before), "a refusal changed the controller"),
        Ok(_) => {
            let saved = controller.save().expect("nothing has failed");
            controller.load(&[&saved], &[&saved]).expect("what was saved");
            assert!(controller.save() == Ok(saved), "a state changes by being restored");
        }
    }
}
