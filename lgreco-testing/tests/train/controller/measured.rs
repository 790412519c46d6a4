//! Tests of plans by measured seconds, in whole runs with a simulated clock, link and processor.

use super::*;
use lgreco_train::exchange::Request;
use lgreco_train::plan::Limit;
use std::cell::Cell;
use std::sync::Arc;

std::thread_local! {
    /// `NOW` is this rank's time. After the next reading of the clock, it advances by `NEXT`, the seconds of computing.
    static NOW: Cell<f64> = const { Cell::new(0.0) };
    static NEXT: Cell<f64> = const { Cell::new(0.0) };
}

fn clock() -> f64 {
    let now = NOW.get();
    NOW.set(now + NEXT.replace(0.0));
    now
}

/// Bytes that each of two workers sends.
fn wire_bytes(request: &Request<'_>) -> f64 {
    let bytes = match request {
        Request::AllReduceSum { values } => 2 * size_of_val(&**values),
        Request::AllReduceSumBf16 { values } => 2 * size_of_val(&**values),
        Request::ReduceScatterSum { values, .. } => size_of_val(&**values),
        Request::ReduceScatterSumBf16 { values, .. } => size_of_val(&**values),
        Request::AllGather { buffer } | Request::AllGatherEach { buffer, .. } => buffer.len(),
        Request::Broadcast { bytes, .. } => bytes.len(),
        Request::AllToAll { received, .. } => return received.len() as f64,
    };
    bytes as f64 / 2.0
}

/// Whether all cases are to be tested.
fn is_full() -> bool {
    std::env::var_os("LGRECO_FULL").is_some()
}

/// A machine and its network.
#[derive(Clone)]
struct World {
    /// Bytes per second of each rank's link at a step.
    rate: Arc<dyn Fn(u32, u64) -> f64 + Send + Sync>,
    latency: f64,
    /// Nanoseconds per element for uncompressed layers, QSGD, TopK and PowerSGD.
    processor: [f64; 4],
    /// The factor by which each rank's processor is slower.
    slowness: [f64; 2],
    /// Seconds of the backward pass between two buckets. Earlier buckets are exchanged during that time.
    backward: f64,
    /// Relative noise of the time of every collective.
    noise: f64,
    /// Bytes of each collective that a traffic shaper lets pass without delay.
    burst: f64,
    /// Largest random delay of a collective, in seconds.
    jitter: f64,
    /// Fraction of a collective's time that rank 0 waits. Rank 0 may receive its bytes before all of its own bytes are
    /// sent.
    first: f64,
    /// Whether the test records the seconds, instead of the controller.
    elsewhere: bool,
    config: Config,
}

const LAYERS: usize = 4;
const SIDE: usize = 128;

impl World {
    /// Links of `rate` bytes per second. There is a decision at step 3 and every five steps after it.
    fn new(method: Method, rate: impl Fn(u32, u64) -> f64 + Send + Sync + 'static) -> World {
        let mut config = config(method, LGRECO);
        config.schedule = Schedule { warmup: 3, period: 5, window: 2, lead: 0 };
        config.objective = Objective::MeasuredSeconds;
        config.clock = Some(clock);
        World {
            rate: Arc::new(rate),
            latency: 1e-5,
            processor: [0.5, 6.0, 9.0, 12.0],
            slowness: [1.0; 2],
            backward: 0.0,
            noise: 0.0,
            burst: 0.0,
            jitter: 0.0,
            first: 1.0,
            elsewhere: false,
            config,
        }
    }

    fn fixed(&self, setting: Option<Setting>) -> World {
        let mut world = self.clone();
        world.config.policy = Policy::Fixed(vec![setting.unwrap_or(Setting::Dense); LAYERS]);
        world
    }

    fn computing(&self, rank: u32, setting: &Setting) -> f64 {
        let kind = match setting {
            Setting::Dense => 0,
            Setting::Qsgd(_) | Setting::Eden(_) => 1,
            Setting::PowerSgd(_) => 3,
            _ => 2,
        };
        1e-9 * self.processor[kind] * (SIDE * SIDE) as f64 * self.slowness[rank as usize]
    }

