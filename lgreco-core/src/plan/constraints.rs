//! Constraints of a plan besides its limit: groups of layers and fixed options.

use crate::table::Table;
use crate::{Error, Result};
use alloc::{collections::BTreeMap, vec::Vec};

/// Layers that must share an option, and layers whose option is fixed. [`Merged`](super::Merged) makes plans that keep
/// these constraints.
///
/// Layers with tied weights or fused projections form groups. Groups with a common layer are merged into one group.
///
/// ```
/// use lgreco_core::plan::Constraints;
/// let mut constraints = Constraints::default();
/// constraints.group([0, 2]).fix(1, 3);
/// assert!(!constraints.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    groups: Vec<Vec<usize>>,
    fixed: BTreeMap<usize, u32>,
}

impl Constraints {
    /// Requires that these layers share an option.
    pub fn group(&mut self, layers: impl Into<Vec<usize>>) -> &mut Self {
        self.groups.push(layers.into());
        self
    }

    /// Fixes the option of a layer, and replaces an earlier fixed option.
    pub fn fix(&mut self, layer: usize, option: u32) -> &mut Self {
        self.fixed.insert(layer, option);
        self
    }

    /// Whether there are no constraints.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.fixed.is_empty()
    }

    pub(super) fn fixed_option(&self, layer: usize) -> Option<u32> {
        self.fixed.get(&layer).copied()
    }

    /// For each layer, the first layer of its group. A layer without a group is its own first layer.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a layer that the table lacks; [`Error::NoSuchOption`] for a fixed option that its layer
    /// lacks.
    pub(super) fn first_of_group(&self, table: &Table) -> Result<Vec<usize>> {
        let layers = table.layers();
        for layer in self.groups.iter().flatten().chain(self.fixed.keys()) {
            let (what, expected) = ("the index of a grouped or fixed layer", "that of a layer of the table");
            Error::require(*layer < layers, what, *layer as f64, expected)?;
        }
        for (&layer, &option) in &self.fixed {
            let (option, options) = (option as usize, table.layer(layer).len());
            if option >= options {
                return Err(Error::NoSuchOption { layer, option, options });
            }
        }
        let mut parent: Vec<usize> = (0..layers).collect();
        for pair in self.groups.iter().flat_map(|group| group.windows(2)) {
            let (a, b) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
            parent[a.max(b)] = a.min(b);
        }
        Ok((0..layers).map(|layer| root(&mut parent, layer)).collect())
    }
}

/// Finds the smallest layer index of the group in the union-find forest, with path halving.
fn root(parent: &mut [usize], mut layer: usize) -> usize {
    while parent[layer] != layer {
        parent[layer] = parent[parent[layer]];
        layer = parent[layer];
    }
    layer
}
