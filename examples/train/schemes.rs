//! The compression schemes to compare.

use crate::drawn;
use crate::equal_bytes::EqualBytes;
use crate::task::Task;
use lgreco_train::compress::{Setting, clt::CltK};
use lgreco_train::controller::{Accordion, Budget, Config, Policy, Schedule, Tensor};
use lgreco_train::feedback::Residual;
use lgreco_train::gradient::Dtype;
use lgreco_train::plan::Solver;
use lgreco_train::search::{Method, Metric, Range, Search, Width};
use std::fmt;
use std::sync::LazyLock;
use std::time::Instant;

/// A compression scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The method: `none`, `qsgd`, `topk`, `powersgd`, `hybrid` (these three), `eden`, `mixed` (EDEN, TopK and PowerSGD) or
    /// `clt-k`.
    pub method: &'static str,
    /// How the method's parameters are chosen.
    pub name: &'static str,
}

/// The schemes that are compared for every method.
pub const NAMES: [&str; 9] =
    ["uniform", "k-means", "k-means-bytes", "accordion", "legacy", "l-greco-dp", "l-greco", "l-greco+accordion", BYTES];
/// The methods that are compared.
pub const METHODS: [&str; 3] = ["qsgd", "topk", "powersgd"];

/// L-GreCo with the least error at the bytes of the uniform setting.
pub const BYTES: &str = "l-greco-bytes";
/// Methods that are also compared with a ramp-up at the same bytes. QSGD has too few bits for a ramp-up.
pub const RAMPED: [&str; 2] = ["topk", "powersgd"];

/// Formats of TopK's values in schemes that quantise them.
const WIDTHS: [Width; 7] =
    [Width::Full, Width::Bits(8), Width::Bits(6), Width::Bits(5), Width::Bits(4), Width::Bits(3), Width::Bits(2)];

/// Name suffix of schemes with quantised TopK values.
const BITS: &str = "+bits";
/// L-GreCo with the least error within a fraction of the uncompressed bits.
pub const RATIOS: [&str; 4] = ["l-greco-13x", "l-greco-30x", "l-greco-13x+bits", "l-greco-30x+bits"];

/// Schemes of EDEN: the same number of bits for all layers, and plans of the same total size.
pub const EDEN: [&str; 5] = ["uniform-1", "uniform-2", "uniform-3", "l-greco-10.5x", "l-greco-15.6x"];
/// Schemes with plans of EDEN, TopK and PowerSGD.
pub const MIXED: [&str; 3] = ["l-greco-10.5x+bits+bf16", "l-greco-15.6x+bits+bf16", "l-greco-30x+bits+bf16"];

/// Name suffix of schemes that exchange factors and uncompressed layers as bf16.
const HALVES: &str = "+bf16";

/// Name suffix of schemes that exchange velocities.
const CORRECTED: &str = "+correction";

/// ScaleCom's low-pass filter.
const FILTER: Residual = Residual { gain: 0.5, ..Residual::CLASSIC };

/// All schemes, the uncompressed one first.
pub fn all() -> Vec<Scheme> {
    let mut all = vec![Scheme { method: "none", name: "uncompressed" }];
    all.extend(METHODS.iter().flat_map(|method| NAMES.map(|name| Scheme { method, name })));
    all.extend(
        ["uniform+ramp", "l-greco-bytes+ramp"].iter().flat_map(|name| RAMPED.map(|method| Scheme { method, name })),
    );
    for method in ["topk", "hybrid"] {
        all.extend(RATIOS.iter().map(|name| Scheme { method, name }));
    }
    all.extend([("powersgd", RATIOS[0]), ("topk", "l-greco-bytes+bits")].map(|(method, name)| Scheme { method, name }));
    all.push(Scheme { method: "hybrid", name: "l-greco-11.2x+bits+bf16" });
    all.extend(["uniform+bf16", "l-greco-bytes+bf16"].map(|name| Scheme { method: "powersgd", name }));
    all.extend(
        [("topk", "uniform+correction"), ("topk", "l-greco-bytes+bits+correction")]
            .map(|(method, name)| Scheme { method, name }),
    );
    all.extend(["uniform+correction", "l-greco-bytes+bf16+correction"].map(|name| Scheme { method: "powersgd", name }));
    all.extend(["hybrid", "hybrid-bytes"].map(|name| Scheme { method: "hybrid", name }));
    all.push(Scheme { method: "clt-k", name: "scalecom" });
    all.extend(EDEN.map(|name| Scheme { method: "eden", name }));
    all.extend(MIXED.map(|name| Scheme { method: "mixed", name }));
    all
}

