//! Compares the summed layers of an exchange with the core's steps: sums, factors, residuals and means.
#![allow(unsafe_code)]

use super::backend;
use super::exchange::{Memory, bits, narrowed};
use super::simt::{Edit, Flavour, Simt, flavour};
use crate::device::Part;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceExchange, ExchangeConfig, ExchangeOutcome, ExchangeProgram};
use lgreco::compress::Setting;
use lgreco::compress::powersgd::{
    PowerSgd, back_project, effective_rank, orthonormalise, project, reconstruct, start_matrix, steps_workspace_len,
};
use lgreco::gradient::{Bf16, Dtype, Element, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::{check_orthonormal, uniform};

pub(super) type Layers = Vec<(Shape, Setting)>;

/// Number of ranks. With three ranks, tests can treat one rank differently from the other two.
pub(super) const WORLD: usize = 3;
/// The factor by which uncompressed values are multiplied before they are summed.
const SHARE: f32 = 0.25;
/// Tolerance of a number, relative to the largest number in the same list.
const NEAR: f64 = 1e-4;

pub(super) fn power(rank: u32) -> Setting {
    Setting::PowerSgd(PowerSgd { rank, iterations: 1 })
}

pub(super) fn of(layers: &[(usize, usize, Setting)]) -> Layers {
    layers.iter().map(|&(rows, cols, setting)| (Shape::new(rows, cols).unwrap(), setting)).collect()
}

/// Returns layers of every kind. The layers cover each width of a product, products with several panels, and chunks of
/// both products. One Gram matrix is too large for shared memory. Some PowerSGD ranks exceed a side of the matrix, some
/// lengths are no multiple of a block's share, and one layer has no elements.
pub(super) fn layers() -> Layers {
    of(&[
        (130, 97, power(3)),
        (5001, 1, Setting::Dense),
        (70, 600, power(9)),
        (600, 40, power(12)),
        (0, 5, power(2)),
        (0, 5, Setting::Dense),
        (45, 50, power(40)),
        (7, 5, power(1000)),
        (3, 1, Setting::Dense),
        (72, 75, power(70)),
    ])
}

/// Where the data of a layer lies: its values, its `P` and `Q` (or its uncompressed values) in the sums, and its `P`
/// among the orthonormal factors.
pub(super) struct Place {
    pub(super) shape: Shape,
    pub(super) setting: Setting,
    rank: usize,
    pub(super) values: std::ops::Range<usize>,
    sums: std::ops::Range<usize>,
    of_rows: std::ops::Range<usize>,
    pub(super) factors: std::ops::Range<usize>,
}

pub(super) fn places(layers: &Layers) -> Vec<Place> {
    let mut at = [0; 4];
    let mut take = |which: usize, len: usize| {
        at[which] += len;
        at[which] - len..at[which]
    };
    let place = |&(shape, setting): &(Shape, Setting)| {
        let rank = match setting {
            Setting::PowerSgd(power) => effective_rank(shape, power.rank),
            _ => 0,
        };
        let sums = if setting == Setting::Dense { shape.elements() } else { shape.rows() * rank };
        let (values, sums) = (take(0, shape.elements()), take(1, sums));
        let (factors, of_rows) = (take(2, shape.cols() * rank), take(3, shape.rows() * rank));
        Place { shape, setting, rank, values, sums, of_rows, factors }
    };
    layers.iter().map(place).collect()
}

/// A rank's exchange and memory on the device.
pub(super) struct Rank {
    pub(super) exchange: DeviceExchange,
    _memory: Memory,
    _residuals: Memory,
    pub(super) gradients: Memory,
    message: Memory,
    pub(super) sums: Memory,
    pub(super) factors: Memory,
    pub(super) elements: usize,
    reduce_dtype: Dtype,
}

pub(super) fn floats(memory: &Memory) -> Vec<f32> {
    bytemuck::cast_slice(memory.bytes()).to_vec()
}

/// Returns the summed values and the status records, as f32.
pub(super) fn summed(memory: &Memory, dtype: Dtype) -> Vec<f32> {
    let halves = || memory.bytes().as_chunks().0.iter().map(|&bytes| Bf16(u16::from_ne_bytes(bytes)));
    if dtype == Dtype::F32 { floats(memory) } else { halves().map(Bf16::to_f32).collect() }
}

impl Rank {
    pub(super) fn new(backend: &mut CudaBackend, layers: &Layers, config: ExchangeConfig) -> Rank {
        let program = ExchangeProgram::new(layers, config).unwrap();
        let elements: usize = layers.iter().map(|(shape, _)| shape.elements()).sum();
        let (mut memory, mut residuals) = (Memory::new(program.memory_bytes()), Memory::new(program.residual_bytes()));
        let gradients = Memory::new((elements * config.dtype.bytes()) as u64);
        let [sums, factors] =
            [program.sum_values(), program.factor_values()].map(|values| values * config.reduce_dtype.bytes());
        let [sums, factors] = [sums, factors].map(|bytes| Memory::new(bytes as u64));
        let message = Memory::new(program.message_bytes() as u64);
        // SAFETY: the memory lives as long as the exchange, and has the program's sizes.
        let exchange = unsafe { backend.begin_exchange(program, memory.address(), residuals.address()) }.unwrap();
        let (_memory, _residuals, reduce_dtype) = (memory, residuals, config.reduce_dtype);
        Rank { exchange, _memory, _residuals, gradients, message, sums, factors, elements, reduce_dtype }
    }

    fn read(&self, backend: &mut CudaBackend, address: u64, values: usize) -> Vec<f32> {
        backend.gpu_mut().read(Part { address, bytes: 4 * values as u64 }).unwrap()
    }

    /// Returns the valid half of the residuals and the valid half of the factors.
    pub(super) fn remembered(&self, backend: &mut CudaBackend) -> [Vec<f32>; 2] {
        let ExchangeOutcome { residuals, factors, .. } = backend.exchange_outcome(&self.exchange).unwrap();
        let slip = if self.reduce_dtype == Dtype::F32 { 1 } else { 3 };
        let values = summed(&self.factors, self.reduce_dtype).len().saturating_sub(slip * WORLD);
        [self.read(backend, residuals, self.elements), self.read(backend, factors, values)]
    }

    /// The first sum, the second sum, and the orthonormal `P`.
    fn parts(&self, backend: &mut CudaBackend) -> [Vec<f32>; 3] {
        let [sums, factors] = [&self.sums, &self.factors].map(|memory| summed(memory, self.reduce_dtype));
        [sums, factors, backend.gpu_mut().read(self.exchange.of_rows()).unwrap()]
    }

    pub(super) fn found_inf(&self, backend: &mut CudaBackend) -> f32 {
        self.read(backend, self.exchange.found_inf_address(), 1)[0]
    }
}

pub(super) fn ranks(backend: &mut CudaBackend, layers: &Layers, config: ExchangeConfig) -> Vec<Rank> {
    let of = |rank| ExchangeConfig { stream: Stream { rank, ..config.stream }, ..config };
    (0..WORLD as u32).map(|rank| Rank::new(backend, layers, of(rank))).collect()
}

/// Returns the sum of the parts of all ranks. Each addition rounds to the type in which the parts are sent.
fn sum_of(parts: impl Iterator<Item = Vec<f32>>, dtype: Dtype) -> Vec<f32> {
    let add = |sum: Vec<f32>, part: Vec<f32>| {
        let both: Vec<f32> = sum.iter().zip(part).map(|(sum, x)| sum + x).collect();
        narrowed(&both, dtype).1
    };
    parts.reduce(add).unwrap()
}

/// Replaces each rank's part by the sum of all parts.
fn all_reduce(ranks: &mut [Rank], which: impl Fn(&mut Rank) -> &mut Memory) {
    let dtype = ranks[0].reduce_dtype;
    let sum = sum_of(ranks.iter_mut().map(|rank| summed(which(rank), dtype)), dtype);
    ranks.iter_mut().for_each(|rank| which(rank).fill(&narrowed(&sum, dtype).0));
}

/// The call of a step after which a test inspects the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum After {
    Project,
    BackProject,
}

