//! Error feedback whose residual lies in device memory, for which the processor's stands.
#![allow(unsafe_code)]

use super::backend;
use super::memory::Held;
use super::simt::flavour;
use crate::{CudaBackend, DeviceGradient, DeviceResidual, Error};
use lgreco_core::backend::Backend;
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::{Compressor, Setting, qsgd::Qsgd, topk::TopK};
use lgreco_core::feedback::{Aggregation, GROUP, Memory, Residual, Rule, Storage};
use lgreco_core::gradient::{Bf16, Dtype, Element, Shape};
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::Tensor;
use lgreco_core::testing::powersgd::uniform;

pub(super) const STORAGES: [Storage; 3] = [Storage::F32, Storage::Bf16, Storage::Int8];

/// A residual, and rubbish behind it that has to stay.
struct Kept {
    words: Vec<u32>,
    storage: Storage,
    elements: usize,
}

impl Kept {
    fn zeros(storage: Storage, elements: usize) -> Kept {
        let mut words = vec![u32::MAX; storage.bytes(elements).div_ceil(4) as usize + 1];
        bytemuck::cast_slice_mut(&mut words)[..storage.bytes(elements) as usize].fill(0u8);
        Kept { words, storage, elements }
    }

    fn residual(&mut self) -> DeviceResidual {
        DeviceResidual { address: self.words.as_mut_ptr().expose_provenance() as u64, storage: self.storage }
    }

    /// The bits of what it holds.
    fn content(&self) -> Vec<u32> {
        let (bytes, rest) =
            bytemuck::cast_slice::<u32, u8>(&self.words).split_at(self.storage.bytes(self.elements) as usize);
        assert!(rest.iter().all(|&byte| byte == u8::MAX), "written behind the residual");
        let value = |i: usize| match self.storage {
            Storage::F32 => f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()),
            Storage::Bf16 => Bf16(u16::from_le_bytes(bytes[2 * i..2 * i + 2].try_into().unwrap())).to_f32(),
            Storage::Int8 => {
                let exponent = u32::from(bytes[self.elements + i / GROUP]);
                f32::from(bytes[i] as i8) * f32::from_bits(exponent << 23)
            }
        };
        (0..self.elements).map(|i| value(i).to_bits()).collect()
    }
}

/// Some steps of both, with subnormal numbers, and groups of different magnitude.
pub(super) fn check(
    backend: &mut CudaBackend,
    (rows, cols): (usize, usize),
    setting: Setting,
    gain: f32,
    storage: Storage,
) {
    let (elements, shape) = (rows * cols, Shape::new(rows, cols).unwrap());
    let mut kept = Kept::zeros(storage, elements);
    let rule = Rule::Residual(Residual { gain, storage, ..Residual::CLASSIC });
    let mut memory = Memory::new(rule, Aggregation::Summed, shape, vec![0; rule.state_len(shape)]).unwrap();
    for step in 0..4 {
        let scale = if step == 2 { 1e-38 } else { 1.0 };
        let magnitude = |i: usize| scale * 10f32.powi((i / 700 % 5) as i32);
        let values = uniform(elements, u64::from(step)).into_iter().enumerate();
        let values: Vec<f32> = values.map(|(i, x)| x * magnitude(i)).collect();
        let tensor = Tensor::new(&values, rows, cols);
        let gradient = tensor.gradients()[2];
        let held = Held::new(&gradient, 2);
        let stream = Stream { seed: 3, step, layer: 4, rank: 5 };
        let len = setting.payload_len(shape, Dtype::Bf16).unwrap();
        let (mut found, mut expected) = (vec![0; len], vec![0; len]);
        // SAFETY: the residual is of the gradient's size.
        let encoded = unsafe {
            backend.encode_with_feedback(&setting, &held.gradient(&gradient), kept.residual(), gain, stream, &mut found)
        };
        assert_eq!(encoded, Ok(len));
        let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::Bf16).unwrap()];
        let mut decoded = vec![0.0; elements];
        memory.step(&setting, &gradient, stream, &mut workspace, &mut expected, &mut decoded).unwrap();
        assert!(found == expected, "payload of step {step}, {setting:?}, {storage:?}");
        memory.values(&mut decoded).unwrap();
        let differs = kept.content().iter().zip(&decoded).position(|(&a, b)| a != b.to_bits());
        assert_eq!(differs, None, "residual after step {step}, {setting:?}, {storage:?}");
    }
    assert!(kept.content().iter().any(|&bits| bits != 0));
    failures_change_nothing(backend, &mut kept, setting, shape, gain);
}

