//! Collectives that the trainer performs.

use lgreco_cuda::DeviceMemory;
use lgreco_train::controller::two_level::Group;
use lgreco_train::exchange;
use lgreco_train::gradient::Bf16;
use pyo3::prelude::*;

/// A collective on memory of a bucket or controller, which stays in place until the next call of `next` or `control`.
#[derive(Default)]
#[pyclass(frozen, get_all, module = "lgreco._lgreco")]
pub(crate) struct Request {
    kind: &'static str,
    address: usize,
    /// Number of bytes at `address`.
    length: usize,
    /// Bytes of each rank's part, or for a reduce-scatter number of values of each part. Empty if all parts are equal
    /// or the collective has no parts.
    lens: Vec<u64>,
    root: u32,
    received_address: usize,
    received_length: usize,
    received_lens: Vec<u64>,
    /// The group that performs the collective: `node` or `peers` in training over nodes, empty for the group of all
    /// ranks.
    group: &'static str,
}

impl Request {
    /// A request for a node's ranks, for peers, or for all ranks (`None`).
    pub(crate) fn within((group, request): (Option<Group>, exchange::Request<'_>)) -> Request {
        let group = match group {
            None => "",
            Some(Group::Node) => "node",
            Some(Group::Peers) => "peers",
        };
        Request { group, ..Request::from(request) }
    }

    /// The all-reduce of a joined bucket.
    pub(crate) fn of_gradients(memory: (usize, usize)) -> Request {
        Request::plain("all_reduce", memory, &[], 0)
    }

    fn plain(kind: &'static str, (address, length): (usize, usize), lens: &[u64], root: u32) -> Request {
        Request { kind, address, length, lens: lens.into(), root, ..Request::default() }
    }
}

/// Memory of a collective as address and number of bytes. `T` is the element type.
trait Memory<T> {
    fn place(self) -> (usize, usize);
}

impl<T> Memory<T> for &mut [T] {
    fn place(self) -> (usize, usize) {
        (self.as_mut_ptr().expose_provenance(), size_of_val(self))
    }
}

impl<T> Memory<T> for DeviceMemory {
    fn place(self) -> (usize, usize) {
        (self.address as usize, self.len * size_of::<T>())
    }
}

impl<V: Memory<f32>, H: Memory<Bf16>, B: Memory<u8>> From<exchange::Request<'_, V, H, B>> for Request {
    fn from(request: exchange::Request<'_, V, H, B>) -> Request {
        let (place, sums, halves) = (B::place, V::place, H::place);
        let plain = Request::plain;
        match request {
            exchange::Request::AllReduceSum { values } => plain("all_reduce", sums(values), &[], 0),
            exchange::Request::AllReduceSumBf16 { values } => plain("all_reduce_bf16", halves(values), &[], 0),
            exchange::Request::ReduceScatterSumBf16 { lens, values } => {
                plain("reduce_scatter_bf16", halves(values), lens, 0)
            }
            exchange::Request::AllGather { buffer } => plain("all_gather", place(buffer), &[], 0),
            exchange::Request::AllGatherEach { lens, buffer } => plain("all_gather_each", place(buffer), lens, 0),
            exchange::Request::Broadcast { root, bytes } => plain("broadcast", place(bytes), &[], root),
            exchange::Request::ReduceScatterSum { lens, values } => plain("reduce_scatter", sums(values), lens, 0),
            exchange::Request::AllToAll { send, send_lens, received, received_lens } => {
                let (received_address, received_length) = place(received);
                let received_lens = received_lens.into();
                let request = plain("all_to_all", place(send), send_lens, 0);
                Request { received_address, received_length, received_lens, ..request }
            }
        }
    }
}