/// Runs a step on all ranks.
pub(super) fn step(
    backend: &mut CudaBackend,
    ranks: &mut [Rank],
    mut look: impl FnMut(After, &[Rank], &mut CudaBackend),
) {
    for rank in &mut *ranks {
        let (gradients, sums) = (rank.gradients.address(), rank.sums.address());
        // SAFETY: the memory has the program's sizes.
        unsafe {
            backend.encode_exchange(&rank.exchange, gradients, rank.message.address()).unwrap();
            backend.project_exchange(&rank.exchange, gradients, sums).unwrap();
        }
    }
    look(After::Project, ranks, backend);
    all_reduce(ranks, |rank| &mut rank.sums);
    for rank in &mut *ranks {
        let (sums, factors) = (rank.sums.address(), rank.factors.address());
        // SAFETY: the memory has the program's sizes.
        unsafe { backend.back_project_exchange(&rank.exchange, sums, factors) }.unwrap();
    }
    look(After::BackProject, ranks, backend);
    all_reduce(ranks, |rank| &mut rank.factors);
    let bytes: Vec<u8> = ranks.iter().flat_map(|rank| rank.message.bytes().to_vec()).collect();
    let mut messages = Memory::new(bytes.len() as u64);
    messages.fill(&bytes);
    for rank in &mut *ranks {
        let (sums, factors, means) = (rank.sums.address(), rank.factors.address(), rank.gradients.address());
        // SAFETY: the memory has the program's sizes, and the means may replace the gradients.
        unsafe {
            backend.average_exchange(&rank.exchange, sums, factors, means).unwrap();
            backend.finish_exchange(&rank.exchange, messages.address(), means).unwrap();
        }
    }
}

