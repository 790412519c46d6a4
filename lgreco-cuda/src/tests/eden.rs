//! EDEN's kernels: payloads of many blocks, what is at fault, data races, and planted bugs.
#![allow(unsafe_code)]

use super::backend;
use super::memory::Held;
use super::simt::{Edit, Flavour, Simt, flavour};
use crate::kernels::Module;
use crate::{CudaBackend, Error};
use lgreco::compress::eden::{Eden, Scale};
use lgreco::compress::wire::{Header, Method};
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::Shape;
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_decode, check_encode};
use lgreco_testing::powersgd::uniform;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SCALES: [Scale; 2] = [Scale::Unbiased, Scale::LeastSquares];

fn setting(bits: u8, scale: Scale) -> Setting {
    Setting::Eden(Eden { bits, scale })
}

/// Values of this magnitude.
fn tensor(elements: usize, magnitude: f32) -> Tensor {
    let values: Vec<f32> = uniform(elements, 4).iter().map(|x| x * magnitude).collect();
    Tensor::new(&values, elements, 1)
}

/// More chunks than blocks of a grid, so that blocks loop, and then every length of a block.
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

/// Their norms and inverse norms leave the range of f32, and values that are decoded may.
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

/// Gradients of three blocks, of which some have a value that is not finite, and some would decode to infinity.
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

/// The same of payloads that stay on the device.
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
        // SAFETY: the device is the processor; the memory is of this length until the check.
        unsafe { backend.encode_to_device(&setting, &held.gradient(gradient), Stream::default(), address) }.unwrap();
        let found = backend.check().unwrap_err();
        let expected = setting.encode(gradient, Stream::default(), &mut [], &mut vec![0; len]).unwrap_err();
        let Error::Core(error) = found.error else { panic!("{found}") };
        assert_eq!((found.job, error.to_string()), (Some(0), expected.to_string()));
    }
}

/// Payloads on the device that no encoder has written: a scale, a value or unused bits are at fault.
#[test]
fn damaged_payloads_on_the_device_are_told() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let (setting, shape) = (setting(3, Scale::Unbiased), Shape::new(4096 + 13, 1).unwrap());
    let values = uniform(shape.elements(), 1);
    let tensor = Tensor::new(&values, shape.elements(), 1);
    let mut sound = vec![0; setting.payload_len(shape, tensor.gradients()[0].values().dtype()).unwrap()];
    setting.encode(&tensor.gradients()[0], Stream::default(), &mut [], &mut sound).unwrap();
    let last = sound.len() - 1;
    // Of four blocks, the second and the fourth.
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
        // SAFETY: the device is the processor; both are memory of these lengths until the check.
        unsafe { backend.decode_on_device(&setting, shape, from, to) }.unwrap();
        assert_eq!(backend.check().is_ok(), good, "{at}, {bytes:?}");
        let mut expected = vec![0f32; shape.elements()];
        assert_eq!(lgreco::compress::decode(&damaged, &mut expected).is_ok(), good, "{at}, {bytes:?}");
        assert!(!good || found == expected, "{at}, {bytes:?}");
    }
}

/// Several chunks of a block of the grid, short blocks, and decoded values that have to be looked at.
fn check(backend: &mut CudaBackend) {
    for (elements, magnitude) in [(MANY, 1.0), (4096 + 100, 1e32)] {
        let tensor = tensor(elements, magnitude);
        check_encode(backend, &setting(3, Scale::Unbiased), &tensor.gradients()[0], Stream::default());
    }
}

#[test]
fn no_kernel_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    check(&mut backend);
    check_encode(&mut backend, &setting(8, Scale::Unbiased), &faulty()[1].gradients()[0], Stream::default());
}

/// What the checks say of an edited kernel.
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
        ("        __syncthreads();  // the codes before may still be read\n", ""),
        ("        __syncthreads();  // the chunk before may still be read\n", ""),
        ("            __syncthreads();  // all is there, and the block before is done\n", ""),
        ("    __syncthreads();  // the sum before may still be read\n", ""),
        ("    __syncthreads();\n    exchange<1, false>", "    exchange<1, false>"),
        ("    __syncthreads();\n    exchange<256, false>", "    exchange<256, false>"),
        ("        __syncthreads();\n    }\n}\n\n// Reads or writes 16", "    }\n}\n\n// Reads or writes 16"),
        ("        __syncthreads();\n        pack(", "        pack("),
        ("                __syncthreads();\n                bool fits", "                bool fits"),
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
        ("u64(words[word + 1]) << 32 | words[word]", "u64(words[word]) << 32 | words[word]"),
    ] {
        let Some(said) = said(Flavour::Plain, from, to) else { return };
        let differs = ["that differs", ", expected "].iter().any(|words| said.contains(words));
        assert!(differs, "{from}: {said}");
    }
}
