//! Tests layers of more than 2^31 elements. Nearly all elements are zeros, in pages that take no physical memory. In
//! large grids, only the first and the last blocks run. All other blocks would write only zeros, which the memory
//! already contains. In some kernels, the last block waits for all other blocks. In the tests, edited kernels make the
//! last block wait for fewer blocks.
#![allow(unsafe_code)]

use super::exchange::{bits, narrowed};
use super::exchange_sums::{near, power};
use super::is_full;
use super::simt::{Edit, Simt, Sparse};
use super::some;
use crate::device::{Launch, Part};
use crate::gpu::MOST;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceGradient, DeviceJob};
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::eden::Eden;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting, topk::TopK};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;

const QSGD: Qsgd = Qsgd { bits: 4, bucket: 512, scale: Scale::MaxNorm, rounding: Rounding::Stochastic };

pub(super) const FIRST: Qsgd = Qsgd { bits: 2, ..QSGD };

/// Number of nonzero values at the end of the layer.
const TAIL: usize = 1 << 20;
/// Number of all values.
pub(super) const ALL: usize = (1 << 31) + TAIL;

/// In grids with more blocks than this number, only the first and the last blocks run.
const LARGE: u64 = 3000;
/// In larger grids, the number of first blocks that run. The first blocks process this rank's own shards.
const FIRST_BLOCKS: u64 = 16;
/// In larger grids, the number of last blocks that run. The last blocks process the nonzero values.
const LAST: u64 = 600;

/// Returns the numbers of the blocks of a launch that must run, or `None` if all blocks must run.
fn ends(launch: &Launch<'_>) -> Option<Vec<u64>> {
    let blocks = u64::from(launch.blocks);
    let of_sums = launch.kernel.module == Module::ExchangeSums;
    match launch.kernel.entry {
        // Each block processes one contiguous range of the values.
        "count_exact" => Some(vec![blocks - 1]),
        _ if blocks <= LARGE => None,
        // Consecutive block numbers belong to different chunks. Outside exchanges there are 16 chunks, and only the
        // last chunk has nonzero rows. In an exchange, there are 512 chunks, and the last two blocks belong to a small
        // matrix.
        "back_project" if of_sums => Some((511..blocks - 2).step_by(512).chain(blocks - 2..blocks).collect()),
        "back_project" => Some((15..blocks).step_by(16).collect()),
        // Each block processes two spans.
        "average_kept" => Some((0..FIRST_BLOCKS).chain(blocks / 2 + 8 - LAST..blocks / 2 + 8).collect()),
        // The last 1026 blocks compute all tiles of the last 64 rows.
        "reconstruct" => Some((blocks - 1026..blocks).collect()),
        // Each block decodes 1024 values.
        "decode" => Some((0..FIRST_BLOCKS).chain(blocks - 2 * LAST..blocks).collect()),
        "project" if !of_sums => Some((blocks - 9..blocks).collect()),
        _ => Some((0..FIRST_BLOCKS).chain(blocks - LAST..blocks).collect()),
    }
}

/// Edits of kernels whose last block waits for blocks that do not run. The kernels count finished spans of a layer
/// under TopK, finished chunks of a transposed product, or finished blocks.
const WAITS: [(Module, &str, &str); 4] = [
    (
        Module::Selection,
        "before = atomicAdd(done, own);",
        "before = atomicAdd(done, own) + (all > 3000 ? all - 616 : 0);",
    ),
    (Module::PowerSgd, "atomicAdd(counter, 1u) ==", "atomicAdd(counter, 1u) + (blocks == 16 ? 15 : 0) =="),
    (Module::ExchangeSums, "atomicAdd(counter, 1u) ==", "atomicAdd(counter, 1u) + (blocks == 512 ? 511 : 0) =="),
    (
        Module::Exchange,
        "is_last(&program->done, 1, gridDim.x)",
        "is_last(&program->done, 1, gridDim.x > 3000 ? 616 : gridDim.x)",
    ),
];

/// Returns a backend that launches a block for every piece of work. `more` are further edits of the kernels.
pub(super) fn sparse(more: impl IntoIterator<Item = (Module, &'static str, &'static str)>) -> Option<CudaBackend> {
    MOST.set(1 << 20);
    let edits = WAITS.into_iter().chain(more).map(|(module, from, to)| Edit { module, from, to });
    Some(CudaBackend::on(Box::new(Simt::sparse(edits.collect(), ends)?)))
}

/// Makes `elements` values: the last values are `tail`, and all others are zeros.
pub(super) fn filled(elements: usize, dtype: Dtype, tail: &[f32]) -> Sparse {
    let (mut values, (tail, _)) = (Sparse::new((elements * dtype.bytes()) as u64), narrowed(tail, dtype));
    let bytes = values.values::<u8>();
    let start = bytes.len() - tail.len();
    bytes[start..].copy_from_slice(&tail);
    values
}

