use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::handle::{self, Immutable, kind};
use crate::pointers::text;
use crate::status::lgreco_status;
use core::ffi::c_char;
use lgreco_train::CoreError;

/// A device that measures and compresses, made by lgreco_context_create. NULL in place of a context means the CPU. Any
/// number of threads may use a context. Handles that were made with a context remain valid after the context is
/// destroyed.
pub struct lgreco_context {
    _private: [u8; 0],
}

kind!(lgreco_context, "context", b"lgcontxt", Device);

impl Immutable for lgreco_context {}

/// Returns the device of a context, or the CPU for NULL.
///
/// # Safety
/// `context` is null, or points to a live handle of any kind.
pub(super) unsafe fn device(context: *const lgreco_context) -> Result<Device> {
    // SAFETY: the caller meets the safety requirements of this function.
    if context.is_null() { Ok(Device::Cpu) } else { unsafe { handle::shared(context) }.cloned() }
}

/// Opens the device of this name: "cpu", or a kind of GPU. A colon and a number may follow the kind; the default is 0.
fn open(name: &str) -> Result<Device> {
    let expected = "cpu, cuda, cuda:NUMBER or wgpu";
    let unknown = || Failure::from(CoreError::UnknownName { what: "device", expected });
    let (kind, number) = name.split_once(':').unwrap_or((name, "0"));
    let number = number.parse().map_err(|_| unknown())?;
    match kind {
        "cpu" => Device::cpu(number),
        "cuda" => Device::cuda(number),
        "wgpu" => Device::wgpu(number),
        _ => Err(unknown()),
    }
}

/// Makes a context for a device. "cpu" is the CPU. "cuda" is the NVIDIA GPU with ordinal 0, and "cuda:1" is the GPU
/// with ordinal 1; both need a library with the feature `cuda`. "wgpu" is the GPU that wgpu prefers for high
/// performance, through Vulkan, Metal or DirectX 12; it needs the feature `wgpu`.
///
/// A GPU computes the error rows and payloads of QSGD, EDEN, TopK and PowerSGD from values in host memory. The CPU does
/// everything else. With CUDA, the CPU also handles PowerSGD with ranks above 1024 or sides above 2^31, and QSGD with
/// bucket sizes that are not a power of two from 64 to 4096.
///
/// Fails with LGRECO_UNKNOWN_NAME for another name, and with LGRECO_NOT_BUILT_IN when this build does not support the
/// kind of device. Fails with LGRECO_UNAVAILABLE when this machine has no usable device of the kind, and with
/// LGRECO_DEVICE when the device's driver fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_context_create(
    device: *const c_char,
    context: *mut *mut lgreco_context,
) -> lgreco_status {
    create!(context, || open(text(device, "device")?))
}

/// Frees a context and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_context_destroy(context: *mut *mut lgreco_context) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(context) }
}