    /// Takes `steps` steps. Returns the seconds of exchange and the number of compressed layers of each step, and the
    /// last decision.
    fn run(&self, steps: u64) -> (Vec<(f64, usize)>, Option<Decision>) {
        let mut all = threads::run(2, |mut worker| {
            NOW.set(0.0);
            let mut controller = self.controller(&worker);
            let log = (0..steps).map(|_| self.step(&mut controller, &mut worker)).collect::<Vec<_>>();
            (log, controller.decision().copied())
        });
        assert!(all[0].1 == all[1].1 && all[0].0.iter().map(|x| x.1).eq(all[1].0.iter().map(|x| x.1)), "ranks differ");
        all.remove(0)
    }

    fn controller(&self, worker: &ThreadCollective) -> Controller {
        let tensors = (0..LAYERS).map(|l| Tensor::new(&format!("fc{l}"), &[SIDE, SIDE], Dtype::F32).unwrap());
        let mut controller =
            Controller::new(self.config.clone(), tensors.collect(), worker.rank(), worker.world_size()).unwrap();
        controller.external().meter_elsewhere(self.elsewhere).unwrap();
        controller.with_backend(std::boxed::Box::new(Trying(self.clone())))
    }

    /// Takes a step with one bucket per layer. Collectives run one after the other, during the backward pass.
    fn step(&self, controller: &mut Controller, worker: &mut ThreadCollective) -> (f64, usize) {
        let step = controller.steps();
        // A trainer that plans on other threads asks for a task at every step, and may drop the task.
        (0..2).for_each(|_| drop(controller.planning().take_task()));
        controller.begin_step(0.1).unwrap();
        while let Some(request) = controller.control().unwrap() {
            let bytes = wire_bytes(&request);
            request.perform(worker).unwrap();
            NOW.set(self.arrival(worker, step, NOW.get(), 0.0, bytes));
        }
        let probed = controller.external().probe_bytes().map(|bytes| {
            let mut gather = |bytes| {
                let start = NOW.get();
                NOW.set(self.arrival(worker, step, start, 0.0, bytes as f64 / 2.0));
                NOW.get() - start
            };
            let [first, second] = [0; 2].map(|_| [gather(16), gather(bytes)]);
            [first[0].min(second[0]), first[1].min(second[1])]
        });
        let (mut free, mut flights) = (0.0, vec![]);
        for layer in 0..LAYERS {
            let cost = self.computing(worker.rank(), &controller.setting(layer));
            let mut gradient = noise(layer as u32, worker.rank(), step as u32, SIDE * SIDE);
            let mut bucket = controller.open(&[layer]).unwrap();
            NEXT.set(0.75 * cost);
            bucket.submit(&mut [ValuesMut::F32(&mut gradient)]).unwrap();
            let end = self.send(&mut bucket, &mut gradient, worker, step, &mut free).unwrap();
            flights.push((bucket, gradient, end, cost));
            NOW.set(NOW.get() + self.backward);
        }
        while !flights.is_empty() {
            let mut under_way = vec![];
            for (mut bucket, mut gradient, end, cost) in flights {
                NOW.set(NOW.get().max(end));
                NEXT.set(0.25 * cost);
                match self.send(&mut bucket, &mut gradient, worker, step, &mut free) {
                    Some(end) => under_way.push((bucket, gradient, end, 0.0)),
                    None => controller.close(bucket).unwrap(),
                }
            }
            flights = under_way;
        }
        let compressed = (0..LAYERS).filter(|&layer| controller.setting(layer) != Setting::Dense).count();
        let report = controller.finish_step().unwrap();
        let seconds = report.seconds.unwrap().exchange;
        if self.elsewhere {
            controller.external().record_exchange(0.0, seconds, 0.0).unwrap();
            controller.external().record_exchange(0.0, 1e6, 1e6).unwrap(); // no step is left to report
        }
        if let Some(least) = probed {
            controller.external().record_probe(least).unwrap();
            let layers: Vec<usize> = (0..LAYERS).collect();
            for settings in controller.external().trials(&layers).unwrap() {
                let computing: f64 = settings.iter().map(|setting| self.computing(0, setting)).sum();
                controller.external().record_trial(&layers, &settings, computing / 1.3).unwrap();
            }
        }
        (seconds, compressed)
    }

    /// Starts the bucket's next collective, and returns the time at which it ends.
    fn send(
        &self,
        bucket: &mut Bucket,
        gradient: &mut [f32],
        worker: &mut ThreadCollective,
        step: u64,
        free: &mut f64,
    ) -> Option<f64> {
        let values = &mut [ValuesMut::F32(gradient)];
        let request = bucket.next(values).unwrap()?;
        let bytes = wire_bytes(&request);
        request.perform(worker).unwrap();
        *free = self.arrival(worker, step, NOW.get(), *free, bytes);
        Some(*free)
    }

