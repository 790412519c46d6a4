//! Errors as exact integers: fixed-point units in which the budget fills 120 bits.

/// Bits of the budget in units.
const BITS: i32 = 120;
/// Which way bits below 2^-120 of the budget go; sums of ordinary errors have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// Every plan within the budget is within it in units: right for bounds.
    Down,
    /// Every plan within the budget in units is within it: right for plans.
    Up,
}

/// Converts errors to units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    budget: f64,
    shift: i32,
    rounding: Rounding,
}

/// `x = mantissa * 2^(exponent - 1075)` for finite `x`, without its sign.
fn parts(x: f64) -> (u64, i32) {
    let (fraction, exponent) = (x.to_bits() & ((1 << 52) - 1), (x.to_bits() >> 52 & 0x7ff) as i32);
    if exponent == 0 { (fraction, 1) } else { (fraction | 1 << 52, exponent) }
}

impl Scale {
    pub(super) fn new(budget: f64, rounding: Rounding) -> Self {
        let (mantissa, exponent) = parts(budget);
        let bits = (64 - mantissa.leading_zeros()) as i32;
        Scale { budget, shift: BITS - bits - exponent, rounding }
    }

    /// The error in units; `None` when it alone exceeds the budget.
    pub(super) fn units(self, error: f64) -> Option<u128> {
        if error > self.budget {
            return None;
        }
        let (mantissa, exponent) = parts(error);
        let up = u64::from(self.rounding == Rounding::Up);
        Some(match exponent + self.shift {
            _ if mantissa == 0 => 0,
            left @ 0.. => u128::from(mantissa) << left,
            right @ -63..0 => u128::from((mantissa + up * ((1 << -right) - 1)) >> -right),
            _ => u128::from(up),
        })
    }

    /// The budget in units.
    pub(super) fn capacity(self) -> u128 {
        self.units(self.budget).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_exact_and_monotone_over_all_magnitudes() {
        for budget in [1.0, 0.1, 5e-324, f64::MIN_POSITIVE, 1e-300, f64::MAX] {
            let scale = Scale::new(budget, Rounding::Down);
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
        for (rounding, tiny, odd) in [(Rounding::Down, 0, 1), (Rounding::Up, 1, 2)] {
            let scale = Scale::new(1.0, rounding);
            assert_eq!(scale.units(1e-300), Some(tiny));
            assert_eq!(scale.units(f64::from_bits((1023 - 119) << 52)), Some(1));
            assert_eq!(scale.units(1.5 * f64::from_bits((1023 - 119) << 52)), Some(odd));
        }
        assert_eq!(Scale::new(0.0, Rounding::Down).units(0.0), Some(0));
        assert_eq!(Scale::new(0.0, Rounding::Down).capacity(), 0);
        assert_eq!(Scale::new(0.0, Rounding::Down).units(5e-324), None);
    }

    #[test]
    fn ten_tenths_exceed_one() {
        let scale = Scale::new(1.0, Rounding::Down);
        assert!(10 * scale.units(0.1).unwrap() > scale.capacity());
        assert!(10 * scale.units(0.1f64.next_down()).unwrap() <= scale.capacity());
    }
}