pub(super) fn config(dtype: Dtype, gain: f32) -> ExchangeConfig {
    let stream = Stream { seed: 0x1234_5678_9abc, step: 5, layer: 3, rank: 0 };
    ExchangeConfig { dtype, world: WORLD as u32, stream, gain, ..ExchangeConfig::default() }
}

/// Returns an error text unless all numbers are close to the expected numbers, relative to the largest expected number.
pub(super) fn near(what: &str, found: &[f32], expected: &[f32]) -> Result<(), String> {
    near_as(what, found, expected, Dtype::F32)
}

/// Like [`near`], for numbers that are rounded to `dtype`. Rounding may change a number to an adjacent number of this
/// type.
fn near_as(what: &str, found: &[f32], expected: &[f32], dtype: Dtype) -> Result<(), String> {
    let largest = expected.iter().fold(0.0f64, |largest, &x| largest.max(f64::from(x).abs()));
    let apart = |x: f32| if dtype == Dtype::F32 { 0.0 } else { f64::from(x).abs() / 128.0 };
    let close = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs() <= NEAR * largest + apart(*b);
    match found.iter().zip(expected).position(|pair| !close(pair)) {
        Some(at) => Err(format!("{what}: {} at {at}, not {}; up to {largest}", found[at], expected[at])),
        None => Ok(()),
    }
}

fn same(what: &str, found: &[f32], expected: &[f32]) -> Result<(), String> {
    if bits(found) == bits(expected) { Ok(()) } else { Err(what.into()) }
}

/// Returns the `Q` of the last step. Columns of the random start matrix take the place of zero columns.
fn start(place: &Place, stream: Stream, last: &[f32]) -> Vec<f32> {
    let mut q = vec![0.0; last.len()];
    start_matrix(stream, place.shape.cols(), place.rank as u32, &mut q).unwrap();
    for (column, last) in q.chunks_exact_mut(place.shape.cols()).zip(last.chunks_exact(place.shape.cols())) {
        if last.iter().any(|&x| x != 0.0) {
            column.copy_from_slice(last);
        }
    }
    q
}

/// The values that the core computes for a layer of a rank: the sum of gradient and residual (`offered`), and the residual
/// before the step.
struct Known<'a> {
    place: &'a Place,
    offered: &'a [f32],
    before: &'a [f32],
    reduce_dtype: Dtype,
}

