use super::collective::lgreco_collective;
use super::gradient::Gradients;
use super::request::{Groups, lgreco_request};
use super::table::Texts;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::handle::{self, kind};
use crate::pointers::write;
use crate::status::lgreco_status;
use crate::structs::{fill, fill_unless_null, read_struct, sized_struct};
use core::ffi::c_void;
use lgreco_train::Error;
use lgreco_train::controller::two_level::Levels;
use lgreco_train::controller::{Outcome, Report};
use lgreco_train::exchange::Collective;
use std::sync::{Arc, Weak};

/// The controller of one worker. It compresses and exchanges the gradients, and keeps the residuals. At a decision, it
/// chooses a setting for every layer; the ranks use these settings until the next decision.
pub struct lgreco_controller {
    _private: [u8; 0],
}

kind!(lgreco_controller, "controller", b"lgcontrl", ControllerState, names: names, device: device);

pub(crate) struct ControllerState {
    pub(super) levels: Levels,
    /// The device that measures.
    pub(super) device: Device,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Identifies this controller to its buckets and tasks.
    pub(super) owner: Arc<()>,
    /// Number of saved states loaded so far.
    pub(super) loads: u64,
    /// Names of the layers.
    pub(super) names: Arc<[String]>,
    /// Names of the layers, as C text.
    pub(super) texts: Texts,
    pub(super) report: Option<Report>,
    /// Names of the layers that the last loaded state lacked, had in excess, or had with another shape.
    pub(super) loaded: [Texts; 3],
    pub(super) gradients: Gradients,
}

impl ControllerState {
    /// Returns `Err` with the text `what` unless `owner` identifies this controller.
    pub(super) fn check_own(&self, owner: &Weak<()>, what: &'static str) -> Result<()> {
        if core::ptr::eq(owner.as_ptr(), Arc::as_ptr(&self.owner)) {
            return Ok(());
        }
        Err(Error::StepOrder { what, expected: "one of this controller's" }.into())
    }

    /// Returns `Err` unless the collective has the rank and the number of workers of this controller.
    fn check_place(&self, collective: &impl Collective) -> Result<(), Failure> {
        let (rank, world) = (collective.rank(), collective.world_size());
        let (own_rank, own_world) = (self.rank, self.world_size);
        if (rank, world) == (own_rank, own_world) {
            return Ok(());
        }
        Err(Error::OtherPlace { rank, world, own_rank, own_world }.into())
    }

    pub(super) fn groups(&self) -> Groups {
        Groups { world_size: self.world_size, per_node: self.levels.per_node() }
    }

    /// Returns `Err` unless the controller has this layer.
    pub(super) fn check_layer(&self, layer: usize) -> Result<()> {
        let layers = self.levels.tensors().len();
        if layer < layers {
            return Ok(());
        }
        Err(Error::NoSuchLayer { layer, layers }.into())
    }
}

/// What a step has done to the gradients.
pub type lgreco_outcome = u32;

/// The gradients are the means over the workers, after compression.
pub const LGRECO_OUTCOME_EXCHANGED: lgreco_outcome = 0;
/// Some rank's gradients were not finite; all gradients are now zeros. Do not update the parameters. After a step with
/// buckets in flight, only the gradients of the affected buckets are zeros, and the other means must be ignored.
/// Residuals are as before the step.
pub const LGRECO_OUTCOME_SKIPPED: lgreco_outcome = 1;
/// Some rank's gradients were not finite. All gradients are now uncompressed means, which are not finite either. After
/// a step with buckets in flight, only the gradients of the affected buckets are replaced, by NaN.
pub const LGRECO_OUTCOME_PASSED_THROUGH: lgreco_outcome = 2;
/// After a step with buckets in flight, the exchange of some bucket failed, and its gradients are unusable. Usually the
/// exchange failed on every rank. Some failures affect only this rank: a mean is too large for its shard's element type
/// (LGRECO_ELEMENT_OVERFLOW), or the bucket was closed during its exchange. The next bucket or step then fails on all
/// ranks.
pub const LGRECO_OUTCOME_FAILED: lgreco_outcome = 3;

