use super::compressor::*;
use super::measure::lgreco_search_options;
use super::plan::*;
use super::setting::{lgreco_setting, read_settings};
use crate::pointers::{read_struct_or_default, sized_struct, slice};
use crate::status::{Failure, Result, one_of};
use lgreco_train::CoreError;
use lgreco_train::controller::{
    Accordion, Budget, Config, Feedback, Legacy, NonFinite, Objective, Policy, RampUp, Schedule,
};
use lgreco_train::exchange::Route;
use lgreco_train::feedback::Residual;
use lgreco_train::search::{Method, Search};
use std::sync::OnceLock;
use std::time::Instant;

/// Who decides how hard each layer is compressed: LGRECO_POLICY_...
pub type lgreco_policy = u32;

/// The best plan within the budget; with `accordion_low` set, Accordion's levels are where the budget comes from.
pub const LGRECO_POLICY_L_GRECO: lgreco_policy = 0;
/// Nothing is ever compressed.
pub const LGRECO_POLICY_UNCOMPRESSED: lgreco_policy = 1;
/// The search's default everywhere.
pub const LGRECO_POLICY_UNIFORM: lgreco_policy = 2;
/// The settings of `fixed`.
pub const LGRECO_POLICY_FIXED: lgreco_policy = 3;
/// CGX: layers in `clusters` by size and error, within the budget.
pub const LGRECO_POLICY_K_MEANS: lgreco_policy = 4;
/// Two levels, by Accordion's detector.
pub const LGRECO_POLICY_ACCORDION: lgreco_policy = 5;
/// LEGACY: by the size of a layer and the phase of training, which the fields `legacy_...` say.
pub const LGRECO_POLICY_LEGACY: lgreco_policy = 6;

/// What happens to a step in which some rank's gradient holds NaN or infinity: LGRECO_NON_FINITE_STEP_...
pub type lgreco_non_finite_step = u32;

/// The step fails on every rank before anything is exchanged, and may be repeated with other gradients.
pub const LGRECO_NON_FINITE_STEP_ERROR: lgreco_non_finite_step = 0;
/// The step is not to be applied: its outcome is LGRECO_OUTCOME_SKIPPED, gradients become zeros, and residuals stay. Of buckets in
/// flight those with NaN or infinity become zeros; lgreco_controller_finish_step takes back what the others have done to residuals.
pub const LGRECO_NON_FINITE_STEP_SKIP: lgreco_non_finite_step = 1;
/// The step is exchanged uncompressed, NaN and infinity with it; residuals stay. Of buckets in flight those with NaN or infinity
/// become NaN.
pub const LGRECO_NON_FINITE_STEP_PASS_THROUGH: lgreco_non_finite_step = 2;

/// How payloads that cannot be summed on the wire travel: LGRECO_ROUTE_...
pub type lgreco_route = u32;

/// Everybody gets everybody's payloads.
pub const LGRECO_ROUTE_ALL_GATHER: lgreco_route = 0;
/// Each rank averages a part and compresses the mean again; asks for LGRECO_REQUEST_ALL_GATHER_EACH and ALL_TO_ALL.
pub const LGRECO_ROUTE_SCATTER_REDUCE: lgreco_route = 1;
/// Each rank gets the means of its shards alone (FSDP, ZeRO), in their place in the gradients, whose other elements are then
/// of no use; needs `shards`, and asks for LGRECO_REQUEST_ALL_TO_ALL and REDUCE_SCATTER_SUM. Payloads of hard thresholds, SIDCo and
/// AdaComp are gathered whole, and decoded by every rank.
pub const LGRECO_ROUTE_SHARDED: lgreco_route = 2;

/// What sizes are: LGRECO_OBJECTIVE_...
pub type lgreco_objective = u32;

/// Bits on the wire.
pub const LGRECO_OBJECTIVE_BITS: lgreco_objective = 0;
/// Seconds that the controller measures itself: what sending costs, and what compressing costs, on the slowest rank. Layers whose
/// compression does not pay are sent uncompressed, and a network that changes is followed at the next decision or the one after.
/// All ranks must say so.
pub const LGRECO_OBJECTIVE_MEASURED_SECONDS: lgreco_objective = 1;

