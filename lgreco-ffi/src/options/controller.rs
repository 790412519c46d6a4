//! Options of a controller. All ranks need the same options.

use super::plan::{self, Limit, PLAN};
use super::residual::RESIDUAL;
use super::search::SEARCH;
use super::{Documented, Known, Options, PlanOptions, SearchOptions, Value, documented_of, put, set};
use crate::failure::{Failure, Result};
use lgreco_train::compress::Setting;
use lgreco_train::controller::{Accordion, Budget, Config, Feedback, Legacy, NonFinite, Objective, Policy, RampUp};
use lgreco_train::exchange::Route;
use lgreco_train::feedback::Residual;
use lgreco_train::search::{Method, Metric, Search};
use std::sync::OnceLock;
use std::time::Instant;

/// The kind of policy, without its own options.
#[derive(Clone, Copy, PartialEq)]
enum Decides {
    LGreco,
    Paper,
    Uniform,
    Uncompressed,
    KMeans,
    Accordion,
    Legacy,
}

const POLICIES: [(&str, Decides); 7] = [
    ("lgreco", Decides::LGreco),
    ("paper", Decides::Paper),
    ("uniform", Decides::Uniform),
    ("uncompressed", Decides::Uncompressed),
    ("kmeans", Decides::KMeans),
    ("accordion", Decides::Accordion),
    ("legacy", Decides::Legacy),
];

pub(crate) struct ControllerOptions {
    search: SearchOptions,
    plan: PlanOptions,
    policy: Option<Decides>,
    accordion: Option<Accordion>,
    legacy: Option<Legacy>,
    clusters: usize,
    error_feedback: bool,
    residual: Residual,
    loco: Residual,
    /// The schedule, and all options that do not depend on other options.
    config: Config,
}

impl Default for ControllerOptions {
    fn default() -> ControllerOptions {
        ControllerOptions {
            search: SearchOptions::default(),
            plan: PlanOptions::default(),
            policy: None,
            accordion: None,
            legacy: None,
            clusters: 6,
            error_feedback: true,
            residual: Residual::CLASSIC,
            loco: Residual::LOCO,
            config: Config { clock: Some(clock), ..Config::new(Search::new(Method::Hybrid)) },
        }
    }
}

/// Seconds since the first call.
fn clock() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

impl ControllerOptions {
    fn policy(&self, fixed: Option<Vec<Setting>>) -> Result<Policy> {
        let wrong = |expected| {
            let found = POLICIES.iter().find(|(_, policy)| Some(*policy) == self.policy).map_or("", |(name, _)| *name);
            Failure::OptionValue { name: "policy", found: found.into(), expected }
        };
        match (fixed, self.policy) {
            (Some(settings), None) => Ok(Policy::Fixed(settings)),
            (Some(_), Some(_)) => Err(wrong("none beside settings, which replace it")),
            (None, None | Some(Decides::LGreco)) => {
                Ok(Policy::LGreco { solver: self.plan.solver(), accordion: self.accordion })
            }
            (None, Some(Decides::Paper)) => Ok(Policy::LGreco { solver: self.plan.dp(), accordion: self.accordion }),
            (None, Some(Decides::Uniform)) => Ok(Policy::Uniform),
            (None, Some(Decides::Uncompressed)) => Ok(Policy::Uncompressed),
            (None, Some(Decides::KMeans)) => Ok(Policy::KMeans { clusters: self.clusters }),
            (None, Some(Decides::Accordion)) => {
                self.accordion.map(Policy::Accordion).ok_or_else(|| wrong("its levels as the option `accordion`"))
            }
            (None, Some(Decides::Legacy)) => {
                let legacy = self.legacy.clone();
                legacy.map(Policy::Legacy).ok_or_else(|| wrong("its levels as the option `legacy`"))
            }
        }
    }

