//! Exchanges gradients while the backward pass goes on, and trains the same parameters, bit for bit, as without.
//!
//! `cargo run --release -p lgreco-cli --example overlap [-- --mbits N]`
//!
//! Two workers, threads of this process, train a perceptron on images of digits. Its layers are differentiated one by one,
//! from the last to the first. Each is submitted as a bucket as soon as its gradients are there, and a thread of its own
//! performs the bucket's collectives. Among threads these take no time, so every worker waits for as long as its bytes would
//! take on a link.

#[path = "../train/batch.rs"]
mod batch;
mod communicator;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/digits.rs"]
mod digits;
mod link;
mod model;
#[path = "../train/optimiser.rs"]
mod optimiser;
#[path = "../train/parameters.rs"]
mod parameters;
#[cfg(test)]
mod tests;
mod worker;

use clap::Parser;
use lgreco_train::controller::{Config, Schedule};
use lgreco_train::search::{Method, Search};
use worker::{Failure, Outcome, Run};

/// Overlaps the exchange of gradients with the backward pass.
#[derive(Parser)]
struct Args {
    /// Each worker's link, in Mbit/s.
    #[arg(long, default_value_t = 200.0)]
    mbits: f64,
}

const WORKERS: usize = 2;
const SEED: u64 = 1;
const RATE: f32 = 0.02;

/// Plans of L-GreCo after a short warm-up, and again later.
fn config(method: Method, warmup: u64, period: u64) -> Config {
    let mut config = Config::new(Search::new(method));
    config.schedule = Schedule { warmup, period, window: warmup };
    config
}

fn main() -> Result<(), Failure> {
    let Args { mbits } = Args::parse();
    if !(mbits.is_finite() && mbits >= 1e-3) {
        return Err(format!("--mbits {mbits}: expected a number of at least 0.001").into());
    }
    let run =
        Run { hidden: vec![512; 5], images: 128, steps: 100, config: config(Method::Qsgd, 5, 40), overlapped: false };
    println!("{WORKERS} workers, links of {mbits} Mbit/s, {} steps, L-GreCo over QSGD\n", run.steps);
    println!("{:18}{:>12}{:>10}{:>18}", "", "bytes sent", "of dense", "median step, ms");
    let mut trained: Option<Vec<u32>> = None;
    let mut medians = [0.0; 3];
    let ways = [("blocking, no link", false, false), ("blocking", false, true), ("overlapped", true, true)];
    for ((name, overlapped, linked), median) in ways.into_iter().zip(&mut medians) {
        let links: Vec<_> =
            (0..WORKERS).map(|_| if linked { link::of_mbits(mbits) } else { link::instant() }).collect();
        let outcomes = Run { overlapped, ..run.clone() }.train(&links)?;
        for outcome in &outcomes {
            let parameters = trained.get_or_insert_with(|| outcome.parameters.clone());
            assert!(*parameters == outcome.parameters, "{name}: the parameters are others");
        }
        let Outcome { bytes, uncompressed, steps, .. } = &outcomes[0];
        // Before the first decision nothing is compressed.
        let mut planned: Vec<_> = steps.iter().skip_while(|(_, switched)| !switched).map(|(time, _)| time).collect();
        planned.sort_unstable();
        *median = planned[planned.len() / 2].as_secs_f64() * 1e3;
        println!("{name:18}{bytes:>12}{:>8.1} %{median:>18.2}", 100.0 * *bytes as f64 / *uncompressed as f64);
    }
    let [no_link, blocking, overlapped] = medians;
    let hidden = 100.0 * (blocking - overlapped) / (blocking - no_link);
    println!("\noverlapped / blocking: {:.2}; hidden: {hidden:.0} % of the link's time", overlapped / blocking);
    println!("{} parameters, the same bits on all workers in all runs", trained.map_or(0, |bits| bits.len()));
    Ok(())
}
