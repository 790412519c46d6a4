//! The linear relaxation: the hull edges that fit the limit, and the multiplier that proves a bound.

use core::cmp::Ordering;

use bytemuck::{Pod, Zeroable};

use super::rows::{Item, Span};
use crate::num::Wide;

/// Multipliers ignore this number of low bits of units, so that 63 of the 120 bits remain.
const COARSE: u32 = 57;

/// An edge of one layer's lower convex hull, from the previous hull point to item `to`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Edge {
    /// Objective that the edge saves.
    pub(super) saved: u64,
    /// Coarse units that the edge costs.
    pub(super) coarse: u64,
    units: Wide,
    pub(super) layer: u32,
    pub(super) to: u32,
}

impl Edge {
    fn new(items: &[Item], layer: usize, from: usize, to: usize) -> Self {
        let units = items[to].units() - items[from].units();
        Edge {
            saved: items[from].objective - items[to].objective,
            coarse: coarse(items[to].units()) - coarse(items[from].units()),
            units: Wide::new(units),
            layer: layer as u32,
            to: to as u32,
        }
    }

    fn units(&self) -> u128 {
        self.units.value()
    }

    /// Saved objective per coarse unit.
    pub(super) fn slope(&self) -> f64 {
        self.saved as f64 / self.coarse as f64
    }

    /// Orders steeper edges first, then earlier layers. The comparison is exact, and two edges of one layer never
    /// compare equal.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let [left, right] = [(self, other), (other, self)].map(|(a, b)| u128::from(a.saved) * u128::from(b.coarse));
        right.cmp(&left).then(self.layer.cmp(&other.layer))
    }
}

/// Converts units to the coarse units of multipliers, rounded down.
pub(super) fn coarse(units: u128) -> u64 {
    (units >> COARSE) as u64
}

/// Converts coarse units to units.
pub(super) fn fine(coarse: u128) -> u128 {
    coarse << COARSE
}

/// Fills `edges` with the hull edges of all layers, and returns their number. Within a layer, slopes strictly fall.
///
/// The hulls are exact in coarse units: no item lies below its layer's hull.
fn hull_edges(items: &[Item], spans: &[Span], edges: &mut [Edge]) -> usize {
    let mut len = 0;
    for (layer, span) in spans.iter().enumerate() {
        let first = len;
        for to in span.range().skip(1) {
            let mut edge = Edge::new(items, layer, span.start(), to);
            while len > first {
                let last = edges[len - 1];
                edge = Edge::new(items, layer, last.to as usize, to);
                if last.order(&edge).is_lt() {
                    break;
                }
                len -= 1;
                edge =
                    Edge::new(items, layer, if len == first { span.start() } else { edges[len - 1].to as usize }, to);
            }
            edges[len] = edge;
            len += 1;
        }
    }
    len
}

/// The solution of the linear relaxation. All edges before `taken` fit within the limit.
pub(super) struct Solution<'w> {
    /// All hull edges. The edges before index `taken` precede all other edges in [`Edge::order`].
    pub(super) edges: &'w mut [Edge],
    pub(super) taken: usize,
}

impl Solution<'_> {
    /// The edge that the limit cuts, if there is one. The relaxation takes a fraction of this edge.
    pub(super) fn cut(&self) -> Option<&Edge> {
        self.edges.get(self.taken)
    }
}

/// Solves the relaxation and sets `plan` to its integral part, one item per layer.
///
/// # Source
/// Dyer (1984) and Zemel (1984): a weighted median of the slopes, at the capacity, separates the taken hull edges from
/// all others.
///
/// # Complexity
/// O(n) expected time for n items.
pub(super) fn solve<'w>(
    items: &[Item],
    spans: &[Span],
    capacity: u128,
    edges: &'w mut [Edge],
    plan: &mut [u32],
) -> Solution<'w> {
    let mut left = capacity;
    for span in spans {
        left = left.saturating_sub(items[span.start()].units());
    }
    let len = hull_edges(items, spans, edges);
    let edges = &mut edges[..len];
    let (mut taken, mut end) = (0, len);
    while taken < end {
        let middle = taken + (end - taken) / 2;
        edges[taken..end].select_nth_unstable_by(middle - taken, Edge::order);
        let units = edges[taken..=middle].iter().fold(0u128, |sum, edge| sum.saturating_add(edge.units()));
        if units <= left {
            left -= units;
            taken = middle + 1;
        } else {
            end = middle;
        }
    }
    take(spans, &edges[..taken], plan);
    Solution { edges, taken }
}

