//! Compares payloads of TopK in few bits, in simulated device memory, with the core.
#![allow(unsafe_code)]

use super::memory::Held;
use super::sample::KINDS;
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{ROWS, backend};
use crate::CudaBackend;
use crate::device::Part;
use crate::few_bits::{Layer, measure, result_words};
use crate::gpu::{Gpu, Scratch};
use crate::kernels::Module;
use crate::tensor::Tensor as DeviceTensor;
use lgreco::backend::Job;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::compress::{Candidates, Compressor, Setting, decode, quantised_topk::QuantisedTopK, topk::TopK};
use lgreco::gradient::{Dtype, Gradient, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_rows};
use lgreco_testing::powersgd::uniform;

fn few(keep: u32, bits: u8) -> Setting {
    Setting::QuantisedTopK(QuantisedTopK { keep, bits })
}

/// Returns the core's payload.
fn expected(setting: &Setting, gradient: &Gradient<'_>) -> Result<Vec<u8>, String> {
    let mut payload = vec![0xee; setting.payload_len(gradient.shape(), gradient.values().dtype()).unwrap()];
    let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), gradient.values().dtype())];
    let encoded = setting.encode(gradient, Stream::default(), &mut workspace, &mut payload);
    encoded.map(|_| payload).map_err(|error| error.to_string())
}

/// Returns the payload that the device encodes in device memory.
fn encoded(backend: &mut CudaBackend, setting: &Setting, gradient: &Gradient<'_>) -> Result<Vec<u8>, String> {
    let held = Held::new(gradient, 0);
    let len = setting.payload_len(gradient.shape(), gradient.values().dtype()).unwrap();
    let mut words = vec![0xeeee_eeeeu32; len.div_ceil(4)];
    let address = words.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the memory is large enough for the payload, and lives until the check.
    let length =
        unsafe { backend.encode_to_device(setting, &held.gradient(gradient), Stream::default(), address) }.unwrap();
    assert_eq!(length, len);
    backend.check().map_err(|failed| failed.error.to_string())?;
    Ok(bytemuck::cast_slice(&words)[..len].to_vec())
}

/// Returns the bits of the values that the device decodes.
fn decoded(backend: &mut CudaBackend, setting: &Setting, shape: Shape, payload: &[u8]) -> Result<Vec<u32>, String> {
    let mut values = vec![f32::NAN.to_bits(); shape.elements()];
    let (from, to) = (payload.as_ptr().expose_provenance(), values.as_mut_ptr().expose_provenance());
    // SAFETY: the payload and the values have the lengths for this setting and shape, and live until the check.
    unsafe { backend.decode_on_device(setting, shape, from as u64, to as u64) }.unwrap();
    backend.check().map(|()| values).map_err(|failed| failed.error.to_string())
}

/// Returns the bits of the values that the core decodes.
fn decoded_by_core(payload: &[u8], shape: Shape) -> Result<Vec<u32>, String> {
    let mut values = vec![f32::NAN; shape.elements()];
    let outcome = decode(payload, &mut values).map_err(|error| error.to_string());
    outcome.map(|_| values.into_iter().map(f32::to_bits).collect())
}

fn check(backend: &mut CudaBackend, setting: &Setting, gradient: &Gradient<'_>) {
    let (found, expected) = (encoded(backend, setting, gradient), expected(setting, gradient));
    assert!(found == expected, "{setting}: {:?}, {:?}", found.as_ref().err(), expected.as_ref().err());
    let Ok(payload) = found else { return };
    let values = decoded(backend, setting, gradient.shape(), &payload);
    assert!(values == decoded_by_core(&payload, gradient.shape()), "{setting}: {:?}", values.err());
}

