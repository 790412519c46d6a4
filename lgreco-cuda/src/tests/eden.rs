//! Tests EDEN's kernels: payloads and rows of many blocks, faults, data races, and planted bugs.
#![allow(unsafe_code)]

use super::memory::Held;
use super::simt::{Edit, Flavour, Simt, flavour};
use super::{ROWS, backend};
use crate::kernels::Module;
use crate::{CudaBackend, DeviceJob, Error};
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::eden::{Eden, Scale};
use lgreco::compress::wire::{Header, Method};
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::{Gradient, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_decode, check_encode, check_rows};
use lgreco_testing::powersgd::uniform;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SCALES: [Scale; 2] = [Scale::Unbiased, Scale::LeastSquares];

fn setting(bits: u8, scale: Scale) -> Setting {
    Setting::Eden(Eden { bits, scale })
}

/// A tensor with values of this magnitude.
fn tensor(elements: usize, magnitude: f32) -> Tensor {
    let values: Vec<f32> = uniform(elements, 4).iter().map(|x| x * magnitude).collect();
    Tensor::new(&values, elements, 1)
}

/// Number of values. There are more chunks than a grid has blocks, so that blocks loop. The last values form EDEN
/// blocks of every length.
const MANY: usize = 5 * 4096 + 4095;

#[test]
fn every_width_of_every_length_of_block_is_as_in_the_core() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let tensor = tensor(MANY, 1.0);
    let stream = Stream { seed: 5, step: 1, layer: 2, rank: 3 };
    for bits in 1..=8 {
        let gradient = &tensor.gradients()[usize::from(bits) % 3];
        SCALES.into_iter().for_each(|scale| check_encode(&mut backend, &setting(bits, scale), gradient, stream));
    }
}

/// With these magnitudes, norms, inverse norms and some decoded values exceed the range of f32.
#[test]
fn magnitudes_of_all_sizes_are_as_in_the_core() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    for magnitude in [f32::MAX, 3e36, 1e32, 1e29, 1e-29, 1e-32, 1e-38, 1e-42] {
        for (bits, scale) in [(1, Scale::Unbiased), (3, Scale::LeastSquares)] {
            let tensor = tensor(4096 + 300, magnitude);
            check_encode(&mut backend, &setting(bits, scale), &tensor.gradients()[0], Stream::default());
        }
    }
}

/// A tensor of one element decodes to its code's grid point.
#[test]
fn every_code_stands_for_the_same_as_in_the_core() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    for bits in 1..=8u8 {
        for code in 0..=(!0u8 >> (8 - bits)) {
            let mut payload = [0; 16 + 8 + 4 + 1];
            let shape = Shape::new(1, 1).unwrap();
            Header { method: Method::Eden, variant: 0, parameter: bits.into(), shape }.write(&mut payload).unwrap();
            payload[24..28].copy_from_slice(&1f32.to_le_bytes());
            payload[28] = code;
            check_decode(&mut backend, &payload, 1);
        }
    }
    assert_eq!(backend.gpu_mut().decoded, 2 + 4 + 8 + 16 + 32 + 64 + 128 + 256, "the core has decoded others");
}

/// Gradients of three EDEN blocks. Some gradients have a value that is not finite, and some would decode to infinity.
fn faulty() -> Vec<Tensor> {
    let values = |faults: &[(usize, f32)]| {
        let mut values = uniform(2 * 4096 + 100, 1);
        for &(block, fault) in faults {
            let end = values.len().min((block + 1) * 4096);
            if fault == f32::MAX {
                values[block * 4096..end].iter_mut().for_each(|x| *x = f32::MAX.copysign(*x));
            } else {
                values[block * 4096 + 77] = fault;
            }
        }
        Tensor::new(&values, values.len(), 1)
    };
    let (infinity, nan, max) = (f32::INFINITY, f32::NAN, f32::MAX);
    let two = [(0, infinity), (0, max), (1, nan), (1, max), (2, infinity), (2, max)];
    let alone = two.map(|fault| values(&[fault]));
    let both = [[(0, max), (1, nan)], [(0, nan), (1, max)], [(1, max), (2, nan)], [(1, infinity), (2, max)]];
    alone.into_iter().chain(both.map(|faults| values(&faults))).collect()
}

