//! lgreco's error tables and compressors on any GPU that wgpu can drive (Vulkan, Metal, DirectX 12).
//!
//! [`WgpuBackend`] is a [`Backend`](lgreco::backend::Backend): it takes gradients in host memory. The backend also
//! takes gradients in the caller's [`wgpu::Buffer`]s. From device buffers, only payloads and rows of the error table
//! are copied to the host.
//!
//! # Exactness
//! The core is the CPU code of `lgreco-compress`. Payloads of QSGD, TopK and EDEN, and their decoded values, have the
//! same bits as the core's. In WGSL, drivers may choose rounding, contraction and the treatment of subnormal numbers.
//! So the shaders compute f32 arithmetic with integers, and every decision depends only on integers. Rows agree with
//! the core's f64 within 1e-4. A row's errors are sums in f32 with separate exponents, so that no sum overflows or
//! vanishes. Terms are added in the order of a tree. The same input always gives the same bits on the same device. The
//! bits do not depend on subgroups, which are used if a device has them, except on DirectX 12.
//!
//! # Limits
//! WebGPU's default limits are enough. Tensors, payloads and PowerSGD factors that exceed a binding, a buffer or a
//! dispatch are processed in pieces. A gradient on the device must lie in one buffer. Error feedback needs two buffers
//! of four bytes per element. If data do not fit, calls return [`Error::TooLarge`]. QSGD, EDEN, TopK, TopK in few bits
//! and PowerSGD have kernels. For PowerSGD, the limits are 2^22 for a side, 1024 for the rank and 2^31 for the number
//! of values of `P`. Calls with the core's other methods return [`Error::Method`]. For tensors of 2^31 to 2^32 - 1
//! values, tests only compare all offsets with 64-bit arithmetic, and do not run the kernels.
//!
//! # Memory
//! Device buffers are allocated on first use, or beforehand by [`WgpuBackend::reserve`]. The backend keeps these
//! buffers for calls of similar size. [`WgpuBackend::held_bytes`] returns their total size.
//!
//! # Waiting
//! Calls wait for their results, except [`WgpuBackend::enqueue_rows`] and [`WgpuBackend::enqueue_norms`]. These two
//! calls copy results to the caller's buffer and download nothing. After [`WgpuBackend::reserve_buffers`], these calls
//! also allocate nothing.
//!
//! # Inside
//! If a bit of a payload, a decoded value or a residual depends on f32 arithmetic, the shaders do this arithmetic with
//! integers. In WGSL, drivers may choose four things: the rounding mode, contraction to fused multiply-add, the error
//! of divisions, and the flushing of subnormal numbers (llvmpipe flushes). SPIR-V from naga carries no `NoContraction`.
//! Drivers cannot change integer arithmetic. So one code path gives the core's bits on every device, at the cost of
//! some tens of instructions per value.
//!
//! | module | content |
//! |---|---|
//! | `backend`, `buffers`, `buffer_rows`, `norms` | [`WgpuBackend`]: the core's trait; the same calls on device buffers; rows and squared norms without a wait |
//! | `rows`, `packing`, `codec` | batches of rows; layers that are processed together; encoding and decoding of payloads |
//! | `gpu`, `memory` | a device; its buffers, kept by name or by size |
//! | `part` | parts of buffers, as kernels see them |
//! | `batch` | dispatches, copies and downloads that are submitted together, with captured errors, or only rehearsed |
//! | `kernels`, `params` | WGSL modules made of the files in `shaders/`, compiled on first use; parameters of a dispatch |
//! | `compiler` | the check that refuses FXC of DirectX 12 |
//! | `tensor`, `rectangles`, `factor` | values, matrices and factors in pieces that fit a binding and a dispatch |
//! | `qsgd`, `eden`, `topk`, `powersgd`, `orthonormal` | launches of the shaders of the same names; `columns` launches `orthonormal` |
//! | `feedback`, `magnitude`, `sums` | launches of the shaders of the same names |
//! | `cut`, `blocks`, `topk_encode` | TopK's k-th largest magnitude; the number of kept values in each block of 2048 values; encoding of TopK's payloads |
//! | `positions`, `reconstruct` | decoding of TopK's and PowerSGD's payloads |
//! | `few_bits`, `ranks`, `eden_rows` | rows of TopK in few bits, of PowerSGD and of EDEN |
//! | `adapters`, `error`, `scopes` | the machine's adapters; errors; the capture of errors |
//!
//! In `shaders/`, `tasks` lets one dispatch process many tasks, of one tensor or of several. `float` has f32 arithmetic
//! with integers, and `double` has arithmetic on positive f64. `wide` has sums with separate exponents, and `record`
//! has eight such sums per workgroup. `values` reads f32, f16 and bf16. `tile` has the values of a workgroup, and
//! `tally` has the histograms of a workgroup. `lanes` and `lanes_subgroups` define the same sums of integers, without
//! and with subgroups.
// Only the function that compiles shaders allows unsafe code.
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

/// Makes the README's example a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// Makes the examples of the documentation page on this crate doctests.
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