impl<'a> Known<'a> {
    /// Selects the layer's values from `offered` and `before`, which have the values of all layers of a rank.
    fn new(place: &'a Place, offered: &'a [f32], before: &'a [f32], reduce_dtype: Dtype) -> Known<'a> {
        let [offered, before] = [offered, before].map(|values| &values[place.values.clone()]);
        Known { place, offered, before, reduce_dtype }
    }
}

impl Known<'_> {
    fn gradient(&self) -> Gradient<'_> {
        Gradient::new(Values::F32(self.offered), self.place.shape).unwrap()
    }

    fn workspace(&self) -> Vec<u64> {
        vec![!0; steps_workspace_len(self.place.shape, self.place.rank as u32)]
    }

    /// Checks the values of the layer that a rank contributes to the first all-reduce.
    fn check_sums(&self, found: &[f32], stream: Stream, last: &[f32]) -> Result<(), String> {
        if self.place.setting == Setting::Dense {
            let shares: Vec<f32> = self.offered.iter().map(|x| x * SHARE).collect();
            return same("values", found, &narrowed(&shares, self.reduce_dtype).1);
        }
        let mut p = vec![0.0; found.len()];
        let (rank, q) = (self.place.rank as u32, start(self.place, stream, last));
        project(&self.gradient(), rank, &q, &mut self.workspace(), &mut p).unwrap();
        near_as("P", found, &narrowed(&p, self.reduce_dtype).1, self.reduce_dtype)
    }

    /// Checks the factors made from the sum: `p`, which has orthonormal columns, and `q`, which the rank contributes to
    /// the second all-reduce.
    fn check_factors(&self, sum: &[f32], p: &[f32], q: &[f32]) -> Result<(), String> {
        let Place { shape, rank, .. } = *self.place;
        let (mut expected_p, mut expected_q) = (sum.to_vec(), vec![0.0; q.len()]);
        orthonormalise(shape, rank as u32, &mut self.workspace(), &mut expected_p).unwrap();
        near("orthonormal P", p, &expected_p)?;
        check_orthonormal(&p.chunks(shape.rows()).map(<[f32]>::to_vec).collect::<Vec<_>>(), rank);
        back_project(&self.gradient(), rank as u32, p, &mut self.workspace(), &mut expected_q).unwrap();
        near_as("Q", q, &narrowed(&expected_q, self.reduce_dtype).1, self.reduce_dtype)
    }

    /// Returns the next residual, given the factors `p` and `q`.
    fn residual(&self, gain: f32, p: &[f32], q: &[f32]) -> Vec<f32> {
        let (_, mut sent) = narrowed(self.offered, self.reduce_dtype);
        if self.place.setting != Setting::Dense {
            reconstruct(self.place.shape, self.place.rank as u32, p, q, &mut sent).unwrap();
        }
        let stays = self.offered.iter().zip(sent).zip(self.before);
        stays.map(|((x, sent), before)| (1.0 - gain) * before + gain * (x - sent)).collect()
    }
}

