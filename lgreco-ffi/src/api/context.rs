use crate::device::Device;
use crate::handle::{self, kind};
use crate::message::Message;
use crate::pointers::{Range, disjoint, place, read_struct_or_default, sized_struct, slice_mut};
use crate::status::{Failure, lgreco_status};
use core::ffi::c_char;

/// A device: LGRECO_DEVICE_...
pub type lgreco_device = u32;

/// The CPU.
pub const LGRECO_DEVICE_CPU: lgreco_device = 0;
/// An NVIDIA GPU through CUDA, in libraries built with the feature `cuda`. As LGRECO_DEVICE_WGPU, of values in host
/// memory, but for PowerSGD with ranks above 1024 and QSGD with buckets that are no power of two from 64 to 4096, which are the
/// CPU's; what works on values in the GPU's memory begins
/// with lgreco_cuda_.
pub const LGRECO_DEVICE_CUDA: lgreco_device = 1;
/// Any GPU through Vulkan, Metal or DirectX 12, in libraries built with the feature `wgpu`. Error rows and payloads of QSGD,
/// TopK and PowerSGD are made there, of values in host memory; everything else is done on the CPU.
pub const LGRECO_DEVICE_WGPU: lgreco_device = 2;

/// Where a context works. Begin with LGRECO_CONTEXT_OPTIONS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_context_options {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// LGRECO_DEVICE_CPU, the default.
    pub device: lgreco_device,
    /// Which device of that kind, from 0, the default: CUDA's ordinal; of LGRECO_DEVICE_WGPU there is one, the fastest
    /// adapter.
    pub device_index: u32,
    /// Where lgreco_context_create writes why it failed, as there is no handle then to ask: text with a NUL at its end, cut
    /// to `message_capacity`, and "" when it succeeds. NULL, the default, for nowhere. Not used after the call.
    pub message: *mut c_char,
    /// Bytes there; 512 are always enough.
    pub message_capacity: usize,
}

// SAFETY: repr(C), starts with a usize; integers and a raw pointer only.
sized_struct!("context options", lgreco_context_options {});

/// A device, and the message about the last failed call that was given the context.
///
/// Other handles are made with a context, but do not need it afterwards.
pub struct lgreco_context {
    _private: [u8; 0],
}

pub(crate) struct Context {
    pub(crate) device: Device,
}

kind!(lgreco_context, "context", b"lgcontxt", Context, device: device);

/// Makes a context. `options` may be NULL: the CPU.
///
/// LGRECO_NOT_BUILT_IN when this build has no such devices, LGRECO_UNAVAILABLE when this machine has none, or none that
/// can be used, LGRECO_DEVICE when its driver fails. What is missing, or failed, is written to the options' `message`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_context_create(
    options: *const lgreco_context_options,
    context: *mut *mut lgreco_context,
) -> lgreco_status {
    handle::call_without_handle(|| {
        // SAFETY: README.md, pointers.
        let (options, context) = unsafe {
            let context = place(context, "context")?;
            context.write(core::ptr::null_mut());
            (read_struct_or_default(options)?, context)
        };
        let message = Range::of(options.message, options.message_capacity, "message");
        disjoint(message, &[Range::of(context, 1, "context")])?;
        // SAFETY: README.md, pointers.
        let room = unsafe { slice_mut(options.message.cast::<u8>(), options.message_capacity, "message")? };
        let device = match options.device {
            LGRECO_DEVICE_CPU => Device::cpu(options.device_index),
            LGRECO_DEVICE_CUDA => Device::cuda(options.device_index),
            LGRECO_DEVICE_WGPU => Device::wgpu(options.device_index),
            found => Err(Failure::UnknownConstant { what: "device", found }),
        };
        let mut message = Message::empty();
        if let Err(failure) = &device {
            message.set(format_args!("{failure}"));
        }
        message.copy_to(room);
        let device = device?;
        context.write(handle::new::<lgreco_context>(Context { device }));
        Ok(())
    })
}

/// Frees a context and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_context_destroy(context: *mut *mut lgreco_context) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(context) }
}

/// What went wrong in the last failed call that was given the context; empty if none has failed. Valid until the next
/// such call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_context_message(context: *const lgreco_context) -> *const c_char {
    // SAFETY: README.md, handles.
    unsafe { handle::message(context) }
}
