//! Fits a metric to some plans, and measures how much better it then predicts the loss of other plans.

use crate::prediction::spearman;
use lgreco_train::rng::Stream;

const SPLITS: u32 = 200;

/// Returns two rank correlations (Spearman's) between a metric and the losses of plans. The metric is the part of biased
/// methods, plus a weight times the part of unbiased methods. For the first correlation, the weight is fitted to one half
/// of the plans, and the correlation is that of the other half. For the second correlation, the weight is `weight`. Both
/// are means over random halves.
pub fn halves(parts: &[[f64; 2]], losses: &[f64], weight: f64) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for split in 0..SPLITS {
        let stream = Stream { seed: u64::from_le_bytes(*b"halves  "), step: split, ..Stream::default() };
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_cached_key(|&plan| stream.word(plan as u64));
        let (fitted, others) = order.split_at(parts.len() / 2);
        let correlation = |plans: &[usize], weight: f64| {
            let predicted: Vec<f64> = plans.iter().map(|&plan| parts[plan][0] + weight * parts[plan][1]).collect();
            spearman(&predicted, &plans.iter().map(|&plan| losses[plan]).collect::<Vec<_>>())
        };
        let weights = (-20..=8).map(|half| f64::from(half).exp2().sqrt());
        let best = weights.max_by(|a, b| correlation(fitted, *a).total_cmp(&correlation(fitted, *b))).unwrap_or(weight);
        for (sum, weight) in sums.iter_mut().zip([best, weight]) {
            *sum += correlation(others, weight) / f64::from(SPLITS);
        }
    }
    sums
}
