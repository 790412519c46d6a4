use super::collective::lgreco_collective;
use super::context::{device, lgreco_context};
use super::gradient::{GradientLayer, Gradients, lgreco_layer};
use super::request::{Groups, lgreco_request};
use super::setting::{lgreco_setting, read_settings};
use super::table::Texts;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::handle::{self, kind};
use crate::options::{self, ControllerOptions};
use crate::pointers::{fill, fill_unless_null, read_struct, read_structs, sized_struct, slice, write};
use crate::status::lgreco_status;
use core::ffi::{c_char, c_void};
use lgreco_train::Error;
use lgreco_train::controller::two_level::{Levels, Topology};
use lgreco_train::controller::{Outcome, Report, Tensor};
use lgreco_train::exchange::{Collective, Route};
use std::sync::{Arc, Weak};

/// One worker's end of the training loop: decides when and how hard to compress each layer, compresses, exchanges,
/// remembers.
pub struct lgreco_controller {
    _private: [u8; 0],
}

kind!(lgreco_controller, "controller", b"lgcontrl", ControllerState, names: names, device: device);

pub(crate) struct ControllerState {
    pub(super) levels: Levels,
    /// What the controller measures on.
    pub(super) device: Device,
    rank: u32,
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
    gradients: Gradients,
}

impl ControllerState {
    /// `Err` with the text `what` unless `owner` is this controller's.
    pub(super) fn check_own(&self, owner: &Weak<()>, what: &'static str) -> Result<()> {
        if core::ptr::eq(owner.as_ptr(), Arc::as_ptr(&self.owner)) {
            return Ok(());
        }
        Err(Error::StepOrder { what, expected: "one of this controller's" }.into())
    }

    /// `Err` unless the collective is that of the controller.
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

    /// `Err` unless there is such a layer.
    pub(super) fn check_layer(&self, layer: usize) -> Result<()> {
        let layers = self.levels.tensors().len();
        if layer < layers {
            return Ok(());
        }
        Err(Error::NoSuchLayer { layer, layers }.into())
    }
}

/// What became of a step's gradients.
pub type lgreco_outcome = u32;

/// They are the means of all workers' gradients, compressed as was decided.
pub const LGRECO_OUTCOME_EXCHANGED: lgreco_outcome = 0;
/// Some rank's were not finite; they are zeros. Do not update the parameters. After buckets in flight: the gradients of other
/// buckets are means that do not count, and residuals are what they were before the step.
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
    /// What became of the gradients.
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

// SAFETY: repr(C), starts with a usize; numbers only.
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

/// What a controller is made of, beside its options.
struct Given {
    context: *const lgreco_context,
    collective: *const lgreco_collective,
    layers: *const lgreco_layer,
    layers_len: usize,
    settings: *const lgreco_setting,
    options: *const *const c_char,
}

/// How ranks divide the layers.
enum Shares {
    None,
    /// lgreco_controller_create_sharded.
    Sharded(*const u64),
    /// lgreco_controller_create_on_nodes.
    PerNode(u32),
}

