use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::handle::{self, Immutable, kind};
use crate::pointers::text;
use crate::status::lgreco_status;
use core::ffi::c_char;
use lgreco_train::CoreError;

/// A device that measures and compresses (lgreco_context_create); NULL wherever one is asked for is the CPU. Any number of threads
/// may use it, and what was made with it does not need it afterwards.
pub struct lgreco_context {
    _private: [u8; 0],
}

kind!(lgreco_context, "context", b"lgcontxt", Device);

impl Immutable for lgreco_context {}

/// The device of a context; the CPU for NULL.
///
/// # Safety
/// `context` is null, or points to a live handle of any kind.
pub(super) unsafe fn device(context: *const lgreco_context) -> Result<Device> {
    // SAFETY: passed on.
    if context.is_null() { Ok(Device::Cpu) } else { unsafe { handle::shared(context) }.cloned() }
}

/// "cpu", or a kind of GPU with a number behind a colon, which is 0 unless given.
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

/// Makes a context of a device: "cpu"; "cuda", an NVIDIA GPU, or "cuda:1" by its ordinal, in libraries built with the feature
/// `cuda`; "wgpu", the fastest GPU through Vulkan, Metal or DirectX 12, in libraries built with the feature `wgpu`.
///
/// On a GPU error rows and payloads of QSGD, TopK and PowerSGD are made, of values in host memory; everything else is done on
/// the CPU, and so are on CUDA PowerSGD with ranks above 1024 and QSGD with buckets that are no power of two from 64 to 4096.
///
/// LGRECO_UNKNOWN_NAME for another device; LGRECO_NOT_BUILT_IN when this build has no such devices; LGRECO_UNAVAILABLE when
/// this machine has none, or none that can be used; LGRECO_DEVICE when its driver fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_context_create(
    device: *const c_char,
    context: *mut *mut lgreco_context,
) -> lgreco_status {
    create!(context, || open(text(device, "device")?))
}

/// Frees a context and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_context_destroy(context: *mut *mut lgreco_context) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(context) }
}
