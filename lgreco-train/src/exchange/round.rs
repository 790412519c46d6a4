//! Kinds of collectives and their sizes, without memory.

/// A collective of an exchange, with its size. Sizes are exact unless [`Round::AllGatherEach`] says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Round {
    /// [`Request::AllReduceSum`](super::Request::AllReduceSum).
    AllReduceSum {
        /// Number of f32.
        values: usize,
    },
    /// [`Request::AllReduceSumBf16`](super::Request::AllReduceSumBf16).
    AllReduceSumBf16 {
        /// Number of bf16.
        values: usize,
    },
    /// [`Request::AllGather`](super::Request::AllGather).
    AllGather {
        /// Number of bytes of each rank.
        bytes: usize,
    },
    /// [`Request::AllGatherEach`](super::Request::AllGatherEach).
    AllGatherEach {
        /// Number of bytes of all ranks together.
        bytes: usize,
        /// Whether the number is exact. If not, it is the largest possible number, and the actual one depends on
        /// values.
        exact: bool,
    },
    /// [`Request::Broadcast`](super::Request::Broadcast).
    Broadcast {
        /// Number of bytes on every rank.
        bytes: usize,
    },
    /// [`Request::AllToAll`](super::Request::AllToAll).
    AllToAll {
        /// Bytes that this rank sends to all others together.
        send: usize,
        /// Bytes that it receives.
        received: usize,
    },
    /// [`Request::ReduceScatterSum`](super::Request::ReduceScatterSum).
    ReduceScatterSum {
        /// Number of f32 of all ranks together.
        values: usize,
        /// The part of `values` that belongs to this rank.
        own: usize,
    },
    /// [`Request::ReduceScatterSumBf16`](super::Request::ReduceScatterSumBf16).
    ReduceScatterSumBf16 {
        /// Number of bf16 of all ranks together.
        values: usize,
        /// The part of `values` that belongs to this rank.
        own: usize,
    },
}
