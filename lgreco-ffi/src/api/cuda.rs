use crate::cuda::{self, OnDevice};
use crate::handle::{self, kind};
use crate::pointers::write;
use crate::status::lgreco_status;
use core::ffi::c_void;

/// An NVIDIA GPU with one stream, for calls on pointers to GPU memory. Needs a library with the feature `cuda`. A call
/// that is described as "Enqueued" only adds work to the stream. A call that is described as "Blocking" returns when
/// its work is done.
pub struct lgreco_cuda {
    _private: [u8; 0],
}

kind!(lgreco_cuda, "cuda", b"lgcuda\0\0", Box<dyn OnDevice>);

/// Makes a handle for device number `ordinal`, from 0. The handle uses the device's primary context, like PyTorch and
/// the CUDA runtime. The handle has a new stream, which does not wait for the default stream.
///
/// Fails with LGRECO_NOT_BUILT_IN without the feature `cuda`. Fails with LGRECO_UNAVAILABLE when driver or device are
/// missing or too old, or when the library has no kernels for the device. The message names the reason. Fails with
/// LGRECO_DEVICE when the driver fails, for instance because a context or stream cannot be allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_create(ordinal: u32, cuda: *mut *mut lgreco_cuda) -> lgreco_status {
    create!(cuda, || cuda::open(ordinal))
}

/// Makes a handle for a stream (a cudaStream_t or CUstream) and its CUDA context. Any thread may make this call. NULL
/// is the default stream of the context that is current on the calling thread. Stream and context must outlive the
/// handle. While the stream is captured into a graph, calls fail with LGRECO_DEVICE.
///
/// Fails like lgreco_cuda_create, and with LGRECO_UNAVAILABLE for a default stream when no context is current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_create_on_stream(
    stream: *mut c_void,
    cuda: *mut *mut lgreco_cuda,
) -> lgreco_status {
    create!(cuda, || cuda::on_stream(stream))
}

/// Blocking: waits for the stream, frees the handle and its device memory, and sets the caller's pointer to NULL. Does
/// nothing for NULL, or for a pointer to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_destroy(cuda: *mut *mut lgreco_cuda) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(cuda) }
}

/// Reports the number of bytes of device memory that the handle holds: the workspace of past calls and reserved memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_held_bytes(cuda: *mut lgreco_cuda, bytes: *mut u64) -> lgreco_status {
    call!(cuda, |cuda| write(bytes, "bytes", || Ok(cuda.held_bytes())))
}

/// Blocking: waits until all work in the stream is done.
///
/// Fails with LGRECO_DEVICE when the driver fails, or when earlier enqueued work has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_synchronize(cuda: *mut lgreco_cuda) -> lgreco_status {
    call!(cuda, |cuda| cuda.synchronise())
}

/// Blocking: checks all calls of lgreco_cuda_encode_to_device and lgreco_cuda_decode_on_device since the last check.
/// The check does not read gradients. The message has the number of the first failed call. Calls of both kinds that
/// returned LGRECO_OK since the last check are numbered from 0. Later calls may have failed too, but are not reported.
/// After a failed check, do not use the results of the failed call or of later calls. A check is due after at most 4096
/// calls of both kinds.
///
/// Fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PAYLOAD_BODY. LGRECO_DEVICE means that
/// the driver failed. The message then names no call, and any call may have failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_check(cuda: *mut lgreco_cuda) -> lgreco_status {
    call!(cuda, |cuda| cuda.check())
}
