//! The data of one training step.

use candle_core::{D, Result, Tensor};
use lgreco_train::rng::Stream;

/// Inputs of a model and the correct predictions.
pub struct Batch {
    /// Text: characters, batch × context. Digits: pixels, batch × 1 × 8 × 8.
    pub inputs: Tensor,
    /// Correct classes, one per prediction: the next characters, or the digits.
    pub targets: Tensor,
}

impl Batch {
    /// Mean cross-entropy of `scores` (predictions × classes) in nats per prediction.
    pub fn loss(&self, scores: &Tensor) -> Result<Tensor> {
        let right = scores.gather(&self.targets.unsqueeze(1)?, 1)?.squeeze(1)?;
        (scores.log_sum_exp(D::Minus1)? - right)?.mean_all()
    }
}

/// Draws numbers below a bound for a worker's batch. This random stream differs from the streams of compression, noise
/// and starting values.
pub fn draw(seed: u64, step: u32, rank: u32) -> impl Fn(usize, usize) -> usize {
    let stream = Stream { seed: seed ^ u64::from_le_bytes(*b"batches "), step, layer: 0, rank };
    move |index, below| ((stream.word(index as u64) as u64 * below as u64) >> 32) as usize
}
