use super::controller::lgreco_controller;
use super::plan::{Stated, lgreco_limit};
use super::setting::lgreco_setting;
use crate::failure::Failure;
use crate::pointers::{Output, fill, sized_struct, slice_mut, write};
use crate::status::lgreco_status;
use core::ffi::c_char;
use lgreco_train::controller::metrics_line;
use lgreco_train::controller::{Cause, Decision, MemoryUse, Metrics, Timing};

/// Why a layer is sent uncompressed.
pub type lgreco_uncompressed = u32;

/// It is compressed.
pub const LGRECO_UNCOMPRESSED_NOT: lgreco_uncompressed = 0;
/// Nothing has been decided yet, or the layer was not in the state loaded.
pub const LGRECO_UNCOMPRESSED_WARM_UP: lgreco_uncompressed = 1;
/// It has one dimension or fewer, or too few elements.
pub const LGRECO_UNCOMPRESSED_SMALL: lgreco_uncompressed = 2;
/// The setting would have saved no bytes.
pub const LGRECO_UNCOMPRESSED_NO_SAVING: lgreco_uncompressed = 3;
/// It was chosen, by the plan or by the caller.
pub const LGRECO_UNCOMPRESSED_CHOSEN: lgreco_uncompressed = 4;
/// Compressing it would take longer than sending it does.
pub const LGRECO_UNCOMPRESSED_SLOWER: lgreco_uncompressed = 5;
/// Feedback would not work with what was chosen.
pub const LGRECO_UNCOMPRESSED_NOT_CONTRACTIVE: lgreco_uncompressed = 6;

/// What is known about one layer on one rank. Begin with LGRECO_METRICS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_metrics {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Steps in which it was exchanged.
    pub steps: u64,
    /// Bytes of its gradients in these steps.
    pub bytes_in: u64,
    /// Bytes sent for them.
    pub bytes_out: u64,
    /// Squared error of what was sent, by the squared norm of what was compressed, when last measured; -1 before.
    pub relative_error: f64,
    /// L2 norm of the residual; -1 without one.
    pub residual_norm: f64,
    /// Seconds that compressing and exchanging its bucket took, since the controller was made or loaded; layers of one
    /// bucket share them. -1 before the first exchange.
    pub bucket_seconds: f64,
    /// Decisions whose setting was refused because feedback would not have worked with it.
    pub not_contractive: u64,
    /// Why it is sent uncompressed, if it is.
    pub uncompressed: lgreco_uncompressed,
}

// SAFETY: repr(C), starts with a usize; numbers only.
sized_struct!("metrics", lgreco_metrics { relative_error: -1.0, residual_norm: -1.0, bucket_seconds: -1.0 });

impl From<Metrics<'_>> for lgreco_metrics {
    fn from(metrics: Metrics<'_>) -> Self {
        lgreco_metrics {
            steps: metrics.steps,
            bytes_in: metrics.bytes_in,
            bytes_out: metrics.bytes_out,
            relative_error: metrics.relative_error.unwrap_or(-1.0),
            residual_norm: metrics.residual_norm.unwrap_or(-1.0),
            bucket_seconds: metrics.bucket_seconds.unwrap_or(-1.0),
            not_contractive: metrics.not_contractive,
            uncompressed: metrics.uncompressed.map_or(LGRECO_UNCOMPRESSED_NOT, |why| why as lgreco_uncompressed + 1),
            ..lgreco_metrics::default()
        }
    }
}

/// What made the settings change.
pub type lgreco_cause = u32;

/// Nothing yet: there was no decision.
pub const LGRECO_CAUSE_NONE: lgreco_cause = 0;
/// The schedule.
pub const LGRECO_CAUSE_SCHEDULE: lgreco_cause = 1;
/// The learning rate fell, and Accordion put all layers to low compression.
pub const LGRECO_CAUSE_LEARNING_RATE: lgreco_cause = 2;
/// The caller gave other settings.
pub const LGRECO_CAUSE_CALLER: lgreco_cause = 3;

