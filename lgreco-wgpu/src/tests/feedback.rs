//! Tests error feedback with the residual on the device. Runs the core's suite, and tests errors that only this backend
//! returns.

use super::buffers::{buffer, holding};
use super::poison::pairs;
use super::{USAGE, backend, cut};
use crate::batch::{Batch, Part};
use crate::{BufferGradient, BufferResidual, Error, WgpuBackend};
use lgreco::backend::Backend;
use lgreco::compress::{Compressor, Setting, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Gradient, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use lgreco_testing::residual::{ResidualDevice, STORAGES, check, check_all, check_limits, check_powersgd};
use lgreco_train::feedback::{Memory, Residual, Storage};
use wgpu::{Buffer, BufferUsages};

/// A residual on the device.
pub struct Kept {
    buffer: Buffer,
    storage: Storage,
    elements: usize,
}

impl ResidualDevice for WgpuBackend {
    type Kept = Kept;

    fn zeros(&mut self, storage: Storage, elements: usize) -> Kept {
        Kept { buffer: buffer(self, BufferResidual::bytes(storage, elements), USAGE), storage, elements }
    }

    fn bytes(&mut self, kept: &Kept) -> Vec<u8> {
        let mut bytes = all_bytes(self, kept);
        // Bytes beyond the format's length only pad the last word.
        bytes.truncate(kept.storage.bytes(kept.elements) as usize);
        bytes
    }

    fn step(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        kept: &mut Kept,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, lgreco_train::Error> {
        let held = holding(self, gradient, 132);
        let (dtype, shape) = (gradient.values().dtype(), gradient.shape());
        let on_device = BufferGradient { buffer: &held, offset: 132, dtype, shape };
        let residual = BufferResidual { buffer: &kept.buffer, storage: kept.storage };
        let done = self.encode_with_feedback(setting, &on_device, &residual, gain, stream, payload);
        done.map_err(|error| match error {
            Error::Core(error) => error.into(),
            other => panic!("{other}"),
        })
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) {
        Backend::decode(self, payload, values).unwrap();
    }
}

#[test]
fn payloads_and_residuals_are_those_of_the_core() {
    let Some(mut backend) = backend() else { return };
    check_all(&mut backend);
}

#[test]
fn residuals_are_worked_on_in_pieces() {
    let Some(mut backend) = cut() else { return };
    let (rows, cols) = (91, 147);
    assert!(rows * cols > 3 * backend.gpu().piece_len());
    for storage in STORAGES {
        check(&mut backend, (rows, cols), Setting::Qsgd(Qsgd::default()), 1.0, storage);
    }
    let setting = Setting::TopK(TopK { keep: 5000, values: Dtype::F32 });
    check(&mut backend, (rows, cols), setting, 1.0, Storage::F32);
}

/// The buffer's bytes must equal the core's, because other backends and files use them. With these lengths, the last
/// word of codes is full or partly full. A word of exponents comes from one workgroup or from several.
#[test]
fn the_buffer_holds_the_cores_bytes() {
    for mut backend in [backend(), cut()].into_iter().flatten() {
        for storage in STORAGES {
            for elements in [1, 2, 3, 4, 513, 2046, 2047, 8192, 8193, 8194, 8195] {
                check_bytes(&mut backend, storage, elements);
            }
        }
    }
}

/// Asserts that a buffer has the bytes of the core's memory after some steps.
fn check_bytes(backend: &mut WgpuBackend, storage: Storage, elements: usize) {
    let (setting, shape) = (Setting::Qsgd(Qsgd::default()), Shape::new(elements, 1).unwrap());
    let rule = Residual { storage, ..Residual::CLASSIC };
    let mut words = vec![0; rule.state_len(shape)];
    let mut kept = backend.zeros(storage, elements);
    let len = setting.payload_len(shape, Dtype::F32).unwrap();
    let (mut payload, mut decoded) = (vec![0; len], vec![0.0; elements]);
    let mut memory = Memory::new(rule, shape, &mut words[..]).unwrap();
    for step in 0..2 {
        let tensor = Tensor::new(&uniform(elements, step.into()), elements, 1);
        let (gradient, stream) = (tensor.gradients()[0], Stream { step, ..Stream::default() });
        let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32)];
        memory.step(&setting, &gradient, stream, &mut workspace, &mut payload, &mut decoded).unwrap();
        backend.step(&setting, &gradient, &mut kept, 1.0, stream, &mut payload).unwrap();
    }
    let found = all_bytes(backend, &kept);
    // The buffer and the core's words are padded with zeros up to the end of the last word.
    let expected = &bytemuck::cast_slice::<u64, u8>(&words)[..found.len()];
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{storage:?}, {elements} elements");
    assert!(elements < 5 || found.iter().any(|&byte| byte != 0));
}

fn all_bytes(backend: &mut WgpuBackend, kept: &Kept) -> Vec<u8> {
    let all = Part { buffer: kept.buffer.clone(), offset: 0, size: kept.buffer.size() };
    Batch::new(backend.gpu()).unwrap().read(&[all]).unwrap()
}

#[test]
fn no_workgroup_memory_is_read_before_it_is_written() {
    for [mut filled, _] in pairs() {
        for storage in STORAGES {
            check(&mut filled, (61, 147), Setting::Qsgd(Qsgd::default()), 0.7, storage);
        }
    }
}

#[test]
fn what_powersgd_leaves_out_is_remembered() {
    for mut backend in [backend(), cut()].into_iter().flatten() {
        check_powersgd(&mut backend, (150, 140), 30);
    }
}

#[test]
fn what_does_not_fit_the_format_is_refused() {
    let Some(mut backend) = backend() else { return };
    check_limits(&mut backend);
}

#[test]
fn buffers_that_do_not_do_are_refused() {
    let Some(mut backend) = backend() else { return };
    let tensor = Tensor::new(&uniform(600, 1), 20, 30);
    let held = holding(&backend, &tensor.gradients()[0], 0);
    let shape = Shape::new(20, 30).unwrap();
    let on_device = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
    for storage in STORAGES {
        let bytes = BufferResidual::bytes(storage, 600);
        let short = buffer(&backend, bytes - 4, USAGE);
        let fixed = buffer(&backend, bytes, BufferUsages::STORAGE | BufferUsages::COPY_SRC);
        for wrong in [&short, &fixed] {
            let residual = BufferResidual { buffer: wrong, storage };
            let setting = Setting::Qsgd(Qsgd::default());
            let refused =
                backend.encode_with_feedback(&setting, &on_device, &residual, 1.0, Stream::default(), &mut [0; 3000]);
            assert!(matches!(refused, Err(Error::Buffer { .. })), "{refused:?}");
        }
    }
}
