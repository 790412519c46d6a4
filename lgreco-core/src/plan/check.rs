//! The independent verifier of plans. The verifier shares no code with the solvers.
//!
//! Its comparisons are exact. Every finite f64 is an integer multiple of 2^-1074. The verifier represents errors,
//! budgets and bounds as 2176-bit multiples of this unit, and adds and compares these integers. A plan passes only if
//! the true sum of its errors is within the budget. The solvers' 106-bit sums are never below the true sum. So every
//! plan that a solver accepts as within its budget also passes the verifier.

use super::{Proof, Summary};
use crate::{Error, Result, table::Table};

/// Verifies a plan: one option for every layer, the stated size and error, and the stated budget or size limit.
///
/// The stated error may differ from the exact sum in its last bit. The size must be exact. The lower bound must not
/// exceed the quantity that it bounds.
///
/// ```
/// use lgreco_core::{Error, plan::{Proof, Summary, check}, table::{Choice, Table}};
/// let choices = [Choice { size: 8, error: 0.5 }, Choice { size: 4, error: 1.5 }];
/// let table = Table::new(&choices, &[2])?;
/// let within = |budget| Summary { size: 4, error: 1.5, proof: Proof::Size { lower_bound: 4, budget } };
/// assert!(check::verify(&table, &[1], &within(1.5)).is_ok());
/// assert_eq!(check::verify(&table, &[1], &within(1.25)), Err(Error::OverBudget { error: 1.5, budget: 1.25 }));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] unless there is one choice per layer. [`Error::NoSuchOption`] for a choice that its layer lacks.
/// [`Error::Budget`] when the budget is NaN, infinite or negative. [`Error::PlanMismatch`] when size, lower bound or error
/// are wrong. [`Error::OverBudget`] or [`Error::OverSize`] when the plan exceeds its limit.
///
/// # Complexity
/// O(layers), without an allocator.
pub fn verify(table: &Table, choices: &[u32], summary: &Summary) -> Result<()> {
    let Summary { size: stated, error, proof } = *summary;
    if choices.len() != table.layers() {
        return Err(Error::Length { what: "choices of the plan", expected: table.layers(), found: choices.len() });
    }
    if let Proof::Size { budget, .. } = proof
        && !(budget.is_finite() && budget >= 0.0)
    {
        return Err(Error::Budget { value: budget });
    }
    let (mut size, mut sum) = (0u128, ExactSum::default());
    for (layer, &option) in choices.iter().enumerate() {
        let options = table.layer(layer);
        let Some(choice) = options.get(option as usize) else {
            return Err(Error::NoSuchOption { layer, option: option as usize, options: options.len() });
        };
        size += u128::from(choice.size);
        sum.add(choice.error);
    }
    if size != u128::from(stated) {
        return Err(Error::PlanMismatch { what: "size", stated: stated as f64, found: size as f64 });
    }
    match proof {
        Proof::Size { lower_bound, .. } if stated < lower_bound => {
            return Err(Error::PlanMismatch { what: "lower bound", stated: lower_bound as f64, found: stated as f64 });
        }
        Proof::Error { size_limit, .. } if stated > size_limit => {
            return Err(Error::OverSize { size: stated, limit: size_limit });
        }
        _ => {}
    }
    let near = error.is_finite() && error >= 0.0 && {
        let below = error.next_down().max(0.0);
        // `f64::MAX` has no finite successor, so its step up is the distance to its predecessor.
        let step = if error < f64::MAX { error.next_up() - error } else { error - below };
        let mut above = ExactSum::from(error);
        above.add(step);
        ExactSum::from(below) <= sum && sum <= above
    };
    if !near {
        return Err(Error::PlanMismatch { what: "error", stated: error, found: sum.approximate() });
    }
    match proof {
        Proof::Size { budget, .. } if sum > ExactSum::from(budget) => {
            Err(Error::OverBudget { error: sum.approximate(), budget })
        }
        Proof::Error { lower_bound, .. }
            if !(0.0..f64::INFINITY).contains(&lower_bound) || sum < lower_bound.into() =>
        {
            Err(Error::PlanMismatch { what: "lower bound", stated: lower_bound, found: sum.approximate() })
        }
        _ => Ok(()),
    }
}

const WORDS: usize = 34;

/// An exact sum of finite f64 of at least 0, as an integer in units of 2^-1074.
///
/// The most significant word is first, so that the derived order is the numeric order. 2176 bits hold 2^78 addends of any
/// magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ExactSum([u64; WORDS]);

impl Default for ExactSum {
    fn default() -> Self {
        ExactSum([0; WORDS])
    }
}

impl From<f64> for ExactSum {
    fn from(x: f64) -> Self {
        let mut sum = ExactSum::default();
        sum.add(x);
        sum
    }
}

