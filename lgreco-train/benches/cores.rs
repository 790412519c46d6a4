//! Measures how much several cores accelerate a whole exchange with error feedback. Asserts that means and residuals
//! are the same as on one core.
//!
//! `cargo bench -p lgreco-train --features rayon --bench cores [-- CORES]`. The benchmark uses 2 cores by default. There
//! is only one worker, so the times contain no waiting for other workers.

use lgreco_train::Error;
use lgreco_train::compress::{Setting, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco_train::controller::{Config, Controller, Feedback, Policy, Tensor};
use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::feedback::Residual;
use lgreco_train::gradient::{Dtype, ValuesMut};
use lgreco_train::rng::Stream;
use lgreco_train::search::{Method, Search};
use std::time::Instant;

const STEPS: usize = 12;

/// Trains `layers` layers of `rows` × `cols` for some steps. Returns means and residuals, and the seconds of the fastest
/// step.
fn train(setting: Setting, layers: usize, [rows, cols]: [usize; 2]) -> Result<(Vec<f32>, f64), Error> {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = Config::new(Search::new(Method::TopK));
    config.policy = Policy::Fixed(vec![setting; layers]);
    config.feedback = Feedback::always(Residual::CLASSIC);
    (config.schedule.warmup, config.metrics_every, config.bucket_bytes) = (2, 0, usize::MAX);
    let tensors = (0..layers).map(|i| Tensor::new(&format!("layer {i}"), &[rows, cols], Dtype::F32));
    let mut controller =
        Controller::new(config, tensors.collect::<Result<_, _>>()?, worker.rank(), worker.world_size())?;
    let stream = Stream { seed: 3, ..Stream::default() };
    // Like gradients, these values have heavier tails than a uniform distribution.
    let value = |i| ((stream.word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).powi(3);
    let gradient: Vec<f32> = (0..(layers * rows * cols) as u64).map(value).collect();
    let (mut values, mut fastest) = (gradient.clone(), f64::INFINITY);
    for step in 0..STEPS {
        values.copy_from_slice(&gradient);
        let mut layers: Vec<_> = values.chunks_mut(rows * cols).map(ValuesMut::F32).collect();
        let start = Instant::now();
        controller.step(&mut worker, &mut layers, 0.1)?;
        if step >= 4 {
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
    }
    for layer in 0..layers {
        let mut residual = vec![0.0; rows * cols];
        controller.residual(layer, &mut residual)?;
        values.extend(residual);
    }
    Ok((values, fastest))
}

fn main() -> Result<(), Error> {
    let cores = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(2);
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    println!("| | layers | ms on one core | on {cores} | times as fast |\n|---|---|--:|--:|--:|");
    for (layers, shape) in [(1, [4096, 4096]), (16, [1024, 1024]), (1024, [128, 128])] {
        let elements = (shape[0] * shape[1]) as u32;
        let settings = [
            ("topk 1 %", Setting::TopK(TopK { keep: elements / 100, values: Dtype::F32 })),
            ("qsgd 4", Setting::Qsgd(Qsgd::default())),
            ("powersgd 4", Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 })),
        ];
        for (name, setting) in settings {
            let (expected, alone) = pool(1).install(|| train(setting, layers, shape))?;
            let (found, together) = pool(cores).install(|| train(setting, layers, shape))?;
            assert!(found == expected, "{name}: other means or residuals on {cores} cores");
            let ratio = alone / together;
            let [rows, cols] = shape;
            println!(
                "| {name} | {layers} of {rows} × {cols} | {:.1} | {:.1} | {ratio:.2} |",
                1e3 * alone,
                1e3 * together
            );
        }
    }
    Ok(())
}
