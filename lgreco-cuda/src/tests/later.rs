//! Tests calls whose results the host reads later. Such calls do not wait, allocate or download. The stand-in for the
//! driver runs enqueued work only when the host waits.
#![allow(unsafe_code)]

use super::driver::{State, is_child, run, state};
use super::enqueued::{COLS, ROWS, beside_a_trainer, device, qsgd, values};
use crate::{CudaBackend, DeviceGradient, DeviceJob, DeviceWindow, ExchangeConfig, ExchangeFault, ExchangeProgram};
use cudarc::driver::sys;
use lgreco::compress::{Candidates, Setting, eden::Eden, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;

fn with_the_fake(test: &str) {
    run("later", test, &[]);
}

/// Returns the `count` values at `address` as a mutable slice.
fn values_mut(address: u64, count: usize) -> &'static mut [f32] {
    // SAFETY: `device` allocated this many values, and no enqueued work uses them yet.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address as usize), count) }
}

/// An enqueued copy, and the event that marks its end.
struct Copied {
    words: &'static [u64],
    event: sys::CUevent,
}

impl Copied {
    fn enqueue((address, bytes): (u64, usize), stream: sys::CUstream) -> Copied {
        let (mut to, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the page-locked memory has this many bytes and is never freed; the device memory is valid; the
        // pointer is valid for an event.
        unsafe {
            sys::cuMemHostAlloc(&mut to, bytes, 0).result().unwrap();
            to.cast::<u8>().write_bytes(0xee, bytes);
            sys::cuMemcpyDtoHAsync_v2(to, address, bytes, stream).result().unwrap();
            sys::cuEventCreate(&mut event, 0).result().unwrap();
            sys::cuEventRecord(event, stream).result().unwrap();
            Copied { words: std::slice::from_raw_parts(to.cast(), bytes / 8), event }
        }
    }

    /// Waits only for this copy, and returns the copied words.
    fn words(&self) -> &'static [u64] {
        // SAFETY: the event is alive.
        unsafe { sys::cuEventSynchronize(self.event).result().unwrap() };
        self.words
    }
}

#[test]
fn faults_of_a_step_are_read_while_the_next_is_enqueued() {
    with_the_fake("faults_later");
}

#[test]
#[ignore = "needs the fake driver"]
fn faults_later() {
    if !is_child() {
        return;
    }
    let (mut backend, stream) = beside_a_trainer();
    let shape = Shape::new(ROWS, COLS).unwrap();
    let top = Setting::TopK(TopK { keep: 40, values: Dtype::F32 });
    let (elements, n) = (2 * ROWS * COLS, ROWS * COLS);
    let program = ExchangeProgram::new(&[(shape, qsgd(4)), (shape, top)], ExchangeConfig::default()).unwrap();
    let message = device(program.message_bytes());
    let (memory, residuals) = (device(program.memory_bytes() as usize), device(program.residual_bytes() as usize));
    // SAFETY: the memory has the program's sizes, and no other work uses it.
    let exchange = unsafe { backend.begin_exchange(program, memory, residuals) }.unwrap();
    let steps = [(Some(7), false), (None, false), (Some(n + 3), true)].map(|(spoilt, infinite)| {
        let gradients = device(4 * elements);
        let own = values_mut(gradients, elements);
        own.copy_from_slice(&uniform(elements, 1));
        spoilt.into_iter().for_each(|at| own[at] = if infinite { f32::INFINITY } else { f32::NAN });
        gradients
    });
    backend.synchronise().unwrap();
    let before = state();
    let copies = steps.map(|gradients| {
        // SAFETY: all memory has the program's sizes.
        unsafe {
            backend.encode_exchange(&exchange, gradients, message).unwrap();
            backend.finish_exchange(&exchange, message, gradients).unwrap();
        }
        Copied::enqueue(exchange.outcome_address(), stream)
    });
    assert_eq!(state().waits, before.waits);
    assert!(
        copies.iter().all(|copy| copy.words.iter().all(|&word| word == 0xeeee_eeee_eeee_eeee)),
        "nothing is done yet"
    );
    let mut seen = Vec::new();
    for (number, copy) in copies.iter().enumerate() {
        let outcome = exchange.outcome_of(bytemuck::cast_slice(copy.words())).unwrap();
        seen.push((outcome.step, outcome.failed, outcome.has_failed, outcome.rank, outcome.fault));
        // The copies after later steps have not run yet.
        let later = copies[number + 1..].iter().all(|copy| copy.words[0] == 0xeeee_eeee_eeee_eeee);
        assert!(later, "step {number}");
    }
    let fault = |layer, index| Some(ExchangeFault::NonFinite { layer, index });
    assert_eq!(
        seen,
        [(1, 1, true, Some(0), fault(0, 7)), (2, 1, false, None, None), (3, 2, true, Some(0), fault(1, 3))]
    );
    assert_eq!(state().waits, before.waits, "nobody has waited for the stream");
    assert_eq!(backend.exchange_outcome(&exchange).unwrap().fault, fault(1, 3));
    assert!(exchange.outcome_of(&[0; 8]).is_err());
    // `outcome_of` must also decode arbitrary bytes without a panic.
    let bytes = exchange.outcome_address().1;
    for seed in 0..100 {
        let words = uniform(bytes / 4, seed);
        let other = if seed == 0 { vec![0xff; bytes] } else { bytemuck::cast_slice(&words).to_vec() };
        assert!(exchange.outcome_of(&other).is_ok());
    }
}