impl ExactSum {
    fn add(&mut self, x: f64) {
        debug_assert!(x.is_finite() && x >= 0.0);
        let bits = x.abs().to_bits();
        let (exponent, fraction) = (bits >> 52, bits & ((1 << 52) - 1));
        let (mantissa, shift) = if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent - 1) };
        let mut word = WORDS - 1 - (shift / 64) as usize;
        let wide = u128::from(mantissa) << (shift % 64);
        let (low, mut carry) = self.0[word].overflowing_add(wide as u64);
        self.0[word] = low;
        let mut rest = (wide >> 64) as u64;
        while carry || rest > 0 {
            word -= 1;
            let (sum, first) = self.0[word].overflowing_add(rest);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            (self.0[word], carry, rest) = (sum, first | second, 0);
        }
    }

    /// The sum as an f64, for messages.
    fn approximate(&self) -> f64 {
        // Multiplies the value by 2^64 in two steps, and adds the next word.
        let fold = |value: f64, &word: &u64| value * 4_294_967_296.0 * 4_294_967_296.0 + word as f64;
        let lead = self.0.iter().position(|&word| word > 0).unwrap_or(WORDS - 1);
        let kept = (lead + 3).min(WORDS);
        let value = self.0[lead..kept].iter().fold(0.0, fold);
        // Multiplies by 2^(64·dropped words − 1074), in several steps. Each factor is between 2^-512 and 2^512, so that
        // no intermediate value overflows or underflows.
        let mut exponent = 64 * (WORDS - kept) as i32 - 1074;
        let mut value = value;
        while exponent != 0 {
            let step = exponent.clamp(-512, 512);
            value *= f64::from_bits(((1023 + step) as u64) << 52);
            exponent -= step;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{num::Sum, table::Choice};
    use proptest::prelude::*;

    fn exact(values: &[f64]) -> ExactSum {
        values.iter().fold(ExactSum::default(), |mut sum, &x| {
            sum.add(x);
            sum
        })
    }

    #[test]
    fn sums_across_the_whole_range_are_exact() {
        let tiny = f64::from_bits(1);
        assert!(exact(&[f64::MAX, tiny]) > f64::MAX.into());
        assert!(exact(&[1.0, tiny]) > 1.0.into());
        assert!(exact(&[1.0, tiny]) < 1f64.next_up().into());
        assert_eq!(exact(&[0.5, 0.25, 0.25]), 1.0.into());
        assert_eq!(exact(&[0.1; 3]).cmp(&0.3.into()), core::cmp::Ordering::Greater); // 0.1 is above a tenth
        assert_eq!(exact(&[f64::MAX, f64::MAX]).approximate(), f64::INFINITY);
        for x in [0.0, tiny, 1.0, 0.3, 1e300, f64::MAX, f64::MIN_POSITIVE, 12345.678e-200] {
            assert_eq!(ExactSum::from(x).approximate(), x);
        }
    }

    #[test]
    fn every_false_statement_is_found() {
        let choices = [(8, 0.5), (4, 1.5), (2, 0.25)].map(|(size, error)| Choice { size, error });
        let table = Table::new(&choices, &[2, 3]).unwrap();
        let right = Summary { size: 6, error: 1.75, proof: Proof::Size { lower_bound: 6, budget: 1.75 } };
        assert_eq!(verify(&table, &[1, 0], &right), Ok(()));
        let wrong = |summary: Summary| verify(&table, &[1, 0], &summary).unwrap_err().code();
        assert_eq!(wrong(Summary { size: 7, ..right }), 28);
        let proof = |lower_bound, budget| Summary { proof: Proof::Size { lower_bound, budget }, ..right };
        assert_eq!(wrong(proof(7, 1.75)), 28);
        assert_eq!(wrong(Summary { error: 1.75f64.next_up().next_up(), ..right }), 28);
        assert_eq!(wrong(Summary { error: f64::NAN, ..right }), 28);
        assert_eq!(wrong(proof(6, 1.75f64.next_down())), 27);
        assert_eq!(wrong(proof(6, f64::NAN)), 25);
        let proof = |lower_bound, size_limit| Summary { proof: Proof::Error { lower_bound, size_limit }, ..right };
        assert_eq!(verify(&table, &[1, 0], &proof(1.75, 6)), Ok(()));
        assert_eq!(verify(&table, &[1, 0], &proof(1.75, 5)), Err(Error::OverSize { size: 6, limit: 5 }));
        for lower_bound in [1.75f64.next_up(), f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(wrong(proof(lower_bound, 6)), 28, "{lower_bound}");
        }
        assert_eq!(verify(&table, &[1], &right).unwrap_err().code(), 1);
        let no_such = Error::NoSuchOption { layer: 1, option: 1, options: 1 };
        assert_eq!(verify(&table, &[1, 1], &right), Err(no_such));
    }

    /// `verify` reports a sum beyond the largest f64 as [`Error::OverBudget`], not as [`Error::PlanMismatch`].
    #[test]
    fn sums_beyond_the_largest_number_are_over_the_budget() {
        let choices = [f64::MAX, 1e290, 5e291].map(|error| Choice { size: 1, error });
        let table = Table::new(&choices, &[1, 3]).unwrap();
        let proof = Proof::Size { lower_bound: 2, budget: f64::MAX };
        let summary = Summary { size: 2, error: f64::MAX, proof };
        for option in 0..2 {
            let found = verify(&table, &[0, option], &summary);
            assert_eq!(found, Err(Error::OverBudget { error: f64::MAX, budget: f64::MAX }));
        }
    }

    proptest! {
        /// If the exact sum exceeds a budget, the solvers' sum also exceeds this budget. The two sums differ only in
        /// the last of 106 bits.
        #[test]
        fn solver_sums_are_never_below(
            values in prop::collection::vec((0u64..1 << 53, -80i32..80), 1..20), nudge in -3i32..3,
        ) {
            let values: std::vec::Vec<f64> = values.iter().map(|&(m, e)| m as f64 * 2f64.powi(e)).collect();
            let (sum, exact) = (values.iter().copied().collect::<Sum>(), exact(&values));
            let mut limit = sum.value();
            for _ in 0..nudge.abs() {
                limit = if nudge > 0 { limit.next_up() } else { limit.next_down().max(0.0) };
            }
            let accepted = sum.at_most(limit);
            prop_assert!(!accepted || exact <= limit.into());
            prop_assert!(exact <= sum.rounded_up().into());
            if nudge != 0 {
                prop_assert_eq!(accepted, exact <= limit.into());
            }
            prop_assert!((sum.value() - exact.approximate()).abs() <= sum.value() * 1e-15);
        }
    }
}
