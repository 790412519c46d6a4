//! Buckets on the device against lgreco-train's exchange in the host's memory, by the collectives that both ask for.
#![allow(unsafe_code)]

use super::backend;
use super::exchange::Memory;
use super::simt::flavour;
use crate::{CudaBackend, DeviceBucket, DeviceLayer, DeviceMemory, DeviceRequest, Error, ExchangeConfig, OnFault};
use lgreco_core::compress::Setting;
use lgreco_core::compress::qsgd::{Qsgd, Scale};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use lgreco_core::testing::powersgd::uniform;
use lgreco_train::exchange::{Request, Route};
use lgreco_train::testing::exchange::Case;
use std::slice;

const WORLD: usize = 3;

fn settings() -> Vec<(Setting, Shape)> {
    let qsgd = |bits, bucket, scale| Setting::Qsgd(Qsgd { bits, bucket, scale, ..Qsgd::default() });
    let shape = |rows, cols| Shape::new(rows, cols).unwrap();
    vec![
        (qsgd(4, 512, Scale::MaxNorm), shape(130, 97)),
        (qsgd(8, 64, Scale::MaxNorm), shape(7, 1)),
        (qsgd(2, 128, Scale::MinMax), shape(64, 33)),
    ]
}

/// One rank's bucket and memory.
struct Rank {
    bucket: DeviceBucket,
    gradients: Memory,
    _memory: Memory,
}

fn config(rank: u32) -> ExchangeConfig {
    let stream = Stream { seed: 77, step: 4, layer: 0, rank };
    ExchangeConfig { world: WORLD as u32, stream, on_fault: OnFault::Nan, ..ExchangeConfig::default() }
}

impl Rank {
    fn new(cuda: &mut CudaBackend, layers: &[(Setting, Shape)], rank: u32) -> Rank {
        let layer = |(index, &(setting, shape))| DeviceLayer { index, shape, setting };
        let layers: Vec<DeviceLayer> = (0..).zip(layers).map(layer).collect();
        let mut memory = Memory::new(DeviceBucket::bytes(&layers, config(rank)).unwrap());
        let elements: usize = layers.iter().map(|layer| layer.shape.elements()).sum();
        // SAFETY: the memory lives as long as the bucket, and is large enough.
        let bucket = unsafe { DeviceBucket::new(cuda, &layers, config(rank), memory.address()) }.unwrap();
        Rank { bucket, gradients: Memory::new(4 * elements as u64), _memory: memory }
    }

    fn submit(&mut self, cuda: &mut CudaBackend, values: &[f32]) {
        self.gradients.fill(bytemuck::cast_slice(values));
        // SAFETY: large enough, and nothing else uses them until the step has ended.
        unsafe { self.bucket.submit(cuda, self.gradients.address()) }.unwrap();
    }

    fn next(&mut self, cuda: &mut CudaBackend) -> Option<DeviceRequest> {
        // SAFETY: the collective asked for before is done.
        unsafe { self.bucket.next(cuda) }.unwrap()
    }

    fn means(&self) -> &[f32] {
        bytemuck::cast_slice(self.gradients.bytes())
    }

    fn residuals(&self, cuda: &mut CudaBackend) -> Vec<f32> {
        let mut values = vec![0.0; self.means().len()];
        self.bucket.residuals(cuda, &mut values).unwrap();
        values
    }
}

/// What a rank's collective works on.
///
/// # Safety
/// Nothing that is enqueued uses it.
unsafe fn seen<'a, T>(memory: DeviceMemory) -> &'a mut [T] {
    // SAFETY: the imitated device's memory is the processor's, and is the bucket's.
    unsafe { slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(memory.address as usize), memory.len) }
}

/// Performs all ranks' collective.
fn perform(cuda: &mut CudaBackend, requests: &[DeviceRequest]) {
    cuda.synchronise().unwrap();
    match requests[0] {
        Request::AllGather { .. } => {
            let buffers = requests.iter().map(|request| match request {
                // SAFETY: all is done that is enqueued.
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
                // SAFETY: all is done that is enqueued.
                &Request::AllReduceSum { values } => unsafe { seen::<f32>(values) },
                other => panic!("{other:?} beside a sum"),
            });
            let mut buffers: Vec<&mut [f32]> = buffers.collect();
            let sum = |at: usize| buffers[1..].iter().fold(buffers[0][at], |sum, buffer| sum + buffer[at]);
            let sums: Vec<f32> = (0..buffers[0].len()).map(sum).collect();
            buffers.iter_mut().for_each(|buffer| buffer.copy_from_slice(&sums));
        }
        ref other => panic!("{other:?}"),
    }
}