    /// The time at which a collective ends if all ranks have started it. The slowest link determines this time.
    fn arrival(&self, worker: &mut ThreadCollective, step: u64, now: f64, free: f64, bytes: f64) -> f64 {
        let random =
            |i: u64| f64::from(Stream { seed: 5, step: step as u32, layer: 0, rank: 0 }.word(i)) / 2f64.powi(32);
        let noise = 1.0 + self.noise * (2.0 * random(0) - 1.0);
        let took = (bytes - self.burst).max(0.0) / (self.rate)(worker.rank(), step) * noise;
        let took = took + self.jitter * random(1 + (1e9 * (now + free)) as u64);
        let mut told = [0f64; 4];
        told[2 * worker.rank() as usize..][..2].copy_from_slice(&[now, took]);
        worker.all_gather(bytemuck::cast_slice_mut(&mut told)).unwrap();
        let part = if worker.rank() == 0 { self.first } else { 1.0 };
        told[0].max(told[2]).max(free) + part * told[1].max(told[3]) + self.latency
    }
}

/// A backend whose trials take simulated time.
struct Trying(World);

impl Backend for Trying {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        Portable.workspace_len(jobs)
    }
    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        Portable.measure(jobs, workspace, rows)
    }
    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, CoreError> {
        // Real steps take 1.3 times as long as trials, because of residuals, for instance.
        NOW.set(NOW.get() + self.0.computing(0, setting) / 1.3);
        Portable.encode(setting, gradient, stream, workspace, payload)
    }
    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), CoreError> {
        Portable.decode(payload, values)
    }
}

/// The search's default setting for the layers.
fn default_of(world: &World) -> Setting {
    world.config.search.uniform(&[SIDE, SIDE], Dtype::F32).unwrap()
}

fn last(log: &[(f64, usize)]) -> (f64, usize) {
    log[log.len() - 1]
}

/// Expects the last of `steps` steps to take at most 1.1 times as long as the better of two fixed settings on the same
/// links.
fn expect_the_best(world: &World, steps: u64) -> (f64, usize) {
    let (log, decision) = world.run(steps);
    let of = |setting| last(&world.fixed(setting).run(steps).0).0;
    let (dense, default) = (of(None), of(Some(default_of(world))));
    let (found, compressed) = last(&log);
    let best = dense.min(default);
    assert!(found <= 1.1 * best, "{found} of {dense} uncompressed, {default} by default: {}", decision.unwrap());
    (found, compressed)
}

/// Number of steps from the start until one step after the second decision.
const TWO_DECISIONS: u64 = 3 + 5 + 1;

/// Rates in bytes per second: unlimited, two near the point at which compression stops saving time, 1 Gbit/s and 100
/// Mbit/s.
const RATES: [f64; 5] = [1e13, 1e9, 5e8, 1.25e8, 1.25e7];

fn at_every_rate(method: Method) {
    for rate in RATES {
        for budget in [Budget::Error, Budget::Size] {
            let mut world = World::new(method, move |_, _| rate);
            world.config.budget = budget;
            let (_, compressed) = expect_the_best(&world, TWO_DECISIONS);
            match rate {
                1e13 => assert_eq!(compressed, 0, "no limit"),
                1.25e7 => assert!(compressed >= LAYERS - 1, "a slow link"),
                _ => {}
            }
        }
    }
}

