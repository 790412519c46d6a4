//! lgreco's error tables and compressors on NVIDIA GPUs.
//!
//! [`CudaBackend`] is a [`Backend`](lgreco::backend::Backend): it takes gradients from host memory. It also works
//! on gradients that lie in device memory ([`DeviceGradient`]), on a trainer's own context and stream; of those only
//! rows and payloads come back.
//!
//! Nothing of CUDA is needed to build it: the driver, of CUDA 12 or later, is loaded at run time. Kernels come compiled with the
//! crate. Where something is missing, [`CudaBackend::new`] says what.
//!
//! Global state: the loaded driver (`libcuda.rs`) and the modules of each context (`modules.rs`).
//!
//! # Enqueued or done
//! Every call says in its first word which it is. *Enqueued*: the work is in the backend's stream, in the order of the
//! calls, and may still be running; errors of its execution come with a later call. *Done*: the call has waited for the
//! stream, because something comes back. A call that has to enlarge the workspace or to load a
//! kernel waits too; [`reserve`](CudaBackend::reserve) does that beforehand. Bytes of the host are read before a call returns. A
//! stream that is being captured into a graph is refused ([`Error::Captured`]) but by the steps of an exchange
//! ([`encode_exchange`](CudaBackend::encode_exchange), [`finish_exchange`](CudaBackend::finish_exchange), and those of what
//! travels by sums).
//!
//! # Exactness
//! Payloads of QSGD and TopK, and what payloads of all methods decode to, are, bit for bit, those of the core: kernels are
//! compiled without contraction, and with subnormal numbers and correctly rounded divisions. PowerSGD's payloads are the
//! same on every device, and decode to nearly the core's matrix. Rows agree with the core's within 1e-4; they are
//! sums in f64, added in an order that depends on the number of elements alone, so the same input gives the same bits.
//!
//! # Inside
//! All code of the host is written once, over the internal trait `Device` (`device.rs`): allocate, upload, clear, copy,
//! launch, download. It has three devices: `driver.rs`, the driver; `counting.rs`, which only notes what it is asked for,
//! so that calls can be rehearsed (`reserve.rs`); and, in tests, `simt.rs`, where g++ compiles the same `.cu`
//! files for the processor.
//!
//! NVIDIA GPUs have IEEE f32 with subnormal numbers, f64 and 64-bit integers, so with contraction off the kernels say what the
//! core says, and rows are f64 sums of blocks, added by one block in order.
//!
//! | module | holds |
//! |---|---|
//! | `backend` | [`CudaBackend`]: the core's trait, and calls on device memory |
//! | `device_payloads`, `pending` | payloads that stay on the device; what has been enqueued and not been checked |
//! | `device_rows`, `window` | rows whose results stay on the device; the mean of a model's last gradients, of which plans are made |
//! | `rows`, `codec`, `tensor`, `magnitude`, `error` | as in lgreco-wgpu |
//! | `exchange` | the exchange of a bucket without the host: `bucket`, a space of lgreco-train's flights; its program, and what kernels read of it and of layers (`layer`); what is gathered (QSGD here, TopK by `selection`) and what is summed (`sums`) |
//! | `factors` | tables of matrices and their factors, for launches over many of them |
//! | `device` | trait `Device`: memory, copies and launches |
//! | `driver`, `counting`, `simt` | its implementations: the driver; notes of what is asked for; the processor |
//! | `reserve` | workspace and kernels before there is work: the calls rehearsed on `counting` |
//! | `gpu` | a device with its workspace, whose parts have one purpose at a time |
//! | `shipped` | the compiled kernels that come with the crate: machine code for 7.0 to 12.x, and PTX |
//! | `kernels` | sources put together from `kernels/*.cu` |
//! | `libcuda` | the functions of the driver's library |
//! | `qsgd`, `topk`, `powersgd` | what the `.cu` file of the same name is asked to do, and `orthonormal.cu` |
//! | `tops` | tables of layers under TopK |
//! | `selection` | TopK's payloads, of one layer or of all of an exchange, and their means: `sample.cu`, `selection.cu`, `kept.cu`, `kept_means.cu` |
//! | `positions` | TopK's payloads back to values; `topk` has its rows, `few_bits` those in few bits: `kept_errors.cu` |
//! | `staging` | page-locked memory through which bytes of the host go to the device |
//! | `inventory` | what devices there are, or what is missing |
//! | `simt/` | `cuda_shim.h`, `cuda_racecheck.cpp`: CUDA C++ on the processor |
//! | `simt/fake_*.cpp` | driver and NCCL for tests |
//!
//! Kernels are checked without a GPU in four ways that fail apart: the shipped machine code and PTX are read (no spills, registers
//! within bounds, rounding and fences as written); g++ compiles the same files against a shim, so that the conformance suite runs through the same
//! launches, in several orders of threads and of blocks; the shim's race check and the sanitizers watch them; and a stand-in for the driver's
//! library runs what only `driver.rs` does. Planted faults of each kind are tests.
//!
//! A method is a pair of files, `NAME.rs` and `kernels/NAME.cu`, and these entries:
//! * `Module` in `kernels.rs`: name, and the files its source is put together from (`device.cu` has block sums and maxima,
//!   `values.cu` the three element types, `philox.cu` the random words, `buckets.cu` QSGD's grids, `codes.cu` its codes,
//!   `blocks.cu` the last block of a launch, `program.cu` what exchanges have in common, `slips.cu` how sums are sent, `tops.cu` layers under TopK,
//!   `few_bits.cu` their codes, `meanings.cu` what these stand for, `counts.cu` magnitudes in bins, `strips.cu` a block's values and where those that are gathered
//!   go, `bins.cu` the bins of TopK's rows, `factors.cu` products with PowerSGD's factors, `orthonormal.cu` their orthonormal
//!   columns).
//! * `NAME.rs`: a `#[repr(C)]` struct `Params` of 4-byte fields, in the order of the source's, and their `FIELDS` for a
//!   test; functions that ask `Gpu` for parts of the workspace (`Scratch`, one purpose at a time, content undefined)
//!   and launch `Kernel { module, entry }` with the parameters, then the addresses of parts of memory. Blocks have `BLOCK`
//!   threads; `gpu::blocks` counts them. Nothing is read back in between.
//! * `rows.rs`: words of results (the first is the bits of the largest magnitude, where not finite or always), `check`,
//!   `row` (enqueues) and `take_row` (makes the row of what came back); `codec.rs`: `header`, `enqueue`, `check` and
//!   `decode`.
//! * Tests: the method's suite in `tests/conformance.rs`, its `Params` in `tests/sources.rs`. The device of the tests makes
//!   every part new, of exactly its size and full of rubbish, so that the sanitizers see every mistake.
#![warn(missing_docs)]
#![deny(unsafe_code)]

