//! The command line: commands, options and their help texts.

mod constraints;
mod output;
mod watch;

pub use constraints::{ConstraintArgs, Group};
use output::target;
pub use output::{Output, Target};
pub use watch::Watch;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use lgreco::search::{Method, Metric, Width};
use std::path::PathBuf;
use std::str::FromStr;

/// Chooses, layer by layer, how strongly to compress each gradient, and proves the choice optimal.
#[derive(Debug, Parser)]
#[command(name = "lgreco", version, after_help = EXAMPLES)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  lgreco plan
  lgreco plan grads.safetensors --method topk --default 1% --range 0.1%..10%:0.1%
  lgreco plan grads.safetensors --method hybrid --plot plan.svg --json plan.json
  lgreco plan grads.safetensors --html report.html
  lgreco measure grads.safetensors --method powersgd --json table.json
  lgreco plan grads.safetensors --method topk --budget uniform
  lgreco plan grads.safetensors --method qsgd --paper
  lgreco solve table.json --budget 12.5 --json -
  lgreco solve table.json --group q.weight,k.weight --fix \"head.weight=eden 5\"
  lgreco solve table.json --frontier=50
  lgreco compare grads.safetensors
  lgreco watch steps.jsonl --html run.html

Exit codes: 0 done; 1 no result (no plan is within the budget or the size, memory ran out, the backend's driver or device is missing or fails, or a file could not be written); 2 bad usage or bad input (a backend that is not part of this build, too).";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure the gradients and choose a setting for every layer.
    Plan {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        solving: Solving,
        #[command(flatten)]
        constraints: ConstraintArgs,
        #[command(flatten)]
        output: Output,
    },
    /// Measure the gradients, and show size and error of every option of every layer.
    Measure {
        #[command(flatten)]
        source: Source,
        /// Write the table as JSON to FILE. With `-`, write only JSON to standard output.
        #[arg(long, value_name = "FILE", value_parser = target())]
        json: Option<Target>,
    },
    /// Choose one option for each layer of a table file. The table's errors may be in any metric.
    Solve {
        /// A table file of version 1, or `-` for standard input. `lgreco measure --json` writes such files.
        table: PathBuf,
        #[command(flatten)]
        solving: Solving,
        #[command(flatten)]
        constraints: ConstraintArgs,
        /// Compute the size-error frontier instead of one plan: the plans that no other plan beats in both size and
        /// error. At most POINTS plans are computed. If the frontier has more, the sizes of the computed plans grow by
        /// a constant factor. [default of POINTS: 50]
        #[arg(long, value_name = "POINTS", num_args = 0..=1, require_equals = true, default_missing_value = "50", value_parser = points,
            conflicts_with_all = ["budget", "size", "alpha", "levels", "paper", "plot", "html"])]
        frontier: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// Compare uniform settings, k-means, Algorithm 1 and the proved optimum. Without a limit, compare sizes within the
    /// error of the uniform setting, and errors within its size.
    ///
    /// Accordion is left out, because it needs gradients of two moments of training, and a file holds those of one.
    Compare(Compare),
    /// Show a training run in progress: settings, bytes, errors and seconds of its steps.
    Watch(Watch),
    /// List the backends of this build, and whether they work on this machine.
    Devices,
}

