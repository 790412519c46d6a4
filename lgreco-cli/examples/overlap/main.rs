//! Exchanges gradients while the backward pass goes on, and trains the same parameters, bit for bit, as without.
//!
//! `cargo run --release -p lgreco-cli --example overlap [-- --mbits N]`
//!
//! Two workers, threads of this process, train a perceptron on images of digits. Its layers are differentiated one by
//! one, from the last to the first. Each is submitted as a bucket as soon as its gradients are there, and a thread of
//! its own performs the bucket's collectives. Among threads these take no time, so every worker waits for as long as
//! its bytes would take on a link.

#[path = "../train/batch.rs"]
mod batch;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/digits.rs"]
mod digits;
mod link;
mod model;
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
use std::sync::Arc;
use worker::{Failure, Outcome, Run};

/// Overlaps the exchange of gradients with the backward pass.
#[derive(Parser)]
struct Args {
    /// Each worker's link, in Mbit/s.
    #[arg(long, default_value = "200")]
    mbits: NonZeroU32,
}

const WORKERS: usize = 2;

/// Plans of L-GreCo after a short warm-up, and again later.
fn config(method: Method, warmup: u64, period: u64) -> Config {
    let mut config = Config::new(Search::new(method));
    config.schedule = Schedule { warmup, period, window: warmup };
    config
}

fn main() -> Result<(), Failure> {
    let Args { mbits } = Args::parse();
    println!("{WORKERS} workers, links of {mbits} Mbit/s, L-GreCo over QSGD\n");
    println!("{:18}{:>12}{:>14}{:>18}", "", "bytes sent", "uncompressed", "median step, ms");
    let ways = [("blocking, no link", false, false), ("blocking", false, true), ("overlapped", true, true)];
    let (mut medians, mut trained) = ([0.0; 3], Vec::new());
    for ((name, overlapped, linked), median) in ways.into_iter().zip(&mut medians) {
        let run =
            Run { hidden: vec![512; 5], images: 128, steps: 100, config: config(Method::Qsgd, 5, 40), overlapped };
        let link = || if linked { link::of_mbits(mbits) } else { Arc::new(|_| ()) };
        let mut outcomes = run.train(&[(); WORKERS].map(|()| link()))?;
        let Outcome { bytes, uncompressed, steps, .. } = &outcomes[0];
        // Before the first decision nothing is compressed.
        let mut planned: Vec<_> = steps.iter().skip_while(|(_, switched)| !switched).map(|(time, _)| time).collect();
        planned.sort_unstable();
        *median = planned[planned.len() / 2].as_secs_f64() * 1e3;
        println!("{name:18}{bytes:>12}{uncompressed:>14}{median:>18.2}");
        trained.extend(outcomes.drain(..).map(|outcome| outcome.parameter_bits));
    }
    assert!(trained.iter().all(|parameters| *parameters == trained[0]), "the parameters differ");
    let [no_link, blocking, overlapped] = medians;
    let hidden = 100.0 * (blocking - overlapped) / (blocking - no_link);
    println!("\noverlapped / blocking: {:.2}; {hidden:.0} % of the link's time is hidden", overlapped / blocking);
    println!("{} parameters, the same bits on both workers in all three runs", trained[0].len());
    Ok(())
}