impl Given {
    /// # Safety
    /// README.md, handles and pointers; `shares` are as lgreco_controller_create_sharded says.
    unsafe fn controller(self, shares: Shares) -> Result<ControllerState> {
        let Given { context, collective, layers, layers_len, settings, options } = self;
        // SAFETY: passed on, here and below.
        let (device, collective) = unsafe { (device(context)?, read_struct(collective)?.callback()?) };
        let mut tensors = Vec::new();
        // SAFETY: as above.
        for layer in unsafe { read_structs(layers, layers_len) }? {
            // SAFETY: as above.
            let tensor = unsafe { layer.tensor() }?;
            tensors.push(Tensor::new(tensor.name, tensor.dims, tensor.dtype)?);
        }
        let world = collective.world_size() as usize;
        if let (Shares::Sharded(shards), true) = (&shares, world > 0) {
            // SAFETY: as above.
            let shards = unsafe { slice(*shards, tensors.len().saturating_mul(world), "shards") }?;
            let rows = tensors.into_iter().zip(shards.chunks(world));
            tensors = rows.map(|(tensor, ends)| tensor.with_shards(ends)).collect();
        }
        let names: Arc<[String]> = tensors.iter().map(|tensor| tensor.name().into()).collect();
        let named = |failure: Failure| failure.with_name(&names);
        // SAFETY: as above.
        let options = unsafe { options::read::<ControllerOptions>(options) }?;
        let fixed = (!settings.is_null()).then(|| {
            // SAFETY: as above.
            unsafe { read_settings(settings, tensors.len(), "settings") }
        });
        let config = options.config(
            fixed.transpose().map_err(named)?,
            matches!(shares, Shares::Sharded(_)).then_some(Route::Sharded),
        )?;
        let texts = Texts::new(names.iter().map(String::as_str), "name of a layer")?;
        let layers = tensors.iter().enumerate().map(|(index, tensor)| GradientLayer::of(index, tensor)).collect();
        let (rank, world_size) = (collective.rank(), collective.world_size());
        let place = match shares {
            Shares::PerNode(per_node) => Some(place_of(rank, world_size, per_node)?),
            Shares::None | Shares::Sharded(_) => None,
        };
        let levels = Levels::new(config, tensors, [rank, world_size], place).map_err(|error| named(error.into()))?;
        Ok(ControllerState {
            levels: levels.with_backend(Box::new(device.clone())),
            device,
            rank: collective.rank(),
            world_size: collective.world_size(),
            owner: Arc::new(()),
            loads: 0,
            report: None,
            loaded: Default::default(),
            gradients: Gradients::new(layers),
            texts,
            names,
        })
    }
}

/// Makes a controller for a model of these layers, whose `values` are not looked at, at the collective's rank. All ranks
/// must give the same layers and options. `context` may be NULL: the CPU. `settings` may be NULL: the policy decides; else they
/// are one per layer, and stay until lgreco_controller_set_settings. No collective call is made.
///
/// LGRECO_UNKNOWN_OPTION, LGRECO_PARAMETER, LGRECO_LENGTH for what makes no sense in the options; the codes of lgreco_setting;
/// LGRECO_DUPLICATE_NAME.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_create(
    context: *const lgreco_context,
    collective: *const lgreco_collective,
    layers: *const lgreco_layer,
    layers_len: usize,
    settings: *const lgreco_setting,
    options: *const *const c_char,
    controller: *mut *mut lgreco_controller,
) -> lgreco_status {
    create!(controller, || {
        Given { context, collective, layers, layers_len, settings, options }.controller(Shares::None)
    })
}

/// As lgreco_controller_create, where ranks keep a shard of each layer (FSDP, ZeRO): each rank gets the means of its shards
/// alone, in their place in the gradients, whose other elements are then of no use.
///
/// `shards` says where shards end, in elements, world_size of them per layer, one layer after the other. Of each layer rank r
/// has the elements from its number r - 1, or 0, to its number r, which may be none; the last is the number of the layer's
/// elements. Asks for LGRECO_REQUEST_ALL_TO_ALL and REDUCE_SCATTER_SUM. Payloads of hard thresholds, SIDCo and AdaComp are
/// gathered whole, and decoded by every rank. The option `route` has no effect.
///
/// Also LGRECO_NULL_POINTER for `shards`, LGRECO_PARAMETER for what they cannot be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_create_sharded(
    context: *const lgreco_context,
    collective: *const lgreco_collective,
    layers: *const lgreco_layer,
    layers_len: usize,
    shards: *const u64,
    settings: *const lgreco_setting,
    options: *const *const c_char,
    controller: *mut *mut lgreco_controller,
) -> lgreco_status {
    create!(controller, || {
        Given { context, collective, layers, layers_len, settings, options }.controller(Shares::Sharded(shards))
    })
}