/// The gradients, and the candidates for each layer.
#[derive(Args, Debug)]
pub struct Source {
    /// Gradients, one F32, F16 or BF16 tensor per layer: a safetensors file, the index (`*.json`) of several files, or
    /// their folder. Without gradients, the command uses a small built-in sample: a transformer's bf16 gradients.
    pub gradients: Option<PathBuf>,
    /// The compression method.
    #[arg(long, value_parser = method(), default_value = "hybrid")]
    pub method: Method,
    /// Several methods, such as `qsgd,topk,sidco`. The planner chooses one of them for each layer. Each method has its
    /// own range of parameters. The default of the first method sets the budget.
    #[arg(long, value_name = "METHOD,...", value_delimiter = ',', value_parser = method(), conflicts_with = "method")]
    pub methods: Vec<Method>,
    #[command(flatten)]
    pub candidates: Candidates,
    /// The method's parameter in the uniform setting: bits, density (`1%` or `0.01`), rank, magnitude, or elements per
    /// bin or group. Plans have at most the size of this setting, unless `--budget` or `--size` is given. [default:
    /// qsgd 4, eden 3, topk 1%, powersgd 4, clt-k 1%, sidco 1%, hard-threshold 0.01, adacomp 500, loco 512; for hybrid
    /// the bits of uniform EDEN, 3]
    #[arg(long, value_name = "PARAMETER", allow_hyphen_values = true, value_parser = parameter)]
    pub default: Option<f64>,
    /// The candidate parameters: FIRST..LAST or FIRST..LAST:STEP. The method's default is always a candidate. Without
    /// STEP, whole numbers (bits, ranks, elements) advance by 1, densities and magnitudes by FIRST. [default: half to
    /// twice the default, but a tenth to ten times the default for densities of TopK and CLT-k, and 1..8 for EDEN]
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true, value_parser = range)]
    pub range: Option<RangeArg>,
    /// The widths in which TopK may send its values: `full` (the gradient's own type) or 1 to 8 bits per value, such as
    /// `full,8,6,4,3,2`. The uniform setting always has full values. [default: full]
    #[arg(long, value_name = "full|BITS,...", value_delimiter = ',', value_parser = width)]
    pub widths: Vec<Width>,
}

/// Options that apply to every method.
#[derive(Args, Clone, Copy, Debug)]
pub struct Candidates {
    /// The metric of errors. The planner keeps the sum of the layers' errors within `--budget`, or minimises it under
    /// `--size`. [default: squared-l2, which best predicts the training loss of plans]
    #[arg(long, value_parser = metric())]
    pub metric: Option<Metric>,
    /// Number of workers whose payloads will be averaged. Squared errors of `qsgd` and `eden` are divided by this
    /// number, because they are independent between workers. The number matters if a plan chooses among several
    /// methods.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = workers, default_value_t = 1)]
    pub workers: u32,
    /// Leave tensors with fewer elements uncompressed. Tensors with one dimension always stay uncompressed.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count, default_value_t = 1024)]
    pub min_elements: usize,
    /// The device that measures: `cpu` (all cores), `cuda` (the first NVIDIA GPU, in builds with `--features cuda`) or
    /// `wgpu` (the fastest GPU, in builds with `--features wgpu`). `lgreco devices` lists them.
    #[arg(long, value_name = "BACKEND", value_parser = backend, default_value = "cpu")]
    pub backend: BackendArg,
}

/// How to solve.
#[derive(Args, Clone, Copy, Debug)]
pub struct Solving {
    /// The solver. `exact` proves its plan optimal or states the largest possible gap; `dp` is Algorithm 1 of the
    /// L-GreCo paper.
    #[arg(long, value_enum, default_value_t = SolverArg::Exact)]
    pub solver: SolverArg,
    /// Plan as the L-GreCo paper does: `--metric l2 --budget uniform --solver dp`.
    #[arg(long, conflicts_with_all = ["solver", "levels", "budget", "size"])]
    pub paper: bool,
    /// Number of cells into which the budget or size is divided; only for `--solver dp`. [default: 10000]
    #[arg(long, value_name = "CELLS", allow_hyphen_values = true, value_parser = levels)]
    pub levels: Option<u32>,
    #[command(flatten)]
    pub limits: Limits,
}

/// The limit of a plan.
#[derive(Args, Clone, Copy, Debug)]
pub struct Limits {
    /// Minimise the size within this error: `uniform` for the error of the default setting, or a number in the metric's
    /// unit. [default: a table file's own budget if it has one, else `--size uniform`]
    #[arg(long, value_name = "uniform|NUMBER", allow_hyphen_values = true, value_parser = budget)]
    pub budget: Option<BudgetArg>,
    /// Minimise the error within this size: `uniform` for the size of the default setting, or a number of bits.
    #[arg(long, value_name = "uniform|BITS", allow_hyphen_values = true, value_parser = size, conflicts_with = "budget")]
    pub size: Option<SizeArg>,
    /// Multiply the uniform budget or size by this factor. [default: 1]
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true, value_parser = not_negative)]
    pub alpha: Option<f64>,
}

