//! Converts names and numbers from Python to the options of a controller.

use crate::error::{LgrecoError, named as named_error, of_layer};
use lgreco_train::CoreError;
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::controller::{
    Accordion, Budget, Config, Feedback, Legacy, NonFinite, Objective, Policy, RampUp, Schedule, Tensor,
};
use lgreco_train::exchange::Route;
use lgreco_train::feedback::{Residual, Storage};
use lgreco_train::gradient::{Dtype, Shape};
use lgreco_train::plan::{Solver, dp};
use lgreco_train::search::{Method, Metric, Range, Search, Width};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Instant;

/// Returns the value of `name` in `names`, or an error that lists all names.
pub(crate) fn named<T: Clone>(what: &str, name: &str, names: &[(&str, T)]) -> PyResult<T> {
    names.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
        LgrecoError::new_err(format!("{what} is {name:?}, expected one of {}", known.join(", ")))
    })
}

pub(crate) fn dtype(name: &str) -> PyResult<Dtype> {
    named("dtype", name, &[("float32", Dtype::F32), ("float16", Dtype::F16), ("bfloat16", Dtype::Bf16)])
}

/// Returns the methods under which `widths` has an effect, and the methods under which `residual_dtype` has an effect.
/// `residual_dtype` has an effect if layers keep a residual by default, in a type that the user may choose.
#[pyfunction]
pub(crate) fn methods_of_options() -> PyResult<[(&'static str, Vec<&'static str>); 2]> {
    let of_choice = Feedback { others: Some(Residual::CLASSIC), ..Feedback::NONE };
    let shape = Shape::new(64, 64).map_err(refused)?;
    let (mut widths, mut residual_dtype) = (Vec::new(), Vec::new());
    for method in Method::ALL {
        let search = Search::new(method);
        for single in search.single_methods().map(Method::planned) {
            let setting = (single.setting)(single.default, shape, Dtype::F32).map_err(refused)?;
            if of_choice.of(&setting).is_some() && residual_dtype.last() != Some(&method.name()) {
                residual_dtype.push(method.name());
            }
        }
        if search.with_widths(&WIDTHS).is_ok() {
            widths.push(method.name());
        }
    }
    Ok([("widths", widths), ("residual_dtype", residual_dtype)])
}

/// Parses a layer's element type; the error names the layer.
pub(crate) fn layer_dtype(py: Python<'_>, layer: &str, name: &str) -> PyResult<Dtype> {
    dtype(name).map_err(|_| {
        let text = format!("{layer}: values are {name}; float32, float16 and bfloat16 are known");
        named_error(py, text, CoreError::UnknownName { what: "", expected: "" }.code(), Some(layer))
    })
}

/// The exception for an error of a layer.
pub(crate) fn refused_layer(py: Python<'_>, name: &str, error: impl Into<lgreco_train::Error>) -> PyErr {
    let error = error.into();
    named_error(py, of_layer(Some(name), &error.to_string()), error.code(), Some(name))
}

/// The expected values of an option, for errors about values of another type.
fn expected(name: &str) -> &'static str {
    match name {
        "default" | "alpha" => "a number",
        "method" | "metric" | "policy" | "objective" | "route" => "a word",
        "budget" => "\"size\", \"error\" or a number of bits",
        "size" => "\"uniform\" or a number of bits",
        "candidates" => "three numbers: the first, the last and the step",
        "widths" => "a list of \"full\" and numbers of bits",
        "accordion" => "two numbers, or four",
        "legacy" => "bounds between sizes, a parameter per size for each phase, and steps",
        "ramp_up" => "a number and steps",
        "error_feedback" | "undo" => "True or False",
        "random_seed" => "a whole number from 0 to 2^64 - 1",
        "start_iter" => START,
        _ => "a whole number of at least 0",
    }
}

/// The expected values of `start_iter`.
const START: &str = "a whole number of at least 2";

/// Converts an option's value. Errors name the option and the expected values.
pub(crate) fn option<'py, T: FromPyObjectOwned<'py>>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T> {
    extracted(name, value, expected(name))
}

/// Like [`option`], but takes the description of the expected values, which may differ from training.
pub(crate) fn extracted<'py, T: FromPyObjectOwned<'py>>(
    name: &str,
    value: &Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<T> {
    let wrong = |_| {
        let shown = value.repr().map_or_else(|_| "?".into(), |repr| repr.to_string());
        LgrecoError::new_err(format!("{name} is {shown}, expected {expected}"))
    };
    value.extract().map_err(wrong)
}

pub(crate) fn refused(error: impl std::fmt::Display) -> PyErr {
    LgrecoError::new_err(error.to_string())
}

/// Parses a word of an option. The error names the option and the word.
fn word<T: FromStr<Err: std::fmt::Display>>(option: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|error| refused(format!("{option} is {text:?}: {error}")))
}

