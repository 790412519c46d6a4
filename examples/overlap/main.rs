//! Exchanges gradients during the backward pass. The trained parameters equal those of a run without overlap, bit for
//! bit.
//!
//! `cargo run --release --manifest-path examples/Cargo.toml --bin overlap [-- --mbits N]`
//!
//! Two workers, threads of this process, train a perceptron on images of digits. The perceptron's layers are
//! differentiated one by one, from the last to the first. Each layer is submitted as a bucket as soon as its gradients
//! are ready, and a separate thread performs the bucket's collectives. Collectives among threads take almost no time,
//! so every worker also waits for the time of its bytes on a link.

#[path = "../train/batch.rs"]
mod batch;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/digits.rs"]
mod digits;
mod link;
mod model;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/optimiser.rs"]
mod optimiser;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/parameters.rs"]
mod parameters;
#[cfg(test)]
mod tests;
mod worker;

use clap::Parser;
use lgreco_train::controller::{Config, Schedule};
use lgreco_train::search::{Method, Search};
use std::num::NonZeroU32;
use worker::{Failure, Run};

/// Overlaps the exchange of gradients with the backward pass.
#[derive(Parser)]
struct Args {
    /// Rate of each worker's link, in Mbit/s.
    #[arg(long, default_value = "200")]
    mbits: NonZeroU32,
}

const WORKERS: usize = 2;
const ROUNDS: usize = 4;

/// L-GreCo plans after a short warm-up, and again after each period.
fn config(method: Method, warmup: u64, period: u64) -> Config {
    let mut config = Config::new(Search::new(method));
    config.schedule = Schedule { warmup, period, window: warmup, lead: 0 };
    config
}

fn main() -> Result<(), Failure> {
    let Args { mbits } = Args::parse();
    println!("{WORKERS} workers, links of {mbits} Mbit/s, L-GreCo over QSGD\n");
    println!("{:12}{:>12}{:>14}{:>18}", "", "bytes sent", "uncompressed", "median step, ms");
    let (mut times, mut trained) = ([(); 2].map(|()| Vec::new()), Vec::new());
    // Runs with and without overlap alternate, because other programs slow the machine down at times.
    for overlapped in [false, true].repeat(ROUNDS) {
        let run = Run { hidden: vec![512; 5], images: 128, steps: 60, config: config(Method::Qsgd, 5, 40), overlapped };
        let outcomes = run.train(&[(); WORKERS].map(|()| link::of_mbits(mbits)))?;
        // Steps before the first decision are uncompressed, and not counted.
        let planned = outcomes[0].steps.iter().skip_while(|(_, switched)| !switched);
        times[usize::from(overlapped)].extend(planned.map(|(time, _)| time.as_secs_f64() * 1e3));
        trained.extend(outcomes);
    }
    let medians = times.each_mut().map(|times| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    });
    for (name, outcome, median) in
        [("blocking", &trained[0], medians[0]), ("overlapped", &trained[WORKERS], medians[1])]
    {
        println!("{name:12}{:>12}{:>14}{median:>18.2}", outcome.bytes, outcome.uncompressed);
    }
    let expected = &trained[0].parameter_bits;
    assert!(trained.iter().all(|outcome| outcome.parameter_bits == *expected), "the parameters differ");
    println!("\noverlapped / blocking: {:.2}", medians[1] / medians[0]);
    println!("{} parameters, the same bits on both workers, blocking and overlapped", expected.len());
    Ok(())
}
