//! Tests that the columns of factors of all lengths become orthonormal, and how many dispatches this takes.

use super::buffers::buffer;
use super::devices::small;
use super::is_full;
use super::poison::pairs;
use super::{ROWS, USAGE, backend, check_low_rank};
use crate::kernels::Shader;
use crate::orthonormal::{Tall, dispatches};
use crate::{BufferGradient, BufferJob, Error, WgpuBackend, factor, powersgd};
use lgreco::backend::{Backend, Job};
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::{Dtype, Gradient, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_rows};
use lgreco_testing::powersgd::{check_orthonormal, factors, uniform};

const STREAM: Stream = Stream { seed: 6, step: 0, layer: 0, rank: 0 };

#[test]
fn columns_are_orthonormal_whoever_works_on_them() {
    let Some(mut backend) = backend() else { return };
    // The cases cover one workgroup and several workgroups, each with one dispatch and with several dispatches.
    for (rows, cols, rank, workgroups, taken) in [
        (1000, 30, 5, 1, 1),
        (300, 210, 200, 1, 2),
        (33_000, 12, 4, 91, 1),
        (2030, 70, 65, 6, 1),
        (781, 205, 195, 3, 2),
    ] {
        let tall = Tall::new(rows, rows, rank);
        assert_eq!((tall.chunks, dispatches(&[tall]).len()), (workgroups, taken), "{rows} x {rank}");
        let tensor = Tensor::new(&uniform(rows * cols, 7), rows, cols);
        let gradient = tensor.gradients()[0];
        let candidates = Candidates::PowerSgd { iterations: 2, ranks: &[1, 3, rank as u32] };
        // The CPU takes seconds for high ranks.
        if rank < 100 || is_full() {
            check_rows(&mut backend, &[Job { gradient, candidates, stream: STREAM }], ROWS);
            check_low_rank(&mut backend, PowerSgd { rank: rank as u32, iterations: 1 }, &gradient, STREAM);
        }
        check_orthonormal(&p_of(&mut backend, &gradient, rank as u32), rank);
    }
}

/// Returns the columns of `P` in the device's payload.
fn p_of(backend: &mut WgpuBackend, gradient: &Gradient<'_>, rank: u32) -> Vec<Vec<f32>> {
    let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let mut payload = vec![0; setting.payload_len(shape, dtype).unwrap()];
    let mut workspace = vec![0; setting.encode_workspace_len(shape, dtype)];
    backend.encode(&setting, gradient, STREAM, &mut workspace, &mut payload).unwrap();
    factors(&payload, shape).0
}

/// The factors have several chunks of rows. One factor takes a single dispatch, and one takes several.
#[test]
fn no_workgroup_memory_is_read_before_it_is_written() {
    let shapes = [(33_000, 12, 4), (781, 205, 195)];
    for [mut filled, mut plain] in pairs() {
        for &(rows, cols, rank) in if is_full() { &shapes[..] } else { &shapes[..1] } {
            assert!(Tall::new(rows, rows, rank).chunks > 1);
            let tensor = Tensor::new(&uniform(rows * cols, 7), rows, cols);
            let gradient = tensor.gradients()[0];
            let [found, expected] = [&mut filled, &mut plain].map(|backend| p_of(backend, &gradient, rank as u32));
            assert!(found == expected, "{:?}, rank {rank}", filled.device().features());
        }
    }
}

const LONG: usize = 33_000;
const COLS: usize = 12;