/// Sets each layer's item in `plan` to the end of the layer's last edge in `edges`. A layer without an edge in `edges`
/// gets its first item.
pub(super) fn take(spans: &[Span], edges: &[Edge], plan: &mut [u32]) {
    for (span, item) in spans.iter().zip(plan.iter_mut()) {
        *item = span.start() as u32;
    }
    for edge in edges {
        let item = &mut plan[edge.layer as usize];
        *item = (*item).max(edge.to);
    }
}

/// A Lagrange multiplier: the price of a coarse unit is `price / 2^shift`, in units of the objective. A coarse unit is
/// 2^57 units.
///
/// The arithmetic is exact: [`value`](Multiplier::value) returns an integer in units of `2^-shift` of the objective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiplier {
    price: u64,
    shift: u32,
}

impl Multiplier {
    /// The multiplier with the price 0.
    #[cfg(test)]
    pub(super) const FREE: Multiplier = Multiplier { price: 0, shift: 0 };

    /// The multiplier closest to `slope`, for plans whose objective is at most `largest`.
    pub(super) fn new(slope: f64, largest: u64) -> Self {
        let room = 125 - (64 - largest.leading_zeros());
        if slope >= (1u64 << 62) as f64 {
            return Multiplier { price: 1 << 62, shift: 0 };
        }
        let exponent = (slope.to_bits() >> 52) as i32 - 1023;
        let shift = (61 - exponent).clamp(0, room as i32) as u32;
        Multiplier { price: (slope * f64::from_bits(u64::from(1023 + shift) << 52)) as u64, shift }
    }

    /// This multiplier with its price times `factor`, at most 2^63.
    pub(super) fn scaled(self, factor: f64) -> Self {
        Multiplier { price: (self.price as f64 * factor).min((1u64 << 63) as f64) as u64, ..self }
    }

    /// The Lagrangian value: objective plus price times units.
    #[inline(always)]
    pub(super) fn value(self, objective: u64, units: u128) -> u128 {
        (u128::from(objective) << self.shift) + u128::from(self.price) * u128::from(coarse(units))
    }

    /// The largest Lagrangian value of a plan with this objective within `capacity`. A partial plan can be dropped if
    /// the values of all its completions exceed this ceiling.
    #[inline(always)]
    pub(super) fn ceiling(self, objective: u64, capacity: u128) -> u128 {
        self.value(objective, capacity)
    }

    /// A lower bound of the objective of all plans within `capacity`. `least` is the sum over layers of the least
    /// Lagrangian value.
    pub(super) fn bound(self, least: u128, capacity: u128) -> u64 {
        let excess = least.saturating_sub(self.value(0, capacity));
        u64::try_from(excess.div_ceil(1 << self.shift)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::Multiplier;

    #[test]
    fn multipliers_fit_their_words_at_every_magnitude() {
        for slope in [0.0, 5e-324, 1e-30, 1.0, 3.7e9, 1e18, 1e19, 1e300, f64::INFINITY] {
            for largest in [0, 1, 1 << 20, u64::MAX] {
                let m = Multiplier::new(slope, largest);
                assert!(m.price <= 1 << 62);
                m.value(largest, (1 << 120) + (1 << 60)).checked_mul(2).unwrap();
                if (1e-6..1e18).contains(&slope) && largest <= 1 << 20 {
                    let price = m.price as f64 / f64::from_bits(u64::from(1023 + m.shift) << 52);
                    assert!((price / slope - 1.0).abs() < 1e-9, "{slope} {price}");
                }
            }
        }
    }
}
