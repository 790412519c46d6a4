//! The configuration of a controller, and its checks.

use super::{Accordion, Budget, Feedback, Objective, Policy, RampUp, Tensor};
use crate::compress::{Compressor, Setting};
use crate::exchange::{Route, check_reduce_dtype};
use crate::plan::{Solver, dp};
use crate::search::{Metric, Search};
use crate::{CoreError, Error};
use alloc::sync::Arc;
use lgreco::error::expect_len;

/// The configuration of a controller; the same on every rank.
///
/// ```
/// use lgreco_train::controller::{Accordion, Config, Policy};
/// use lgreco_train::search::{Method, Search};
/// // L-GreCo over ranks 8 to 32; Accordion's ranks 32 and 8 set the error budget.
/// let mut config = Config::new(Search::new(Method::PowerSgd).with_default(16.0)?);
/// config.policy = Policy::LGreco { solver: Default::default(), accordion: Some(Accordion::new(32.0, 8.0)) };
/// config.schedule.warmup = 500;
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// How settings are chosen; L-GreCo with the exact solver unless set.
    pub policy: Policy,
    /// The settings that may be chosen, and the layers that are never compressed. The search's `seed` is the seed of all random
    /// bits.
    pub search: Search,
    /// The limit of a plan's error or size; the size of the default settings unless set.
    pub budget: Budget,
    /// Factor by which a budget from the default settings is multiplied; 1 unless set.
    pub alpha: f64,
    /// When decisions are made.
    pub schedule: Schedule,
    /// Milder compression in the first steps; none unless set.
    pub ramp_up: Option<RampUp>,
    /// Error feedback under each compressor.
    pub feedback: Feedback,
    /// The unit of sizes: bits, or measured seconds.
    pub objective: Objective,
    /// What happens to a step in which some rank's gradient holds NaN or infinity.
    pub non_finite: NonFinite,
    /// Whether the residuals from before the last step are kept, so that [`roll_back`](super::Residuals::roll_back) and
    /// [`abandon_step`](super::Controller::abandon_step) can restore them. Keeping these residuals doubles the memory of residuals.
    /// If `non_finite` is not [`NonFinite::Error`], these residuals are always kept, because a loss scaler then skips steps.
    pub undo: bool,
    /// How payloads that collectives cannot sum are exchanged. With [`Route::Sharded`], each rank gets only the means of its own
    /// [shards](Tensor::with_shards), at their positions in the gradients. Elements outside of the rank's shards are then
    /// undefined.
    pub route: Route,
    /// Size of the buckets of [`step`](super::Controller::step), in bytes of uncompressed gradients; 4 MiB unless set.
    pub bucket_bytes: usize,
    /// The rank that measures and plans for all; 0 unless set.
    pub measuring_rank: u32,
    /// Steps between measurements of [`Metrics::relative_error`](super::Metrics), 0 for never; 10 unless set.
    pub metrics_every: u64,
    /// A clock: seconds since any fixed moment. With a clock, reports and metrics contain the seconds of planning and exchanging,
    /// and plans can minimise [measured seconds](Objective::MeasuredSeconds).
    pub clock: Option<fn() -> f64>,
}

/// Steps from the first decision by measured seconds to the second one, if the period is longer. The first decision relies on a
/// probe of the link, which may be wrong on a busy host. The second decision knows the seconds of compressed steps, too.
const SECOND: u64 = 50;

/// When decisions are made, in steps.
///
/// ```
/// use lgreco_train::controller::Schedule;
/// let per_epoch = Schedule { warmup: 5 * 391, period: 391, window: 10, lead: 0 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Uncompressed steps before the first decision; at least 2. These steps should cover the learning rate's warm-up.
    pub warmup: u64,
    /// Steps from one decision to the next, at least 1; an epoch in the paper. Under [`Objective::MeasuredSeconds`], a second
    /// decision comes 50 steps after the first one, or `window + lead + 1` steps if that is more. It is left out if the next
    /// decision would then come before a whole window.
    pub period: u64,
    /// Number of steps whose mean gradient a decision sees, at least 1. The window of these steps ends `lead` steps before the
    /// decision, and begins after the previous decision.
    pub window: u64,
    /// Steps between the last gradient that a decision sees and the first step with its settings; fewer than warm-up and period. In
    /// these steps the measuring rank can plan on another thread ([`Planning::take_task`](super::Planning::take_task)). With a lead
    /// of 0, the default, the measuring rank plans during the call that begins the step.
    pub lead: u64,
}