fn measured(
    backend: &mut CudaBackend,
    (part, dtype): (Part, Dtype),
    shape: Shape,
    candidates: Candidates<'_>,
) -> Vec<f64> {
    let gradient = DeviceGradient::of_part(part, dtype, shape);
    let mut row = vec![f64::NAN; candidates.len()];
    backend.measure_device(&[DeviceJob { gradient, candidates, stream: Stream::default() }], &mut row).unwrap();
    row
}

/// Whether the row agrees with the core's row for `gradient`, which is shorter but has the same errors.
fn is_row(found: &[f64], gradient: Gradient<'_>, candidates: Candidates<'_>) -> bool {
    let jobs = [Job { gradient, candidates, stream: Stream::default() }];
    let (mut workspace, mut expected) = (vec![0; Portable.workspace_len(&jobs)], vec![0.0; candidates.len()]);
    Portable.measure(&jobs, &mut workspace, &mut expected).unwrap();
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= super::ROWS * b;
    expected.iter().all(|&error| error > 0.0) && found.iter().zip(&expected).all(near)
}

pub(super) fn by_the_core(values: &mut Sparse, setting: &Setting, stream: Stream) -> Vec<u8> {
    let shape = Shape::new(ALL, 1).unwrap();
    let gradient = Gradient::new(Values::F32(values.values()), shape).unwrap();
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
    Portable.encode(setting, &gradient, stream, &mut workspace, &mut payload).unwrap();
    payload
}

/// Encodes on the device, compares the payload with the core's payload, and returns it.
fn check_payload(backend: &mut CudaBackend, values: &mut Sparse, setting: Setting) -> Vec<u8> {
    let gradient = DeviceGradient::of_part(values.part(), Dtype::F32, Shape::new(ALL, 1).unwrap());
    let stream = Stream { seed: 7, ..Stream::default() };
    let expected = by_the_core(values, &setting, stream);
    let mut found = vec![0; expected.len()];
    backend.encode_device(&setting, &gradient, stream, &mut found).unwrap();
    assert!(found == expected, "{setting}: {:?}", found.iter().zip(&expected).position(|(a, b)| a != b));
    found
}

/// Decodes the last `tail` values of a payload with the core, by making a payload of only these values. Buckets have
/// 512 codes of two bits.
pub(super) fn decoded_tail(payload: &[u8], base: Qsgd, tail: usize) -> Vec<f32> {
    let shape = Shape::new(tail, 1).unwrap();
    let (scales, codes) = payload[16..].split_at(4 * ALL / 512);
    let body = [&scales[scales.len() - tail / 128..], &codes[codes.len() - tail / 4..]].concat();
    let mut payload = vec![0; base.payload_len(shape, Dtype::F32).unwrap()];
    let (zeros, mut values) = (vec![0.0; tail], vec![0.0; tail]);
    let gradient = Gradient::new(Values::F32(&zeros), shape).unwrap();
    Portable.encode(&Setting::Qsgd(base), &gradient, Stream::default(), &mut [], &mut payload).unwrap();
    payload[16..].copy_from_slice(&body);
    Portable.decode(&payload, &mut values).unwrap();
    values
}

#[test]
fn qsgd() {
    let tail = uniform(TAIL, 3);
    let mut values = filled(ALL, Dtype::F32, &tail);
    let Some(mut backend) = sparse(None) else { return };
    let (tensor, shape) = (Tensor::new(&tail, TAIL, 1), Shape::new(ALL, 1).unwrap());
    let base = FIRST;
    for base in
        some([base, Qsgd { scale: Scale::MinMax, ..base }, Qsgd { bucket: 4096, rounding: Rounding::Nearest, ..base }])
    {
        let candidates = Candidates::Qsgd { base, bits: &[2, 4] };
        let found = measured(&mut backend, (values.part(), Dtype::F32), shape, candidates);
        assert!(is_row(&found, tensor.gradients()[0], candidates), "{found:?}");
    }
    if !is_full() {
        return; // The core would take too long for the payload.
    }
    let payload = check_payload(&mut backend, &mut values, Setting::Qsgd(base));
    let mut decoded = Sparse::new(4 * ALL as u64);
    backend.decode_to_part(&payload, decoded.part()).unwrap();
    let expected = decoded_tail(&payload, base, TAIL);
    assert!(decoded.values::<f32>()[ALL - TAIL..] == expected && expected.iter().any(|&x| x != 0.0));
}