/// Under measured seconds, sizes in tables are picoseconds. So a size limit can be given in seconds.
#[test]
fn a_limit_of_size_is_seconds() {
    let world = |budget| {
        let mut world = World::new(Method::Qsgd, |_, _| 1.25e7);
        world.config.budget = budget;
        world
    };
    let relative = world(Budget::Size).run(4).1.unwrap();
    let plan = relative.plan.unwrap();
    assert_eq!(plan.limit(), Limit::Size(relative.default_size));
    let seconds = relative.default_size as f64 / 1e12;
    assert!((1e-4..1.0).contains(&seconds), "{seconds}");
    let absolute = world(Budget::Seconds(1.5 * seconds)).run(4).1.unwrap().plan.unwrap();
    assert!(absolute.error < plan.error && absolute.size > relative.default_size, "{absolute:?}");
    assert!(absolute.size as f64 / 1e12 <= 1.5 * seconds);

    let (limit, smallest) = (1e-6, seconds / 10.0);
    let told = Error::TimeInfeasible { limit, smallest };
    assert_eq!(told.code(), CoreError::SizeInfeasible { limit: 0, smallest: 0, error: 0.0 }.code());
    assert!(told.to_string().contains("seconds"), "{told}");
    let too_short = world(Budget::Seconds(limit));
    let results = threads::run(2, |mut worker| {
        NOW.set(0.0);
        let mut controller = too_short.controller(&worker);
        (0..3).for_each(|_| {
            too_short.step(&mut controller, &mut worker);
        });
        controller.begin_step(0.1).unwrap();
        loop {
            match controller.control() {
                Ok(Some(request)) => request.perform(&mut worker).unwrap(),
                Ok(None) => panic!("a microsecond"),
                Err(error) => return error,
            }
        }
    });
    let Error::TimeInfeasible { limit: 1e-6, smallest } = results[0] else { panic!("{}", results[0]) };
    assert!(smallest > limit && smallest < seconds, "{smallest}");
    assert_eq!(results[1], Error::Peer { rank: 0, code: told.code() });
}

#[test]
fn whoever_measures_the_same_is_decided() {
    for (method, rate, compresses) in
        [(Method::Qsgd, 1e13, false), (Method::TopK, 1.25e7, true), (Method::Hybrid, 1.25e7, true)]
    {
        let mut world = World::new(method, move |_, _| rate);
        // In the first step of the warm-up, ranks agree on the layers that share a bucket. The last two steps of the
        // warm-up belong to the window.
        (world.elsewhere, world.config.schedule.warmup) = (true, 8);
        let (_, compressed) = expect_the_best(&world, 8 + 5 + 1);
        assert!(if compresses { compressed >= LAYERS - 1 } else { compressed == 0 }, "{method:?}: {compressed}");
        let (found, told) = (world.run(8 + 1).1.unwrap(), World { elsewhere: false, ..world }.run(8 + 1).1.unwrap());
        let (found, told) = (found.timing.unwrap(), told.timing.unwrap());
        let pairs = [(found.uncompressed, told.uncompressed), (found.plan, told.plan), (found.default, told.default)];
        assert!(pairs.iter().all(|(own, other)| (own - other).abs() <= 0.05 * other), "{method:?}: {found} {told}");
    }
}

#[test]
fn what_cannot_be_a_time_is_refused_and_nothing_is_told_of_a_step_under_way() {
    let world = World { elsewhere: true, ..World::new(Method::TopK, |_, _| 1e9) };
    on_all(1, |worker| {
        let mut controller = world.controller(&worker);
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(controller.external().record_exchange(0.0, wrong, 0.0).is_err());
            assert!(
                controller.external().record_probe([0.0, wrong]).is_err()
                    && controller.external().record_trial(&[], &[], wrong).is_err()
            );
        }
        let settings = controller.external().trials(&[0, LAYERS - 1]).unwrap();
        assert_eq!(settings.len(), 1);
        assert!(controller.external().trials(&[LAYERS]).is_err());
        assert!(controller.external().record_trial(&[LAYERS], &settings[0], 1.0).is_err());
        controller.begin_step(0.1).unwrap();
        assert!(
            controller.external().meter_elsewhere(true).is_err()
                && controller.external().record_exchange(0.0, 1.0, 0.5).is_err()
        );
    });
}

#[test]
fn qsgd_is_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::Qsgd);
}

#[test]
fn topk_is_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::TopK);
}

#[test]
fn powersgd_is_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::PowerSgd);
}

#[test]
fn several_methods_are_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::Hybrid);
}

#[test]
fn one_wrong_probe_is_not_believed_for_ever() {
    for wrong in [1e11, 1e5] {
        // The probe of step 2 belongs to the first decision, before step 3, and the probe of step 12 to a later one.
        for at in [2, 12] {
            let world = World::new(Method::Qsgd, move |_, step| if step == at { wrong } else { 1.25e8 });
            expect_the_best(&world, at + 3 * 5 + 2);
        }
    }
}