/// What a controller is told once, the same on every rank. Begin with LGRECO_CONTROLLER_OPTIONS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_controller_options {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// What is offered to the layers; its seed is that of all random bits; NULL for the defaults. Not kept.
    pub search: *const lgreco_search_options,
    /// Solver, its limits, and what plans keep within; NULL for the defaults. Not kept.
    pub plan: *const lgreco_plan_options,
    /// LGRECO_POLICY_FIXED: one setting per layer. Not kept.
    pub fixed: *const lgreco_setting,
    /// LGRECO_POLICY_K_MEANS: at least 1; 6 by default.
    pub clusters: usize,
    /// Accordion: the parameter (bits, density or rank) of critical layers; 0 for none, the default.
    pub accordion_low: f64,
    /// Accordion: the parameter of the others, below `accordion_low`.
    pub accordion_high: f64,
    /// Accordion: relative change of a gradient's norm from which on a layer is critical; 0.5 by default.
    pub accordion_eta: f64,
    /// Accordion: factor by which the learning rate must fall to make all layers critical; 1.5 by default.
    pub accordion_drop: f64,
    /// Steps before the first decision, uncompressed; at least 2; 100 by default.
    pub warmup: u64,
    /// Steps from one decision to the next, at least 1; 1000 by default.
    pub period: u64,
    /// A decision sees the mean gradient of so many steps before it, at least 1; 10 by default.
    pub window: u64,
    /// Steps from the last gradient that a decision sees to the first step under it, fewer than `warmup` and `period`, in
    /// which another thread may plan (lgreco_controller_take_plan_task); 0 by default.
    pub lead: u64,
    /// LGRECO_POLICY_...; LGRECO_POLICY_L_GRECO by default.
    pub policy: lgreco_policy,
    /// LGRECO_FEEDBACK_RESIDUAL, the default: error feedback for all lossy compressors but QSGD and EDEN, with the fields `loco_...`
    /// for LoCo and `gain`, `reset_every`, `storage` for the others; LGRECO_FEEDBACK_NONE.
    pub feedback: lgreco_feedback,
    /// What residuals are kept in; LGRECO_STORAGE_F32 by default.
    pub storage: lgreco_storage,
    /// How much of an error is remembered, in (0, 1]; 1 by default.
    pub gain: f32,
    /// Residuals are zeroed after every so many steps; 0, the default, for never.
    pub reset_every: u32,
    /// LoCo: as `storage`; LGRECO_STORAGE_INT8 by default.
    pub loco_storage: lgreco_storage,
    /// LoCo: as `gain`; 0.2 by default.
    pub loco_gain: f32,
    /// LoCo: as `reset_every`; 512 by default.
    pub loco_reset_every: u32,
    /// LGRECO_NON_FINITE_STEP_ERROR by default.
    pub non_finite: lgreco_non_finite_step,
    /// LGRECO_ROUTE_ALL_GATHER by default.
    pub route: lgreco_route,
    /// The rank that measures and plans for all; 0 by default.
    pub measuring_rank: u32,
    /// LGRECO_OBJECTIVE_BITS by default.
    pub objective: lgreco_objective,
    /// Layers are exchanged together until their uncompressed gradients exceed so many bytes; 4 MiB by default.
    pub bucket_bytes: usize,
    /// Relative errors are measured every so many steps, 0 for never; 10 by default.
    pub metrics_every: u64,
    /// LGRECO_ROUTE_SHARDED: where shards end, in elements, world_size of them per layer, one layer after the other. Of each
    /// layer rank r has the elements from its number r - 1, or 0, to its number r, which may be none; the last is the number of
    /// the layer's elements. Must be NULL, the default, for other routes. Not kept.
    pub shards: *const u64,
    /// LGRECO_POLICY_LEGACY: the parameters (bits, densities or ranks), `legacy_classes` for each of `legacy_phases`, one phase
    /// after the other. Not kept.
    pub legacy_levels: *const f64,
    /// LGRECO_POLICY_LEGACY: `legacy_classes - 1` numbers of elements, ascending, from which on a layer is of the next class.
    /// Not kept.
    pub legacy_sizes: *const u64,
    /// LGRECO_POLICY_LEGACY: at least 1; 1 by default.
    pub legacy_classes: usize,
    /// LGRECO_POLICY_LEGACY: at least 1; 1 by default.
    pub legacy_phases: usize,
    /// LGRECO_POLICY_LEGACY: steps of training, at least 1, which the phases divide; 0 by default, which is refused.
    pub legacy_steps: u64,
    /// Compression that begins mild: the search's default (bits, density or rank) after `warmup` steps, from where it comes to
    /// its own by a like factor in like times; 0, the default, for its own at once. Only for policies that go by the default.
    pub ramp_up_first: f64,
    /// With `ramp_up_first`: steps after `warmup` until the default is its own, at least 1; 0 by default.
    pub ramp_up_steps: u64,
    /// 1: the residuals of the step before are kept, which takes their memory twice, so that lgreco_controller_roll_back and
    /// lgreco_controller_abandon_step restore them. 0, the default: only where `non_finite` is not an error.
    pub undo: u32,
}

// SAFETY: repr(C), starts with a usize; numbers and raw pointers only.
sized_struct!(
    "controller options",
    lgreco_controller_options {
        clusters: 6,
        accordion_eta: Accordion::new(0.0, 0.0).eta,
        accordion_drop: Accordion::new(0.0, 0.0).drop,
        warmup: core_defaults().schedule.warmup,
        period: core_defaults().schedule.period,
        window: core_defaults().schedule.window,
        lead: core_defaults().schedule.lead,
        feedback: LGRECO_FEEDBACK_RESIDUAL,
        gain: Residual::CLASSIC.gain,
        reset_every: Residual::CLASSIC.reset_every,
        loco_storage: LGRECO_STORAGE_INT8,
        loco_gain: Residual::LOCO.gain,
        loco_reset_every: Residual::LOCO.reset_every,
        bucket_bytes: core_defaults().bucket_bytes,
        metrics_every: core_defaults().metrics_every,
        legacy_classes: 1,
        legacy_phases: 1,
    }
);

