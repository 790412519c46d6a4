//! Trains a convolutional network that is cut in two, with compression at the cut.
//!
//! `cargo run --release --manifest-path examples/Cargo.toml --bin cut [-- --steps N]`
//!
//! The stage above the cut sends its features (512 per image) to the stage below. That stage sends back the gradient of
//! the loss with respect to the features. Every run starts from the same parameters and sees the same images in the
//! same order. After training the network is evaluated twice: with activations compressed as in training but without
//! memory, and with uncompressed activations.

#[path = "../train/batch.rs"]
mod batch;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/convnet.rs"]
mod convnet;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/digits.rs"]
mod digits;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/optimiser.rs"]
mod optimiser;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/parameters.rs"]
mod parameters;
mod stages;
#[cfg(test)]
mod tests;

use clap::Parser;
use lgreco_pipeline::{Codec, CutSetting, Evaluation, Link, LinkMemory, RowStorage, Tile};
use lgreco_train::feedback::Residual;
use lgreco_train::gradient::Dtype;
use stages::{BATCH, FEATURES, Failure, Images, Pipeline};

/// Trains a network that is cut in two, with compression at the cut.
#[derive(Parser)]
struct Args {
    /// Steps of training.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 600)]
    steps: u32,
}

const RATE: f32 = 0.05;
const SEED: u64 = 1;

const DENSE: Codec = Codec::Dense { values: Dtype::F32 };

fn quantised(bits: u8) -> Codec {
    Codec::MinMax { bits, tile: Tile::Elements(128) }
}

const fn eden(bits: u8) -> Codec {
    Codec::Eden { bits }
}

fn top(density: f64) -> Result<Codec, lgreco_pipeline::Error> {
    Codec::top_k(density, FEATURES, Dtype::F32)
}

/// A combination of settings to compare on the same images.
struct Row {
    name: &'static str,
    forward: Link,
    back: Codec,
}

fn row(name: &'static str, codec: Codec, memory: LinkMemory, back: Codec) -> Row {
    Row { name, forward: Link { codec, memory }, back }
}

/// Settings for samples that do not recur.
fn new() -> Result<Vec<Row>, lgreco_pipeline::Error> {
    const NONE: LinkMemory = LinkMemory::None;
    const FEEDBACK: LinkMemory = LinkMemory::Residual(Residual::CLASSIC);
    let same_places = |density: f64| {
        top(density).map(|codec| match codec {
            Codec::TopK { keep, values } => Codec::SharedIndex { keep, values },
            other => other,
        })
    };
    Ok(vec![
        row("uncompressed", DENSE, NONE, DENSE),
        row("activations TopK 10 %", top(0.1)?, NONE, DENSE),
        row("  gradients there, too", top(0.1)?, NONE, same_places(0.1)?),
        row("  with error feedback", top(0.1)?, FEEDBACK, DENSE),
        row("  with EF21", top(0.1)?, LinkMemory::Ef21, DENSE),
        row("activations TopK 5 %", top(0.05)?, NONE, DENSE),
        row("  gradients there, too", top(0.05)?, NONE, same_places(0.05)?),
        row("  with error feedback", top(0.05)?, FEEDBACK, DENSE),
        row("  with EF21", top(0.05)?, LinkMemory::Ef21, DENSE),
        row("gradients TopK 10 %", DENSE, NONE, top(0.1)?),
        row("gradients TopK 5 %", DENSE, NONE, top(0.05)?),
        row("activations 2 bits", quantised(2), NONE, DENSE),
        row("gradients 2 bits", DENSE, NONE, quantised(2)),
        row("activations 1 bit", quantised(1), NONE, DENSE),
        row("gradients 1 bit", DENSE, NONE, quantised(1)),
        row("4 bits, back 8 bits", quantised(4), NONE, quantised(8)),
        row("activations EDEN 2", eden(2), NONE, DENSE),
        row("gradients EDEN 2", DENSE, NONE, eden(2)),
        row("activations EDEN 1", eden(1), NONE, DENSE),
        row("gradients EDEN 1", DENSE, NONE, eden(1)),
        row("EDEN 3, back EDEN 2", eden(3), NONE, eden(2)),
    ])
}

/// Settings for samples that recur.
fn recurring() -> Result<Vec<Row>, lgreco_pipeline::Error> {
    const NONE: LinkMemory = LinkMemory::None;
    const AQ_SGD: LinkMemory = LinkMemory::Samples { capacity: 2000, storage: RowStorage::Bf16 };
    Ok(vec![
        row("uncompressed", DENSE, NONE, DENSE),
        row("activations 2 bits", quantised(2), NONE, DENSE),
        row("  of changes (AQ-SGD)", quantised(2), AQ_SGD, DENSE),
        row("activations 1 bit", quantised(1), NONE, DENSE),
        row("  of changes (AQ-SGD)", quantised(1), AQ_SGD, DENSE),
        row("activations EDEN 1", eden(1), NONE, DENSE),
        row("  of changes (AQ-SGD)", eden(1), AQ_SGD, DENSE),
        row("activations TopK 5 %", top(0.05)?, NONE, DENSE),
        row("  of changes (AQ-SGD)", top(0.05)?, AQ_SGD, DENSE),
    ])
}

fn main() -> Result<(), Failure> {
    let Args { steps } = Args::parse();
    println!("{steps} steps of {BATCH} images; loss in nats and accuracy on images that were not trained on");
    for (images, what, rows) in [
        (Images::New, "images under noise that is new in every step", new()?),
        (Images::Recurring, "images that come again as they were", recurring()?),
    ] {
        println!(
            "\n{what}\n{:<26}{:>14}{:>14}{:>20}{:>20}",
            "at the cut", "bytes/image", "back", "evaluated so", "uncompressed"
        );
        for row in &rows {
            let Outcome { bytes: [forward, back], evaluated } = train(images, row, steps)?;
            let [so, plain] = evaluated.map(|(loss, right)| format!("{loss:.4} {:>8.2} %", 100.0 * right));
            println!("{:<26}{forward:>14}{back:>14}{so:>20}{plain:>20}", row.name);
        }
    }
    Ok(())
}

/// The result of training with a setting.
struct Outcome {
    /// Bytes per image, forward and back.
    bytes: [u64; 2],
    /// Loss and accuracy, first with compression and then without.
    evaluated: [(f32, f32); 2],
}

/// Trains with a setting, and evaluates.
fn train(images: Images, row: &Row, steps: u32) -> Result<Outcome, Failure> {
    let mut setting = CutSetting::new(0, BATCH as u32, FEATURES as u32);
    setting.forward = row.forward;
    setting.backward = Link { codec: row.back, memory: LinkMemory::None };
    let mut pipeline = Pipeline::new(setting, SEED)?;
    for step in 0..steps {
        pipeline.train(images, SEED, step, rate(step, steps))?;
    }
    let bytes = pipeline.bytes().map(|bytes| bytes / u64::from(steps) / BATCH as u64);
    Ok(Outcome {
        bytes,
        evaluated: [pipeline.validate(Evaluation::Compressed)?, pipeline.validate(Evaluation::Plain)?],
    })
}

/// The learning rate: a short rise, then a linear fall.
fn rate(step: u32, steps: u32) -> f32 {
    let progress = step as f32 / steps as f32;
    RATE * (20.0 * progress + 0.05).min(1.0 - 0.9 * progress)
}
