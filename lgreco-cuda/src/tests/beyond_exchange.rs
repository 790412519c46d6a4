//! Tests exchanges with a layer of more than 2^31 elements and small layers after it, in sparse memory as in the tests
//! of `beyond`. The results for the last values must equal those of an exchange of only these values.
#![allow(unsafe_code)]

use super::beyond::{ALL, FIRST, by_the_core, decoded_tail, filled, sparse};
use super::exchange::{bits, config, narrowed};
use super::exchange_sums::{near, power};
use super::simt::{Flavour, Sparse};
use crate::device::Part;
use crate::gpu::MOST;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceGradient, ExchangeConfig, ExchangeProgram};
use lgreco::compress::eden::Eden;
use lgreco::compress::qsgd::{Qsgd, Rounding};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Compressor, Setting, topk::TopK};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;

/// Layers of all methods.
fn layers() -> Vec<(Shape, Setting)> {
    let of = |rows, cols, setting| (Shape::new(rows, cols).unwrap(), setting);
    vec![
        of(61, 147, Setting::Qsgd(Qsgd { bits: 3, bucket: 1024, ..Qsgd::default() })),
        of(130, 97, Setting::TopK(TopK { keep: 126, values: Dtype::F32 })),
        of(100, 101, Setting::QuantisedTopK(QuantisedTopK { keep: 301, bits: 5 })),
        of(5001, 1, Setting::Dense),
        of(90, 55, Setting::Eden(Eden::default())),
        of(72, 75, power(5)),
    ]
}

/// Results of a step of a single rank. The fields are the message's part for the last layers, the means and residuals
/// of the last values, and the first layer's payload.
struct Step {
    message: Vec<u8>,
    means: Vec<u8>,
    residuals: Vec<f32>,
    payload: Vec<u8>,
}

/// Reads the last `values` of `elements` values at the address `at`.
pub(super) fn last(at: u64, elements: usize, values: usize, backend: &mut CudaBackend) -> Vec<f32> {
    let mut found = vec![0.0; values];
    let part = Part { address: at + 4 * (elements - values) as u64, bytes: 4 * values as u64 };
    backend.gpu_mut().read_into(part, bytemuck::cast_slice_mut(&mut found)).unwrap();
    found
}

fn step(backend: &mut CudaBackend, layers: &[(Shape, Setting)], config: ExchangeConfig, values: &[f32]) -> Step {
    let program = ExchangeProgram::new(layers, config).unwrap();
    let elements: usize = layers.iter().map(|(shape, _)| shape.elements()).sum();
    let (gradients, residuals) = (filled(elements, config.dtype, values), Sparse::new(program.residual_bytes()));
    // Means get separate memory, so that they do not overwrite gradients that both runs share.
    let mut averaged = Sparse::new(gradients.part().bytes);
    let summed = |values: usize| (config.reduce_dtype.bytes() * values).max(1) as u64;
    let [memory, mut message, sums, factors] = [
        program.memory_bytes(),
        program.message_bytes() as u64,
        summed(program.sum_values()),
        summed(program.factor_values()),
    ]
    .map(Sparse::new);
    let [memory, to, sums, factors, residuals_at, own, means] =
        [&memory, &message, &sums, &factors, &residuals, &gradients, &averaged].map(|memory| memory.part().address);
    // SAFETY: the memory has the sizes of the program, and lives until all work is done. With a single rank, the rank's
    // own message is the whole buffer of gathered messages.
    let outcome = unsafe {
        let exchange = backend.begin_exchange(program, memory, residuals_at).unwrap();
        backend.encode_exchange(&exchange, own, to).unwrap();
        backend.project_exchange(&exchange, own, sums).unwrap();
        backend.back_project_exchange(&exchange, sums, factors).unwrap();
        backend.average_exchange(&exchange, sums, factors, means).unwrap();
        backend.finish_exchange(&exchange, to, means).unwrap();
        backend.exchange_outcome(&exchange).unwrap()
    };
    assert_eq!((outcome.failed, outcome.rank, outcome.fault), (0, None, None));
    let lens = layers.iter().map(|(shape, setting)| match setting {
        Setting::Dense | Setting::PowerSgd(_) => 0,
        _ => setting.payload_len(*shape, config.dtype).unwrap().next_multiple_of(16),
    });
    let lens: Vec<usize> = lens.collect();
    let small: usize = lens[lens.len() - self::layers().len()..].iter().sum();
    let (bytes, means) = (message.values::<u8>(), averaged.values::<u8>());
    Step {
        message: bytes[bytes.len() - small..].to_vec(),
        means: means[means.len() - config.dtype.bytes() * values.len()..].to_vec(),
        residuals: last(outcome.residuals, elements, values.len(), backend),
        payload: bytes[16..16 + lens[0]].to_vec(),
    }
}