/// What to compare.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("compared").args(["method", "methods"]))]
pub struct Compare {
    /// Gradients, as for `plan`. Without gradients, the command uses the built-in sample.
    pub gradients: Option<PathBuf>,
    /// Compare only this method. Without this option, compare qsgd, eden, topk, powersgd and hybrid, each within the
    /// budget of its own default.
    #[arg(long, value_parser = method())]
    pub method: Option<Method>,
    /// Compare plans that choose one of several methods for each layer, as for `plan`. The uniform setting is the default of
    /// the first method.
    #[arg(long, value_name = "METHOD,...", value_delimiter = ',', value_parser = method())]
    pub methods: Vec<Method>,
    #[command(flatten)]
    pub candidates: Candidates,
    /// The method's parameter in the uniform setting, as for `plan`.
    #[arg(long, value_name = "PARAMETER", allow_hyphen_values = true, value_parser = parameter, requires = "compared")]
    pub default: Option<f64>,
    /// The candidate parameters, as for `plan`.
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true, value_parser = range, requires = "compared")]
    pub range: Option<RangeArg>,
    /// The widths of TopK's values, as for `plan`.
    #[arg(long, value_name = "full|BITS,...", value_delimiter = ',', value_parser = width, requires = "compared")]
    pub widths: Vec<Width>,
    #[command(flatten)]
    pub limits: Limits,
    /// Number of cells into which Algorithm 1 divides the budget or size.
    #[arg(long, value_name = "CELLS", allow_hyphen_values = true, value_parser = levels, default_value_t = 10_000)]
    pub levels: u32,
    /// Write the comparison as JSON to FILE. With `-`, write only JSON to standard output.
    #[arg(long, value_name = "FILE", value_parser = target())]
    pub json: Option<Target>,
}

/// Solvers, as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SolverArg {
    /// The exact solver: relaxation, fixing and search, with a certificate.
    Exact,
    /// Algorithm 1 of the L-GreCo paper.
    Dp,
}

/// Backends that the command line accepts in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendArg {
    /// All cores of this machine.
    Cpu,
    /// The first CUDA device.
    #[cfg(feature = "cuda")]
    Cuda,
    /// The fastest adapter that wgpu finds.
    #[cfg(feature = "wgpu")]
    Wgpu,
}

/// An error budget on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetArg {
    /// The error of the default setting.
    Uniform,
    /// An error in the metric's unit.
    Absolute(f64),
}

/// A size limit on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeArg {
    /// The size of the default setting.
    Uniform,
    /// This many bits.
    Bits(u64),
}

/// A range on the command line, in the method's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RangeArg {
    /// The smallest parameter.
    pub first: f64,
    /// The largest parameter.
    pub last: f64,
    /// The step, if it was given.
    pub step: Option<f64>,
}

/// Parses a method's name.
fn method() -> impl TypedValueParser<Value = Method> {
    words(Method::ALL.map(|method| match method {
        Method::Hybrid => ("hybrid", "eden, topk or powersgd for each layer; the uniform setting is eden with 3 bits"),
        single => (single.name(), single.planned().about),
    }))
}

/// Parses a metric's name.
fn metric() -> impl TypedValueParser<Value = Metric> {
    words([
        ("l2", "L2 norms of the layers' compression errors, as in the paper"),
        ("squared-l2", "Squared L2 norms, which add up to that of the whole model"),
    ])
}

/// Parses names such as those of methods and metrics. Each name has a help text.
fn words<T, const N: usize>(words: [(&'static str, &'static str); N]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = lgreco::Error> + Clone + Send + Sync + 'static,
{
    let values = words.map(|(word, help)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(values).try_map(|word| word.parse::<T>())
}

/// Parses the number of cells of Algorithm 1, to which its time and memory are proportional. The paper has 10,000.
fn levels(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(levels @ 1..=10_000_000) => Ok(levels),
        _ => Err("expected an integer from 1 to 10000000".into()),
    }
}

/// Parses the largest number of points of a frontier. Each point takes two runs of the solver, or four if the frontier
/// has more points than this number.
fn points(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(points @ 2..=10_000) => Ok(points),
        _ => Err("expected an integer from 2 to 10000".into()),
    }
}

