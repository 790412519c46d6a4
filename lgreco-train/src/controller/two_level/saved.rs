//! Saving states, and continuing from them with other numbers of nodes and ranks.
//!
//! A state has the rank's position among the nodes ([`Topology`]), followed by the state of the rank's
//! [`Controller`](super::super::Controller):
//!
//! | field, little-endian | bytes |
//! |---|---|
//! | `lgreco-t`, version 1 | 8 each |
//! | nodes, node, ranks per node, local rank | 8 each |
//! | length of the controller's state or part | 8 |
//! | the controller's state or part, padded with zeros to a multiple of 8 bytes | |
//! | checksum of all fields before it | 8 |

use super::control::Stage;
use super::reshard::{self, Shards};
use super::{Topology, TwoLevel};
use crate::controller::load::sorted;
use crate::controller::{Contents, Controller, Loaded, Tensor, state_format};
use crate::state::{Reader, Writer};
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

const MAGIC: u64 = u64::from_le_bytes(*b"lgreco-t");
const VERSION: u64 = 1;

impl TwoLevel {
    /// This rank's state as bytes, like [`Controller::save`](super::super::Controller::save), for its shards. Every rank saves its
    /// own state.
    ///
    /// # Errors
    /// The errors of [`Controller::save`](super::super::Controller::save).
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        self.save_only(Contents::Everything)
    }

    /// Like [`save`](TwoLevel::save), with a choice of contents.
    ///
    /// # Errors
    /// As [`save`](TwoLevel::save).
    pub fn save_only(&self, contents: Contents) -> Result<Vec<u8>, Error> {
        Ok(placed(&self.topology, &self.controller.save_only(contents)?))
    }

    /// A part of this rank's state, like [`Controller::save_part`](super::super::Controller::save_part).
    ///
    /// # Errors
    /// As [`save`](TwoLevel::save).
    ///
    /// # Panics
    /// If the model has no layer `layer`.
    pub fn save_part(&self, layer: Option<usize>, contents: Contents) -> Result<Vec<u8>, Error> {
        Ok(placed(&self.topology, &self.controller.save_part(layer, contents)?))
    }

    /// Continues from `plan`, the saved state of a rank, with residuals from the states `residuals`, like
    /// [`Controller::load`](super::super::Controller::load). `plan` and `residuals` may be whole states or parts. All ranks must
    /// load between the same two steps. A rank of a run without nodes is treated as a node of one rank.
    ///
    /// | | `plan` | `residuals` |
    /// |---|---|---|
    /// | resuming | this rank's state | this rank's state: the run continues bit for bit |
    /// | other nodes | the state of a rank with the same local rank, or the same state on all peers | the states of all ranks of the nodes that this node takes over; none on a new node |
    /// | other ranks per node | the same state on all peers | as above |
    ///
    /// Each rank finds its shards in the residuals by the layers' names, even if layers were cut at other positions. So the mean
    /// residual stays the same if the states of every former node are given to exactly one node. If shards are now cut at other
    /// positions, each new shard takes the setting of the plan's shard, scaled to the new shard's size. The window then starts
    /// anew, and PowerSGD's factors start anew if their size differs.
    ///
    /// [`Loaded::rank`] is the number of a node, and [`Loaded::world_size`] the number of nodes.
    ///
    /// # Errors
    /// The errors of [`Controller::load`](super::super::Controller::load). [`CoreError::SavedState`] with a local rank when
    /// `residuals` lacks that rank's state of a former node, and this rank needs a part of that state. After an error, nothing has
    /// changed.
    ///
    /// # Complexity
    /// Linear in the bytes of all states.
    pub fn load(&mut self, plan: &[&[u8]], residuals: &[&[u8]]) -> Result<Loaded, Error> {
        let loaded = load(&mut self.controller, &self.layers, &self.topology, plan, residuals)?;
        (self.stage, self.met) = (Stage::Idle, false);
        self.agreed.clear();
        Ok(loaded)
    }
}

/// Whether bytes begin like a state of a [`TwoLevel`], or a part of one.
pub fn is_state(bytes: &[u8]) -> bool {
    bytes.first_chunk() == Some(&MAGIC.to_le_bytes())
}

