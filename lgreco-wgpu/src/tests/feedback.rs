//! Error feedback whose residual stays on the device.

use super::buffers::{buffer, holding};
use super::{backend, cut};
use crate::batch::{Batch, Part};
use crate::{BufferGradient, BufferResidual, Error, WgpuBackend};
use lgreco_core::backend::Backend;
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::{Compressor, Setting, qsgd::Qsgd, topk::TopK};
use lgreco_core::feedback::{Aggregation, GROUP, Memory, Residual, Rule, Storage};
use lgreco_core::gradient::{Bf16, Dtype, Element, Shape};
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::Tensor;
use lgreco_core::testing::powersgd::uniform;
use wgpu::{Buffer, BufferUsages};

const USAGE: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);
const STORAGES: [Storage; 3] = [Storage::F32, Storage::Bf16, Storage::Int8];

/// The bits of what a residual holds.
fn content(backend: &mut WgpuBackend, residual: &BufferResidual<'_>, elements: usize) -> Vec<u32> {
    let all = Part { buffer: residual.buffer.clone(), offset: 0, size: residual.buffer.size() };
    let bytes = Batch::new(backend.gpu()).unwrap().read(&[all]).unwrap();
    let value = |i: usize| match residual.storage {
        Storage::F32 => f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()),
        Storage::Bf16 => Bf16(u16::from_le_bytes(bytes[2 * i..2 * i + 2].try_into().unwrap())).to_f32(),
        Storage::Int8 => {
            let exponent = u32::from(bytes[elements.next_multiple_of(256) + i / GROUP]);
            f32::from(bytes[i] as i8) * f32::from_bits(exponent << 23)
        }
    };
    (0..elements).map(|i| value(i).to_bits()).collect()
}

fn zeros(backend: &WgpuBackend, storage: Storage, elements: usize) -> Buffer {
    buffer(backend, BufferResidual::bytes(storage, elements), USAGE)
}

/// Some steps of both, with subnormal numbers, and groups of different magnitude.
fn check(
    backend: &mut WgpuBackend,
    (rows, cols): (usize, usize),
    setting: Setting,
    gain: f32,
    residual: &BufferResidual<'_>,
) {
    let elements = rows * cols;
    let (shape, storage) = (Shape::new(rows, cols).unwrap(), residual.storage);
    let rule = Rule::Residual(Residual { gain, storage, ..Residual::CLASSIC });
    let mut memory = Memory::new(rule, Aggregation::Summed, shape, vec![0; rule.state_len(shape)]).unwrap();
    for step in 0..4 {
        let scale = if step == 2 { 1e-38 } else { 1.0 };
        let values = uniform(elements, u64::from(step));
        let magnitude = |i: usize| scale * 10f32.powi((i / 700 % 5) as i32);
        let values: Vec<f32> = values.into_iter().enumerate().map(|(i, x)| x * magnitude(i)).collect();
        let tensor = Tensor::new(&values, rows, cols);
        let gradient = tensor.gradients()[2];
        let held = holding(backend, &gradient, 132);
        let on_device = BufferGradient { buffer: &held, offset: 132, dtype: Dtype::Bf16, shape };
        let stream = Stream { seed: 3, step, layer: 4, rank: 5 };
        let len = setting.payload_len(shape, Dtype::Bf16).unwrap();
        let (mut found, mut expected) = (vec![0; len], vec![0; len]);
        backend.encode_with_feedback(&setting, &on_device, residual, gain, stream, &mut found).unwrap();
        let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::Bf16).unwrap()];
        let mut decoded = vec![0.0; elements];
        memory.step(&setting, &gradient, stream, &mut workspace, &mut expected, &mut decoded).unwrap();
        assert!(found == expected, "payload of step {step}, {setting:?}, {storage:?}");
        memory.values(&mut decoded).unwrap();
        let kept = content(backend, residual, elements);
        let differs = kept.iter().zip(&decoded).position(|(&a, b)| a != b.to_bits());
        assert_eq!(differs, None, "residual after step {step}, {setting:?}, {storage:?}");
    }
}

