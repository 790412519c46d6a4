//! Trains two small models with every compression scheme and compares losses and bytes sent.
//!
//! `cargo run --release --manifest-path examples/Cargo.toml --bin train [-- --quick] [--task NAME] [--scheme NAME] [--seed N,…] [--steps N]
//! [--optimizer sgd|adamw] [--workers 1|2|4|8] [--constant-rate] [--json FILE] [--report FILE] [--metrics FILE] [--plot FILE] [--frontier FILE]`
//!
//! Four workers by default, threads of this process, train replicas of a model on different parts of the data. The
//! models are a transformer that continues a novel, and a convolutional network that recognises digits. Every run
//! starts from the same parameters and sees the same data in the same order. Every run has the learning rate that was
//! chosen once for uncompressed training with its optimiser. After a run all replicas must be equal bit for bit.
//!
//! With several seeds, the final table has means over the seeds. Losses differ more between seeds than between schemes.
//! So a scheme's loss is divided by the uncompressed loss of the same seed, and confidence intervals are for the mean
//! of these ratios.
//!
//! | scheme | how each layer's setting is chosen |
//! |---|---|
//! | `uniform` | the task's setting for all layers |
//! | `uniform+ramp` | a ramp-up from a milder setting to half of the task's, at the same bytes |
//! | `k-means`, `k-means-bytes` | CGX's six clusters, within the uniform setting's error, at its bytes |
//! | `accordion` | Accordion's detector, between half and twice the uniform setting |
//! | `legacy` | LEGACY's rule by size and phase of training, at the uniform setting's bytes |
//! | `l-greco-dp`, `l-greco` | the smallest plan within the uniform setting's error: by L-GreCo's Algorithm 1, and proved optimal |
//! | `l-greco+accordion` | the smallest plan within the error of Accordion's settings |
//! | `l-greco-bytes` | the plan of least squared error at the uniform setting's bytes, proved optimal |
//! | `l-greco-bytes+ramp` | the same, with the ramp-up of `uniform+ramp` |
//! | `l-greco-11.2x`, `l-greco-13x`, `l-greco-30x` | the plan of least squared error with this compression; including the warm-up, 10 times (11.2x with a bf16 warm-up, 13x with f32) or 17 times (30x) |
//! | `hybrid` | the smallest plan of all three methods within the error of uniform 4-bit QSGD |
//! | `hybrid-bytes` | the plan of all three methods with the least squared error at the bytes of uniform 4-bit QSGD |
//! | …`+bits` | the same, with TopK's values in full or in 2 to 8 bits |
//! | …`+bf16` | the same, with factors and uncompressed layers summed as bf16; `l-greco-bytes` at the bytes of uniform f32 factors |
//! | …`+correction` | the same, with DGC's momentum correction: velocities are exchanged; only for SGD |
//! | `drawn/1` … `drawn/24` | a random plan that is kept; only runs on request; see `--errors` |
//! | `scalecom` | the number of elements of uniform TopK, at positions that workers choose in turn |

mod batch;
mod convnet;
mod digits;
mod drawn;
mod equal_bytes;
mod errors;
mod fitted;
mod frontier;
mod optimiser;
mod parameters;
mod picture;
mod prediction;
mod report;
mod results;
mod schemes;
mod summary;
mod task;
#[cfg(test)]
mod tests;
mod text;
mod transformer;
mod worker;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use lgreco_train::exchange::threads;
use optimiser::Kind;
use report::{Point, Row};
use results::Results;
use schemes::{Named, Scheme};
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
    /// Train fewer steps. All schemes took 4.5 minutes on two cores, and up to 50 % longer on other machines.
    #[arg(long)]
    quick: bool,
    /// Models to train; both by default.
    #[arg(long, value_name = "NAME", value_parser = task::NAMES, value_delimiter = ',')]
    task: Vec<String>,
    /// Only these schemes: METHOD/SCHEME as in the table, or one of the two.
    #[arg(long, value_name = "NAME", value_parser = schemes::named, value_delimiter = ',')]
    scheme: Vec<Named>,
    /// Seeds of starting values, data and random bits of compression; one run for each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Number of training steps, instead of the task's own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(task::STEPS))]
    steps: Option<u32>,
    /// The optimiser.
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: Kind,
    /// Number of workers that share a step's windows or images: 1, 2, 4 or 8. The total number of windows or images stays
    /// the same.
    #[arg(long, value_name = "N", value_parser = workers, default_value_t = WORKERS)]
    workers: u32,
    /// Keeps the learning rate constant after its warm-up, instead of reducing it to zero.
    #[arg(long)]
    constant_rate: bool,
    /// Write the results as JSON, after every run. Runs that are already in the file are not repeated.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Train nothing, and make the table and the pictures from the runs in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "task", "scheme", "seed", "steps", "optimizer", "workers", "constant_rate", "json", "metrics"])]
    report: Option<PathBuf>,
    /// Write the first worker's controller metrics for every step of every new run, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Report how well error metrics predict the loss of random plans (scheme `drawn`). Missing errors are measured in
    /// uncompressed runs and added to this JSON file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "constant_rate"])]
    errors: Option<PathBuf>,
    /// Draw loss against bytes sent as SVG.
    #[arg(long, value_name = "FILE", default_value = "train.svg")]
    plot: PathBuf,
    /// Draw final losses of plans and of the same setting everywhere against bytes sent, with confidence intervals over the
    /// seeds, as SVG.
    #[arg(long, value_name = "FILE")]
    frontier: Option<PathBuf>,
}

