//! PowerSGD's products by cuBLAS, through `simt/fake_cublas.cpp`, which stands where NVIDIA's library would.
//!
//! As in `driver.rs`, ignored tests run in processes of their own, with the stand-ins on the library path.
#![allow(unsafe_code)]

use super::backend;
use super::compiler::library;
use super::driver::{run, state, trainer};
use super::simt::{Flavour, flavour, target};
use crate::cublas::WORKSPACE;
use crate::{CudaBackend, DeviceGradient, Error};
use lgreco_core::backend::{Backend, Job, Portable};
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::compress::{Candidates, Compressor, Setting, powersgd::PowerSgd};
use lgreco_core::gradient::{Dtype, Gradient, Shape};
use lgreco_core::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use std::ffi::c_void;

/// What decoded matrices agree within, of their norm: sums of 2003 products are in plain f32.
const NEAR: f64 = 1e-5;

/// Runs an ignored test of this file with the stand-in, and returns what it prints.
fn with_the_fake(test: &str, variables: &[(&str, &str)]) -> Option<String> {
    let folder = target().join(format!("cublas-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    library("fake_cublas.cpp", &[], &folder.join("libcublas.so.12"))?;
    let text = run("cublas", test, variables, Some(&folder));
    std::fs::remove_dir_all(&folder).unwrap();
    text
}

/// Of the stand-in: handles there are, products so far, and the stream of the last.
fn cublas_state() -> ([i32; 2], *mut c_void) {
    let mut state = [0; 2];
    // SAFETY: the fake, which is loaded already, writes two numbers.
    unsafe {
        let fake = libloading::Library::new("libcublas.so.12").unwrap();
        fake.get::<unsafe extern "C" fn(*mut i32)>("fake_cublas_state").unwrap()(state.as_mut_ptr());
        (state, fake.get::<unsafe extern "C" fn() -> *mut c_void>("fake_cublas_last_stream").unwrap()())
    }
}

fn products() -> i32 {
    cublas_state().0[1]
}

fn setting(rank: u32) -> Setting {
    Setting::PowerSgd(PowerSgd { rank, iterations: 2 })
}

fn encode(backend: &mut CudaBackend, rank: u32, gradient: &Gradient<'_>) -> Result<Vec<u8>, lgreco_core::Error> {
    let mut payload = vec![0; setting(rank).payload_len(gradient.shape(), gradient.values().dtype())?];
    backend.encode(&setting(rank), gradient, Stream { seed: 3, ..Stream::default() }, &mut [], &mut payload)?;
    Ok(payload)
}

fn decoded(payload: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; elements];
    Portable.decode(payload, &mut values).unwrap();
    values
}

/// How far apart two matrices are, of the norm of the first.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let norm: f64 = a.iter().map(|&a| square(a.into())).sum();
    let difference: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    (difference / norm).sqrt()
}

fn both() -> (CudaBackend, CudaBackend) {
    let (own, mut cublas) = (CudaBackend::new(0).unwrap(), CudaBackend::new(0).unwrap());
    cublas.use_cublas().unwrap();
    (own, cublas)
}

#[test]
fn products_are_those_of_the_own_kernels() {
    with_the_fake("shapes", &[]);
}

#[test]
#[ignore = "needs the fakes"]
fn shapes() {
    let (mut own, mut cublas) = both();
    assert_eq!(cublas.held_bytes(), WORKSPACE);
    cublas.use_cublas().unwrap();
    assert_eq!((cublas.held_bytes(), cublas_state().0), (WORKSPACE, [1, 0]), "once is enough");
    for (rows, cols) in [(64, 64), (301, 17), (17, 301), (129, 65), (1, 500), (500, 1), (3, 2003), (2003, 3)] {
        let tensor = Tensor::new(&uniform(rows * cols, 1), rows, cols);
        for gradient in tensor.gradients() {
            let ranks: &[u32] = if gradient.values().dtype() == Dtype::F32 { &[1, 4, 7, 8] } else { &[5] };
            for &rank in ranks {
                let before = products();
                let expected = encode(&mut own, rank, &gradient).unwrap();
                assert_eq!(products(), before, "none of the crate's own kernels");
                let found = encode(&mut cublas, rank, &gradient).unwrap();
                assert_eq!(products(), before + 4, "two each iteration");
                assert_eq!(found[..HEADER_LEN], expected[..HEADER_LEN]);
                let [found, expected] = [found, expected].map(|payload| decoded(&payload, rows * cols));
                let apart = distance(&expected, &found);
                assert!(apart <= NEAR, "{rows} x {cols}, {:?}, rank {rank}: {apart}", gradient.values().dtype());
            }
        }
    }
    assert!(cublas.held_bytes() >= WORKSPACE + 4 * 129 * 65);
    rows_are_left_alone(&mut own, &mut cublas);
    drop((own, cublas));
    assert_eq!((state().left, cublas_state().0[0]), ([0; 6], 0), "what is left");
}

