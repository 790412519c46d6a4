//! Tests that calls allocate nothing after a reservation, and that the reserved memory has the predicted size.
#![allow(unsafe_code)]

use super::launches::{Calls, Counted};
use crate::codec::header;
use crate::device::Part;
use crate::tensor::Input;
use crate::{Call, CudaBackend, DeviceGradient, DeviceJob};
use lgreco::compress::eden::Eden;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const CALLS: [Call; 5] = [Call::Measure, Call::Encode, Call::Decode, Call::EncodeToDevice, Call::DecodeOnDevice];

fn job(candidates: Candidates<'_>, rows: usize, cols: usize, dtype: Dtype) -> DeviceJob<'_> {
    let shape = Shape::new(rows, cols).unwrap();
    let part = Part { address: 256, bytes: (shape.elements() * dtype.bytes()) as u64 };
    DeviceJob { gradient: DeviceGradient::of_part(part, dtype, shape), candidates, stream: Stream::default() }
}

/// Returns jobs with these candidates. The largest layer is neither the first nor the last. Candidates need not be in
/// ascending order.
fn jobs(candidates: Candidates<'_>) -> Vec<DeviceJob<'_>> {
    [(300, 70, Dtype::F32), (64, 64, Dtype::Bf16), (700, 900, Dtype::F16), (130, 5, Dtype::F32)]
        .map(|(rows, cols, dtype)| job(candidates, rows, cols, dtype))
        .into()
}

fn each_method(mut check: impl FnMut(&[DeviceJob<'_>])) {
    let of = |base| Candidates::Qsgd { base, bits: &[3, 1, 8] };
    check(&jobs(of(Qsgd::default())));
    check(&jobs(of(Qsgd { bucket: 128, rounding: Rounding::Nearest, ..Qsgd::default() })));
    check(&jobs(of(Qsgd { bucket: 1024, scale: Scale::MinMax, ..Qsgd::default() })));
    for values in [Dtype::F32, Dtype::Bf16] {
        check(&jobs(Candidates::TopK { values, keeps: &[7, 300, 1] }));
    }
    check(&jobs(Candidates::QuantisedTopK { keeps: &[7, 300, 1], bits: &[2, 4] }));
    check(&jobs(Candidates::Eden { base: Eden::default(), bits: &[3, 1, 8] }));
    check(&jobs(Candidates::PowerSgd { iterations: 2, ranks: &[1, 40, 4] }));
}

/// Makes a call for all jobs and candidates. Ignores the results, because the device's content is simulated.
fn make(backend: &mut CudaBackend, of_device: &Calls, call: Call, jobs: &[DeviceJob<'_>]) {
    if call == Call::Measure {
        let _ = backend.measure_device(jobs, &mut vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()]);
        // If a job fails, the call omits requests that depend on the values of later jobs. So each job also runs alone.
        for job in jobs {
            let _ = backend.measure_device(&[*job], &mut vec![0.0; job.candidates.len()]);
        }
    }
    for job in jobs {
        for setting in (0..job.candidates.len()).map(|index| job.candidates.setting(index).unwrap()) {
            // The device reports this number of positions, so that the decoding of TopK's payload succeeds.
            let kept = match setting {
                Setting::TopK(top) => top.keep,
                Setting::QuantisedTopK(top) => top.keep,
                _ => 0,
            };
            of_device.ones.store(kept, Ordering::Relaxed);
            make_one(backend, call, job, &setting);
        }
    }
    let _ = backend.check();
}

fn make_one(backend: &mut CudaBackend, call: Call, job: &DeviceJob<'_>, setting: &Setting) {
    let (shape, stream) = (job.gradient.shape(), job.stream);
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    // SAFETY: a counting device accesses no memory.
    unsafe {
        let _ = match call {
            Call::Measure => return,
            Call::Encode => backend.encode_device(setting, &job.gradient, stream, &mut payload),
            Call::Decode => {
                header(setting, &Input::Device(job.gradient)).unwrap().write(&mut payload).unwrap();
                backend.decode_to_device(&payload, 256).map(|()| 0)
            }
            Call::EncodeToDevice => backend.encode_to_device(setting, &job.gradient, stream, 256),
            Call::DecodeOnDevice => backend.decode_on_device(setting, shape, 257, 256).map(|()| 0),
        };
    }
}

/// Values for the bytes that calls read from the device. To a call, all gradient values seem to be zero, near the
/// largest value, or not finite, so that the call makes the requests for these cases.
const CONTENTS: [u8; 3] = [0, 0x7f, 0xff];

fn make_all(backend: &mut CudaBackend, of_device: &Calls, call: Call, jobs: &[DeviceJob<'_>]) {
    for content in CONTENTS {
        of_device.content.store(content, Ordering::Relaxed);
        make(backend, of_device, call, jobs);
    }
}

fn counted() -> (CudaBackend, Arc<Calls>) {
    let of_device = Arc::new(Calls::default());
    (CudaBackend::on(Box::new(Counted(of_device.clone()))), of_device)
}

#[test]
fn what_is_reserved_is_what_calls_take() {
    for call in CALLS {
        each_method(|jobs| {
            let (mut backend, of_device) = counted();
            let bytes = backend.workspace_bytes(jobs, &[call]).unwrap();
            backend.reserve(jobs, &[call]).unwrap();
            let allocations = of_device.allocations.load(Ordering::Relaxed);
            let context = (call, jobs[0].candidates);
            assert_eq!(backend.held_bytes(), bytes, "{context:?}");
            assert!(of_device.launched.get().is_empty());
            make_all(&mut backend, &of_device, call, jobs);
            assert_eq!(of_device.allocations.load(Ordering::Relaxed), allocations, "{context:?}");
            let (prepared, launched) = (of_device.prepared.get(), of_device.launched.get());
            assert!(!launched.is_empty(), "{context:?}");
            assert!(launched.iter().all(|kernel| prepared.contains(kernel)), "{context:?}: {launched:?}");
            assert!(prepared.iter().all(|kernel| launched.contains(kernel)), "{context:?}: {launched:?}");

            let (mut other, of_device) = counted();
            make_all(&mut other, &of_device, call, jobs);
            assert_eq!(other.held_bytes(), bytes, "{context:?}: without a reservation");
        });
    }
}

/// The matrix is tall, so `P` is large. Encoders make `P` in the payload, so `P` needs no workspace.
#[test]
fn encoders_of_powersgd_hold_no_factor_that_is_sent() {
    let rows = 1 << 18;
    let job = job(Candidates::PowerSgd { iterations: 1, ranks: &[4] }, rows, 8, Dtype::F32);
    let (backend, _) = counted();
    let bytes = |call| backend.workspace_bytes(&[job], &[call]).unwrap();
    let p = 4 * 4 * rows as u64;
    assert!(bytes(Call::EncodeToDevice) < p, "{}", bytes(Call::EncodeToDevice));
    // For `encode_device`, the workspace includes the payload.
    assert!((p..2 * p).contains(&bytes(Call::Encode)), "{}", bytes(Call::Encode));
    assert!(bytes(Call::Measure) >= p);
}

#[test]
fn reservations_add_to_each_other() {
    each_method(|jobs| {
        let (mut backend, of_device) = counted();
        backend.reserve(&jobs[..1], &CALLS[..3]).unwrap();
        backend.reserve(jobs, &CALLS).unwrap();
        assert_eq!(backend.held_bytes(), backend.workspace_bytes(jobs, &CALLS).unwrap());
        let allocations = of_device.allocations.load(Ordering::Relaxed);
        backend.reserve(&jobs[1..], &CALLS[2..]).unwrap();
        CALLS.iter().for_each(|&call| make_all(&mut backend, &of_device, call, jobs));
        assert_eq!(of_device.allocations.load(Ordering::Relaxed), allocations);
    });
}

#[test]
fn empty_gradients_and_no_candidates_are_nothing_to_fail_on() {
    let (mut backend, _) = counted();
    let base = Qsgd::default();
    let empty = job(Candidates::Qsgd { base, bits: &[4] }, 0, 5, Dtype::F32);
    let undecided = job(Candidates::Qsgd { base, bits: &[] }, 3, 5, Dtype::F32);
    assert_eq!(backend.reserve(&[empty, undecided], &CALLS), Ok(()));
    assert_eq!(backend.reserve(&[], &CALLS), Ok(()));
}

#[test]
fn candidates_that_do_not_fit_are_named_with_their_job() {
    let (backend, _) = counted();
    let fitting = jobs(Candidates::Qsgd { base: Qsgd::default(), bits: &[4] })[0];
    let loco = ["loco 64".parse().unwrap()];
    for (candidates, expected) in [
        (Candidates::TopK { values: Dtype::F32, keeps: &[21_001] }, "kept elements is 21001"),
        (Candidates::Each(&loco), "does not run on CUDA devices"),
    ] {
        for call in CALLS {
            let jobs = [fitting, DeviceJob { candidates, ..fitting }];
            let failed = backend.workspace_bytes(&jobs, &[call]).unwrap_err();
            assert!(failed.job == Some(1) && failed.to_string().contains(expected), "{call:?}: {failed}");
        }
    }
}
