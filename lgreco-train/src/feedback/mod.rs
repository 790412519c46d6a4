//! What a worker remembers between steps, so that what compression leaves out is sent later instead of lost.
//!
//! A [`Memory`] belongs to one layer on one rank. Every step it turns the gradient `g` into what is compressed, `p = m + g`,
//! and updates itself from what the payload decodes to, `ĝ`: to `m + a (g − ĝ) = (1 − a) m + a (p − ĝ)`, where `a` is the
//! gain. [`Residual`] says how it is kept. Pipeline cuts have EF-mixed and EF21, too.
//!
//! AdaComp ([`adacomp`](crate::compress::adacomp)) is the one method that looks at `g` beside `p`: [`Memory::step`] hands it
//! both.
//!
//! All methods go with it, [`suits()`] tells before there is a gradient, [`contraction`] of a gradient. QSGD is unbiased and
//! needs no feedback, and goes with it by bits and bucket: 4 bits in up to 512, 3 in 128. With too few bits for its bucket it
//! is no contraction, and whatever is remembered grows from step to step until it overflows. LoCo's own feedback is
//! [`Residual::LOCO`].
//!
//! [`Memory::step`] does the whole of it for one payload. Where collectives come between compressing and decoding
//! (PowerSGD's two all-reduces, the leader's indices of ScaleCom), [`Memory::compensate`] and [`Memory::update`] are
//! its two halves.
//!
//! # What is promised
//! * Mass balance (`a` = 1, [`Storage::F32`]): per element, the sum of all `ĝ` plus the memory is the sum of all `g`,
//!   up to `2^-24 · Σ (|p| + |p − ĝ|)` over the steps, the rounding of one addition and one subtraction each. What
//!   TopK (values in f32) does not send, the memory holds bit for bit; what it sends is cleared.
//! * For any `a` the mean of what is delivered tends to the mean gradient as long as the memory stays bounded: summed
//!   over `T` steps, `a Σ (g − ĝ)` is the memory's change. A reset forgets the memory and thereby that mass. With
//!   `a` < 1 a sent coordinate is *not* cleared: it keeps `(1 − a) m`.
//! * Bounded it stays when the compressor is a contraction; ask [`contraction`] and [`require_contraction`].
//! * Whatever fails, the memory is unchanged: non-finite gradients, overflow, short buffers.
//! * No call allocates.
//!
//! The memory is in gradient units: a new learning rate changes nothing, a new loss scale needs
//! [`Memory::rescale`].
//!
//! # PowerSGD and averages
//! The `ĝ` of [`Memory::update`] is what *this worker's* payload decodes to, never the average over workers: for
//! PowerSGD the product with the worker's own `Q`, before it is averaged, so that `m = (I − P̂ P̂ᵀ) p`. Subtracting the
//! average trains alike in exact arithmetic, because the difference averages to zero over the workers, but then each
//! worker's memory also accumulates `g − mean g`, a random walk whose norm grows like the square root of the number of
//! steps. A tensor reduced exactly needs no memory at all. The start matrix must change from step to step:
//! [`payload_stream`].
//!
//! # Source
//! Seide et al., Interspeech 2014, and Karimireddy et al., ICML 2019 (error feedback, here with the learning rate
//! outside); Chen et al., "ScaleCom", NeurIPS 2020 (low-pass filter, `a` = its beta); Xie et al., "LoCo", 2024 (8-bit
//! moving average with resets, `a` = 1 − its beta; our groups have [`GROUP`] elements and power-of-two scales, and
//! rounding is stochastic); Vogels et al., NeurIPS 2019 (PowerSGD; deviation: own instead of averaged `Q`).

mod contraction;
mod kernels;
mod memory;
mod plain;
mod residual;
mod saved;
mod step;
mod storage;
mod suits;

pub use contraction::{contraction, contraction_workspace_len, require_contraction};
pub use memory::Memory;
pub(crate) use plain::{copy, is_finite, plain_values, squared_norm};
pub use residual::Residual;
pub use saved::SavedState;
pub use step::payload_stream;
pub use storage::{GROUP, Storage};
pub use suits::{suits, suits_gradient};