#[test]
fn the_first_block_at_fault_is_told() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    for tensor in faulty() {
        for scale in SCALES {
            check_encode(&mut backend, &setting(1, scale), &tensor.gradients()[0], Stream::default());
        }
    }
}

/// If payloads stay on the device, a later call of `check` reports invalid gradients.
#[test]
fn faults_are_told_later() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let setting = setting(1, Scale::Unbiased);
    for tensor in faulty() {
        let gradient = &tensor.gradients()[0];
        let held = Held::new(gradient, 4);
        let len = setting.payload_len(gradient.shape(), gradient.values().dtype()).unwrap();
        let mut payload = vec![0u32; len.div_ceil(4)];
        let address = payload.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the simulated device uses the CPU's memory. The payload's memory has this length and lives until the
        // check.
        unsafe { backend.encode_to_device(&setting, &held.gradient(gradient), Stream::default(), address) }.unwrap();
        let found = backend.check().unwrap_err();
        let expected = setting.encode(gradient, Stream::default(), &mut [], &mut vec![0; len]).unwrap_err();
        let Error::Core(error) = found.error else { panic!("{found}") };
        assert_eq!((found.job, error.to_string()), (Some(0), expected.to_string()));
    }
}

/// Decodes payloads on the device that no encoder wrote: a scale or unused bits are wrong, or a decoded value
/// overflows.
#[test]
fn damaged_payloads_on_the_device_are_told() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let (setting, shape) = (setting(3, Scale::Unbiased), Shape::new(4096 + 13, 1).unwrap());
    let values = uniform(shape.elements(), 1);
    let tensor = Tensor::new(&values, shape.elements(), 1);
    let mut sound = vec![0; setting.payload_len(shape, tensor.gradients()[0].values().dtype()).unwrap()];
    setting.encode(&tensor.gradients()[0], Stream::default(), &mut [], &mut sound).unwrap();
    let last = sound.len() - 1;
    // The payload has four EDEN blocks. Wrong scales are in the first, the second or the fourth block.
    let scale = |block: usize, scale: f32| (24 + 4 * block, scale.to_le_bytes().to_vec());
    for ((at, bytes), good) in [
        (scale(1, 2.0), true),
        (scale(3, 0.0), true),
        (scale(1, -0.0), false),
        (scale(3, f32::NAN), false),
        (scale(1, -1.0), false),
        (scale(3, f32::INFINITY), false),
        (scale(0, f32::MAX), false),
        ((last, vec![sound[last] | 0x80]), false),
    ] {
        let mut payload = vec![0u32; sound.len().div_ceil(4)];
        let words: &mut [u8] = bytemuck::cast_slice_mut(&mut payload);
        words[..sound.len()].copy_from_slice(&sound);
        words[at..at + bytes.len()].copy_from_slice(&bytes);
        let damaged = words[..sound.len()].to_vec();
        let mut found = vec![0f32; shape.elements()];
        let (from, to) = (payload.as_ptr().expose_provenance() as u64, found.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the simulated device uses the CPU's memory. Both memories have these lengths and live until the
        // check.
        unsafe { backend.decode_on_device(&setting, shape, from, to) }.unwrap();
        assert_eq!(backend.check().is_ok(), good, "{at}, {bytes:?}");
        let mut expected = vec![0f32; shape.elements()];
        assert_eq!(lgreco::compress::decode(&damaged, &mut expected).is_ok(), good, "{at}, {bytes:?}");
        assert!(!good || found == expected, "{at}, {bytes:?}");
    }
}

