//! The functions of the driver's library, which is loaded at run time.
//!
//! The crate cudarc could load these functions as well, but this crate uses only cudarc's types, for two reasons.
//! First, cudarc tries `libcuda.so` before `libcuda.so.1`, but `libcuda.so` may be a stub for linkers. Second, cudarc
//! treats result codes as a Rust enum, so an unknown code of a newer driver would be undefined behaviour. This crate
//! treats result codes as integers.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "functions are the driver's")]

use crate::{Error, Result};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};
use libloading::Library;
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::sync::OnceLock;

/// File names of the library, in order of preference.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The result codes that this crate's functions handle separately.
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const STREAM_CAPTURE_IMPLICIT: c_int = 906;

/// A driver call that did not return 0.
#[derive(Debug)]
pub(crate) struct Failure {
    call: &'static str,
    pub(crate) code: c_int,
    pub(crate) reason: String,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Error::Driver { call: failure.call, reason: failure.reason }
    }
}

macro_rules! functions {
    ($($name:ident($($parameter:ident: $kind:ty),*);)*) => {
        /// The driver's functions that the backend calls.
        pub(crate) struct Cuda {
            $($name: unsafe extern "C" fn($($kind),*) -> c_int,)*
            cuGetErrorName: Words,
            cuGetErrorString: Words,
        }

        impl Cuda {
            /// # Safety
            /// The library is the driver's library, and stays loaded.
            unsafe fn of(library: &Library) -> Result<Cuda, libloading::Error> {
                // SAFETY: the functions have these types in NVIDIA's headers.
                unsafe {
                    Ok(Cuda {
                        $($name: *library.get(stringify!($name))?,)*
                        cuGetErrorName: *library.get("cuGetErrorName")?,
                        cuGetErrorString: *library.get("cuGetErrorString")?,
                    })
                }
            }

            $(
                /// # Safety
                /// The conditions that the driver's documentation states for this function.
                pub(crate) unsafe fn $name(&self, $($parameter: $kind),*) -> Result<(), Failure> {
                    // SAFETY: the caller guarantees the conditions of the driver's documentation.
                    self.said(stringify!($name), unsafe { (self.$name)($($parameter),*) })
                }
            )*
        }
    };
}

/// Type of the driver's functions that describe a result code.
type Words = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

functions! {
    cuCtxGetDevice(device: *mut CUdevice);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, room: c_int, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDriverGetVersion(version: *mut c_int);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuInit(flags: c_uint);
    cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemFreeHost(address: *mut c_void);
    cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemsetD32Async(to: CUdeviceptr, word: c_uint, words: usize, stream: CUstream);
    cuMemsetD8Async(to: CUdeviceptr, byte: c_uchar, bytes: usize, stream: CUstream);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuModuleLoadData(module: *mut CUmodule, code: *const c_void);
    cuModuleUnload(module: CUmodule);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CUfunction, threads: c_int, shared: usize);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    cuStreamSynchronize(stream: CUstream);
}

impl Cuda {
    /// Loads the driver's functions.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; [`Error::Library`] if the library does not load or lacks a function.
    pub(crate) fn load() -> Result<&'static Cuda> {
        static LOADED: OnceLock<Cuda> = OnceLock::new();
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        let cuda = library(NAMES).and_then(|library| {
            // The library is never unloaded.
            let library = Box::leak(Box::new(library));
            // SAFETY: this is the driver's library, and it stays loaded.
            unsafe { Cuda::of(library) }.map_err(|error| Error::Library {
                library: "the NVIDIA driver's library".into(),
                reason: error.to_string(),
            })
        })?;
        Ok(LOADED.get_or_init(|| cuda))
    }

    fn said(&self, name: &'static str, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let words = |function: Words| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is valid for a text pointer, and the driver's texts are static. The driver sets the
            // text pointer to null for an unknown code.
            unsafe {
                function(code, &mut text);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let reason = match (words(self.cuGetErrorString), words(self.cuGetErrorName)) {
            (Some(text), Some(name)) => format!("{text} ({name})"),
            _ => format!("the unknown code {code}"),
        };
        Err(Failure { call: name.trim_end_matches("_v2"), code, reason })
    }
}

/// Loads the first of these libraries that exists.
fn library(names: &[&str]) -> Result<Library> {
    for &name in names {
        // SAFETY: NVIDIA's library is trusted to initialise itself soundly.
        let error = match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => error,
        };
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            reason = format!("{reason}: {error}");
            source = error.source();
        }
        // If the library exists, the message may name another missing file that this library needs.
        let is_own = reason.contains(&format!("{name}: "));
        let is_absent = is_own && reason.contains("No such file") || reason.contains("os error 126");
        if !is_absent {
            return Err(Error::Library { library: name.into(), reason });
        }
    }
    Err(Error::NoDriver)
}
