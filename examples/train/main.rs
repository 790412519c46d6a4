//! Trains two small models with every compression scheme and compares what they learn with what they send.
//!
//! `cargo run --release --manifest-path examples/Cargo.toml --bin train [-- --quick] [--task NAME] [--scheme NAME] [--seed N,…] [--steps N]
//! [--optimizer sgd|adamw] [--workers 1|2|4|8] [--constant-rate] [--json FILE] [--report FILE] [--metrics FILE] [--plot FILE] [--frontier FILE]`
//!
//! Four workers unless told otherwise, threads of this process, hold one replica each of a transformer that learns to continue a novel, or of
//! a convolutional network that recognises digits, and learn from different parts of the data. Every run starts from
//! the same parameters and sees the same data in the same order at the same learning rate, which was chosen once, for
//! the uncompressed run of each optimiser. After a run all replicas must be equal bit for bit.
//!
//! With several seeds the table at the end has means over them. Seeds differ by more than schemes do, so a scheme's loss is
//! compared with the uncompressed one of the same seed, and what is given with a confidence is the mean of these ratios.
//!
//! | scheme | what chooses each layer's setting |
//! |---|---|
//! | `uniform` | nothing: the task's setting everywhere |
//! | `uniform+ramp` | nothing: a ramp-up from a milder setting to half of the task's, at the same bytes |
//! | `k-means`, `k-means-bytes` | CGX's six clusters, within the uniform setting's error, at its bytes |
//! | `accordion` | Accordion's detector, between half and twice the uniform setting |
//! | `legacy` | LEGACY's rule by size and phase of training, at the uniform setting's bytes |
//! | `l-greco-dp`, `l-greco` | the cheapest plan within the uniform setting's error: L-GreCo's Algorithm 1, proved optimum |
//! | `l-greco+accordion` | the cheapest plan within the error of Accordion's settings |
//! | `l-greco-bytes` | the plan of least squared error at the uniform setting's bytes, proved optimum |
//! | `l-greco-bytes+ramp` | the same, with the ramp-up of `uniform+ramp` |
//! | `l-greco-11.2x`, `l-greco-13x`, `l-greco-30x` | the plan of least squared error that compresses so much; ten times with a warm-up in bf16, in f32, 17 times |
//! | `hybrid` | the cheapest plan of all three methods within the error of uniform 4-bit QSGD |
//! | `hybrid-bytes` | the plan of all three methods of least squared error at the bytes of uniform 4-bit QSGD |
//! | …`+bits` | the same, with TopK's values in full or in 2 to 8 bits |
//! | …`+bf16` | the same, with factors and uncompressed layers summed as bf16; `l-greco-bytes` at the bytes of uniform f32 factors |
//! | …`+correction` | the same, with DGC's momentum correction: velocities are exchanged, under SGD alone |
//! | `drawn/1` … `drawn/24` | nothing: a plan drawn at random and held, only where it is asked for; see `--errors` |
//! | `scalecom` | nothing: as many elements as uniform TopK, at positions that one worker after the other picks |

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
    /// Few steps: 4.5 minutes on two cores, where it was measured; other machines may take half as long again.
    #[arg(long)]
    quick: bool,
    /// What is trained; both, unless given.
    #[arg(long, value_name = "NAME", value_parser = task::NAMES, value_delimiter = ',')]
    task: Vec<String>,
    /// Only these schemes: METHOD/SCHEME as in the table, or one of the two.
    #[arg(long, value_name = "NAME", value_parser = schemes::named, value_delimiter = ',')]
    scheme: Vec<Named>,
    /// What starting values, data and random bits of compression are drawn from; one run for each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Steps of training, in place of the task's own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(task::STEPS))]
    steps: Option<u32>,
    /// What takes the steps.
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: Kind,
    /// How many workers share a step's windows or images, of which there are as many in any case: 1, 2, 4 or 8.
    #[arg(long, value_name = "N", value_parser = workers, default_value_t = WORKERS)]
    workers: u32,
    /// The learning rate stays after its warm-up, and does not fall to zero.
    #[arg(long)]
    constant_rate: bool,
    /// Write the results as JSON, after every run. Runs that are in the file already are not made again.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Train nothing: the table and the pictures are made of the runs in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "task", "scheme", "seed", "steps", "optimizer", "workers", "constant_rate", "json", "metrics"])]
    report: Option<PathBuf>,
    /// Write what the first worker's controller did in every step of every run that is made, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Tell how well metrics of the error predict what drawn plans (scheme `drawn`) cost in loss. Their errors are measured
    /// along uncompressed runs into this file of JSON, unless they are there already.
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

/// Unless told otherwise.
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

/// The tasks that are asked for.
fn tasks(args: &Args) -> Vec<Task> {
    let mut tasks = task::all(args.quick);
    tasks.retain(|task| args.task.is_empty() || args.task.iter().any(|name| name == task.name));
    for task in &mut tasks {
        (task.steps, task.optimizer) = (args.steps.unwrap_or(task.steps), args.optimizer);
        (task.workers, task.constant) = (args.workers, args.constant_rate);
    }
    tasks
}

/// Makes the runs that are asked for and not in the file, and returns all that are asked for.
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
        // Matrix products on one thread per worker.
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