/// What happens in a step in which some rank's gradient holds NaN or infinity; the same on all ranks.
///
/// ```
/// use lgreco_train::controller::{Config, NonFinite};
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::Qsgd));
/// assert_eq!(config.non_finite, NonFinite::Error);
/// config.non_finite = NonFinite::Skip;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// The step fails on every rank before anything is exchanged, and may be repeated with other gradients. If the trainer
    /// exchanges the buckets itself, only the buckets with such gradients fail.
    #[default]
    Error,
    /// The step must not be applied: its outcome is [`Outcome::Skipped`](super::Outcome), gradients become zeros, and residuals
    /// stay unchanged. If the trainer exchanges the buckets itself, only the gradients of buckets with NaN or infinity become
    /// zeros. The gradients of buckets without NaN and infinity become means, which must not be applied either. The end of the step
    /// restores the residuals of these buckets.
    Skip,
    /// The step is exchanged uncompressed with its NaN and infinity, so that a loss scaler sees them on every rank. Residuals stay
    /// unchanged. If the trainer exchanges the buckets itself, the gradients of buckets with NaN or infinity become NaN, and the
    /// other buckets are exchanged. Gradients of a bucket also become NaN if a value overflows the type in which it is sent, for
    /// instance a sum of gradient and residual in f16. Gradients also become NaN if a mean overflows its layer's element type.
    PassThrough,
}

impl Config {
    /// L-GreCo over the settings of `search`: 100 steps of warm-up, then a decision every 1000 steps from the last 10 gradients.
    ///
    /// ```
    /// use lgreco_train::controller::Config;
    /// use lgreco_train::search::{Method, Search};
    /// assert_eq!(Config::new(Search::new(Method::TopK)).schedule.warmup, 100);
    /// ```
    pub fn new(search: Search) -> Self {
        Config {
            policy: Policy::LGreco { solver: Solver::default(), accordion: None },
            search,
            budget: Budget::default(),
            alpha: 1.0,
            schedule: Schedule { warmup: 100, period: 1000, window: 10, lead: 0 },
            ramp_up: None,
            feedback: Feedback::default(),
            objective: Objective::default(),
            non_finite: NonFinite::default(),
            undo: false,
            route: Route::default(),
            bucket_bytes: 4 << 20,
            measuring_rank: 0,
            metrics_every: 10,
            clock: None,
        }
    }

    /// Plans as the L-GreCo paper does: the dynamic program with 10,000 cells minimises bits within the l2 error of the default
    /// settings.
    ///
    /// ```
    /// use lgreco_train::controller::{Budget, Config};
    /// use lgreco_train::search::{Method, Search};
    /// assert_eq!(Config::new(Search::new(Method::Qsgd)).paper().budget, Budget::Error);
    /// ```
    pub fn paper(mut self) -> Self {
        self.search.metric = Metric::L2;
        self.budget = Budget::Error;
        self.policy = Policy::LGreco { solver: Solver::Dp { levels: dp::LEVELS }, accordion: self.accordion() };
        self
    }

    /// Whether the residuals of the step before are kept.
    pub(super) fn keeps_undo(&self) -> bool {
        self.undo || self.non_finite != NonFinite::Error
    }

    /// Whether decisions use gradients.
    pub(super) fn looks_at_gradients(&self) -> bool {
        let blind =
            matches!(self.policy, Policy::Uncompressed | Policy::Uniform | Policy::Fixed(_) | Policy::Legacy(_));
        !blind || self.feedback != super::Feedback::NONE
    }

    /// Accordion's parameters, under policies that use it.
    pub(super) fn accordion(&self) -> Option<Accordion> {
        match self.policy {
            Policy::Accordion(accordion) => Some(accordion),
            Policy::LGreco { accordion, .. } => accordion,
            _ => None,
        }
    }

    pub(super) fn measures_seconds(&self) -> bool {
        self.objective == Objective::MeasuredSeconds
    }

    /// The step of the first scheduled decision after `step`; `None` if the policy makes no further decision.
    pub(super) fn next_decision(&self, step: u64) -> Option<u64> {
        match self.policy {
            Policy::Uncompressed | Policy::Fixed(_) => None,
            Policy::Uniform if !self.ramps(step) => None,
            _ => {
                let Schedule { warmup, period, window, lead } = self.schedule;
                // In a resumed run with a longer warm-up, `step` may lie before the end of the warm-up.
                let Some(since) = step.checked_sub(warmup) else { return Some(warmup) };
                let soon = SECOND.max(window.saturating_add(lead).saturating_add(1));
                // The decision after the second one needs a window of its own, too.
                let fits = soon.saturating_add(window).saturating_add(lead) < period;
                let next = match self.measures_seconds() && since < soon && fits {
                    true => soon,
                    false => (since / period).saturating_add(1).saturating_mul(period),
                };
                Some(warmup.saturating_add(next))
            }
        }
    }

