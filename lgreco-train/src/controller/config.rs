//! What a controller is told once.

use super::{Feedback, Legacy, RampUp, Tensor};
use crate::{CoreError, Error};
use crate::compress::{Compressor, Setting};
use crate::exchange::{Route, check_reduce_dtype};
use crate::plan::{Solver, dp};
use crate::search::{Metric, Search};
use alloc::sync::Arc;
use alloc::vec::Vec;
use lgreco::error::expect_len;

/// Everything a controller is told once; the same on every rank.
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
    /// Who decides how hard each layer is compressed; L-GreCo with the exact solver unless set.
    pub policy: Policy,
    /// What is offered to the layers, which layers are left alone, and in `seed` the seed of all random bits.
    pub search: Search,
    /// What plans keep within; the default settings' size unless set.
    pub budget: Budget,
    /// A budget that is what the default settings have is this many times that; 1 unless set.
    pub alpha: f64,
    /// When it is decided.
    pub schedule: Schedule,
    /// Compression that begins mild; none unless set.
    pub ramp_up: Option<RampUp>,
    /// What layers remember under each compressor.
    pub feedback: Feedback,
    /// What sizes are: what a plan minimises, or under a budget of size keeps within.
    pub objective: Objective,
    /// What happens to a step in which some rank's gradient holds NaN or infinity.
    pub non_finite: NonFinite,
    /// Whether the residuals of the step before are kept, which takes their memory twice, so that
    /// [`roll_back`](super::Residuals::roll_back) and [`abandon_step`](super::Controller::abandon_step) can restore them. They
    /// always are where `non_finite` is not an error, because a loss scaler then skips steps.
    pub undo: bool,
    /// How payloads that cannot be summed on the wire travel. By [`Route::Sharded`] each rank gets the means of its
    /// [shards](Tensor::with_shards) alone, in their place in the gradients, whose other elements are then of no use.
    pub route: Route,
    /// Layers are exchanged together until their uncompressed gradients exceed this many bytes; 4 MiB unless set.
    pub bucket_bytes: usize,
    /// The rank that measures and plans for all; 0 unless set.
    pub measuring_rank: u32,
    /// [`Metrics::relative_error`](super::Metrics) is measured every so many steps, 0 for never; 10 unless set.
    pub metrics_every: u64,
    /// Seconds since any fixed moment. With it, reports and metrics tell how long planning and exchanging took, and plans can
    /// minimise [measured seconds](Objective::MeasuredSeconds).
    pub clock: Option<fn() -> f64>,
}

/// Who decides.
///
/// ```
/// use lgreco_train::controller::{Config, Policy};
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::Qsgd));
/// assert!(matches!(config.policy, Policy::LGreco { accordion: None, .. }));
/// config.policy = Policy::KMeans { clusters: 7 };
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Policy {
    /// Nothing is ever compressed.
    Uncompressed,
    /// The search's default everywhere.
    Uniform,
    /// One setting per layer, decided by the caller.
    Fixed(Vec<Setting>),
    /// CGX: layers clustered by size and error, one level per cluster, within the budget.
    KMeans {
        /// Number of clusters; CGX has one per bit width, the L-GreCo paper 6 for ranks.
        clusters: usize,
    },
    /// Two levels, by Accordion's detector alone; no budget.
    Accordion(Accordion),
    /// By the size of a layer and the phase of training; no budget.
    Legacy(Legacy),
    /// The smallest plan within a budget of error, or the most exact one within a budget of size.
    LGreco {
        /// The exact solver, or the paper's dynamic programme.
        solver: Solver,
        /// The settings whose error or size is the budget: Accordion's, or, without, the search's default everywhere.
        accordion: Option<Accordion>,
    },
}

/// Accordion's detector (Agarwal et al., MLSys 2021) and its two levels, in the unit of the search's first method.
///
/// A layer is *critical* at a decision, and gets `low` compression, when its window's gradient norm changed by a
/// fraction of at least `eta` since the last decision, at the first decision, and when the norm was 0 then. When the
/// learning rate falls by more than `drop` from its highest since the last decision, all layers get `low` compression
/// until the next one.
///
/// Deviations: the norm is that of the window's mean, not of an epoch's sum; the threshold `drop` (the authors react to
/// any decrease, which a schedule that decays at every step would cause all the time).
///
/// ```
/// use lgreco_train::controller::{Accordion, Policy};
/// let any_decrease = Accordion { drop: 1.0, ..Accordion::new(4.0, 1.0) };
/// let policy = Policy::Accordion(any_decrease);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accordion {
    /// The parameter of critical layers: many bits, a high density or rank.
    pub low: f64,
    /// The parameter of the others, below `low`.
    pub high: f64,
    /// Relative change of the norm from which on a layer is critical.
    pub eta: f64,
    /// Factor, at least 1, by which the learning rate must fall at once or over a period; 1: any decrease.
    pub drop: f64,
}

