//! Tests gradients in the caller's buffers.

use super::{ROWS, backend};
use crate::{BufferGradient, BufferJob, Error, WgpuBackend};
use lgreco::backend::{Backend, Portable};
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Gradient, Shape, Values, with_elements};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use wgpu::{Buffer, BufferDescriptor, BufferUsages};

/// Returns the bytes of the gradient's values.
pub(super) fn bytes<'a>(gradient: &'a Gradient<'a>) -> &'a [u8] {
    with_elements!(gradient.values(), values => bytemuck::cast_slice(values))
}

pub(super) fn buffer(backend: &WgpuBackend, size: u64, usage: BufferUsages) -> Buffer {
    backend.device().create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
}

/// Returns a buffer with the gradient from byte `offset` on, surrounded by NaN.
pub(super) fn holding(backend: &WgpuBackend, gradient: &Gradient<'_>, offset: usize) -> Buffer {
    let mut content = vec![0xff; (offset + bytes(gradient).len() + 512).next_multiple_of(4)];
    content[offset..offset + bytes(gradient).len()].copy_from_slice(bytes(gradient));
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let buffer = buffer(backend, content.len() as u64, usage);
    backend.queue().write_buffer(&buffer, 0, &content);
    buffer
}

fn settings() -> [Setting; 5] {
    [
        Setting::Dense,
        Setting::Qsgd(Qsgd::default()),
        Setting::TopK(TopK { keep: 55, values: Dtype::F16 }),
        Setting::QuantisedTopK(QuantisedTopK { keep: 55, bits: 3 }),
        Setting::PowerSgd(PowerSgd { rank: 3, iterations: 2 }),
    ]
}

#[test]
fn gradients_are_compressed_where_they_are() {
    let Some(mut backend) = backend() else { return };
    let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
    let stream = Stream { seed: 2, ..Stream::default() };
    for gradient in tensor.gradients() {
        for offset in [0, 4, 252, 256, 1028] {
            let held = holding(&backend, &gradient, offset);
            let on_device = BufferGradient {
                buffer: &held,
                offset: offset as u64,
                dtype: gradient.values().dtype(),
                shape: gradient.shape(),
            };
            for setting in settings() {
                let len = setting.payload_len(gradient.shape(), on_device.dtype).unwrap();
                let (mut found, mut expected) = (vec![0; len], vec![0; len]);
                backend.encode_buffer(&setting, &on_device, stream, &mut found).unwrap();
                backend.encode(&setting, &gradient, stream, &mut [], &mut expected).unwrap();
                assert_eq!(found, expected, "{setting:?} at {offset}");
            }
            let job = |candidates| BufferJob { gradient: on_device, candidates, stream };
            let jobs = [
                job(Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] }),
                job(Candidates::TopK { values: Dtype::F32, keeps: &[9, 99] }),
                job(Candidates::QuantisedTopK { keeps: &[9, 99], bits: &[5] }),
                job(Candidates::PowerSgd { iterations: 1, ranks: &[2, 4] }),
            ];
            let mut rows = [f64::NAN; 8];
            backend.measure_buffers(&jobs, &mut rows).unwrap();
            let mut expected = [0.0; 8];
            for (job, row) in jobs.iter().zip(expected.chunks_mut(2)) {
                let mut workspace = vec![0; job.candidates.measure_workspace_len(gradient.shape(), on_device.dtype)];
                job.candidates.measure(&gradient, stream, &mut workspace, row).unwrap();
            }
            assert!(rows.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= ROWS * b), "{rows:?}, not {expected:?}");
        }
    }
}

#[test]
fn payloads_are_decoded_into_buffers() {
    let Some(mut backend) = backend() else { return };
    let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
    let gradient = tensor.gradients()[0];
    for setting in settings() {
        let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        backend.encode(&setting, &gradient, Stream::default(), &mut [], &mut payload).unwrap();
        let mut expected = vec![0.0; 61 * 47];
        backend.decode(&payload, &mut expected).unwrap();
        let held = holding(&backend, &gradient, 36);
        backend.decode_to_buffer(&payload, &held, 36).unwrap();
        // Reads the values back as a dense payload.
        let on_device = BufferGradient { buffer: &held, offset: 36, dtype: Dtype::F32, shape: gradient.shape() };
        let mut dense = vec![0; 16 + 4 * expected.len()];
        backend.encode_buffer(&Setting::Dense, &on_device, Stream::default(), &mut dense).unwrap();
        let mut found = vec![f32::NAN; expected.len()];
        Portable.decode(&dense, &mut found).unwrap();
        assert_eq!(found, expected, "{setting:?}");
        let damaged = [&payload[..20], &[0x7f; 8], &payload[28..]].concat();
        assert_eq!(
            backend.decode_to_buffer(&damaged, &held, 36).is_ok(),
            Portable.decode(&damaged, &mut found).is_ok()
        );
    }
}

#[test]
fn what_is_wrong_is_said() {
    let Some(mut backend) = backend() else { return };
    let mut values = uniform(600, 1);
    values[433] = f32::NEG_INFINITY;
    let tensor = Tensor::new(&values, 20, 30);
    for gradient in tensor.gradients() {
        let held = holding(&backend, &gradient, 20);
        let dtype = gradient.values().dtype();
        let on_device = BufferGradient { buffer: &held, offset: 20, dtype, shape: gradient.shape() };
        let expected = Error::Core(lgreco::Error::NonFinite { index: 433, value: f32::NEG_INFINITY });
        for setting in settings() {
            let mut payload = vec![0; setting.payload_len(gradient.shape(), dtype).unwrap()];
            let found = backend.encode_buffer(&setting, &on_device, Stream::default(), &mut payload);
            assert_eq!(found, Err(expected.clone()), "{setting:?}");
        }
        let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[9] };
        let job = |gradient| BufferJob { gradient, candidates, stream: Stream::default() };
        let failed = backend.measure_buffers(&[job(on_device)], &mut [0.0]).unwrap_err();
        assert_eq!((failed.job, failed.error), (Some(0), expected));
        let odd = BufferGradient { offset: 18, ..on_device };
        let beyond = BufferGradient { offset: 4096, ..on_device };
        let unreadable = buffer(&backend, 4096, BufferUsages::STORAGE);
        let unreadable = BufferGradient { buffer: &unreadable, offset: 0, ..on_device };
        for wrong in [odd, beyond, unreadable] {
            let failed = backend.measure_buffers(&[job(wrong)], &mut [0.0]).unwrap_err();
            assert!(matches!(failed.error, Error::Buffer { .. }), "{failed}");
        }
    }
    let mut payload = [0; 16 + 8];
    let gradient = Gradient::new(Values::F32(&[1.0, 2.0]), Shape::new(2, 1).unwrap()).unwrap();
    Portable.encode(&Setting::Dense, &gradient, Stream::default(), &mut [], &mut payload).unwrap();
    let held = buffer(&backend, 16, BufferUsages::COPY_DST);
    for (buffer_is, offset, fine) in [(&held, 8, true), (&held, 12, false), (&held, 2, false)] {
        assert_eq!(backend.decode_to_buffer(&payload, buffer_is, offset).is_ok(), fine, "at {offset}");
    }
    let unwritable = buffer(&backend, 16, BufferUsages::STORAGE);
    assert!(matches!(backend.decode_to_buffer(&payload, &unwritable, 0), Err(Error::Buffer { .. })));
}