    /// The configuration at this step, with the default parameter that the ramp-up has reached.
    pub(super) fn at(self: &Arc<Self>, step: u64) -> Result<Arc<Self>, Error> {
        let Some(ramp_up) = self.ramp_up else { return Ok(self.clone()) };
        let search = ramp_up.of(&self.search, step.saturating_sub(self.schedule.warmup))?;
        Ok(Arc::new(Config { search, ..Config::clone(self) }))
    }

    /// Whether the ramp-up is still under way at this step.
    pub(super) fn ramps(&self, step: u64) -> bool {
        self.ramp_up.is_some_and(|ramp| step < self.schedule.warmup.saturating_add(ramp.steps))
    }

    /// `Err` for values that are not allowed for a model of these layers on `world` ranks.
    pub(super) fn check(&self, tensors: &[Tensor], world: u32) -> Result<(), Error> {
        let require = CoreError::require;
        let Schedule { warmup, period, window, lead } = self.schedule;
        require(warmup >= 2, "warm-up", warmup as f64, "at least 2 steps")?;
        require(period >= 1, "period", period as f64, "at least 1 step")?;
        require(window >= 1, "window", window as f64, "at least 1 step")?;
        require(lead < warmup.min(period), "lead", lead as f64, "fewer steps than warm-up and period")?;
        require(self.alpha.is_finite() && self.alpha >= 0.0, "alpha", self.alpha, "a finite number >= 0")?;
        if let Policy::LGreco { solver: Solver::Dp { levels }, .. } = self.policy {
            require(levels >= 1, "levels", levels.into(), "at least 1")?;
        }
        match (self.budget, self.objective) {
            (Budget::Bits(bits), Objective::MeasuredSeconds) => {
                require(
                    false,
                    "the budget in bits",
                    bits as f64,
                    "a budget in seconds: the objective is measured seconds",
                )?;
            }
            (Budget::Seconds(seconds), Objective::MeasuredSeconds) => {
                let expected = "a finite number >= 0, below a million";
                require((0.0..1e6).contains(&seconds), "the budget in seconds", seconds, expected)?;
            }
            (Budget::Seconds(seconds), Objective::Bits) => {
                require(false, "the budget in seconds", seconds, "a budget in bits: the objective is bits")?;
            }
            (Budget::Error | Budget::Size, _) | (Budget::Bits(_), Objective::Bits) => {}
        }
        let clocks = f64::from(u8::from(self.clock.is_some()));
        require(
            clocks > 0.0 || !self.measures_seconds(),
            "number of clocks",
            clocks,
            "1: measured seconds need `Config::clock`",
        )?;
        let rank = self.measuring_rank;
        require(rank < world, "measuring rank", rank as f64, "below the number of workers")?;
        check_reduce_dtype(self.search.reduce_dtype)?;
        self.search.beside.iter().try_for_each(|setting| self.search.knows(setting))?;
        self.feedback.check()?;
        if let Some(ramp_up) = self.ramp_up {
            let policy_goes =
                matches!(self.policy, Policy::Uniform | Policy::KMeans { .. } | Policy::LGreco { accordion: None, .. });
            ramp_up.check(&self.search, policy_goes, matches!(self.budget, Budget::Error | Budget::Size))?;
        }
        if let Policy::KMeans { clusters } = self.policy {
            require(clusters >= 1, "clusters", clusters as f64, "at least 1")?;
        }
        if let Policy::Legacy(legacy) = &self.policy {
            legacy.check(&self.search)?;
        }
        if let Policy::Fixed(settings) = &self.policy {
            expect_len("fixed settings, one per layer", tensors.len(), settings.len())?;
            for (setting, tensor) in settings.iter().zip(tensors) {
                self.search.knows(setting)?;
                setting.payload_len(tensor.shape, tensor.dtype)?;
            }
        }
        tensors.iter().try_for_each(|tensor| tensor.spec(Setting::Dense).check_shards(self.route, world))?;
        if let Some(Accordion { low, high, eta, drop }) = self.accordion() {
            require(eta > 0.0 && eta.is_finite(), "Accordion's eta", eta, "a finite number above 0")?;
            require(drop >= 1.0 && drop.is_finite(), "Accordion's drop", drop, "a finite number of at least 1")?;
            require(
                low > high,
                "Accordion's low compression",
                low,
                "a larger parameter than that of high compression",
            )?;
            self.search.clone().with_default(low)?;
            self.search.clone().with_default(high)?;
            if let Policy::LGreco { .. } = self.policy {
                for level in [low, high] {
                    require(self.search.offers(level), "Accordion's level", level, "one of the parameters searched")?;
                }
            }
        }
        Ok(())
    }
}