/// Default number of workers.
const WORKERS: u32 = 4;

fn workers(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|workers| [1, 2, 4, 8].contains(workers)).ok_or_else(|| "expected 1, 2, 4 or 8".into())
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let rows = match &args.report {
        Some(path) => Results::read(path)?,
        None => train(&args)?,
    };
    if let Some(path) = &args.errors {
        println!("{}", prediction::table(&rows, &errors::read_or_measure(path, &tasks(&args), &rows)?)?);
    }
    let groups = summary::groups(&rows);
    println!("{}", summary::table(&groups));
    std::fs::write(&args.plot, picture::svg(&rows)?)?;
    println!("loss against bytes: {}", args.plot.display());
    if let Some(path) = &args.frontier {
        std::fs::write(path, frontier::svg(&groups))?;
        println!("frontier: {}", path.display());
    }
    Ok(())
}

/// The selected tasks.
fn tasks(args: &Args) -> Vec<Task> {
    let mut tasks = task::all(args.quick);
    tasks.retain(|task| args.task.is_empty() || args.task.iter().any(|name| name == task.name));
    for task in &mut tasks {
        (task.steps, task.optimizer) = (args.steps.unwrap_or(task.steps), args.optimizer);
        (task.workers, task.constant) = (args.workers, args.constant_rate);
    }
    tasks
}

/// Makes the selected runs that are not in the file, and returns all selected runs.
fn train(args: &Args) -> Result<Vec<Row>, Failure> {
    let tasks = tasks(args);
    let mut schemes = schemes::all();
    schemes.extend(schemes::drawn().filter(|scheme| args.scheme.iter().any(|named| named.is(scheme))));
    schemes.retain(|scheme| args.scheme.is_empty() || args.scheme.iter().any(|named| named.is(scheme)));
    let mut results = Results::open(args.json.clone())?;
    let runs: Vec<(&Task, u64, Scheme)> = tasks
        .iter()
        .flat_map(|task| args.seed.iter().map(move |&seed| (task, seed)))
        .flat_map(|(task, seed)| schemes.iter().map(move |&scheme| (task, seed, scheme)))
        .filter(|(task, _, scheme)| task.optimizer == Kind::Sgd || !scheme.corrects())
        .collect();
    let known = |results: &Results, (task, seed, scheme): (&Task, u64, Scheme)| {
        results.rows().iter().find(|row| row.is_of(task, scheme, seed)).cloned()
    };
    let missing = runs.iter().filter(|run| known(&results, **run).is_none());
    let bar = ProgressBar::new(missing.map(|(task, ..)| u64::from(task.steps)).sum())
        .with_style(ProgressStyle::with_template("{msg:32} {wide_bar} {elapsed_precise} of about {duration_precise}")?);
    let mut metrics = args.metrics.as_ref().map(File::create).transpose()?.map(BufWriter::new);
    let mut rows = Vec::new();
    for (index, &(task, seed, scheme)) in runs.iter().enumerate() {
        if index == 0 || runs[index - 1].0.name != task.name {
            bar.suspend(|| println!("{}", report::head(task)));
        }
        bar.set_message(format!("{} {} {}", task.name, scheme.method, scheme.name));
        let row = match known(&results, (task, seed, scheme)) {
            Some(row) => row,
            None => {
                let row = run(task, scheme, seed, &bar, metrics.as_mut())?;
                results.add(row.clone())?;
                row
            }
        };
        rows.push(row);
        bar.suspend(|| println!("{}", rows[index].line(&rows)));
    }
    bar.finish_and_clear();
    if let Some(mut metrics) = metrics {
        metrics.flush()?;
    }
    Ok(rows)
}

/// Trains one model with one scheme.
fn run<W: Write + Send>(
    task: &Task,
    scheme: Scheme,
    seed: u64,
    bar: &ProgressBar,
    metrics: Option<&mut W>,
) -> Result<Row, Failure> {
    let start = Instant::now();
    let metrics = Mutex::new(metrics);
    let outcomes = threads::run(task.workers, |collective| {
        // Each worker computes matrix products on one thread.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        pool.install(|| {
            let lead = collective.rank() == 0;
            let mut worker = Worker::new(task, seed, scheme, collective)?;
            let mut curve = Vec::new();
            for part in 1..=task.validations {
                let end = task.steps * part / task.validations;
                worker.train(end, |controller, report| {
                    if lead {
                        bar.inc(1);
                        if let Some(metrics) = metrics.lock().map_err(|_| "another worker failed")?.as_mut() {
                            writeln!(metrics, "{}", report::metrics_line(task, scheme, seed, controller, report)?)?;
                        }
                    }
                    Ok(())
                })?;
                curve.push(Point { bytes: worker.totals.bytes, loss: worker.validate()? });
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
        model: task.name.into(),
        optimizer: task.conditions(),
        steps: task.steps,
        seed,
        method: scheme.method.into(),
        scheme: scheme.name.into(),
        final_loss: curve[curve.len() - 1].loss,
        bytes: totals.bytes,
        ratio: totals.uncompressed as f64 / totals.bytes as f64,
        seconds: start.elapsed().as_secs_f64(),
        planning: totals.planning / totals.seconds,
        curve: curve.clone(),
    })
}
