//! Tests buckets with shards. The first shard has more than 2^31 elements. The next shard and small layers follow the
//! first shard. The results for the last values must equal those of a bucket with only these values.
#![allow(unsafe_code)]

use super::beyond::{ALL, FEW, FIRST, filled, sparse};
use super::beyond_exchange::{last, usual};
use super::bucket::seen;
use super::exchange::bits;
use super::simt::Sparse;
use crate::device::Part;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceBucket, DeviceLayer, DeviceRequest, ExchangeConfig, ExchangeFault};
use lgreco::compress::eden::Eden;
use lgreco::compress::qsgd::{Qsgd, Rounding};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Setting, topk::TopK};
use lgreco::gradient::{Bf16, Dtype, Element, Shape};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;
use lgreco_train::exchange::Request;

const WORLD: usize = 2;
/// Number of values in the last rank's shard of the first layer.
const OWN: usize = 3 * 4096;

/// Returns a first layer of `elements` elements, and small layers after it.
fn layers(setting: Setting, elements: usize) -> Vec<(Setting, usize, [u64; WORLD])> {
    let halves = |setting, elements: usize| (setting, elements, [elements as u64 / 2, elements as u64]);
    vec![
        (setting, elements, [(elements - OWN) as u64, elements as u64]),
        halves(Setting::Qsgd(Qsgd { bits: 3, bucket: 1024, ..Qsgd::default() }), 9001),
        halves(Setting::TopK(TopK { keep: 126, values: Dtype::F32 }), 12_610),
        halves(Setting::QuantisedTopK(QuantisedTopK { keep: 301, bits: 5 }), 10_100),
        halves(Setting::Eden(Eden::default()), 9001),
        halves(Setting::Dense, 5001),
    ]
}

/// A rank's bucket and memory.
struct Rank {
    bucket: DeviceBucket,
    gradients: Sparse,
    _memory: Sparse,
}

impl Rank {
    fn new(cuda: &mut CudaBackend, layers: &[DeviceLayer<'_>], config: ExchangeConfig, values: &[f32]) -> Rank {
        let memory = Sparse::new(DeviceBucket::bytes(layers, config).unwrap());
        // SAFETY: the memory lives as long as the bucket, and is large enough.
        let bucket = unsafe { DeviceBucket::new(cuda, layers, config, memory.part().address) }.unwrap();
        let elements = layers.iter().map(|layer| layer.shape.elements()).sum();
        Rank { bucket, gradients: filled(elements, config.dtype, values), _memory: memory }
    }
}

/// Adds the other rank's values in this range to this rank's values. The function skips pages that take no physical
/// memory, because their values are zeros.
fn add<T: Element>(range: std::ops::Range<usize>, [own, other]: [u64; 2]) {
    let size = size_of::<T>();
    let part = Part { address: other + (range.start * size) as u64, bytes: (range.len() * size) as u64 };
    for part in Sparse::touched(part) {
        let len = part.bytes as usize / size;
        let memory = |address| crate::DeviceMemory { address, len };
        // SAFETY: all enqueued work is done.
        let [to, from] = unsafe { [seen::<T>(memory(own + part.address - other)), seen::<T>(memory(part.address))] };
        to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f32(to.to_f32() + from.to_f32()));
    }
}

