use super::controller::lgreco_controller;
use super::plan::{Stated, lgreco_limit};
use super::setting::lgreco_setting;
use crate::failure::Failure;
use crate::pointers::{Output, slice_mut, write};
use crate::status::lgreco_status;
use crate::structs::{fill, sized_struct};
use core::ffi::c_char;
use lgreco_train::controller::metrics_line;
use lgreco_train::controller::{Cause, Decision, MemoryUse, Metrics, Timing};

/// Why a layer is sent uncompressed.
pub type lgreco_uncompressed = u32;

/// The layer is compressed.
pub const LGRECO_UNCOMPRESSED_NOT: lgreco_uncompressed = 0;
/// No decision was made yet, or the loaded state did not have the layer.
pub const LGRECO_UNCOMPRESSED_WARM_UP: lgreco_uncompressed = 1;
/// The layer has one dimension or fewer, or too few elements.
pub const LGRECO_UNCOMPRESSED_SMALL: lgreco_uncompressed = 2;
/// The setting would have saved no bytes.
pub const LGRECO_UNCOMPRESSED_NO_SAVING: lgreco_uncompressed = 3;
/// The plan or the caller chose to send the layer uncompressed.
pub const LGRECO_UNCOMPRESSED_CHOSEN: lgreco_uncompressed = 4;
/// Compressing the layer would take longer than sending it uncompressed.
pub const LGRECO_UNCOMPRESSED_SLOWER: lgreco_uncompressed = 5;
/// The chosen setting does not suit error feedback.
pub const LGRECO_UNCOMPRESSED_NOT_CONTRACTIVE: lgreco_uncompressed = 6;

/// Measurements of one layer on one rank. Begin with LGRECO_METRICS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_metrics {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Number of steps in which the layer was exchanged.
    pub steps: u64,
    /// Bytes of the layer's gradients in the steps that `steps` counts.
    pub bytes_in: u64,
    /// Bytes sent for the layer in the steps that `steps` counts.
    pub bytes_out: u64,
    /// Relative error at the last measurement: the squared error of compression, divided by the squared norm of the
    /// compressed vector. -1 before the first measurement.
    pub relative_error: f64,
    /// L2 norm of the residual, or -1 for a layer without a residual.
    pub residual_norm: f64,
    /// Seconds for compressing and exchanging the layer's bucket, since the controller was made or loaded. All layers of a
    /// bucket have the same value. -1 before the first exchange.
    pub bucket_seconds: f64,
    /// Number of decisions whose setting was refused because it does not suit error feedback.
    pub not_contractive: u64,
    /// The reason if the layer is sent uncompressed, else LGRECO_UNCOMPRESSED_NOT.
    pub uncompressed: lgreco_uncompressed,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers.
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

/// Why the settings changed.
pub type lgreco_cause = u32;

/// No decision was made yet.
pub const LGRECO_CAUSE_NONE: lgreco_cause = 0;
/// A decision of the schedule was due.
pub const LGRECO_CAUSE_SCHEDULE: lgreco_cause = 1;
/// The learning rate fell, and all layers got the parameter `low` of the option `accordion`.
pub const LGRECO_CAUSE_LEARNING_RATE: lgreco_cause = 2;
/// The caller gave new settings.
pub const LGRECO_CAUSE_CALLER: lgreco_cause = 3;