    fn budget(&self) -> Result<Budget> {
        Ok(match self.plan.limit {
            None if self.policy == Some(Decides::Paper) => Budget::Error,
            None | Some(Limit::Size) => Budget::Size,
            Some(Limit::Error) => Budget::Error,
            Some(Limit::Number(seconds)) if self.config.objective == Objective::MeasuredSeconds => {
                Budget::Seconds(seconds)
            }
            Some(Limit::Number(bits)) => Budget::Bits(plan::bits(bits)?),
        })
    }

    /// The configuration. `fixed` has the caller's settings, one per layer. If given, `route` replaces the option
    /// `route`.
    pub(crate) fn config(self, fixed: Option<Vec<Setting>>, route: Option<Route>) -> Result<Config> {
        let (policy, budget) = (self.policy(fixed)?, self.budget()?);
        let mut search = self.search.search()?;
        if self.policy == Some(Decides::Paper) && self.search.metric.is_none() {
            search.metric = Metric::L2;
        }
        let feedback = match self.error_feedback {
            true => Feedback { qsgd: None, loco: Some(self.loco), others: Some(self.residual) },
            false => Feedback::NONE,
        };
        let route = route.unwrap_or(self.config.route);
        Ok(Config { search, policy, budget, alpha: self.plan.alpha, feedback, route, ..self.config })
    }
}

/// Parses the option `legacy`, such as "4096,65536; 8,6,4; 6,4,2; 900". First come the bounds between the size classes
/// of layers. Then comes one list of parameters per phase, with one parameter per size class. The last number is the
/// number of steps.
fn legacy(value: &Value<'_>) -> Result<Legacy> {
    let parts: Vec<&str> = value.found.split(';').map(str::trim).collect();
    let [sizes, levels @ .., steps] = &parts[..] else { return Err(value.wrong()) };
    Ok(Legacy {
        sizes: if sizes.is_empty() { Vec::new() } else { value.numbers_of(sizes)? },
        levels: levels.iter().map(|phase| value.numbers_of(phase)).collect::<Result<_>>()?,
        steps: steps.parse().map_err(|_| value.wrong())?,
    })
}