/// Runs steps on the device and in the core. Returns the number of compared values.
fn steps(backend: &mut CudaBackend, layers: &Layers, config: ExchangeConfig, steps: u64) -> Result<usize, String> {
    let places = places(layers);
    let mut all = ranks(backend, layers, config);
    let mut compared = 0;
    for number in 0..steps {
        let before: Vec<_> = all.iter().map(|rank| rank.remembered(backend)).collect();
        let mut offered = Vec::new();
        for ((rank, before), seed) in all.iter_mut().zip(&before).zip(1..) {
            let (bytes, values) = narrowed(&uniform(rank.elements, 100 * number + seed), config.dtype);
            rank.gradients.fill(&bytes);
            offered.push(before[0].iter().zip(values).map(|(residual, x)| residual + x).collect::<Vec<_>>());
        }
        let (mut outcome, mut sum, mut own) = (Ok(()), Vec::<f32>::new(), Vec::new());
        let reduce_dtype = config.reduce_dtype;
        step(backend, &mut all, |after, ranks, backend| {
            let parts: Vec<_> = ranks.iter().map(|rank| rank.parts(backend)).collect();
            let check = |place: &Place, layer: u32| {
                let stream = Stream { layer: config.stream.layer + layer, ..config.stream };
                for (number, [sums, factors, p]) in parts.iter().enumerate() {
                    let known = Known::new(place, &offered[number], &before[number][0], reduce_dtype);
                    if after == After::Project {
                        let last = &before[number][1][place.factors.clone()];
                        known.check_sums(&sums[place.sums.clone()], stream, last)?;
                    } else if place.rank > 0 {
                        let (p, q) = (&p[place.of_rows.clone()], &factors[place.factors.clone()]);
                        known.check_factors(&sum[place.sums.clone()], p, q)?;
                    }
                }
                Ok(())
            };
            let checked = places.iter().zip(0..).map(|(place, layer)| {
                check(place, layer).map_err(|error: String| format!("step {number}, layer {layer}: {error}"))
            });
            outcome = outcome.clone().and_then(|()| checked.collect());
            if after == After::Project {
                sum = sum_of(parts.iter().map(|[sums, ..]| sums.clone()), reduce_dtype);
            } else {
                own = parts.into_iter().map(|[_, factors, p]| (p, factors)).collect();
            }
        });
        outcome?;
        let (p, factors) = (&own[0].0, summed(&all[0].factors, reduce_dtype));
        for (rank, (own, _)) in own.iter().enumerate() {
            same(&format!("P of rank {rank} and 0"), own, p)?;
        }
        let q_values = places.iter().map(|place| place.factors.len()).sum();
        let mean_q: Vec<f32> = factors[..q_values].iter().map(|x| x / WORLD as f32).collect();
        let mut means = vec![0.0; all[0].elements];
        for place in &places {
            let mean = &mut means[place.values.clone()];
            if place.setting == Setting::Dense {
                let sum = &sum[place.sums.clone()];
                mean.iter_mut().zip(sum).for_each(|(mean, sum)| *mean = sum / (WORLD as f32 * SHARE));
            } else {
                let (p, q) = (&p[place.of_rows.clone()], &mean_q[place.factors.clone()]);
                reconstruct(place.shape, place.rank as u32, p, q, mean).unwrap();
            }
        }
        let (narrow, _) = narrowed(&means, config.dtype);
        let mut contributed = vec![0.0f64; means.len()];
        for (number_of_rank, rank) in all.iter().enumerate() {
            let context = |what: &str| format!("step {number}, rank {number_of_rank}: {what}");
            if rank.gradients.bytes() != narrow {
                return Err(context("means"));
            }
            let [residuals, remembered] = rank.remembered(backend);
            same(&context("remembered factors"), &remembered, &mean_q)?;
            for (place, layer) in places.iter().zip(0..) {
                let known = Known::new(place, &offered[number_of_rank], &before[number_of_rank][0], reduce_dtype);
                let (p, q) = (&own[number_of_rank].0, &own[number_of_rank].1[place.factors.clone()]);
                let expected = known.residual(config.gain, &p[place.of_rows.clone()], q);
                same(&context(&format!("residual of layer {layer}")), &residuals[place.values.clone()], &expected)?;
            }
            let offered = offered[number_of_rank].iter().zip(residuals).zip(&before[number_of_rank][0]);
            for (sum, ((x, after), before)) in contributed.iter_mut().zip(offered) {
                // after = keep before + gain (offered - sent)
                let rest = (after - (1.0 - config.gain) * before) / config.gain;
                *sum += (f64::from(*x) - f64::from(rest)) / WORLD as f64;
            }
            let outcome = backend.exchange_outcome(&rank.exchange).unwrap();
            assert_eq!((outcome.step, outcome.failed), (config.stream.step + number as u32 + 1, 0));
            assert_eq!((outcome.rank, outcome.fault, rank.found_inf(backend)), (None, None, 0.0));
            compared += rank.elements;
        }
        // The mean must equal the mean of all sent values, up to the rounding of the sum. A larger difference would
        // mean that values get lost.
        let apart = if reduce_dtype == Dtype::F32 { 1e-5 } else { 3e-2 };
        let kept = means.iter().zip(contributed).all(|(&mean, sent)| (f64::from(mean) - sent).abs() < apart);
        if !kept {
            return Err(format!("step {number}: something is lost"));
        }
    }
    Ok(compared)
}

