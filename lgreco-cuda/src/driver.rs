//! The driver: a context, a stream, modules. Every call makes the context current and afterwards what was current
//! before.

use crate::Error;
use crate::code::Code;
use crate::compiler::capability;
use crate::cublas::Cublas;
use crate::device::{BLOCK, Device, Gemm, Launch, Part};
use crate::error::{said, words};
use crate::kernels::{Kernel, Module};
use crate::libraries::fault;
use crate::staging::{HALF, Staging};
use cudarc::driver::{DriverError, result, sys};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// The least version of the driver's interface, 1000 times the major plus 10 times the minor, and of devices.
const OLDEST_DRIVER: i32 = 11_020;
pub(crate) const OLDEST_DEVICE: u32 = 70;

/// What is called of the driver's library, by way of cudarc, which panics where one is missing.
pub(crate) const FUNCTIONS: [&str; 37] = [
    "cuCtxGetDevice",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
];

/// `Err` unless the driver's library is there, and whole.
fn present() -> Result<(), Error> {
    // SAFETY: loads a library and looks for nothing in it.
    if !unsafe { sys::is_culib_present() } {
        let name = Path::new(if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" });
        // SAFETY: as before.
        let fault = unsafe { libloading::Library::new(name) }.err().and_then(|error| fault(name, &error));
        return Err(fault.unwrap_or(Error::NoDriver));
    }
    for name in FUNCTIONS {
        // SAFETY: the address is not used, and the library is there.
        if let Err(error) = unsafe { sys::culib().get::<*const c_void>(name.as_bytes()) } {
            return Err(Error::Library { library: "the NVIDIA driver's library".into(), reason: error.to_string() });
        }
    }
    Ok(())
}

/// Initialises the driver and says which version of CUDA it supports, major and minor. cudarc must not be called
/// before, because it panics where there is no driver.
pub(crate) fn start() -> Result<(u32, u32), Error> {
    present()?;
    let mut version = 0;
    // SAFETY: a place for an int.
    said("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) }.result())?;
    let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    if version < OLDEST_DRIVER {
        let what = "the CUDA version of the NVIDIA driver";
        return Err(Error::TooOld { what, needed: text(OLDEST_DRIVER), found: text(version) });
    }
    match result::init() {
        Err(error @ DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
            return Err(Error::NoDevice { ordinal: 0, reason: words(error) });
        }
        outcome => said("cuInit", outcome)?,
    }
    Ok((version as u32 / 1000, version as u32 % 1000 / 10))
}

/// Devices there are.
pub(crate) fn count() -> Result<usize, Error> {
    said("cuDeviceGetCount", result::device::get_count()).map(|count| count as usize)
}

/// The device of this number.
pub(crate) fn device(ordinal: usize) -> Result<sys::CUdevice, Error> {
    let failed = |error| Error::NoDevice { ordinal, reason: words(error) };
    let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
    result::device::get(number).map_err(failed)
}

/// A device's name, and the bytes of its memory.
pub(crate) fn name_and_memory(device: sys::CUdevice) -> Result<(String, u64), Error> {
    let name = said("cuDeviceGetName", result::device::get_name(device))?;
    // SAFETY: the driver gave the device.
    let memory = said("cuDeviceTotalMem", unsafe { result::device::total_mem(device) })?;
    Ok((name, memory as u64))
}

fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<i32, Error> {
    // SAFETY: the driver gave the device.
    said("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, attribute) })
}

/// A device's compute capability, 80 for 8.0.
pub(crate) fn compute_capability(device: sys::CUdevice) -> Result<u32, Error> {
    use sys::CUdevice_attribute_enum::*;
    let major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    Ok((10 * major + attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?) as u32)
}

/// Where a device's machine code comes from, under a driver of CUDA's version `driver`; `Err` when the device does not do, or
/// there is none.
pub(crate) fn code(device: sys::CUdevice, driver: (u32, u32)) -> Result<Code, Error> {
    let number = compute_capability(device)?;
    if number < OLDEST_DEVICE {
        let (needed, found) = (capability(OLDEST_DEVICE), capability(number));
        return Err(Error::TooOld { what: "the device's compute capability", needed, found });
    }
    if attribute(device, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
        return Err(Error::NoPools);
    }
    Code::find(driver, number)
}

/// A device's context and stream.
pub(crate) struct Driver {
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// The device whose primary context is held, with a stream of its own on it.
    own: Option<sys::CUdevice>,
    code: Code,
    folder: Option<PathBuf>,
    modules: HashMap<Module, sys::CUmodule>,
    functions: HashMap<Kernel, sys::CUfunction>,
    /// Blocks that run at a time.
    resident: HashMap<Kernel, u64>,
    cublas: Option<Cublas>,
    staging: Option<Staging>,
}

// SAFETY: the driver's handles may be used from any thread; every call makes the context current on its own.
unsafe impl Send for Driver {}

/// While it lives, a context is current on this thread.
struct Current;

impl Current {
    fn make(context: sys::CUcontext) -> Result<Self, Error> {
        // SAFETY: the context lives as long as the device.
        said("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(context) }.result())?;
        Ok(Current)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: takes off what `make` put on.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// `Err` when the stream is being captured. Its context is current.
fn uncaptured(stream: sys::CUstream) -> Result<(), Error> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a place for a status; the stream lives.
    match unsafe { sys::cuStreamIsCapturing(stream, &mut status) }.result() {
        // Of the default stream, which waits for the one that is.
        Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)) => return Err(Error::Captured),
        found => said("cuStreamIsCapturing", found)?,
    }
    if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE { Ok(()) } else { Err(Error::Captured) }
}

impl Driver {
    pub(crate) fn new(ordinal: usize) -> Result<Self, Error> {
        let version = start()?;
        let device = device(ordinal)?;
        let code = code(device, version)?;
        // SAFETY: the driver gave the device. It is released when the value is dropped, from here on also on errors.
        let context = said("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        let mut driver = Driver::of(context, null_mut(), Some(device), code);
        let current = Current::make(context)?;
        driver.stream = said("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        driver.staging()?;
        drop(current);
        Ok(driver)
    }

    /// A stream and its context; of a default stream, the current one.
    ///
    /// # Safety
    /// Both outlive the value.
    pub(crate) unsafe fn with_stream(stream: *mut c_void) -> Result<Self, Error> {
        let driver = start()?;
        let mut context = null_mut();
        let none = || Error::NoDevice { ordinal: 0, reason: "no context is current on this thread".into() };
        // SAFETY: a place for a context; the stream lives.
        match unsafe { sys::cuStreamGetCtx(stream.cast(), &mut context) }.result() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_CONTEXT)) => return Err(none()),
            found => said("cuStreamGetCtx", found)?,
        }
        if context.is_null() {
            return Err(none());
        }
        let _current = Current::make(context)?;
        uncaptured(stream.cast())?;
        let mut device = 0;
        // SAFETY: a place for a device.
        said("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut device) }.result())?;
        let code = code(device, driver)?;
        let mut driver = Driver::of(context, stream.cast(), None, code);
        driver.staging()?;
        Ok(driver)
    }

    fn of(context: sys::CUcontext, stream: sys::CUstream, own: Option<sys::CUdevice>, code: Code) -> Self {
        let (modules, functions, resident) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (folder, cublas, staging) = (None, None, None);
        Driver { context, stream, own, code, folder, modules, functions, resident, cublas, staging }
    }

    /// What bytes of the host go through. The context is current.
    fn staging(&mut self) -> Result<&mut Staging, Error> {
        match &mut self.staging {
            Some(staging) => Ok(staging),
            none => Ok(none.insert(Staging::new(HALF)?)),
        }
    }

    /// Makes the context current for a call that enqueues. A graph would replay it with the random words, the addresses and
    /// the bytes of now, so a stream that is being captured is refused.
    fn enter(&self) -> Result<Current, Error> {
        let current = Current::make(self.context)?;
        uncaptured(self.stream)?;
        Ok(current)
    }

    /// A kernel, loaded on first use. The context is current.
    fn function(&mut self, kernel: Kernel) -> Result<sys::CUfunction, Error> {
        if let Some(&function) = self.functions.get(&kernel) {
            return Ok(function);
        }
        let module = match self.modules.get(&kernel.module) {
            Some(&module) => module,
            None => {
                // SAFETY: a whole object of NVRTC's, or text that ends with NUL, here or in the crate. What comes from the folder has the
                // checksum it was written with, and the embedder's word that nobody else writes there.
                let load =
                    |code: &[u8]| said("cuModuleLoadData", unsafe { result::module::load_data(code.as_ptr().cast()) });
                let module = self.code.load(kernel.module, self.folder.as_deref(), load)?;
                self.modules.insert(kernel.module, module);
                module
            }
        };
        let no_nul = Error::Driver { call: "cuModuleGetFunction", reason: "a NUL in a kernel's name".into() };
        let name = CString::new(kernel.entry).map_err(|_| no_nul)?;
        // SAFETY: the module is loaded.
        let function = said("cuModuleGetFunction", unsafe { result::module::get_function(module, name) })?;
        self.functions.insert(kernel, function);
        Ok(function)
    }
}

impl Device for Driver {
    fn keep_code_in(&mut self, folder: PathBuf) {
        self.modules.keys().for_each(|&module| self.code.keep(module, &folder));
        self.folder = Some(folder);
    }

    fn may_free(&self) -> Result<(), Error> {
        self.enter().map(drop)
    }

    fn allocate(&mut self, bytes: u64) -> Result<Part, Error> {
        let _current = self.enter()?;
        // SAFETY: the memory is not read before it is written: that is the kernels' business, and checked by tests; all
        // that uses it is enqueued on the same stream.
        match unsafe { result::malloc_async(self.stream, bytes as usize) } {
            Ok(address) => Ok(Part { address, bytes }),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(Error::OutOfMemory { bytes }),
            Err(error) => said("cuMemAllocAsync", Err(error)),
        }
    }

    fn free(&mut self, part: Part) {
        let Ok(_current) = Current::make(self.context) else { return };
        // It stays then, since freeing would spoil the capture.
        if uncaptured(self.stream) == Err(Error::Captured) {
            return;
        }
        // SAFETY: `allocate` gave it, and what uses it has been enqueued before, on the same stream. Nothing can be done
        // about an error.
        let _ = unsafe { result::free_async(part.address, self.stream) };
    }

    fn prepare(&mut self, kernel: Kernel) -> Result<(), Error> {
        self.resident(kernel, BLOCK).map(drop)
    }

    fn resident(&mut self, kernel: Kernel, threads: u32) -> Result<u64, Error> {
        if let Some(&blocks) = self.resident.get(&kernel) {
            return Ok(blocks);
        }
        let _current = self.enter()?;
        let function = self.function(kernel)?;
        let (mut each, mut device) = (0, 0);
        // SAFETY: a place for an int; the kernel is loaded.
        let found = unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, function, threads as i32, 0) };
        said("cuOccupancyMaxActiveBlocksPerMultiprocessor", found.result())?;
        // SAFETY: a place for a device; a context is current.
        said("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut device) }.result())?;
        let multiprocessors =
            attribute(device, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let blocks = each.max(1) as u64 * multiprocessors.max(1) as u64;
        self.resident.insert(kernel, blocks);
        Ok(blocks)
    }

    fn stage(&mut self, bytes: usize) -> Result<(), Error> {
        let _current = self.enter()?;
        if bytes <= self.staging()?.half() {
            return Ok(());
        }
        let larger = Staging::new(bytes)?;
        // SAFETY: the stream lives.
        let done = said("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) });
        // What has not been read stays.
        self.staging.replace(larger).filter(|_| done.is_ok()).iter_mut().for_each(Staging::free);
        done
    }

    fn set(&mut self, word_at: Part, word: u32) -> Result<(), Error> {
        let _current = self.enter()?;
        // SAFETY: a part is memory that is there; this one has a word, and is aligned for it.
        let set = unsafe { sys::cuMemsetD32Async(word_at.address, word, word_at.bytes as usize / 4, self.stream) };
        said("cuMemsetD32Async", set.result())
    }

    fn upload(&mut self, bytes: &[u8], to: Part) -> Result<(), Error> {
        let _current = self.enter()?;
        let stream = self.stream;
        self.staging()?.upload(bytes, to.address, stream)
    }

    fn clear(&mut self, part: Part) -> Result<(), Error> {
        let _current = self.enter()?;
        let bytes = part.bytes as usize;
        // SAFETY: a part is memory that is there.
        said("cuMemsetD8Async", unsafe { result::memset_d8_async(part.address, 0, bytes, self.stream) })
    }

    fn copy(&mut self, from: Part, to: Part) -> Result<(), Error> {
        let _current = self.enter()?;
        let bytes = from.bytes as usize;
        // SAFETY: parts are memory that is there.
        said("cuMemcpyDtoDAsync", unsafe { result::memcpy_dtod_async(to.address, from.address, bytes, self.stream) })
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), Error> {
        let _current = if launch.capturable { Current::make(self.context)? } else { self.enter()? };
        let function = self.function(launch.kernel)?;
        let mut params = Arguments::new(&launch);
        let [x, y, z] = launch.grid;
        // SAFETY: the arguments are those of the kernel, as tests of every kernel assert, and are read before the call
        // returns; what it does with its memory is checked on the processor, under a sanitizer.
        let launched = unsafe {
            let (grid, block) = ((x, y, z), (launch.block, 1, 1));
            result::launch_kernel(function, grid, block, 0, self.stream, &mut params.pointers())
        };
        said(launch.kernel.entry, launched)
    }

    fn use_cublas(&mut self, workspace: Part) -> Result<(), Error> {
        let driver = start()?;
        let _current = self.enter()?;
        // SAFETY: the stream is the context's; the memory is cuBLAS's alone until `free` has waited for the stream.
        self.cublas = Some(unsafe { Cublas::find(driver.0, self.stream, workspace) }?);
        Ok(())
    }

    fn multiply(&mut self, gemm: &Gemm) -> Result<(), Error> {
        let _current = self.enter()?;
        self.cublas.as_ref().ok_or(Error::NoCublas)?.multiply(gemm)
    }

    fn download(&mut self, from: Part, bytes: &mut [u8]) -> Result<(), Error> {
        let _current = self.enter()?;
        // SAFETY: as long as the part; waited for, so that nothing writes the bytes after the call.
        let (copied, done) = unsafe {
            let copied = result::memcpy_dtoh_async(bytes, from.address, self.stream);
            (copied, result::stream::synchronize(self.stream))
        };
        said("cuMemcpyDtoHAsync", copied)?;
        said("cuStreamSynchronize", done)?;
        self.staging.iter_mut().for_each(Staging::all_read);
        Ok(())
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        let _current = self.enter()?;
        // SAFETY: the stream lives.
        said("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })?;
        self.staging.iter_mut().for_each(Staging::all_read);
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Ok(current) = Current::make(self.context) else { return };
        // All of it stays then, since waiting would spoil the capture.
        if uncaptured(self.stream) == Err(Error::Captured) {
            return std::mem::forget(self.cublas.take());
        }
        // SAFETY: all handles are this value's own and used no more; what is enqueued is waited for. Nothing can be
        // done about an error.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            self.cublas = None;
            self.staging.iter_mut().for_each(Staging::free);
            for (_, module) in self.modules.drain() {
                let _ = result::module::unload(module);
            }
            if let Some(device) = self.own {
                if !self.stream.is_null() {
                    let _ = result::stream::destroy(self.stream);
                }
                drop(current);
                let _ = result::primary_ctx::release(device);
            }
        }
    }
}

/// A launch's arguments where the driver looks for them: the parameters, aligned, then addresses.
pub(crate) struct Arguments {
    params: Vec<u64>,
    addresses: Vec<u64>,
}

impl Arguments {
    pub(crate) fn new(launch: &Launch<'_>) -> Self {
        let mut params = vec![0u64; launch.params.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut params)[..launch.params.len()].copy_from_slice(launch.params);
        Arguments { params, addresses: launch.parts.iter().map(|part| part.address).collect() }
    }

    /// A pointer to each argument.
    pub(crate) fn pointers(&mut self) -> Vec<*mut c_void> {
        let addresses = self.addresses.iter_mut().map(|address| std::ptr::from_mut(address).cast());
        std::iter::once(self.params.as_mut_ptr().cast()).chain(addresses).collect()
    }
}
