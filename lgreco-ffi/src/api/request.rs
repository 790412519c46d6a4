use super::context::{LGRECO_DEVICE_CPU, LGRECO_DEVICE_CUDA, lgreco_device};
use crate::pointers::SizedStruct;
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use lgreco_train::exchange::{Request, Round};

/// A collective that the caller is to perform: LGRECO_REQUEST_...
pub type lgreco_request_kind = u32;

/// None: there is nothing left to do.
pub const LGRECO_REQUEST_NONE: lgreco_request_kind = 0;
/// Replace the `count` f32 of `buffer` by their sums over the workers, as the collective's `all_reduce_sum`.
pub const LGRECO_REQUEST_ALL_REDUCE_SUM: lgreco_request_kind = 1;
/// Fill `buffer` with `length` bytes of every worker, as the collective's `all_gather`.
pub const LGRECO_REQUEST_ALL_GATHER: lgreco_request_kind = 2;
/// Fill `buffer` with lens[i] bytes of worker i, as the collective's `all_gather_each`.
pub const LGRECO_REQUEST_ALL_GATHER_EACH: lgreco_request_kind = 3;
/// Replace the `length` bytes of `buffer` by those of worker `root`, as the collective's `broadcast`.
pub const LGRECO_REQUEST_BROADCAST: lgreco_request_kind = 4;
/// Send worker i the next send_lens[i] bytes of `send`, and receive the next received_lens[i] of `received` from it, as
/// the collective's `all_to_all`.
pub const LGRECO_REQUEST_ALL_TO_ALL: lgreco_request_kind = 5;
/// Replace, of the `count` f32 of `buffer`, the next lens[i], i being this worker, by their sums over the workers, as the
/// collective's `reduce_scatter_sum`.
pub const LGRECO_REQUEST_REDUCE_SCATTER_SUM: lgreco_request_kind = 6;
/// As LGRECO_REQUEST_ALL_REDUCE_SUM, of `count` bf16; the collective's `all_reduce_sum_bf16`. Only `reduce_dtype`
/// LGRECO_DTYPE_BF16 asks for it.
pub const LGRECO_REQUEST_ALL_REDUCE_SUM_BF16: lgreco_request_kind = 7;
/// As LGRECO_REQUEST_REDUCE_SCATTER_SUM, of `count` bf16; likewise.
pub const LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16: lgreco_request_kind = 8;

/// A collective to perform, blocking or not, on memory of the library's. Begin with LGRECO_REQUEST_INIT.
///
/// Fields that the kind does not speak of are 0 or NULL. Pointers are valid until the next call on the bucket, or for
/// lgreco_controller_control on the controller, which comes once the collective is done. All workers are asked for the
/// same ones with the same lengths, and must start those of different buckets in the same order. Later versions may
/// ask for other kinds, only where a new option asks for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_request {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// LGRECO_REQUEST_...
    pub kind: lgreco_request_kind,
    /// Whose memory the pointers but `lens`, `send_lens` and `received_lens` are to: LGRECO_DEVICE_CPU; of
    /// lgreco_cuda_bucket_next LGRECO_DEVICE_CUDA.
    pub memory: lgreco_device,
    /// The worker whose bytes all others get.
    pub root: u32,
    /// What is replaced or filled; aligned for f32 where it holds them.
    pub buffer: *mut c_void,
    /// Number of f32 or bf16.
    pub count: usize,
    /// Bytes; of one worker where they are gathered.
    pub length: usize,
    /// Bytes of each worker; of sums that are scattered number of values.
    pub lens: *const u64,
    /// What to send, by receiver.
    pub send: *const u8,
    /// Bytes for each worker.
    pub send_lens: *const u64,
    /// What comes, by sender.
    pub received: *mut u8,
    /// Bytes from each worker.
    pub received_lens: *const u64,
}

impl Default for lgreco_request {
    fn default() -> Self {
        lgreco_request {
            struct_size: size_of::<lgreco_request>(),
            kind: LGRECO_REQUEST_NONE,
            memory: LGRECO_DEVICE_CPU,
            root: 0,
            buffer: null_mut(),
            count: 0,
            length: 0,
            lens: null(),
            send: null(),
            send_lens: null(),
            received: null_mut(),
            received_lens: null(),
        }
    }
}