/// The last decision. It is the same on every rank; on nodes, on this rank and its peers. Begin with
/// LGRECO_DECISION_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_decision {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// The first step under the new settings.
    pub step: u64,
    /// Why the settings changed.
    pub cause: lgreco_cause,
    /// The unit of sizes: 1 for picoseconds, 0 for bits.
    pub in_picoseconds: u32,
    /// 1 when the policy made a plan, else 0. If 0, all fields below except `not_contractive` are 0.
    pub planned: u32,
    /// 1 when the plan is proved optimal, else 0.
    pub proven: u32,
    /// Total size of the layers that may be compressed, in picoseconds if `in_picoseconds` is 1, otherwise in bits.
    pub size: u64,
    /// If `limit` is LGRECO_LIMIT_ERROR, a lower bound of the size of all plans within the budget; otherwise 0.
    pub lower_bound: u64,
    /// Size of the layers that `size` counts, under the settings from which the limit is derived: the uniform setting,
    /// or the settings of the option `accordion`.
    pub default_size: u64,
    /// Size of the layers that `size` counts, uncompressed. If `size` is not smaller, compression does not pay.
    pub uncompressed_size: u64,
    /// Total error of the plan.
    pub error: f64,
    /// If `limit` is LGRECO_LIMIT_ERROR, the error budget of the plan; otherwise 0.
    pub budget: f64,
    /// Number of layers that are sent uncompressed because compressing them would take longer.
    pub slower: u32,
    /// Number of layers that are sent uncompressed because their setting does not suit error feedback.
    pub not_contractive: u32,
    /// The kind of limit that the plan keeps.
    pub limit: lgreco_limit,
    /// With the objective seconds, the number of layers that are compressed; otherwise 0.
    pub compressed: u32,
    /// If `limit` is LGRECO_LIMIT_SIZE, the largest size that the plan may have, in the unit of `size`; otherwise 0.
    pub size_limit: u64,
    /// If `limit` is LGRECO_LIMIT_SIZE, a lower bound of the error of all plans within the size limit; otherwise 0.
    pub error_lower_bound: f64,
    /// Seconds of a step's exchange, including compression, on the slowest rank: the measured median since the previous
    /// decision. This field and all fields below are 0 unless the objective is seconds.
    pub measured_seconds: f64,
    /// The part of `measured_seconds` for compressing and decompressing.
    pub computing_seconds: f64,
    /// Seconds that one more byte on every rank adds to the exchange.
    pub seconds_per_byte: f64,
    /// Predicted seconds of a step's exchange under the plan.
    pub plan_seconds: f64,
    /// The part of `plan_seconds` for compressing and decompressing.
    pub plan_computing_seconds: f64,
    /// Predicted seconds under the uniform setting.
    pub default_seconds: f64,
    /// Predicted seconds with all layers uncompressed.
    pub uncompressed_seconds: f64,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers.
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

/// Fills `setting` with the setting of layer `layer` in the last step. This call, lgreco_controller_metrics and
/// lgreco_controller_residual fail with LGRECO_LAYER_MISMATCH for an unknown layer.
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

/// Fills `metrics` with the measurements of layer `layer` on this rank. The call reads the layer's whole residual.
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

/// Writes the residual of layer `layer` on this rank to `values`. A layer without a residual gives zeros. `values_len`
/// is the layer's number of elements, or on nodes the shard's (lgreco_controller_shard). Fails with LGRECO_IN_FLIGHT
/// while the layer is in a bucket.
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

/// Fills `decision` with the last decision. Before the first decision, `cause` is LGRECO_CAUSE_NONE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_decision(
    controller: *mut lgreco_controller,
    decision: *mut lgreco_decision,
) -> lgreco_status {
    call!(controller, |state| {
        fill(decision, || Ok(state.levels.controller().decision().map_or_else(Default::default, Into::into)))
    })
}

/// Reports the number of steps taken, including skipped steps. Also reports the number of steps in which some rank's
/// gradient was not finite.
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

/// Memory that a controller uses on one rank, in bytes and by purpose. The trainer's gradients are not included. Begin
/// with LGRECO_MEMORY_USE_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_memory_use {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Residuals of error feedback.
    pub residuals: u64,
    /// Residuals of the previous step, which the option `undo` keeps.
    pub undo: u64,
    /// PowerSGD's factors.
    pub factors: u64,
    /// Messages of the buckets in flight, and the workspace of one bucket.
    pub exchange: u64,
    /// Gradients for the next decision. The measuring rank holds them from the first step of the window until the
    /// decision.
    pub window: u64,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers.
sized_struct!("memory use", lgreco_memory_use {});

/// Reports how much memory the run uses on this rank, even before its first step. The report assumes the settings of
/// the last decision. Before the first decision, it assumes the given settings or the uniform setting. It also assumes
/// that at most `at_once` buckets of `bucket_bytes` each are in flight; lgreco_controller_step has one. If
/// `bucket_bytes` is 0, the option `bucket_bytes` applies.
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
            let struct_size = crate::structs::size_of_struct::<lgreco_memory_use>();
            Ok(lgreco_memory_use { struct_size, residuals, undo, factors, exchange, window })
        })
    })
}

/// Writes the last step's report, the last decision and the metrics of all layers as one line of JSON. The line ends
/// with a NUL, and has no line break. `length` is as for lgreco_table_to_json. Allocates.
///
/// Fails with LGRECO_UNAVAILABLE before the first step.
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