/// Continues a controller of one level from states of a [`TwoLevel`] or of controllers, like [`TwoLevel::load`] with one rank per
/// node.
///
/// # Errors
/// The errors of [`TwoLevel::load`].
pub fn load_without_nodes(controller: &mut Controller, plan: &[&[u8]], residuals: &[&[u8]]) -> Result<Loaded, Error> {
    let place = Topology { nodes: controller.world, node: controller.rank, per_node: 1, local: 0 };
    let layers = controller.scheduler.tensors.clone();
    load(controller, &layers, &place, plan, residuals)
}

fn load(
    controller: &mut Controller,
    whole: &[Tensor],
    topology: &Topology,
    plan: &[&[u8]],
    residuals: &[&[u8]],
) -> Result<Loaded, Error> {
    let methods = &controller.scheduler.config.search.methods;
    let parts = read(plan)?;
    let plan: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
    let other = |what, found: usize| Error::from(CoreError::SavedState { what, found: found as u64 });
    if let Some(at) = parts.iter().position(|part| part.place != parts[0].place) {
        return Err(other("the plan's parts: they are of several ranks, the first part of another rank", at));
    }
    let (runs, mut plans) = sorted(&plan, methods)?;
    let [run] = &runs[..] else {
        return Err(other("number of parts that belong to no layer (expected 1)", runs.len()));
    };
    let states = other("number of states that the plan's parts belong to (expected 1)", plans.len());
    let (layers, place) = plans.pop().filter(|_| plans.is_empty()).zip(parts.first()).ok_or(states)?;
    let place = placed_or(place.place, &layers);
    let plan = reshard::of_plan(whole, topology, &Shards { place, layers })?;

    let mut of_places: Vec<(Option<Topology>, Vec<&[u8]>)> = vec![];
    for Placed { place, bytes } in read(residuals)? {
        match of_places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, parts)) => parts.push(bytes),
            None => of_places.push((place, vec![bytes])),
        }
    }
    let mut given: Vec<Shards<'_>> = vec![];
    for (place, parts) in of_places {
        let (_, layers) = sorted(&parts, methods)?;
        given.extend(layers.into_iter().map(|layers| Shards { place: placed_or(place, &layers), layers }));
    }
    let taken = reshard::of_residuals(whole, topology, &given)?;
    let taken = taken.iter().map(|state| state.layers()).collect::<Result<Vec<_>, _>>()?;
    let plan = plan.layers()?;
    controller.continue_from(run, &plan, &taken)
}

/// Adds the rank's position to the bytes of a state.
fn placed(topology: &Topology, bytes: &[u8]) -> Vec<u8> {
    let Topology { nodes, node, per_node, local } = *topology;
    let mut to = Writer::new(MAGIC, VERSION);
    to.numbers([nodes, node, per_node, local].map(u64::from));
    to.numbers([bytes.len() as u64]);
    to.bytes(bytes);
    to.sealed()
}

/// A controller's state, and the position of its rank; `None` in a run without nodes.
struct Placed<'a> {
    place: Option<Topology>,
    bytes: &'a [u8],
}

fn read<'a>(states: &[&'a [u8]]) -> Result<Vec<Placed<'a>>, Error> {
    let read_one = |&bytes: &&'a [u8]| {
        let magic = bytes.first_chunk().map(|&bytes| u64::from_le_bytes(bytes));
        if matches!(magic, Some(state_format::MAGIC | state_format::PART_MAGIC)) {
            return Ok(Placed { place: None, bytes });
        }
        let mut reader = Reader::open(bytes, MAGIC, &[VERSION])?;
        let mut word = |what| reader.word(what);
        let (nodes, node) = (word("number of nodes")?, word("node")?);
        let (per_node, local) = (word("ranks per node")?, word("local rank")?);
        let place = Topology { nodes, node, per_node, local };
        CoreError::require_saved(place.check().is_ok(), "a rank's place, ranks per node", per_node.into())?;
        let len = reader.number()?;
        let bytes = reader.bytes(len)?;
        reader.end("saved state bytes after a rank's state")?;
        Ok(Placed { place: Some(place), bytes })
    };
    states.iter().map(read_one).collect()
}

/// The position of a state's rank. A rank of a run without nodes is treated as a node of one rank.
fn placed_or(place: Option<Topology>, layers: &state_format::Layers<'_>) -> Topology {
    let state_format::Owner { rank, world, .. } = layers.owner;
    place.unwrap_or(Topology { nodes: world, node: rank, per_node: 1, local: 0 })
}
