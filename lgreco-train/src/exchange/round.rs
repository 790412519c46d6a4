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
        /// Number of bytes that this rank sends to all other ranks together.
        send: usize,
        /// Number of bytes that this rank receives from all other ranks together.
        received: usize,
    },
    /// [`Request::ReduceScatterSum`](super::Request::ReduceScatterSum).
    ReduceScatterSum {
        /// Number of f32 values that each rank contributes: the parts of all ranks together.
        values: usize,
        /// Number of these values that are in this rank's part.
        own: usize,
    },
    /// [`Request::ReduceScatterSumBf16`](super::Request::ReduceScatterSumBf16).
    ReduceScatterSumBf16 {
        /// Number of bf16 values that each rank contributes: the parts of all ranks together.
        values: usize,
        /// Number of these values that are in this rank's part.
        own: usize,
    },
}
