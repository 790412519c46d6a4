use super::request::{LGRECO_GROUP_ALL, LGRECO_GROUP_NODE, LGRECO_GROUP_PEERS, lgreco_group, lgreco_request};
use crate::failure::{Failure, Result};
use crate::structs::sized_struct;
use core::ffi::c_void;
use lgreco_train::controller::two_level::Topology;
use lgreco_train::exchange::{Collective, CollectiveError, Request};
use lgreco_train::gradient::Bf16;

/// `perform` returns this code for a kind of collective that the program does not support.
pub const LGRECO_COLLECTIVE_UNSUPPORTED: i32 = i32::MIN;

const _: () = assert!(LGRECO_COLLECTIVE_UNSUPPORTED == CollectiveError::UNSUPPORTED.code);

/// Performs one collective and returns when it is done.
pub type lgreco_perform = Option<unsafe extern "C" fn(user: *mut c_void, request: *const lgreco_request) -> i32>;

/// The network of one worker: blocking collectives, which the program implements on NCCL, MPI, Gloo or sockets. Begin
/// with LGRECO_COLLECTIVE_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_collective {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// This worker's rank, less than `world_size`.
    pub rank: u32,
    /// Number of workers, at least 1; 1 by default.
    pub world_size: u32,
    /// Passed to `perform`.
    pub user: *mut c_void,
    /// Performs the collective of a lgreco_request. The function returns 0, or an error code that the program chooses.
    /// After an error code, the library call fails with LGRECO_COLLECTIVE. All workers get the same requests in the
    /// same order with the same lengths. A worker that cannot continue must make the other workers' collectives fail,
    /// so that they do not wait forever.
    ///
    /// The library calls the function during a library call, on the thread of that call. The request and its memory are
    /// valid until the function returns. The function must not throw. If it uses the handle of the library call, that
    /// use fails with LGRECO_BUSY.
    ///
    /// Every network must support LGRECO_REQUEST_ALL_REDUCE_SUM, ALL_GATHER and BROADCAST. lgreco_request_kind says
    /// when the other kinds are requested. Return LGRECO_COLLECTIVE_UNSUPPORTED for a kind that the network does not
    /// support. LGRECO_REQUEST_REDUCE_SCATTER_SUM may be performed as an all-reduce of all `count` values, at about
    /// twice the traffic.
    pub perform: lgreco_perform,
}

// SAFETY: The struct is repr(C) and starts with a usize. The other fields are numbers, a raw pointer and a nullable
// function pointer. The caller promises that `perform` can be called.
sized_struct!("collective", lgreco_collective { world_size: 1 });

/// Largest number of workers accepted from a caller's struct, unless the controller has more. lgreco-train has the same
/// limit.
const MOST_WORKERS: u32 = 1 << 20;

/// A caller's collective with a callback that is not NULL.
pub(crate) struct Callback {
    rank: u32,
    world_size: u32,
    group: lgreco_group,
    user: *mut c_void,
    perform: unsafe extern "C" fn(*mut c_void, *const lgreco_request) -> i32,
}

impl lgreco_collective {
    pub(crate) fn callback(self) -> Result<Callback> {
        let lgreco_collective { rank, world_size, user, perform, .. } = self;
        let perform = perform.ok_or(Failure::Null("perform"))?;
        Ok(Callback { rank, world_size, group: LGRECO_GROUP_ALL, user, perform })
    }
}

impl Callback {
    /// Raises the number of workers to `world_size` if the caller's struct states fewer, so that gathers have memory
    /// for all of them. A number above `MOST_WORKERS` cannot be right, so `world_size` replaces that number.
    pub(crate) fn make_room_for(&mut self, world_size: u32) {
        let is_far_too_large = self.world_size > MOST_WORKERS;
        self.world_size = if is_far_too_large { world_size } else { self.world_size.max(world_size) };
    }

    /// Returns two callbacks: one for the collectives inside this worker's node, one for the collectives with its
    /// peers.
    pub(crate) fn levels(&self, place: Topology) -> [Callback; 2] {
        let Topology { nodes, node, per_node, local } = place;
        let Callback { user, perform, .. } = *self;
        [(local, per_node, LGRECO_GROUP_NODE), (node, nodes, LGRECO_GROUP_PEERS)]
            .map(|(rank, world_size, group)| Callback { rank, world_size, group, user, perform })
    }

    fn perform(&self, request: Request<'_>) -> Result<(), CollectiveError> {
        self.perform_as(&lgreco_request::of(Some(request), self.world_size))
    }

    fn perform_as(&self, request: &lgreco_request) -> Result<(), CollectiveError> {
        let request = lgreco_request { group: self.group, ..*request };
        // SAFETY: the caller promised a callback that accesses only the memory of the request.
        match unsafe { (self.perform)(self.user, &request) } {
            0 => Ok(()),
            code => Err(CollectiveError { code }),
        }
    }
}

impl Collective for Callback {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.perform(Request::AllReduceSum { values })
    }

    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.perform(Request::AllReduceSumBf16 { values })
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.perform(Request::AllGather { buffer })
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.perform(Request::AllGatherEach { lens, buffer })
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.perform(Request::Broadcast { root, bytes })
    }

    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        self.perform_as(&lgreco_request::all_to_all(send, send_lens, received, received_lens))
    }

    fn reduce_scatter_sum(&mut self, lens: &[u64], values: &mut [f32]) -> Result<(), CollectiveError> {
        self.perform(Request::ReduceScatterSum { lens, values })
    }

    fn reduce_scatter_sum_bf16(&mut self, lens: &[u64], values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.perform(Request::ReduceScatterSumBf16 { lens, values })
    }
}