/// Returns long matrices with linearly dependent columns, in all rows or only in some chunks of rows. Each matrix comes
/// with the number of independent columns in its `P`, which has eight columns.
fn dependent() -> Vec<(&'static str, Vec<f32>, usize)> {
    let noise = uniform(LONG * COLS, 8);
    let matrix = |value: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..LONG * COLS).map(|at| value(at / COLS, at % COLS)).collect()
    };
    let noise = |row: usize, col: usize| noise[row * COLS + col];
    vec![
        ("three columns four times", matrix(&|row, col| (1 << (col / 3)) as f32 * noise(row, col % 3)), 3),
        ("zeros in most chunks", matrix(&|row, col| if row < 9000 { 0.0 } else { noise(row, col) }), 8),
        ("one row", matrix(&|row, col| if row == 20_000 { noise(row, col) } else { 0.0 }), 1),
        ("five rows, each in a chunk", matrix(&|row, col| if row % 7000 == 3 { noise(row, col) } else { 0.0 }), 5),
        (
            "each column in chunks of its own",
            matrix(&|row, col| if row / 2800 == col { noise(row, col) } else { 0.0 }),
            8,
        ),
        ("of rank 1 in all chunks but one", matrix(&|row, col| noise(if row < 32_000 { 5 } else { row }, col)), 8),
        ("small in most chunks", matrix(&|row, col| if row < 3000 { 1.0 } else { 1e-13 } * noise(row, col)), 8),
        ("smaller than f32's squares", matrix(&|row, col| if row < 3000 { 1.0 } else { 1e-21 } * noise(row, col)), 8),
    ]
}

#[test]
fn dependent_columns_of_long_factors_are_zeros() {
    let Some(mut backend) = backend() else { return };
    assert!(Tall::new(LONG, LONG, 8).chunks > 60);
    // Full runs test every matrix, and other runs test every second one.
    for (what, values, independent) in dependent().into_iter().step_by(if is_full() { 1 } else { 2 }) {
        let tensor = Tensor::new(&values, LONG, COLS);
        let gradient = tensor.gradients()[0];
        check_low_rank(&mut backend, PowerSgd { rank: 8, iterations: 1 }, &gradient, STREAM);
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check_orthonormal(&p_of(&mut backend, &gradient, 8), independent);
        }));
        assert!(found.is_ok(), "{what}");
    }
}

#[test]
#[ignore = "slow"]
fn faults_in_long_factors_are_found() {
    if backend().is_none() {
        return;
    }
    let tensor = Tensor::new(&uniform(LONG * COLS, 8), LONG, COLS);
    let gradient = tensor.gradients()[0];
    for (text, fault) in [
        ("row < column);", "false);"),
        ("inner[at] + coefficient", "coefficient"),
        ("(column * params.chunks + chunk) * columns", "column * columns"),
        ("= left * factor;", "= 1.0;"),
        ("params.first_chunk + row / params.chunk_rows", "0u"),
        ("last / 4u + 1u; fours > 0u;", "last / 4u; fours > 0u;"),
        ("min(column + 1u, last)", "column"),
        ("< min(to_step,", "< min(to_step - 1u,"),
    ] {
        let mut backend = backend().expect("the device there was before");
        backend.gpu().kernels.edit(Shader::PowerSgd, text, fault);
        // Columns may be orthonormal and still be wrong, so the decoded matrix is checked as well.
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check_orthonormal(&p_of(&mut backend, &gradient, 6), 6);
            check_low_rank(&mut backend, PowerSgd { rank: 6, iterations: 1 }, &gradient, STREAM);
        }));
        let message = *checked.expect_err(&format!("not found: {text}")).downcast::<String>().unwrap();
        assert!(message.contains("columns") || message.contains("apart"), "{text}: {message}");
    }
}

fn noop(limits: wgpu::Limits) -> WgpuBackend {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() });
    WgpuBackend::with_device(device, queue).unwrap()
}

/// The row of a language model's embedding takes no more dispatches than the row of a short layer.
#[test]
fn long_factors_take_few_dispatches() {
    let mut backend = noop(wgpu::Limits::default());
    let shape = Shape::new(50_257, 256).unwrap();
    let held = buffer(&backend, 4 * shape.elements() as u64, USAGE);
    let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
    for rank in [4, 64] {
        assert!(Tall::new(shape.rows(), shape.rows(), rank as usize).chunks > 20);
        let candidates = Candidates::PowerSgd { iterations: 5, ranks: &[rank] };
        let before = backend.gpu().dispatches;
        backend.measure_buffers(&[BufferJob { gradient, candidates, stream: STREAM }], &mut [0.0]).unwrap();
        assert_eq!(backend.gpu().dispatches - before, 50, "rows of rank {rank}");
    }
}

