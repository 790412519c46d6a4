use crate::cuda::{self, OnDevice};
use crate::handle::{self, kind};
use crate::pointers::write;
use crate::status::lgreco_status;
use core::ffi::c_void;

/// An NVIDIA GPU that works on pointers to its own memory, on one stream, in libraries built with the feature `cuda`.
/// Calls say in their first word whether their work is enqueued there when they return, or done.
pub struct lgreco_cuda {
    _private: [u8; 0],
}

kind!(lgreco_cuda, "cuda", b"lgcuda\0\0", Box<dyn OnDevice>);

/// Makes a handle for device number `ordinal`, from 0, in its primary context (PyTorch's, and that of the CUDA
/// runtime), on a stream of its own, which does not wait for the default stream.
///
/// LGRECO_NOT_BUILT_IN without the feature `cuda`; LGRECO_UNAVAILABLE when the driver or the device is missing or
/// too old, or no kernels come with the library for it: the message says which; LGRECO_DEVICE when the driver
/// fails, also for want of memory for a context or a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_create(ordinal: u32, cuda: *mut *mut lgreco_cuda) -> lgreco_status {
    create!(cuda, || cuda::open(ordinal))
}

/// Makes a handle for a stream, a cudaStream_t or CUstream, and its CUDA context, from any thread; of NULL, the default
/// stream, the context is the one that is current on the calling thread. Both must outlive the handle. While the stream is
/// being captured into a graph, calls are refused with LGRECO_DEVICE.
///
/// As lgreco_cuda_create; LGRECO_UNAVAILABLE also for a default stream when no context is current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_create_on_stream(
    stream: *mut c_void,
    cuda: *mut *mut lgreco_cuda,
) -> lgreco_status {
    create!(cuda, || cuda::on_stream(stream))
}

/// Done: waits for the stream, frees the handle with its memory and sets the caller's pointer to NULL; NULL, or a pointer
/// to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_destroy(cuda: *mut *mut lgreco_cuda) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(cuda) }
}

/// Tells the bytes of device memory that the handle holds: what calls have worked in so far, and what was reserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_held_bytes(cuda: *mut lgreco_cuda, bytes: *mut u64) -> lgreco_status {
    call!(cuda, |cuda| write(bytes, "bytes", || Ok(cuda.held_bytes())))
}

/// Done: waits for all that is in the stream.
///
/// LGRECO_DEVICE also when something enqueued before has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_synchronize(cuda: *mut lgreco_cuda) -> lgreco_status {
    call!(cuda, |cuda| cuda.synchronise())
}

/// Done: whether all that lgreco_cuda_encode_to_device and lgreco_cuda_decode_on_device have enqueued since the last
/// check could be done. Reads no gradient. The message names the first call that failed by its number, from 0, among all calls of both kinds
/// that returned LGRECO_OK since the last check. Calls after it may have failed too, and are not told of: nothing of
/// what came out of it or of them may be used. At least one check is due in 4096 such calls.
///
/// LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PAYLOAD_BODY; LGRECO_DEVICE where the
/// driver fails: then no call is named and nothing is known of any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_check(cuda: *mut lgreco_cuda) -> lgreco_status {
    call!(cuda, |cuda| cuda.check())
}