/// Checks the rows of layers that share launches, and of layers that do not. Then checks the error for a layer with a
/// value that is not finite.
fn check_layers(backend: &mut CudaBackend) {
    let faulty = faulty();
    let tensors: Vec<Tensor> = (0..10).map(|i| tensor(if i == 7 { 0 } else { 1 + 1111 * i }, 1.0)).collect();
    let mut gradients: Vec<Gradient<'_>> =
        tensors.iter().enumerate().map(|(i, tensor)| tensor.gradients()[i % 3]).collect();
    for fault in [None, Some(&faulty[1]), Some(&faulty[7])] {
        if let Some(tensor) = fault {
            gradients[5] = tensor.gradients()[0];
        }
        let held: Vec<Held> = gradients.iter().map(|gradient| Held::new(gradient, 8)).collect();
        let job = |layer: usize| {
            let base = Eden { scale: SCALES[usize::from(layer > 7)], ..Eden::default() };
            let bits: &[u8] = if layer == 2 { &[8] } else { &[1, 3, 6] };
            (Candidates::Eden { base, bits }, Stream { seed: 3, layer: layer as u32, ..Stream::default() })
        };
        let (mut jobs, mut on_device) = (Vec::new(), Vec::new());
        for (layer, (&gradient, held)) in gradients.iter().zip(&held).enumerate() {
            let (candidates, stream) = job(layer);
            jobs.push(Job { gradient, candidates, stream });
            on_device.push(DeviceJob { gradient: held.gradient(&gradient), candidates, stream });
        }
        let places = jobs.iter().map(|job| job.candidates.len()).sum();
        let (mut found, mut expected) = (vec![f64::NAN; places], vec![f64::NAN; places]);
        let measured = backend.measure_device(&on_device, &mut found);
        match Portable.measure(&jobs, &mut [], &mut expected) {
            Ok(()) => {
                assert_eq!((measured, fault.is_none()), (Ok(()), true));
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= ROWS * b;
                assert!(found.iter().zip(&expected).all(near), "{found:?}, not {expected:?}");
            }
            Err(expected) => {
                let found = measured.unwrap_err();
                let Error::Core(error) = found.error else { panic!("{found}") };
                assert_eq!((found.job, error.to_string()), (Some(5), expected.error.to_string()));
                assert_eq!(expected.job, Some(5));
            }
        }
    }
}

#[test]
fn layers_in_device_memory_share_launches() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    check_layers(&mut backend);
}

/// If the coordinates of a block are nearly grid points, the kernel measures the block's error by decoding. Some layers
/// have magnitudes far from 1.
#[test]
fn errors_that_are_hard_to_measure_are_as_in_the_core() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let spike = |i: usize| if i == 99 { 3.0 } else { 0.0 };
    let nearly = |i: usize| if i == 99 { 3.0 } else { 1e-4 * (i % 7) as f32 };
    let two = |i: usize| if i.is_multiple_of(2048) { 1.0 } else { 0.0 };
    let kinds: [&dyn Fn(usize) -> f32; 5] = [&spike, &nearly, &two, &|_| 0.3, &|i| 1e31 * (i % 17) as f32];
    for kind in kinds {
        for elements in [4096, 4096 + 512, 300] {
            let values: Vec<f32> = (0..elements).map(kind).collect();
            let tensor = Tensor::new(&values, elements, 1);
            for scale in SCALES {
                let candidates = Candidates::Eden { base: Eden { bits: 3, scale }, bits: &[1, 2, 3, 4, 5, 6, 7, 8] };
                let job = Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() };
                check_rows(&mut backend, &[job], ROWS);
            }
        }
    }
}

