use super::collective::lgreco_collective;
use super::context::{check_stream, lgreco_context};
use super::controller_options::lgreco_controller_options;
use super::gradient::{lgreco_layer, values_mut, values_range};
use super::table::Texts;
use crate::device::Device;
use crate::handle::{self, Kind};
use crate::pointers::{
    Range, SizedStruct, all_disjoint, filled, read_struct, read_struct_or_default, read_structs, slice,
};
use crate::status::{Failure, lgreco_status};
use core::ffi::{c_char, c_void};
use lgreco_train::controller::{Controller, Outcome, Report, Tensor};
use lgreco_train::exchange::Collective;
use lgreco_train::gradient::ValuesMut;
use lgreco_train::{CoreError, Error};
use std::sync::Arc;

/// One worker's end of the training loop: decides when and how hard to compress each layer, compresses, exchanges,
/// remembers.
pub struct lgreco_controller {
    _private: [u8; 0],
}

impl Kind for lgreco_controller {
    const WHAT: &'static str = "controller";
    const TAG: [u8; 8] = *b"lgcontrl";
    type State = ControllerState;
    fn device(state: &ControllerState) -> Option<&Device> {
        Some(&state.device)
    }
}

pub(crate) struct ControllerState {
    pub(super) controller: Controller,
    /// What the controller measures on.
    pub(super) device: Device,
    pub(super) world_size: u32,
    /// By which its buckets know it.
    pub(super) owner: Arc<()>,
    /// Saved states loaded so far.
    pub(super) loads: u64,
    /// Of the layers.
    pub(super) names: Arc<[String]>,
    /// The same for C.
    pub(super) texts: Texts,
    pub(super) report: Option<Report>,
    /// What the last load did not find, found too much, and found in another shape.
    pub(super) loaded: [Texts; 3],
    /// Empty between calls; kept so that steps do not allocate.
    gradients: Vec<ValuesMut<'static>>,
    ranges: Vec<Range>,
}

impl ControllerState {
    /// Adds the layer's name to an error.
    pub(super) fn named(&self, error: Error) -> Failure {
        Failure::named(error, error.layer().and_then(|layer| self.names.get(layer)).cloned())
    }

    /// `Err` unless there is such a layer.
    pub(super) fn check_layer(&self, layer: usize) -> Result<(), Failure> {
        let layers = self.controller.tensors().len();
        match layer < layers {
            true => Ok(()),
            false => Err(CoreError::Length { what: "layer", expected: layers, found: layer }.into()),
        }
    }
}

/// What became of a step's gradients: LGRECO_OUTCOME_...
pub type lgreco_outcome = u32;

/// They are the means of all workers' gradients, compressed as was decided.
pub const LGRECO_OUTCOME_EXCHANGED: lgreco_outcome = 0;
/// Some rank's were not finite; they are zeros. Do not update the parameters.
pub const LGRECO_OUTCOME_SKIPPED: lgreco_outcome = 1;
/// Some rank's were not finite; they are the plain means, not finite either. After buckets in flight: those of some bucket,
/// which are NaN now.
pub const LGRECO_OUTCOME_PASSED_THROUGH: lgreco_outcome = 2;
/// After buckets in flight: the exchange of some bucket has failed, on every rank, and its gradients are of no use.
pub const LGRECO_OUTCOME_FAILED: lgreco_outcome = 3;

/// What a step did; all but the seconds is the same on every rank. Begin with LGRECO_REPORT_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_report {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Its number, from 0.
    pub step: u64,
    /// LGRECO_OUTCOME_...
    pub outcome: lgreco_outcome,
    /// 1 when it was the first under new settings, else 0.
    pub switched: u32,
    /// Bytes of one worker's gradients.
    pub bytes_in: u64,
    /// Bytes that one worker sent for them.
    pub bytes_out: u64,
    /// Seconds for checking gradients and waiting for the others; at a decision for measuring, planning and switching too.
    pub planning_seconds: f64,
    /// Seconds for compressing and exchanging.
    pub exchange_seconds: f64,
}

impl Default for lgreco_report {
    fn default() -> Self {
        lgreco_report {
            struct_size: size_of::<lgreco_report>(),
            step: 0,
            outcome: LGRECO_OUTCOME_EXCHANGED,
            switched: 0,
            bytes_in: 0,
            bytes_out: 0,
            planning_seconds: 0.0,
            exchange_seconds: 0.0,
        }
    }
}

// SAFETY: repr(C), starts with a usize, numbers only.
unsafe impl SizedStruct for lgreco_report {
    const WHAT: &'static str = "report";
}

impl From<Report> for lgreco_report {
    fn from(report: Report) -> Self {
        lgreco_report {
            step: report.step,
            outcome: match report.outcome {
                Outcome::Exchanged => LGRECO_OUTCOME_EXCHANGED,
                Outcome::Skipped => LGRECO_OUTCOME_SKIPPED,
                Outcome::PassedThrough => LGRECO_OUTCOME_PASSED_THROUGH,
                Outcome::Failed => LGRECO_OUTCOME_FAILED,
            },
            switched: report.switched.into(),
            bytes_in: report.bytes_in,
            bytes_out: report.bytes_out,
            planning_seconds: report.seconds.map_or(0.0, |seconds| seconds.planning),
            exchange_seconds: report.seconds.map_or(0.0, |seconds| seconds.exchange),
            ..lgreco_report::default()
        }
    }
}