fn rows_are_left_alone(own: &mut CudaBackend, cublas: &mut CudaBackend) {
    // From 2^90 on, something is encoded to know whether it overflows.
    for magnitude in [1.0, 1e30] {
        let values: Vec<f32> = uniform(100 * 70, 2).iter().map(|x| x * magnitude).collect();
        let tensor = Tensor::new(&values, 100, 70);
        let candidates = Candidates::PowerSgd { iterations: 1, ranks: &[1, 5] };
        let job = Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() };
        let before = products();
        let [a, b] = [&mut *own, &mut *cublas].map(|backend| {
            let mut row = [0.0; 2];
            backend.measure(&[job], &mut [], &mut row).unwrap();
            row
        });
        assert_eq!((a, products()), (b, before), "{magnitude}");
        encode(cublas, 5, &tensor.gradients()[0]).unwrap();
        assert_eq!(products(), before + 4, "encoders use it afterwards");
    }
}

/// The scaled copy under the race check or the sanitizers, and products that know of no leading dimensions.
#[test]
fn the_scaled_copy_is_the_matrix() {
    for flavour in [flavour(), Flavour::Races] {
        let (Some(mut own), Some(mut cublas)) = (backend(flavour, 1), backend(flavour, 1)) else { return };
        cublas.use_cublas().unwrap();
        let tensor = Tensor::new(&uniform(61 * 47, 1), 61, 47);
        for gradient in tensor.gradients() {
            let [expected, found] =
                [&mut own, &mut cublas].map(|backend| decoded(&encode(backend, 5, &gradient).unwrap(), 61 * 47));
            assert!(distance(&expected, &found) <= NEAR, "{flavour:?}, {:?}", gradient.values().dtype());
        }
    }
}

#[test]
fn values_of_every_kind_are_decided_as_without() {
    with_the_fake("kinds", &[]);
}

#[test]
#[ignore = "needs the fakes"]
fn kinds() {
    let (rows, cols) = (40, 30);
    let (mut own, mut cublas) = both();
    let plain = uniform(rows * cols, 5);
    let all = |value: f32| plain.iter().map(|x| x.signum() * value).collect::<Vec<f32>>();
    let with = |at: usize, value: f32| {
        let mut values = plain.clone();
        values[at] = value;
        values
    };
    let kinds =
        [all(0.0), all(f32::MAX), all(1e20), all(1e-38), all(1e-44), with(77, f32::NAN), with(9, f32::INFINITY)];
    let mut refused = 0;
    for values in kinds {
        let tensor = Tensor::new(&values, rows, cols);
        let gradient = tensor.gradients()[0];
        let before = products();
        match (encode(&mut own, 3, &gradient), encode(&mut cublas, 3, &gradient)) {
            (Ok(expected), Ok(found)) => {
                let [found, expected] = [found, expected].map(|payload| decoded(&payload, rows * cols));
                // Subnormal numbers have fewer digits than the bound.
                let near = if values[0].abs() < 1e-37 { 0.5 } else { NEAR };
                assert!(found == expected || distance(&expected, &found) <= near, "{}", values[0]);
            }
            (expected, found) => {
                // Of NaN, by its text.
                let [found, expected] = [found, expected].map(|outcome| outcome.map_err(|error| error.to_string()));
                assert_eq!(found, expected, "{}", values[0]);
                refused += 1;
            }
        }
        assert_eq!(products(), before + 4);
    }
    assert!(refused >= 3, "NaN, infinity and overflow: {refused}");
    // Of rank 2: columns beyond are noise, or zeros, and nothing is lost.
    let (left, right) = (uniform(2 * rows, 3), uniform(2 * cols, 4));
    let of_rank_2 = |i: usize| left[i / cols] * right[i % cols] + left[rows + i / cols] * right[cols + i % cols];
    let values: Vec<f32> = (0..rows * cols).map(of_rank_2).collect();
    let payload = encode(&mut cublas, 9, &Tensor::new(&values, rows, cols).gradients()[0]).unwrap();
    assert!(distance(&values, &decoded(&payload, rows * cols)) <= NEAR);
}

