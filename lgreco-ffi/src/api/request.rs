use crate::structs::sized_struct;
use core::ffi::c_void;
use lgreco_train::controller::two_level::Group;
use lgreco_train::exchange::{Request, Round};

/// The kind of memory that a request's pointers point to.
pub type lgreco_device = u32;

/// Host memory.
pub const LGRECO_DEVICE_CPU: lgreco_device = 0;
/// Memory of the NVIDIA GPU that a lgreco_cuda_bucket uses.
pub const LGRECO_DEVICE_CUDA: lgreco_device = 1;

/// The group of workers that performs a collective.
pub type lgreco_group = u32;

/// All workers.
pub const LGRECO_GROUP_ALL: lgreco_group = 0;
/// The workers of this worker's node, in rank order. Only lgreco_controller_create_on_nodes uses it.
pub const LGRECO_GROUP_NODE: lgreco_group = 1;
/// This worker's peers: the workers with the same index within their nodes, one per node. Only
/// lgreco_controller_create_on_nodes uses it.
pub const LGRECO_GROUP_PEERS: lgreco_group = 2;

/// The kind of collective that the caller performs.
pub type lgreco_request_kind = u32;

/// No collective: nothing is left to do.
pub const LGRECO_REQUEST_NONE: lgreco_request_kind = 0;
/// Replace the `count` f32 values of `buffer` by their sums over the workers. All workers must get the same bits, and
/// NaN must stay NaN.
pub const LGRECO_REQUEST_ALL_REDUCE_SUM: lgreco_request_kind = 1;
/// Fill `buffer` with `length` bytes of every worker, in rank order; world_size * length in total. This worker's bytes are
/// already in place: MPI_Allgather with MPI_IN_PLACE, ncclAllGather with sendbuff = recvbuff + rank * length.
pub const LGRECO_REQUEST_ALL_GATHER: lgreco_request_kind = 2;
/// Like LGRECO_REQUEST_ALL_GATHER, with lens[i] bytes of worker i: MPI_Allgatherv with MPI_IN_PLACE. A length may be 0.
/// Only hard thresholds, SIDCo, AdaComp, the route scatter_reduce and nodes need this kind.
pub const LGRECO_REQUEST_ALL_GATHER_EACH: lgreco_request_kind = 3;
/// Replace the `length` bytes of `buffer` by the bytes of worker `root`.
pub const LGRECO_REQUEST_BROADCAST: lgreco_request_kind = 4;
/// For each worker i in ascending order: send it the next send_lens[i] bytes of `send`, and receive from it the next
/// received_lens[i] bytes of `received`. Only the route scatter_reduce, shards, and nodes with `reduce_dtype` bfloat16
/// need this kind.
pub const LGRECO_REQUEST_ALL_TO_ALL: lgreco_request_kind = 5;
/// `buffer` has `count` f32 values, of which lens[i] consecutive values belong to worker i. Replace this worker's
/// values by their sums over the workers. The other values may change arbitrarily. Only shards and nodes need this
/// kind.
pub const LGRECO_REQUEST_REDUCE_SCATTER_SUM: lgreco_request_kind = 6;
/// Like LGRECO_REQUEST_ALL_REDUCE_SUM, for `count` bf16 values. A bf16 is the upper half of an f32. Sums may be rounded
/// once or at every addition. Only the option `reduce_dtype` needs this kind.
pub const LGRECO_REQUEST_ALL_REDUCE_SUM_BF16: lgreco_request_kind = 7;
/// Like LGRECO_REQUEST_REDUCE_SCATTER_SUM, for `count` bf16 values. Only shards with the option `reduce_dtype` need
/// this kind.
pub const LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16: lgreco_request_kind = 8;

/// A collective to perform, blocking or not, on memory of the library. Begin with LGRECO_REQUEST_INIT.
///
/// Fields that the kind does not mention are 0 or NULL. Perform the collective before the next call on the bucket, or
/// the next call of lgreco_controller_control. The request's pointers are valid until that call. All workers get the
/// same requests with the same lengths. All workers must start the collectives of different buckets in the same order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_request {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Kind of collective.
    pub kind: lgreco_request_kind,
    /// The memory that `buffer`, `send` and `received` point to. LGRECO_DEVICE_CUDA for requests of
    /// lgreco_cuda_bucket_next, else LGRECO_DEVICE_CPU.
    pub memory: lgreco_device,
    /// The worker that broadcasts.
    pub root: u32,
    /// The group that performs the collective. The fields below number the workers of this group from 0.
    pub group: lgreco_group,
    /// The memory to replace or fill. Aligned for f32 if the values are f32.
    pub buffer: *mut c_void,
    /// Number of f32 or bf16 values.
    pub count: usize,
    /// Number of bytes. For LGRECO_REQUEST_ALL_GATHER, the bytes of one worker.
    pub length: usize,
    /// For LGRECO_REQUEST_ALL_GATHER_EACH, the bytes of each worker. For scattered sums, the number of values of each
    /// worker.
    pub lens: *const u64,
    /// Bytes to send, in order of the receivers.
    pub send: *const u8,
    /// Number of bytes to send to each worker.
    pub send_lens: *const u64,
    /// Memory for the received bytes, in order of the senders.
    pub received: *mut u8,
    /// Number of bytes to receive from each worker.
    pub received_lens: *const u64,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers and raw pointers.