/// Number of nonzero values of the first layer.
const KNOWN: usize = 3 * 4096;

fn at(layer: u32) -> ExchangeConfig {
    let config = config(Dtype::F32, 0.6);
    ExchangeConfig { world: 1, stream: Stream { layer, ..config.stream }, ..config }
}

/// Calls `run` with a backend that has the same limit on blocks as in other tests.
pub(super) fn usual<T>(run: impl FnOnce(&mut CudaBackend) -> T) -> Option<T> {
    let most = MOST.replace(3);
    let found = super::backend(Flavour::Plain, 0).map(|mut backend| run(&mut backend));
    MOST.set(most);
    found
}

/// Exchanges small layers after a layer of `ALL` elements. The small layers must have the same results as in an
/// exchange without the large layer. Returns the results of the step.
fn behind(backend: &mut CudaBackend, values: &[f32]) -> Result<Step, &'static str> {
    let (small, first) = (layers(), (Shape::new(ALL, 1).unwrap(), Setting::Qsgd(FIRST)));
    let found = step(backend, &[&[first], &small[..]].concat(), at(3), values);
    let alone = usual(|backend| step(backend, &small, at(4), &values[KNOWN..])).ok_or("g++")?;
    match () {
        () if found.message != alone.message => Err("messages"),
        () if found.means[4 * KNOWN..] != alone.means => Err("means"),
        () if bits(&found.residuals[KNOWN..]) != bits(&alone.residuals) => Err("residuals"),
        () => Ok(found),
    }
}

/// Gradient values: `first` values of the first layer, and all values of the other layers.
fn gradients(first: usize) -> Vec<f32> {
    uniform(first + layers().iter().map(|(shape, _)| shape.elements()).sum::<usize>(), 9)
}

#[test]
#[ignore = "slow"]
fn exchanges() {
    let values = gradients(KNOWN);
    let Some(mut backend) = sparse(None) else { return };
    let Step { payload, means, .. } = behind(&mut backend, &values).unwrap();
    let mut offered = filled(ALL, Dtype::F32, &values[..KNOWN]);
    let expected = by_the_core(&mut offered, &Setting::Qsgd(FIRST), at(3).stream);
    assert!(payload[..expected.len()] == expected);
    assert_eq!(means[..4 * KNOWN], narrowed(&decoded_tail(&expected, FIRST, KNOWN), Dtype::F32).0);
}

/// Compares two exchanges with the same setting. In one exchange, the first layer has all elements. In the other
/// exchange, the first layer has only the last values.
fn check_first(
    backend: &mut CudaBackend,
    setting: Setting,
    [whole, tail]: [Shape; 2],
    config: ExchangeConfig,
) -> Result<(), String> {
    let (first, size) = (tail.elements(), config.dtype.bytes());
    let values = gradients(first);
    let of = |shape| [&[(shape, setting)], &layers()[..]].concat();
    let found = step(backend, &of(whole), config, &values);
    let alone = usual(|backend| step(backend, &of(tail), config, &values)).ok_or("g++")?;
    // PowerSGD adds products in an order that depends on all rows, so the first layer's values are only close.
    let skipped = if matches!(setting, Setting::PowerSgd(_)) { first } else { 0 };
    near("residuals", &found.residuals[..skipped], &alone.residuals[..skipped])?;
    let same = found.message == alone.message
        && found.means[size * skipped..] == alone.means[size * skipped..]
        && bits(&found.residuals[skipped..]) == bits(&alone.residuals[skipped..]);
    if same { Ok(()) } else { Err(format!("{setting}, {:?}", config.dtype)) }
}

/// EDEN's signs depend on positions. So the test compares the payload and the means with those of the same layer,
/// encoded outside an exchange.
#[test]
#[ignore = "slow"]
fn first_layers_of_eden() {
    let (eden, shape) = (Setting::Eden(Eden { bits: 2, ..Eden::default() }), Shape::new(ALL, 1).unwrap());
    let values = gradients(KNOWN);
    let Some(mut backend) = sparse(None) else { return };
    let found = step(&mut backend, &[&[(shape, eden)], &layers()[..]].concat(), at(3), &values);
    let first = filled(ALL, Dtype::F32, &values[..KNOWN]);
    let mut payload = Sparse::new(eden.payload_len(shape, Dtype::F32).unwrap() as u64);
    let mut decoded = Sparse::new(4 * ALL as u64);
    let [from, to] = [&payload, &decoded].map(|memory| memory.part().address);
    // SAFETY: the memory is large enough for the payload and its values.
    unsafe {
        let gradient = DeviceGradient::of_part(first.part(), Dtype::F32, shape);
        backend.encode_to_device(&eden, &gradient, at(3).stream, from).unwrap();
        backend.decode_on_device(&eden, shape, from, to).unwrap();
    }
    backend.check().unwrap();
    let payload = payload.values::<u8>();
    assert!(found.payload[..payload.len()] == *payload);
    let decoded = &decoded.values::<f32>()[ALL - KNOWN..];
    assert!(found.means[..4 * KNOWN] == *bytemuck::cast_slice::<f32, u8>(decoded) && decoded.iter().any(|&x| x != 0.0));
}