// SAFETY: repr(C), starts with a usize, numbers and raw pointers only.
unsafe impl SizedStruct for lgreco_request {
    const WHAT: &'static str = "request";
}

impl lgreco_request {
    pub(super) fn of(request: Option<Request<'_>>, world_size: u32) -> lgreco_request {
        let none = lgreco_request::default();
        match request {
            None => none,
            Some(Request::AllReduceSum { values }) => lgreco_request {
                kind: LGRECO_REQUEST_ALL_REDUCE_SUM,
                buffer: values.as_mut_ptr().cast(),
                count: values.len(),
                ..none
            },
            Some(Request::AllReduceSumBf16 { values }) => lgreco_request {
                kind: LGRECO_REQUEST_ALL_REDUCE_SUM_BF16,
                buffer: values.as_mut_ptr().cast(),
                count: values.len(),
                ..none
            },
            Some(Request::AllGather { buffer }) => lgreco_request {
                kind: LGRECO_REQUEST_ALL_GATHER,
                buffer: buffer.as_mut_ptr().cast(),
                length: buffer.len() / world_size as usize,
                ..none
            },
            Some(Request::AllGatherEach { lens, buffer }) => lgreco_request {
                kind: LGRECO_REQUEST_ALL_GATHER_EACH,
                buffer: buffer.as_mut_ptr().cast(),
                lens: lens.as_ptr(),
                ..none
            },
            Some(Request::Broadcast { root, bytes }) => lgreco_request {
                kind: LGRECO_REQUEST_BROADCAST,
                root,
                buffer: bytes.as_mut_ptr().cast(),
                length: bytes.len(),
                ..none
            },
            Some(Request::AllToAll { send, send_lens, received, received_lens }) => lgreco_request {
                kind: LGRECO_REQUEST_ALL_TO_ALL,
                send: send.as_ptr(),
                send_lens: send_lens.as_ptr(),
                received: received.as_mut_ptr(),
                received_lens: received_lens.as_ptr(),
                ..none
            },
            Some(Request::ReduceScatterSum { lens, values }) => lgreco_request {
                kind: LGRECO_REQUEST_REDUCE_SCATTER_SUM,
                buffer: values.as_mut_ptr().cast(),
                count: values.len(),
                lens: lens.as_ptr(),
                ..none
            },
            Some(Request::ReduceScatterSumBf16 { lens, values }) => lgreco_request {
                kind: LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16,
                buffer: values.as_mut_ptr().cast(),
                count: values.len(),
                lens: lens.as_ptr(),
                ..none
            },
        }
    }

    /// One on a device's memory.
    pub(super) fn on_cuda(kind: lgreco_request_kind, address: u64, count: usize, length: usize) -> lgreco_request {
        let buffer = core::ptr::with_exposed_provenance_mut(address as usize);
        lgreco_request { kind, memory: LGRECO_DEVICE_CUDA, buffer, count, length, ..Default::default() }
    }

    /// A collective whose memory is not there yet.
    pub(super) fn announced(round: Option<Round>) -> lgreco_request {
        let (kind, count, length) = match round {
            None => (LGRECO_REQUEST_NONE, 0, 0),
            Some(Round::AllReduceSum { values }) => (LGRECO_REQUEST_ALL_REDUCE_SUM, values, 0),
            Some(Round::AllReduceSumBf16 { values }) => (LGRECO_REQUEST_ALL_REDUCE_SUM_BF16, values, 0),
            Some(Round::ReduceScatterSumBf16 { values, .. }) => (LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16, values, 0),
            Some(Round::AllGather { bytes }) => (LGRECO_REQUEST_ALL_GATHER, 0, bytes),
            Some(Round::AllGatherEach { bytes, .. }) => (LGRECO_REQUEST_ALL_GATHER_EACH, 0, bytes),
            Some(Round::Broadcast { bytes }) => (LGRECO_REQUEST_BROADCAST, 0, bytes),
            Some(Round::AllToAll { send, received }) => (LGRECO_REQUEST_ALL_TO_ALL, 0, send.saturating_add(received)),
            Some(Round::ReduceScatterSum { values, .. }) => (LGRECO_REQUEST_REDUCE_SCATTER_SUM, values, 0),
        };
        lgreco_request { kind, count, length, ..Default::default() }
    }
}
