//! How fast kernels can be, from their machine code: a gate that needs no device, and a prediction.
//!
//! `nvdisasm` prints the machine code that the crate ships. Of every kernel that goes over values (`HOT`) the costliest
//! way round its loop is followed (`sass`), and what is executed on it is divided by the values that it is for. Code
//! that `HOT` calls cold (for other types of elements, ends of layers, rare values) is left out where there is another way; a kernel
//! that takes other types as well, or other codes, has entries for their ways. That
//! gives instructions per value, in all and by the unit that executes them, and bytes of device memory per value; the
//! cubin tells registers and shared memory (`cubin`), and these how many warps a multiprocessor holds (`occupancy`). `bounds.txt`
//! has all of it: a test fails where a kernel has come to need more, or to have fewer warps. `LGRECO_BLESS=1` writes it anew. Of
//! code for 7.0, which the disassembler does not read, it has what the cubin tells.
//!
//! # The model of time
//! A pass over values takes the longest of
//! * bytes / the bandwidth of a copy as others have measured it on such a GPU;
//! * instructions / (multiprocessors × 4 schedulers × 32 lanes × clock × `ISSUED`), or those of a unit alone, which takes several
//!   cycles for a warp: 2 for integers, 8 for conversions, 4 for shared memory, 2 or 64 for f64;
//! * turns of loops × the latency of memory / threads that are resident (Little's law, with a turn's loads under way at once);
//!
//! and an operation takes the sum of its passes and `COMMAND` for each command that it enqueues: launches, copies, memory
//! filled, as a device counts them that does nothing (`calls`). Launches over what TopK has gathered, 1.5 % of the values, count by their bytes alone. What the model leaves out: launches over PowerSGD's factors alone, bank conflicts, atomics that meet, caches (every byte is read from memory), the last wave
//! of blocks, and that nothing overlaps perfectly. It has not been compared with any GPU yet.

mod bounds;
// The backend's calls take addresses.
#[allow(unsafe_code)]
mod calls;
mod cubin;
mod disassembler;
mod gpus;
mod hot;
mod occupancy;
mod operations;
mod passes;
mod report;
mod sass;
mod table;
#[cfg(test)]
mod tests;

pub use gpus::Gpu;
pub use operations::{Operation, Prediction};
pub use report::report;
pub use table::{OF_MODELS, OPERATIONS};
