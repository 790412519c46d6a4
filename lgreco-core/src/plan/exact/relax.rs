//! The linear relaxation: which hull edges the budget buys, and the multiplier that proves a bound.

use bytemuck::{Pod, Zeroable};

use super::rows::{Item, Span};

/// Units are cut to 63 bits where they meet a multiplier.
const COARSE: u32 = 57;

/// A step along one layer's lower convex hull: from the hull point before to item `to`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Edge {
    /// Bits saved per coarse unit of error.
    slope: f64,
    units: [u64; 2],
    layer: u32,
    to: u32,
}

impl Edge {
    fn units(&self) -> u128 {
        u128::from(self.units[1]) << 64 | u128::from(self.units[0])
    }
}

/// Fills `edges` with all layers' hull edges, each layer's by strictly falling slope; returns their number.
fn hull_edges(items: &[Item], spans: &[Span], edges: &mut [Edge]) -> usize {
    let mut len = 0;
    for (layer, span) in spans.iter().enumerate() {
        let first = len;
        for to in span.range().skip(1) {
            loop {
                let from = if len == first { span.start() } else { edges[len - 1].to as usize };
                let units = items[to].units() - items[from].units();
                let coarse = (items[to].units() >> COARSE) as i64 - (items[from].units() >> COARSE) as i64;
                let slope = (items[from].size - items[to].size) as f64 / coarse as f64;
                if len > first && edges[len - 1].slope <= slope {
                    len -= 1;
                    continue;
                }
                edges[len] =
                    Edge { slope, units: [units as u64, (units >> 64) as u64], layer: layer as u32, to: to as u32 };
                len += 1;
                break;
            }
        }
    }
    len
}

/// Solves the relaxation: sets `plan` to its integral part, one item per layer, and returns the edge that the budget
/// cuts, if any: its slope, layer and item.
///
/// # Source
/// Dyer (1984) and Zemel (1984): the hull edges taken are those above the weighted median of slopes at the capacity.
///
/// # Complexity
/// O(n) expected time for n items.
pub(super) fn integral_part(
    items: &[Item],
    spans: &[Span],
    capacity: u128,
    edges: &mut [Edge],
    plan: &mut [u32],
) -> Option<(f64, usize, u32)> {
    let mut left = capacity;
    for (span, item) in spans.iter().zip(plan.iter_mut()) {
        *item = span.start() as u32;
        left = left.saturating_sub(items[span.start()].units());
    }
    let len = hull_edges(items, spans, edges);
    let edges = &mut edges[..len];
    let (mut taken, mut end) = (0, len);
    while taken < end {
        let middle = taken + (end - taken) / 2;
        edges[taken..end]
            .select_nth_unstable_by(middle - taken, |a, b| b.slope.total_cmp(&a.slope).then(a.layer.cmp(&b.layer)));
        let units = edges[taken..=middle].iter().fold(0u128, |sum, edge| sum.saturating_add(edge.units()));
        if units <= left {
            left -= units;
            taken = middle + 1;
        } else {
            end = middle;
        }
    }
    for edge in &edges[..taken] {
        let item = &mut plan[edge.layer as usize];
        *item = (*item).max(edge.to);
    }
    edges.get(taken).map(|edge| (edge.slope, edge.layer as usize, edge.to))
}

/// A Lagrange multiplier: `price / 2^shift` bits per coarse unit of error.
///
/// All arithmetic on it is exact: `value` is an integer that counts `2^-shift` bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiplier {
    price: u64,
    shift: u32,
}

impl Multiplier {
    /// Errors cost nothing.
    #[cfg(test)]
    pub(super) const FREE: Multiplier = Multiplier { price: 0, shift: 0 };

    /// The multiplier nearest to `slope` for plans of at most `largest` bits.
    pub(super) fn new(slope: f64, largest: u64) -> Self {
        let room = 125 - (64 - largest.leading_zeros());
        if slope >= (1u64 << 62) as f64 {
            return Multiplier { price: 1 << 62, shift: 0 };
        }
        let exponent = (slope.to_bits() >> 52) as i32 - 1023;
        let shift = (61 - exponent).clamp(0, room as i32) as u32;
        Multiplier { price: (slope * f64::from_bits(u64::from(1023 + shift) << 52)) as u64, shift }
    }

    /// This multiplier with its price times `factor`, as far as the word holds it.
    pub(super) fn scaled(self, factor: f64) -> Self {
        Multiplier { price: (self.price as f64 * factor).min((1u64 << 63) as f64) as u64, ..self }
    }

    /// Size plus priced error.
    #[inline(always)]
    pub(super) fn value(self, size: u64, units: u128) -> u128 {
        (u128::from(size) << self.shift) + u128::from(self.price) * u128::from((units >> COARSE) as u64)
    }

    /// The largest value a plan of `size` bits within `capacity` can have: one whose value must exceed this is larger.
    #[inline(always)]
    pub(super) fn ceiling(self, size: u64, capacity: u128) -> u128 {
        self.value(size, capacity)
    }

    /// The fewest bits a plan within `capacity` can have when the least values of its layers sum to `least`.
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
