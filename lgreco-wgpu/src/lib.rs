//! lgreco's error tables and compressors on any GPU that wgpu can drive (Vulkan, Metal, DirectX 12).
//!
//! [`WgpuBackend`] is a [`Backend`](lgreco::backend::Backend): it takes gradients from host memory. It also takes
//! gradients in the caller's [`wgpu::Buffer`]s. Then only payloads and rows of the error table come back to the host.
//!
//! # Exactness
//! Payloads of QSGD, TopK and EDEN, and the values they decode to, have the core's bits. WGSL leaves rounding,
//! contraction and subnormal numbers to the driver. So the shaders compute f32 arithmetic on bits, and every decision
//! uses integers. Rows agree with the core's f64 within 1e-4. They are sums in f32 with separate exponents, added in
//! the order of a tree, so nothing overflows or vanishes. The same input always gives the same bits on the same device.
//! Subgroups change no bit; they are used where a device has them, except on DirectX 12.
//!
//! # Limits
//! WebGPU's default limits are enough. Tensors, payloads and PowerSGD factors that exceed a binding, a buffer or a
//! dispatch are processed in pieces. A gradient on the device is one buffer. Error feedback needs two buffers of four
//! bytes per element. Data that does not fit gives [`Error::TooLarge`]. QSGD, EDEN, TopK, TopK in few bits and PowerSGD
//! have kernels. For PowerSGD the limits are sides of 2^22, rank 1024 and 2^31 values of a `P`. Calls with the core's
//! other methods return [`Error::Method`]. Tests rehearse tensors of 2^31 to 2^32 - 1 values without running them: they
//! compare all offsets with 64-bit arithmetic.
//!
//! # Memory
//! Device buffers are allocated on first use, or beforehand by [`WgpuBackend::reserve`]. They are kept for calls of
//! similar size; [`WgpuBackend::held_bytes`] is their sum.
//!
//! # Waiting
//! Calls wait for their results. [`WgpuBackend::enqueue_rows`] and [`WgpuBackend::enqueue_norms`] do not wait. They
//! leave results in the caller's buffer and read nothing back. Once they have their memory
//! ([`WgpuBackend::reserve_buffers`]), they allocate nothing.
//!
//! # Inside
//! The shaders compute f32 in integers wherever a bit of a payload, a decoded value or a residual depends on it. WGSL
//! leaves four things to the driver: the rounding mode, contraction to fused multiply-add, the error of divisions, and
//! the flushing of subnormal numbers (llvmpipe flushes). SPIR-V from naga carries no `NoContraction`. Drivers cannot
//! change integer arithmetic. So one code path gives the core's bits on every device, at the cost of some tens of
//! instructions per value.
//!
//! | module | holds |
//! |---|---|
//! | `backend`, `buffers`, `buffer_rows`, `norms` | [`WgpuBackend`]: the core's trait; the same calls on device buffers; rows and squared norms without a wait |
//! | `rows`, `packing`, `codec` | batches of rows; layers that are processed together; encoding and decoding of payloads |
//! | `gpu`, `memory` | a device; its buffers, kept by name or by size |
//! | `part` | parts of buffers, as kernels see them |
//! | `batch` | dispatches, copies and reads submitted together, with captured errors; or only rehearsed |
//! | `kernels`, `params` | WGSL modules put together from `shaders/`, compiled on first use; parameters of a dispatch |
//! | `compiler` | the check that refuses FXC of DirectX 12 |
//! | `tensor`, `rectangles`, `factor` | values, matrices and factors in pieces that fit a binding and a dispatch |
//! | `qsgd`, `eden`, `topk`, `powersgd`, `orthonormal` | launches of the shaders of the same names, the last by `columns` |
//! | `feedback`, `magnitude`, `sums` | launches of the shaders of the same names |
//! | `cut`, `blocks`, `topk_encode` | TopK's k-th largest magnitude; the number of kept values in each 2048; writing of its payloads |
//! | `positions`, `reconstruct` | decoding of TopK's and PowerSGD's payloads |
//! | `few_bits`, `ranks`, `eden_rows` | rows of TopK in few bits; of PowerSGD; of EDEN |
//! | `adapters`, `error`, `scopes` | the machine's adapters; errors; their capture |
//!
//! In `shaders/`, `tasks` lets a dispatch do many tasks, of one tensor or of many. `float` has f32 arithmetic on bits,
//! `double` positive f64, and `wide` sums with separate exponents. `record` has eight such sums per workgroup. `values`
//! has f32, f16 and bf16, `tile` a workgroup's values, and `tally` its histograms. `lanes` and `lanes_subgroups` define
//! the same sums of integers, without and with subgroups.
// The function that compiles shaders allows unsafe code.
#![deny(unsafe_code)]

mod adapters;
mod backend;
mod batch;
mod blocks;
mod buffer_rows;
mod buffers;
mod codec;
mod columns;
mod compiler;
mod cut;
mod eden;
mod eden_rows;
mod error;
mod factor;
#[cfg(feature = "train")]
mod feedback;
mod few_bits;
mod gpu;
mod kernels;
mod magnitude;
mod memory;
mod norms;
mod orthonormal;
mod packing;
mod params;
mod part;
mod positions;
mod powersgd;
mod qsgd;
mod ranks;
mod reconstruct;
mod rectangles;
mod rows;
mod scopes;
mod sums;
mod tensor;
#[cfg(test)]
mod tests;
mod topk;
mod topk_encode;

/// The README's example, as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// The examples of the page on this crate, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/reference/wgpu.md")]
pub struct Page;

pub use adapters::{Adapter, adapters};
pub use backend::WgpuBackend;
pub use error::{BufferJobError, Error};
#[cfg(feature = "train")]
pub use feedback::BufferResidual;
pub use tensor::{BufferGradient, BufferJob};
pub use wgpu;