fn workers(text: &str) -> Result<u32, String> {
    let above_zero = text.parse().ok().filter(|&workers| workers > 0);
    above_zero.ok_or_else(|| format!("expected an integer from 1 to {}", u32::MAX))
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("expected an integer from 0 to {}", usize::MAX))
}

fn parameter(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value / unit),
        _ => Err("expected a finite number such as 4, 0.01 or 1%".into()),
    }
}

fn range(text: &str) -> Result<RangeArg, String> {
    let (ends, step) = text.split_once(':').map_or((text, None), |(ends, step)| (ends, Some(step)));
    let (first, last) = ends.split_once("..").ok_or("expected FIRST..LAST or FIRST..LAST:STEP, as in 2..8")?;
    Ok(RangeArg { first: parameter(first)?, last: parameter(last)?, step: step.map(parameter).transpose()? })
}

fn width(text: &str) -> Result<Width, String> {
    text.parse().map_err(|_| "expected `full` or bits per kept value, 1 to 8".into())
}

fn budget(text: &str) -> Result<BudgetArg, String> {
    if text == "uniform" {
        return Ok(BudgetArg::Uniform);
    }
    let value = not_negative(text).map_err(|_| "expected `uniform` or a finite number >= 0")?;
    Ok(BudgetArg::Absolute(value))
}

fn size(text: &str) -> Result<SizeArg, String> {
    if text == "uniform" {
        return Ok(SizeArg::Uniform);
    }
    let bits = text.parse().map_err(|_| format!("expected `uniform` or an integer of bits from 0 to {}", u64::MAX))?;
    Ok(SizeArg::Bits(bits))
}

/// Error message for a backend that this build lacks.
#[cfg(not(all(feature = "cuda", feature = "wgpu")))]
pub fn not_in_build(backend: &str) -> String {
    let command = format!("cargo run --release --features {backend} -- devices");
    format!("not part of this build: in lgreco's sources, `{command}` makes one that has it")
}

fn backend(text: &str) -> Result<BackendArg, String> {
    match text {
        "cpu" => Ok(BackendArg::Cpu),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(BackendArg::Wgpu),
        #[cfg(not(feature = "wgpu"))]
        "wgpu" => Err(not_in_build("wgpu")),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(BackendArg::Cuda),
        #[cfg(not(feature = "cuda"))]
        "cuda" => Err(not_in_build("cuda")),
        _ => Err("expected cpu, cuda or wgpu".into()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number >= 0".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn percentages_and_fractions_are_the_same() {
        assert_eq!(parameter("1%"), Ok(0.01));
        assert_eq!(parameter("0.1%"), Ok(0.001));
        assert_eq!(parameter("4"), Ok(4.0));
        for bad in ["", "%", "four", "nan", "inf", "1%%"] {
            assert!(parameter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges() {
        let of = |first, last, step| Ok(RangeArg { first, last, step });
        assert_eq!(range("2..8"), of(2.0, 8.0, None));
        assert_eq!(range("2..8:2"), of(2.0, 8.0, Some(2.0)));
        assert_eq!(range("0.1%..10%:0.1%"), of(0.001, 0.1, Some(0.001)));
        for bad in ["", "2", "2..", "..8", "2..8:", "2-8", "a..b"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn points_of_a_frontier() {
        assert_eq!((points("2"), points("10000")), (Ok(2), Ok(10_000)));
        for bad in ["", "1", "10001", "-5", "2.5"] {
            assert!(points(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn budgets() {
        assert_eq!(budget("uniform"), Ok(BudgetArg::Uniform));
        assert_eq!(budget("12.5"), Ok(BudgetArg::Absolute(12.5)));
        for bad in ["", "-1", "nan", "inf", "Uniform"] {
            assert!(budget(bad).is_err(), "{bad}");
        }
        assert_eq!((size("uniform"), size("4096")), (Ok(SizeArg::Uniform), Ok(SizeArg::Bits(4096))));
        assert_eq!(size("18446744073709551615"), Ok(SizeArg::Bits(u64::MAX)));
        for bad in ["", "-1", "1.5", "1e6", "4k", "18446744073709551616", "Uniform"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