#[test]
fn collectives_that_cost_more_than_their_bytes_are_given_up() {
    let world = World { latency: 5e-3, ..World::new(Method::PowerSgd, |_, _| 2.5e7) };
    let (_, compressed) = expect_the_best(&world, 43);
    assert_eq!(compressed, 0);
}

#[test]
fn a_link_that_changes_by_less_than_a_factor_of_two_is_followed() {
    let changes = [(3.5e8, 6.5e8), (6.5e8, 3.5e8), (2e8, 1.2e8)];
    for (before, after) in changes.into_iter().take(if is_full() { 3 } else { 2 }) {
        for backward in [0.0, 1e-4] {
            let rate = move |_, step| if step < 26 { before } else { after };
            expect_the_best(&World { backward, ..World::new(Method::Qsgd, rate) }, 28 + 5 * 5 + 1);
        }
    }
}

#[test]
fn a_rate_that_changes_is_followed_after_two_decisions() {
    let changes = [(1e13, 1.25e7), (1.25e7, 1e13), (1.25e8, 1.25e7), (1.25e7, 1e9), (1e9, 1.25e8)];
    for (before, after) in changes.into_iter().take(if is_full() { 5 } else { 2 }) {
        for method in [Method::Qsgd, Method::TopK] {
            for backward in [0.0, 1e-3] {
                // The rate changes in the middle of a period.
                let rate = move |_, step| if step < 26 { before } else { after };
                let world = World { backward, ..World::new(method, rate) };
                let steps = 28 + 5 + 1;
                let (_, compressed) = expect_the_best(&world, steps);
                match after {
                    1e13 if backward == 0.0 => assert_eq!(compressed, 0),
                    1.25e7 => assert_eq!(compressed, LAYERS),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn one_slow_peer_decides_for_all() {
    for slow in [0, 1] {
        let link = World::new(Method::Qsgd, move |rank, _| if rank == slow { 1.25e7 } else { 1e13 });
        assert_eq!(expect_the_best(&link, TWO_DECISIONS).1, LAYERS);
        // On a processor that takes eight times as long, compression takes more time than it saves on this link.
        let mut processor = World::new(Method::Qsgd, |_, _| 2.5e8);
        assert_eq!(expect_the_best(&processor, TWO_DECISIONS).1, LAYERS);
        processor.slowness[slow as usize] = 8.0;
        assert_eq!(expect_the_best(&processor, TWO_DECISIONS).1, 0, "rank {slow}");
    }
}

#[test]
fn what_the_backward_pass_hides_costs_nothing() {
    // Sending takes a third of the backward pass, and compressing a fifth of it.
    let world = World { backward: 1e-3, ..World::new(Method::Qsgd, |_, _| 2e8) };
    let (_, compressed) = expect_the_best(&world, 3 + 10 * 5 + 1);
    assert_eq!(compressed, 0);
}

#[test]
fn near_where_it_stops_paying_settings_stay() {
    for noise in [0.0, 0.03] {
        for rate in [7e8, 8e8, 4e8, 6e8, 7.5e8, 9e8].into_iter().take(if is_full() { 6 } else { 2 }) {
            let world = World { noise, ..World::new(Method::Qsgd, move |_, _| rate) };
            let (log, _) = world.run(3 + 40 * 5);
            let settled = log[TWO_DECISIONS as usize..].windows(2);
            let switches = settled.filter(|steps| (steps[0].1 == 0) != (steps[1].1 == 0)).count();
            assert!(switches <= 1, "{switches} switches at {rate} with noise of {noise}");
        }
    }
}

#[test]
fn shapers_and_late_collectives_do_not_deceive() {
    for (rate, compressed) in [(1.25e8, LAYERS), (1e13, 0)] {
        // A layer has 64 KiB. All layers together take 2 ms at 1 Gbit/s.
        let world = World { burst: 1.6e4, jitter: 1e-4, ..World::new(Method::Qsgd, move |_, _| rate) };
        let (log, decision) = world.run(3 + 20 * 5);
        let settled = &log[TWO_DECISIONS as usize..];
        let wrong = settled.iter().filter(|step| step.1 != compressed).count();
        assert_eq!(wrong, 0, "of {} steps: {}", settled.len(), decision.unwrap());
    }
}

#[test]
fn a_rank_whose_bytes_come_first_is_not_deceived() {
    let decided = [1.0, 0.25].map(|first| {
        let world = World { first, ..World::new(Method::Qsgd, |_, _| 1.25e7) };
        let (_, decision) = world.run(4);
        decision.unwrap().timing.unwrap().seconds_per_byte
    });
    assert!((decided[1] - decided[0]).abs() <= 0.05 * decided[0], "{decided:?}");
}

#[test]
fn what_was_learnt_is_saved() {
    let world = World::new(Method::Qsgd, |_, step| if step < 20 { 1.25e8 } else { 1e13 });
    on_all(2, |mut worker| {
        NOW.set(0.0);
        let mut controller = world.controller(&worker);
        (0..20).for_each(|_| {
            world.step(&mut controller, &mut worker);
        });
        let saved = controller.save().unwrap();
        let mut continued = world.controller(&worker);
        continued.load(&[&saved], &[&saved]).unwrap();
        assert!(continued.save().unwrap() == saved);
        assert_eq!(continued.decision(), controller.decision());
        // A controller that minimises bits can also load this state. A controller that measures can load a state without
        // measured seconds.
        let mut bits = world.clone();
        bits.config.objective = Objective::Bits;
        let mut other = bits.controller(&worker);
        other.load(&[&saved], &[&saved]).unwrap();
        let unmeasured = other.save().unwrap();
        assert!(unmeasured.len() < saved.len());
        continued.load(&[&unmeasured], &[&unmeasured]).unwrap();
        // The continued controller adapts to the change of the link.
        for _ in 0..TWO_DECISIONS {
            world.step(&mut continued, &mut worker);
        }
        let compressed = (0..LAYERS).filter(|&layer| continued.setting(layer) != Setting::Dense).count();
        assert_eq!(compressed, 0, "{}", continued.decision().unwrap());
        compressed
    });
}

#[test]
fn blocking_steps_measure_the_wire() {
    struct Slow(ThreadCollective);
    impl Slow {
        fn take(&mut self, bytes: f64) {
            NOW.set(NOW.get() + bytes / 1e8);
        }
    }
    impl Collective for Slow {
        fn rank(&self) -> u32 {
            self.0.rank()
        }
        fn world_size(&self) -> u32 {
            self.0.world_size()
        }
        fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
            self.take(2.0 * 4.0 * values.len() as f64 / 2.0);
            self.0.all_reduce_sum(values)
        }
        fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
            self.take(buffer.len() as f64 / 2.0);
            self.0.all_gather(buffer)
        }
        fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
            self.take(buffer.len() as f64 / 2.0);
            self.0.all_gather_each(lens, buffer)
        }
        fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
            self.take(bytes.len() as f64 / 2.0);
            self.0.broadcast(root, bytes)
        }
    }
    for lead in [0, 1] {
        let timing = on_all(2, |worker| {
            let mut world = World::new(Method::Qsgd, |_, _| f64::NAN);
            world.config.schedule.lead = lead;
            let mut controller = world.controller(&worker);
            let mut slow = Slow(worker);
            for step in 0..9 {
                let mut gradients: Vec<_> =
                    (0..LAYERS as u32).map(|layer| noise(layer, slow.rank(), step, SIDE * SIDE)).collect();
                let task = controller.planning().take_task();
                task.map(|task| controller.planning().hand_in(task.run(&mut Portable)));
                controller.step(&mut slow, &mut views(&mut gradients), 0.1).unwrap();
            }
            controller.decision().unwrap().timing.unwrap()
        });
        assert!((timing.seconds_per_byte - 1e-8).abs() < 1e-9 && timing.plan < 0.3 * timing.uncompressed, "{timing}");
        assert_eq!(timing.computing, 0.0);
        let dense = (4 * LAYERS * SIDE * SIDE) as f64 * 1e-8;
        assert!((timing.uncompressed - dense).abs() < 0.1 * dense, "{timing}");
    }
}

#[test]
fn who_cannot_measure_is_refused() {
    let world = World::new(Method::Qsgd, |_, _| 1.0);
    let worker = ThreadCollective::group(1).remove(0);
    let without = Config { clock: None, ..world.config.clone() };
    let refused = Controller::new(without, vec![], worker.rank(), worker.world_size()).err().unwrap();
    assert_eq!(refused.to_string(), "number of clocks is 0, expected 1: measured seconds need `Config::clock`");
    let bits = Config { budget: Budget::Bits(1), ..world.config };
    assert!(Controller::new(bits, vec![], worker.rank(), worker.world_size()).is_err());
}