/// The report of a step. All fields are the same on every rank, with these exceptions: the seconds; `bytes_out` if the
/// length of a payload depends on its values; the outcome if a bucket failed on one rank only. On nodes, the bytes
/// count only this rank's shards. Begin with LGRECO_REPORT_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_report {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// The step's number, from 0.
    pub step: u64,
    /// What the step has done to the gradients.
    pub outcome: lgreco_outcome,
    /// 1 if the step was the first under new settings, else 0.
    pub switched: u32,
    /// Bytes of one worker's gradients.
    pub bytes_in: u64,
    /// Bytes that this worker sent for its gradients.
    pub bytes_out: u64,
    /// Seconds for checking gradients and waiting for other ranks. At a decision, includes measuring, planning and
    /// switching.
    pub planning_seconds: f64,
    /// Seconds for compressing and exchanging.
    pub exchange_seconds: f64,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers.
sized_struct!("report", lgreco_report {});

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

/// Reports which elements of layer `layer` this rank exchanges with its peers: `count` elements from index `first`. The
/// rank's residual has only these elements. Unless the controller was made by lgreco_controller_create_on_nodes, the
/// elements are the whole layer.
///
/// Fails with LGRECO_LAYER_MISMATCH for an unknown layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_shard(
    controller: *mut lgreco_controller,
    layer: usize,
    first: *mut usize,
    count: *mut usize,
) -> lgreco_status {
    call!(controller, |state| {
        write(first, "first", || {
            state.check_layer(layer)?;
            let shard = state.levels.shard(layer).unwrap_or_default();
            write(count, "count", || Ok(shard.len()))?;
            Ok(shard.start)
        })
    })
}

/// Frees a controller and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_destroy(controller: *mut *mut lgreco_controller) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(controller) }
}

/// Performs a training step. Call it on every rank after every backward pass. gradients[l] has layer l's type and
/// number of elements, and is replaced by its mean over the workers. `learning_rate` must be the same on all ranks.
/// Only the option `accordion` uses the learning rate. `report` may be NULL. Allocates at the first step, at decisions
/// and when the window of a decision begins.
///
/// If the call fails on one rank, it fails on all ranks, even for wrong pointers and lengths. The rank at fault gets
/// the code of its error. The other ranks get LGRECO_PEER, with the failed rank and its code in the message. The other
/// ranks do not learn of the failure if this rank cannot use the network: if `controller` or `collective` is wrong, or
/// another call uses the controller (LGRECO_BUSY).
///
/// After LGRECO_NON_FINITE_GRADIENT and the following errors, everything is unchanged and the step may be repeated (for
/// nodes see lgreco_controller_create_on_nodes). LGRECO_PEER_PLAN means that ranks differ in options or layers; the
/// message names the first difference. LGRECO_PARAMETER can mean that the collective's rank or number of workers
/// differs from the controller's. LGRECO_STEP_ORDER means that a step of lgreco_controller_begin_step is under way. The
/// codes of planning are possible too.
///
/// LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW and LGRECO_PEER_MESSAGE end the step. The step's gradients are then
/// unusable, but the next step works. After LGRECO_COLLECTIVE, ranks may have different states: load a saved state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_step(
    controller: *mut lgreco_controller,
    collective: *const lgreco_collective,
    gradients: *const *mut c_void,
    gradients_len: usize,
    learning_rate: f64,
    report: *mut lgreco_report,
) -> lgreco_status {
    call!(controller, |state| {
        let mut collective = read_struct(collective)?.callback()?;
        let place = state.check_place(&collective);
        let ControllerState { levels, world_size, gradients: own, report: last, .. } = state;
        let mut taken = false;
        let done = place.and_then(|()| {
            fill_unless_null(report, || {
                let pointers = own.pointers(gradients, gradients_len)?;
                let done = own.with(pointers, |values| {
                    taken = true;
                    match levels {
                        Levels::One(controller) => controller.step(&mut collective, values, learning_rate),
                        Levels::Two(training) => {
                            let [mut node, mut peers] = collective.levels(training.topology());
                            training.step(&mut node, &mut peers, values, learning_rate)
                        }
                    }
                })??;
                *last = Some(done);
                Ok(done.into())
            })
        });
        match done {
            // The other ranks wait for this rank, so they must learn of its failure.
            Err(failure) if !taken => {
                let error = Error::Trainer { code: failure.status() };
                let told = match levels {
                    Levels::One(controller) => {
                        collective.make_room_for(*world_size);
                        controller.step_failed(&mut collective, error)
                    }
                    Levels::Two(training) => {
                        let [mut node, mut peers] = collective.levels(training.topology());
                        training.step_failed(&mut node, &mut peers, error)
                    }
                };
                Err(if told == error { failure } else { told.into() })
            }
            done => done,
        }
    })
}

