//! Collectives that the trainer's engine is to perform.

use lgreco_train::exchange;
use lgreco_train::gradient::Bf16;
use pyo3::prelude::*;

/// A collective on memory of a bucket or controller, which stays in its place until that is asked to go on.
#[pyclass(frozen, get_all, module = "lgreco._lgreco")]
pub(crate) struct Request {
    kind: &'static str,
    address: usize,
    /// Bytes at `address`.
    length: usize,
    /// Bytes of each rank's part, or values of each in a reduce-scatter; empty where they are equal or whole.
    lens: Vec<u64>,
    root: u32,
    received_address: usize,
    received_length: usize,
    received_lens: Vec<u64>,
}

impl Request {
    /// On a bucket's memory on a device, whose parts are equal or whole.
    pub(crate) fn on_device(kind: &'static str, address: u64, length: usize) -> Request {
        Request::plain(kind, (address as usize, length), &[], 0)
    }

    fn plain(kind: &'static str, (address, length): (usize, usize), lens: &[u64], root: u32) -> Request {
        Request {
            kind,
            address,
            length,
            lens: lens.into(),
            root,
            received_address: 0,
            received_length: 0,
            received_lens: Vec::new(),
        }
    }
}

impl From<exchange::Request<'_>> for Request {
    fn from(request: exchange::Request<'_>) -> Request {
        let place = |bytes: &mut [u8]| (bytes.as_mut_ptr().expose_provenance(), bytes.len());
        let sums = |values: &mut [f32]| (values.as_mut_ptr().expose_provenance(), size_of_val(values));
        let halves = |values: &mut [Bf16]| (values.as_mut_ptr().expose_provenance(), size_of_val(values));
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
