//! Float functions that work without std, and sums with 106 bits.
//!
//! Solvers add a plan's errors with 106 bits ([`Sum`]), and compare the sum with the budget. A budget that is computed
//! from a reference plan is rounded up, so the reference plan always meets this budget. `plan::check` repeats the
//! comparison with separate, exact arithmetic.

/// Square root. The result has the same bits with and without std.
pub fn sqrt(x: f64) -> f64 {
    num_traits::Float::sqrt(x)
}

/// Natural logarithm. The last bits of the result may differ with and without std.
pub fn ln(x: f64) -> f64 {
    num_traits::Float::ln(x)
}

/// Exponential function. The last bits of the result may differ with and without std.
pub fn exp(x: f64) -> f64 {
    num_traits::Float::exp(x)
}

/// A sum held in two f64 (106 bits), never below the true sum.
///
/// The result of an addition exceeds the true sum by at most 2^-104 of the sum of magnitudes. An addition is exact if
/// 106 bits hold its result. An addition consists of three TwoSum steps (Knuth), and rounds its only inexact operation
/// up. Addends must be finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Sum {
    high: f64,
    low: f64,
}

fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

impl Sum {
    /// Adds a number.
    #[inline]
    pub fn add(&mut self, x: f64) {
        let (sum, rest) = two_sum(self.high, x);
        let (tail, lost) = two_sum(rest, self.low);
        let (high, low) = two_sum(sum, if lost > 0.0 { tail.next_up() } else { tail });
        (self.high, self.low) = (high, low);
    }

    /// The sum, rounded to nearest.
    pub fn value(self) -> f64 {
        self.high
    }

    /// The smallest f64 that is not below the sum.
    pub fn rounded_up(self) -> f64 {
        if self.low > 0.0 { self.high.next_up() } else { self.high }
    }

    /// Whether the sum is at most `limit`, compared on all 106 bits. True implies that the exact sum is at most `limit`.
    pub fn at_most(self, limit: f64) -> bool {
        self.high < limit || (self.high == limit && self.low <= 0.0)
    }
}

impl FromIterator<f64> for Sum {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut sum = Sum::default();
        values.into_iter().for_each(|x| sum.add(x));
        sum
    }
}

/// The greatest common divisor. `gcd(0, b)` is `b`, and `gcd(a, 0)` is `a`.
pub fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A u128 with the alignment of a u64.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Wide([u64; 2]);

impl Wide {
    /// Stores `value`.
    #[inline(always)]
    pub const fn new(value: u128) -> Wide {
        Wide([value as u64, (value >> 64) as u64])
    }

    /// The stored number.
    #[inline(always)]
    pub const fn value(self) -> u128 {
        (self.0[1] as u128) << 64 | self.0[0] as u128
    }
}

#[cfg(test)]
mod tests {
    use super::Sum;

    #[test]
    fn nothing_is_lost_between_large_terms() {
        let sum: Sum = [1e16, 1.0, 1.0, -1e16].into_iter().collect();
        assert_eq!(sum.value(), 2.0);
        let mut above: Sum = [1e16, 0.25].into_iter().collect();
        assert_eq!(above.value(), 1e16);
        assert!(!above.at_most(1e16) && above.at_most(1e16f64.next_up()));
        assert_eq!(above.rounded_up(), 1e16f64.next_up());
        above.add(-0.25);
        assert!(above.at_most(1e16));
    }

    #[test]
    fn what_106_bits_cannot_hold_rounds_up() {
        let sum: Sum = [1.0, 1e-300].into_iter().collect();
        assert!(!sum.at_most(1.0) && sum.at_most(1f64.next_up()));
        let sum: Sum = [1.0, f64::EPSILON / 4.0, 1e-300].into_iter().collect();
        let mut below = sum;
        below.add(-1.0);
        assert!(!below.at_most(f64::EPSILON / 4.0));
    }
}
