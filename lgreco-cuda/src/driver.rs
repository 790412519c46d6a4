//! Implements [`Device`] with the CUDA driver: a context, a stream and modules. Every call makes its context current,
//! and afterwards restores the previously current context.

use crate::device::{BLOCK, Device, Launch, Part};
use crate::error::version;
use crate::kernels::Kernel;
use crate::libcuda::{Cuda, Failure, INVALID_CONTEXT, NO_DEVICE, OUT_OF_MEMORY, STREAM_CAPTURE_IMPLICIT};
use crate::modules::Modules;
use crate::shipped::{self, Architecture};
use crate::staging::{HALF, Staging};
use crate::{Error, Result};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUfunction, CUstream, CUstream_flags};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// The initialised driver, and the CUDA version that it supports.
#[derive(Clone, Copy)]
pub(crate) struct Started {
    cuda: &'static Cuda,
    /// Major and minor version.
    pub(crate) version: (u32, u32),
}

/// Loads and initialises the driver.
pub(crate) fn start() -> Result<Started> {
    let cuda = Cuda::load()?;
    let mut number = 0;
    // SAFETY: the pointer is valid for an int.
    unsafe { cuda.cuDriverGetVersion(&mut number) }?;
    let found = (number as u32 / 1000, number as u32 % 1000 / 10);
    if found < shipped::DRIVER {
        let (needed, found) = (version(shipped::DRIVER), version(found));
        return Err(Error::TooOld { what: "the CUDA version of the NVIDIA driver", needed, found });
    }
    // SAFETY: CUDA defines no flags, so 0 is the only valid value.
    match unsafe { cuda.cuInit(0) } {
        Err(failure) if failure.code == NO_DEVICE => Err(Error::NoDevice { ordinal: 0, reason: failure.reason }),
        outcome => {
            outcome?;
            Ok(Started { cuda, version: found })
        }
    }
}

impl Started {
    /// Number of devices.
    pub(crate) fn count(self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the pointer is valid for an int.
        unsafe { self.cuda.cuDeviceGetCount(&mut count) }?;
        Ok(count as usize)
    }

    /// The device with this number.
    pub(crate) fn device(self, ordinal: usize) -> Result<CUdevice> {
        let mut device = 0;
        // SAFETY: the pointer is valid for a device.
        let found = unsafe { self.cuda.cuDeviceGet(&mut device, i32::try_from(ordinal).unwrap_or(i32::MAX)) };
        found.map(|()| device).map_err(|failure| Error::NoDevice { ordinal, reason: failure.reason })
    }

    /// A device's name, and its memory in bytes.
    pub(crate) fn name_and_memory(self, device: CUdevice) -> Result<(String, u64)> {
        let (mut name, mut bytes) = ([0u8; 256], 0);
        // SAFETY: the pointers are valid for these sizes, and the driver returned the device.
        unsafe {
            self.cuda.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device)?;
            self.cuda.cuDeviceTotalMem_v2(&mut bytes, device)?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok((name.to_string_lossy().into_owned(), bytes as u64))
    }

    fn attribute(self, device: CUdevice, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the pointer is valid for an int, and the driver returned the device.
        unsafe { self.cuda.cuDeviceGetAttribute(&mut value, attribute as i32, device) }?;
        Ok(value)
    }

    /// A device's compute capability as a number, such as 80 for 8.0.
    pub(crate) fn compute_capability(self, device: CUdevice) -> Result<u32> {
        use CUdevice_attribute::*;
        let major = self.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok((10 * major + self.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?) as u32)
    }

    /// Returns the architecture whose kernels a device runs. `Err` if the crate has no kernels for the device, or if
    /// the device lacks memory pools.
    pub(crate) fn architecture(self, device: CUdevice) -> Result<Architecture> {
        let architecture = shipped::architecture(self.version, self.compute_capability(device)?)?;
        if self.attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
            return Err(Error::NoPools);
        }
        Ok(architecture)
    }
}