/// A step of all ranks; how many collectives it took.
fn step(cuda: &mut CudaBackend, ranks: &mut [Rank], gradients: &[Vec<f32>]) -> usize {
    ranks.iter_mut().zip(gradients).for_each(|(rank, values)| rank.submit(cuda, values));
    for collectives in 0.. {
        let requests: Vec<_> = ranks.iter_mut().filter_map(|rank| rank.next(cuda)).collect();
        if requests.is_empty() {
            cuda.synchronise().unwrap();
            return collectives;
        }
        assert_eq!(requests.len(), ranks.len(), "ranks were asked for different collectives");
        perform(cuda, &requests);
    }
    unreachable!()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Cuts values by layer.
fn by_layer(layers: &[(Setting, Shape)], values: &[f32]) -> Vec<Vec<f32>> {
    let mut rest = values;
    let cut = |(_, shape): &(Setting, Shape)| rest.split_off(..shape.elements()).unwrap().to_vec();
    layers.iter().map(cut).collect()
}

/// Means and residuals of some steps, as lgreco-train's exchange in the host's memory has them.
fn same_as_on_the_host(cuda: &mut CudaBackend, ranks: &mut [Rank], layers: &[(Setting, Shape)], from: u32, until: u32) {
    let elements = ranks[0].means().len();
    for number in from..until {
        let draw = |rank| uniform(elements, 100 * u64::from(number) + rank);
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
            reduce_dtype: Dtype::F32,
            seed: 77,
            step: number,
        };
        assert_eq!(step(cuda, ranks, &gradients), 1);
        for ((rank, outcome), offered) in ranks.iter().zip(case.run()).zip(&offered) {
            let outcome = outcome.unwrap();
            assert_eq!(bits(rank.means()), bits(&outcome.mean.concat()), "step {number}");
            let rest: Vec<f32> = offered.iter().zip(outcome.own.concat()).map(|(x, own)| x - own).collect();
            assert_eq!(bits(&rank.residuals(cuda)), bits(&rest), "step {number}");
            let outcome = rank.bucket.outcome(cuda).unwrap();
            assert_eq!((outcome.step, outcome.failed), (number + 1, 0));
        }
    }
}

#[test]
fn means_and_residuals_are_those_of_the_hosts_exchange() {
    let Some(mut cuda) = backend(flavour(), 2) else { return };
    let layers = settings();
    let mut ranks: Vec<Rank> = (0..WORLD as u32).map(|rank| Rank::new(&mut cuda, &layers, rank)).collect();
    same_as_on_the_host(&mut cuda, &mut ranks, &layers, 4, 7);
}

#[test]
fn other_settings_go_on_with_residuals_and_steps() {
    let Some(mut cuda) = backend(flavour(), 1) else { return };
    let before = settings();
    let mut ranks: Vec<Rank> = (0..WORLD as u32).map(|rank| Rank::new(&mut cuda, &before, rank)).collect();
    same_as_on_the_host(&mut cuda, &mut ranks, &before, 4, 5);
    let mut after = before.clone();
    after[0].0 = Setting::Qsgd(Qsgd { bits: 3, ..Qsgd::default() });
    let mut others: Vec<Rank> = (0..WORLD as u32).map(|rank| Rank::new(&mut cuda, &after, rank)).collect();
    for (new, old) in others.iter_mut().zip(&ranks) {
        // SAFETY: both are of this backend.
        unsafe { new.bucket.take_over(&mut cuda, &old.bucket) }.unwrap();
    }
    same_as_on_the_host(&mut cuda, &mut others, &after, 5, 7);
    // A saved state goes on likewise.
    let mut third: Vec<Rank> = (0..WORLD as u32).map(|rank| Rank::new(&mut cuda, &after, rank)).collect();
    for (new, old) in third.iter_mut().zip(&others) {
        let values = old.residuals(&mut cuda);
        new.bucket.set_residuals(&mut cuda, &values).unwrap();
        assert_eq!(bits(&new.residuals(&mut cuda)), bits(&values));
    }
    let shorter = Rank::new(&mut cuda, &after[1..], 0);
    // SAFETY: both are of this backend.
    let refused = unsafe { third[0].bucket.take_over(&mut cuda, &shorter.bucket) };
    assert!(matches!(refused, Err(Error::Core(lgreco_core::Error::Length { .. }))), "{refused:?}");
}

#[test]
fn a_rank_at_fault_is_known_to_all() {
    let Some(mut cuda) = backend(flavour(), 0) else { return };
    let layers = settings();
    let mut ranks: Vec<Rank> = (0..WORLD as u32).map(|rank| Rank::new(&mut cuda, &layers, rank)).collect();
    let mut gradients: Vec<Vec<f32>> = (0..3).map(|rank| uniform(ranks[0].means().len(), rank)).collect();
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
fn steps_have_an_order() {
    let Some(mut cuda) = backend(flavour(), 0) else { return };
    let mut rank = Rank::new(&mut cuda, &settings(), 2);
    let out_of_order = |outcome: Result<(), Error>| {
        let stepped = matches!(outcome, Err(Error::Train(lgreco_train::Error::StepOrder { .. })));
        assert!(stepped, "{outcome:?}");
    };
    // SAFETY: nothing is done.
    out_of_order(unsafe { rank.bucket.next(&mut cuda) }.map(drop));
    let address = rank.gradients.address();
    // SAFETY: nothing is done.
    let refused = unsafe { rank.bucket.submit(&mut cuda, address + 2) };
    assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    rank.submit(&mut cuda, &vec![0.5; address as usize % 16 + 130 * 97 + 7 + 64 * 33]);
    // SAFETY: nothing is done.
    out_of_order(unsafe { rank.bucket.submit(&mut cuda, address) });
    assert!(matches!(rank.next(&mut cuda), Some(Request::AllGather { .. })));
}
