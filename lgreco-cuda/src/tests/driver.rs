//! Tests of `driver.rs` through `simt/fake_driver.cpp`, a stand-in for the driver's library.
//!
//! Only separate processes load this stand-in. A test starts the test program again, with the stand-in on the library
//! path. The new process runs one of the tests that are marked as ignored.
#![allow(unsafe_code)]

use super::simt::{Flavour, build, entries, stand_in, target};
use super::{ROWS, is_full, unavailable};
use crate::kernels::Module;
use crate::{Call, CudaBackend, DeviceGradient, DeviceInfo, DeviceJob, Error, devices};
use cudarc::driver::sys;
use lgreco::compress::{Candidates, Setting, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::{check_dense, check_qsgd};
use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Returns the values of `FAKE_CUDA_ORDER` that tests use: three extreme orders of unordered work, and random orders.
fn orders() -> Vec<String> {
    let seeds = if is_full() { 16 } else { 1 };
    let random = (1..=seeds).map(|seed| format!("random:{seed}"));
    ["latest", "others", "earliest"].into_iter().map(String::from).chain(random).collect()
}

/// Returns a folder with the stand-in under the names of the driver's library, compiled with these macro definitions.
/// `None` if there is no g++.
fn folder_of_fake(definitions: &[&str]) -> Option<PathBuf> {
    let library = stand_in("fake_driver.cpp", definitions)
        .map_err(|error| unavailable(&format!("no g++ for an imitation of the driver: {error}")))
        .ok()?;
    let folder = library.with_extension("driver");
    std::fs::create_dir_all(&folder).unwrap();
    // Tests also call the driver through cudarc, which looks for `libcuda.so` first.
    for name in ["libcuda.so.1", "libcuda.so"] {
        if std::fs::symlink_metadata(folder.join(name)).is_err() {
            // Another process may make the same link at the same time.
            let linked = std::os::unix::fs::symlink(&library, folder.join(name));
            assert!(linked.is_ok() || folder.join(name).exists(), "{linked:?}");
        }
    }
    Some(folder)
}

/// Returns the environment variables that programs need to find the stand-in and its kernels.
fn build_fake() -> Option<[(&'static str, String); 2]> {
    static MODULES: OnceLock<String> = OnceLock::new();
    let folder = folder_of_fake(&[])?.to_str().unwrap().to_owned();
    let modules = MODULES.get_or_init(modules_of_fake).clone();
    Some([("LD_LIBRARY_PATH", folder), ("FAKE_CUDA_MODULES", modules)])
}

/// Returns the libraries of kernels. With each library comes the name of a kernel that no other library has.
fn modules_of_fake() -> String {
    let modules = Module::ALL.map(|module| {
        let source = module.source();
        let others: Vec<String> =
            Module::ALL.into_iter().filter(|&other| other != module).map(Module::source).collect();
        let own = |entry: &&&str| !others.iter().any(|other| entries(other).contains(entry));
        let names = entries(&source);
        let name = names.iter().find(own).expect("a kernel that no other module has");
        format!("{}={name};", build(module, &source, Flavour::Plain).display())
    });
    modules.concat()
}

/// Runs an ignored test of a test file with the stand-in as driver and with these variables. Returns the test's output.
pub(super) fn run(file: &str, test: &str, variables: &[(&str, &str)]) -> Option<String> {
    let environment = build_fake()?;
    let own = environment.iter().map(|(name, value)| (*name, value.as_str()));
    Some(run_with(file, test, &own.chain(variables.iter().copied()).collect::<Vec<_>>()))
}

/// Like [`run`], once for each order of enqueued work. Returns the orders with the test's output in each.
pub(super) fn run_in_all_orders(file: &str, test: &str, variables: &[(&str, &str)]) -> Vec<(String, String)> {
    let run_in = |order: String| {
        println!("FAKE_CUDA_ORDER={order}");
        let variables = [variables, &[("FAKE_CUDA_ORDER", order.as_str())]].concat();
        run(file, test, &variables).map(|text| (order, text))
    };
    orders().into_iter().map_while(run_in).collect()
}

/// Whether [`run`] has started this process. An ignored test does nothing in other processes, for example under
/// `--include-ignored`.
pub(super) fn is_child() -> bool {
    std::env::var_os("LGRECO_CHILD").is_some()
}

/// Like [`run`], but sets only these environment variables.
fn run_with(file: &str, test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", &format!("tests::{file}::{test}")]);
    let output = command.env("LGRECO_CHILD", "1").envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    text
}

/// Prints the environment variables for programs of other crates. `lgreco-ffi/tests/run` reads these variables.
#[test]
#[ignore = "prints an environment"]
fn environment() {
    let environment = build_fake().expect("g++");
    for (name, value) in environment {
        println!("environment: {name}={value}");
    }
}

/// Counters of the stand-in driver.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct State {
    /// Numbers of objects that still exist: allocations, retained contexts, streams, modules, contexts on the stack.
    /// The last number counts page-locked blocks and events together.
    pub(super) left: [i32; 6],
    pub(super) waits: i32,
    pub(super) launches: i32,
    /// Number of uploads from memory that is not page-locked.
    pub(super) pageable: i32,
}

pub(super) fn state() -> State {
    let mut state = State { left: [0; 6], waits: 0, launches: 0, pageable: 0 };
    // SAFETY: the stand-in is loaded, and writes nine numbers.
    unsafe {
        let fake = libloading::Library::new("libcuda.so.1").unwrap();
        let get = fake.get::<unsafe extern "C" fn(*mut State)>("fake_cuda_state").unwrap();
        get(&mut state);
    }
    state
}

/// Simulates a trainer that lives as long as the process. The trainer retains the device's primary context and makes
/// this context current on this thread. Returns the context and a new stream.
pub(super) fn trainer(device: i32) -> (sys::CUcontext, sys::CUstream) {
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers are valid for handles, and the driver is loaded.
    unsafe {
        sys::cuInit(0).result().unwrap();
        sys::cuDevicePrimaryCtxRetain(&mut context, device).result().unwrap();
        sys::cuCtxPushCurrent_v2(context).result().unwrap();
        sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32).result().unwrap();
    }
    (context, stream)
}

