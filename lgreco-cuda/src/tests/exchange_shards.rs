//! Tests buckets with shards. The checks in this file supplement the common suite (`space.rs`).
#![allow(unsafe_code)]

use super::backend;
use super::bucket::seen;
use super::exchange::Memory;
use super::launches::{Calls, Counted};
use super::simt::{Edit, Flavour, Simt, flavour};
use crate::kernels::Module;
use crate::{
    CudaBackend, DeviceBucket, DeviceLayer, DeviceMemory, DeviceRequest, Error, ExchangeConfig, ExchangeFault,
};
use lgreco::compress::Setting;
use lgreco::compress::eden::Eden;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::topk::TopK;
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_train::exchange::{Request, Slip};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const WORLD: usize = 3;
const QSGD: Setting =
    Setting::Qsgd(Qsgd { bits: 4, bucket: 512, scale: Scale::MaxNorm, rounding: Rounding::Stochastic });

/// Returns a layer of one column with the shards `shards`.
fn layer(setting: Setting, elements: usize, shards: &[u64]) -> DeviceLayer<'_> {
    DeviceLayer { index: elements as u32, shape: Shape::new(elements, 1).unwrap(), setting, shards }
}

fn config(rank: u32) -> ExchangeConfig {
    let stream = Stream { seed: 7, rank, ..Stream::default() };
    ExchangeConfig { world: WORLD as u32, stream, ..ExchangeConfig::default() }
}

/// A rank's bucket and memory.
struct Rank {
    bucket: DeviceBucket,
    gradients: Memory,
    memory: Memory,
}