/// The place of a rank where as many are on each node, numbered node by node.
fn place_of(rank: u32, world_size: u32, per_node: u32) -> Result<Topology> {
    let wrong = |what, value: u32, expected| {
        let value = value.into();
        Err(Error::Core(lgreco_train::CoreError::Parameter { what, value, expected }).into())
    };
    if per_node == 0 || !world_size.is_multiple_of(per_node) {
        return wrong("the number of ranks per node", per_node, "a divisor of the number of workers");
    }
    if rank >= world_size {
        return wrong("rank", rank, "below the number of workers");
    }
    Ok(Topology { nodes: world_size / per_node, node: rank / per_node, per_node, local: rank % per_node })
}

/// As lgreco_controller_create, for nodes of `ranks_per_node` workers, whose ranks follow each other. The workers of a node sum
/// gradients, uncompressed; each exchanges its shard of them, compressed, with its peers, those with the same place in other nodes;
/// the workers of a node gather the means. So each byte of a payload goes through a node's link once per other node.
///
/// Every request says in its `group` among whom it is performed: LGRECO_GROUP_NODE or LGRECO_GROUP_PEERS; the
/// ranks in it are `rank % ranks_per_node` and `rank / ranks_per_node`. The last request of a bucket is that in its node after
/// LGRECO_REQUEST_REDUCE_SCATTER_SUM. The ranks of a node may have had different numbers of requests among peers before it, so buckets in flight
/// either have groups of their own, or their last requests are started once all have come to theirs, in the same order on all ranks. Asks for LGRECO_REQUEST_REDUCE_SCATTER_SUM and ALL_GATHER_EACH
/// inside nodes. Settings, residuals, metrics and the bytes of reports are those of this rank's shards (lgreco_controller_shard);
/// `settings` and the option `min_elements` are for whole layers. Errors number ranks as the collective does. States are
/// loaded with other nodes too: lgreco_controller_load takes the states of all ranks of the nodes that this node takes over, and
/// each rank finds its shards in them.
///
/// Also LGRECO_PARAMETER unless `ranks_per_node` divides the number of workers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_create_on_nodes(
    context: *const lgreco_context,
    collective: *const lgreco_collective,
    ranks_per_node: u32,
    layers: *const lgreco_layer,
    layers_len: usize,
    settings: *const lgreco_setting,
    options: *const *const c_char,
    controller: *mut *mut lgreco_controller,
) -> lgreco_status {
    create!(controller, || {
        Given { context, collective, layers, layers_len, settings, options }.controller(Shares::PerNode(ranks_per_node))
    })
}

/// Tells which elements of layer `layer` this rank remembers and exchanges with its peers: `count` from number `first` on. All of them
/// unless the controller is one of lgreco_controller_create_on_nodes.
///
/// LGRECO_LAYER_MISMATCH when there is no such layer.
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

/// Frees a controller and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_destroy(controller: *mut *mut lgreco_controller) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(controller) }
}

/// Takes a step, on every rank after every backward pass: gradients[l], of layer l's type and number of elements, becomes
/// its mean over the workers. `learning_rate`, the same on all ranks, matters to Accordion alone. `report` may be NULL.
/// Allocates at decisions only.
///
/// Whatever fails on one rank fails on all, wrong pointers and lengths too: with its own code there, elsewhere with LGRECO_PEER,
/// whose message tells rank and code. Only where the network cannot be used (`controller` or `collective` is wrong, or another call
/// uses the controller: LGRECO_BUSY) nobody else is told. LGRECO_NON_FINITE_GRADIENT, LGRECO_PEER_PLAN when ranks differ in options
/// or layers, of which the message names the first, LGRECO_PARAMETER, also when the collective's rank or number of workers is not
/// that of the controller, LGRECO_STEP_ORDER while a step of lgreco_controller_begin_step is under way, and
/// codes of planning come before anything has changed: the step may be repeated. LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW
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
            // The others wait for this rank.
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

