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
        means: "the rule that chooses settings. lgreco, the default: plans within the budget. paper: plans as in the \
                L-GreCo paper. They come from the dynamic program, and their l2 error is at most that of the uniform \
                setting, unless `metric` and `budget` say otherwise. uniform: the uniform setting for every layer. \
                uncompressed: no compression. kmeans: one setting for each cluster of layers, as in CGX. accordion: \
                one of two parameters for each layer, by the change of gradient norms and of the learning rate. \
                legacy: a parameter by the size of a layer and the phase of training.",
        read: |to, value| put(&mut to.policy, value.word(&POLICIES).map(Some)),
    },
    Known {
        name: "objective",
        expected: "bits or seconds",
        means: "the unit of sizes in plans: bits, the default, or seconds. With seconds, the controller measures the \
                time of sending and compressing on the slowest rank during training. A layer is sent uncompressed if \
                its compression does not save time.",
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
        means: "the number of steps from one decision to the next, at least 1. With the objective `seconds`, a second decision \
                comes 50 steps after the first. Default: 1000.",
        read: |to, value| put(&mut to.config.schedule.period, value.number()),
    },
    Known {
        name: "window",
        expected: "a number of steps of at least 1",
        means: "the number of steps whose mean gradient a decision uses, at least 1. Default: 10.",
        read: |to, value| put(&mut to.config.schedule.window, value.number()),
    },
    Known {
        name: "lead",
        expected: "a number of steps, fewer than start_iter and period",
        means: "the number of steps between the last gradient that a decision uses and the first step under that \
                decision; fewer than start_iter and period. In these steps another thread may plan \
                (lgreco_controller_take_plan_task). Default: 0.",
        read: |to, value| put(&mut to.config.schedule.lead, value.number()),
    },
    Known {
        name: "ramp_up",
        expected: "the first value of `default` and a number of steps, with a comma between",
        means: "\"first,steps\": compression begins milder. After start_iter steps, `default` begins with the value \
                `first`. The decisions of the next `steps` steps bring it geometrically to its own value. Default: no \
                ramp-up.",
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
        means: "for kmeans: the number of clusters, at least 1. Default: 6.",
        read: |to, value| put(&mut to.clusters, value.number()),
    },
    Known {
        name: "accordion",
        expected: "two numbers, or four, with commas between",
        means: "\"low,high\" or \"low,high,eta,drop\". Critical layers get the parameter `low`, and other layers get \
                `high`, which is smaller. A layer is critical if its gradient norm changes by at least the fraction \
                `eta` (default 0.5). All layers are critical if the learning rate falls by more than the factor `drop` \
                (default 1.5). With the policy lgreco or paper, budgets come from these two parameters.",
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
        means: "bounds, phases and steps, with semicolons between, such as \"1000,100000; 8,6,4; 6,4,2; 900\". The \
                bounds are ascending numbers of elements. A layer belongs to the first class whose bound exceeds its \
                number of elements, or else to the last class. Each phase has one parameter per class. The last number \
                is the length of training in steps, which the phases divide equally.",
        read: |to, value| put(&mut to.legacy, legacy(value).map(Some)),
    },
    Known {
        name: "error_feedback",
        expected: "true or false",
        means: "true: under all lossy methods except qsgd and eden, layers keep their compression error as a residual. \
                false: no layer keeps a residual. Default: true.",
        read: |to, value| put(&mut to.error_feedback, value.truth()),
    },
    Known {
        name: "loco_residual_dtype",
        expected: "float32, bfloat16 or int8",
        means: "the option residual_dtype for layers under loco. Default: int8.",
        read: |to, value| put(&mut to.loco.storage, value.storage()),
    },
    Known {
        name: "loco_gain",
        expected: "a number above 0, at most 1",
        means: "the option gain for layers under loco. Default: 0.2.",
        read: |to, value| put(&mut to.loco.gain, value.number()),
    },
    Known {
        name: "loco_reset_every",
        expected: "a number of steps",
        means: "the option reset_every for layers under loco. Default: 512.",
        read: |to, value| put(&mut to.loco.reset_every, value.number()),
    },
    Known {
        name: "non_finite",
        expected: "error, skip or pass_through",
        means: "the treatment of a step in which some rank's gradient holds NaN or infinity. error, the default: the \
                step fails on every rank before anything is exchanged, and may be repeated with other gradients. skip: \
                the outcome is LGRECO_OUTCOME_SKIPPED, gradients become zeros, and residuals stay unchanged. \
                pass_through: gradients are exchanged uncompressed, with NaN and infinity, and residuals stay \
                unchanged.",
        read: |to, value| {
            let words =
                [("error", NonFinite::Error), ("skip", NonFinite::Skip), ("pass_through", NonFinite::PassThrough)];
            put(&mut to.config.non_finite, value.word(&words))
        },
    },
    Known {
        name: "route",
        expected: "all_gather or scatter_reduce",
        means: "the way in which ranks exchange payloads that a collective cannot sum. all_gather, the default: every \
                rank gets all payloads. scatter_reduce: each rank averages a part, compresses the mean again and sends \
                it to all ranks (LGRECO_REQUEST_ALL_GATHER_EACH and ALL_TO_ALL).",
        read: |to, value| {
            let words = [("all_gather", Route::AllGather), ("scatter_reduce", Route::ScatterReduce)];
            put(&mut to.config.route, value.word(&words))
        },
    },
    Known {
        name: "bucket_bytes",
        expected: "a number of bytes",
        means: "the size of a bucket, in bytes of uncompressed gradients. Default: 4194304.",
        read: |to, value| put(&mut to.config.bucket_bytes, value.number()),
    },
    Known {
        name: "measuring_rank",
        expected: "the number of a worker, from 0",
        means: "the rank that measures gradients and plans for all ranks. Default: 0.",
        read: |to, value| put(&mut to.config.measuring_rank, value.number()),
    },
    Known {
        name: "metrics_every",
        expected: "a number of steps",
        means: "the number of steps between measurements of relative errors; 0 for never. Default: 10.",
        read: |to, value| put(&mut to.config.metrics_every, value.number()),
    },
    Known {
        name: "undo",
        expected: "true or false",
        means: "true: the controller keeps the residuals from before the last step, so that \
                lgreco_controller_roll_back and lgreco_controller_abandon_step can restore them. This doubles the \
                memory of residuals. Default: false. If `non_finite` is not error, the controller always keeps them.",
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