/// Encodes layers in every type, with magnitudes of all kinds. TopK keeps from one value to all values, in codes of
/// every width.
#[test]
fn payloads_on_the_device_are_the_cores() {
    for order in 0..3 {
        let Some(mut backend) = backend(flavour(), order) else { return };
        for (number, kind) in KINDS.into_iter().enumerate().skip(order as usize).step_by(3) {
            let size = [9001, 4096, 300, 12_300, 33, 5000, 4097, 8190][number];
            let values: Vec<f32> = uniform(size, 5).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect();
            let (tensor, size) = (Tensor::new(&values, size, 1), size as u32);
            let keeps = [1, size / 100 + 2, size / 9, size / 3, size - 1, size];
            for (of_type, gradient) in tensor.gradients().into_iter().enumerate() {
                for bits in 1..=8 {
                    let keep = keeps[(number + usize::from(bits) + 2 * of_type) % keeps.len()];
                    check(&mut backend, &few(keep, bits), &gradient);
                }
            }
        }
    }
}

/// Payloads have means even if the layer has no elements.
#[test]
fn layers_without_elements_have_payloads() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let tensor = Tensor::new(&[], 0, 5);
    for bits in 1..=8 {
        for gradient in tensor.gradients() {
            check(&mut backend, &few(0, bits), &gradient);
            let (setting, held) = (few(0, bits), Held::new(&gradient, 0));
            let expected = expected(&setting, &gradient).unwrap();
            let mut payload = vec![0xee; expected.len()];
            backend.encode_device(&setting, &held.gradient(&gradient), Stream::default(), &mut payload).unwrap();
            assert_eq!(payload, expected, "{bits} bits");
        }
    }
}

#[test]
fn gradients_that_are_not_finite_are_told_of() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let mut told = 0;
    for (value, at) in [(f32::NAN, 17), (f32::INFINITY, 0), (f32::NEG_INFINITY, 4999), (1e5, 77), (f32::MAX, 4097)] {
        let mut values = uniform(5000, 3);
        values[at] = value;
        for gradient in Tensor::new(&values, 50, 100).gradients() {
            for (keep, bits) in [(1, 4), (50, 1), (2000, 2), (5000, 8)] {
                told += usize::from(expected(&few(keep, bits), &gradient).is_err());
                check(&mut backend, &few(keep, bits), &gradient);
            }
        }
    }
    assert_eq!(told, 4 * (9 + 1 + 2), "the fourth is infinite in f16, and the last in bf16, too");
}

/// Changes up to three bits in the bodies of payloads with positions of every kind. Returns the numbers of payloads
/// that the core decodes and refuses. The device must decode and refuse the same payloads.
fn damaged(backend: &mut CudaBackend) -> Result<[usize; 2], String> {
    let of = |rows, cols, setting| (Shape::new(rows, cols).unwrap(), setting);
    let layers = [
        of(90, 101, few(301, 3)),
        of(7, 9, few(63, 6)),
        of(33, 9, few(20, 1)),
        of(40, 25, few(123, 7)),
        of(64, 33, few(700, 8)),
        of(640, 1, few(13, 5)),
        of(640, 1, Setting::TopK(TopK { keep: 13, values: Dtype::F16 })),
    ];
    let mut outcomes = [0; 2];
    for (number, (shape, setting)) in (0u32..).zip(layers) {
        let tensor = Tensor::new(&uniform(shape.elements(), u64::from(number)), shape.rows(), shape.cols());
        let good = expected(&setting, &tensor.gradients()[0]).unwrap();
        for step in 0..if flavour() == Flavour::Plain { 120 } else { 30 } {
            let (random, mut payload) = (Stream { seed: 29, layer: number, step, ..Stream::default() }, good.clone());
            for flip in 0..1 + u64::from(random.word(0)) % 3 {
                // Chooses any byte of the body, or one of its first or last bytes.
                let (at, body) = (random.word(2 + 2 * flip) as usize, payload.len() - HEADER_LEN);
                let byte = [at % body, at % 16, body - 1 - at % 8, body - 1][random.word(1) as usize % 4];
                payload[HEADER_LEN + byte] ^= 1 << (random.word(3 + 2 * flip) % 8);
            }
            let (found, core) = (decoded(backend, &setting, shape, &payload), decoded_by_core(&payload, shape));
            match (found, core) {
                (Ok(found), Ok(core)) if found == core => outcomes[0] += 1,
                (Err(_), Err(_)) => outcomes[1] += 1,
                (found, core) => return Err(format!("{setting}, {step}: {:?}, {:?}", found.err(), core.err())),
            }
        }
    }
    Ok(outcomes)
}

