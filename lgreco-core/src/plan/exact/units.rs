//! Converts the limited quantity to exact integers: fixed-point units in which the limit has 120 bits.

use crate::plan::{Limit, goal::parts};
use crate::table::Choice;

/// The limit is converted to an integer of this many bits.
const BITS: i32 = 120;

/// How bits below 2^-120 of the budget are rounded. Errors of ordinary magnitude have no such bits, and sizes never
/// have such bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// Every plan within the budget is also within the budget in units. Lower bounds need this property.
    Down,
    /// Every plan within the budget in units is also within the budget itself. Feasible plans need this property.
    Up,
}

/// Converts errors to units, or sizes if the size is limited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    limit: Limit,
    shift: i32,
    rounding: Rounding,
}

impl Scale {
    pub(super) fn new(limit: Limit, rounding: Rounding) -> Self {
        let (mantissa, exponent) = match limit {
            Limit::Error(budget) => parts(budget),
            Limit::Size(size) => (size, 0),
        };
        let bits = (64 - mantissa.leading_zeros()) as i32;
        Scale { limit, shift: BITS - bits - exponent, rounding }
    }

    /// Units of the limit that an option needs. `None` if the option alone exceeds the limit.
    pub(super) fn units(self, choice: &Choice) -> Option<u128> {
        match self.limit {
            Limit::Error(budget) => (choice.error <= budget).then(|| self.error(choice.error)),
            Limit::Size(limit) => (choice.size <= limit).then(|| u128::from(choice.size) << self.shift),
        }
    }

    fn error(self, error: f64) -> u128 {
        let (mantissa, exponent) = parts(error);
        let up = u64::from(self.rounding == Rounding::Up);
        match exponent + self.shift {
            _ if mantissa == 0 => 0,
            left @ 0.. => u128::from(mantissa) << left,
            right @ -63..0 => u128::from((mantissa + up * ((1 << -right) - 1)) >> -right),
            _ => u128::from(up),
        }
    }

    /// The limit in units.
    pub(super) fn capacity(self) -> u128 {
        match self.limit {
            Limit::Error(budget) => self.error(budget),
            Limit::Size(limit) => u128::from(limit) << self.shift,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(scale: Scale, error: f64) -> Option<u128> {
        scale.units(&Choice { size: 0, error })
    }

    #[test]
    fn units_are_exact_and_monotone_over_all_magnitudes() {
        for budget in [1.0, 0.1, 5e-324, f64::MIN_POSITIVE, 1e-300, f64::MAX] {
            let scale = Scale::new(Limit::Error(budget), Rounding::Down);
            let whole = units(scale, budget).unwrap();
            assert_eq!(128 - whole.leading_zeros(), 120);
            assert_eq!(units(scale, budget.next_up()).is_none(), budget.next_up() > budget);
            assert_eq!(units(scale, 0.0), Some(0));
            assert_eq!(units(scale, -0.0), Some(0));
            if budget > 1e-300 {
                assert_eq!(units(scale, budget / 4.0), Some(whole / 4));
                assert!(units(scale, budget.next_down()).unwrap() < whole);
            }
        }
        for (rounding, tiny, odd) in [(Rounding::Down, 0, 1), (Rounding::Up, 1, 2)] {
            let scale = Scale::new(Limit::Error(1.0), rounding);
            assert_eq!(units(scale, 1e-300), Some(tiny));
            assert_eq!(units(scale, f64::from_bits((1023 - 119) << 52)), Some(1));
            assert_eq!(units(scale, 1.5 * f64::from_bits((1023 - 119) << 52)), Some(odd));
        }
        assert_eq!(units(Scale::new(Limit::Error(0.0), Rounding::Down), 0.0), Some(0));
        assert_eq!(Scale::new(Limit::Error(0.0), Rounding::Down).capacity(), 0);
        assert_eq!(units(Scale::new(Limit::Error(0.0), Rounding::Down), 5e-324), None);
    }

    #[test]
    fn ten_tenths_exceed_one() {
        let scale = Scale::new(Limit::Error(1.0), Rounding::Down);
        assert!(10 * units(scale, 0.1).unwrap() > scale.capacity());
        assert!(10 * units(scale, 0.1f64.next_down()).unwrap() <= scale.capacity());
    }

    #[test]
    fn sizes_are_exact_up_to_the_last_bit() {
        for limit in [1, 3, 1 << 40, u64::MAX - 1, u64::MAX] {
            let scale = Scale::new(Limit::Size(limit), Rounding::Up);
            let units = |size| scale.units(&Choice { size, error: 1.0 });
            assert_eq!(128 - scale.capacity().leading_zeros(), 120);
            assert_eq!((units(0), units(limit)), (Some(0), Some(scale.capacity())));
            assert_eq!(units(1).map(|unit| unit * u128::from(limit)), Some(scale.capacity()));
            assert_eq!(limit.checked_add(1).and_then(units), None);
        }
        let none = Scale::new(Limit::Size(0), Rounding::Down);
        assert_eq!((none.capacity(), none.units(&Choice { size: 0, error: 1.0 })), (0, Some(0)));
        assert_eq!(none.units(&Choice { size: 1, error: 0.0 }), None);
    }
}
