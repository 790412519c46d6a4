//! Compression between pipeline stages of a model: activations forward, gradients backward.
//!
//! A cut has two ends, in two processes. [`Upstream`] sends activations and receives gradients; [`Downstream`] does the
//! reverse. The two ends exchange self-contained messages ([`Message`]) over any transport that neither loses nor
//! reorders messages. If a message is lost or reordered nevertheless, the receiver's next call returns an error and
//! changes nothing. [`Upstream::repeat`] makes a lost message again, unless the forward memory is by position (see
//! below). With a memory by position, keep each message until it has arrived. Each direction has its own [`Codec`] and
//! [`LinkMemory`]. The [`CutSetting`] contains both, and the batch size and the number of features.
//!
//! ```
//! use lgreco_pipeline::{CutSetting, Downstream, Evaluation, RowStorage, LinkMemory, Upstream};
//! use lgreco_pipeline::gradient::Values;
//!
//! // Two samples of 64 features per micro-batch. Forward sends changes of samples, backward sends 8 bits per value.
//! let mut setting = CutSetting::new(0, 2, 64);
//! setting.forward.memory = LinkMemory::Samples { capacity: 1000, storage: RowStorage::Bf16 };
//! let (mut above, mut below) = (Upstream::new(setting, 0)?, Downstream::new(setting, 0)?);
//! let mut workspace = vec![0; above.workspace_len().max(below.workspace_len())];
//! let (mut forward, mut backward) = (vec![0; above.message_len()], vec![0; below.message_len()]);
//!
//! let mut bytes = [0; 2];
//! for (epoch, bytes) in bytes.iter_mut().enumerate() {
//!     // Stage 0 computes activations of samples 7 and 8, and sends them.
//!     let activations: Vec<f32> = (0..128).map(|i| (i as f32 + 0.1 * epoch as f32).sin()).collect();
//!     let sent = above.send(Values::F32(&activations), &[Some(7), Some(8)], &mut workspace, &mut forward)?;
//!     *bytes = sent.len;
//!     // Stage 1 continues with the received values, and sends back the loss's derivative by them.
//!     let mut received = vec![0.0; 128];
//!     let ticket = below.receive(&forward[..sent.len], &mut workspace, &mut received)?;
//!     assert!(received.iter().zip(&activations).all(|(y, x)| (y - x).abs() < 0.02));
//!     let gradients = received;
//!     let len = below.send(ticket, Values::F32(&gradients), &mut workspace, &mut backward)?;
//!     // Stage 0 backpropagates the received derivative as if it were uncompressed.
//!     let mut derivative = vec![0.0; 128];
//!     assert_eq!(above.receive(&backward[..len], &mut workspace, &mut derivative)?, sent.ticket);
//!     // Both ends commit after the optimiser's step.
//!     above.commit_step()?;
//!     below.commit_step()?;
//! }
//! assert_eq!(bytes, [64 + 2 * 16 + 2 * 256, 64 + 2 * 16 + 2 * (8 + 32)]); // the first visit is uncompressed
//!
//! // Evaluation changes nothing.
//! let len = above.evaluate(Evaluation::Compressed, Values::F32(&[0.5; 64]), &mut workspace, &mut forward)?;
//! let mut received = vec![0.0; 64];
//! below.evaluate(&forward[..len], &mut received)?;
//! assert_eq!(received, [0.5; 64]);
//! # Ok::<(), lgreco_pipeline::Error>(())
//! ```
//!
//! # Memories
//! | [`LinkMemory`] | compressed, for activations or gradients `x` | the receiver uses | in memory |
//! |---|---|---|---|
//! | [`None`](LinkMemory::None) | `x` as `c` | `c` | |
//! | [`Residual`](LinkMemory::Residual) | `x + e` as `c` | `c` | sender: `e + x − c`, by position in the batch |
//! | [`Mixed`](LinkMemory::Mixed) | `x + e` at entries chosen half by abs x, half by abs e | `c` | as `Residual` |
//! | [`Ef21`](LinkMemory::Ef21) | `x − A` as `c` | `A + c` | both ends: `A + c`, by position in the batch |
//! | [`Samples`](LinkMemory::Samples) | `x − m` as `c`; first visit: `x` uncompressed | `m + c`, or `x` | both ends: what the receiver uses, rounded, by sample |
//!
//! `Residual`, `Mixed` and `Ef21` are memories by position: they hold a value for each position in the batch. Every
//! training message updates a memory by position, so all training batches must have the same size. With `Residual` and
//! `Mixed`, the compression error at one position is added to the next sample at that position.
//!
//! Only [`commit_step`](Upstream::commit_step) updates the memory of samples, so that all forward passes of a step use
//! the same rows. Both ends must commit at the same point of the sequence of activation messages. A first visit is a
//! visit of a sample that is not in memory, in any epoch. The memory of samples pays off when a sample's activations
//! change little between visits. The memory does not pay off with random crops or dropout above the cut, or in the
//! first epoch. [`Counters::change_ratio`] measures whether the memory pays off.
//!
//! # What is promised
//! * With EF21 and AQ-SGD, the memories of both ends have the same bits. A message carries generation, sequence number,
//!   number of committed steps, and a checksum of the sender's memory. If a number in a message is not the expected
//!   one, the call returns an error with both numbers.
//! * A failed call changes nothing. Evaluation and repetition take `&self`.
//! * Every codec decodes a batch of zeros to zeros. So if all samples of a message equal their rows in memory, the
//!   receiver reconstructs these samples exactly.
//! * An end that is restored from saved bytes gives the same bits as the saved end, on any machine.
//! * Codecs and [`Message`] do not allocate. Ends allocate when they are made, and while a memory of samples grows.
//!
//! # Source
//! Rudakov, Beznosikov, Kholodov, Gasnikov, "Activations and Gradients Compression for Model-Parallel Training", arXiv
//! 2401.07788: the source of codecs per direction, EF and EF21 by position, shared indices, and evaluation with
//! compression. EF21: Richtárik, Sokolov, Fatkhullin, NeurIPS 2021. AQ-SGD: Wang et al., "Fine-tuning Language Models
//! over Slow Networks using Activation Quantization with Guarantees", NeurIPS 2022. Deviations from AQ-SGD's code: (1)
//! In any epoch, the visit of a sample that is not in memory is a first visit. (2) Beyond the capacity, the least
//! recently updated samples are evicted. (3) Rows are bf16 instead of f16, which overflows.

#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod codec;
mod counters;
mod digest;
mod downstream;
mod end;
mod error;
mod estimate;
mod half;
mod message;
mod mixed;
mod receive;
mod rotated;
mod saved;
mod send;
mod setting;
mod sparse;
mod store;
mod symmetric;
mod text;
mod tickets;
mod upstream;
mod values;

pub use codec::{Codec, Tile};
pub use counters::Counters;
pub use downstream::Downstream;
pub use end::{Above, Below, End, Side};
pub use error::Error;
pub use message::{Direction, HEADER_LEN, Header, Message, Mode, SAMPLE_ENTRY_LEN};
pub use setting::{Compatibility, CutSetting, Link, LinkMemory, RowStorage};
pub use symmetric::Scope;
pub use upstream::{Evaluation, Sent, Upstream};

pub use lgreco_train::{CoreError, feedback, gradient};

use lgreco_train::{compress, rng};
