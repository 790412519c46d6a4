//! Decides, layer by layer, how strongly to compress each gradient, and compresses the gradients. For training,
//! `lgreco-train` adds error feedback and exchange.
//!
//! Data flows one way: gradients → measured rows → [`table`] → [`plan`](mod@plan) → [`compress`] → payloads. This crate
//! measures a model ([`search`] on a [`backend`]), and reads and writes files. The crate re-exports tables and planners
//! of `lgreco-core` and compressors of `lgreco-compress`, under the same module names.
//!
//! ```
//! use lgreco::{Model, rng::Stream};
//!
//! // Two layers, the second with much smaller gradients.
//! let wave = |scale: f32| (0..65536).map(|i| scale * (i as f32).sin()).collect::<Vec<f32>>();
//! let (fc1, fc2) = (wave(1.0), wave(0.01));
//! let model = Model::new([("fc1.weight", [256, 256], &fc1[..]), ("fc2.weight", [256, 256], &fc2)])?;
//!
//! // The error that 4 bits would have everywhere, in fewer bits.
//! let plan = lgreco::plan(&model).within_uniform("qsgd 4").solve()?;
//! assert!(plan.summary().proven() && plan.summary().size < plan.uniform().size);
//! println!("{plan}");
//!
//! // Compress each layer by the plan. Every worker has its own rank, every step its own number.
//! for (codec, layer) in plan.codecs().iter().zip(model.layers()) {
//!     let stream = Stream { seed: 1, step: 0, rank: 0, ..Stream::default() };
//!     let payload = codec.encode(&layer.gradient(), stream)?;
//!     let decoded: Vec<f32> = codec.decode(&payload)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Codec`] also has calls that do not allocate. The modules [`search`] and [`plan`](mod@plan) offer the steps of this
//! example one by one, with all options.
//!
//! # Units
//! * `size`: bits that one worker puts on the wire for one layer, header included; `u64`.
//! * `squared error`: squared L2 norm of `gradient − decode(encode(gradient))`, in `f64`. `error` is the squared error,
//!   converted to the chosen metric.
//! * workspaces: counted in 8-byte words. All calls take a workspace as `&mut [u64]`, and use parts of it as f32, f64
//!   or u32. The old content of a workspace never changes a result; tests fill workspaces with arbitrary bits.
//!
//! # Features
//! Without features the crate is `no_std` and needs no allocator.
//! * `std` (default): chooses vector instructions at run time. Without this feature, loops use the instructions of the
//!   compilation target. Results have the same bits with and without `std`. Implies `alloc`.
//! * `avx512` (default): also compiles loops for AVX-512. Compilation takes a third longer. Implies `std`.
//! * `alloc`: named tables, plans that own their choices, the planner that allocates its workspace, and the module `search`.
//! * `gemm`: a faster matrix product for [PowerSGD](compress::powersgd) at high ranks. The results of PowerSGD may then
//!   differ between processors. Implies `std`.
//! * `rayon`: `backend::Parallel`, which measures layers in parallel. Long layers are also compressed and decoded on
//!   all cores of rayon's current thread pool. Results have the same bits as on one core. A thread that waits for such
//!   a layer may run another task of the pool. So tasks of the same pool must not block in collectives. Implies `std`.
//! * `json`: the module `file`, which reads and writes table and plan files. Implies `alloc`.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod backend;
#[cfg(feature = "alloc")]
mod codec;
#[cfg(feature = "alloc")]
pub mod conformance;
#[cfg(feature = "json")]
pub mod file;
#[cfg(feature = "alloc")]
mod model;
#[cfg(feature = "alloc")]
pub mod search;
pub mod table;

#[cfg(feature = "alloc")]
pub use codec::Codec;
pub use lgreco_compress as compress;
pub use lgreco_core::{Error, Result, Word, checksum, error, gradient, num, plan, rng, simd};
#[cfg(feature = "alloc")]
pub use model::{Model, ModelPlan, Planning, plan};