/// Random plans, which only run on request.
pub fn drawn() -> impl Iterator<Item = Scheme> {
    drawn::NAMES.iter().map(|name| Scheme { method: drawn::METHOD, name })
}

/// A selection: one scheme, all schemes of a method, or all schemes of a name.
#[derive(Clone, Debug)]
pub struct Named(String);

/// Parses a selection. Returns an error if no scheme is selected.
pub fn named(text: &str) -> Result<Named, String> {
    let named = Named(text.into());
    match all().iter().chain(&drawn().collect::<Vec<_>>()).any(|scheme| named.is(scheme)) {
        true => Ok(named),
        false => Err(format!("there are: {}", all().iter().map(Scheme::to_string).collect::<Vec<_>>().join(", "))),
    }
}

impl Named {
    /// Whether the selection contains `scheme`.
    pub fn is(&self, scheme: &Scheme) -> bool {
        [scheme.method, scheme.name, &scheme.to_string()].contains(&&*self.0)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.method, self.name)
    }
}

impl Scheme {
    /// Whether workers exchange velocities instead of gradients, which needs SGD with momentum.
    pub fn corrects(&self) -> bool {
        self.name.ends_with(CORRECTED)
    }

    /// The controller's configuration for `task`, whose model has these tensors.
    pub fn config(&self, task: &Task, seed: u64, tensors: &[Tensor]) -> Result<Config, lgreco_train::Error> {
        let method = match self.method {
            "topk" | "clt-k" => Method::TopK,
            "powersgd" => Method::PowerSgd,
            "hybrid" | "mixed" => Method::Hybrid,
            "eden" => Method::Eden,
            _ => Method::Qsgd,
        };
        let bits = self.name.strip_prefix("uniform-").and_then(|bits| bits.parse().ok());
        // The setting whose error is the budget.
        let default = match method {
            Method::TopK => task.density,
            Method::PowerSgd => task.rank,
            Method::Eden => bits.unwrap_or(3.0),
            _ if self.method == "mixed" => 3.0,
            _ => 4.0,
        };
        let accordion = Accordion::new(2.0 * default, default / 2.0);
        let search = match self.method {
            "mixed" => Search::of(&[Method::Eden, Method::TopK, Method::PowerSgd])?,
            "hybrid" => published()?,
            _ => Search::new(method),
        };
        let mut search = search.with_default(default)?;
        search.seed = seed;
        let name = self.name.strip_suffix(CORRECTED).unwrap_or(self.name);
        let halves = name.ends_with(HALVES);
        let name = name.strip_suffix(HALVES).unwrap_or(name);
        let few = name.ends_with(BITS);
        let name = name.strip_suffix(BITS).unwrap_or(name);
        if few {
            search = search.with_widths(&WIDTHS)?;
        }
        let solver = if self.name == "l-greco-dp" { Solver::Dp { levels: 10_000 } } else { Solver::default() };
        // The default is the L-GreCo paper's metric. The scheme's name may require another metric.
        search.metric = Metric::L2;
        let mut config = Config { budget: Budget::Error, ..Config::new(search) };
        if name.contains("-bytes") {
            (config.budget, config.search.metric) = (Budget::Size, Metric::SquaredL2);
        }
        if halves {
            let whole = EqualBytes { tensors, search: config.search.clone(), method, default }.ratio()?;
            config.search.reduce_dtype = Dtype::Bf16;
            if name == BYTES {
                // The budget is the bytes of the uniform setting with f32 factors.
                config.search = config.search.with_range(Range { first: 1.0, last: 16.0, step: 1.0 })?;
                config.budget = at_ratio(whole, tensors, &config.search)?;
            }
        }
        if let Some(ratio) = name.strip_prefix("l-greco-").and_then(|name| name.strip_suffix('x')) {
            let ratio: f64 = ratio.parse().unwrap_or(1.0);
            let range = |first, last| Range { first, last, step: first };
            config.search = match method {
                Method::TopK => config.search.with_range(range(0.005, 0.5))?,
                Method::PowerSgd => config.search.with_range(range(1.0, 16.0))?,
                Method::Eden => config.search.with_range(range(1.0, 8.0))?,
                _ if self.method == "mixed" => config.search.with_range(range(1.0, 8.0))?,
                _ => config.search,
            };
            (config.budget, config.search.metric) = (at_ratio(ratio, tensors, &config.search)?, Metric::SquaredL2);
        }
        let bytes = EqualBytes { tensors, search: config.search.clone(), method, default };
        config.policy = match name {
            "uncompressed" => Policy::Uncompressed,
            "uniform" | "uniform+ramp" => Policy::Uniform,
            _ if bits.is_some() => Policy::Uniform,
            "k-means" | "k-means-bytes" => Policy::KMeans { clusters: 6 },
            "accordion" => Policy::Accordion(accordion),
            "legacy" => Policy::Legacy(bytes.legacy(task.steps)?),
            number if self.method == drawn::METHOD => Policy::Fixed(drawn::plan(number, tensors, &config.search)?),
            "scalecom" => {
                Policy::Fixed(tensors.iter().map(|tensor| scalecom(tensor, &config.search)).collect::<Result<_, _>>()?)
            }
            "l-greco+accordion" => Policy::LGreco { solver, accordion: Some(accordion) },
            _ => Policy::LGreco { solver, accordion: None },
        };
        if self.name == "scalecom" {
            config.feedback.others = Some(FILTER);
        }
        config.schedule = schedule(task);
        let period = config.schedule.period;
        if self.name.ends_with("+ramp") {
            let steps = u64::from(task.steps - task.warmup());
            let (ramp, last) = bytes.ramp(steps, period)?;
            (config.ramp_up, config.search) = (Some(ramp), bytes.search.with_default(last)?);
        }
        config.clock = Some(seconds);
        Ok(config)
    }
}