const CONTROLLER: &[Known<ControllerOptions>] = &[
    Known {
        name: "policy",
        expected: "lgreco, paper, uniform, uncompressed, kmeans, accordion or legacy",
        means: "the rule by which decisions choose settings. lgreco: the plan within `budget`, made by `solver`. \
                paper: the plan of Algorithm 1; `budget` is error and `metric` is l2 unless they are given. uniform: \
                the uniform setting for every layer. uncompressed: no compression. kmeans: one setting for each \
                cluster of layers, within `budget`, as in CGX. accordion: one of two parameters for each layer (option \
                `accordion`). legacy: a parameter by the size of the layer and the phase of training (option \
                `legacy`). Default: lgreco. Not allowed together with the argument `settings`.",
        read: |to, value| put(&mut to.policy, value.word(&POLICIES).map(Some)),
    },
    Known {
        name: "objective",
        expected: "bits or seconds",
        means: "the unit in which plans count sizes: bits or seconds. With seconds, the controller measures during \
                training how long the slowest rank sends and compresses, and a layer is sent uncompressed if its \
                compression saves no time. Default: bits.",
        read: |to, value| {
            let words = [("bits", Objective::Bits), ("seconds", Objective::MeasuredSeconds)];
            put(&mut to.config.objective, value.word(&words))
        },
    },
    Known {
        name: "start_iter",
        expected: "a number of steps of at least 2",
        means: "the number of uncompressed steps before the first decision, at least 2. Default: 100.",
        read: |to, value| put(&mut to.config.schedule.warmup, value.number()),
    },
    Known {
        name: "period",
        expected: "a number of steps of at least 1",
        means: "the number of steps from one decision to the next, at least 1. With the objective seconds, one more \
                decision follows 50 steps after the first (window + lead + 1 steps if that is more), unless the period \
                is shorter. Default: 1000.",
        read: |to, value| put(&mut to.config.schedule.period, value.number()),
    },
    Known {
        name: "window",
        expected: "a number of steps of at least 1",
        means: "the number of steps whose mean gradient a decision uses, at least 1. If fewer steps have passed since \
                the last decision, it uses these. Default: 10.",
        read: |to, value| put(&mut to.config.schedule.window, value.number()),
    },
    Known {
        name: "lead",
        expected: "a number of steps, fewer than start_iter and period",
        means: "the number of steps between the window and its decision, fewer than start_iter and period. During \
                these steps another thread may plan (lgreco_controller_take_plan_task); otherwise the call that begins \
                the decision's step plans. Default: 0.",
        read: |to, value| put(&mut to.config.schedule.lead, value.number()),
    },
    Known {
        name: "ramp_up",
        expected: "the first value of `default` and a number of steps, with a comma between",
        means: "\"first,steps\": compression begins milder. At start_iter, `default` has the value `first`. Each \
                decision brings it geometrically closer to its own value, which it reaches after `steps` steps, at \
                least 1. Allowed if `budget` is size or error, and the policy is uniform, kmeans, or lgreco or paper \
                without `accordion`. Default: no ramp-up.",
        read: |to, value| match value.numbers::<f64>()?[..] {
            [first, steps] if steps >= 0.0 && steps.fract() == 0.0 => {
                put(&mut to.config.ramp_up, Ok(Some(RampUp { first, steps: steps as u64 })))
            }
            _ => Err(value.wrong()),
        },
    },
    Known {
        name: "clusters",
        expected: "a number of at least 1",
        means: "the number of clusters of the policy kmeans, at least 1. Default: 6.",
        read: |to, value| put(&mut to.clusters, value.number()),
    },
    Known {
        name: "accordion",
        expected: "two numbers, or four, with commas between",
        means: "\"low,high\" or \"low,high,eta,drop\": two parameters of the first method, low above high, and two \
                thresholds. Under the policy accordion, which needs this option, critical layers get `low` and all \
                others `high`. Under lgreco and paper, these settings determine the limit of plans instead of the \
                uniform setting, and both parameters must be candidates. A layer is critical at the first decision, \
                and if its gradient norm has changed by at least the fraction `eta` since the last one (above 0, \
                default 0.5). When the learning rate falls by more than the factor `drop` below its highest value \
                since the last decision (at least 1, default 1.5), all layers get `low`. Default: none.",
        read: |to, value| {
            to.accordion = Some(match value.numbers()?[..] {
                [low, high] => Accordion::new(low, high),
                [low, high, eta, drop] => Accordion { low, high, eta, drop },
                _ => return Err(value.wrong()),
            });
            Ok(())
        },
    },
    Known {
        name: "legacy",
        expected: "bounds, one list of parameters per phase, and steps, as in 1000,100000; 8,6,4; 6,4,2; 900",
        means: "\"bounds; parameters of a phase; ...; steps\", such as \"1000,100000; 8,6,4; 6,4,2; 900\", for the \
                policy legacy, which needs it. The ascending bounds, in elements, divide the layers into classes, here \
                below 1000, below 100000 and the rest. Each phase has one parameter of the first method per class; \
                another number of parameters gives LGRECO_LENGTH. The phases divide this many steps of training, at \
                least 1, equally. A phase takes effect at its first decision, and the last phase has no end. Default: \
                none.",
        read: |to, value| put(&mut to.legacy, legacy(value).map(Some)),
    },
    Known {
        name: "error_feedback",
        expected: "true or false",
        means: "true: layers keep their compression error as a residual under all lossy settings except qsgd and \
                unbiased eden. false: no layer keeps a residual. Default: true.",
        read: |to, value| put(&mut to.error_feedback, value.truth()),
    },
    Known {
        name: "loco_residual_dtype",
        expected: "float32, bfloat16 or int8",
        means: "like residual_dtype, for layers under loco. Default: int8.",
        read: |to, value| put(&mut to.loco.storage, value.storage()),
    },
    Known {
        name: "loco_gain",
        expected: "a number above 0, at most 1",
        means: "like gain, for layers under loco. Default: 0.2.",
        read: |to, value| put(&mut to.loco.gain, value.number()),
    },
    Known {
        name: "loco_reset_every",
        expected: "a number of steps",
        means: "like reset_every, for layers under loco. Default: 512.",
        read: |to, value| put(&mut to.loco.reset_every, value.number()),
    },
    Known {
        name: "non_finite",
        expected: "error, skip or pass_through",
        means: "what lgreco_controller_step does if some rank's gradient holds NaN or infinity; residuals stay \
                unchanged. error: it fails on every rank before anything is exchanged, and may be repeated. skip: it \
                replaces all gradients by zeros, with LGRECO_OUTCOME_SKIPPED. pass_through: it exchanges all gradients \
                uncompressed, with NaN and infinity. With buckets in flight or on nodes, only the affected buckets \
                fail, become zeros or become NaN (lgreco_bucket_next). Default: error.",
        read: |to, value| {
            let words =
                [("error", NonFinite::Error), ("skip", NonFinite::Skip), ("pass_through", NonFinite::PassThrough)];
            put(&mut to.config.non_finite, value.word(&words))
        },
    },
    Known {
        name: "route",
        expected: "all_gather or scatter_reduce",
        means: "the way in which ranks average payloads that a collective cannot sum. all_gather: every rank gets all \
                payloads. scatter_reduce: each rank averages its part of the elements, compresses the mean again and \
                sends it to all ranks (LGRECO_REQUEST_ALL_TO_ALL and ALL_GATHER_EACH). Payloads of hard-threshold, \
                sidco and adacomp always take all_gather. Default: all_gather.",
        read: |to, value| {
            let words = [("all_gather", Route::AllGather), ("scatter_reduce", Route::ScatterReduce)];
            put(&mut to.config.route, value.word(&words))
        },
    },
    Known {
        name: "bucket_bytes",
        expected: "a number of bytes",
        means: "the largest bucket of lgreco_controller_step, in bytes of uncompressed gradients; a larger layer is a \
                bucket by itself. Default: 4194304.",
        read: |to, value| put(&mut to.config.bucket_bytes, value.number()),
    },
    Known {
        name: "measuring_rank",
        expected: "the number of a worker, from 0",
        means: "the rank that measures gradients and plans for all ranks, below the number of workers. On nodes, it is \
                the number of a node, below the number of nodes, and each rank of this node plans for its peers. \
                Default: 0.",
        read: |to, value| put(&mut to.config.measuring_rank, value.number()),
    },
    Known {
        name: "metrics_every",
        expected: "a number of steps",
        means: "the number of steps between measurements of `relative_error` in lgreco_metrics; 0 means never. \
                Default: 10.",
        read: |to, value| put(&mut to.config.metrics_every, value.number()),
    },
    Known {
        name: "undo",
        expected: "true or false",
        means: "true: the controller keeps the residuals from before the last step, so that \
                lgreco_controller_roll_back and lgreco_controller_abandon_step can restore them; this doubles the \
                memory of residuals. false: it keeps them only if `non_finite` is not error. Default: false.",
        read: |to, value| put(&mut to.config.undo, value.truth()),
    },
];

/// The options of a controller, without the options of searches and plans.
pub(super) fn own() -> impl Iterator<Item = Documented> {
    documented_of(CONTROLLER).chain(documented_of(RESIDUAL))
}

impl Options for ControllerOptions {
    const OF: &'static str = "a controller";

    fn set(&mut self, name: &str, found: &str) -> Option<Result<&'static str>> {
        set(CONTROLLER, self, name, found)
            .or_else(|| set(RESIDUAL, &mut self.residual, name, found))
            .or_else(|| set(SEARCH, &mut self.search, name, found))
            .or_else(|| set(PLAN, &mut self.plan, name, found))
    }

    fn documented() -> Vec<Documented> {
        own().chain(documented_of(SEARCH)).chain(documented_of(PLAN)).collect()
    }
}