// Under the name that it has in examples.
#[cfg(all(test, feature = "train"))]
extern crate self as lgreco_cuda;

#[allow(unsafe_code)]
mod backend;
#[cfg(all(test, feature = "train"))]
#[allow(unsafe_code)]
#[path = "../tests/checks/mod.rs"]
mod checks;
mod codec;
mod counting;
mod device;
#[allow(unsafe_code)]
mod device_payloads;
#[allow(unsafe_code)]
mod device_rows;
#[allow(unsafe_code)]
mod driver;
mod eden;
mod eden_rows;
mod error;
#[allow(unsafe_code)]
mod exchange;
mod factors;
mod few_bits;
mod gpu;
mod inventory;
mod kernels;
#[allow(unsafe_code)]
mod libcuda;
mod magnitude;
#[allow(unsafe_code)]
mod modules;
mod pending;
mod positions;
mod powersgd;
mod qsgd;
mod reserve;
mod row_table;
mod rows;
mod selection;
mod shipped;
#[cfg(any(test, feature = "testing"))]
#[allow(unsafe_code)]
#[cfg_attr(not(test), allow(dead_code, reason = "most of it is for tests"))]
mod simt;
#[allow(unsafe_code)]
mod staging;
#[allow(unsafe_code)]
mod tensor;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod topk;
mod tops;
#[allow(unsafe_code)]
mod window;

/// The README's example, as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

pub use backend::CudaBackend;
pub use device_rows::RowsBytes;
pub use error::{DeviceJobError, Error, Result};
#[cfg(feature = "train")]
pub use exchange::{DeviceBucket, DeviceLayer, DeviceMemory, DeviceRequest};
pub use exchange::{DeviceExchange, ExchangeConfig, ExchangeFault, ExchangeOutcome, ExchangeProgram, OnFault};
pub use inventory::{DeviceInfo, devices};
pub use reserve::Call;
pub use tensor::{DeviceGradient, DeviceJob};
pub use window::DeviceWindow;