#[test]
fn topk() {
    let tail = uniform(TAIL, 4);
    let mut values = filled(ALL, Dtype::F32, &tail);
    let Some(mut backend) = sparse(None) else { return };
    let (tensor, shape) = (Tensor::new(&tail, TAIL, 1), Shape::new(ALL, 1).unwrap());
    let keeps = &[100, 5000, 40];
    for candidates in
        some([Candidates::TopK { values: Dtype::F32, keeps }, Candidates::QuantisedTopK { keeps, bits: &[1, 3, 8] }])
    {
        let found = measured(&mut backend, (values.part(), Dtype::F32), shape, candidates);
        assert!(is_row(&found, tensor.gradients()[0], candidates), "{found:?}");
    }
    if !is_full() {
        return;
    }
    for (setting, keep) in [
        (Setting::TopK(TopK { keep: 100, values: Dtype::Bf16 }), 100),
        (Setting::QuantisedTopK(QuantisedTopK { keep: 5000, bits: 5 }), 5000),
    ] {
        let payload = check_payload(&mut backend, &mut values, setting);
        let mut decoded = Sparse::new(4 * ALL as u64);
        backend.decode_to_part(&payload, decoded.part()).unwrap();
        let kept = decoded.values::<f32>()[ALL - TAIL..].iter().zip(&tail).filter(|(kept, _)| **kept != 0.0);
        assert!(kept.clone().all(|(kept, x)| (kept - x).abs() < 0.01), "{setting}");
        assert_eq!(kept.count(), keep, "{setting}");
    }
}

/// EDEN's signs depend on positions, so the row of a shorter gradient would differ. The test therefore compares the row
/// with the error of the decoded payload.
#[test]
fn eden() {
    let tail = uniform(TAIL, 9);
    let mut values = filled(ALL, Dtype::F32, &tail);
    let Some(mut backend) = sparse(None) else { return };
    let (base, shape) = (Eden { bits: 2, ..Eden::default() }, Shape::new(ALL, 1).unwrap());
    let setting = Setting::Eden(base);
    let candidates = Candidates::Eden { base, bits: &[2, 5] };
    let row = measured(&mut backend, (values.part(), Dtype::F32), shape, candidates);
    let payload = Sparse::new(setting.payload_len(shape, Dtype::F32).unwrap() as u64);
    let mut decoded = Sparse::new(4 * ALL as u64);
    let [from, to] = [&payload, &decoded].map(|memory| memory.part().address);
    let gradient = DeviceGradient::of_part(values.part(), Dtype::F32, shape);
    // SAFETY: the memory is large enough for the payload and its values.
    unsafe {
        backend.encode_to_device(&setting, &gradient, Stream::default(), from).unwrap();
        backend.decode_on_device(&setting, shape, from, to).unwrap();
    }
    backend.check().unwrap();
    let decoded = decoded.values::<f32>()[ALL - TAIL..].iter();
    let error: f64 = decoded.zip(&tail).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum();
    assert!((row[0] - error).abs() <= super::ROWS * error && row[1] < row[0], "{row:?}, {error}");
    if is_full() {
        check_payload(&mut backend, &mut values, setting);
    }
}

/// Rows, payloads and decoded values must equal those of a gradient with only the nonzero last values.
#[test]
#[ignore = "slow"]
fn values_of_16_bits() {
    let (tail, shape, stream) = (uniform(TAIL, 8), Shape::new(ALL, 1).unwrap(), Stream::default());
    let tensor = Tensor::new(&tail, TAIL, 1);
    let nearest = Qsgd { rounding: Rounding::Nearest, ..FIRST };
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let values = filled(ALL, dtype, &tail);
        let Some(mut backend) = sparse(None) else { return };
        let small = tensor.gradients()[dtype as usize];
        for candidates in [
            Candidates::Qsgd { base: FIRST, bits: &[3] },
            Candidates::TopK { values: Dtype::F32, keeps: &[100, 5000] },
            Candidates::QuantisedTopK { keeps: &[700], bits: &[3] },
        ] {
            let found = measured(&mut backend, (values.part(), dtype), shape, candidates);
            assert!(is_row(&found, small, candidates), "{dtype:?}: {found:?}");
        }
        let gradient = DeviceGradient::of_part(values.part(), dtype, shape);
        for setting in [
            Setting::Qsgd(nearest),
            Setting::TopK(TopK { keep: 100, values: dtype }),
            Setting::QuantisedTopK(QuantisedTopK { keep: 700, bits: 5 }),
        ] {
            let payload = Sparse::new(setting.payload_len(shape, dtype).unwrap() as u64);
            let mut decoded = Sparse::new(4 * ALL as u64);
            let [from, to] = [&payload, &decoded].map(|memory| memory.part().address);
            // SAFETY: the memory is large enough for the payload and its values.
            unsafe {
                backend.encode_to_device(&setting, &gradient, stream, from).unwrap();
                backend.decode_on_device(&setting, shape, from, to).unwrap();
            }
            backend.check().unwrap();
            let mut expected = vec![0; setting.payload_len(small.shape(), dtype).unwrap()];
            let mut workspace = vec![0; setting.encode_workspace_len(small.shape(), dtype)];
            Portable.encode(&setting, &small, stream, &mut workspace, &mut expected).unwrap();
            let mut values = vec![0.0; TAIL];
            Portable.decode(&expected, &mut values).unwrap();
            assert!(bits(&decoded.values()[ALL - TAIL..]) == bits(&values), "{setting}, {dtype:?}");
        }
    }
}