sized_struct!("request", lgreco_request {});

/// Sizes of a controller's groups of workers.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub world_size: u32,
    pub per_node: u32,
}

impl Groups {
    fn size(self, group: Option<Group>) -> u32 {
        match group {
            None => self.world_size,
            Some(Group::Node) => self.per_node,
            Some(Group::Peers) => self.world_size / self.per_node,
        }
    }
}

pub(super) const fn group_code(group: Option<Group>) -> lgreco_group {
    match group {
        None => LGRECO_GROUP_ALL,
        Some(Group::Node) => LGRECO_GROUP_NODE,
        Some(Group::Peers) => LGRECO_GROUP_PEERS,
    }
}

impl lgreco_request {
    /// Converts a request and its group to C. The group determines the number of workers.
    pub(super) fn within(next: Option<(Option<Group>, Request<'_>)>, groups: Groups) -> lgreco_request {
        match next {
            None => lgreco_request::default(),
            Some((group, request)) => {
                let request = lgreco_request::of(Some(request), groups.size(group));
                lgreco_request { group: group_code(group), ..request }
            }
        }
    }

    pub(super) fn of(request: Option<Request<'_>>, world_size: u32) -> lgreco_request {
        fn sums<T>(kind: lgreco_request_kind, values: &mut [T]) -> lgreco_request {
            let (buffer, count) = (values.as_mut_ptr().cast(), values.len());
            lgreco_request { kind, buffer, count, ..Default::default() }
        }
        fn bytes(kind: lgreco_request_kind, buffer: &mut [u8], length: usize) -> lgreco_request {
            lgreco_request { kind, buffer: buffer.as_mut_ptr().cast(), length, ..Default::default() }
        }
        match request {
            None => lgreco_request::default(),
            Some(Request::AllReduceSum { values }) => sums(LGRECO_REQUEST_ALL_REDUCE_SUM, values),
            Some(Request::AllReduceSumBf16 { values }) => sums(LGRECO_REQUEST_ALL_REDUCE_SUM_BF16, values),
            Some(Request::ReduceScatterSum { lens, values }) => {
                lgreco_request { lens: lens.as_ptr(), ..sums(LGRECO_REQUEST_REDUCE_SCATTER_SUM, values) }
            }
            Some(Request::ReduceScatterSumBf16 { lens, values }) => {
                lgreco_request { lens: lens.as_ptr(), ..sums(LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16, values) }
            }
            Some(Request::AllGather { buffer }) => {
                let length = buffer.len() / world_size as usize;
                bytes(LGRECO_REQUEST_ALL_GATHER, buffer, length)
            }
            Some(Request::AllGatherEach { lens, buffer }) => {
                lgreco_request { lens: lens.as_ptr(), ..bytes(LGRECO_REQUEST_ALL_GATHER_EACH, buffer, 0) }
            }
            Some(Request::Broadcast { root, bytes: all }) => {
                let length = all.len();
                lgreco_request { root, ..bytes(LGRECO_REQUEST_BROADCAST, all, length) }
            }
            Some(Request::AllToAll { send, send_lens, received, received_lens }) => {
                lgreco_request::all_to_all(send, send_lens, received, received_lens)
            }
        }
    }

    pub(super) fn all_to_all(send: &[u8], send_lens: &[u64], received: &mut [u8], lens: &[u64]) -> lgreco_request {
        let (kind, send, send_lens) = (LGRECO_REQUEST_ALL_TO_ALL, send.as_ptr(), send_lens.as_ptr());
        let (received, received_lens) = (received.as_mut_ptr(), lens.as_ptr());
        lgreco_request { kind, send, send_lens, received, received_lens, ..Default::default() }
    }

    /// Describes a collective that has no memory yet.
    pub(super) fn announced(round: Option<(Option<Group>, Round)>) -> lgreco_request {
        let group = round.map_or(LGRECO_GROUP_ALL, |(group, _)| group_code(group));
        let (kind, count, length) = match round.map(|(_, round)| round) {
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
        lgreco_request { kind, group, count, length, ..Default::default() }
    }
}
