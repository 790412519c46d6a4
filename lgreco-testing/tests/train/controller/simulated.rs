//! Training on a simulated clock, link and processor.

use super::*;
use lgreco_train::exchange::Request;
use std::cell::Cell;
use std::sync::Arc;

std::thread_local! {
    /// `NOW` is this rank's time in seconds. `NEXT` is the duration of a computation, which is added to `NOW` after the
    /// next reading of the clock.
    pub(super) static NOW: Cell<f64> = const { Cell::new(0.0) };
    static NEXT: Cell<f64> = const { Cell::new(0.0) };
}

pub(super) fn clock() -> f64 {
    let now = NOW.get();
    NOW.set(now + NEXT.replace(0.0));
    now
}

/// Bytes that each of two workers sends for a request.
pub(super) fn wire_bytes(request: &Request<'_>) -> f64 {
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

/// A machine and its network.
#[derive(Clone)]
pub(super) struct World {
    /// Bytes per second of each rank's link at a step.
    pub(super) rate: Arc<dyn Fn(u32, u64) -> f64 + Send + Sync>,
    pub(super) latency: f64,
    /// Nanoseconds per element for uncompressed layers, QSGD, TopK and PowerSGD.
    pub(super) processor: [f64; 4],
    /// The factor by which each rank's processor is slower.
    pub(super) slowness: [f64; 2],
    /// Seconds of the backward pass between two buckets. Earlier buckets are exchanged during that time.
    pub(super) backward: f64,
    /// Relative noise of the time of every collective.
    pub(super) noise: f64,
    /// Bytes of each collective that a traffic shaper lets pass without delay.
    pub(super) burst: f64,
    /// Largest random delay of a collective, in seconds.
    pub(super) jitter: f64,
    /// Rank 0 waits for only this fraction of a collective's time, because it may receive all bytes before it has sent
    /// all bytes.
    pub(super) first: f64,
    /// Whether the test records the seconds, instead of the controller.
    pub(super) elsewhere: bool,
    pub(super) config: Config,
}

pub(super) const LAYERS: usize = 4;
pub(super) const SIDE: usize = 128;

impl World {
    /// Links of `rate` bytes per second. There is a decision at step 3 and every five steps after it.
    pub(super) fn new(method: Method, rate: impl Fn(u32, u64) -> f64 + Send + Sync + 'static) -> World {
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

    pub(super) fn fixed(&self, setting: Option<Setting>) -> World {
        let mut world = self.clone();
        world.config.policy = Policy::Fixed(vec![setting.unwrap_or(Setting::Dense); LAYERS]);
        world
    }

    pub(super) fn computing(&self, rank: u32, setting: &Setting) -> f64 {
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
    pub(super) fn run(&self, steps: u64) -> (Vec<(f64, usize)>, Option<Decision>) {
        let mut all = threads::run(2, |mut worker| {
            NOW.set(0.0);
            let mut controller = self.controller(&worker);
            let log = (0..steps).map(|_| self.step(&mut controller, &mut worker)).collect::<Vec<_>>();
            (log, controller.decision().copied())
        });
        assert!(all[0].1 == all[1].1 && all[0].0.iter().map(|x| x.1).eq(all[1].0.iter().map(|x| x.1)), "ranks differ");
        all.remove(0)
    }

    pub(super) fn controller(&self, worker: &ThreadCollective) -> Controller {
        let tensors = (0..LAYERS).map(|l| Tensor::new(&format!("fc{l}"), &[SIDE, SIDE], Dtype::F32).unwrap());
        let mut controller =
            Controller::new(self.config.clone(), tensors.collect(), worker.rank(), worker.world_size()).unwrap();
        controller.external().meter_elsewhere(self.elsewhere).unwrap();
        controller.with_backend(std::boxed::Box::new(Trying(self.clone())))
    }

    /// Takes a step with one bucket per layer. Collectives run one after the other, during the backward pass.
    pub(super) fn step(&self, controller: &mut Controller, worker: &mut ThreadCollective) -> (f64, usize) {
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
