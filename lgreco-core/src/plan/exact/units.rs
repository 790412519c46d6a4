//! Errors as exact integers: fixed-point units in which the budget fills 120 bits.

/// Bits of the budget in units.
const BITS: i32 = 120;
/// Units that [`Sum`](crate::num::Sum) may lose per addition: it keeps 104 of the budget's 120 bits.
const LOST_PER_LAYER: u128 = 1 << 16;

/// Converts errors to units, rounding down: no plan that meets the budget misses it in units.
///
/// Rounding cuts only bits below 2^-120 of the budget, so sums of ordinary errors are exact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    budget: f64,
    shift: i32,
}

/// `x = mantissa * 2^(exponent - 1075)` for finite `x`, without its sign.
fn parts(x: f64) -> (u64, i32) {
    let (fraction, exponent) = (x.to_bits() & ((1 << 52) - 1), (x.to_bits() >> 52 & 0x7ff) as i32);
    if exponent == 0 { (fraction, 1) } else { (fraction | 1 << 52, exponent) }
}

impl Scale {
    pub(super) fn new(budget: f64) -> Self {
        let (mantissa, exponent) = parts(budget);
        let bits = (64 - mantissa.leading_zeros()) as i32;
        Scale { budget, shift: BITS - bits - exponent }
    }

    /// The error in units; `None` when it alone exceeds the budget.
    pub(super) fn units(self, error: f64) -> Option<u128> {
        if error > self.budget {
            return None;
        }
        let (mantissa, exponent) = parts(error);
        Some(match exponent + self.shift {
            _ if mantissa == 0 => 0,
            left @ 0.. => u128::from(mantissa) << left,
            right @ -63..0 => u128::from(mantissa >> -right),
            _ => 0,
        })
    }

    /// The largest sum of units that a plan of `layers` layers may have without certainly exceeding the budget.
    pub(super) fn capacity(self, layers: usize) -> u128 {
        match self.units(self.budget) {
            Some(budget) if budget > 0 => budget + layers as u128 * LOST_PER_LAYER,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_exact_and_monotone_over_all_magnitudes() {
        for budget in [1.0, 0.1, 5e-324, f64::MIN_POSITIVE, 1e-300, f64::MAX] {
            let scale = Scale::new(budget);
            let whole = scale.units(budget).unwrap();
            assert_eq!(128 - whole.leading_zeros(), 120);
            assert_eq!(scale.units(budget.next_up()).is_none(), budget.next_up() > budget);
            assert_eq!(scale.units(0.0), Some(0));
            assert_eq!(scale.units(-0.0), Some(0));
            if budget > 1e-300 {
                assert_eq!(scale.units(budget / 4.0), Some(whole / 4));
                assert!(scale.units(budget.next_down()).unwrap() < whole);
            }
        }
        assert_eq!(Scale::new(1.0).units(1e-300), Some(0));
        assert_eq!(Scale::new(0.0).units(0.0), Some(0));
        assert_eq!(Scale::new(0.0).capacity(7), 0);
        assert_eq!(Scale::new(0.0).units(5e-324), None);
    }

    #[test]
    fn ten_tenths_exceed_one() {
        let scale = Scale::new(1.0);
        assert!(10 * scale.units(0.1).unwrap() > scale.capacity(10));
        assert!(10 * scale.units(0.1f64.next_down()).unwrap() <= scale.capacity(10));
    }
}
