//! More than 2^31 elements, nearly all of which are zeros in memory that takes no room. Of large grids only the first block and
//! the last ones run: what the others would write are zeros, which are there. Where a last block waits for all parts, an edit says
//! how many there are.
#![allow(unsafe_code)]

use super::exchange::{bits, config};
use super::exchange_sums::{near, power};
use super::simt::{Edit, Flavour, Simt, Sparse};
use crate::device::{Launch, Part};
use crate::gpu::MOST;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceGradient, DeviceJob, ExchangeConfig, ExchangeProgram};
use lgreco_core::backend::{Backend, Job, Portable};
use lgreco_core::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_core::compress::quantised_topk::QuantisedTopK;
use lgreco_core::compress::{Candidates, Compressor, Setting, topk::TopK};
use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::Tensor;
use lgreco_core::testing::powersgd::uniform;

const QSGD: Qsgd = Qsgd { bits: 4, bucket: 512, scale: Scale::MaxNorm, rounding: Rounding::Stochastic };

/// The values that are not zeros, and all of them.
const TAIL: usize = 1 << 20;
const ALL: usize = (1 << 31) + TAIL;

/// Grids that are larger run in part.
const LARGE: u64 = 3000;
/// Blocks at a grid's end: all that have to do with the tail.
const LAST: u64 = 600;

/// The blocks of a grid that run.
fn ends(launch: &Launch<'_>) -> Option<Vec<u64>> {
    let blocks: u64 = launch.grid.iter().map(|&side| u64::from(side)).product();
    match launch.kernel.entry {
        // Blocks go over one stretch each.
        "count_exact" => Some(vec![blocks - 1]),
        _ if blocks <= LARGE => None,
        // Chunks are numbered first: of 16, the last one has all rows that are not zeros.
        "back_project" => Some((15..blocks).step_by(16).collect()),
        // There are few buckets, and a block takes 256.
        "make_grids" => Some((0..LAST).collect()),
        // Every block has an element of each 2^28: of the last lap these have the last ones.
        "offer" | "remember" if matches!(launch.kernel.module, Module::Feedback) => {
            Some((4096 - FEW as u64 / 256..4096).collect())
        }
        // All tiles of the last 64 rows.
        "reconstruct" => Some((blocks - 1026..blocks).collect()),
        "project" => Some((blocks - 9..blocks).collect()),
        _ => Some(std::iter::once(0).chain(blocks - LAST..blocks).collect()),
    }
}

/// Where a last block waits for others that do not run: spans of a layer under TopK, chunks of a transposed product, blocks.
const WAITS: [(Module, &str, &str); 3] = [
    (
        Module::Selection,
        "before = atomicAdd(done, own);",
        "before = atomicAdd(done, own) + (all > 3000 ? all - 601 : 0);",
    ),
    (Module::PowerSgd, "atomicAdd(counter, 1u) ==", "atomicAdd(counter, 1u) + (blocks == 16 ? 15 : 0) =="),
    (Module::Exchange, "is_last(&program->done, 1, gridDim.x)", "is_last(&program->done, 1, 601)"),
];

/// A backend whose kernels have as many blocks as there is work for, and perhaps a fault.
fn sparse(fault: Option<(Module, &'static str, &'static str)>) -> Option<CudaBackend> {
    MOST.set(1 << 20);
    let edits = WAITS.into_iter().chain(fault).map(|(module, from, to)| Edit { module, from, to });
    Some(CudaBackend::on(Box::new(Simt::sparse(edits.collect(), ends)?)))
}

/// As many zeros, then these values.
fn filled(elements: usize, tail: &[f32]) -> Sparse {
    let mut values = Sparse::new(4 * elements as u64);
    values.values::<f32>()[elements - tail.len()..].copy_from_slice(tail);
    values
}

fn measured<'a>(backend: &mut CudaBackend, part: Part, shape: Shape, candidates: Candidates<'a>) -> Vec<f64> {
    let gradient = DeviceGradient::of_part(part, Dtype::F32, shape);
    let mut row = vec![f64::NAN; candidates.len()];
    backend.measure_device(&[DeviceJob { gradient, candidates, stream: Stream::default() }], &mut row).unwrap();
    row
}

