//! lgreco's error tables and compressors on any GPU that wgpu can drive (Vulkan, Metal, DirectX 12).
//!
//! [`WgpuBackend`] is a [`Backend`](lgreco::backend::Backend): it takes gradients from host memory. It also works
//! on gradients that lie in the embedder's own [`wgpu::Buffer`]s, of which only rows and payloads then come back.
//!
//! # Exactness
//! Payloads of QSGD, TopK and EDEN and the values they decode to are, bit for bit, those of the core. WGSL leaves rounding,
//! contraction and subnormal numbers to the driver, so every decision is taken in integers: the shaders do f32
//! arithmetic on bits. Rows agree with the core's f64 within 1e-4: they are sums in f32 with separate exponents, added
//! in the order of a tree, so nothing overflows or vanishes. The same input gives the same bits on the same device,
//! whatever its load; subgroups, which are used where a device has them, but for DirectX 12, change none.
//!
//! # Limits
//! The defaults of WebGPU are enough. Tensors, payloads and factors of PowerSGD that are larger than a binding, a buffer
//! or a dispatch are worked on in pieces. A gradient that lies on the device is one buffer, and error feedback takes two
//! of four bytes per element; what does not fit is [`Error::TooLarge`]. QSGD, EDEN, TopK and PowerSGD (sides up to 2^22, ranks
//! up to 1024, values of a `P` up to 2^31) have kernels, TopK in few bits too; the core's other methods are refused by name ([`Error::Method`]).
//! Tensors of 2^31 to 2^32 - 1 values are rehearsed in tests, not run: where all of it would lie is compared with arithmetic of 64 bits.
//!
//! # Memory
//! Buffers of the device are taken on first use, or beforehand by [`WgpuBackend::reserve`], and kept for calls of like
//! sizes; [`WgpuBackend::held_bytes`] is their sum.
//!
//! # Waiting
//! Calls wait for what they return. [`WgpuBackend::enqueue_rows`] and [`WgpuBackend::enqueue_norms`] do not: they leave results in a
//! buffer of the embedder's, take no memory once they have theirs ([`WgpuBackend::reserve_buffers`]), and read nothing back.
//!
//! # Inside
//! The shaders compute f32 in integers wherever a bit of a payload, a decoded value or a residual depends on it. WGSL leaves
//! the rounding mode, contraction to fused multiply-add, the error of divisions and the flushing of subnormal numbers to the
//! driver (llvmpipe flushes), and SPIR-V from naga carries no `NoContraction`. Integers cannot be reinterpreted: one code path
//! gives the core's bits on every device, at the price of some tens of instructions per value.
//!
//! | module | holds |
//! |---|---|
//! | `backend`, `buffers`, `buffer_rows`, `norms` | [`WgpuBackend`]: the core's trait; the same calls on buffers of the device; rows and squared norms without a wait |
//! | `rows`, `packing`, `codec` | batches of rows, and which layers are worked on together; payloads there and back |
//! | `gpu`, `memory` | a device; its buffers, kept by name or by size |
//! | `part` | parts of buffers, as kernels see them |
//! | `batch` | dispatches, copies and reads submitted together, their errors caught; or only rehearsed |
//! | `kernels`, `params` | WGSL modules put together from `shaders/`, compiled on first use; what a dispatch is told |
//! | `compiler` | FXC of DirectX 12 refused |
//! | `tensor`, `rectangles`, `factor` | values, matrices and factors in pieces that fit a binding and a dispatch |
//! | `qsgd`, `eden`, `topk`, `powersgd`, `orthonormal` | what the shaders of the same names are asked to do, the last by `columns` |
//! | `feedback`, `magnitude`, `sums` | the same |
//! | `cut`, `blocks`, `topk_encode` | where TopK's k largest end; how much is kept of each 2048 values; its payloads written |
//! | `positions`, `reconstruct` | TopK's and PowerSGD's payloads read |
//! | `few_bits`, `ranks`, `eden_rows` | rows of TopK in few bits; of PowerSGD; of EDEN |
//! | `adapters`, `error`, `scopes` | what there is; what went wrong |
//!
//! In `shaders/`, `tasks` is how a dispatch does many tasks, of one tensor or of many, `float` is f32 arithmetic on bits, `double` f64 above 0, `wide` sums with separate exponents, `record` eight of them per
//! workgroup, `values` f32, f16 and bf16, `tile` a workgroup's values, `tally` its histograms; `lanes` and `lanes_subgroups` are
//! the same sums of whole numbers, without and with subgroups.
// Allowed where shaders are compiled.
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

/// That of the page on this crate.
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