#[test]
fn sums_factors_residuals_and_means_are_the_cores() {
    let elements: usize = layers().iter().map(|(shape, _)| shape.elements()).sum();
    for (dtype, reduce_dtype, gain, order) in [
        (Dtype::F32, Dtype::F32, 1.0, 0),
        (Dtype::Bf16, Dtype::F32, 0.6, 1),
        (Dtype::F16, Dtype::F32, 1.0, 2),
        (Dtype::F32, Dtype::Bf16, 1.0, 2),
        (Dtype::Bf16, Dtype::Bf16, 0.6, 0),
    ] {
        let Some(mut backend) = backend(flavour(), order) else { return };
        let config = ExchangeConfig { reduce_dtype, ..config(dtype, gain) };
        let found = steps(&mut backend, &layers(), config, 2);
        assert_eq!(found, Ok(2 * WORLD * elements), "{dtype:?}, {reduce_dtype:?}, {gain}");
    }
}

/// The bucket has more layers than a warp can search at the same time.
#[test]
fn many_small_layers_find_their_work() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let small = |number: usize| [(9, 4 + number % 3, power(1 + number as u32 % 3)), (1 + number, 1, Setting::Dense)];
    let layers = of(&(0..40).flat_map(small).collect::<Vec<_>>());
    let elements: usize = layers.iter().map(|(shape, _)| shape.elements()).sum();
    assert_eq!(steps(&mut backend, &layers, config(Dtype::F32, 1.0), 1), Ok(WORLD * elements));
}

#[test]
#[ignore = "slow"]
fn planted_faults_are_found() {
    for (from, to) in [
        ("float both = before + own;", "float both = own;"),
        ("atomicAdd(counter, 1u) == blocks - 1", "atomicAdd(counter, 1u) == blocks - 2"),
        ("            atomicExch(counter, 0u);\n", ""),
        ("turn == 0 ? sums[at] : sum + sums[at]", "sums[at]"),
        ("out[k] += gradient[k];", "out[k] = gradient[k];"),
        ("u32 own = unit % sets * FEW;", "u32 own = 0;"),
        ("bool afresh = found == 0;", "bool afresh = true;"),
        ("f.columns, piece % parts, start", "f.columns, 0, start"),
        ("matrix[k] - tile.sums[k]", "matrix[k]"),
        ("keep * *before + ", ""),
        ("remembered += (1 - program->half)", "remembered += program->half"),
        ("both - read_of(p, sent[k])", "0.0f"),
        ("load4(before, 0, i, count, remembered);", "load4(before, 0, 0, count, remembered);"),
        ("store4(to, p.reduce_dtype, i, here, sent);", "store4(to, p.reduce_dtype, i, min(here, 3u), sent);"),
        ("i + half, count, four) : 0;", "i, count, four) : 0;"),
        ("u32 here = min(f.columns - first, SLAB);", "u32 here = min(f.columns - first, SLAB - 1);"),
        ("bits : narrow_bf16(bits);", "bits : bits >> 16;"),
    ] {
        let edit = Edit { module: Module::ExchangeSums, from, to };
        let Some(device) = Simt::new(Flavour::Plain, 0, Some(edit)) else { return };
        let mut backend = CudaBackend::on(Box::new(device));
        let layers = of(&[(60, 300, power(20)), (90, 40, Setting::Dense), (300, 50, power(40))]);
        let config = ExchangeConfig { reduce_dtype: Dtype::Bf16, ..config(Dtype::F32, 0.5) };
        let outcome = steps(&mut backend, &layers, config, 2);
        assert!(outcome.is_err(), "{from}");
    }
}
