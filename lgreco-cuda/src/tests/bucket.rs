//! Compares buckets on the device with lgreco-train's exchange in host memory. The bucket and the host's exchange must
//! request the same collectives.
#![allow(unsafe_code)]

use super::backend;
use super::exchange::{Memory, narrowed};
use super::launches::{Calls, Counted};
use super::simt::{Flavour, flavour};
use crate::device::Part;
use crate::{CudaBackend, DeviceBucket, DeviceLayer, DeviceMemory, DeviceRequest, Error, ExchangeConfig, OnFault};
use lgreco::compress::Setting;
use lgreco::compress::eden::Eden;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::gradient::{Bf16, Dtype, Element, F16, Shape};
use lgreco::rng::Stream;
use lgreco_testing::exchange::Case;
use lgreco_testing::powersgd::uniform;
use lgreco_train::exchange::{Request, Route, Slip, threads};
use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

const WORLD: usize = 3;

fn settings() -> Vec<(Setting, Shape)> {
    let qsgd = |bits, bucket, scale| Setting::Qsgd(Qsgd { bits, bucket, scale, ..Qsgd::default() });
    let shape = |rows, cols| Shape::new(rows, cols).unwrap();
    vec![
        (qsgd(4, 512, Scale::MaxNorm), shape(130, 97)),
        (qsgd(8, 64, Scale::MaxNorm), shape(7, 1)),
        (Setting::Dense, shape(33, 1)),
        (qsgd(2, 128, Scale::MinMax), shape(64, 33)),
        (Setting::TopK(TopK { keep: 300, values: Dtype::F32 }), shape(101, 61)),
        (Setting::TopK(TopK { keep: 2, values: Dtype::F16 }), shape(1, 9)),
        (Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 }), shape(48, 70)),
        (Setting::Dense, shape(5001, 1)),
        (Setting::QuantisedTopK(QuantisedTopK { keep: 150, bits: 3 }), shape(50, 40)),
        (Setting::Eden(Eden { bits: 2, ..Eden::default() }), shape(100, 50)),
    ]
}

/// A rank's bucket and memory.
struct Rank {
    bucket: DeviceBucket,
    gradients: Memory,
    _memory: Memory,
    dtype: Dtype,
    elements: usize,
}

fn config(rank: u32) -> ExchangeConfig {
    let stream = Stream { seed: 77, step: 4, layer: 0, rank };
    ExchangeConfig { world: WORLD as u32, stream, on_fault: OnFault::Nan, ..ExchangeConfig::default() }
}

impl Rank {
    fn new(cuda: &mut CudaBackend, layers: &[(Setting, Shape)], rank: u32) -> Rank {
        Rank::of(cuda, layers, config(rank))
    }

    fn of(cuda: &mut CudaBackend, layers: &[(Setting, Shape)], config: ExchangeConfig) -> Rank {
        let layer = |(index, &(setting, shape))| DeviceLayer { index, shape, setting, shards: &[] };
        let layers: Vec<DeviceLayer> = (0..).zip(layers).map(layer).collect();
        let mut memory = Memory::new(DeviceBucket::bytes(&layers, config).unwrap());
        let elements: usize = layers.iter().map(|layer| layer.shape.elements()).sum();
        // SAFETY: the memory lives as long as the bucket, and is large enough.
        let bucket = unsafe { DeviceBucket::new(cuda, &layers, config, memory.address()) }.unwrap();
        let (dtype, gradients) = (config.dtype, Memory::new((elements * config.dtype.bytes()) as u64));
        Rank { bucket, gradients, _memory: memory, dtype, elements }
    }

    fn submit(&mut self, cuda: &mut CudaBackend, values: &[f32]) {
        self.gradients.fill(&narrowed(values, self.dtype).0);
        // SAFETY: the gradients are large enough, and no other work uses them until the step has ended.
        unsafe { self.bucket.submit(cuda, self.gradients.address()) }.unwrap();
    }

