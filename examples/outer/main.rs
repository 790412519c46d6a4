//! Workers train separately and average their progress every 30 steps, compressed. Compares losses and bytes sent.
//!
//! `cargo run --release --manifest-path examples/Cargo.toml --bin outer [-- --scheme NAME,…] [--seed N,…] [--steps N] [--every N]
//! [--learning-rate X] [--momentum X] [--decay X] [--fragments N] [--width N]
//! [--forget-moved]`
//!
//! Four workers, threads of this process, train the transformer of the example `train` by AdamW, each on separate data.
//! The workers take outer steps with pseudo-gradients (`lgreco_train::outer`). The scheme `sparseloco` is SparseLoCo's
//! payload, implemented from the published equations. For a large model, this payload takes 0.219 bits per parameter
//! and round. A scheme that is a number, N, has plans within N bits per parameter and round. Under `joined-N`, TopK
//! keeps the largest values of all layers together, within N bits per parameter and round. With `every-step` all
//! workers average all parameters after each step. Losses are means over the seeds.

#[path = "../train/batch.rs"]
mod batch;
#[path = "../train/convnet.rs"]
mod convnet;
#[path = "../train/digits.rs"]
mod digits;
mod local;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/optimiser.rs"]
mod optimiser;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/parameters.rs"]
mod parameters;
mod schemes;
mod sparse_loco;
#[allow(dead_code, reason = "shared with the example `train`")]
#[path = "../train/task.rs"]
mod task;
#[cfg(test)]
mod tests;
#[path = "../train/text.rs"]
mod text;
#[path = "../train/transformer.rs"]
mod transformer;

use clap::Parser;
use lgreco_train::exchange::threads;
use lgreco_train::outer::Outer;
use local::{Failure, Local};
use optimiser::Kind;
use schemes::Scheme;
use task::Task;

/// Trains a small transformer separately on four workers, which average at intervals.
#[derive(Clone, Parser)]
struct Args {
    /// every-step, dense, sparseloco, or a number of bits per parameter and round. A number alone means a plan. With
    /// `uniform-` before the number, all layers have the same density; with `joined-`, all layers are compressed as
    /// one.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "every-step,dense,sparseloco,uniform-0.219,0.219,uniform-0.11,0.11"
    )]
    scheme: Vec<Scheme>,
    /// Seeds of starting values, data and random bits; one run for each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,3")]
    seed: Vec<u64>,
    /// Number of inner steps.
    #[arg(long, value_name = "N", default_value = "1200", value_parser = clap::value_parser!(u32).range(task::STEPS))]
    steps: u32,
    /// Number of inner steps between outer steps.
    #[arg(long, value_name = "N", default_value = "30")]
    every: u64,
    /// Learning rate of outer steps.
    #[arg(long, value_name = "X", default_value = "1")]
    learning_rate: f32,
    /// Nesterov momentum of outer steps.
    #[arg(long, value_name = "X", default_value = "0")]
    momentum: f32,
    /// Factor of residuals before every round.
    #[arg(long, value_name = "X", default_value = "0.95")]
    decay: f32,
    /// Number of parts of the model, which are averaged in turn.
    #[arg(long, value_name = "N", default_value = "1")]
    fragments: usize,
    /// Bits per value of TopK with a single density or joined layers.
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=8))]
    width: u8,
    /// Workers clear their residuals of parameters that an outer step changes; SparseLoCo does not.
    #[arg(long)]
    forget_moved: bool,
}

const WORKERS: u32 = 4;

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    loss: f32,
    /// Bits that one worker sent per parameter and round.
    bits: f64,
}

fn run(task: &Task, args: &Args, scheme: Scheme, seed: u64) -> Result<Run, Failure> {
    let Args { every, learning_rate, momentum, decay: feedback_decay, fragments, width, forget_moved, .. } = *args;
    let joined = matches!(scheme, Scheme::Joined(_));
    let told = Outer { every, learning_rate, momentum, feedback_decay, fragments, joined, forget_moved };
    let outer = match scheme {
        Scheme::EveryStep => {
            Outer { every: 1, learning_rate: 1.0, momentum: 0.0, feedback_decay: 1.0, fragments: 1, ..told }
        }
        _ => told,
    };
    let outcomes = threads::run(WORKERS, |collective| {
        // Each worker computes matrix products on one thread.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        pool.install(|| {
            let mut worker = Local::new(task, seed, scheme, width, outer, collective)?;
            // Training ends with the last outer step, after which all workers are equal.
            let steps = u64::from(task.steps) / outer.every * outer.every;
            worker.train(steps as u32)?;
            let bits = worker.parameter_bits()?;
            let sent = 8.0 * worker.bytes as f64 / bits.len() as f64 / (steps / outer.every) as f64;
            Ok::<_, Failure>((Run { loss: worker.validate()?, bits: sent }, bits))
        })
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    if fragments == 1 && outcomes.iter().any(|(_, bits)| *bits != outcomes[0].1) {
        return Err(format!("{scheme}: the workers' parameters differ").into());
    }
    Ok(outcomes[0].0)
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let mut task = Task::transformer(false);
    (task.steps, task.optimizer) = (args.steps, Kind::Adamw);
    println!("{:<14}{:>16}{:>12}  seeds", "scheme", "bits/parameter", "loss");
    for &scheme in &args.scheme {
        let runs = args.seed.iter().map(|&seed| run(&task, &args, scheme, seed)).collect::<Result<Vec<_>, _>>()?;
        let mean = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let each: Vec<String> = runs.iter().map(|run| format!("{:.4}", run.loss)).collect();
        let (bits, loss) = (mean(|run| run.bits), mean(|run| run.loss.into()));
        println!("{scheme:<14}{bits:>16.4}{loss:>12.4}  {}", each.join(" "));
    }
    Ok(())
}