impl Accordion {
    /// The published threshold 0.5, and learning rates that fall by more than 1.5.
    ///
    /// ```
    /// use lgreco_train::controller::Accordion;
    /// assert_eq!(Accordion::new(2.0, 1.0).eta, 0.5); // PowerSGD ranks 2 and 1
    /// ```
    pub const fn new(low: f64, high: f64) -> Self {
        Accordion { low, high, eta: 0.5, drop: 1.5 }
    }
}

/// When it is decided, in steps.
///
/// ```
/// use lgreco_train::controller::Schedule;
/// let per_epoch = Schedule { warmup: 5 * 391, period: 391, window: 10, lead: 0 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Steps before the first decision, all of them uncompressed; at least 2. Cover the learning rate's warm-up.
    pub warmup: u64,
    /// Steps from one decision to the next, at least 1; an epoch in the paper.
    pub period: u64,
    /// A decision sees the mean gradient of this many steps before its `lead`, at least 1, and no step before the last
    /// decision.
    pub window: u64,
    /// Steps from the last gradient that a decision sees to the first step under it, below warm-up and period. In these
    /// steps the measuring rank can plan on another thread ([`Planning::take_task`](super::Controller)); 0, the
    /// default: the decision is made during the call, by the gradients up to it.
    pub lead: u64,
}

/// What plans keep within: an error, and they are as small as that allows, or a size, and they are as exact as that allows.
///
/// Sizes are those of the layers that may be compressed, as one worker sends them in one step. What is sent uncompressed
/// because feedback would not work with what was chosen ([`Decision::not_contractive`](super::Decision)) comes on top.
///
/// ```
/// use lgreco_train::controller::{Budget, Config};
/// use lgreco_train::search::{Method, Search};
/// // As many bytes as 1 % of every layer, with the least error.
/// let mut config = Config::new(Search::new(Method::TopK));
/// assert_eq!(config.budget, Budget::Size);
/// config.budget = Budget::Error; // the error of 1 % of every layer, in as few bytes as possible
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Budget {
    /// [`Config::alpha`] times the error of the default settings.
    Error,
    /// [`Config::alpha`] times the size of the default settings, in the unit of the [`Objective`]. Equal bytes lose less in
    /// training than equal errors (BENCHMARKS.md, "Training").
    #[default]
    Size,
    /// So many bits; under [`Objective::Bits`].
    Bits(u64),
    /// So many seconds, below a million; under [`Objective::MeasuredSeconds`]. The default settings are used where nothing has
    /// been measured yet.
    Seconds(f64),
}

/// What sizes are: what a plan minimises, or under a [`Budget`] of size keeps within.
///
/// ```
/// use lgreco_train::controller::{Config, Objective};
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::Hybrid));
/// config.objective = Objective::MeasuredSeconds;
/// config.clock = Some(|| std::time::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Objective {
    /// Bits on the wire.
    #[default]
    Bits,
    /// Seconds, as the controller measures them itself by [`Config::clock`]: what sending costs, from the steps since the
    /// last decision, and what compressing costs, from the same steps and, of methods that none has used yet, from a trial while
    /// it plans. The rank that takes longest counts. Layers whose compression does not pay are sent uncompressed, and back
    /// when it does again; either way it must pay by a tenth of a layer's seconds. A link that has changed is followed at the
    /// next decision or the one after. [`Decision::timing`](super::Decision) and the decision as text say what it went by.
    ///
    /// Steps of different sizes, the uncompressed ones of the warm-up and those of the first plan, tell bytes from what does
    /// not depend on them; what the first decision blames on the link although it is hidden behind the backward pass, the
    /// second knows. In the last step of a decision's window ranks gather twice a MiB in all, or as much as the model has, to
    /// find out whether the link has changed. From the second decision on it is less where that would take more than a hundredth
    /// of the seconds of exchanging until the next one, down to once half a MiB.
    ///
    /// Seconds of buckets that are [exchanged elsewhere](super::Elsewhere::note_exchanged), on a device, whoever exchanges them
    /// [brings](super::Elsewhere::meter_elsewhere).
    ///
    /// Under [`Budget::Error`] plans are as fast as the error allows, under [`Budget::Size`] as exact as possible in the
    /// seconds of the default settings.
    MeasuredSeconds,
}