fn check_powersgd(dtype: Dtype) {
    let (rows, cols) = (1 << 16, 32_832);
    let (tail, shape) = (uniform(64 * cols, 5), Shape::new(rows, cols).unwrap());
    assert!(shape.elements() > 1 << 31);
    let values = filled(shape.elements(), dtype, &tail);
    let Some(mut backend) = sparse(None) else { return };
    let candidates = Candidates::PowerSgd { iterations: 1, ranks: &[1, 4] };
    let found = measured(&mut backend, (values.part(), dtype), shape, candidates);
    let tensor = Tensor::new(&tail, 64, cols);
    assert!(is_row(&found, tensor.gradients()[dtype as usize], candidates), "{found:?}");
    let payload = |backend: &mut dyn FnMut(&Setting, &mut [u8]), rows| {
        let setting = power(4);
        let mut payload = vec![0; setting.payload_len(Shape::new(rows, cols).unwrap(), Dtype::F32).unwrap()];
        backend(&setting, &mut payload);
        payload
    };
    let factors = |payload: &[u8]| -> Vec<f32> {
        payload[16..].as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let gradient = DeviceGradient::of_part(values.part(), dtype, shape);
    let found = payload(
        &mut |setting, payload| {
            backend.encode_device(setting, &gradient, Stream::default(), payload).unwrap();
        },
        rows,
    );
    let gradient = tensor.gradients()[dtype as usize];
    let expected = payload(
        &mut |setting, payload| {
            let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
            Portable.encode(setting, &gradient, Stream::default(), &mut workspace, payload).unwrap();
        },
        64,
    );
    let (mut decoded, mut product) = (Sparse::new(4 * shape.elements() as u64), vec![0.0; tail.len()]);
    backend.decode_to_part(&found, decoded.part()).unwrap();
    Portable.decode(&expected, &mut product).unwrap();
    let values = decoded.values::<f32>();
    near("product", &values[values.len() - FEW..], &product[tail.len() - FEW..]).unwrap();
    let (found, expected) = (factors(&found), factors(&expected));
    let ((p, q), (small_p, small_q)) = (found.split_at(4 * rows), expected.split_at(4 * 64));
    for (found, expected) in p.chunks(rows).zip(small_p.chunks(64)) {
        assert!(found[..rows - 64].iter().all(|&x| x == 0.0));
        near("P", &found[rows - 64..], expected).unwrap();
    }
    near("Q", q, small_q).unwrap();
}

#[test]
#[ignore = "slow"]
fn powersgd() {
    [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().for_each(check_powersgd);
}

/// In every kernel, the last blocks that run process at least this number of last values.
pub(super) const FEW: usize = 1 << 17;

/// Plants faults: edited kernels count positions in 31 bits.
#[test]
#[ignore = "slow"]
fn faults_are_found() {
    let tail = uniform(TAIL, 3);
    let values = filled(ALL, Dtype::F32, &tail);
    let of_qsgd = Candidates::Qsgd { base: QSGD, bits: &[2] };
    let of_top = Candidates::TopK { values: Dtype::F32, keeps: &[100] };
    for (module, from, to, candidates) in [
        (
            Module::Qsgd,
            "bucket(p, share.values, tile * TILE",
            "bucket(p, share.values, tile % (1u << 22) * TILE",
            of_qsgd,
        ),
        (
            Module::TopK,
            "u32 begin = (chunk - row.first_chunk) * CHUNK;",
            "u32 begin = (chunk - row.first_chunk) * CHUNK % (1u << 31);",
            of_top,
        ),
    ] {
        let Some(mut backend) = sparse(Some((module, from, to))) else { return };
        let found = measured(&mut backend, (values.part(), Dtype::F32), Shape::new(ALL, 1).unwrap(), candidates);
        assert!(!is_row(&found, Tensor::new(&tail, TAIL, 1).gradients()[0], candidates), "{from}");
    }
}