/// Whether this is the core's row of other values, whose errors are the same.
fn is_row(found: &[f64], gradient: Gradient<'_>, candidates: Candidates<'_>) -> bool {
    let jobs = [Job { gradient, candidates, stream: Stream::default() }];
    let (mut workspace, mut expected) = (vec![0; Portable.workspace_len(&jobs)], vec![0.0; candidates.len()]);
    Portable.measure(&jobs, &mut workspace, &mut expected).unwrap();
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= super::ROWS * b;
    expected.iter().all(|&error| error > 0.0) && found.iter().zip(&expected).all(near)
}

fn by_the_core(values: &mut Sparse, setting: &Setting, stream: Stream) -> Vec<u8> {
    let shape = Shape::new(ALL, 1).unwrap();
    let gradient = Gradient::new(Values::F32(values.values()), shape).unwrap();
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
    Portable.encode(setting, &gradient, stream, &mut workspace, &mut payload).unwrap();
    payload
}

/// The device's payload, which is the core's.
fn check_payload(backend: &mut CudaBackend, values: &mut Sparse, setting: Setting) -> Vec<u8> {
    let gradient = DeviceGradient::of_part(values.part(), Dtype::F32, Shape::new(ALL, 1).unwrap());
    let stream = Stream { seed: 7, ..Stream::default() };
    let expected = by_the_core(values, &setting, stream);
    let mut found = vec![0; expected.len()];
    backend.encode_device(&setting, &gradient, stream, &mut found).unwrap();
    assert!(found == expected, "{setting}: {:?}", found.iter().zip(&expected).position(|(a, b)| a != b));
    found
}