/// A search over the L-GreCo paper's three methods. 4-bit QSGD is the reference of the budget. For usual shapes,
/// PowerSGD of rank 8 takes about the same number of bits as 4-bit QSGD.
fn published() -> Result<Search, lgreco_train::Error> {
    Ok(Search::new(Method::PowerSgd)
        .with_reference("powersgd 8")?
        .with_reference("topk 1%")?
        .with_reference("qsgd 4")?)
}

/// The budget of the planned layers, in bits, with which the whole gradient is compressed by `ratio`.
fn at_ratio(ratio: f64, tensors: &[Tensor], search: &Search) -> Result<Budget, lgreco_train::Error> {
    let bits = |planned: bool| -> Result<usize, lgreco_train::Error> {
        let tensors = tensors.iter().filter(|tensor| !planned || !search.takes(tensor.dims()));
        let reduce_dtype = if planned { search.reduce_dtype } else { Dtype::F32 };
        let len = |tensor: &Tensor| Setting::Dense.exchanged_len(tensor.shape(), tensor.dtype(), reduce_dtype);
        tensors.map(|tensor| Ok(8 * len(tensor)?)).sum()
    };
    Ok(Budget::Bits((bits(false)? as f64 / ratio) as u64 - bits(true)? as u64))
}

/// The schedule: eight decisions after the warm-up.
pub fn schedule(task: &Task) -> Schedule {
    let period = u64::from(task.steps / 8).max(4);
    Schedule { warmup: task.warmup().into(), period, window: period.min(10), lead: 0 }
}

/// CLT-k with the number of elements that TopK would keep. A leader chooses the elements.
fn scalecom(tensor: &Tensor, search: &Search) -> Result<Setting, lgreco_train::Error> {
    Ok(match search.uniform(tensor.dims(), tensor.dtype())? {
        Setting::TopK(top) => Setting::CltK(CltK { keep: top.keep }),
        dense => dense,
    })
}

fn seconds() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}
