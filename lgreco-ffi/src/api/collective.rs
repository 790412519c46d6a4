use crate::pointers::SizedStruct;
use crate::status::Failure;
use core::ffi::c_void;
use lgreco_train::exchange::{Collective, CollectiveError};
use lgreco_train::gradient::Bf16;

/// The network: blocking collective calls of one worker in a group, which the embedder supplies over NCCL, MPI, Gloo or
/// sockets. Begin with LGRECO_COLLECTIVE_INIT.
///
/// All workers make the same calls in the same order with the same lengths. Every callback gets `user` and returns 0, or
/// an error code of the embedder's: the call that made it then fails with LGRECO_COLLECTIVE. A worker that cannot go on
/// must make the others' calls fail rather than wait for ever. Callbacks are made in the calling thread, during the call,
/// and `stream` is what that call was given. They must not throw, nor use the handle of the call (LGRECO_BUSY).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_collective {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// This worker's number, below `world_size`.
    pub rank: u32,
    /// Number of workers, at least 1; 1 by default.
    pub world_size: u32,
    /// Given to every callback.
    pub user: *mut c_void,
    /// Replaces `values` by their sums over the workers: the same bits on each, NaN stays NaN.
    pub all_reduce_sum:
        Option<unsafe extern "C" fn(user: *mut c_void, values: *mut f32, count: usize, stream: *mut c_void) -> i32>,
    /// Fills `buffer` with `length` bytes of every worker, in rank order: world_size * length in all. This worker's are
    /// in their place already: MPI_Allgather with MPI_IN_PLACE, ncclAllGather with sendbuff = recvbuff + rank * length.
    pub all_gather:
        Option<unsafe extern "C" fn(user: *mut c_void, buffer: *mut u8, length: usize, stream: *mut c_void) -> i32>,
    /// Replaces `length` bytes by those of worker `root`.
    pub broadcast: Option<
        unsafe extern "C" fn(user: *mut c_void, root: u32, bytes: *mut u8, length: usize, stream: *mut c_void) -> i32,
    >,
    /// As `all_gather`, with lens[i] bytes of worker i, which may be 0: MPI_Allgatherv with MPI_IN_PLACE. Only hard
    /// thresholds, SIDCo, AdaComp and LGRECO_ROUTE_SCATTER_REDUCE need it; where it is NULL, their steps fail with
    /// LGRECO_COLLECTIVE.
    pub all_gather_each:
        Option<unsafe extern "C" fn(user: *mut c_void, lens: *const u64, buffer: *mut u8, stream: *mut c_void) -> i32>,
    /// Sends worker i the next send_lens[i] bytes of `send`, and receives the next received_lens[i] of `received` from
    /// it, i ascending. Only LGRECO_ROUTE_SCATTER_REDUCE and LGRECO_ROUTE_SHARDED need it; NULL likewise.
    pub all_to_all: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            send: *const u8,
            send_lens: *const u64,
            received: *mut u8,
            received_lens: *const u64,
            stream: *mut c_void,
        ) -> i32,
    >,
    /// Replaces the next lens[i] of `values`, i being this worker, by their sums over the workers; what becomes of the others
    /// does not matter. Only LGRECO_ROUTE_SHARDED needs it; where it is NULL, `all_reduce_sum` is called for all of the
    /// values, at about twice the traffic.
    pub reduce_scatter_sum: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            lens: *const u64,
            values: *mut f32,
            count: usize,
            stream: *mut c_void,
        ) -> i32,
    >,
    /// As `all_reduce_sum`, of bf16 (the upper halves of f32), rounded once or at every addition. Only
    /// `reduce_dtype` LGRECO_DTYPE_BF16 needs it; where it is NULL, such steps fail with LGRECO_COLLECTIVE.
    pub all_reduce_sum_bf16:
        Option<unsafe extern "C" fn(user: *mut c_void, values: *mut u16, count: usize, stream: *mut c_void) -> i32>,
    /// As `reduce_scatter_sum`, of bf16; where it is NULL, `all_reduce_sum_bf16` is called for all of the values.
    pub reduce_scatter_sum_bf16: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            lens: *const u64,
            values: *mut u16,
            count: usize,
            stream: *mut c_void,
        ) -> i32,
    >,
}

impl Default for lgreco_collective {
    fn default() -> Self {
        lgreco_collective {
            struct_size: size_of::<lgreco_collective>(),
            rank: 0,
            world_size: 1,
            user: core::ptr::null_mut(),
            all_reduce_sum: None,
            all_gather: None,
            broadcast: None,
            all_gather_each: None,
            all_to_all: None,
            reduce_scatter_sum: None,
            all_reduce_sum_bf16: None,
            reduce_scatter_sum_bf16: None,
        }
    }
}