/// Performs the collective that both ranks have requested.
fn perform(requests: &[DeviceRequest<'_>]) {
    for own in 0..WORLD {
        let [request, other] = [&requests[own], &requests[1 - own]];
        match (request, other) {
            (Request::AllToAll { received, .. }, Request::AllToAll { send, .. }) => {
                assert_eq!(send.len, received.len, "of two ranks each sends the other one message");
                for part in Sparse::touched(Part { address: send.address, bytes: send.len as u64 }) {
                    let memory = |address| crate::DeviceMemory { address, len: part.bytes as usize };
                    let to = received.address + part.address - send.address;
                    // SAFETY: all enqueued work is done.
                    unsafe { seen::<u8>(memory(to)).copy_from_slice(seen::<u8>(memory(part.address))) };
                }
            }
            (Request::ReduceScatterSum { lens, values }, Request::ReduceScatterSum { values: of_other, .. }) => {
                add::<f32>(shard(lens, own), [values.address, of_other.address]);
            }
            (
                Request::ReduceScatterSumBf16 { lens, values },
                Request::ReduceScatterSumBf16 { values: of_other, .. },
            ) => {
                add::<Bf16>(shard(lens, own), [values.address, of_other.address]);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn shard(lens: &[u64], rank: usize) -> std::ops::Range<usize> {
    let start: u64 = lens[..rank].iter().sum();
    start as usize..(start + lens[rank]) as usize
}

/// A rank's results for the last values, after a sound step and after a step in which the last rank's last value is
/// NaN. The fields are means, residuals, the rank at fault, and the position of the fault relative to the end of the
/// first layer.
type Left = (Vec<u8>, Vec<u32>, Option<u32>, Option<isize>);

fn steps(cuda: &mut CudaBackend, setting: Setting, elements: usize, [dtype, reduce_dtype]: [Dtype; 2]) -> Vec<Left> {
    let described = layers(setting, elements);
    let layers: Vec<DeviceLayer<'_>> = (10..)
        .zip(&described)
        .map(|(index, (setting, elements, shards))| DeviceLayer {
            index,
            shape: Shape::new(*elements, 1).unwrap(),
            setting: *setting,
            shards,
        })
        .collect();
    let all: usize = described.iter().map(|(_, elements, _)| elements).sum();
    let values = FEW + all - elements;
    let mut ranks: Vec<Rank> = (0..WORLD as u32)
        .map(|rank| {
            let stream = Stream { seed: 7, rank, ..Stream::default() };
            let config = ExchangeConfig {
                world: WORLD as u32,
                dtype,
                reduce_dtype,
                stream,
                gain: 0.6,
                ..ExchangeConfig::default()
            };
            Rank::new(cuda, &layers, config, &uniform(values, rank.into()))
        })
        .collect();
    let step = |cuda: &mut CudaBackend, ranks: &mut [Rank]| {
        for rank in &mut *ranks {
            // SAFETY: the gradients are large enough, and no other work uses them until the step has ended.
            unsafe { rank.bucket.submit(cuda, rank.gradients.part().address) }.unwrap();
        }
        loop {
            // SAFETY: the requested collective is done.
            let requests = ranks.iter_mut().filter_map(|rank| unsafe { rank.bucket.next(cuda) }.unwrap());
            let requests: Vec<_> = requests.collect();
            if requests.is_empty() {
                break;
            }
            perform(&requests);
        }
    };
    step(cuda, &mut ranks);
    let tail = dtype.bytes() * values;
    let of = |cuda: &mut CudaBackend, rank: &mut Rank| {
        let (bytes, outcome) = (rank.gradients.values::<u8>(), rank.bucket.outcome(cuda).unwrap());
        (bytes[bytes.len() - tail..].to_vec(), bits(&last(outcome.residuals, all, values, cuda)), outcome)
    };
    let sound: Vec<_> = ranks.iter_mut().map(|rank| of(cuda, rank)).collect();
    assert!(sound.iter().all(|(.., outcome)| (outcome.failed, outcome.fault) == (0, None)));
    let spoiled = ranks[WORLD - 1].gradients.values::<u8>();
    spoiled[elements * dtype.bytes() - 2..][..2].copy_from_slice(&[0xff; 2]);
    step(cuda, &mut ranks);
    let failed: Vec<_> = ranks.iter_mut().map(|rank| of(cuda, rank)).collect();
    let told = sound.into_iter().zip(failed).map(|((means, residuals, _), (_, after, outcome))| {
        assert!(after == residuals, "a step that fails changes nothing");
        let place = outcome.fault.map(|fault| match fault {
            ExchangeFault::NonFinite { layer: 0, index } => index as isize - elements as isize,
            other => panic!("{other:?}"),
        });
        (means, residuals, outcome.rank, place)
    });
    told.collect()
}

const NEAREST: Setting = Setting::Qsgd(Qsgd { rounding: Rounding::Nearest, ..FIRST });

fn check(cuda: &mut CudaBackend, setting: Setting, dtypes: [Dtype; 2]) -> Result<(), String> {
    let found = steps(cuda, setting, ALL, dtypes);
    let expected = usual(|cuda| steps(cuda, setting, FEW, dtypes)).ok_or("g++")?;
    assert_eq!(
        expected.iter().map(|rank| (rank.2, rank.3)).collect::<Vec<_>>(),
        [(Some(1), None), (Some(1), Some(-1))]
    );
    for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
        if found != expected {
            let same = [found.0 == expected.0, found.1 == expected.1];
            return Err(format!("{setting}, rank {rank}: {same:?}, {:?}, {:?}", found.2, found.3));
        }
    }
    Ok(())
}

/// With these edits, a failed step fills only the last means. All other means are zeros already.
const FILLED: [(Module, &str, &str); 3] = {
    let (from, to) = (
        "for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < program.elements;",
        "for (u64 i = (program.elements > 1u << 18 ? program.elements - (1u << 18) : 0) + u64(blockIdx.x) * BLOCK + threadIdx.x; i < program.elements;",
    );
    [(Module::Exchange, from, to), (Module::ExchangeSums, from, to), (Module::Selection, from, to)]
};

#[test]
#[ignore = "slow"]
fn shards() {
    for (setting, dtypes) in [
        (NEAREST, [Dtype::F32, Dtype::F32]),
        (NEAREST, [Dtype::Bf16, Dtype::Bf16]),
        (Setting::Dense, [Dtype::F16, Dtype::Bf16]),
        (Setting::Dense, [Dtype::F32, Dtype::F32]),
    ] {
        let Some(mut cuda) = sparse(FILLED) else { return };
        check(&mut cuda, setting, dtypes).unwrap();
    }
}

/// Plants faults: edited kernels count positions in 31 bits.
#[test]
#[ignore = "slow"]
fn faults_are_found() {
    for (module, setting, from, to) in [
        (
            Module::Exchange,
            NEAREST,
            "start + first + j * STRIP + k);",
            "(start + first + j * STRIP + k) % (1u << 31));",
        ),
        (
            Module::Exchange,
            NEAREST,
            "void* own = static_cast<u8*>(means) + layer.first * size;",
            "void* own = static_cast<u8*>(means) + layer.first % (1u << 31) * size;",
        ),
        (
            Module::ExchangeSums,
            Setting::Dense,
            "values) + before * (dtype == 0 ? 4 : 2);",
            "values) + before % (1u << 31) * (dtype == 0 ? 4 : 2);",
        ),
        (
            Module::ExchangeSums,
            Setting::Dense,
            "u64 place = layer.start + i + k;",
            "u64 place = (layer.start + i + k) % (1u << 31);",
        ),
    ] {
        let Some(mut cuda) = sparse(FILLED.into_iter().chain([(module, from, to)])) else { return };
        let run = std::panic::AssertUnwindSafe(|| check(&mut cuda, setting, [Dtype::F16, Dtype::Bf16]));
        assert!(!matches!(std::panic::catch_unwind(run), Ok(Ok(()))), "{from}");
    }
}