#[test]
fn a_driver_that_lacks_a_function_is_refused() {
    let Some(lacking) = folder_of_fake(&["-DcuDeviceGetCount=cuDeviceCountedNot"]) else { return };
    let folder = target().join(format!("lacking-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let fake = folder.join("libcuda.so.1");
    std::fs::copy(lacking.join("libcuda.so.1"), &fake).unwrap();
    let environment = [("LD_LIBRARY_PATH", folder.to_str().unwrap())];
    let run = |what: &str| {
        let text = run_with("driver", "what_is_missing", &environment);
        assert!(text.contains(&format!("devices: {what}")), "{text}");
    };
    run("the NVIDIA driver's library does not load: ");
    std::fs::write(&fake, "no library").unwrap();
    run("libcuda.so.1 does not load: ");
    std::fs::remove_file(&fake).unwrap();
    if devices().is_err() {
        run("no NVIDIA driver: ");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// `libcuda.so` is tried last, because in development images this file is a stub for linkers.
#[test]
fn the_drivers_own_name_is_looked_for_first() {
    let folder = target().join(format!("stub-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let lacking = ["-DcuDeviceGetCount=cuDeviceCountedNot"];
    for (name, definitions) in [("libcuda.so.1", &[][..]), ("libcuda.so", &lacking)] {
        let Some(fake) = folder_of_fake(definitions) else { return };
        std::fs::copy(fake.join("libcuda.so.1"), folder.join(name)).unwrap();
    }
    let environment = [("LD_LIBRARY_PATH", folder.to_str().unwrap())];
    let text = run_with("driver", "listed", &environment);
    assert!(text.contains("usable: Ok(\"sm_80\")"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "needs a library path of its own"]
fn what_is_missing() {
    if !is_child() {
        return;
    }
    println!("devices: {}", devices().unwrap_err());
    println!("new: {}", CudaBackend::new(0).err().unwrap());
}

#[test]
fn a_suite_passes_through_a_driver() {
    run("driver", "suite", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn suite() {
    if !is_child() {
        return;
    }
    let listed = devices().unwrap();
    let DeviceInfo { name, capability, usable, .. } = &listed[0];
    assert_eq!((listed.len(), name.as_str(), capability.as_str()), (1, "Fake GPU", "8.0"));
    assert_eq!(usable.as_deref(), Ok("sm_80"));
    let mut backend = CudaBackend::new(0).unwrap();
    check_dense(&mut backend);
    check_qsgd(&mut backend, ROWS);
    let State { left: [allocations, contexts, streams, modules, on_stack, staging], launches, pageable, .. } = state();
    assert!(allocations > 3 && modules >= 2 && launches > 100, "{:?}", state());
    assert_eq!((contexts, streams, on_stack, staging, pageable), (1, 1, 0, 3, 0));
    drop(backend);
    assert_eq!(state().left, [0; 6], "what is left");
    assert!(matches!(CudaBackend::new(7), Err(Error::NoDevice { ordinal: 7, .. })));
    assert_eq!(state().left, [0; 6], "what is left");
}

#[test]
fn a_trainers_stream_is_used_and_waited_for_once() {
    run("driver", "beside_a_trainer", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn beside_a_trainer() {
    if !is_child() {
        return;
    }
    // SAFETY: no context is current, so the call is refused.
    assert!(matches!(unsafe { CudaBackend::with_stream(std::ptr::null_mut()) }, Err(Error::NoDevice { .. })));
    let (_, stream) = trainer(0);
    // SAFETY: the stream and its context stay alive.
    let mut backend = unsafe { CudaBackend::with_stream(stream.cast()) }.unwrap();
    let values = vec![1.0f32; 4096];
    let shape = Shape::new(64, 64).unwrap();
    // SAFETY: the memory has this many values, and the stand-in driver accepts memory of the CPU.
    let gradient = unsafe { DeviceGradient::new(values.as_ptr().expose_provenance() as u64, Dtype::F32, shape) };
    let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    let jobs = [DeviceJob { gradient: gradient.unwrap(), candidates, stream: Stream::default() }; 5];
    let keeps = Candidates::TopK { values: Dtype::F32, keeps: &[40] };
    backend.reserve(&jobs, &[Call::Measure]).unwrap();
    backend.reserve(&[DeviceJob { candidates: keeps, ..jobs[0] }], &[Call::Encode]).unwrap();
    let before = state();
    backend.measure_device(&jobs, &mut [0.0; 10]).unwrap();
    let after = state();
    assert_eq!(after.waits - before.waits, 1, "waits");
    let [allocations, contexts, streams, _, on_stack, _] = after.left;
    let own = before.left[0];
    assert_eq!((allocations, contexts, streams, on_stack), (own, 1, 1, 1), "allocations; the rest is the trainer's");
    // SAFETY: the stand-in is loaded.
    unsafe {
        let fake = libloading::Library::new("libcuda.so.1").unwrap();
        let last = fake.get::<unsafe extern "C" fn() -> *mut c_void>("fake_cuda_last_stream").unwrap();
        assert_eq!(last(), stream.cast());
    }
    let (top, mut payload) = (Setting::TopK(TopK { keep: 40, values: Dtype::F32 }), [0; 4096]);
    let mut waits = || {
        let before = state().waits;
        backend.encode_device(&top, &jobs[0].gradient, Stream::default(), &mut payload).unwrap();
        state().waits - before
    };
    assert_eq!(waits(), 2, "for the status, and for the payload");
    assert_eq!(state().left, after.left, "allocations and modules");
    drop(backend);
    assert_eq!(state().left, [0, 1, 1, 0, 1, 0], "what is left: the trainer's context and stream");
}

#[test]
fn failures_of_the_driver_are_said() {
    for (failing, expected) in [
        (("FAKE_CUDA_FAIL", "cuInit=100"), "no CUDA device 0: code 100 (CUDA_ERROR)"),
        (("FAKE_CUDA_FAIL", "cuInit=803"), "the driver failed in cuInit: code 803 (CUDA_ERROR)"),
        (("FAKE_CUDA_VERSION", "10020"), "the CUDA version of the NVIDIA driver is 10.2, at least 12.0 is needed"),
        (("FAKE_CUDA_FAIL", "cuDevicePrimaryCtxRetain=2"), "the driver failed in cuDevicePrimaryCtxRetain: code 2"),
        (("FAKE_CUDA_FAIL", "cuStreamCreate=999"), "the driver failed in cuStreamCreate: code 999"),
        (("FAKE_CUDA_FAIL", "cuMemAllocAsync=2"), "the device is out of memory: "),
        (("FAKE_CUDA_FAIL", "cuMemcpyHtoDAsync_v2=700"), "the driver failed in cuMemcpyHtoDAsync: code 700"),
        (("FAKE_CUDA_FAIL", "cuModuleLoadData=222"), "the driver failed in cuModuleLoadData: code 222"),
        (("FAKE_CUDA_FAIL", "cuLaunchKernel=719"), "the driver failed in usual_encode: code 719"),
        (("FAKE_CUDA_FAIL", "cuStreamSynchronize=700"), "the driver failed in cuStreamSynchronize: code 700"),
        // An error code of a newer driver. The headers do not have this code, and the driver does not describe it.
        (
            ("FAKE_CUDA_FAIL", "cuStreamSynchronize=4321"),
            "the driver failed in cuStreamSynchronize: the unknown code 4321",
        ),
    ] {
        let Some(text) = run("driver", "encoding", &[failing]) else { return };
        assert!(text.contains(&format!("failed: {expected}")), "{failing:?}: {text}");
        assert!(text.contains("left: [0, 0, 0, 0, 0, 0]"), "{failing:?}: {text}");
    }
}

#[test]
#[ignore = "needs the fake driver"]
fn encoding() {
    if !is_child() {
        return;
    }
    let encoded = CudaBackend::new(0).and_then(|mut backend| {
        let values = lgreco_testing::powersgd::uniform(64 * 64, 1);
        let tensor = lgreco_testing::backend::Tensor::new(&values, 64, 64);
        let (setting, mut payload) = (Setting::Qsgd(Qsgd::default()), [0; 4096]);
        let encoded = lgreco::backend::Backend::encode(
            &mut backend,
            &setting,
            &tensor.gradients()[0],
            Stream::default(),
            &mut [],
            &mut payload,
        );
        encoded.map_err(|error| backend.failure().cloned().unwrap_or(error.into()))
    });
    println!("failed: {}", encoded.unwrap_err());
    println!("left: {:?}", state().left);
}

/// If the crate has no kernels for a device or a driver, the error must name the missing requirement.
#[test]
fn devices_get_kernels_or_a_reason() {
    for (driver, device, expected) in [
        ("12000", "80", "usable: Ok(\"sm_80\")"),
        ("13000", "121", "usable: Ok(\"sm_120\")"),
        ("12040", "70", "usable: Ok(\"sm_70\")"),
        ("12090", "110", "usable: Ok(\"compute_75\")"),
        (
            "12080",
            "110",
            "usable: Err(\"the CUDA version of the NVIDIA driver is 12.8, at least 12.9 (for compute capability 11.0)",
        ),
        ("13000", "72", "usable: Err(\"no kernels come with this crate for devices of compute capability 7.2\")"),
        ("12000", "61", "usable: Err(\"the device's compute capability is 6.1, at least 7.0 is needed\")"),
    ] {
        let variables = [("FAKE_CUDA_VERSION", driver), ("FAKE_CUDA_CAPABILITY", device)];
        let Some(text) = run("driver", "listed", &variables) else { return };
        assert!(text.contains(expected), "{driver}, {device}: {text}");
    }
}

#[test]
fn a_device_without_memory_pools_is_not_usable() {
    let Some(text) = run("driver", "listed", &[("FAKE_CUDA_POOLS", "0")]) else { return };
    assert!(text.contains("usable: Err(\"the device has no memory pools"), "{text}");
}

#[test]
#[ignore = "needs the fake driver"]
fn listed() {
    if !is_child() {
        return;
    }
    println!("usable: {:?}", devices().unwrap()[0].usable.as_ref().map_err(ToString::to_string));
}