/// Default value widths for TopK. At equal bytes, values in few bits raise the training loss about a tenth as much as
/// full values (docs/src/experiments/training.md).
const WIDTHS: [Width; 7] = {
    use Width::{Bits, Full};
    [Full, Bits(8), Bits(6), Bits(5), Bits(4), Bits(3), Bits(2)]
};

/// A number or a word.
#[derive(FromPyObject)]
pub(crate) enum Value {
    Number(u64),
    Word(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Word(word) => word.fmt(f),
        }
    }
}

/// Accordion's parameters for critical and for other layers, and optionally its two thresholds.
#[derive(FromPyObject)]
enum Levels {
    All(f64, f64, f64, f64),
    Two(f64, f64),
}

impl From<Levels> for Accordion {
    fn from(levels: Levels) -> Accordion {
        match levels {
            Levels::All(low, high, eta, drop) => Accordion { low, high, eta, drop },
            Levels::Two(low, high) => Accordion::new(low, high),
        }
    }
}

/// The options that `lgreco.torch` passes by name. A missing option gets the default of the Rust library.
pub(crate) struct Options<'a, 'py>(pub(crate) &'a Bound<'py, PyDict>);

impl<'py> Options<'_, 'py> {
    fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<Option<T>> {
        match self.0.get_item(name)? {
            Some(value) if !value.is_none() => option(name, &value).map(Some),
            _ => Ok(None),
        }
    }

    fn refuse_unknown(&self) -> PyResult<()> {
        for name in self.0.keys() {
            let name: String = name.extract()?;
            let mut known = KNOWN.split(' ');
            if !known.any(|known| known == name) {
                let known = KNOWN.replace(' ', ", ");
                return Err(refused(format!("no option is called {name:?}; there are {known}, {OF_TRAINERS}")));
            }
        }
        Ok(())
    }

    pub(crate) fn search(&self) -> PyResult<Search> {
        self.refuse_unknown()?;
        let method: String = self.get("method")?.unwrap_or_else(|| "hybrid".into());
        let methods = method.split(',').map(|method| word("method", method.trim()));
        let mut search = Search::of(&methods.collect::<PyResult<Vec<_>>>()?).map_err(refused)?;
        // The default is set before the candidates, because `with_default` also replaces the range of candidates.
        if let Some(default) = self.get("default")? {
            search = search.with_default(default).map_err(refused)?;
        }
        if let Some((first, last, step)) = self.get("candidates")? {
            search = search.with_range(Range { first, last, step }).map_err(refused)?;
        }
        if let Some(widths) = self.get::<Vec<Value>>("widths")? {
            let widths = widths.iter().map(|width| word::<Width>("widths", &width.to_string()));
            search = search.with_widths(&widths.collect::<PyResult<Vec<_>>>()?).map_err(refused)?;
        }
        match self.get::<String>("metric")? {
            Some(metric) => search.metric = word("metric", &metric)?,
            None if self.is_paper()? => search.metric = Metric::L2,
            None => {}
        }
        if let Some(workers) = self.get("workers")? {
            search.workers =
                Some(NonZero::new(workers).ok_or_else(|| refused("`workers` is 0: it must be at least 1"))?);
        }
        search.min_elements = self.get("min_elements")?.unwrap_or(search.min_elements);
        search.seed = self.get("random_seed")?.unwrap_or(search.seed);
        if let Some(name) = self.get::<String>("reduce_dtype")? {
            search.reduce_dtype = dtype(&name)?;
        }
        Ok(search)
    }

    /// The fixed settings, one per layer, if given.
    fn settings(&self, tensors: &[Tensor], names: &[String]) -> PyResult<Option<Vec<Setting>>> {
        let Some(settings) = self.get::<Vec<String>>("settings")? else { return Ok(None) };
        let settings = settings.iter().zip(tensors).zip(names).map(|((text, tensor), name)| {
            let wrong = |error: CoreError| refused_layer(self.0.py(), name, error);
            let setting: Setting = text.parse().map_err(wrong)?;
            setting.payload_len(tensor.shape(), tensor.dtype()).map_err(wrong)?;
            Ok(setting)
        });
        settings.collect::<PyResult<_>>().map(Some)
    }

    /// Refuses options that choose settings, because the settings are given.
    fn expect_left_out(&self, options: &[&str]) -> PyResult<()> {
        for option in options {
            if let Some(given) = self.get::<String>(option)? {
                let text =
                    format!("{option} is {given:?} beside settings, which are instead of it: give one of the two");
                return Err(refused(text));
            }
        }
        Ok(())
    }

    fn policy(&self, tensors: &[Tensor], names: &[String]) -> PyResult<Policy> {
        if let Some(settings) = self.settings(tensors, names)? {
            self.expect_left_out(&["method", "policy"])?;
            return Ok(Policy::Fixed(settings));
        }
        let accordion = self.get::<Levels>("accordion")?.map(Accordion::from);
        let legacy = self.get("legacy")?.map(|(sizes, levels, steps)| Legacy { sizes, levels, steps });
        let clusters = self.get("clusters")?.unwrap_or(6);
        let policies = [
            ("lgreco", Some(Policy::LGreco { solver: Solver::default(), accordion })),
            ("paper", Some(Policy::LGreco { solver: Solver::Dp { levels: dp::LEVELS }, accordion })),
            ("uniform", Some(Policy::Uniform)),
            ("uncompressed", Some(Policy::Uncompressed)),
            ("kmeans", Some(Policy::KMeans { clusters })),
            ("accordion", accordion.map(Policy::Accordion)),
            ("legacy", legacy.map(Policy::Legacy)),
        ];
        let name: String = self.get("policy")?.unwrap_or_else(|| "lgreco".into());
        let levels = || refused(format!("policy is {name:?}, which needs its levels as {name}"));
        named("policy", &name, &policies)?.ok_or_else(levels)
    }

    fn feedback(&self) -> PyResult<Feedback> {
        let storages = [("float32", Storage::F32), ("bfloat16", Storage::Bf16), ("int8", Storage::Int8)];
        let name: String = self.get("residual_dtype")?.unwrap_or_else(|| "float32".into());
        let storage = named("residual_dtype", &name, &storages)?;
        Ok(match self.get("error_feedback")?.unwrap_or(true) {
            true => Feedback { others: Some(Residual { storage, ..Residual::CLASSIC }), ..Feedback::default() },
            false => Feedback::NONE,
        })
    }

    /// The budget; a size by default, because equal bytes train better than equal errors (docs/src/experiments/training.md).
    fn budget(&self) -> PyResult<Budget> {
        match self.get("budget")? {
            None if self.is_paper()? => Ok(Budget::Error),
            None => Ok(Budget::Size),
            Some(Value::Number(bits)) => Ok(Budget::Bits(bits)),
            Some(Value::Word(name)) => named("budget", &name, &[("size", Budget::Size), ("error", Budget::Error)]),
        }
    }

    /// Whether plans are made as in the L-GreCo paper.
    fn is_paper(&self) -> PyResult<bool> {
        Ok(self.get::<String>("policy")?.as_deref() == Some("paper"))
    }

    fn objective(&self) -> PyResult<Objective> {
        let name: String = self.get("objective")?.unwrap_or_else(|| "bits".into());
        named("objective", &name, &[("bits", Objective::Bits), ("seconds", Objective::MeasuredSeconds)])
    }

    fn schedule(&self, default: Schedule) -> PyResult<Schedule> {
        let schedule = Schedule {
            warmup: self.get("start_iter")?.unwrap_or(default.warmup),
            period: self.get("period")?.unwrap_or(default.period),
            window: self.get("window")?.unwrap_or(default.window),
            lead: self.get("lead")?.unwrap_or(default.lead),
        };
        let Schedule { warmup, period, lead, .. } = schedule;
        if warmup < 2 {
            return Err(refused(format!("start_iter is {warmup}, expected {START}")));
        }
        if lead >= warmup.min(period) && period > 0 {
            return Err(refused(format!("lead is {lead}, expected fewer steps than start_iter and period")));
        }
        Ok(schedule)
    }

    /// Makes the configuration of a controller for these layers.
    pub(crate) fn config(&self, loss_scaling: bool, tensors: &[Tensor], names: &[String]) -> PyResult<Config> {
        let mut search = self.search()?;
        if self.get::<Vec<Value>>("widths")?.is_none() {
            // `with_widths` fails if TopK is not among the searched methods. Then the search stays unchanged.
            search = search.clone().with_widths(&WIDTHS).unwrap_or(search);
        }
        let config = Config::new(search);
        let routes =
            [("all_gather", Route::AllGather), ("scatter_reduce", Route::ScatterReduce), ("sharded", Route::Sharded)];
        let route: String = self.get("route")?.unwrap_or_else(|| "all_gather".into());
        Ok(Config {
            policy: self.policy(tensors, names)?,
            budget: self.budget()?,
            alpha: self.get("alpha")?.unwrap_or(config.alpha),
            ramp_up: self.get("ramp_up")?.map(|(first, steps)| RampUp { first, steps }),
            schedule: self.schedule(config.schedule)?,
            feedback: self.feedback()?,
            objective: self.objective()?,
            non_finite: match loss_scaling {
                true => NonFinite::PassThrough,
                false => NonFinite::Error,
            },
            route: named("route", &route, &routes)?,
            metrics_every: self.get("metrics_every")?.unwrap_or(config.metrics_every),
            undo: self.get("undo")?.unwrap_or(config.undo),
            clock: Some(clock),
            ..config
        })
    }
}

/// The names of all options.
const KNOWN: &str = "method default candidates widths metric workers min_elements random_seed reduce_dtype settings policy \
    clusters accordion legacy residual_dtype error_feedback budget objective alpha ramp_up start_iter period window lead \
    route metrics_every undo";

/// Options that only `lgreco.torch` reads.
const OF_TRAINERS: &str = "grad_scaler, on_plan, optimizer, and under DDP hold_zeros and node_group";

/// Seconds since the first call.
fn clock() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}