/// Every dispatch of orthonormalisation after the first begins a submission, even if it moves few bytes.
#[test]
fn long_dispatches_begin_a_submission() {
    let mut backend = noop(wgpu::Limits::default());
    backend.gpu().submission = u64::MAX;
    for (rows, rank, more) in [(50_257, 64, 0), (2030, 165, 1), (50_257, 99, 2)] {
        let shape = Shape::new(rows, 170).unwrap();
        let held = buffer(&backend, 4 * shape.elements() as u64, USAGE);
        let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
        let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
        let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
        let before = backend.gpu().submissions;
        backend.encode_buffer(&setting, &gradient, STREAM, &mut payload).unwrap();
        assert_eq!(backend.gpu().submissions - before, 1 + more, "rank {rank}");
    }
}

/// Returns the numbers of dispatches that make a factor's columns orthonormal: those for its chunks, and those for the
/// triangles of the chunks.
fn of_steps(rows: usize, rank: usize) -> [usize; 2] {
    let tall = Tall::new(rows, rows, rank);
    [dispatches(&[tall]).len(), tall.triangles().map_or(0, |triangles| dispatches(&[triangles]).len())]
}

/// docs/src/reference/wgpu.md states what this test asserts.
#[test]
fn only_ranks_above_64_take_more_dispatches() {
    for rank in 1..=64 {
        for rows in (rank..262_144).step_by(997).chain([262_144]) {
            let [of_chunks, of_triangles] = of_steps(rows, rank);
            assert!(of_chunks == 1 && of_triangles <= 1, "{rows} rows of rank {rank}");
        }
    }
    assert_eq!([98, 99].map(|rank| of_steps(50_257, rank)), [[1, 1], [2, 2]]);
    assert_eq!(of_steps(128_256, 128), [3, 3]);
}

/// Uses WebGPU's default limits, as docs/src/reference/wgpu.md states.
#[test]
fn triangles_fit_a_binding_up_to_rank_500_and_up_to_1_9_gib() {
    let binding = wgpu::Limits::default().max_storage_buffer_binding_size;
    let fit = |rows, rank| 4 * Tall::new(rows, factor::height(binding, rank), rank).inner() as u64 <= binding;
    for rank in 1..=1024 {
        let most_values = if rank <= 500 { 1 << 31 } else { 19 * (1 << 30) / 10 / 4 };
        let most = (most_values / rank).min(1 << 22);
        for rows in (rank..most).step_by(9973).chain([most]) {
            assert!(fit(rows, rank), "{rows} rows of rank {rank}");
        }
    }
    assert!(!fit(508_522, 1024) && !fit(1 << 22, 512));
}

#[test]
fn what_is_too_long_is_an_error() {
    let too_many = Shape::new(1 << 22, 1000).map(|shape| powersgd::check(shape, 1000));
    let expected =
        Error::Method("PowerSGD with a side above 4,194,304, a rank above 1024, or a P of more than 2^31 values");
    assert_eq!(too_many, Ok(Err(expected)));
    // A triangle of 1,000 columns takes 4 MB.
    let mut backend = noop(small(wgpu::Limits::default()));
    let shape = Shape::new(4100, 1000).unwrap();
    let tensor = Tensor::new(&uniform(shape.elements(), 1), shape.rows(), shape.cols());
    let candidates = Candidates::PowerSgd { iterations: 1, ranks: &[1000] };
    let job = Job { gradient: tensor.gradients()[0], candidates, stream: STREAM };
    let failed = backend.measure(&[job], &mut [], &mut [0.0]).unwrap_err();
    assert_eq!(failed.job, Some(0));
    assert!(matches!(backend.failure(), Some(Error::TooLarge { what: "a table", .. })), "{:?}", backend.failure());
}
