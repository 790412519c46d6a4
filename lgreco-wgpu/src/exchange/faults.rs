//! What the device has written down of what is wrong.

use super::plan::Plan;

/// Words of faults per layer.
const FAULTS: usize = 7;
/// The one of a lost cut.
const CUT_IS_LOST: usize = 6;

/// What the device has written down of a bucket.
pub(super) struct Faults {
    words: Vec<u32>,
    layers: usize,
}

impl Faults {
    /// Bytes of them: per layer, and per rank.
    pub(super) fn bytes(plan: &Plan, world: usize) -> u64 {
        4 * (FAULTS * plan.members.len() + world) as u64
    }

    pub(super) fn new(plan: &Plan, world: usize, read: &[u8]) -> Faults {
        let words = bytemuck::pod_collect_to_vec(&read[..Faults::bytes(plan, world) as usize]);
        Faults { words, layers: plan.members.len() }
    }

    /// The first element at fault.
    pub(super) fn first(&self, layer: usize, kind: usize) -> Option<usize> {
        let word = self.words[FAULTS * layer + kind];
        (word > 0).then_some(!word as usize)
    }

    /// Whether the cut of a layer under TopK is lost.
    pub(super) fn has_lost_cut(&self) -> bool {
        (0..self.layers).any(|layer| self.first(layer, CUT_IS_LOST).is_some())
    }

    /// Whether no encoder wrote the layer's payload of this rank, nor, it may be, the payloads of layers behind.
    pub(super) fn is_of_peer(&self, layer: usize, rank: usize) -> bool {
        self.words[FAULTS * self.layers + rank] == !(layer as u32)
    }
}
