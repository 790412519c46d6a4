//! How the layers are divided among the ranks of a node.
//!
//! A layer with at least as many rows as ranks is cut between rows, so that its shards are matrices for PowerSGD and TopK. Any
//! other layer is cut between elements. Its shards are matrices of one row, or vectors if the layer is a vector. If the division
//! leaves a remainder, the first ranks get one row or element more. A layer with fewer elements than ranks has empty shards.

use super::Topology;
use crate::compress::Setting;
use crate::controller::{Config, Policy, Tensor};
use crate::exchange::Route;
use crate::gradient::Shape;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The cuts of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    /// Number of elements in a unit. Cuts are only between units.
    unit: usize,
    units: usize,
    ranks: usize,
}

impl Division {
    pub(super) fn new(shape: Shape, per_node: u32) -> Division {
        let ranks = per_node as usize;
        match shape.rows() >= ranks {
            true => Division { unit: shape.cols(), units: shape.rows(), ranks },
            false => Division { unit: 1, units: shape.elements(), ranks },
        }
    }

    fn start(&self, local: u32) -> usize {
        let local = local as usize;
        self.units / self.ranks * local + local.min(self.units % self.ranks)
    }

    /// The units of a local rank.
    fn units(&self, local: u32) -> Range<usize> {
        self.start(local)..self.start(local + 1)
    }

    /// The elements of a local rank's shard.
    pub(super) fn range(&self, local: u32) -> Range<usize> {
        let units = self.units(local);
        units.start * self.unit..units.end * self.unit
    }

    /// The local ranks whose shards overlap with these elements.
    pub(super) fn holders(&self, elements: &Range<usize>) -> Range<u32> {
        if elements.is_empty() {
            return 0..0;
        }
        let (each, longer) = (self.units / self.ranks, self.units % self.ranks);
        let holder = |element: usize| {
            let unit = element / self.unit;
            match unit < (each + 1) * longer {
                true => unit / (each + 1),
                false => (unit - longer) / each,
            }
        };
        holder(elements.start) as u32..holder(elements.end - 1) as u32 + 1
    }

    fn by_rows(&self, shape: Shape) -> bool {
        shape.rows() >= self.ranks
    }
}

/// A local rank's shard of a layer, as a tensor with the layer's name.
pub(super) fn shard(whole: &Tensor, per_node: u32, local: u32) -> Result<Tensor, Error> {
    let division = Division::new(whole.shape(), per_node);
    let mut dims = whole.dims().to_vec();
    if division.by_rows(whole.shape()) {
        match dims.first_mut() {
            Some(rows) => *rows = division.units(local).len(),
            None => dims = vec![],
        }
    } else {
        let len = division.range(local).len();
        dims = if dims.len() > 1 { vec![1, len] } else { vec![len] };
    }
    Tensor::new(whole.name(), &dims, whole.dtype())
}

/// This rank's shards of all layers.
pub(super) fn shards(whole: &[Tensor], topology: &Topology) -> Result<Vec<Tensor>, Error> {
    whole.iter().map(|tensor| shard(tensor, topology.per_node, topology.local)).collect()
}

/// The configuration of the controller of this rank's shards.
///
/// # Errors
/// [`CoreError::Parameter`] for [`Route::Sharded`], because each rank would get the mean of a part only.
pub(super) fn config_of_shards(config: &Config, whole: &[Tensor], topology: &Topology) -> Result<Config, Error> {
    let (what, expected) = ("code of the route between nodes", "all-gather (0) or scatter-reduce (1)");
    CoreError::require(config.route != Route::Sharded, what, 2.0, expected)?;
    let mut config = config.clone();
    config.search.min_elements = config.search.min_elements.div_ceil(topology.per_node as usize);
    match &mut config.policy {
        Policy::Fixed(settings) => {
            for (setting, tensor) in settings.iter_mut().zip(whole) {
                *setting = setting_of_shard(*setting, tensor.shape(), topology);
            }
        }
        Policy::Legacy(legacy) => {
            // Two bounds may become equal by the division, but bounds must ascend strictly.
            let mut least = 0;
            for size in &mut legacy.sizes {
                *size = size.div_ceil(topology.per_node.into()).max(least);
                // No bound follows u64::MAX, so a bound that does is left unchanged, and the controller refuses it.
                least = size.saturating_add(1);
            }
        }
        _ => {}
    }
    Ok(config)
}

/// The setting of this rank's shard if the whole layer has `setting`.
pub(super) fn setting_of_shard(setting: Setting, whole: Shape, topology: &Topology) -> Setting {
    let range = Division::new(whole, topology.per_node).range(topology.local);
    if range.is_empty() { Setting::Dense } else { setting.of_piece(range, whole.elements()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::Dtype;

    fn dims(whole: &[usize], per_node: u32) -> Vec<Vec<usize>> {
        let whole = Tensor::new("layer", whole, Dtype::F32).unwrap();
        (0..per_node).map(|local| shard(&whole, per_node, local).unwrap().dims().to_vec()).collect()
    }

    #[test]
    fn shards_are_rows_or_elements() {
        assert_eq!(dims(&[5, 3, 2], 2), [[3, 3, 2], [2, 3, 2]]);
        assert_eq!(dims(&[3, 5], 4), [[1, 4], [1, 4], [1, 4], [1, 3]]);
        assert_eq!(dims(&[7], 3), [[3], [2], [2]]);
        assert_eq!(dims(&[2], 3), [[1], [1], [0]]);
        assert_eq!(dims(&[], 2), [[1], [0]]);
        assert_eq!(dims(&[0, 4], 2), [[1, 0], [1, 0]]);
        assert_eq!(dims(&[4, 0], 2), [[2, 0], [2, 0]]);
    }

    #[test]
    fn the_largest_bound_of_legacy_is_allowed() {
        use crate::controller::Legacy;
        use crate::search::{Method, Search};
        let topology = Topology { nodes: 2, node: 0, per_node: 1, local: 0 };
        let mut config = Config::new(Search::new(Method::TopK));
        for sizes in [vec![10, u64::MAX], vec![u64::MAX; 2]] {
            config.policy = Policy::Legacy(Legacy { sizes: sizes.clone(), levels: vec![vec![0.1; 3]], steps: 1 });
            let Policy::Legacy(found) = config_of_shards(&config, &[], &topology).unwrap().policy else { panic!() };
            assert_eq!(found.sizes, sizes);
        }
    }

    #[test]
    fn shards_cover_a_layer_once() {
        for rows in 0..9 {
            for cols in 0..4 {
                for ranks in 1..6 {
                    let shape = Shape::new(rows, cols).unwrap();
                    let division = Division::new(shape, ranks);
                    let ends = (0..ranks).scan(0, |end, local| {
                        let range = division.range(local);
                        let follows = range.start == *end;
                        *end = range.end;
                        Some((follows, range.end))
                    });
                    let ends: Vec<_> = ends.collect();
                    assert!(ends.iter().all(|&(follows, _)| follows), "{rows} × {cols} on {ranks}");
                    assert_eq!(ends.last().map(|&(_, end)| end), Some(shape.elements()));
                    for (first, end) in (0..shape.elements()).flat_map(|i| (i..=shape.elements()).map(move |j| (i, j)))
                    {
                        let overlaps = |local: &u32| {
                            let range = division.range(*local);
                            range.start.max(first) < range.end.min(end)
                        };
                        let expected: Vec<u32> = (0..ranks).filter(overlaps).collect();
                        assert_eq!(division.holders(&(first..end)).collect::<Vec<_>>(), expected);
                    }
                }
            }
        }
    }
}
