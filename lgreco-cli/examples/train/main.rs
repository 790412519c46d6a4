//! Trains two small models with every compression scheme and compares what they learn with what they send.
//!
//! `cargo run --release -p lgreco-cli --example train [-- --quick] [--json FILE] [--metrics FILE] [--plot FILE]`
//!
//! Four workers, threads of this process, hold one replica each of a transformer that learns to continue a novel, or of
//! a convolutional network that recognises digits, and learn from different parts of the data. Every run starts from
//! the same parameters and sees the same data in the same order at the same learning rate, which was chosen once, for
//! the uncompressed run. After a run all replicas must be equal bit for bit.
//!
//! | scheme | what chooses each layer's setting |
//! |---|---|
//! | `uniform` | nothing: the task's setting everywhere |
//! | `k-means` | CGX's six clusters, within the uniform setting's error |
//! | `accordion` | Accordion's detector, between half and twice the uniform setting |
//! | `l-greco-dp`, `l-greco` | the cheapest plan within the uniform setting's error: L-GreCo's Algorithm 1, proved optimum |
//! | `l-greco+accordion` | the cheapest plan within the error of Accordion's settings |
//! | `hybrid` | the cheapest plan of all three methods within the error of uniform 4-bit QSGD |
//! | `scalecom` | nothing: as many elements as uniform TopK, at positions that one worker after the other picks |

mod batch;
mod convnet;
mod digits;
mod optimiser;
mod parameters;
mod picture;
mod report;
mod schemes;
mod task;
#[cfg(test)]
mod tests;
mod text;
mod transformer;
mod worker;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use lgreco_train::exchange::{Collective, threads};
use report::Row;
use schemes::Scheme;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;
use task::Task;
use worker::{Failure, Worker};

/// Trains two small models with every compression scheme.
#[derive(Parser)]
struct Args {
    /// Few steps: 4.5 minutes on two cores, where it was measured; other machines may take half as long again.
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write what the first worker's controller did in every step of every run, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Draw loss against bytes sent as SVG.
    #[arg(long, value_name = "FILE", default_value = "train.svg")]
    plot: PathBuf,
}

const WORKERS: u32 = 4;
const SEED: u64 = 1;

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let tasks = [Task::transformer(args.quick), Task::convnet(args.quick)];
    let schemes = schemes::all();
    let runs = tasks.iter().map(|task| u64::from(task.steps)).sum::<u64>() * schemes.len() as u64;
    let bar = ProgressBar::new(runs)
        .with_style(ProgressStyle::with_template("{msg:32} {wide_bar} {elapsed_precise} of about {duration_precise}")?);
    let mut metrics = args.metrics.map(File::create).transpose()?.map(BufWriter::new);
    let mut rows: Vec<Row> = Vec::new();
    for task in &tasks {
        let first = rows.len();
        bar.suspend(|| println!("{}", report::head(task.name)));
        for scheme in &schemes {
            bar.set_message(format!("{} {} {}", task.name, scheme.method, scheme.name));
            rows.push(run(task, *scheme, &bar, metrics.as_mut())?);
            bar.suspend(|| println!("{}", rows[rows.len() - 1].line(&rows[first])));
        }
    }
    bar.finish_and_clear();
    if let Some(mut metrics) = metrics {
        metrics.flush()?;
    }
    std::fs::write(&args.plot, picture::svg(&rows)?)?;
    println!("\nloss against bytes: {}", args.plot.display());
    if let Some(path) = args.json {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

/// Trains one model with one scheme.
fn run<W: Write + Send>(
    task: &Task,
    scheme: Scheme,
    bar: &ProgressBar,
    metrics: Option<&mut W>,
) -> Result<Row, Failure> {
    let start = Instant::now();
    let metrics = Mutex::new(metrics);
    let outcomes = threads::run(WORKERS, |collective| {
        // Matrix products on one thread per worker.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        pool.install(|| {
            let lead = collective.rank() == 0;
            let mut worker = Worker::new(task, SEED, scheme, collective)?;
            let mut curve = Vec::new();
            for part in 1..=task.validations {
                let end = task.steps * part / task.validations;
                worker.train(end, |controller, report| {
                    if lead {
                        bar.inc(1);
                        if let Some(metrics) = metrics.lock().map_err(|_| "another worker failed")?.as_mut() {
                            writeln!(metrics, "{}", report::metrics_line(task, scheme, controller, report)?)?;
                        }
                    }
                    Ok(())
                })?;
                curve.push((worker.totals.bytes, worker.validate()?));
            }
            Ok::<_, Failure>((curve, worker.totals, worker.parameter_bits()?))
        })
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let (curve, totals, parameters) = &outcomes[0];
    if outcomes.iter().any(|(_, _, others)| others != parameters) {
        return Err(format!("{scheme:?}: the replicas of {} differ", task.name).into());
    }
    Ok(Row {
        model: task.name,
        method: scheme.method,
        scheme: scheme.name,
        final_loss: curve[curve.len() - 1].1,
        bytes: totals.bytes,
        ratio: totals.uncompressed as f64 / totals.bytes as f64,
        seconds: start.elapsed().as_secs_f64(),
        steps: task.steps,
        planning: totals.planning / totals.seconds,
        curve: curve.clone(),
    })
}
