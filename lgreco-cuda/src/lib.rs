//! lgreco's error tables and compressors on NVIDIA GPUs.
//!
//! [`CudaBackend`] is a [`Backend`](lgreco::backend::Backend): the backend takes gradients in host memory. The backend
//! also takes gradients in device memory ([`DeviceGradient`]), in the context and on the stream of a trainer. For
//! gradients in device memory, only payloads and rows of the error table are copied to the host.
//!
//! Building needs no CUDA. The driver, of CUDA 12 or later, is loaded at run time, and the crate contains compiled
//! kernels. If the driver or a device is missing or unsuitable, the error of [`CudaBackend::new`] says so.
//!
//! Global state: the loaded driver (`libcuda.rs`) and the modules of each context (`modules.rs`).
//!
//! # Enqueued or done
//! Each call's documentation begins with *Enqueued* or *Done*. *Enqueued* means that the call has put its work into the
//! backend's stream, in the order of the calls. The work may still be running after the call. If the work fails, a
//! later call returns the error. *Done* means that the call has waited for the stream, because it returns a result. A
//! call also waits if it must enlarge the workspace or load a kernel; [`reserve`](CudaBackend::reserve) does both
//! beforehand. A call reads its host bytes before it returns. Most calls refuse a stream that is being captured into a
//! graph ([`Error::Captured`]). The exceptions are the calls that make up the steps of an exchange:
//! [`encode_exchange`](CudaBackend::encode_exchange), [`finish_exchange`](CudaBackend::finish_exchange), and the calls
//! for layers that are summed by collectives (uncompressed layers and PowerSGD's factors).
//!
//! # Exactness
//! Payloads of QSGD, TopK and EDEN have the same bits as the core's payloads. A payload of any method decodes to the
//! same bits as in the core. For this purpose, kernels are compiled without contraction to fused multiply-add, with
//! subnormal numbers and with correctly rounded divisions. PowerSGD's payloads are the same on every device, and decode
//! to nearly the same matrix as the core's payloads. The errors in rows agree with the core's up to a relative
//! difference of 1e-4. Rows are f64 sums in an order that depends only on the number of elements, so the same input
//! gives the same bits.
//!
//! # Inside
//! The host code reaches the device through the internal trait `Device` (`device.rs`): allocate, upload, clear, copy,
//! launch, download. The trait has three implementations. `driver.rs` calls the driver. `counting.rs` only records
//! requests, so that `reserve.rs` can find out what memory and kernels calls need. In tests, `simt.rs` runs the same
//! `.cu` files on the processor, compiled by g++.
//!
//! NVIDIA GPUs have IEEE f32 with subnormal numbers, f64 and 64-bit integers. Because the kernels are compiled without
//! contraction, their results are the same as the core's. For a row, each block computes an f64 sum, and one block adds
//! these sums in order.
//!
//! | module | content |
//! |---|---|
//! | `backend` | [`CudaBackend`]: the core's trait, and calls on device memory |
//! | `device_payloads`, `pending` | payloads that stay on the device; enqueued calls that have not been checked |
//! | `device_rows`, `window` | rows whose results stay on the device; the mean of a model's last gradients, from which plans are made |
//! | `rows`, `codec`, `tensor`, `magnitude`, `error` | as in lgreco-wgpu |
//! | `exchange` | the exchange of a bucket whose data stays on the device: `bucket`, the memory that lgreco-train's exchange works on; `program`, and the tables that kernels read (`layer`); layers that are gathered (QSGD here, EDEN in `rotated`, TopK in `selection`) and layers that are summed (`sums`, `summed`) |
//! | `factors` | tables of matrices and their factors, for launches over many of them |
//! | `device` | trait `Device`: memory, copies and launches |
//! | `driver`, `counting`, `simt` | its implementations: the driver; a recorder of requests; the processor |
//! | `reserve` | allocates the workspace and loads kernels before the first call, after a rehearsal of the calls on `counting` |
//! | `gpu` | a device with its workspace; each part of the workspace has one purpose at a time |
//! | `shipped` | the compiled kernels that come with the crate: machine code for 7.0 to 12.x, and PTX |
//! | `kernels` | the source of each module, from the files `kernels/*.cu` |
//! | `libcuda` | the functions of the driver's library |
//! | `qsgd`, `topk`, `powersgd` | launches of the `.cu` file of the same name, and of `orthonormal.cu` |
//! | `tops` | tables of layers under TopK |
//! | `selection` | TopK's payloads, for one layer or all layers of an exchange, and their means: `sample.cu`, `selection.cu`, `kept.cu`, `kept_means.cu` |
//! | `positions` | decoding of TopK's payloads. `topk` has the rows of TopK with full values, and `few_bits` those of TopK in few bits (`kept_errors.cu`) |
//! | `staging` | page-locked memory through which host bytes are uploaded |
//! | `inventory` | the devices of this machine, or what is missing |
//! | `simt/` | `cuda_shim.h`, `cuda_racecheck.cpp`: CUDA C++ on the processor |
//! | `simt/fake_*.cpp` | simulated driver and NCCL for tests |
//!
//! Four independent checks of the kernels need no GPU. Tests read the shipped machine code and PTX: no registers may
//! spill, the number of registers must be within bounds, and rounding and fences must be as in the sources. The
//! conformance suite makes the same launches on the CPU, in several orders of threads and blocks. For this, g++
//! compiles the kernels' files against a shim. The shim's race check and the sanitizers also check the kernels on the
//! CPU. Tests with a simulated driver library run the code of `driver.rs`. For each check, tests plant faults that the
//! check must find.
//!
//! A method consists of two files, `NAME.rs` and `kernels/NAME.cu`, and of entries in other files:
//! * `Module` in `kernels.rs`: its name, and the files that make up its source. Several methods use `device.cu` (block
//!   sums and maxima), `values.cu` (the three element types), `philox.cu` (random words) and `blocks.cu` (the last
//!   block of a launch). Exchanges use `program.cu` (common parts) and `slips.cu` (status records after sums). QSGD
//!   uses `buckets.cu` (grids) and `codes.cu` (codes). TopK uses `tops.cu` (layers), `counts.cu` (numbers of magnitudes
//!   per bin), `strips.cu` (the values of a block, and the positions of gathered values) and `bins.cu` (bins of rows).
//!   TopK in few bits uses `few_bits.cu` (codes) and `meanings.cu` (the values of codes). PowerSGD uses `factors.cu`
//!   (products with factors) and `orthonormal.cu` (orthonormal columns of factors).
//! * `NAME.rs`: a `#[repr(C)]` struct `Params` of 4-byte fields, in the order of the `.cu` file, and the list `FIELDS`
//!   of these fields for a test. The functions of `NAME.rs` ask `Gpu` for parts of the workspace (`Scratch`: one
//!   purpose at a time, content undefined). The functions launch `Kernel { module, entry }` with the parameters,
//!   followed by the addresses of parts of memory. A block has `BLOCK` threads; `gpu::blocks` gives the number of
//!   blocks for a number of threads. The host downloads nothing between the launches.
//! * `rows.rs`: the number of result words of a row, `check`, `row` (enqueues) and `take_row` (makes the row from the
//!   results). The first result word has the bits of the largest magnitude, at least if this magnitude is not finite.
//!   `codec.rs`: `header`, `enqueue`, `check` and `decode`.
//! * Tests: the method's suite in `tests/conformance.rs`, its `Params` in `tests/sources.rs`. The test device allocates
//!   memory anew for every part, with exactly the part's size, so that the sanitizers find accesses outside a part. The
//!   test device fills new memory with arbitrary content, so that reads of undefined memory are visible in results.
#![warn(missing_docs)]
#![deny(unsafe_code)]

// Examples use the crate under this name.
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

/// Makes the README's example a doctest.
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
