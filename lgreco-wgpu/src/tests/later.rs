//! Tests calls whose results the host reads later. Such calls do not wait, allocate or download.

use super::buffers::{buffer, bytes, holding};
use super::memory::backends;
use super::poison::filled;
use crate::{BufferGradient, BufferJob, BufferJobError, Error, WgpuBackend};
use lgreco::compress::{Candidates, eden::Eden, qsgd::Qsgd};
use lgreco::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use wgpu::{Buffer, BufferUsages, MapMode};

const READABLE: BufferUsages = BufferUsages::MAP_READ.union(BufferUsages::COPY_DST);

/// Returns a gradient that begins at byte `offset` of a buffer.
fn on_device<'a>(buffer: &'a Buffer, gradient: &Gradient<'_>, offset: u64) -> BufferGradient<'a> {
    BufferGradient { buffer, offset, dtype: gradient.values().dtype(), shape: gradient.shape() }
}

/// Returns jobs for rows of every method, for each gradient.
fn jobs<'a>(gradients: &[BufferGradient<'a>], keeps: &'a [u32]) -> Vec<BufferJob<'a>> {
    let candidates = [
        Candidates::Qsgd { base: Qsgd::default(), bits: &[1, 4, 8] },
        Candidates::Qsgd { base: Qsgd { bucket: 100, ..Qsgd::default() }, bits: &[3] },
        Candidates::TopK { values: Dtype::F32, keeps },
        Candidates::TopK { values: Dtype::F16, keeps },
        Candidates::QuantisedTopK { keeps, bits: &[2, 8] },
        Candidates::PowerSgd { iterations: 2, ranks: &[1, 4] },
        Candidates::Eden { base: Eden::default(), bits: &[1, 3, 8] },
    ];
    let of_layer = |(layer, &gradient): (usize, &BufferGradient<'a>)| {
        let stream = Stream { layer: layer as u32, ..Stream::default() };
        candidates.map(|candidates| BufferJob { gradient, candidates, stream })
    };
    gradients.iter().enumerate().flat_map(of_layer).collect()
}