#[test]
fn damaged_bodies_on_the_device_are_decoded_or_refused_as_by_the_core() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let [good, refused] = damaged(&mut backend).unwrap();
    assert!(good > 30 && refused > 30, "{good} decoded, {refused} refused");
}

fn edited(module: Module, from: &'static str, to: &'static str) -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(Flavour::Plain, 0, Some(Edit { module, from, to }))?)))
}

#[test]
#[ignore = "slow"]
fn planted_faults_are_found() {
    for (from, to) in [
        ("index >= means_of(p) || ", "true || "),
        ("is_padded(kept + 4 * means_of(p), u64(p.keep) * p.bits)", "true"),
        ("is_padded(low, u64(p.keep) * p.low_bits)", "true"),
        ("(shift + p.bits > 8 ? u32(codes[1]) << 8 : 0)", "0"),
        ("index * p.bits / 8", "index"),
    ] {
        let Some(mut backend) = edited(Module::Positions, from, to) else { return };
        assert!(damaged(&mut backend).is_err(), "{from}");
    }
    let Some(mut backend) = edited(Module::Positions, "means[code ^ sign << (bits - 1)] | sign", "means[0] | sign")
    else {
        return;
    };
    assert!(damaged(&mut backend).is_err());
}

/// Simulates a gradient that changes during its encoding, so that the largest magnitude is wrong.
#[test]
fn magnitudes_above_the_range_stay_within_the_bins() {
    let Some(mut backend) = edited(Module::Selection, "cut->high = largest;", "cut->high = cut->prefix;") else {
        return;
    };
    let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
    let (gradient, setting) = (tensor.gradients()[0], few(1000, 2));
    let payload = encoded(&mut backend, &setting, &gradient).unwrap();
    assert!(decoded_by_core(&payload, gradient.shape()).is_ok());
}

#[test]
fn no_kernel_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    for (number, kind) in KINDS.into_iter().enumerate() {
        let values: Vec<f32> = uniform(5000, 5).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect();
        let (tensor, bits) = (Tensor::new(&values, 5000, 1), number as u8 + 1);
        for (gradient, keep) in tensor.gradients().iter().zip([40, 1700, 5000]) {
            check(&mut backend, &few(keep, bits), gradient);
        }
    }
}

/// Values of k. A caller may pass values of k that are not in ascending order, as here.
const KEEPS: [u32; 7] = [50, 5000, 1, 700, 4999, 701, 2];

fn values_of(kind: fn(usize, f32) -> f32) -> Vec<f32> {
    uniform(5000, 9).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect()
}

fn check_row(backend: &mut CudaBackend, gradient: Gradient<'_>) {
    // If all values are kept, the only error comes from sending the means of bins. Kernels compute this error more
    // precisely than the error of dropped values.
    for (keeps, relative) in [(&KEEPS[..], ROWS), (&KEEPS[1..2], 1e-7)] {
        let candidates = Candidates::QuantisedTopK { keeps, bits: &[3, 8, 1, 2, 7, 4, 6, 5] };
        check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], relative);
    }
}

/// Returns values with adjacent magnitudes in one bin.
fn neighbours(i: usize, _: f32) -> f32 {
    if i == 7 { 1.0078125 } else { 1.0 + (i % 3) as f32 * f32::EPSILON }
}

#[test]
fn rows_of_magnitudes_of_all_kinds_are_the_cores() {
    for (number, kind) in KINDS.into_iter().chain([neighbours as _]).enumerate() {
        let Some(mut backend) = backend(flavour(), number as i32 % 3) else { return };
        for gradient in Tensor::new(&values_of(kind), 50, 100).gradients() {
            check_row(&mut backend, gradient);
        }
    }
}