    fn next(&mut self, cuda: &mut CudaBackend) -> Option<DeviceRequest<'_>> {
        // SAFETY: the requested collective is done.
        unsafe { self.bucket.next(cuda) }.unwrap()
    }

    fn means(&self) -> Vec<f32> {
        let bytes = self.gradients.bytes();
        let halves = || bytes.as_chunks().0.iter().map(|&bytes| u16::from_ne_bytes(bytes));
        match self.dtype {
            Dtype::F32 => bytemuck::cast_slice(bytes).to_vec(),
            Dtype::F16 => halves().map(|half| F16(half).to_f32()).collect(),
            Dtype::Bf16 => halves().map(|half| Bf16(half).to_f32()).collect(),
        }
    }

    fn residuals(&self, cuda: &mut CudaBackend) -> Vec<f32> {
        let mut values = vec![0.0; self.elements];
        self.bucket.residuals(cuda, &mut values).unwrap();
        values
    }
}

/// Returns the values in a collective's memory.
///
/// # Safety
/// No enqueued work uses the memory.
pub(super) unsafe fn seen<'a, T>(memory: DeviceMemory) -> &'a mut [T] {
    // SAFETY: the simulated device's memory is the CPU's, and belongs to the bucket.
    unsafe { slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(memory.address as usize), memory.len) }
}

