//! Makes controllers for whole layers, for sharded layers, and for nodes of several ranks.

use super::collective::lgreco_collective;
use super::context::{device, lgreco_context};
use super::controller::{ControllerState, lgreco_controller};
use super::gradient::{GradientLayer, Gradients, lgreco_layer};
use super::setting::{lgreco_setting, read_settings};
use super::table::Texts;
use crate::failure::{Failure, Result};
use crate::options::{self, ControllerOptions};
use crate::pointers::slice;
use crate::status::lgreco_status;
use crate::structs::{read_struct, read_structs};
use core::ffi::c_char;
use lgreco_train::Error;
use lgreco_train::controller::Tensor;
use lgreco_train::controller::two_level::{Levels, Topology};
use lgreco_train::exchange::{Collective, Route};
use std::sync::Arc;

/// The arguments of lgreco_controller_create.
struct Given {
    context: *const lgreco_context,
    collective: *const lgreco_collective,
    layers: *const lgreco_layer,
    layers_len: usize,
    settings: *const lgreco_setting,
    options: *const *const c_char,
}

/// How the layers are divided among the ranks.
enum Shares {
    /// Every rank has whole layers.
    None,
    /// Every rank has a shard of each layer. The array has the ends of the shards, as in
    /// lgreco_controller_create_sharded.
    Sharded(*const u64),
    /// Every node has this number of ranks, as in lgreco_controller_create_on_nodes.
    PerNode(u32),
}

impl Given {
    /// # Safety Handles and pointers meet the requirements of lgreco-ffi/README.md, and `shares` those of
    /// lgreco_controller_create_sharded.
    unsafe fn controller(self, shares: Shares) -> Result<ControllerState> {
        let Given { context, collective, layers, layers_len, settings, options } = self;
        // SAFETY: the caller meets the safety requirements of this function. The same holds for all unsafe blocks
        // below.
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

/// Makes the controller of a model with these layers. The collective states this worker's rank. `values` of layers are
/// not read. All ranks must give the same layers and options. NULL for `context` means the CPU. If `settings` is NULL,
/// the policy chooses the settings. Otherwise `settings` has one setting per layer. They apply from step `start_iter`
/// on, until lgreco_controller_set_settings. The call performs no collective.
///
/// Fails with LGRECO_UNKNOWN_OPTION, LGRECO_UNKNOWN_NAME, LGRECO_PARAMETER or LGRECO_LENGTH for wrong or contradictory
/// options. Also fails with the codes of lgreco_setting for a wrong setting, and with LGRECO_DUPLICATE_NAME for two
/// layers with the same name.
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

/// Like lgreco_controller_create, for ranks that keep a shard of each layer (FSDP, ZeRO). In each gradient, a rank's
/// own shard is replaced by its mean. The other elements of the gradient become unusable.
///
/// For each layer, `shards` has world_size numbers: the end of each rank's shard, in elements. The shard of rank r
/// begins at the end of rank r - 1's shard, or at 0, and may be empty. The last end is the layer's number of elements.
/// The controller asks for LGRECO_REQUEST_ALL_TO_ALL and REDUCE_SCATTER_SUM. Under hard thresholds, SIDCo and AdaComp,
/// every rank gathers and decodes the payloads of whole layers. The option `route` has no effect.
///
/// Also fails with LGRECO_NULL_POINTER if `shards` is NULL, and with LGRECO_PARAMETER for invalid ends.
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

/// Returns the position of a rank among nodes of `per_node` ranks each. Ranks are numbered node by node.
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

/// Like lgreco_controller_create, for nodes of `ranks_per_node` workers with consecutive ranks. The workers of a node
/// sum their gradients uncompressed. Each worker compresses its shard of the sums, and exchanges it with its peers: the
/// workers with the same index in the other nodes. The workers of a node then gather the means. So a node sends each
/// byte of a payload once to each other node.
///
/// Each request's `group` names the workers that perform it, LGRECO_GROUP_NODE or LGRECO_GROUP_PEERS. This worker has
/// rank `rank % ranks_per_node` in its node, and rank `rank / ranks_per_node` among its peers. The last request of a
/// bucket gathers the means in the node. Before this gather, the ranks of a node may have performed different numbers
/// of requests with their peers. Therefore give each bucket in flight separate groups. Alternatively, when all buckets
/// have reached their last request, start the last requests in the same order on all ranks.
///
/// Inside nodes, the controller also asks for LGRECO_REQUEST_ALL_GATHER_EACH and REDUCE_SCATTER_SUM. If `reduce_dtype`
/// is bfloat16, ALL_TO_ALL replaces REDUCE_SCATTER_SUM. Reported settings, residuals, metrics and bytes describe this
/// rank's shards (lgreco_controller_shard). `settings` and the option `min_elements` refer to whole layers. Errors
/// number ranks like the collective. A run may resume with another division into nodes. To do so, give
/// lgreco_controller_load the states of all ranks of the nodes that this node replaces. Each rank finds its shards in
/// these states.
///
/// A gradient that is not finite affects only its bucket, even in lgreco_controller_step. When the failure is found,
/// earlier buckets have already been exchanged. LGRECO_NON_FINITE_GRADIENT ends the step: do not repeat the step, and
/// ignore its gradients. With the option `non_finite`, the outcome is as after a step with buckets in flight. If
/// lgreco_controller_step is called while a step is under way, the call abandons that step and fails with
/// LGRECO_STEP_ORDER. If a bucket of the step under way is not closed, the call fails with LGRECO_IN_FLIGHT, and the
/// step stays under way. lgreco_controller_step also allocates small lists at every step.
///
/// Also fails with LGRECO_PARAMETER unless `ranks_per_node` divides the number of workers.
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