const NON_FINITE: [NonFinite; 3] = [NonFinite::Error, NonFinite::Skip, NonFinite::PassThrough];
const OBJECTIVES: [Objective; 2] = [Objective::Bits, Objective::MeasuredSeconds];

fn core_defaults() -> Config {
    Config::new(Search::new(Method::Hybrid))
}

/// Seconds since the first call.
fn clock() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

impl lgreco_controller_options {
    fn feedback(&self) -> Result<Feedback> {
        let residual = |gain, reset_every, storage| Some(Residual { gain, reset_every, storage });
        let feedback = Feedback {
            qsgd: None,
            loco: residual(self.loco_gain, self.loco_reset_every, storage(self.loco_storage)?),
            others: residual(self.gain, self.reset_every, storage(self.storage)?),
        };
        one_of("feedback of a controller", self.feedback, [Feedback::NONE, feedback])
    }

    fn budget(&self, plan: &lgreco_plan_options) -> Result<Budget> {
        match plan.limit {
            LGRECO_LIMIT_ERROR => Ok(Budget::Error),
            LGRECO_LIMIT_DEFAULT | LGRECO_LIMIT_DEFAULT_SIZE => Ok(Budget::Size),
            LGRECO_LIMIT_SIZE if self.objective == LGRECO_OBJECTIVE_MEASURED_SECONDS => {
                Ok(Budget::Seconds(plan.size_limit as f64 / 1e12))
            }
            LGRECO_LIMIT_SIZE => Ok(Budget::Bits(plan.size_limit)),
            found => Err(Failure::UnknownConstant { what: "limit of a plan", found }),
        }
    }

    /// # Safety
    /// README.md, pointers.
    unsafe fn legacy(&self) -> Result<Legacy> {
        let (classes, phases) = (self.legacy_classes, self.legacy_phases);
        if classes == 0 {
            return Err(CoreError::Length { what: "legacy_classes", expected: 1, found: 0 }.into());
        }
        // SAFETY: passed on.
        let (levels, sizes) = unsafe {
            let levels = slice(self.legacy_levels, classes.saturating_mul(phases), "legacy_levels")?;
            (levels, slice(self.legacy_sizes, classes - 1, "legacy_sizes")?)
        };
        let levels = levels.chunks_exact(classes).map(<[f64]>::to_vec).collect();
        Ok(Legacy { sizes: sizes.to_vec(), levels, steps: self.legacy_steps })
    }

    /// # Safety
    /// README.md, pointers.
    pub(super) unsafe fn config(&self, layers: usize) -> Result<Config> {
        // SAFETY: passed on.
        let (search, plan) =
            unsafe { (read_struct_or_default(self.search)?.search()?, read_struct_or_default(self.plan)?) };
        let levels = Accordion {
            low: self.accordion_low,
            high: self.accordion_high,
            eta: self.accordion_eta,
            drop: self.accordion_drop,
        };
        let (warmup, period, window, lead) = (self.warmup, self.period, self.window, self.lead);
        Ok(Config {
            policy: match self.policy {
                LGRECO_POLICY_UNCOMPRESSED => Policy::Uncompressed,
                LGRECO_POLICY_UNIFORM => Policy::Uniform,
                // SAFETY: passed on.
                LGRECO_POLICY_FIXED => Policy::Fixed(unsafe { read_settings(self.fixed, layers, "fixed") }?),
                LGRECO_POLICY_K_MEANS => Policy::KMeans { clusters: self.clusters },
                LGRECO_POLICY_ACCORDION => Policy::Accordion(levels),
                // SAFETY: passed on.
                LGRECO_POLICY_LEGACY => Policy::Legacy(unsafe { self.legacy() }?),
                LGRECO_POLICY_L_GRECO => {
                    Policy::LGreco { solver: plan.solver()?, accordion: (levels.low != 0.0).then_some(levels) }
                }
                found => return Err(Failure::UnknownConstant { what: "policy", found }),
            },
            budget: self.budget(&plan)?,
            alpha: plan.alpha,
            schedule: Schedule { warmup, period, window, lead },
            ramp_up: (self.ramp_up_first != 0.0)
                .then_some(RampUp { first: self.ramp_up_first, steps: self.ramp_up_steps }),
            feedback: self.feedback()?,
            objective: one_of("objective of a controller", self.objective, OBJECTIVES)?,
            non_finite: one_of("non_finite", self.non_finite, NON_FINITE)?,
            route: one_of("route", self.route, [Route::AllGather, Route::ScatterReduce, Route::Sharded])?,
            bucket_bytes: self.bucket_bytes,
            measuring_rank: self.measuring_rank,
            metrics_every: self.metrics_every,
            undo: one_of("undo", self.undo, [false, true])?,
            clock: Some(clock),
            ..Config::new(search)
        })
    }
}