/// Begins a step whose collectives the caller performs. Next, perform the requests of lgreco_controller_control. Then
/// exchange buckets, any number at a time (lgreco_bucket_open), and call lgreco_controller_finish_step. All workers
/// make these calls, with the same `learning_rate`. Only the option `accordion` uses the learning rate.
/// lgreco_controller_step takes the whole step in one call, and checks all gradients before the exchange.
///
/// All ranks learn of a negative or non-finite learning rate: lgreco_controller_control fails, or the first bucket if
/// there is no control request. Fails with LGRECO_STEP_ORDER when a step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_begin_step(
    controller: *mut lgreco_controller,
    learning_rate: f64,
) -> lgreco_status {
    call!(controller, |state| { Ok(state.levels.begin_step(learning_rate)?) })
}

/// Reports the next collective to perform before buckets may be opened. Call it again after each collective, until the
/// kind is LGRECO_REQUEST_NONE. Without the option `accordion`, the first call already returns LGRECO_REQUEST_NONE in
/// most steps. If a decision is due, the measuring rank measures and plans during a call. Allocates at decisions and
/// when the window of a decision begins.
///
/// If the call fails on one rank, it fails on all ranks, and the step may be begun again. The codes are LGRECO_PEER,
/// LGRECO_PEER_PLAN, LGRECO_PEER_MESSAGE, and the codes of measuring and planning. Fails with LGRECO_STEP_ORDER when no
/// step is under way. If a collective cannot be performed, ranks may have different states. In that case load a saved
/// state with lgreco_controller_load, which also ends the step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_control(
    controller: *mut lgreco_controller,
    request: *mut lgreco_request,
) -> lgreco_status {
    call!(controller, |state| {
        let groups = state.groups();
        fill(request, || Ok(lgreco_request::within(state.levels.control()?, groups)))
    })
}

/// Ends the step, after all its buckets were closed. Layers that were in no bucket keep their residuals and factors.
/// `report` may be NULL. The report's outcome is LGRECO_OUTCOME_FAILED if the exchange of some bucket failed. If
/// gradients of some bucket were not finite, the outcome is LGRECO_OUTCOME_SKIPPED or LGRECO_OUTCOME_PASSED_THROUGH,
/// depending on the option `non_finite`.
///
/// Fails with LGRECO_IN_FLIGHT when a bucket was not closed, and with LGRECO_STEP_ORDER when no step is under way or
/// control requests are left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_finish_step(
    controller: *mut lgreco_controller,
    report: *mut lgreco_report,
) -> lgreco_status {
    call!(controller, |state| {
        fill_unless_null(report, || {
            let done = state.levels.finish_step()?;
            state.report = Some(done);
            Ok(done.into())
        })
    })
}

/// Undoes the last step's changes to the residuals. Make this call if the step's means were not applied, for instance
/// because a loss scaler skipped the update. The step still counts. Either all ranks or no ranks make this call, at
/// most once per step.
///
/// Fails with LGRECO_STEP_ORDER while a step is under way, and when the earlier residuals are not available. The
/// controller keeps the earlier residuals with the option `undo`, or if `non_finite` is not `error`. A failed call
/// changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_roll_back(controller: *mut lgreco_controller) -> lgreco_status {
    call!(controller, |state| Ok(state.levels.controller_mut().residuals().roll_back()?))
}

/// Abandons the step under way because a collective failed. The step may be begun again. With the option `undo`,
/// residuals return to their values before the step. Without `undo`, layers whose exchange finished keep their new
/// residuals.
///
/// Close all buckets first, once the network no longer uses their memory. Ranks may have stopped at different points.
/// Before they continue, all ranks must load the plan of the same rank, each with its own residuals.
/// lgreco_controller_step abandons the step itself when a callback fails.
///
/// Fails with LGRECO_IN_FLIGHT when a bucket is not closed, and with LGRECO_STEP_ORDER when no step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_abandon_step(controller: *mut lgreco_controller) -> lgreco_status {
    call!(controller, |state| Ok(state.levels.abandon_step()?))
}

/// Multiplies all residuals by `factor`. Make this call when the loss scale changes by this factor, because all later
/// gradients change by it too. Either all ranks make this call with the same factor, or none. Afterwards the last step
/// can no longer be rolled back.
///
/// Fails with LGRECO_PARAMETER unless `factor` is positive and finite, and with LGRECO_OVERFLOW when a residual no
/// longer fits its format. Fails with LGRECO_STEP_ORDER while a step is under way. A failed call changes no residual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_rescale_residuals(
    controller: *mut lgreco_controller,
    factor: f32,
) -> lgreco_status {
    call!(controller, |state| Ok(state.levels.controller_mut().residuals().rescale(factor)?))
}
