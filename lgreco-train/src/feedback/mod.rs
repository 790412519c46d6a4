//! Error feedback: each worker keeps its compression errors, so that they are sent later instead of lost.
//!
//! A [`Memory`] belongs to one layer on one rank. In every step, the [`Memory`] adds its residual `m` to the gradient `g`, and the
//! sum `p = m + g` is compressed. With the decoded payload `ĝ` and the gain `a`, the next residual is
//! `m + a (g − ĝ) = (1 − a) m + a (p − ĝ)`. [`Residual`] has the gain, the format and the period of resets. The crate
//! `lgreco-pipeline` also has EF-mixed and EF21.
//!
//! AdaComp ([`adacomp`](crate::compress::adacomp)) is the only method that uses `g` besides `p`. [`Memory::step`] passes both.
//!
//! Error feedback works with all methods, except for some settings of QSGD. [`suits()`] checks a setting without a gradient, and
//! [`contraction`] checks a setting on a gradient. QSGD is unbiased and needs no feedback. Error feedback works with QSGD in 4 bits
//! and buckets of up to 512 elements, and in 3 bits and buckets of 128. With too few bits for its bucket, QSGD is not a
//! contraction, and the residual grows from step to step until it overflows. LoCo's own feedback is [`Residual::LOCO`].
//!
//! [`Memory::step`] makes a whole step of error feedback for one payload. Its two halves, [`Memory::compensate`] and
//! [`Memory::update`], are for methods with collectives between compressing and decoding (PowerSGD's two all-reduces, the leader's
//! indices of ScaleCom).
//!
//! # What is promised
//! * Mass balance (`a` = 1, [`Storage::F32`]): per element, the sum of all `ĝ` plus the residual is the sum of all `g`, up to
//!   `2^-24 · Σ (|p| + |p − ĝ|)` over the steps. The difference is the rounding of one addition and one subtraction per step. With
//!   TopK and values in f32, the residual has unsent elements bit for bit, and zeros for sent elements.
//! * For any `a`, the mean of the decoded payloads tends to the mean gradient as long as the residual stays bounded:
//!   `a Σ (g − ĝ)`, summed over all steps, is the change of the residual. A reset discards the residual's gradient
//!   mass. With `a` < 1, a sent coordinate is *not* cleared: it keeps `(1 − a) m`.
//! * The residual stays bounded if the compressor is a contraction, which [`contraction`] and [`require_contraction`] check.
//! * After any error, the memory is unchanged: for instance after non-finite gradients, overflow, or short buffers.
//! * No call except [`Memory::owned`] allocates.
//!
//! The residual is in units of the gradient. A new learning rate changes nothing, but a new loss scale needs [`Memory::rescale`].
//!
//! # PowerSGD and averages
//! The `ĝ` of [`Memory::update`] is *this worker's* decoded payload, never the average over workers. For PowerSGD, `ĝ` is the
//! product with the worker's own `Q` before averaging, so that `m = (I − P̂ P̂ᵀ) p`. Subtracting the average over workers would
//! train equally well in exact arithmetic, because the difference averages to zero over the workers. However, each worker's
//! residual would then also accumulate `g − mean g`, a random walk whose norm grows like the square root of the number of steps. A
//! tensor that is averaged without compression needs no memory. PowerSGD's start matrix must change from step to step:
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
mod residual;
mod saved;
mod step;
mod storage;
mod suits;
mod values;

pub use contraction::{contraction, contraction_workspace_len, require_contraction};
pub use memory::Memory;
pub use residual::Residual;
pub use saved::SavedState;
pub use step::payload_stream;
pub use storage::{GROUP, Storage};
pub use suits::{suits, suits_gradient};
pub(crate) use values::{copy, is_finite, plain_values, squared_norm};
