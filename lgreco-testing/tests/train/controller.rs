use lgreco_testing::controller::{Script, check, check_state};
use lgreco_testing::noise;
use lgreco_train::backend::{Backend, Job, JobError, Portable};
use lgreco_train::compress::Setting;
use lgreco_train::compress::powersgd::PowerSgd;
use lgreco_train::compress::topk::TopK;
use lgreco_train::controller::*;
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::exchange::{Collective, CollectiveError};
use lgreco_train::feedback::Residual;
use lgreco_train::gradient::{Dtype, Gradient, ValuesMut};
use lgreco_train::rng::Stream;
use lgreco_train::search::{Method, Search};
use lgreco_train::{CoreError, Error, OptionValue};
use proptest::prelude::*;

mod bucket_failures;
mod buckets;
mod budgets;
mod clocks;
#[cfg(feature = "rayon")]
mod cores;
mod elsewhere;
mod failures;
mod golden;
mod halves;
mod joined;
#[cfg(feature = "json")]
mod line;
mod measured;
mod observed;
#[cfg(feature = "json")]
mod planned;
mod planning;
mod policies;
mod ranks;
mod saved;
mod schedule;
mod settings;
mod shards;
mod simulated;
mod summary;
mod transactions;
mod two_level;
mod unread;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(60)))]

    #[test]
    fn any_run_keeps_ranks_equal_and_mass_whole(bytes in prop::collection::vec(any::<u8>(), 14..74)) {
        check(&Script::from_bytes(&bytes));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_restored(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_state(&bytes);
    }
}

fn noise(layer: u32, rank: u32, step: u32, len: usize) -> Vec<f32> {
    noise::multiples(Stream { seed: 11, step, layer, rank }, len)
}

fn search(method: Method) -> Search {
    let mut search = Search::new(method);
    search.min_elements = 64;
    search
}

/// A configuration with two steps of warm-up, then a decision every three steps, each from the gradients of two steps.
fn config(method: Method, policy: Policy) -> Config {
    let mut config = Config::new(search(method));
    config.policy = policy;
    config.budget = lgreco_train::controller::Budget::Error;
    config.schedule = Schedule { warmup: 2, period: 3, window: 2, lead: 0 };
    config
}

const LGRECO: Policy = Policy::LGreco { solver: lgreco_train::plan::Solver::Dp { levels: 10_000 }, accordion: None };

/// The layers of a small model: two matrices and a bias. The second matrix has smaller gradients.
fn model() -> Vec<Tensor> {
    let layers: [(&str, &[usize]); 3] = [("fc1", &[16, 24]), ("bias", &[24]), ("fc2", &[20, 16])];
    layers.map(|(name, dims)| Tensor::new(name, dims, Dtype::F32).unwrap()).into()
}

const SCALES: [f32; 3] = [1.0, 1.0, 1.0 / 16.0];

/// Gradients of the model, times `scale`.
fn gradients(rank: u32, step: u32, scale: f32) -> Vec<Vec<f32>> {
    let layer = |(l, tensor): (usize, &Tensor)| {
        let values = noise(l as u32, rank, step, tensor.shape().elements());
        values.iter().map(|x| x * scale * SCALES[l]).collect()
    };
    model().iter().enumerate().map(layer).collect()
}

fn views(gradients: &mut [Vec<f32>]) -> Vec<ValuesMut<'_>> {
    gradients.iter_mut().map(|gradient| ValuesMut::F32(gradient)).collect()
}

/// Takes a step on the model's gradients, and returns the report and the means.
fn take_step(
    controller: &mut Controller,
    worker: &mut ThreadCollective,
    scale: f32,
    rate: f64,
) -> Result<(Report, Vec<Vec<f32>>), Error> {
    let mut gradients = gradients(worker.rank(), controller.steps() as u32, scale);
    let report = controller.step(worker, &mut views(&mut gradients), rate)?;
    Ok((report, gradients))
}

/// Begins a step, and performs the ranks' control requests before its buckets.
fn agree(controller: &mut Controller, worker: &mut ThreadCollective, rate: f64) -> Result<(), Error> {
    controller.begin_step(rate)?;
    while let Some(request) = controller.control()? {
        request.perform(worker)?;
    }
    Ok(())
}

/// The error of all ranks if `rank` is the first rank that differs from rank 0.
fn differ(rank: u32, what: &'static str, found: OptionValue, expected: OptionValue) -> Error {
    Error::PeerOption { rank, what, found, expected }
}

fn exact_mean(world: u32, step: u32, layer: usize) -> Vec<f32> {
    let all: Vec<_> = (0..world).map(|rank| gradients(rank, step, 1.0).swap_remove(layer)).collect();
    (0..all[0].len()).map(|i| all.iter().map(|g| g[i]).sum::<f32>() / world as f32).collect()
}

fn settings(controller: &Controller) -> Vec<Setting> {
    (0..controller.tensors().len()).map(|layer| controller.setting(layer)).collect()
}

fn residual(controller: &Controller, layer: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; controller.tensors()[layer].shape().elements()];
    controller.residual(layer, &mut values).unwrap();
    values
}

/// Exchanges gradients by blocking collectives.
trait Exchange {
    fn exchange(&mut self, collective: &mut impl Collective, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error>;
}

impl Exchange for Bucket {
    fn exchange(&mut self, collective: &mut impl Collective, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        self.submit(gradients)?;
        while let Some(request) = self.next(gradients)? {
            request.perform(collective)?;
        }
        Ok(())
    }
}

/// Runs `work` on `world` threads, and expects the same result on all ranks.
fn on_all<T: Send + PartialEq + core::fmt::Debug>(world: u32, work: impl Fn(ThreadCollective) -> T + Sync) -> T {
    let mut all = threads::run(world, work);
    let first = all.remove(0);
    all.iter().for_each(|other| assert_eq!(*other, first, "ranks differ"));
    first
}

/// A network of this many workers whose collectives fail.
struct Broken(u32);

impl Collective for Broken {
    fn rank(&self) -> u32 {
        0
    }
    fn world_size(&self) -> u32 {
        self.0
    }
    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Err(CollectiveError { code: 3 })
    }
    fn all_gather(&mut self, _: &mut [u8]) -> Result<(), CollectiveError> {
        Err(CollectiveError { code: 4 })
    }
    fn all_gather_each(&mut self, _: &[u64], _: &mut [u8]) -> Result<(), CollectiveError> {
        Err(CollectiveError { code: 6 })
    }
    fn broadcast(&mut self, _: u32, _: &mut [u8]) -> Result<(), CollectiveError> {
        Err(CollectiveError { code: 5 })
    }
}

/// A backend that only measures, with the given function.
struct Measuring<F>(F);

impl<F: FnMut(&[Job<'_>], &mut [u64], &mut [f64]) -> Result<(), JobError>> Backend for Measuring<F> {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        Portable.workspace_len(jobs)
    }
    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        (self.0)(jobs, workspace, rows)
    }
    fn encode(
        &mut self,
        _: &Setting,
        _: &Gradient<'_>,
        _: Stream,
        _: &mut [u64],
        _: &mut [u8],
    ) -> Result<usize, CoreError> {
        unreachable!("measuring encodes nothing")
    }
    fn decode(&mut self, _: &[u8], _: &mut [f32]) -> Result<(), CoreError> {
        unreachable!("measuring decodes nothing")
    }
}