fn jobs<'a>(gradients: impl Iterator<Item = DeviceGradient>, keeps: &'a [u32]) -> Vec<DeviceJob<'a>> {
    let candidates = [
        Candidates::Qsgd { base: Qsgd::default(), bits: &[1, 4, 8] },
        Candidates::Qsgd { base: Qsgd { bucket: 128, ..Qsgd::default() }, bits: &[3] },
        Candidates::TopK { values: Dtype::F32, keeps },
        Candidates::TopK { values: Dtype::F16, keeps },
        Candidates::QuantisedTopK { keeps, bits: &[2, 8] },
        Candidates::PowerSgd { iterations: 5, ranks: &[1, 4] },
        Candidates::Eden { base: Eden::default(), bits: &[1, 4] },
    ];
    let of_layer = |(layer, gradient): (usize, DeviceGradient)| {
        let stream = Stream { layer: layer as u32, ..Stream::default() };
        candidates.map(|candidates| DeviceJob { gradient, candidates, stream })
    };
    gradients.enumerate().flat_map(of_layer).collect()
}

#[test]
fn plans_rows_need_no_wait_and_no_memory_but_the_callers() {
    with_the_fake("rows_later");
}

#[test]
#[ignore = "needs the fake driver"]
fn rows_later() {
    if !is_child() {
        return;
    }
    let (mut backend, stream) = beside_a_trainer();
    let shape = Shape::new(ROWS, COLS).unwrap();
    let layers = [(shape, Dtype::F32); 3];
    let steps = [1, 2].map(|seed| {
        let gradients = device(4 * 3 * ROWS * COLS);
        values_mut(gradients, 3 * ROWS * COLS).copy_from_slice(&uniform(3 * ROWS * COLS, seed));
        gradients
    });
    let memory = device(DeviceWindow::bytes(&layers) as usize);
    // SAFETY: the memory has the window's size.
    let window = unsafe { backend.begin_window(&layers, memory) }.unwrap();
    let keeps: Vec<u32> = (1..=50).collect();
    let jobs = jobs((0..3).map(|layer| window.gradient(layer).unwrap()), &keeps);
    let bytes = backend.rows_bytes(&jobs).unwrap();
    let (workspace, results) = (device(bytes.workspace as usize + 256), device(bytes.results as usize));
    values_mut(workspace + bytes.workspace, 64).fill(7.0);
    let enqueue = |backend: &mut CudaBackend| {
        // SAFETY: all memory has the stated sizes.
        unsafe {
            for (gradients, step) in steps.into_iter().zip(1..) {
                let seen = [2, 0, 1].map(|layer| (layer, gradients + 4 * (layer * ROWS * COLS) as u64));
                backend.observe(&window, &seen, step).unwrap();
            }
            backend.close_window(&window).unwrap();
            backend.enqueue_rows(&jobs, workspace, results).unwrap();
        }
        let norms = Copied::enqueue((window.norms_address(), 8 * 3), stream);
        (norms, Copied::enqueue((results, bytes.results as usize), stream))
    };
    // The first call loads the kernels, and enlarges the page-locked memory for tables.
    let (_, first) = enqueue(&mut backend);
    let first = first.words();
    values_mut(results, bytes.results as usize / 4).fill(f32::NAN);
    // The second call's work must overwrite this value.
    values_mut(memory, 1)[0] = 123.0;
    let before = state();
    let (norms, copy) = enqueue(&mut backend);
    let State { left: [allocations, ..], waits, pageable, .. } = state();
    assert_eq!((allocations, waits, pageable), (before.left[0], before.waits, 0));
    assert_eq!(values(memory, 1), [123.0], "nothing is done yet");
    let words = copy.words();
    assert!(words == first, "the same again");
    let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
    backend.read_rows(&jobs, words, &mut rows).unwrap();
    assert_eq!(state().waits, before.waits);
    assert!(values(workspace + bytes.workspace, 64).iter().all(|&x| x == 7.0), "beyond its memory");
    assert_eq!(backend.held_bytes(), 0);
    // The bits must equal those of `measure_device`, which waits and uses the backend's own memory.
    let mut expected = rows.clone();
    expected.fill(0.0);
    backend.measure_device(&jobs, &mut expected).unwrap();
    assert!(rows == expected && rows.iter().all(|row| row.is_finite() && *row > 0.0));
    for (layer, &norm) in norms.words().iter().enumerate() {
        let [one, other] =
            steps.map(|gradients| &values(gradients, 3 * ROWS * COLS)[layer * ROWS * COLS..][..ROWS * COLS]);
        let mean = one.iter().zip(other).map(|(x, y)| f64::from(x * 0.5 + y * 0.5));
        let squares: f64 = mean.map(|x| x * x).sum();
        assert!((f64::from_bits(norm) - squares).abs() <= 1e-12 * squares, "layer {layer}");
    }
    assert!(backend.read_rows(&jobs, &words[1..], &mut rows).is_err());
    assert!(backend.read_rows(&jobs, words, &mut rows[1..]).is_err());
}