/// Begins a step of which the caller performs the collectives: then come the requests of lgreco_controller_control, the
/// buckets (lgreco_bucket_open), as many as the caller likes at the same time, and lgreco_controller_finish_step. All
/// workers do, with the same `learning_rate`, which matters to Accordion alone. lgreco_controller_step does all of this
/// in one call, and finds out before anything is exchanged whether all gradients can be.
///
/// A learning rate that is not finite or negative is told to all ranks: lgreco_controller_control fails, or, where there is
/// nothing to control, the first bucket. LGRECO_STEP_ORDER when a step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_begin_step(
    controller: *mut lgreco_controller,
    learning_rate: f64,
) -> lgreco_status {
    call!(controller, |state| { Ok(state.levels.begin_step(learning_rate)?) })
}

/// Tells the next collective to perform before buckets may be opened; to be called again once it is done, until the
/// kind is LGRECO_REQUEST_NONE: at once at most steps. Where a decision is due, the measuring rank measures and plans
/// during a call. Allocates at decisions only.
///
/// What fails on one rank fails on all, and the step may be begun again: LGRECO_PEER, LGRECO_PEER_PLAN,
/// LGRECO_PEER_MESSAGE, codes of measuring and planning. LGRECO_STEP_ORDER when no step is under way. Where a
/// collective cannot be performed, ranks may differ: lgreco_controller_load ends the step.
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

/// Ends the step, of which all buckets have been closed. Layers that were in none keep what is remembered of them.
/// `report` may be NULL; its outcome is LGRECO_OUTCOME_FAILED when the exchange of some bucket has failed,
/// LGRECO_OUTCOME_SKIPPED or LGRECO_OUTCOME_PASSED_THROUGH, by the option `non_finite`, when the gradients of some were not finite.
///
/// LGRECO_IN_FLIGHT when a bucket has not been closed; LGRECO_STEP_ORDER when no step is under way, or its control
/// requests are not done.
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

/// Takes back what the last step has done to residuals, because its means have not been applied: a loss scaler has
/// skipped the update, say. The step still counts. Every rank does it or none; once only.
///
/// LGRECO_STEP_ORDER while a step is under way, and where the residuals before it are gone: `undo` in the options, or a
/// `non_finite` that is no error, keeps them. Nothing has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_roll_back(controller: *mut lgreco_controller) -> lgreco_status {
    call!(controller, |state| Ok(state.levels.controller_mut().residuals().roll_back()?))
}

/// Gives up the step under way, because a collective has failed: it may be begun again, and residuals are what they were before
/// it, if `undo` keeps them; if not, those of layers whose exchange was done are what it has left. All buckets are closed first, once the engine no longer touches their memory. Ranks may have got differently far:
/// whatever they go on with, all load the plan of one of them, each with its own residuals. lgreco_controller_step does it
/// by itself when a callback fails.
///
/// LGRECO_IN_FLIGHT when a bucket is not closed, LGRECO_STEP_ORDER when no step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_abandon_step(controller: *mut lgreco_controller) -> lgreco_status {
    call!(controller, |state| Ok(state.levels.abandon_step()?))
}

/// Multiplies all residuals by `factor`, because gradients are from now on so many times what they were: the scale of
/// the loss has changed. Every rank does it with the same factor, or none. The last step can then no longer be rolled
/// back.
///
/// LGRECO_PARAMETER unless `factor` is positive and finite, LGRECO_OVERFLOW when a residual no longer fits its format,
/// LGRECO_STEP_ORDER while a step is under way: no residual has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_rescale_residuals(
    controller: *mut lgreco_controller,
    factor: f32,
) -> lgreco_status {
    call!(controller, |state| Ok(state.levels.controller_mut().residuals().rescale(factor)?))
}
