//! Cuts saved shards again, for the present number of ranks per node.

use super::Topology;
use super::division::{Division, shard};
use crate::compress::Setting;
use crate::controller::buffers::{grow, values, workspace};
use crate::controller::decision::LayerSetting;
use crate::controller::state_format::{Layer, Layers, Owner};
use crate::controller::{Tensor, Uncompressed};
use crate::exchange::factor_len;
use crate::feedback::{Memory, SavedState};
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// The saved state of one rank.
pub(super) struct Shards<'a> {
    pub place: Topology,
    pub layers: Layers<'a>,
}

/// A state with shards that are cut for this rank, and the residuals that were made for these shards.
pub(super) struct Cut<'a> {
    owner: Owner,
    layers: Vec<(Layer<'a>, Option<Vec<u8>>)>,
}

impl Cut<'_> {
    /// The state, as if a run with the present cuts had saved it.
    pub(super) fn layers(&self) -> Result<Layers<'_>, Error> {
        let layers = self.layers.iter().map(|(layer, made)| {
            let memory = match made {
                Some(bytes) => Some(SavedState::parse_part(bytes)?),
                None => layer.memory,
            };
            Ok(Layer { memory, ..layer.clone() })
        });
        Layers::new(self.owner, layers.collect::<Result<_, Error>>()?)
    }
}

/// The state of this rank's shards from the plan: settings, and everything else that peers have in common.
pub(super) fn of_plan<'a>(whole: &[Tensor], topology: &Topology, plan: &Shards<'a>) -> Result<Cut<'a>, Error> {
    let layers = plan.layers.layers.iter().map(|layer| {
        let tensor = whole.iter().find(|tensor| tensor.name() == layer.name);
        let layer = match tensor.filter(|_| !is_cut_alike(&plan.place, topology)) {
            Some(tensor) => recut(layer, tensor, topology, &plan.place)?,
            None => layer.clone(),
        };
        Ok((layer, None))
    });
    Ok(Cut { owner: plan.layers.owner, layers: layers.collect::<Result<_, Error>>()? })
}

/// The residuals of this rank's shards. The result has one state for each node from which the states in `given` come.
///
/// # Errors
/// [`CoreError::SavedState`](crate::CoreError::SavedState) with the local rank whose state is missing.
pub(super) fn of_residuals<'a>(
    whole: &[Tensor],
    topology: &Topology,
    given: &[Shards<'a>],
) -> Result<Vec<Cut<'a>>, Error> {
    let mut nodes: BTreeMap<(u32, u32, u32), Vec<&Shards<'a>>> = BTreeMap::new();
    for state in given {
        let Topology { nodes: count, per_node, node, .. } = state.place;
        nodes.entry((count, per_node, node)).or_default().push(state);
    }
    nodes.into_values().map(|states| of_node(whole, topology, &states)).collect()
}

/// The residuals of this rank's shards from one former node.
fn of_node<'a>(whole: &[Tensor], topology: &Topology, states: &[&Shards<'a>]) -> Result<Cut<'a>, Error> {
    let Some(first) = states.first() else {
        return Err(CoreError::SavedState { what: "number of states of a node", found: 0 }.into());
    };
    let of_local = |local: u32| {
        let found = states.iter().find(|state| state.place.local == local);
        let what = "a node's states: the state of one local rank is missing, that of";
        found.ok_or(CoreError::SavedState { what, found: local.into() })
    };
    if is_cut_alike(&first.place, topology) {
        let own = &of_local(topology.local)?.layers;
        let layers = own.layers.iter().map(|layer| (layer.clone(), None)).collect();
        return Ok(Cut { owner: own.owner, layers });
    }
    let owner = first.layers.owner;
    if let Some(other) = states.iter().find(|state| state.layers.owner.step != owner.step) {
        let what = "a node's states: they are of different steps, one of step";
        return Err(CoreError::SavedState { what, found: other.layers.owner.step }.into());
    }
    let mut layers = vec![];
    for tensor in whole {
        let range = Division::new(tensor.shape(), topology.per_node).range(topology.local);
        let before = Division::new(tensor.shape(), first.place.per_node);
        let mut parts = vec![];
        for local in before.holders(&range) {
            let cut = before.range(local);
            let overlap = cut.start.max(range.start)..cut.end.min(range.end);
            let expected = shard(tensor, first.place.per_node, local)?;
            parts.push((of_local(local)?.layers.fitting(&expected), cut, overlap));
        }
        // A saved layer of another shape is treated as missing, and its residual is ignored.
        let Some((Some(base), ..)) = parts.first() else { continue };
        let layer = recut(base, tensor, topology, &first.place)?;
        let kept = parts.iter().find_map(|(layer, ..)| layer.as_ref()?.memory);
        let Some(kept) = kept else {
            layers.push((layer, None));
            continue;
        };
        let mut all = values(range.len())?;
        for (layer, cut, overlap) in &parts {
            let Some(memory) = layer.as_ref().and_then(|layer| layer.memory) else { continue };
            let mut part = values(cut.len())?;
            memory.restore(workspace(memory.residual().state_len(memory.shape()))?)?.values(&mut part)?;
            let from = &part[overlap.start - cut.start..overlap.end - cut.start];
            all[overlap.start - range.start..overlap.end - range.start].copy_from_slice(from);
        }
        let mut memory = Memory::owned(kept.residual(), layer.shape)?;
        memory.set(&all, Stream::default())?;
        let mut bytes = Vec::new();
        grow(&mut bytes, memory.part_len())?;
        memory.save_part(&mut bytes);
        layers.push((layer, Some(bytes)));
    }
    Ok(Cut { owner, layers })
}

fn is_cut_alike(place: &Topology, topology: &Topology) -> bool {
    place.per_node == topology.per_node && place.local == topology.local
}

/// A saved layer cut for this rank, without its residual and window.
fn recut<'a>(layer: &Layer<'a>, whole: &Tensor, topology: &Topology, place: &Topology) -> Result<Layer<'a>, Error> {
    let was_cut_so = |local| {
        let shard = shard(whole, place.per_node, local);
        shard.is_ok_and(|shard| (shard.shape(), shard.dtype()) == (layer.shape, layer.dtype))
    };
    // The first shard has the largest size, the last shard has the smallest, and shards have no other sizes.
    if ![0, place.per_node - 1].into_iter().any(was_cut_so) {
        // The function `load` then reports the layer as misshaped.
        return Ok(Layer { memory: None, mean: None, ..layer.clone() });
    }
    let shape = shard(whole, topology.per_node, topology.local)?.shape();
    let choice = match layer.choice.setting {
        Setting::Dense => layer.choice,
        _ if shape.elements() == 0 => LayerSetting::dense(Uncompressed::Chosen),
        setting => {
            LayerSetting { setting: setting.of_piece(0..shape.elements(), layer.shape.elements()), ..layer.choice }
        }
    };
    let mut factor = values(factor_len(&choice.setting, shape))?;
    if layer.factor.len() == factor.len() {
        factor.copy_from_slice(&layer.factor);
    }
    Ok(Layer { shape, choice, factor, norm: None, mean: None, memory: None, ..layer.clone() })
}