#[test]
#[ignore = "slow"]
fn planted_faults_in_rows_are_found() {
    for (from, to) in [
        (" - double(rest) * part;", ";"),
        ("u64 less = whole * (sum + rest);", "u64 less = whole * sum;"),
        ("upper -= __umul64hi(whole, sum + rest) + (lower < less);", "upper -= (lower < less);"),
        ("high += low >> 32;", ""),
        (" + (lower < less);", ";"),
        ("low += (square & 0xffffffffu) * cut.rank;", ""),
        ("sum += digits * cut.rank;", ""),
        (" + spread.count * off * off", ""),
        (" + apart * apart * a.count * share", ""),
        ("atomicAdd(&highs[bin], square >> 32);", ""),
        ("digits_of(magnitude, units.least_exponent(bin + 1))", "digits_of(magnitude, units.least_exponent(bin))"),
        ("errors + top.payload", "errors"),
    ] {
        let Some(mut backend) = edited(Module::Selection, from, to) else { return };
        let rows = || {
            for kind in [KINDS[0], KINDS[6], KINDS[7], neighbours] {
                check_row(&mut backend, Tensor::new(&values_of(kind), 50, 100).gradients()[0]);
            }
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(rows)).is_err(), "{from}");
    }
}

/// Returns the result words of the rows of these layers. `together` is the argument of [`measure`]: bytes of workspace.
fn words_of(values: &[Vec<f32>], together: u64, edit: Option<Edit>) -> Option<Vec<u64>> {
    let mut gpu = Gpu::new(Box::new(Simt::new(flavour(), 2, edit)?));
    let mut word = 0;
    let layer = |values: &Vec<f32>| {
        let part = Part { address: values.as_ptr().expose_provenance() as u64, bytes: 4 * values.len() as u64 };
        let layer = Layer { tensor: DeviceTensor::of_part(part), keeps: &[700, 2, 300], word };
        word += result_words(3);
        layer
    };
    let layers: Vec<Layer<'_>> = values.iter().map(layer).collect();
    let results = gpu.scratch(Scratch::Results, 8 * word as u64).unwrap();
    gpu.clear(results).unwrap();
    measure(&mut gpu, &layers, together, results).unwrap();
    Some(gpu.read(results).unwrap())
}

/// Layers and values of k that are measured together must have the same rows as if each were measured alone, for any
/// size of the workspace.
#[test]
fn rows_do_not_depend_on_other_layers() {
    let values: Vec<Vec<f32>> =
        [5000, 700, 9001, 4096].into_iter().zip(1..).map(|(n, seed)| uniform(n, seed)).collect();
    let Some(all) = words_of(&values, u64::MAX, None) else { return };
    let alone = values.chunks(1).flat_map(|layer| words_of(layer, u64::MAX, None).unwrap());
    assert_eq!(all, alone.collect::<Vec<_>>());
    // With the first limit on the workspace, layers are measured one at a time. With the second limit, layers are
    // measured two at a time.
    assert!([1, 80_000].into_iter().all(|together| words_of(&values, together, None).unwrap() == all));
    for (from, to) in [("all + top.first", "all"), ("errors + top.payload", "errors + number")] {
        let edit = Edit { module: Module::Selection, from, to };
        assert!(words_of(&values, u64::MAX, Some(edit)).unwrap() != all, "{from}");
    }
}

#[test]
fn no_row_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    check_row(&mut backend, Tensor::new(&values_of(KINDS[7]), 50, 100).gradients()[1]);
    // The next layer is so large that not all of its values are gathered.
    let large = Tensor::new(&uniform(33_001, 3), 33_001, 1);
    let candidates = Candidates::QuantisedTopK { keeps: &[16_500, 33_001], bits: &[2] };
    check_rows(&mut backend, &[Job { gradient: large.gradients()[0], candidates, stream: Stream::default() }], ROWS);
}