/// Edits for an exchange with a large first layer under TopK. Of the last blocks that run, seven process small layers,
/// so seven fewer spans of the large layer are counted. All 616 blocks that run count themselves as done.
const OF_TOPS: [(Module, &str, &str); 3] = {
    let (from, to) = ("is_last(&program->done, 1, gridDim.x)", "is_last(&program->done, 1, min(616u, gridDim.x))");
    [(Module::Selection, "all - 616", "all - 609"), (Module::Selection, from, to), (Module::Selection, from, to)]
};

#[test]
#[ignore = "slow"]
fn first_layers_of_topk() {
    let Some(mut backend) = sparse(OF_TOPS) else { return };
    MOST.set(1 << 21);
    let column = [ALL, KNOWN].map(|rows| Shape::new(rows, 1).unwrap());
    for (setting, dtype) in [
        (Setting::TopK(TopK { keep: 100, values: Dtype::F16 }), Dtype::Bf16),
        (Setting::QuantisedTopK(QuantisedTopK { keep: 700, bits: 3 }), Dtype::F16),
    ] {
        check_first(&mut backend, setting, column, ExchangeConfig { dtype, ..at(3) }).unwrap();
    }
}

#[test]
#[ignore = "slow"]
fn first_layers_of_every_method_in_every_type() {
    let column = [ALL, KNOWN].map(|rows| Shape::new(rows, 1).unwrap());
    let matrix = [1 << 21, 64].map(|rows| Shape::new(rows, 1040).unwrap());
    let nearest = Setting::Qsgd(Qsgd { rounding: Rounding::Nearest, ..FIRST });
    let Some(mut backend) = sparse(None) else { return };
    // Kernels process two matrices in this test, and one matrix in other tests. So the limit on blocks must be twice as
    // high.
    MOST.set(1 << 21);
    for (setting, shapes, dtype, reduce_dtype) in [
        (Setting::Dense, column, Dtype::Bf16, Dtype::Bf16),
        (Setting::Dense, column, Dtype::F16, Dtype::F32),
        (nearest, column, Dtype::F16, Dtype::Bf16),
        (nearest, column, Dtype::Bf16, Dtype::F32),
        (power(4), matrix, Dtype::F32, Dtype::F32),
        (power(4), matrix, Dtype::Bf16, Dtype::F32),
    ] {
        let config = ExchangeConfig { dtype, reduce_dtype, ..at(3) };
        check_first(&mut backend, setting, shapes, config).unwrap();
    }
}

/// Plants faults: edited kernels count positions in 31 bits.
#[test]
#[ignore = "slow"]
fn faults_are_found() {
    let values = gradients(KNOWN);
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
    let column = [ALL, KNOWN].map(|rows| Shape::new(rows, 1).unwrap());
    let config = ExchangeConfig { dtype: Dtype::Bf16, reduce_dtype: Dtype::Bf16, ..at(3) };
    for (from, to) in [
        ("store4(to, p.reduce_dtype, i, here, sent);", "store4(to, p.reduce_dtype, i % (1u << 31), here, sent);"),
        (
            "give_eight(p.dtype, program, layer.layer, layer.start, all_ranks, own, i,",
            "give_eight(p.dtype, program, layer.layer, layer.start, all_ranks, own, i % (1u << 31),",
        ),
    ] {
        let Some(mut backend) = sparse(Some((Module::ExchangeSums, from, to))) else { return };
        assert!(check_first(&mut backend, Setting::Dense, column, config).is_err(), "{from}");
    }
    let window = ("u32 first = window * WINDOW;", "u32 first = window * WINDOW % (1u << 31);");
    let fault = OF_TOPS.into_iter().chain([(Module::Selection, window.0, window.1)]);
    let Some(mut backend) = sparse(fault) else { return };
    let top = Setting::TopK(TopK { keep: 100, values: Dtype::F32 });
    MOST.set(1 << 21);
    assert!(check_first(&mut backend, top, column, config).is_err(), "windows");
    let rows = ("u64 i = u64(tile.row_of(k)) * f.cols", "u64 i = tile.row_of(k) * f.cols % (1u << 31)");
    let Some(mut backend) = sparse(Some((Module::ExchangeSums, rows.0, rows.1))) else { return };
    MOST.set(1 << 21);
    let matrix = [1 << 21, 64].map(|rows| Shape::new(rows, 1040).unwrap());
    assert!(check_first(&mut backend, power(4), matrix, config).is_err(), "rows");
}