fn places(jobs: &[BufferJob<'_>]) -> Vec<f64> {
    vec![f64::NAN; jobs.iter().map(|job| job.candidates.len()).sum()]
}

/// Waits for the submitted work, and returns the content of a buffer.
pub(super) fn content(backend: &WgpuBackend, buffer: &Buffer) -> Vec<u8> {
    buffer.map_async(MapMode::Read, .., |mapped| mapped.unwrap());
    backend.device().poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let content = buffer.get_mapped_range(..).unwrap().to_vec();
    buffer.unmap();
    content
}

#[test]
fn rows_need_no_wait_no_readback_and_no_memory() {
    let shapes = [(144, 48), (70, 33), (48, 1)];
    let steps = [1, 2].map(|seed| shapes.map(|(rows, cols)| Tensor::new(&uniform(rows * cols, seed), rows, cols)));
    for mut backend in backends() {
        // The noop device of wgpu gives the same results for every row.
        let is_noop = backend.device().adapter_info().backend == wgpu::Backend::Noop;
        let held = [0, 1, 2].map(|layer| holding(&backend, &steps[0][layer].gradients()[layer], 36));
        let gradients = [0, 1, 2].map(|layer| on_device(&held[layer], &steps[0][layer].gradients()[layer], 36));
        let keeps: Vec<u32> = (1..=40).collect();
        let jobs = jobs(&gradients, &keeps);
        let len = backend.rows_bytes(&jobs).unwrap() as usize;
        let results = [(); 2].map(|()| buffer(&backend, len as u64 + 24, READABLE));
        results.iter().for_each(|results| backend.queue().write_buffer(results, 0, &vec![0xee; len + 24]));
        let reserved = backend.reserve_buffers(&jobs).unwrap();
        let asked = |backend: &mut WgpuBackend| {
            let gpu = backend.gpu();
            [gpu.memory.created, gpu.waits, gpu.reads]
        };
        let before = asked(&mut backend);
        // The gradients of each step are written after the rows of the previous step have been enqueued.
        for (step, results) in steps.iter().zip(&results) {
            for layer in 0..3 {
                backend.queue().write_buffer(&held[layer], 36, bytes(&step[layer].gradients()[layer]));
            }
            backend.enqueue_rows(&jobs, results, 8).unwrap();
        }
        assert_eq!((asked(&mut backend), backend.held_bytes()), (before, reserved));
        let rows = results.each_ref().map(|results| {
            let content = content(&backend, results);
            assert!(content[..8].iter().chain(&content[8 + len..]).all(|&byte| is_noop || byte == 0xee));
            let mut rows = places(&jobs);
            backend.read_rows(&jobs, &content[8..8 + len], &mut rows).unwrap();
            rows
        });
        assert_eq!(asked(&mut backend), before);
        assert!(is_noop || rows[0].iter().zip(&rows[1]).all(|(one, other)| one != other && *one > 0.0));
        // The bits must equal the results of `measure_buffers`, which waits.
        for (step, rows) in steps.iter().zip(&rows) {
            for layer in 0..3 {
                backend.queue().write_buffer(&held[layer], 36, bytes(&step[layer].gradients()[layer]));
            }
            let mut expected = places(&jobs);
            backend.measure_buffers(&jobs, &mut expected).unwrap();
            assert_eq!(rows, &expected);
        }
        let [created, waits, reads] = asked(&mut backend);
        assert_eq!([created, waits, reads], [before[0], before[1] + 2, before[2] + 2]);
    }
}

#[test]
fn rows_of_what_is_not_finite_say_where() {
    let Some(mut backend) = super::backend() else { return };
    let values = uniform(60 * 50, 3);
    let sound = Tensor::new(&values, 60, 50);
    for damage in [f32::NAN, f32::INFINITY, 70_000.0, 1e30] {
        let mut values = values.clone();
        values[77] = damage;
        let damaged = Tensor::new(&values, 60, 50);
        let held = [&sound, &damaged].map(|tensor| holding(&backend, &tensor.gradients()[0], 0));
        let gradients =
            [on_device(&held[0], &sound.gradients()[0], 0), on_device(&held[1], &damaged.gradients()[0], 0)];
        let jobs = jobs(&gradients, &[5, 100]);
        let results = buffer(&backend, backend.rows_bytes(&jobs).unwrap(), READABLE);
        backend.enqueue_rows(&jobs, &results, 0).unwrap();
        let content = content(&backend, &results);
        let found = backend.read_rows(&jobs, &content, &mut places(&jobs));
        let expected = backend.measure_buffers(&jobs, &mut places(&jobs));
        // The errors may contain NaN, which does not equal itself, so their texts are compared.
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        // If the damaged value is not finite, the first job of the second layer fails. If the damaged value is finite,
        // the first job of the second layer that sends f16 fails.
        let (job, told) = (if damage.is_finite() { 7 + 3 } else { 7 }, found.unwrap_err());
        assert_eq!(told.job, Some(job), "{damage}");
        assert!(told.to_string().contains("element 77"), "{told}");
    }
}

#[test]
fn what_cannot_be_enqueued_is_said_at_once() {
    for mut backend in backends() {
        let held = buffer(&backend, 4 * 4096, BufferUsages::STORAGE | BufferUsages::COPY_SRC);
        let shape = Shape::new(64, 64).unwrap();
        let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
        let jobs = jobs(&[gradient], &[5, 100]);
        let len = backend.rows_bytes(&jobs).unwrap();
        let results = buffer(&backend, len + 4, READABLE);
        let unwritable = buffer(&backend, len, BufferUsages::STORAGE);
        for (results, offset) in [(&results, 2), (&results, 8), (&results, u64::MAX - 3), (&unwritable, 0)] {
            let failed = backend.enqueue_rows(&jobs, results, offset).unwrap_err();
            assert!(matches!(failed, BufferJobError { job: None, error: Error::Buffer { .. } }), "{failed}");
        }
        let each = ["loco 64".parse().unwrap()];
        let loco = [jobs[0], BufferJob { candidates: Candidates::Each(&each), ..jobs[0] }];
        let refused = BufferJobError { job: Some(1), error: Error::Method("loco") };
        assert_eq!(backend.rows_bytes(&loco), Err(refused.clone()));
        assert_eq!(backend.enqueue_rows(&loco, &results, 0), Err(refused.clone()));
        assert_eq!(backend.read_rows(&loco, &[], &mut []), Err(refused));
        // wgpu refuses a mapped buffer.
        results.map_async(MapMode::Read, .., |mapped| mapped.unwrap());
        backend.device().poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let failed = backend.enqueue_rows(&jobs, &results, 0).unwrap_err();
        assert!(matches!(failed, BufferJobError { job: None, error: Error::Refused(_) }), "{failed}");
        results.unmap();
        backend.enqueue_rows(&jobs, &results, 4).unwrap();
        let content = content(&backend, &results);
        let mut rows = places(&jobs);
        assert!(backend.read_rows(&jobs, &content, &mut rows).is_err());
        assert!(backend.read_rows(&jobs, &content[4..], &mut rows[1..]).is_err());
        backend.read_rows(&jobs, &content[4..], &mut rows).unwrap();
        assert!(rows.iter().all(|&row| row == 0.0), "rows of zeros: {rows:?}");
    }
}

/// Error bound of the sums, from the number of additions through which a value passes. A lane adds 4 values, and the
/// sum over 64 lanes has 6 levels. Then a lane adds 64 records, and the sum over 64 lanes has 6 levels. For a layer of
/// more than 2^23 values, records are added twice. The summand 1 allows for the rounding of the square.
const NORMS: f64 = (4 + 6 + 2 * (64 + 6) + 1) as f64 / (1 << 23) as f64;

#[test]
fn norms_take_two_dispatches_and_no_wait() {
    let of = |values: Vec<f32>, rows| Tensor::new(&values, rows, values.len() / rows);
    // Layers with the whole range of f32, with 16-bit types, and without elements. The last layer takes one more
    // dispatch if it is alone.
    let tiny = uniform(7 * 301, 4).into_iter().map(|x| x * 1e-40).collect();
    let huge = uniform(48 * 50, 5).into_iter().map(|x| x * 3e38).collect();
    let layers = [of(uniform(144 * 480, 1), 144), of(tiny, 7), of(huge, 48), Tensor::new(&[], 0, 5)];
    let long = Tensor::new(&uniform((1 << 23) + 5000, 6), 1, (1 << 23) + 5000);
    // The test also runs without subgroups and with arbitrary content in workgroup memory.
    for mut backend in backends().chain(filled(wgpu::Features::empty())) {
        let is_noop = backend.device().adapter_info().backend == wgpu::Backend::Noop;
        let mut check = |all: &[Gradient<'_>], dispatches: usize| {
            let held: Vec<Buffer> = all.iter().map(|gradient| holding(&backend, gradient, 12)).collect();
            let gradients: Vec<BufferGradient<'_>> =
                held.iter().zip(all).map(|(held, gradient)| on_device(held, gradient, 12)).collect();
            let len = backend.norms_bytes(all.len());
            let results = buffer(&backend, len + 4, READABLE);
            for is_first in [true, false] {
                let asked = |gpu: &crate::gpu::Gpu| [gpu.memory.created, gpu.waits, gpu.reads, gpu.dispatches];
                let before = asked(backend.gpu());
                backend.enqueue_norms(&gradients, &results, 4).unwrap();
                let [created, waits, reads, dispatched] = asked(backend.gpu());
                assert_eq!([waits, reads, dispatched], [before[1], before[2], before[3] + dispatches]);
                assert!(is_first || created == before[0]);
            }
            let content = content(&backend, &results);
            let mut norms = vec![f64::NAN; all.len()];
            backend.read_norms(&gradients, &content[4..], &mut norms).unwrap();
            for (gradient, norm) in all.iter().zip(norms) {
                let expected: f64 = with_elements!(gradient.values(), values => {
                    values.iter().map(|&x| f64::from(x.to_f32()).powi(2)).sum()
                });
                assert!(is_noop || (norm - expected).abs() <= NORMS * expected, "{norm:e}, not {expected:e}");
            }
            assert!(backend.read_norms(&gradients, &content, &mut vec![0.0; all.len()]).is_err());
            assert!(backend.read_norms(&gradients, &content[4..], &mut []).is_err());
        };
        let all = layers.iter().flat_map(|layer| layer.gradients());
        check(&all.filter(is_finite).collect::<Vec<_>>(), 2);
        check(&long.gradients()[..1], 3);
        let unwritable = buffer(&backend, 4096, BufferUsages::STORAGE);
        let failed = backend.enqueue_norms(&[], &unwritable, 0).unwrap_err();
        assert!(matches!(failed, BufferJobError { job: None, error: Error::Buffer { .. } }), "{failed}");
    }
}

/// Whether all values are finite. In f16, values that are too large become infinite.
fn is_finite(gradient: &Gradient<'_>) -> bool {
    with_elements!(gradient.values(), values => values.iter().all(|x| x.to_f32().is_finite()))
}

#[test]
fn norms_of_what_is_not_finite_say_where() {
    let Some(mut backend) = super::backend() else { return };
    let mut values = uniform(5000, 3);
    let sound = Tensor::new(&values, 50, 100);
    values[4321] = f32::NEG_INFINITY;
    let damaged = Tensor::new(&values, 50, 100);
    let all = [sound.gradients()[2], damaged.gradients()[1], sound.gradients()[0]];
    let held = all.each_ref().map(|gradient| holding(&backend, gradient, 0));
    let gradients = [0, 1, 2].map(|layer| on_device(&held[layer], &all[layer], 0));
    let results = buffer(&backend, backend.norms_bytes(3), READABLE);
    backend.enqueue_norms(&gradients, &results, 0).unwrap();
    let content = content(&backend, &results);
    let error = Error::Core(lgreco::Error::NonFinite { index: 4321, value: f32::NEG_INFINITY });
    let expected = Err(BufferJobError { job: Some(1), error });
    assert_eq!(backend.read_norms(&gradients, &content, &mut [0.0; 3]), expected);
}