/// A device's context and stream.
pub(crate) struct Driver {
    cuda: &'static Cuda,
    context: CUcontext,
    stream: CUstream,
    /// The device, if this value retains the device's primary context and owns the stream.
    own: Option<CUdevice>,
    architecture: Architecture,
    /// The loaded modules, shared by all backends of the context. `None` once this value no longer uses the modules.
    modules: Option<Arc<Modules>>,
    functions: HashMap<Kernel, CUfunction>,
    /// For each kernel, the number of blocks that the device runs at the same time.
    resident: HashMap<Kernel, u64>,
    staging: Option<Staging>,
}

// SAFETY: any thread may use the driver's handles, because every call makes the context current itself.
unsafe impl Send for Driver {}

/// Keeps a context current on this thread during its lifetime.
struct Current(&'static Cuda);

impl Current {
    fn make(cuda: &'static Cuda, context: CUcontext) -> Result<Self> {
        // SAFETY: the context lives as long as the device.
        unsafe { cuda.cuCtxPushCurrent_v2(context) }?;
        Ok(Current(cuda))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: pops the context that `make` pushed.
        let _ = unsafe { self.0.cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// `Err` if the stream is being captured. The stream's context must be current.
fn uncaptured(cuda: &Cuda, stream: CUstream) -> Result<()> {
    let mut status = 0;
    // SAFETY: the pointer is valid for a status; the stream is alive.
    match unsafe { cuda.cuStreamIsCapturing(stream, &mut status) } {
        // For the default stream, the driver returns this code if the default stream would have to wait for a stream
        // that is being captured.
        Err(failure) if failure.code == STREAM_CAPTURE_IMPLICIT => return Err(Error::Captured),
        outcome => outcome?,
    }
    if status == 0 { Ok(()) } else { Err(Error::Captured) }
}

impl Driver {
    pub(crate) fn new(ordinal: usize) -> Result<Self> {
        let started = start()?;
        let device = started.device(ordinal)?;
        let (cuda, architecture) = (started.cuda, started.architecture(device)?);
        let mut context = null_mut();
        // SAFETY: the driver returned the device. The next line makes `driver`; dropping it releases the context, also
        // after an error.
        unsafe { cuda.cuDevicePrimaryCtxRetain(&mut context, device) }?;
        let mut driver = Driver::of(cuda, context, null_mut(), Some(device), architecture);
        let current = Current::make(cuda, context)?;
        // SAFETY: the pointer is valid for a stream.
        unsafe { cuda.cuStreamCreate(&mut driver.stream, CUstream_flags::CU_STREAM_NON_BLOCKING as u32) }?;
        driver.staging()?;
        drop(current);
        Ok(driver)
    }

    /// Makes a driver on an existing stream, in the context of that stream. A default stream belongs to the current
    /// context.
    ///
    /// # Safety
    /// The stream and its context outlive the returned value.
    pub(crate) unsafe fn with_stream(stream: *mut c_void) -> Result<Self> {
        let (started, stream) = (start()?, stream.cast());
        let cuda = started.cuda;
        let mut context = null_mut();
        let none = || Error::NoDevice { ordinal: 0, reason: "no context is current on this thread".into() };
        // SAFETY: the pointer is valid for a context; the stream is alive.
        match unsafe { cuda.cuStreamGetCtx(stream, &mut context) } {
            Err(failure) if failure.code == INVALID_CONTEXT => return Err(none()),
            outcome => outcome?,
        }
        if context.is_null() {
            return Err(none());
        }
        let _current = Current::make(cuda, context)?;
        uncaptured(cuda, stream)?;
        let mut device = 0;
        // SAFETY: the pointer is valid for a device.
        unsafe { cuda.cuCtxGetDevice(&mut device) }?;
        let mut driver = Driver::of(cuda, context, stream, None, started.architecture(device)?);
        driver.staging()?;
        Ok(driver)
    }

    fn of(
        cuda: &'static Cuda,
        context: CUcontext,
        stream: CUstream,
        own: Option<CUdevice>,
        architecture: Architecture,
    ) -> Self {
        let (modules, functions, resident) = (Some(Modules::of(context)), HashMap::new(), HashMap::new());
        Driver { cuda, context, stream, own, architecture, modules, functions, resident, staging: None }
    }

    /// Returns the page-locked memory through which host bytes are uploaded. The context must be current.
    fn staging(&mut self) -> Result<&mut Staging> {
        match &mut self.staging {
            Some(staging) => Ok(staging),
            none => Ok(none.insert(Staging::new(self.cuda, HALF)?)),
        }
    }

    fn current(&self) -> Result<Current> {
        Current::make(self.cuda, self.context)
    }

    /// Makes the context current for a call that enqueues work. Refuses a stream that is being captured, because a
    /// replay of the graph would repeat the call's random words, addresses and bytes.
    fn enter(&self) -> Result<Current> {
        let current = self.current()?;
        uncaptured(self.cuda, self.stream)?;
        Ok(current)
    }

    /// The function of a kernel, loaded on first use. The context must be current.
    fn function(&mut self, kernel: Kernel) -> Result<CUfunction> {
        if let Some(&function) = self.functions.get(&kernel) {
            return Ok(function);
        }
        let (cuda, architecture) = (self.cuda, self.architecture);
        let load = || {
            let code = shipped::code(kernel.module, architecture)?;
            let mut module = null_mut();
            // SAFETY: the code comes with the crate, as a whole object file or as text that ends with NUL.
            unsafe { cuda.cuModuleLoadData(&mut module, code.as_ptr().cast()) }?;
            Ok(module)
        };
        let modules = self.modules.as_ref().expect("modules, until the driver is dropped");
        let module = modules.get(kernel.module, load)?;
        let no_nul = Error::Driver { call: "cuModuleGetFunction", reason: "a NUL in a kernel's name".into() };
        let name = CString::new(kernel.entry).map_err(|_| no_nul)?;
        let mut function = null_mut();
        // SAFETY: the module is loaded, and the name ends with NUL.
        unsafe { self.cuda.cuModuleGetFunction(&mut function, module, name.as_ptr()) }?;
        self.functions.insert(kernel, function);
        Ok(function)
    }

    /// Waits for the stream. The context must be current.
    fn wait(&self) -> Result<(), Failure> {
        // SAFETY: the stream is alive.
        unsafe { self.cuda.cuStreamSynchronize(self.stream) }
    }
}

impl Device for Driver {
    fn may_free(&self) -> Result<()> {
        self.enter().map(drop)
    }

    fn allocate(&mut self, bytes: u64) -> Result<Part> {
        let _current = self.enter()?;
        let mut address = 0;
        // SAFETY: kernels write new memory before they read it, which tests check. All work that uses the memory is
        // enqueued on the same stream.
        match unsafe { self.cuda.cuMemAllocAsync(&mut address, bytes as usize, self.stream) } {
            Err(failure) if failure.code == OUT_OF_MEMORY => Err(Error::OutOfMemory { bytes }),
            outcome => {
                outcome?;
                Ok(Part { address, bytes })
            }
        }
    }

    fn free(&mut self, part: Part) {
        let Ok(_current) = self.current() else { return };
        // During a capture the memory stays allocated, because freeing would invalidate the capture.
        if uncaptured(self.cuda, self.stream) == Err(Error::Captured) {
            return;
        }
        // SAFETY: the part comes from `allocate`. All work that uses the part was enqueued earlier on the same stream.
        // `free` cannot return an error, so an error is ignored.
        let _ = unsafe { self.cuda.cuMemFreeAsync(part.address, self.stream) };
    }

    fn prepare(&mut self, kernel: Kernel) -> Result<()> {
        self.resident(kernel, BLOCK).map(drop)
    }

    fn resident(&mut self, kernel: Kernel, threads: u32) -> Result<u64> {
        if let Some(&blocks) = self.resident.get(&kernel) {
            return Ok(blocks);
        }
        let _current = self.enter()?;
        let function = self.function(kernel)?;
        let (mut each, mut device, mut multiprocessors) = (0, 0, 0);
        let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as i32;
        // SAFETY: the pointers are valid for two ints and a device. The kernel is loaded, and its context is current.
        unsafe {
            let block = threads as i32;
            self.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, function, block, 0)?;
            self.cuda.cuCtxGetDevice(&mut device)?;
            self.cuda.cuDeviceGetAttribute(&mut multiprocessors, count, device)?;
        }
        let blocks = each.max(1) as u64 * multiprocessors.max(1) as u64;
        self.resident.insert(kernel, blocks);
        Ok(blocks)
    }

    fn stage(&mut self, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        if bytes <= self.staging()?.half() {
            return Ok(());
        }
        let larger = Staging::new(self.cuda, bytes)?;
        let done = self.wait();
        // If the wait failed, the old memory is not freed, because the device may still read it.
        self.staging.replace(larger).filter(|_| done.is_ok()).iter_mut().for_each(Staging::free);
        Ok(done?)
    }

    fn set(&mut self, word_at: Part, word: u32) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: every part is valid memory. `word_at` has the size and the alignment of a word.
        Ok(unsafe { self.cuda.cuMemsetD32Async(word_at.address, word, word_at.bytes as usize / 4, self.stream) }?)
    }

    fn upload(&mut self, bytes: &[u8], to: Part) -> Result<()> {
        let _current = self.enter()?;
        let stream = self.stream;
        self.staging()?.upload(bytes, to.address, stream)
    }

    fn clear(&mut self, part: Part) -> Result<()> {
        let _current = self.enter()?;
        let bytes = part.bytes as usize;
        // SAFETY: every part is valid memory.
        Ok(unsafe { self.cuda.cuMemsetD8Async(part.address, 0, bytes, self.stream) }?)
    }

    fn copy(&mut self, from: Part, to: Part) -> Result<()> {
        let _current = self.enter()?;
        let bytes = from.bytes as usize;
        // SAFETY: every part is valid memory.
        Ok(unsafe { self.cuda.cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, self.stream) }?)
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<()> {
        let _current = if launch.capturable { self.current()? } else { self.enter()? };
        let function = self.function(launch.kernel)?;
        let mut params = Arguments::new(&launch);
        // SAFETY: tests of every kernel assert that these arguments have the number and types that the kernel declares.
        // The driver reads the arguments before the call returns. Tests run the kernels on the processor under
        // sanitizers, which check all memory accesses.
        let launched = unsafe {
            let (blocks, block, stream) = (launch.blocks, launch.block, self.stream);
            let mut params = params.pointers();
            self.cuda.cuLaunchKernel(function, blocks, 1, 1, block, 1, 1, 0, stream, params.as_mut_ptr(), null_mut())
        };
        launched.map_err(|failure| Error::Driver { call: launch.kernel.entry, reason: failure.reason })
    }

    fn download(&mut self, from: Part, bytes: &mut [u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: `bytes` is as long as the part. The wait ensures that nothing writes to `bytes` after the call.
        let copied = unsafe {
            self.cuda.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from.address, bytes.len(), self.stream)
        };
        let done = self.wait();
        copied?;
        done?;
        self.staging.iter_mut().for_each(Staging::all_read);
        Ok(())
    }

    fn synchronise(&mut self) -> Result<()> {
        let _current = self.enter()?;
        self.wait()?;
        self.staging.iter_mut().for_each(Staging::all_read);
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Ok(current) = self.current() else { return };
        // During a capture, `drop` frees nothing, because waiting would invalidate the capture.
        if uncaptured(self.cuda, self.stream) == Err(Error::Captured) {
            return self.modules.take().into_iter().for_each(Modules::leave);
        }
        // SAFETY: all handles belong to this value and are not used again. The wait ends all enqueued work first.
        // `drop` cannot return an error, so errors are ignored.
        unsafe {
            let _ = self.wait();
            self.staging.iter_mut().for_each(Staging::free);
            self.modules.take().into_iter().for_each(|modules| modules.give_back(self.cuda));
            if let Some(device) = self.own {
                if !self.stream.is_null() {
                    let _ = self.cuda.cuStreamDestroy_v2(self.stream);
                }
                drop(current);
                let _ = self.cuda.cuDevicePrimaryCtxRelease_v2(device);
            }
        }
    }
}

/// The arguments of a launch in the layout that the driver expects: the aligned parameters, and then the addresses.
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