/// Makes a controller for a model of these layers, whose `values` are not looked at, at the collective's rank. All ranks
/// must give the same layers and options; `options` may be NULL. No collective call is made.
///
/// LGRECO_PARAMETER, LGRECO_LENGTH for what makes no sense in the options, LGRECO_DUPLICATE_NAME.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_create(
    context: *mut lgreco_context,
    collective: *const lgreco_collective,
    layers: *const lgreco_layer,
    layers_len: usize,
    options: *const lgreco_controller_options,
    controller: *mut *mut lgreco_controller,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::create::<_, lgreco_controller>(context, controller, |context| {
            let collective = read_struct(collective)?.callbacks(core::ptr::null_mut())?;
            let mut tensors = Vec::new();
            for layer in read_structs(layers, layers_len)? {
                let tensor = layer.tensor()?;
                tensors.push(Tensor::new(tensor.name, tensor.dims, tensor.dtype)?);
            }
            let options = read_struct_or_default(options)?;
            let world = collective.world_size() as usize;
            if !options.shards.is_null() && world > 0 {
                let shards = slice(options.shards, tensors.len().saturating_mul(world), "shards")?;
                let rows = tensors.into_iter().zip(shards.chunks(world));
                tensors = rows.map(|(tensor, ends)| tensor.with_shards(ends)).collect();
            }
            let config = options.config(tensors.len())?;
            let names: Arc<[String]> = tensors.iter().map(|tensor| tensor.name().into()).collect();
            let texts = Texts::new(names.iter().map(String::as_str), "name of a layer")?;
            let controller = Controller::new(config, tensors, &collective).map_err(|error| {
                let layer = error.layer().and_then(|layer| names.get(layer)).cloned();
                Failure::named(error, layer)
            })?;
            Ok(ControllerState {
                controller: controller.with_backend(Box::new(context.device.clone())),
                device: context.device.clone(),
                world_size: collective.world_size(),
                owner: Arc::new(()),
                loads: 0,
                report: None,
                loaded: Default::default(),
                gradients: Vec::with_capacity(names.len()),
                ranges: Vec::with_capacity(names.len()),
                texts,
                names,
            })
        })
    }
}

/// Frees a controller and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_destroy(controller: *mut *mut lgreco_controller) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(controller) }
}

/// What went wrong in the last failed call on the controller, with the layer's name if one is at fault; empty if none has
/// failed. Valid until the next call on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_message(controller: *const lgreco_controller) -> *const c_char {
    // SAFETY: README.md, handles.
    unsafe { handle::message(controller) }
}

/// Takes a step, on every rank after every backward pass: gradients[l], of layer l's type and number of elements, becomes
/// its mean over the workers. `learning_rate`, the same on all ranks, matters to Accordion alone. `report` may be NULL.
/// Allocates at decisions only.
///
/// Whatever fails on one rank fails on all: with its own code there, elsewhere with LGRECO_PEER, whose message tells rank
/// and code. LGRECO_NON_FINITE_GRADIENT, LGRECO_PEER_PLAN when ranks differ in options or layers, LGRECO_PARAMETER, and
/// codes of planning come before anything has changed: the step may be repeated. LGRECO_STEP_ORDER while a step of
/// lgreco_controller_begin_step is under way. LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW
/// and LGRECO_PEER_MESSAGE end the step without its gradients being of use; the next one works. After LGRECO_COLLECTIVE
/// ranks may differ: load a saved state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_step(
    controller: *mut lgreco_controller,
    collective: *const lgreco_collective,
    gradients: *const *mut c_void,
    gradients_len: usize,
    learning_rate: f64,
    report: *mut lgreco_report,
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers; what a failed call left in `gradients` is cleared before it is used.
    unsafe {
        handle::call(controller, |state| {
            check_stream(stream)?;
            let mut collective = read_struct(collective)?.callbacks(stream)?;
            let report = if report.is_null() { None } else { Some(filled(report)?) };
            let pointers = slice(gradients, gradients_len, "gradients")?;
            state.gradients.clear();
            state.ranges.clear();
            let tensors = state.controller.tensors();
            for (layer, (&pointer, tensor)) in pointers.iter().zip(tensors).enumerate() {
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                state.gradients.push(values_mut(pointer, dtype, shape.elements())?);
                state.ranges.push(values_range(pointer, dtype, shape).of_layer(layer));
            }
            if pointers.len() != tensors.len() {
                let (expected, found) = (tensors.len(), pointers.len());
                return Err(CoreError::Length { what: "gradients, one per layer", expected, found }.into());
            }
            all_disjoint(&mut state.ranges).map_err(|failure| match failure {
                Failure::Overlap { layers: [Some(layer), _], .. } => failure.of_layer(tensors[layer].name()),
                failure => failure,
            })?;
            let done = state.controller.step(&mut collective, &mut state.gradients, learning_rate);
            state.gradients.clear();
            let done = done.map_err(|error| match (error, collective.missing()) {
                (Error::Collective { .. }, Some(what)) => Failure::Callback { what },
                _ => state.named(error),
            })?;
            state.report = Some(done);
            if let Some(report) = report {
                report.fill(done.into());
            }
            Ok(())
        })
    }
}