#[test]
fn a_trainers_stream_and_feedback_use_it() {
    with_the_fake("beside_a_trainer", &[]);
}

#[test]
#[ignore = "needs the fakes"]
fn beside_a_trainer() {
    let (_, stream) = trainer(0);
    // SAFETY: the stream and its context stay.
    let mut backend = unsafe { CudaBackend::with_stream(stream.cast()) }.unwrap();
    backend.use_cublas().unwrap();
    let (values, shape, setting) = (uniform(61 * 47, 1), Shape::new(61, 47).unwrap(), setting(5));
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    let waits = state().waits;
    // SAFETY: as many values as the shape's; the fake's memory is the processor's.
    let residual = unsafe {
        let mut address = 0;
        cudarc::driver::sys::cuMemAlloc_v2(&mut address, 4 * 61 * 47).result().unwrap();
        let residual = std::ptr::with_exposed_provenance_mut::<f32>(address as usize);
        residual.write_bytes(0, 61 * 47);
        let gradient = DeviceGradient::new(values.as_ptr().expose_provenance() as u64, Dtype::F32, shape).unwrap();
        backend.encode_with_feedback(&setting, &gradient, address, 1.0, Stream::default(), &mut payload).unwrap();
        std::slice::from_raw_parts(residual, 61 * 47)
    };
    assert_eq!(state().waits - waits, 2, "as without");
    assert_eq!(cublas_state(), ([1, 4], stream.cast()));
    let sent = decoded(&payload, 61 * 47);
    assert!(distance(&values, &sent) < 0.99, "something is sent");
    assert!(values.iter().zip(&sent).zip(residual).all(|((&value, &sent), &left)| value - sent == left));
    drop(backend);
    assert_eq!((state().left, cublas_state().0[0]), ([1, 1, 1, 0, 1, 0], 0), "what is left: the trainer's");
}

#[test]
fn where_it_fails_the_own_kernels_stay() {
    for (call, expected) in [
        ("cublasCreate_v2=1", "the driver failed in cublasCreate: status 1"),
        ("cublasSetWorkspace_v2=7", "the driver failed in cublasSetWorkspace: status 7"),
    ] {
        let Some(text) = with_the_fake("refused", &[("FAKE_CUBLAS_FAIL", call)]) else { return };
        assert!(text.contains(&format!("refused: {expected}\n")), "{call}: {text}");
        assert!(text.contains("handles: 0"), "{call}: {text}");
    }
    let Some(text) = with_the_fake("a_product", &[("FAKE_CUBLAS_FAIL", "cublasSgemm_v2=13")]) else { return };
    assert!(text.contains("failed: the driver failed in cublasSgemm: status 13"), "{text}");
    // A machine may have a cuBLAS of its own, which then fails without a GPU.
    let Some(text) = run("cublas", "refused", &[], None) else { return };
    assert!(text.contains("refused: no cuBLAS of CUDA 11.5 or later") || text.contains("cublasCreate"), "{text}");
}

#[test]
#[ignore = "needs the fake driver"]
fn refused() {
    let (mut own, mut refused) = (CudaBackend::new(0).unwrap(), CudaBackend::new(0).unwrap());
    println!("refused: {}", refused.use_cublas().unwrap_err());
    assert_eq!(refused.held_bytes(), 0);
    let tensor = Tensor::new(&uniform(50 * 40, 1), 50, 40);
    let gradient = tensor.gradients()[0];
    let expected = encode(&mut own, 4, &gradient).unwrap();
    assert!(encode(&mut refused, 4, &gradient).unwrap() == expected);
    drop((own, refused));
    assert_eq!(state().left, [0; 6], "what is left");
    if std::env::var_os("FAKE_CUBLAS_FAIL").is_some() {
        println!("handles: {}", cublas_state().0[0]);
    }
}

#[test]
#[ignore = "needs the fakes"]
fn a_product() {
    let (_, mut cublas) = both();
    let tensor = Tensor::new(&uniform(50 * 40, 1), 50, 40);
    let failed = encode(&mut cublas, 4, &tensor.gradients()[0]).unwrap_err();
    assert!(matches!(failed, lgreco_core::Error::Device { .. }), "{failed}");
    println!("failed: {}", cublas.failure().unwrap_or(&Error::NoCublas));
}