impl Rank {
    fn new(cuda: &mut CudaBackend, layers: &[DeviceLayer<'_>], config: ExchangeConfig) -> Rank {
        let mut memory = Memory::new(DeviceBucket::bytes(layers, config).unwrap());
        let elements: usize = layers.iter().map(|layer| layer.shape.elements()).sum();
        // SAFETY: the memory lives as long as the bucket, and is large enough.
        let bucket = unsafe { DeviceBucket::new(cuda, layers, config, memory.address()) }.unwrap();
        Rank { bucket, gradients: Memory::new(4 * elements as u64), memory }
    }

    fn submit(&mut self, cuda: &mut CudaBackend, values: &[f32]) {
        self.gradients.fill(bytemuck::cast_slice(values));
        // SAFETY: the gradients are large enough, and no other work uses them until the step has ended.
        unsafe { self.bucket.submit(cuda, self.gradients.address()) }.unwrap();
    }

    fn values(&self) -> &[f32] {
        bytemuck::cast_slice(self.gradients.bytes())
    }
}

/// Returns the range of each rank's part of a buffer, from the lengths of the parts.
fn parts(lens: &[u64]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let mut start = 0;
    lens.iter().map(move |&len| {
        start += len as usize;
        start - len as usize..start
    })
}

/// Performs the collective that all ranks have requested.
fn perform(cuda: &mut CudaBackend, requests: &[DeviceRequest<'_>]) {
    cuda.synchronise().unwrap();
    // SAFETY: all enqueued work is done.
    let bytes = |memory: DeviceMemory| unsafe { seen::<u8>(memory) };
    for (own, request) in requests.iter().enumerate() {
        match request {
            Request::AllToAll { received, received_lens, .. } => {
                for ((from, other), to) in requests.iter().enumerate().zip(parts(received_lens)) {
                    let Request::AllToAll { send, send_lens, .. } = other else { panic!("{other:?}") };
                    let sent = parts(send_lens).nth(own).unwrap();
                    assert!(from != own || sent.is_empty() && to.is_empty(), "a message to itself is not sent");
                    bytes(*received)[to].copy_from_slice(&bytes(*send)[sent]);
                }
            }
            Request::ReduceScatterSum { lens, values } => {
                let all = requests.iter().map(|request| match request {
                    // SAFETY: all enqueued work is done.
                    Request::ReduceScatterSum { values, .. } => unsafe { seen::<f32>(*values) },
                    other => panic!("{other:?}"),
                });
                let all: Vec<&mut [f32]> = all.collect();
                let range = parts(lens).nth(own).unwrap();
                let sums: Vec<f32> = range.clone().map(|at| all.iter().map(|values| values[at]).sum()).collect();
                // SAFETY: all enqueued work is done.
                let own = unsafe { seen::<f32>(*values) };
                own[range].copy_from_slice(&sums);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Finishes a step, and returns each rank's error, if any.
fn finish(cuda: &mut CudaBackend, ranks: &mut [Rank]) -> Vec<Option<Error>> {
    loop {
        // SAFETY: the requested collective is done.
        let requests: Vec<_> = ranks.iter_mut().map(|rank| unsafe { rank.bucket.next(cuda) }).collect();
        if requests.iter().all(|request| !matches!(request, Ok(Some(_)))) {
            return requests.into_iter().map(Result::err).collect();
        }
        let requests: Vec<_> = requests.into_iter().map(|request| request.unwrap().unwrap()).collect();
        perform(cuda, &requests);
    }
}

/// A sum of payloads exceeds the range of f32 in the last rank's shard. Only that rank knows of the fault until it
/// reports the fault to the other ranks.
fn alone(cuda: &mut CudaBackend) -> Result<(), String> {
    let layers = [layer(QSGD, 96, &[32, 64, 96]), layer(Setting::Dense, 5, &[5, 5, 5])];
    let mut ranks: Vec<Rank> = (0..WORLD as u32).map(|rank| Rank::new(cuda, &layers, config(rank))).collect();
    let mut large = vec![1.0; 101];
    large[70] = 3e38;
    let step = |cuda: &mut CudaBackend, ranks: &mut [Rank], values: &[f32]| {
        ranks.iter_mut().for_each(|rank| rank.submit(cuda, values));
        assert!(finish(cuda, ranks).iter().all(Option::is_none));
    };
    step(cuda, &mut ranks, &[1.0; 101]);
    step(cuda, &mut ranks, &large);
    for (rank, number) in ranks.iter().zip(0..) {
        let outcome = rank.bucket.outcome(cuda).unwrap();
        let last = number == WORLD - 1;
        let overflow = Some(ExchangeFault::Overflow { layer: 0, index: 70 }).filter(|_| last);
        if (outcome.alone, outcome.fault, outcome.failed) != (last, overflow, u32::from(last)) || outcome.rank.is_some()
        {
            return Err(format!("rank {number}: {outcome:?}"));
        }
        let own = &rank.values()[32 * number..][..32];
        if !last && own.iter().any(|&mean| mean != 1.0) {
            return Err(format!("means of rank {number}: {own:?}"));
        }
    }
    let failure = Error::Core(lgreco::Error::Overflow { what: "the mean" });
    let (last, others) = ranks.split_last_mut().unwrap();
    others.iter_mut().for_each(|rank| rank.submit(cuda, &[1.0; 101]));
    // SAFETY: the gradients are large enough, and no other work uses them until the step has ended.
    unsafe { last.bucket.submit_failure(cuda, last.gradients.address(), failure.clone()) }.unwrap();
    assert_eq!(finish(cuda, &mut ranks), [None, None, Some(failure)]);
    for rank in &ranks {
        let outcome = rank.bucket.outcome(cuda).unwrap();
        if (outcome.rank, outcome.alone) != (Some(2), false) || rank.values().iter().any(|&mean| mean != 0.0) {
            return Err(format!("told: {outcome:?}"));
        }
    }
    step(cuda, &mut ranks, &[1.0; 101]);
    let sound = ranks.iter().all(|rank| rank.bucket.outcome(cuda).unwrap().fault.is_none());
    if sound { Ok(()) } else { Err("the step after".into()) }
}

#[test]
fn what_is_wrong_with_a_shard_its_rank_knows_alone_and_tells() {
    for order in [0, 1] {
        let Some(mut cuda) = backend(flavour(), order) else { return };
        alone(&mut cuda).unwrap();
    }
}

#[test]
fn no_race_is_found() {
    let Some(mut cuda) = backend(Flavour::Races, 2) else { return };
    alone(&mut cuda).unwrap();
}

#[test]
#[ignore = "slow"]
fn faults_in_the_kernels_are_found() {
    for (module, from, to) in [
        (Module::Exchange, "layer.number, layer.start, world", "layer.number, 0, world"),
        (Module::Exchange, "i < owners(*program); i += BLOCK", "i < 1; i += BLOCK"),
        (Module::ExchangeSums, "i < owners(*program); i++", "i < 1; i++"),
    ] {
        let Some(device) = Simt::new(Flavour::Plain, 0, Some(Edit { module, from, to })) else { return };
        let mut cuda = CudaBackend::on(Box::new(device));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| alone(&mut cuda)));
        assert!(!matches!(found, Ok(Ok(()))), "not found: {to}");
    }
}

/// The number of launches does not depend on the number of layers.
#[test]
fn a_step_takes_eight_launches_and_with_topk_fifteen() {
    let of_device = Arc::new(Calls::default());
    let mut cuda = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let top = Setting::TopK(TopK { keep: 7, values: Dtype::F32 });
    let eden = Setting::Eden(Eden::default());
    let mut launches = |settings: &[Setting], count: usize| {
        let settings = settings.iter().cycle().take(count);
        let layers: Vec<_> = settings.map(|&setting| layer(setting, 9000, &[4500, 4600, 9000])).collect();
        let mut rank = Rank::new(&mut cuda, &layers, config(1));
        let counted = || [0, 1, 2].map(|kind| of_device.kinds[kind].load(Ordering::Relaxed));
        let before = counted();
        let allocations = of_device.allocations.load(Ordering::Relaxed);
        rank.submit(&mut cuda, &vec![1.0; 9000 * count]);
        // SAFETY: a counting device accesses no memory.
        while unsafe { rank.bucket.next(&mut cuda) }.unwrap().is_some() {}
        let after = counted();
        assert_eq!(after[1..], before[1..], "nothing else is enqueued, and nothing waits");
        assert_eq!(of_device.allocations.load(Ordering::Relaxed), allocations);
        after[0] - before[0]
    };
    for count in [6, 150] {
        assert_eq!(launches(&[QSGD, Setting::Dense], count), 8);
        assert_eq!(launches(&[QSGD], count), 4);
        assert_eq!(launches(&[eden], count), 6);
        assert_eq!(launches(&[Setting::Dense], count), 4);
        assert_eq!(launches(&[QSGD, top, Setting::Dense], count), 8 + 5 + 2);
        assert_eq!(launches(&[QSGD, eden, top, Setting::Dense], count), 8 + 5 + 2 + 3);
    }
}

#[test]
fn what_cannot_be_sharded_is_refused() {
    let power = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
    for shards in [&[3, 2, 6][..], &[1, 2, 5], &[6], &[1, 2, 3, 6]] {
        let refused = DeviceBucket::bytes(&[layer(QSGD, 6, shards)], config(0));
        assert!(matches!(refused, Err(Error::Train(_) | Error::Core(_))), "{shards:?}: {refused:?}");
    }
    let whole = layer(QSGD, 6, &[]);
    assert!(DeviceBucket::bytes(&[layer(QSGD, 6, &[1, 2, 6]), whole], config(0)).is_err());
    let shared = Setting::CltK(lgreco::compress::clt::CltK { keep: 2 });
    let variable = Setting::AdaComp(lgreco::compress::adacomp::AdaComp { bin: 3 });
    let refused = [power, shared, variable].map(|setting| layer(setting, 6, &[1, 2, 6]));
    for layer in refused.into_iter().chain([layer(QSGD, 0, &[0, 0, 0])]) {
        let refused = DeviceBucket::bytes(&[layer], config(0));
        assert!(matches!(refused, Err(Error::Method(_))), "{refused:?}");
    }
}

/// A rank whose device fails reports the error in the header of each message, and after the values of each summed
/// shard.
#[test]
fn what_the_device_refuses_is_told_to_all_owners() {
    let of_device = Arc::new(Calls::default());
    let mut cuda = CudaBackend::on(Box::new(Counted(of_device.clone())));
    let refused = Error::OutOfMemory { bytes: 7 };
    let layers = [layer(QSGD, 90, &[30, 60, 90]), layer(Setting::Dense, 7, &[2, 2, 7])];
    let mut rank = Rank::new(&mut cuda, &layers, config(1));
    *of_device.failing.lock().unwrap() = Some(refused.clone());
    rank.submit(&mut cuda, &[0.5; 97]);
    let words = |from: u64, bytes: usize| -> Vec<(u64, u32)> {
        let words = of_device.words.lock().unwrap();
        words
            .iter()
            .filter(|&(&at, _)| (from..from + bytes as u64).contains(&at))
            .map(|(&at, &word)| (at - from, word))
            .collect()
    };
    /// Returns the request for the next collective.
    fn next<'r>(rank: &'r mut Rank, cuda: &mut CudaBackend) -> Result<Option<DeviceRequest<'r>>, Error> {
        // SAFETY: a counting device accesses no memory.
        unsafe { rank.bucket.next(cuda) }
    }
    let Ok(Some(Request::ReduceScatterSum { lens, values })) = next(&mut rank, &mut cuda) else { panic!("not a sum") };
    assert_eq!(lens, [2 + 3, 3, 5 + 3]);
    // This rank is rank 1, so its status record is the second record after the values of each shard.
    let told: Vec<_> = words(values.address, 4 * values.len);
    assert_eq!(told.iter().map(|&(at, _)| at).collect::<Vec<_>>(), [4 * 3, 4 * 6, 4 * 14]);
    let code = u64::from(refused.to_core().code());
    assert!(told.iter().all(|&(_, word)| Slip::of_sum(f32::from_bits(word)).code == code));
    let Ok(Some(Request::AllToAll { send, send_lens, received, received_lens })) = next(&mut rank, &mut cuda) else {
        panic!("no messages")
    };
    assert_eq!((send_lens[1], received_lens[1], received.len as u64), (0, 0, 2 * received_lens[0]));
    assert_eq!(words(send.address, send.len), [(0, code as u32), (send_lens[0], code as u32)]);
    assert_eq!(words(received.address + received.len as u64, 16), [(0, code as u32)]);
    let end = send.address + send.len as u64;
    assert_eq!(next(&mut rank, &mut cuda).unwrap_err(), refused);
    assert!(end - rank.memory.address() <= rank.memory.bytes().len() as u64);
}