/// Checks several chunks per thread block, short EDEN blocks, and a block of zeros at the end. Also checks decoded
/// values that may overflow, and errors that kernels measure by decoding.
fn check(backend: &mut CudaBackend) {
    let large = |i: usize| if i < 4096 + 96 { 1e32 * (i % 17) as f32 } else { 0.0 };
    let spike = |i: usize| if i == 99 { 3.0 } else { 0.0 };
    let made = |elements: usize, value: &dyn Fn(usize) -> f32| {
        Tensor::new(&(0..elements).map(value).collect::<Vec<_>>(), elements, 1)
    };
    for tensor in [tensor(MANY, 1.0), made(4096 + 100, &large), made(4096, &spike)] {
        let gradient = tensor.gradients()[0];
        check_encode(backend, &setting(3, Scale::Unbiased), &gradient, Stream::default());
        let candidates = Candidates::Eden { base: Eden::default(), bits: &[1, 2, 3, 6] };
        check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
    }
}

#[test]
fn no_kernel_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    check(&mut backend);
    check_layers(&mut backend);
    check_encode(&mut backend, &setting(8, Scale::Unbiased), &faulty()[1].gradients()[0], Stream::default());
}

/// Returns the message with which [`check`] fails for an edited kernel.
fn said(flavour: Flavour, from: &'static str, to: &'static str) -> Option<String> {
    let edit = Edit { module: Module::Eden, from, to };
    let mut backend = CudaBackend::on(Box::new(Simt::new(flavour, 0, Some(edit))?));
    let found = catch_unwind(AssertUnwindSafe(|| check(&mut backend)));
    let words = found.expect_err(from).downcast::<String>().expect("words");
    Some(backend.failure().map_or(*words, ToString::to_string))
}

#[test]
#[ignore = "slow"]
fn missing_barriers_are_found() {
    for (from, to) in [
        ("        __syncthreads();  // the block before may still be read\n", ""),
        ("                __syncthreads();\n                if (bits == 0)", "                if (bits == 0)"),
        ("    __syncthreads();\n    return row.undecided;", "    return row.undecided;"),
        ("        __syncthreads();\n        auto point = ", "        auto point = "),
        ("    __syncthreads();  // the sum before may still be read\n", ""),
        ("    __syncthreads();\n    exchange<1, false>", "    exchange<1, false>"),
        ("    __syncthreads();\n    exchange<256, false>", "    exchange<256, false>"),
        ("        __syncthreads();\n    }\n}\n\n// Reads or writes 16", "    }\n}\n\n// Reads or writes 16"),
        ("    __syncthreads();\n    pack(", "    pack("),
        ("            __syncthreads();\n            auto point = ", "            auto point = "),
    ] {
        let Some(said) = said(Flavour::Races, from, to) else { return };
        assert!(said.contains("race (") && said.contains("shared memory"), "{from}: {said}");
    }
}

#[test]
#[ignore = "slow"]
fn wrong_numbers_are_found() {
    for (from, to) in [
        ("transform16<true>(own);\n    exchange<16", "transform16<false>(own);\n    exchange<16"),
        ("transform16<false>(own);\n    to(", "transform16<true>(own);\n    to("),
        ("7 - level : level", "level : level"),
        ("chunk * (SIGN_WORDS / 4)", "(chunk + 1) * (SIGN_WORDS / 4)"),
        ("__shfl_down_sync(FULL, sum, 16)", "__shfl_down_sync(FULL, sum, 15)"),
        ("fabsf(z[k]) >= thresholds", "fabsf(z[k]) > 1.0001f * thresholds"),
        ("power * 0.70710678118654752f", "power * 0.7071069f"),
        ("double(len) / product", "double(len) / square"),
        ("packed &= ~0ull >> (64 - coded * bits);", ""),
        ("u32 bits = most - 3 + threadIdx.x / LANES;", "u32 bits = most - 3 + threadIdx.x / 32 % 4;"),
        ("row.errors[bits - 1] += error * mean_square;", "row.errors[bits - 1] = error * mean_square;"),
        ("u64(words[word + 1]) << 32 | words[word]", "u64(words[word]) << 32 | words[word]"),
    ] {
        let Some(said) = said(Flavour::Plain, from, to) else { return };
        let differs = ["that differs", ", expected "].iter().any(|words| said.contains(words));
        assert!(differs, "{from}: {said}");
    }
}