/// What the core decodes of the last values, whose buckets are 512 codes of two bits, as if there were no others.
fn decoded_tail(payload: &[u8], base: Qsgd, tail: usize) -> Vec<f32> {
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
    let mut values = filled(ALL, &tail);
    let Some(mut backend) = sparse(None) else { return };
    let (tensor, shape) = (Tensor::new(&tail, TAIL, 1), Shape::new(ALL, 1).unwrap());
    let base = FIRST;
    for base in
        [base, Qsgd { scale: Scale::MinMax, ..base }, Qsgd { bucket: 1 << 19, rounding: Rounding::Nearest, ..base }]
    {
        let candidates = Candidates::Qsgd { base, bits: &[2, 4] };
        let found = measured(&mut backend, values.part(), shape, candidates);
        assert!(is_row(&found, tensor.gradients()[0], candidates), "{found:?}");
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
    let mut values = filled(ALL, &tail);
    let Some(mut backend) = sparse(None) else { return };
    let (tensor, shape) = (Tensor::new(&tail, TAIL, 1), Shape::new(ALL, 1).unwrap());
    let keeps = &[100, 5000, 40];
    for candidates in
        [Candidates::TopK { values: Dtype::F32, keeps }, Candidates::QuantisedTopK { keeps, bits: &[1, 3, 8] }]
    {
        let found = measured(&mut backend, values.part(), shape, candidates);
        assert!(is_row(&found, tensor.gradients()[0], candidates), "{found:?}");
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

#[test]
fn powersgd() {
    let (rows, cols) = (1 << 16, 32_832);
    let (tail, shape) = (uniform(64 * cols, 5), Shape::new(rows, cols).unwrap());
    assert!(shape.elements() > 1 << 31);
    let values = filled(shape.elements(), &tail);
    let Some(mut backend) = sparse(None) else { return };
    let candidates = Candidates::PowerSgd { iterations: 1, ranks: &[1, 4] };
    let found = measured(&mut backend, values.part(), shape, candidates);
    let tensor = Tensor::new(&tail, 64, cols);
    assert!(is_row(&found, tensor.gradients()[0], candidates), "{found:?}");
    let payload = |backend: &mut dyn FnMut(&Setting, &mut [u8]), rows| {
        let setting = power(4);
        let mut payload = vec![0; setting.payload_len(Shape::new(rows, cols).unwrap(), Dtype::F32).unwrap()];
        backend(&setting, &mut payload);
        payload
    };
    let factors = |payload: &[u8]| -> Vec<f32> {
        payload[16..].as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let gradient = DeviceGradient::of_part(values.part(), Dtype::F32, shape);
    let found = payload(
        &mut |setting, payload| {
            backend.encode_device(setting, &gradient, Stream::default(), payload).unwrap();
        },
        rows,
    );
    let gradient = tensor.gradients()[0];
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

/// Values at the end that the last blocks have, however few a block has.
const FEW: usize = 1 << 17;

/// Two steps: what is left of the first is read, and joins the second gradient.
#[cfg(feature = "train")]
#[test]
fn feedback() {
    use crate::DeviceResidual;
    use lgreco_train::feedback::Storage;
    let mut offered = uniform(FEW, 6);
    let mut values = filled(ALL, &offered);
    let Some(mut backend) = sparse(None) else { return };
    let gradient = DeviceGradient::of_part(values.part(), Dtype::F32, Shape::new(ALL, 1).unwrap());
    let mut residual = Sparse::new(4 * ALL as u64);
    let kept = DeviceResidual { address: residual.part().address, storage: Storage::F32 };
    let (setting, tail) = (Setting::Qsgd(FIRST), offered.clone());
    for step in 0..2 {
        let stream = Stream { step, ..Stream::default() };
        let mut found = vec![0; FIRST.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        // SAFETY: gradient and residual are as large as the shape says.
        unsafe { backend.encode_with_feedback(&setting, &gradient, kept, 1.0, stream, &mut found) }.unwrap();
        let decoded = decoded_tail(&found, FIRST, FEW);
        assert!(decoded.iter().any(|&x| x != 0.0));
        let left: Vec<f32> = offered.iter().zip(decoded).map(|(x, decoded)| x - decoded).collect();
        assert!(bits(&residual.values()[ALL - FEW..]) == bits(&left), "step {step}");
        offered = left.iter().zip(&tail).map(|(left, x)| left + x).collect();
    }
    assert!(values.values::<f32>()[ALL - FEW..] == tail);
}

/// Layers of all methods.
fn layers() -> Vec<(Shape, Setting)> {
    let of = |rows, cols, setting| (Shape::new(rows, cols).unwrap(), setting);
    vec![
        of(61, 147, Setting::Qsgd(Qsgd { bits: 3, bucket: 1024, ..Qsgd::default() })),
        of(130, 97, Setting::TopK(TopK { keep: 126, values: Dtype::F32 })),
        of(100, 101, Setting::QuantisedTopK(QuantisedTopK { keep: 301, bits: 5 })),
        of(5001, 1, Setting::Dense),
        of(72, 75, power(5)),
    ]
}

/// What a step of one rank leaves of the last layers: their messages, means and residuals.
struct Step {
    message: Vec<u8>,
    means: Vec<f32>,
    residuals: Vec<f32>,
    payload: Vec<u8>,
}

fn step(backend: &mut CudaBackend, layers: &[(Shape, Setting)], config: ExchangeConfig, values: &[f32]) -> Step {
    let program = ExchangeProgram::new(layers, config).unwrap();
    let elements: usize = layers.iter().map(|(shape, _)| shape.elements()).sum();
    let (mut gradients, residuals) = (filled(elements, values), Sparse::new(program.residual_bytes()));
    let [memory, mut message, sums, factors] = [
        program.memory_bytes(),
        program.message_bytes() as u64,
        4 * program.sum_values() as u64,
        4 * program.factor_values() as u64,
    ]
    .map(Sparse::new);
    let [memory, to, sums, factors, residuals_at, own] =
        [&memory, &message, &sums, &factors, &residuals, &gradients].map(|memory| memory.part().address);
    // SAFETY: memory of the sizes that the program says, which lives until all is done. There is one rank, whose message is all
    // there is.
    let outcome = unsafe {
        let exchange = backend.begin_exchange(program, memory, residuals_at).unwrap();
        backend.encode_exchange(&exchange, own, to).unwrap();
        backend.project_exchange(&exchange, own, sums).unwrap();
        backend.back_project_exchange(&exchange, sums, factors).unwrap();
        backend.average_exchange(&exchange, sums, factors, own).unwrap();
        backend.finish_exchange(&exchange, to, own).unwrap();
        backend.exchange_outcome(&exchange).unwrap()
    };
    assert_eq!((outcome.failed, outcome.rank, outcome.fault), (0, None, None));
    let mut left = vec![0.0; values.len()];
    let at = outcome.residuals + 4 * (elements - values.len()) as u64;
    let part = Part { address: at, bytes: 4 * values.len() as u64 };
    backend.gpu_mut().read_into(part, bytemuck::cast_slice_mut(&mut left)).unwrap();
    let lens = layers.iter().map(|(shape, setting)| match setting {
        Setting::Dense | Setting::PowerSgd(_) => 0,
        _ => setting.payload_len(*shape, Dtype::F32).unwrap().next_multiple_of(16),
    });
    let lens: Vec<usize> = lens.collect();
    let small: usize = lens[lens.len() - 5..].iter().sum();
    let bytes = message.values::<u8>();
    Step {
        message: bytes[bytes.len() - small..].to_vec(),
        means: gradients.values()[elements - values.len()..].to_vec(),
        residuals: left,
        payload: bytes[16..16 + lens[0]].to_vec(),
    }
}

const FIRST: Qsgd = Qsgd { bits: 2, ..QSGD };
/// Values of the first layer that are no zeros.
const KNOWN: usize = 3 * 4096;

fn at(layer: u32) -> ExchangeConfig {
    let config = config(Dtype::F32, 0.6);
    ExchangeConfig { world: 1, stream: Stream { layer, ..config.stream }, ..config }
}

/// Layers behind one that has more elements; that one's payload and means, if the others are exchanged as they are alone.
fn behind(backend: &mut CudaBackend, values: &[f32]) -> Result<Step, &'static str> {
    let (small, first) = (layers(), (Shape::new(ALL, 1).unwrap(), Setting::Qsgd(FIRST)));
    let found = step(backend, &[&[first], &small[..]].concat(), at(3), values);
    let most = MOST.replace(3);
    let mut usual = super::backend(Flavour::Plain, 0).ok_or("g++")?;
    let alone = step(&mut usual, &small, at(4), &values[KNOWN..]);
    MOST.set(most);
    match () {
        () if found.message != alone.message => Err("messages"),
        () if bits(&found.means[KNOWN..]) != bits(&alone.means) => Err("means"),
        () if bits(&found.residuals[KNOWN..]) != bits(&alone.residuals) => Err("residuals"),
        () => Ok(found),
    }
}

fn gradients() -> Vec<f32> {
    uniform(KNOWN + layers().iter().map(|(shape, _)| shape.elements()).sum::<usize>(), 9)
}

#[test]
fn exchanges() {
    let values = gradients();
    let Some(mut backend) = sparse(None) else { return };
    let Step { payload, means, .. } = behind(&mut backend, &values).unwrap();
    let mut offered = filled(ALL, &values[..KNOWN]);
    let expected = by_the_core(&mut offered, &Setting::Qsgd(FIRST), at(3).stream);
    assert!(payload[..expected.len()] == expected);
    assert_eq!(means[..KNOWN], decoded_tail(&expected, FIRST, KNOWN));
}

/// Places that are counted in 31 bits.
#[test]
fn faults_are_found() {
    let tail = uniform(TAIL, 3);
    let values = filled(ALL, &tail);
    let of_qsgd = Candidates::Qsgd { base: QSGD, bits: &[2] };
    let of_top = Candidates::TopK { values: Dtype::F32, keeps: &[100] };
    for (module, from, to, candidates) in [
        (Module::Qsgd, "bucket(p, share.values, tile,", "bucket(p, share.values, tile % (1u << 22),", of_qsgd),
        (
            Module::TopK,
            "u32 begin = (chunk - row.first_chunk) * CHUNK;",
            "u32 begin = (chunk - row.first_chunk) * CHUNK % (1u << 31);",
            of_top,
        ),
    ] {
        let Some(mut backend) = sparse(Some((module, from, to))) else { return };
        let found = measured(&mut backend, values.part(), Shape::new(ALL, 1).unwrap(), candidates);
        assert!(!is_row(&found, Tensor::new(&tail, TAIL, 1).gradients()[0], candidates), "{from}");
    }
    let values = gradients();
    for (module, from, to) in [
        (Module::Exchange, "+ layer.first * size;", "+ layer.first % (1u << 31) * size;"),
        (
            Module::Exchange,
            "(1 - program->half) * program->elements;",
            "(1 - program->half) * program->elements % (1u << 31);",
        ),
        (Module::Selection, "+ top.first * (p.dtype", "+ top.first % (1u << 31) * (p.dtype"),
    ] {
        let Some(mut backend) = sparse(Some((module, from, to))) else { return };
        assert!(behind(&mut backend, &values).is_err(), "{from}");
    }
}