/// The last decision; the same on every rank. Begin with LGRECO_DECISION_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_decision {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// The first step under it.
    pub step: u64,
    /// What made them change.
    pub cause: lgreco_cause,
    /// 1 when sizes are picoseconds, 0 when they are bits.
    pub in_picoseconds: u32,
    /// 1 when the policy planned, else 0; the numbers below are then 0.
    pub planned: u32,
    /// 1 when the plan is proved optimal, else 0.
    pub proven: u32,
    /// Size of the layers that may be compressed; bits, or picoseconds (`in_picoseconds`).
    pub size: u64,
    /// LGRECO_LIMIT_ERROR: no plan within the budget is smaller. Otherwise 0.
    pub lower_bound: u64,
    /// Size of the same layers under the settings that the budget comes from.
    pub default_size: u64,
    /// Size of the same layers uncompressed: where `size` is not less, compression does not pay.
    pub uncompressed_size: u64,
    /// Error of the plan.
    pub error: f64,
    /// LGRECO_LIMIT_ERROR: its budget. Otherwise 0.
    pub budget: f64,
    /// Layers that are sent uncompressed because that is faster.
    pub slower: u32,
    /// Layers that are sent uncompressed because feedback would not work with what was chosen.
    pub not_contractive: u32,
    /// What the plan was made for.
    pub limit: lgreco_limit,
    /// With the objective seconds: layers that are compressed. Otherwise 0.
    pub compressed: u32,
    /// LGRECO_LIMIT_SIZE: the most that the plan may have, in the unit of `size`. Otherwise 0.
    pub size_limit: u64,
    /// LGRECO_LIMIT_SIZE: no plan within the size limit has less error. Otherwise 0.
    pub error_lower_bound: f64,
    /// With the objective seconds; otherwise this and all below is 0. Seconds that a step's exchange has taken on the slowest
    /// rank since the decision before, compressing included; the median.
    pub measured_seconds: f64,
    /// Of them, compressing and decompressing.
    pub computing_seconds: f64,
    /// Seconds that another byte takes, sent by every rank.
    pub seconds_per_byte: f64,
    /// Seconds that a step's exchange is expected to take.
    pub plan_seconds: f64,
    /// Of them, compressing and decompressing.
    pub plan_computing_seconds: f64,
    /// Under the default settings.
    pub default_seconds: f64,
    /// With all layers uncompressed.
    pub uncompressed_seconds: f64,
}

// SAFETY: repr(C), starts with a usize; numbers only.
sized_struct!("decision", lgreco_decision {});

impl From<&Decision> for lgreco_decision {
    fn from(decision: &Decision) -> Self {
        let plan = decision.plan;
        let Stated { limit, lower_bound, budget, size_limit, error_lower_bound } =
            plan.map_or_else(Stated::default, |plan| plan.proof.into());
        let seconds = |of: fn(&Timing) -> f64| decision.timing.as_ref().map_or(0.0, of);
        lgreco_decision {
            step: decision.step,
            cause: match decision.cause {
                Cause::Schedule => LGRECO_CAUSE_SCHEDULE,
                Cause::LearningRate => LGRECO_CAUSE_LEARNING_RATE,
                Cause::Caller => LGRECO_CAUSE_CALLER,
            },
            in_picoseconds: decision.timing.is_some().into(),
            planned: plan.is_some().into(),
            proven: plan.is_some_and(|plan| plan.proven()).into(),
            size: plan.map_or(0, |plan| plan.size),
            lower_bound,
            default_size: decision.default_size,
            uncompressed_size: decision.uncompressed_size,
            error: plan.map_or(0.0, |plan| plan.error),
            budget,
            slower: decision.slower,
            not_contractive: decision.not_contractive,
            limit,
            compressed: decision.timing.map_or(0, |timing| timing.compressed),
            size_limit,
            error_lower_bound,
            measured_seconds: seconds(|timing| timing.measured),
            computing_seconds: seconds(|timing| timing.computing),
            seconds_per_byte: seconds(|timing| timing.seconds_per_byte),
            plan_seconds: seconds(|timing| timing.plan),
            plan_computing_seconds: seconds(|timing| timing.plan_computing),
            default_seconds: seconds(|timing| timing.default),
            uncompressed_seconds: seconds(|timing| timing.uncompressed),
            ..lgreco_decision::default()
        }
    }
}