fn failures_change_nothing(backend: &mut CudaBackend, kept: &mut Kept, setting: Setting, shape: Shape, gain: f32) {
    let before = kept.content();
    let mut spoiled = uniform(kept.elements, 1);
    spoiled[99] = f32::NAN;
    let tensor = Tensor::new(&spoiled, shape.rows(), shape.cols());
    let held = Held::new(&tensor.gradients()[0], 0);
    let gradient = held.gradient(&tensor.gradients()[0]);
    let DeviceResidual { address, storage } = kept.residual();
    let mut run = |setting, address, gain| {
        let (stream, mut payload) = (Stream::default(), vec![0; 20_000]);
        let residual = DeviceResidual { address, storage };
        // SAFETY: the residual is of the gradient's size, or its address is refused.
        unsafe { backend.encode_with_feedback(setting, &gradient, residual, gain, stream, &mut payload) }
    };
    let failed = run(&setting, address, gain);
    assert!(matches!(failed, Err(Error::Core(lgreco_core::Error::NonFinite { index: 99, .. }))), "{failed:?}");
    let failed = run(&setting, address, 1.5);
    assert!(matches!(failed, Err(Error::Core(lgreco_core::Error::Parameter { .. }))), "{failed:?}");
    assert!(matches!(run(&setting, 0, gain), Err(Error::Memory { .. })));
    assert!(matches!(run(&setting, address + 1, gain), Err(Error::Memory { .. })));
    assert!(matches!(run(&Setting::Dense, address, gain), Err(Error::Method(_))));
    assert_eq!(kept.content(), before);
}

#[test]
fn payloads_and_residuals_are_those_of_the_core() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    for (setting, gain) in [
        (Setting::Qsgd(Qsgd::default()), 1.0),
        (Setting::Qsgd(Qsgd { bits: 2, ..Qsgd::default() }), 0.2),
        (Setting::TopK(TopK { keep: 55, values: Dtype::F16 }), 1.0),
        (Setting::TopK(TopK { keep: 55, values: Dtype::F32 }), 0.3),
    ] {
        for storage in STORAGES {
            check(&mut backend, (61, 47), setting, gain, storage);
        }
    }
}

/// More values than the threads of a kernel take at once, the last of which a thread has not four of.
#[test]
fn large_residuals_are_worked_on_in_a_loop() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    for storage in STORAGES {
        check(&mut backend, (61, 419), Setting::Qsgd(Qsgd::default()), 0.7, storage);
    }
}

/// PowerSGD's payload has no equal bits in the core; what it leaves out is remembered all the same.
#[test]
fn what_powersgd_leaves_out_is_remembered() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
    let shape = Shape::new(61, 47).unwrap();
    let (mut residual, mut memory) = (vec![0.0f32; 61 * 47], vec![0.0f32; 61 * 47]);
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    for step in 0..3 {
        let values = uniform(61 * 47, u64::from(step));
        let tensor = Tensor::new(&values, 61, 47);
        let held = Held::new(&tensor.gradients()[0], 0);
        let gradient = held.gradient(&tensor.gradients()[0]);
        let (stream, address) =
            (Stream { step, ..Stream::default() }, residual.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: as many values as the gradient has.
        unsafe { backend.encode_with_feedback(&setting, &gradient, address, 1.0, stream, &mut payload) }.unwrap();
        let mut decoded = vec![0.0; 61 * 47];
        backend.decode(&payload, &mut decoded).unwrap();
        memory.iter_mut().zip(values.iter().zip(&decoded)).for_each(|(m, (g, d))| *m = (*m + g) - d);
        assert!(residual.iter().zip(&memory).all(|(a, b)| a.to_bits() == b.to_bits()), "step {step}");
    }
}

/// The core refuses to remember, or to sum up, the same numbers.
#[test]
fn what_does_not_fit_is_refused() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let shape = Shape::new(3, 1).unwrap();
    let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
    for storage in STORAGES {
        for bits in [0x7f7d_ffff, 0x7f7e_0000, 0x7f7e_0001, 0x7f7f_0000, 0x7f7f_0001, 0x7f7f_ffff] {
            // The second largest is what is remembered; at the second step the sum with it is too large.
            let tensor = Tensor::new(&[f32::MAX, f32::from_bits(bits), 1.0], 3, 1);
            let gradient = tensor.gradients()[0];
            let rule = Rule::Residual(Residual { storage, ..Residual::CLASSIC });
            let mut memory = Memory::new(rule, Aggregation::Summed, shape, vec![0; rule.state_len(shape)]).unwrap();
            let (held, mut kept) = (Held::new(&gradient, 0), Kept::zeros(storage, 3));
            let on_device: DeviceGradient = held.gradient(&gradient);
            for step in 0..2 {
                let stream = Stream { step, ..Stream::default() };
                let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32).unwrap()];
                let (mut message, mut decoded) = (vec![0; 100], vec![0.0; 3]);
                let expected = memory.step(&setting, &gradient, stream, &mut workspace, &mut message, &mut decoded);
                let residual = kept.residual();
                // SAFETY: the residual is of the gradient's size.
                let found =
                    unsafe { backend.encode_with_feedback(&setting, &on_device, residual, 1.0, stream, &mut message) };
                assert_eq!(found, expected.map_err(Error::Core), "{storage:?}, {bits:x}, step {step}");
            }
        }
    }
}