#[test]
fn payloads_and_residuals_are_those_of_the_core() {
    let Some(mut backend) = backend() else { return };
    let shape = Shape::new(61, 47).unwrap();
    let cases = [
        (Setting::Qsgd(Qsgd::default()), 1.0),
        (Setting::Qsgd(Qsgd { bits: 2, ..Qsgd::default() }), 0.2),
        (Setting::TopK(TopK { keep: 55, values: Dtype::F16 }), 1.0),
        (Setting::TopK(TopK { keep: 55, values: Dtype::F32 }), 0.3),
    ];
    for ((setting, gain), storage) in cases.into_iter().flat_map(|case| STORAGES.map(|storage| (case, storage))) {
        let residual = zeros(&backend, storage, 61 * 47);
        let residual = BufferResidual { buffer: &residual, storage };
        check(&mut backend, (61, 47), setting, gain, &residual);
        let before = content(&mut backend, &residual, 61 * 47);
        assert!(before.iter().any(|&bits| bits != 0));
        let mut spoiled = uniform(61 * 47, 1);
        spoiled[99] = f32::NAN;
        let tensor = Tensor::new(&spoiled, 61, 47);
        let held = holding(&backend, &tensor.gradients()[0], 0);
        let on_device = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
        let mut payload = vec![0; 20_000];
        let stream = Stream::default();
        let failed = backend.encode_with_feedback(&setting, &on_device, &residual, gain, stream, &mut payload);
        assert!(matches!(failed, Err(Error::Core(lgreco_core::Error::NonFinite { index: 99, .. }))), "{failed:?}");
        let failed = backend.encode_with_feedback(&setting, &on_device, &residual, 1.5, stream, &mut payload);
        assert!(matches!(failed, Err(Error::Core(lgreco_core::Error::Parameter { .. }))), "{failed:?}");
        assert_eq!(content(&mut backend, &residual, 61 * 47), before);
    }
}

#[test]
fn residuals_are_worked_on_in_pieces() {
    let Some(mut backend) = cut() else { return };
    let (rows, cols) = (61, 147);
    assert!(rows * cols > 3 * backend.gpu().piece_len());
    for storage in STORAGES {
        let residual = zeros(&backend, storage, rows * cols);
        let residual = BufferResidual { buffer: &residual, storage };
        check(&mut backend, (rows, cols), Setting::Qsgd(Qsgd::default()), 1.0, &residual);
    }
    let residual = zeros(&backend, Storage::F32, rows * cols);
    let residual = BufferResidual { buffer: &residual, storage: Storage::F32 };
    check(&mut backend, (rows, cols), Setting::TopK(TopK { keep: 5000, values: Dtype::F32 }), 1.0, &residual);
}

/// PowerSGD's payload has no equal bits in the core; what it leaves out is remembered all the same.
#[test]
fn what_powersgd_leaves_out_is_remembered() {
    for mut backend in [backend(), cut()].into_iter().flatten() {
        check_powersgd(&mut backend);
    }
}

fn check_powersgd(backend: &mut WgpuBackend) {
    let setting = Setting::PowerSgd(PowerSgd { rank: 30, iterations: 1 });
    let (rows, cols) = (150, 140);
    let shape = Shape::new(rows, cols).unwrap();
    let residual = zeros(backend, Storage::F32, rows * cols);
    let residual = BufferResidual { buffer: &residual, storage: Storage::F32 };
    let mut memory = vec![0.0f32; rows * cols];
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    for step in 0..3 {
        let values = uniform(rows * cols, u64::from(step));
        let held = holding(backend, &Tensor::new(&values, rows, cols).gradients()[0], 0);
        let on_device = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
        let stream = Stream { step, ..Stream::default() };
        backend.encode_with_feedback(&setting, &on_device, &residual, 1.0, stream, &mut payload).unwrap();
        let mut decoded = vec![0.0; rows * cols];
        backend.decode(&payload, &mut decoded).unwrap();
        memory.iter_mut().zip(values.iter().zip(&decoded)).for_each(|(m, (g, d))| *m = (*m + g) - d);
        let kept = content(backend, &residual, rows * cols);
        assert!(kept.iter().zip(&memory).all(|(&a, b)| a == b.to_bits()), "step {step}");
    }
}

/// The core refuses to remember the same numbers.
#[test]
fn what_does_not_fit_the_format_is_refused() {
    let Some(mut backend) = backend() else { return };
    let shape = Shape::new(3, 1).unwrap();
    let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
    for storage in STORAGES {
        for bits in [0x7f7d_ffff, 0x7f7e_0000, 0x7f7e_0001, 0x7f7f_0000, 0x7f7f_0001, 0x7f7f_ffff] {
            // The second largest is what is remembered.
            let tensor = Tensor::new(&[f32::MAX, f32::from_bits(bits), 1.0], 3, 1);
            let gradient = tensor.gradients()[0];
            let rule = Rule::Residual(Residual { storage, ..Residual::CLASSIC });
            let mut memory = Memory::new(rule, Aggregation::Summed, shape, vec![0; rule.state_len(shape)]).unwrap();
            let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32).unwrap()];
            let (mut message, mut decoded) = (vec![0; 100], vec![0.0; 3]);
            let expected =
                memory.step(&setting, &gradient, Stream::default(), &mut workspace, &mut message, &mut decoded);
            let (held, residual) = (holding(&backend, &gradient, 0), zeros(&backend, storage, 3));
            let on_device = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
            let residual = BufferResidual { buffer: &residual, storage };
            let found =
                backend.encode_with_feedback(&setting, &on_device, &residual, 1.0, Stream::default(), &mut message);
            assert_eq!(found, expected.map_err(Error::Core), "{storage:?}, {bits:x}");
        }
    }
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