/// Fills `setting` with how layer `layer` was compressed at the last step. LGRECO_LAYER_MISMATCH when there is no such layer, as
/// for the calls below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_setting(
    controller: *mut lgreco_controller,
    layer: usize,
    setting: *mut lgreco_setting,
) -> lgreco_status {
    call!(controller, |state| {
        write(setting, "setting", || {
            state.check_layer(layer)?;
            Ok(state.levels.controller().setting(layer).into())
        })
    })
}

/// Fills `metrics` with what is known about layer `layer` on this rank; looks at all of its residual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_metrics(
    controller: *mut lgreco_controller,
    layer: usize,
    metrics: *mut lgreco_metrics,
) -> lgreco_status {
    call!(controller, |state| {
        fill(metrics, || {
            state.check_layer(layer)?;
            Ok(state.levels.controller().metrics(layer).into())
        })
    })
}

/// Writes the residual of layer `layer` on this rank to `values`, zeros without one; `values_len` = its number of elements, on nodes
/// that of the shard (lgreco_controller_shard). LGRECO_IN_FLIGHT while a bucket has the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_residual(
    controller: *mut lgreco_controller,
    layer: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(controller, |state| {
        state.check_layer(layer)?;
        Ok(state.levels.controller().residual(layer, slice_mut(values, values_len, "values")?)?)
    })
}

/// Fills `decision` with the last decision; LGRECO_CAUSE_NONE before the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_decision(
    controller: *mut lgreco_controller,
    decision: *mut lgreco_decision,
) -> lgreco_status {
    call!(controller, |state| {
        fill(decision, || Ok(state.levels.controller().decision().map_or_else(Default::default, Into::into)))
    })
}

/// Tells the number of steps taken, skipped ones included, and of those in which some rank's gradient was not finite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_steps(
    controller: *mut lgreco_controller,
    steps: *mut u64,
    non_finite: *mut u64,
) -> lgreco_status {
    call!(controller, |state| {
        write(steps, "steps", || {
            write(non_finite, "non_finite", || Ok(state.levels.controller().non_finite_steps()))?;
            Ok(state.levels.controller().steps())
        })
    })
}

/// Bytes that a controller takes on one rank, by what they are for, beside the trainer's gradients. Begin with
/// LGRECO_MEMORY_USE_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_memory_use {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Residuals of error feedback.
    pub residuals: u64,
    /// The residuals of the step before, where `undo` asks for them.
    pub undo: u64,
    /// PowerSGD's factors.
    pub factors: u64,
    /// Messages of the buckets that are on their way at the same time, and what one of them is computed in.
    pub exchange: u64,
    /// The gradients that a decision is made of: on the measuring rank, in the steps of the window and until the decision.
    pub window: u64,
}

// SAFETY: repr(C), starts with a usize; numbers only.
sized_struct!("memory use", lgreco_memory_use {});

/// Tells how much memory the run takes on this rank, before its first step too: under the settings of the last decision, or
/// before the first under the search's default. `at_once` buckets are on their way at the same time, at most, of
/// `bucket_bytes` each; lgreco_controller_step has 1, of the size that the options say, for which 0 stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_memory(
    controller: *mut lgreco_controller,
    bucket_bytes: usize,
    at_once: usize,
    memory: *mut lgreco_memory_use,
) -> lgreco_status {
    call!(controller, |state| {
        fill(memory, || {
            let MemoryUse { residuals, undo, factors, exchange, window } =
                state.levels.memory((bucket_bytes > 0).then_some(bucket_bytes), at_once)?;
            let struct_size = crate::pointers::size_of_struct::<lgreco_memory_use>();
            Ok(lgreco_memory_use { struct_size, residuals, undo, factors, exchange, window })
        })
    })
}

/// Writes the last step's report with the last decision and the metrics of all layers as one line of JSON, without the
/// line's end, and a NUL after it; `length` as for lgreco_table_to_json. Allocates.
///
/// LGRECO_UNAVAILABLE before the first step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_metrics_json(
    controller: *mut lgreco_controller,
    json: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(controller, |state| {
        let report = state.report.as_ref().ok_or(Failure::Unavailable("a report, before the first step,"))?;
        Output { what: "json", to: json, capacity, length }.write_text(&metrics_line(state.levels.controller(), report))
    })
}