#[test]
fn rows_of_what_is_not_finite_say_where() {
    with_the_fake("not_finite_later");
}

#[test]
#[ignore = "needs the fake driver"]
fn not_finite_later() {
    if !is_child() {
        return;
    }
    let (mut backend, stream) = beside_a_trainer();
    let (shape, gradients) = (Shape::new(ROWS, COLS).unwrap(), device(4 * ROWS * COLS));
    // SAFETY: the memory has this many values.
    let gradient = unsafe { DeviceGradient::new(gradients, Dtype::F32, shape) }.unwrap();
    let jobs = jobs([gradient; 1].into_iter(), &[5, 100]);
    let bytes = backend.rows_bytes(&jobs).unwrap();
    let (workspace, results) = (device(bytes.workspace as usize), device(bytes.results as usize));
    let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
    for damage in [f32::NAN, f32::INFINITY, 70_000.0, 1e30] {
        let own = values_mut(gradients, ROWS * COLS);
        own.copy_from_slice(&uniform(ROWS * COLS, 3));
        own[77] = damage;
        // SAFETY: the memory has the stated sizes.
        unsafe { backend.enqueue_rows(&jobs, workspace, results) }.unwrap();
        let words = Copied::enqueue((results, bytes.results as usize), stream).words();
        let found = backend.read_rows(&jobs, words, &mut rows);
        let expected = backend.measure_device(&jobs, &mut rows.clone());
        // NaN does not equal itself, so the texts of the errors are compared.
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        assert!(found.unwrap_err().to_string().contains("element 77"), "{damage}");
    }
    let loco = ["loco 64".parse().unwrap()];
    let refused = [DeviceJob { candidates: Candidates::Each(&loco), ..jobs[0] }];
    assert!(backend.rows_bytes(&refused).is_err());
    // SAFETY: refused calls use no memory.
    unsafe {
        assert!(backend.enqueue_rows(&refused, workspace, results).is_err());
        assert!(backend.enqueue_rows(&jobs, workspace + 8, results).is_err());
        assert!(backend.enqueue_rows(&jobs, workspace, results + 4).is_err());
        assert!(backend.enqueue_rows(&jobs, 0, results).is_err());
    }
}
