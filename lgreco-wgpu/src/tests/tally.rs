//! Histograms that workgroups keep in their own memory, where bins of theirs share a place.

use super::{ROWS, backend, check_payload};
use lgreco_core::backend::Job;
use lgreco_core::compress::{Candidates, Setting, topk::TopK};
use lgreco_core::gradient::Dtype;
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::{Tensor, check_rows};
use lgreco_core::testing::powersgd::uniform;

/// Magnitudes twelve binades apart, whose bins have the same place, by turns of different lengths.
fn sharing(elements: usize) -> Vec<f32> {
    let values = uniform(elements, 21).into_iter().enumerate();
    let shared = |(i, x): (usize, f32)| {
        let binade = [0, 12, 24, 12, 0][i / 700 % 5] - 12 * i32::from(i % 3 == 0);
        x.signum() * (1.0 + x.abs() / 3.0) * 2f32.powi(-binade)
    };
    values.map(shared).collect()
}

#[test]
fn bins_that_share_a_place_lose_nothing() {
    let Some(mut backend) = backend() else { return };
    let (rows, cols) = (250, 200);
    // The same magnitude everywhere is one bin of every level.
    for values in [sharing(rows * cols), vec![0.3; rows * cols]] {
        let tensor = Tensor::new(&values, rows, cols);
        let keeps = [1, 100, 9000, 9001, 30_000, 49_999];
        for (gradient, values) in tensor.gradients().into_iter().zip([Dtype::F16, Dtype::F32, Dtype::Bf16]) {
            for keep in keeps {
                check_payload(&mut backend, &Setting::TopK(TopK { keep, values }), &gradient, Stream::default());
            }
            let candidates = Candidates::TopK { values, keeps: &keeps };
            check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        }
    }
}