/// What happens to a step in which some rank's gradient holds NaN or infinity. All ranks do the same.
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
    /// The step fails on every rank before anything is exchanged, and may be repeated with other gradients. In steps made
    /// of buckets those with such gradients fail, and the others are exchanged.
    #[default]
    Error,
    /// The step is not to be applied: its outcome is [`Outcome::Skipped`](super::Outcome), gradients become zeros, and
    /// residuals stay. In steps made of buckets the gradients of those with NaN or infinity become zeros; those of the others
    /// are means, which are not to be applied either, and the end of the step takes back what they have done to residuals.
    Skip,
    /// The step is exchanged uncompressed, NaN and infinity with it, so that a loss scaler sees them on every rank;
    /// residuals stay. In steps made of buckets those with such gradients become NaN, and the others are exchanged; so do those
    /// with gradients of 16 bits that leave the range of their type together with what is remembered, or as means.
    PassThrough,
}

impl Config {
    /// L-GreCo over what `search` offers: 100 steps of warm-up, a decision every 1000 steps on the last 10 gradients.
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

    /// With the L-GreCo paper's way of planning: l2 errors, as few bits as possible for the error of the default settings, by the
    /// dynamic program with 10,000 cells.
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

    /// Whether a step can be taken back.
    pub(super) fn keeps_undo(&self) -> bool {
        self.undo || self.non_finite != NonFinite::Error
    }

    /// Whether decisions look at gradients.
    pub(super) fn looks_at_gradients(&self) -> bool {
        let blind =
            matches!(self.policy, Policy::Uncompressed | Policy::Uniform | Policy::Fixed(_) | Policy::Legacy(_));
        !blind || self.feedback != super::Feedback::NONE
    }

    /// The detector of the policies that have one.
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

    /// The step of the decision after the one at `step`.
    pub(super) fn next_decision(&self, step: u64) -> Option<u64> {
        match self.policy {
            Policy::Uncompressed | Policy::Fixed(_) => None,
            Policy::Uniform if !self.ramps(step) => None,
            _ => {
                let Schedule { warmup, period, .. } = self.schedule;
                // A run that is continued under a longer warm-up may have decided before its end.
                Some(step.checked_sub(warmup).map_or(warmup, |since| {
                    warmup.saturating_add((since / period).saturating_add(1).saturating_mul(period))
                }))
            }
        }
    }

    /// What it is at this step.
    pub(super) fn at(self: &Arc<Self>, step: u64) -> Result<Arc<Self>, Error> {
        let Some(ramp_up) = self.ramp_up else { return Ok(self.clone()) };
        let search = ramp_up.of(&self.search, step.saturating_sub(self.schedule.warmup))?;
        Ok(Arc::new(Config { search, ..Config::clone(self) }))
    }

    /// Whether the default is another one still.
    pub(super) fn ramps(&self, step: u64) -> bool {
        self.ramp_up.is_some_and(|ramp| step < self.schedule.warmup.saturating_add(ramp.steps))
    }

    pub(super) fn check(&self, tensors: &[Tensor], world: u32) -> Result<(), Error> {
        let require = CoreError::require;
        let Schedule { warmup, period, window, lead } = self.schedule;
        require(warmup >= 2, "warm-up", warmup as f64, "at least 2 steps")?;
        require(period >= 1, "period", period as f64, "at least 1 step")?;
        require(window >= 1, "window", window as f64, "at least 1 step")?;
        require(lead < warmup.min(period), "lead", lead as f64, "fewer steps than warm-up and period")?;
        require(self.alpha.is_finite() && self.alpha >= 0.0, "alpha", self.alpha, "a finite number >= 0")?;
        match (self.budget, self.objective) {
            (Budget::Bits(bits), Objective::MeasuredSeconds) => {
                require(false, "the budget in bits", bits as f64, "one in seconds, as the objective is")?;
            }
            (Budget::Seconds(seconds), Objective::MeasuredSeconds) => {
                let expected = "a finite number >= 0, below a million";
                require((0.0..1e6).contains(&seconds), "the budget in seconds", seconds, expected)?;
            }
            (Budget::Seconds(seconds), Objective::Bits) => {
                require(false, "the budget in seconds", seconds, "one in bits, as the objective is")?;
            }
            (Budget::Error | Budget::Size, _) | (Budget::Bits(_), Objective::Bits) => {}
        }
        let clocks = f64::from(u8::from(self.clock.is_some()));
        require(clocks > 0.0 || !self.measures_seconds(), "number of clocks", clocks, "one, to measure seconds by")?;
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