/// Performs the collective that all ranks have requested.
fn perform(cuda: &mut CudaBackend, requests: &[DeviceRequest<'_>]) {
    cuda.synchronise().unwrap();
    match requests[0] {
        Request::AllGather { .. } => {
            let buffers = requests.iter().map(|request| match request {
                // SAFETY: all enqueued work is done.
                &Request::AllGather { buffer } => unsafe { seen::<u8>(buffer) },
                other => panic!("{other:?} beside an all-gather"),
            });
            let mut buffers: Vec<&mut [u8]> = buffers.collect();
            let apart = buffers[0].len() / requests.len();
            let own = |(rank, buffer): (usize, &&mut [u8])| buffer[rank * apart..][..apart].to_vec();
            let all: Vec<u8> = buffers.iter().enumerate().flat_map(own).collect();
            buffers.iter_mut().for_each(|buffer| buffer.copy_from_slice(&all));
        }
        Request::AllReduceSum { .. } => {
            let buffers = requests.iter().map(|request| match request {
                // SAFETY: all enqueued work is done.
                &Request::AllReduceSum { values } => unsafe { seen::<f32>(values) },
                other => panic!("{other:?} beside a sum"),
            });
            let mut buffers: Vec<&mut [f32]> = buffers.collect();
            let sum = |at: usize| buffers[1..].iter().fold(buffers[0][at], |sum, buffer| sum + buffer[at]);
            let sums: Vec<f32> = (0..buffers[0].len()).map(sum).collect();
            buffers.iter_mut().for_each(|buffer| buffer.copy_from_slice(&sums));
        }
        Request::AllReduceSumBf16 { .. } => {
            let buffers = requests.iter().map(|request| match request {
                // SAFETY: all enqueued work is done.
                &Request::AllReduceSumBf16 { values } => unsafe { seen::<Bf16>(values) },
                other => panic!("{other:?} beside a sum of bf16"),
            });
            let mut buffers: Vec<&mut [Bf16]> = buffers.collect();
            // Each addition rounds to bf16.
            let add = |sum: Bf16, x: Bf16| Bf16::from_f32(sum.to_f32() + x.to_f32());
            let sum = |at: usize| buffers[1..].iter().fold(buffers[0][at], |sum, buffer| add(sum, buffer[at]));
            let sums: Vec<Bf16> = (0..buffers[0].len()).map(sum).collect();
            buffers.iter_mut().for_each(|buffer| buffer.copy_from_slice(&sums));
        }
        ref other => panic!("{other:?}"),
    }
}

/// Runs a step on all ranks. Returns the number of collectives.
fn step(cuda: &mut CudaBackend, ranks: &mut [Rank], gradients: &[Vec<f32>]) -> usize {
    ranks.iter_mut().zip(gradients).for_each(|(rank, values)| rank.submit(cuda, values));
    finish(cuda, ranks)
}

/// Finishes a step whose gradients have been submitted. Returns the number of collectives.
fn finish(cuda: &mut CudaBackend, ranks: &mut [Rank]) -> usize {
    let world = ranks.len();
    for collectives in 0.. {
        let requests: Vec<_> = ranks.iter_mut().filter_map(|rank| rank.next(cuda)).collect();
        if requests.is_empty() {
            cuda.synchronise().unwrap();
            return collectives;
        }
        assert_eq!(requests.len(), world, "ranks were asked for different collectives");
        perform(cuda, &requests);
    }
    unreachable!()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Splits values by layer.
fn by_layer(layers: &[(Setting, Shape)], values: &[f32]) -> Vec<Vec<f32>> {
    let mut rest = values;
    let cut = |(_, shape): &(Setting, Shape)| rest.split_off(..shape.elements()).unwrap().to_vec();
    layers.iter().map(cut).collect()
}

/// The factors of the last step that the host's PowerSGD has remembered, by rank and layer. Before the first step, a
/// rank has `None`.
type Factors = Vec<Option<Vec<Vec<f32>>>>;

/// Compares means and residuals of several steps with lgreco-train's exchange in host memory. The values must be equal
/// bit for bit. Under PowerSGD, the values must only be close, but the means must have the same bits on all ranks. Each
/// step must take `collectives` collectives.
fn same_as_on_the_host(
    cuda: &mut CudaBackend,
    ranks: &mut [Rank],
    layers: &[(Setting, Shape)],
    (from, until, collectives): (u32, u32, usize),
    reduce_dtype: Dtype,
    factors: &mut Factors,
) {
    let (elements, dtype) = (ranks[0].elements, ranks[0].dtype);
    for number in from..until {
        let draw = |rank| narrowed(&uniform(elements, 100 * u64::from(number) + rank), dtype).1;
        let gradients: Vec<Vec<f32>> = (0..WORLD as u64).map(draw).collect();
        let offered: Vec<Vec<f32>> = ranks
            .iter()
            .zip(&gradients)
            .map(|(rank, gradient)| rank.residuals(cuda).iter().zip(gradient).map(|(r, g)| r + g).collect())
            .collect();
        let case = Case {
            layers: layers.to_vec(),
            gradients: offered.iter().map(|values| by_layer(layers, values)).collect(),
            route: Route::AllGather,
            reduce_dtype,
            seed: 77,
            step: number,
        };
        let before = std::mem::take(factors);
        let outcomes = threads::run(WORLD as u32, |mut worker| {
            let own = before[worker.rank() as usize].clone();
            case.exchange(&mut worker, own)
        });
        assert_eq!(step(cuda, ranks, &gradients), collectives);
        for ((rank, outcome), offered) in ranks.iter().zip(outcomes).zip(&offered) {
            let outcome = outcome.unwrap();
            assert_eq!(bits(&rank.means()), bits(&ranks[0].means()));
            let (means, residuals) = (by_layer(layers, &rank.means()), by_layer(layers, &rank.residuals(cuda)));
            for (layer, (setting, _)) in layers.iter().enumerate() {
                let offered = &by_layer(layers, offered)[layer];
                let rest: Vec<f32> = offered.iter().zip(&outcome.own[layer]).map(|(x, own)| x - own).collect();
                let what = format!("step {number}, layer {layer}");
                let (_, mean) = narrowed(&outcome.mean[layer], dtype);
                if let Setting::PowerSgd(_) = setting {
                    near(&means[layer], &mean, &what);
                    near(&residuals[layer], &rest, &what);
                } else {
                    assert_eq!(bits(&means[layer]), bits(&mean), "{what}");
                    assert_eq!(bits(&residuals[layer]), bits(&rest), "{what}");
                }
            }
            factors.push(Some(outcome.factors));
            let outcome = rank.bucket.outcome(cuda).unwrap();
            assert_eq!((outcome.step, outcome.failed), (number + 1, 0));
        }
    }
}

/// Checks that values agree up to the rounding errors of f32 sums in different orders.
fn near(found: &[f32], expected: &[f32], what: &str) {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let apart = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let all = norm(&mut expected.iter().copied());
    assert!(apart <= 1e-4 * all, "{what}: {apart:e} of {all:e}");
}

fn ranks(cuda: &mut CudaBackend, layers: &[(Setting, Shape)]) -> Vec<Rank> {
    (0..WORLD as u32).map(|rank| Rank::new(cuda, layers, rank)).collect()
}

#[test]
fn means_and_residuals_are_those_of_the_hosts_exchange() {
    let all = settings();
    let only = |wanted: fn(&Setting) -> bool| all.iter().copied().filter(|(setting, _)| wanted(setting)).collect();
    let buckets: [(Vec<(Setting, Shape)>, usize); 5] = [
        (all.clone(), 3),
        (only(|setting| *setting == Setting::Dense), 1),
        (only(|setting| matches!(setting, Setting::Qsgd(_) | Setting::TopK(_) | Setting::QuantisedTopK(_))), 1),
        (only(|setting| matches!(setting, Setting::Eden(_))), 1),
        (only(|setting| matches!(setting, Setting::PowerSgd(_))), 2),
    ];
    for ((layers, collectives), order) in buckets.into_iter().zip([2, 1, 0, 1, 2]) {
        let Some(mut cuda) = backend(flavour(), order) else { return };
        let mut ranks = ranks(&mut cuda, &layers);
        let steps = (4, 7, collectives);
        same_as_on_the_host(&mut cuda, &mut ranks, &layers, steps, Dtype::F32, &mut vec![None; WORLD]);
    }
}

/// Runs a bucket with layers of all kinds, with nonzero residuals.
#[test]
fn no_race_is_found() {
    let Some(mut cuda) = backend(Flavour::Races, 2) else { return };
    let mut ranks = ranks(&mut cuda, &settings());
    same_as_on_the_host(&mut cuda, &mut ranks, &settings(), (4, 6, 3), Dtype::F32, &mut vec![None; WORLD]);
}

#[test]
fn so_they_are_in_other_types_and_by_sums_of_bf16() {
    let layers = settings();
    for (dtype, reduce_dtype, order) in [
        (Dtype::F16, Dtype::F32, 0),
        (Dtype::Bf16, Dtype::Bf16, 1),
        (Dtype::F32, Dtype::Bf16, 2),
        (Dtype::F16, Dtype::Bf16, 2),
    ] {
        let Some(mut cuda) = backend(flavour(), order) else { return };
        let of = |rank| ExchangeConfig { dtype, reduce_dtype, ..config(rank) };
        let mut ranks: Vec<Rank> = (0..WORLD as u32).map(|rank| Rank::of(&mut cuda, &layers, of(rank))).collect();
        same_as_on_the_host(&mut cuda, &mut ranks, &layers, (4, 7, 3), reduce_dtype, &mut vec![None; WORLD]);
    }
}

#[test]
fn other_settings_go_on_with_residuals_and_steps() {
    let Some(mut cuda) = backend(flavour(), 1) else { return };
    let before = settings();
    let mut old = ranks(&mut cuda, &before);
    same_as_on_the_host(&mut cuda, &mut old, &before, (4, 5, 3), Dtype::F32, &mut vec![None; WORLD]);
    let mut after = before.clone();
    after[0].0 = Setting::Qsgd(Qsgd { bits: 3, ..Qsgd::default() });
    after[3].0 = Setting::TopK(TopK { keep: 100, values: Dtype::F32 });
    let mut new = ranks(&mut cuda, &after);
    for (new, old) in new.iter_mut().zip(&old) {
        // SAFETY: both buckets were made on this backend.
        unsafe { new.bucket.take_over(&mut cuda, &old.bucket) }.unwrap();
        assert_eq!(bits(&new.residuals(&mut cuda)), bits(&old.residuals(&mut cuda)));
        let (first, which) = old.bucket.residual_addresses();
        let mut second = [0];
        cuda.gpu_mut()
            .read_into(Part { address: which, bytes: 4 }, bytemuck::cast_slice_mut::<u32, u8>(&mut second))
            .unwrap();
        let bytes = 4 * old.residuals(&mut cuda).len() as u64;
        assert_eq!(first + u64::from(second[0]) * bytes, old.bucket.outcome(&mut cuda).unwrap().residuals);
    }
    // After `take_over`, PowerSGD starts without factors of earlier steps.
    same_as_on_the_host(&mut cuda, &mut new, &after, (5, 7, 3), Dtype::F32, &mut vec![None; WORLD]);
    // Residuals can also be read and set, as for a saved state.
    let mut third = Rank::new(&mut cuda, &after, 0);
    let values = new[0].residuals(&mut cuda);
    third.bucket.set_residuals(&mut cuda, &values).unwrap();
    assert_eq!(bits(&third.residuals(&mut cuda)), bits(&values));
    let shorter = Rank::new(&mut cuda, &after[1..], 0);
    // SAFETY: both buckets were made on this backend.
    let refused = unsafe { third.bucket.take_over(&mut cuda, &shorter.bucket) };
    assert!(matches!(refused, Err(Error::Core(lgreco::Error::Length { .. }))), "{refused:?}");
}

#[test]
fn a_step_is_given_up_wherever_it_is_and_layers_are_forgotten() {
    let Some(mut cuda) = backend(flavour(), 0) else { return };
    let layers = settings();
    let mut ranks = ranks(&mut cuda, &layers);
    same_as_on_the_host(&mut cuda, &mut ranks, &layers, (4, 5, 3), Dtype::F32, &mut vec![None; WORLD]);
    let elements = ranks[0].means().len();
    let draw = |seed: u64| (0..WORLD as u64).map(|rank| uniform(elements, seed + rank)).collect::<Vec<_>>();
    let before = |cuda: &mut CudaBackend, rank: &Rank, step| {
        let mut values = vec![f32::NAN; elements];
        rank.bucket.residuals_before(cuda, step, &mut values).unwrap();
        bits(&values)
    };
    // The residuals that preceded step 5 must be the same at four times: before, during and after the step, and after a
    // failed step.
    let of_step_5 = bits(&ranks[0].residuals(&mut cuda));
    assert_eq!(before(&mut cuda, &ranks[0], 5), of_step_5);
    let gradients = draw(900);
    ranks.iter_mut().zip(&gradients).for_each(|(rank, values)| rank.submit(&mut cuda, values));
    assert_eq!(before(&mut cuda, &ranks[0], 5), of_step_5);
    loop {
        let requests: Vec<_> = ranks.iter_mut().filter_map(|rank| rank.next(&mut cuda)).collect();
        if requests.is_empty() {
            break;
        }
        perform(&mut cuda, &requests);
    }
    let of_step_6 = bits(&ranks[0].residuals(&mut cuda));
    assert_ne!(of_step_5, of_step_6);
    assert_eq!(before(&mut cuda, &ranks[0], 5), of_step_5);
    assert_eq!(before(&mut cuda, &ranks[0], 6), of_step_6);
    let mut broken = draw(950);
    broken[2][7] = f32::NAN;
    step(&mut cuda, &mut ranks, &broken);
    assert_eq!(before(&mut cuda, &ranks[0], 6), of_step_6);
    assert_eq!(bits(&ranks[0].residuals(&mut cuda)), of_step_6);

    let kept = by_layer(&layers, &ranks[0].residuals(&mut cuda));
    ranks[0].bucket.forget(&mut cuda, 3).unwrap();
    ranks[0].bucket.forget(&mut cuda, layers.len()).unwrap();
    let left = by_layer(&layers, &ranks[0].residuals(&mut cuda));
    for (layer, (kept, left)) in kept.iter().zip(&left).enumerate() {
        assert_eq!(bits(left), if layer == 3 { vec![0; kept.len()] } else { bits(kept) }, "layer {layer}");
    }
    assert!(kept[3].iter().any(|&value| value != 0.0));
}

#[test]
fn a_rank_at_fault_is_known_to_all() {
    let Some(mut cuda) = backend(flavour(), 0) else { return };
    let layers = settings();
    let mut ranks = ranks(&mut cuda, &layers);
    let mut gradients: Vec<Vec<f32>> = (0..3).map(|rank| uniform(ranks[0].elements, rank)).collect();
    gradients[1][130 * 97 + 3] = f32::INFINITY;
    step(&mut cuda, &mut ranks, &gradients);
    for (rank, number) in ranks.iter().zip(0..) {
        let outcome = rank.bucket.outcome(&mut cuda).unwrap();
        assert_eq!((outcome.rank, outcome.failed, outcome.fault.is_some()), (Some(1), 1, number == 1));
        assert!(rank.means().iter().all(|mean| mean.is_nan()));
        assert!(rank.residuals(&mut cuda).iter().all(|&residual| residual == 0.0));
    }
}

#[test]
fn a_rank_without_gradients_is_an_error_there_and_known_to_all() {
    let failure = Error::Core(lgreco::Error::Overflow { what: "a residual" });
    for (wanted, order) in [(0..9, 0), (2..3, 1), (0..2, 2)] {
        let Some(mut cuda) = backend(flavour(), order) else { return };
        let layers = &settings()[wanted];
        let mut ranks = ranks(&mut cuda, layers);
        let draw = |seed| uniform(layers.iter().map(|(_, shape)| shape.elements()).sum(), seed);
        step(&mut cuda, &mut ranks, &[draw(1), draw(2), draw(3)]);
        let before: Vec<_> = ranks.iter().map(|rank| bits(&rank.residuals(&mut cuda))).collect();
        ranks[0].submit(&mut cuda, &draw(4));
        ranks[2].submit(&mut cuda, &draw(5));
        let Rank { bucket, gradients, .. } = &mut ranks[1];
        // SAFETY: the gradients are large enough, and no other work uses them until the step has ended.
        unsafe { bucket.submit_failure(&mut cuda, gradients.address(), failure.clone()) }.unwrap();
        loop {
            // SAFETY: the requested collective is done.
            let requests: Vec<_> = ranks.iter_mut().map(|rank| unsafe { rank.bucket.next(&mut cuda) }).collect();
            if let [Ok(None), own, Ok(None)] = &requests[..] {
                assert_eq!(own.as_ref().unwrap_err(), &failure);
                break;
            }
            let requests: Vec<_> = requests.into_iter().map(|request| request.unwrap().unwrap()).collect();
            perform(&mut cuda, &requests);
        }
        for (rank, before) in ranks.iter().zip(before) {
            let outcome = rank.bucket.outcome(&mut cuda).unwrap();
            assert_eq!((outcome.step, outcome.failed, outcome.rank, outcome.fault), (6, 1, Some(1), None));
            assert!(rank.means().iter().all(|mean| mean.is_nan()));
            assert_eq!(bits(&rank.residuals(&mut cuda)), before);
        }
        step(&mut cuda, &mut ranks, &[draw(6), draw(7), draw(8)]);
        assert!(ranks.iter().all(|rank| rank.means().iter().all(|mean| mean.is_finite())));
        // This `submit_failure` comes during a step, so the bucket must refuse the call and forget the failure.
        ranks[0].submit(&mut cuda, &draw(9));
        let Rank { bucket, gradients, .. } = &mut ranks[0];
        // SAFETY: the call is refused before it uses memory.
        let refused = unsafe { bucket.submit_failure(&mut cuda, gradients.address(), failure.clone()) };
        assert!(matches!(refused, Err(Error::Train(lgreco_train::Error::StepOrder { .. }))), "{refused:?}");
        let rest = [draw(10), draw(11)];
        ranks[1..].iter_mut().zip(&rest).for_each(|(rank, values)| rank.submit(&mut cuda, values));
        finish(&mut cuda, &mut ranks);
    }
}

#[test]
fn steps_have_an_order() {
    let Some(mut cuda) = backend(flavour(), 0) else { return };
    let mut rank = Rank::new(&mut cuda, &settings(), 2);
    let out_of_order = |outcome: Result<(), Error>| {
        let stepped = matches!(outcome, Err(Error::Train(lgreco_train::Error::StepOrder { .. })));
        assert!(stepped, "{outcome:?}");
    };
    // SAFETY: the call is refused before it uses memory.
    out_of_order(unsafe { rank.bucket.next(&mut cuda) }.map(drop));
    let address = rank.gradients.address();
    // SAFETY: the call is refused before it uses memory.
    let refused = unsafe { rank.bucket.submit(&mut cuda, address + 2) };
    assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    let values = vec![0.5; rank.elements];
    rank.submit(&mut cuda, &values);
    // SAFETY: the call is refused before it uses memory.
    out_of_order(unsafe { rank.bucket.submit(&mut cuda, address) });
    assert!(matches!(rank.next(&mut cuda), Some(Request::AllReduceSum { .. })));
}

/// If a rank's device refuses work, the rank must still take part in all collectives, so that no other rank waits
/// forever. At the end of the step, `next` returns the error on that rank.
#[test]
fn what_the_device_refuses_changes_no_collective() {
    let of_device = Arc::new(Calls::default());
    let mut cuda = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let refused = Error::OutOfMemory { bytes: 7 };
    let collectives = |cuda: &mut CudaBackend, from: usize| {
        *of_device.failing.lock().unwrap() = None;
        let mut rank = Rank::new(cuda, &settings(), 0);
        let fails = |at: usize| *of_device.failing.lock().unwrap() = (at >= from).then(|| refused.clone());
        fails(0);
        let values = vec![0.5; rank.elements];
        rank.submit(cuda, &values);
        for number in 1.. {
            fails(number);
            // SAFETY: a counting device accesses no memory.
            match unsafe { rank.bucket.next(cuda) } {
                Ok(Some(_)) => {}
                Ok(None) => return (number, None),
                Err(error) => return (number, Some(error)),
            }
        }
        unreachable!()
    };
    assert_eq!(collectives(&mut cuda, 9), (4, None));
    for from in 0..=4 {
        assert_eq!(collectives(&mut cuda, from), (4, Some(refused.clone())), "from call {from} on");
    }
}

/// A status record after the summed values reports the error to the other ranks. In bf16, the status record may begin
/// in the middle of a word.
#[test]
fn what_the_device_refuses_is_told_to_the_others() {
    let of_device = Arc::new(Calls::default());
    let mut cuda = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let refused = Error::OutOfMemory { bytes: 7 };
    let layers = |values| [(Setting::Dense, Shape::new(values, 1).unwrap())];
    for (reduce_dtype, rank, values) in [Dtype::F32, Dtype::Bf16]
        .into_iter()
        .flat_map(|dtype| (0..WORLD as u32).flat_map(move |rank| [(dtype, rank, 6), (dtype, rank, 7)]))
    {
        *of_device.failing.lock().unwrap() = None;
        let mut own = Rank::of(&mut cuda, &layers(values), ExchangeConfig { reduce_dtype, ..config(rank) });
        *of_device.failing.lock().unwrap() = Some(refused.clone());
        of_device.words.lock().unwrap().clear();
        own.submit(&mut cuda, &vec![0.5; values]);
        let Some(Request::AllReduceSum { values: memory } | Request::AllReduceSumBf16 { values: memory }) =
            own.next(&mut cuda)
        else {
            panic!("not a sum")
        };
        let (size, slip) = (reduce_dtype.bytes() as u64, Slip::values(reduce_dtype));
        assert_eq!(memory.len, values + WORLD * slip);
        let words = of_device.words.lock().unwrap();
        let bytes = words.iter().flat_map(|(&at, word)| (at..).zip(word.to_ne_bytes()));
        let set: BTreeMap<u64, u8> = bytes.filter(|&(_, byte)| byte != 0).collect();
        let first = memory.address + size * (values + rank as usize * slip) as u64;
        let half = |at: u64| u16::from_ne_bytes([at, at + 1].map(|at| set.get(&at).copied().unwrap_or(0)));
        let told = match reduce_dtype {
            Dtype::F32 => Slip::of_sum(f32::from_bits(u32::from(half(first + 2)) << 16 | u32::from(half(first)))),
            _ => Slip::of_bf16_sum([0, 2, 4].map(|at| Bf16(half(first + at)))),
        };
        assert_eq!(told.code, u64::from(refused.to_core().code()), "{reduce_dtype:?}, rank {rank}, {values} values");
        assert!(set.keys().all(|at| (first..first + size * slip as u64).contains(at)), "the places of others");
    }
}
