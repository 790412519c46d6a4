//! The collectives that an exchange asks for: a [`Request`] with memory, or a [`Round`] that has only the size.

use super::collective::{Collective, CollectiveError};
use crate::gradient::Bf16;

/// A collective on memory of the exchange. The memory is host memory, unless a [`Space`](super::Space) has another kind. All ranks
/// perform the same collectives in the same order.
///
/// ```
/// use lgreco_train::exchange::{Request, threads};
/// let sums = threads::run(2, |mut worker| {
///     let mut values = [1.0, 2.0];
///     let request: Request<'_> = Request::AllReduceSum { values: &mut values };
///     request.perform(&mut worker).map(|()| values)
/// });
/// assert_eq!(sums, [Ok([2.0, 4.0]); 2]);
/// ```
#[derive(Debug, PartialEq)]
pub enum Request<'a, V = &'a mut [f32], H = &'a mut [Bf16], B = &'a mut [u8]> {
    /// Replace the values by their sums over the workers.
    AllReduceSum {
        /// The number of values or bytes is the same on every rank.
        values: V,
    },
    /// Replace the bf16 values by their sums over the workers, if [`reduce_dtype`](super::Moment::reduce_dtype) is bf16.
    AllReduceSumBf16 {
        /// The number of values or bytes is the same on every rank.
        values: H,
    },
    /// Fill `buffer` with every rank's bytes, in rank order. The part of this rank already contains the bytes to send.
    AllGather {
        /// Equal parts, one per rank.
        buffer: B,
    },
    /// Fill `buffer` with every rank's bytes, in rank order, with parts of different lengths.
    AllGatherEach {
        /// Bytes of each rank's part. Some may be 0.
        lens: &'a [u64],
        /// The parts of all ranks, one after the other.
        buffer: B,
    },
    /// Replace the bytes by those of one rank.
    Broadcast {
        /// The rank that sends its bytes.
        root: u32,
        /// The number of values or bytes is the same on every rank.
        bytes: B,
    },
    /// Send every rank its part of `send`, and receive a part from each rank. In both buffers, parts are in rank order, one after
    /// the other. This rank's own part is empty.
    AllToAll {
        /// The bytes to send.
        send: B,
        /// Bytes of each rank's part of `send`.
        send_lens: &'a [u64],
        /// The memory for the received bytes.
        received: B,
        /// Bytes of each rank's part of `received`.
        received_lens: &'a [u64],
    },
    /// Replace this rank's part of the values by its sum over the workers. The other parts are no longer used.
    ReduceScatterSum {
        /// Number of values in each rank's part.
        lens: &'a [u64],
        /// The parts of all ranks, one after the other.
        values: V,
    },
    /// Replace this rank's part of the bf16 values by its sum over the workers.
    ReduceScatterSumBf16 {
        /// Number of values in each rank's part.
        lens: &'a [u64],
        /// The parts of all ranks, one after the other.
        values: H,
    },
}

/// A collective of an exchange, with its size. Sizes are exact unless [`Round::AllGatherEach`] says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Round {
    /// [`Request::AllReduceSum`].
    AllReduceSum {
        /// Number of f32.
        values: usize,
    },
    /// [`Request::AllReduceSumBf16`].
    AllReduceSumBf16 {
        /// Number of bf16.
        values: usize,
    },
    /// [`Request::AllGather`].
    AllGather {
        /// Number of bytes that each rank contributes.
        bytes: usize,
    },
    /// [`Request::AllGatherEach`].
    AllGatherEach {
        /// Number of bytes of all ranks together.
        bytes: usize,
        /// Whether the number is exact. If not, `bytes` is the largest possible number, and the actual number depends on values.
        exact: bool,
    },
    /// [`Request::Broadcast`].
    Broadcast {
        /// Number of bytes on every rank.
        bytes: usize,
    },
    /// [`Request::AllToAll`].
    AllToAll {
        /// Number of bytes that this rank sends to all other ranks together.
        send: usize,
        /// Number of bytes that this rank receives from all other ranks together.
        received: usize,
    },
    /// [`Request::ReduceScatterSum`].
    ReduceScatterSum {
        /// Number of f32 values that each rank contributes: the parts of all ranks together.
        values: usize,
        /// Number of values in this rank's part.
        own: usize,
    },
    /// [`Request::ReduceScatterSumBf16`].
    ReduceScatterSumBf16 {
        /// Number of bf16 values that each rank contributes: the parts of all ranks together.
        values: usize,
        /// Number of values in this rank's part.
        own: usize,
    },
}

/// The fraction of a gathered buffer, or of a sum, that comes from the other workers.
pub(crate) fn share_of_others(world_size: u32) -> f64 {
    1.0 - 1.0 / f64::from(world_size)
}

impl Request<'_> {
    /// The smallest number of bytes that each of `world_size` workers must send. An all-reduce is taken to be a
    /// reduce-scatter and an all-gather.
    pub(crate) fn wire_bytes(&self, world_size: u32) -> f64 {
        let (whole, others) = match self {
            Request::AllReduceSum { values } => (2.0 * size_of_val(&**values) as f64, true),
            Request::AllReduceSumBf16 { values } => (2.0 * size_of_val(&**values) as f64, true),
            Request::ReduceScatterSum { values, .. } => (size_of_val(&**values) as f64, true),
            Request::ReduceScatterSumBf16 { values, .. } => (size_of_val(&**values) as f64, true),
            Request::AllGather { buffer } | Request::AllGatherEach { buffer, .. } => (buffer.len() as f64, true),
            Request::Broadcast { bytes, .. } => (bytes.len() as f64, true),
            Request::AllToAll { received, .. } => (received.len() as f64, false),
        };
        if others { whole * share_of_others(world_size) } else { whole }
    }

    /// Performs the collective on `collective`, and waits until it is done.
    ///
    /// # Errors
    /// The errors of `collective`.
    pub fn perform<C: Collective + ?Sized>(self, collective: &mut C) -> Result<(), CollectiveError> {
        match self {
            Request::AllReduceSum { values } => collective.all_reduce_sum(values),
            Request::AllReduceSumBf16 { values } => collective.all_reduce_sum_bf16(values),
            Request::AllGather { buffer } => collective.all_gather(buffer),
            Request::AllGatherEach { lens, buffer } => collective.all_gather_each(lens, buffer),
            Request::Broadcast { root, bytes } => collective.broadcast(root, bytes),
            Request::AllToAll { send, send_lens, received, received_lens } => {
                collective.all_to_all(send, send_lens, received, received_lens)
            }
            Request::ReduceScatterSum { lens, values } => collective.reduce_scatter_sum(lens, values),
            Request::ReduceScatterSumBf16 { lens, values } => collective.reduce_scatter_sum_bf16(lens, values),
        }
    }
}