// SAFETY: repr(C), starts with a usize; numbers, raw pointers and nullable function pointers, which the caller promises
// to be callable.
unsafe impl SizedStruct for lgreco_collective {
    const WHAT: &'static str = "collective";
}

/// A caller's collective whose callbacks are there.
pub(crate) struct Callbacks {
    raw: lgreco_collective,
    stream: *mut c_void,
    /// The callback that was needed and is NULL.
    missing: Option<&'static str>,
}

impl lgreco_collective {
    pub(crate) fn callbacks(self, stream: *mut c_void) -> Result<Callbacks, Failure> {
        let there = [
            (self.all_reduce_sum.is_some(), "all_reduce_sum"),
            (self.all_gather.is_some(), "all_gather"),
            (self.broadcast.is_some(), "broadcast"),
        ];
        match there.into_iter().find(|(there, _)| !there) {
            Some((_, what)) => Err(Failure::Null { what }),
            None => Ok(Callbacks { raw: self, stream, missing: None }),
        }
    }
}

impl Callbacks {
    pub(super) fn missing(&self) -> Option<&'static str> {
        self.missing
    }

    /// What the callback `what` has returned, if it is there.
    fn done(&mut self, what: &'static str, code: Option<i32>) -> Result<(), CollectiveError> {
        match code {
            Some(0) => Ok(()),
            Some(code) => Err(CollectiveError { code }),
            None => {
                self.missing = Some(what);
                Err(CollectiveError::UNSUPPORTED)
            }
        }
    }
}

impl Collective for Callbacks {
    fn rank(&self) -> u32 {
        self.raw.rank
    }

    fn world_size(&self) -> u32 {
        self.raw.world_size
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let (user, stream) = (self.raw.user, self.stream);
        let (pointer, count) = (values.as_mut_ptr(), values.len());
        // SAFETY: the caller promised a callback that keeps to the slice.
        let code = self.raw.all_reduce_sum.map(|call| unsafe { call(user, pointer, count, stream) });
        self.done("all_reduce_sum", code)
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let (user, stream) = (self.raw.user, self.stream);
        let (length, buffer) = (buffer.len() / self.raw.world_size as usize, buffer.as_mut_ptr());
        // SAFETY: as above.
        let code = self.raw.all_gather.map(|call| unsafe { call(user, buffer, length, stream) });
        self.done("all_gather", code)
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let (user, stream) = (self.raw.user, self.stream);
        let (lens, buffer) = (lens.as_ptr(), buffer.as_mut_ptr());
        // SAFETY: as above.
        let code = self.raw.all_gather_each.map(|call| unsafe { call(user, lens, buffer, stream) });
        self.done("all_gather_each", code)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let (user, stream) = (self.raw.user, self.stream);
        let (pointer, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: as above.
        let code = self.raw.broadcast.map(|call| unsafe { call(user, root, pointer, length, stream) });
        self.done("broadcast", code)
    }

    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        let (user, stream) = (self.raw.user, self.stream);
        let (from, to) = (send.as_ptr(), received.as_mut_ptr());
        let (send_lens, lens) = (send_lens.as_ptr(), received_lens.as_ptr());
        // SAFETY: as above.
        let code = self.raw.all_to_all.map(|call| unsafe { call(user, from, send_lens, to, lens, stream) });
        self.done("all_to_all", code)
    }

    fn reduce_scatter_sum(&mut self, lens: &[u64], values: &mut [f32]) -> Result<(), CollectiveError> {
        let Some(call) = self.raw.reduce_scatter_sum else { return self.all_reduce_sum(values) };
        let (user, stream) = (self.raw.user, self.stream);
        let (lens, pointer, count) = (lens.as_ptr(), values.as_mut_ptr(), values.len());
        // SAFETY: as above.
        let code = unsafe { call(user, lens, pointer, count, stream) };
        self.done("reduce_scatter_sum", Some(code))
    }

    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        let (user, stream) = (self.raw.user, self.stream);
        let (pointer, count) = (values.as_mut_ptr().cast(), values.len());
        // SAFETY: as above; bf16 is its bits.
        let code = self.raw.all_reduce_sum_bf16.map(|call| unsafe { call(user, pointer, count, stream) });
        self.done("all_reduce_sum_bf16", code)
    }

    fn reduce_scatter_sum_bf16(&mut self, lens: &[u64], values: &mut [Bf16]) -> Result<(), CollectiveError> {
        let Some(call) = self.raw.reduce_scatter_sum_bf16 else { return self.all_reduce_sum_bf16(values) };
        let (user, stream) = (self.raw.user, self.stream);
        let (lens, pointer, count) = (lens.as_ptr(), values.as_mut_ptr().cast(), values.len());
        // SAFETY: as above.
        let code = unsafe { call(user, lens, pointer, count, stream) };
        self.done("reduce_scatter_sum_bf16", Some(code))
    }
}
