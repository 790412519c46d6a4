//! Errors in cells of the grid, and the options worth keeping there.

use crate::table::Choice;

/// One option on the grid.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Kept {
    /// In units of the sizes' greatest common divisor.
    pub size: u64,
    /// Cells beyond those of the layer's cheapest option.
    pub cells: u32,
    /// Index among the layer's options.
    pub option: u32,
}

/// Mantissa and exponent: `x = mantissa · 2^exponent`, for finite `x >= 0`.
fn split(x: f64) -> (u64, u64) {
    let (exponent, fraction) = (x.to_bits() >> 52, x.to_bits() & ((1 << 52) - 1));
    if exponent == 0 { (fraction, 1) } else { (fraction | 1 << 52, exponent) }
}

/// The smallest `k` with `error <= k · budget / levels`, in exact arithmetic; needs `0 <= error <= budget`.
pub(in crate::plan) fn cells(error: f64, budget: f64, levels: u32) -> u32 {
    if error == 0.0 {
        return 0;
    }
    let ((error_mantissa, error_exponent), (budget_mantissa, budget_exponent)) = (split(error), split(budget));
    let shift = budget_exponent - error_exponent;
    let needed = u128::from(error_mantissa) * u128::from(levels);
    // Mantissa times levels stays below 2^85; one cell of a budget 2^43 times larger is worth more than that.
    let covers = |k: u32| k > 0 && (shift >= 43 || (u128::from(budget_mantissa) * u128::from(k)) << shift >= needed);
    let guess = num_traits::Float::ceil(error / budget * f64::from(levels));
    let mut k = (guess as u32).clamp(1, levels);
    while !covers(k) {
        k += 1;
    }
    while covers(k - 1) {
        k -= 1;
    }
    k
}

/// Writes the options of one layer that are within the budget and not dominated into `kept`, in order of index, and
/// returns their number and the cells of the cheapest; if none is within the budget, no option and one cell too many.
pub(super) fn keep_layer(choices: &[Choice], budget: f64, levels: u32, unit: u64, kept: &mut [Kept]) -> (usize, u32) {
    let mut count = 0;
    for (option, choice) in choices.iter().enumerate() {
        if choice.error <= budget {
            let cells = cells(choice.error, budget, levels);
            kept[count] = Kept { size: choice.size / unit, cells, option: option as u32 };
            count += 1;
        }
    }
    let kept = &mut kept[..count];
    kept.sort_unstable_by_key(|option| (option.cells, option.size, option.option));
    let Some(&Kept { cells: cheapest, .. }) = kept.first() else { return (0, levels) };
    let (mut last, mut smallest) = (0, u64::MAX);
    for at in 0..count {
        if at == 0 || kept[at].size < smallest {
            smallest = kept[at].size;
            kept[last] = Kept { cells: kept[at].cells - cheapest, ..kept[at] };
            last += 1;
        }
    }
    kept[..last].sort_unstable_by_key(|option| option.option);
    (last, cheapest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn choice(size: u64, error: f64) -> Choice {
        Choice { size, error }
    }

    #[test]
    fn cells_on_the_grid_points_are_not_rounded_further() {
        assert_eq!(cells(1.0, 10.0, 10_000), 1000);
        assert_eq!(cells(1f64.next_up(), 10.0, 10_000), 1001);
        assert_eq!(cells(1f64.next_down(), 10.0, 10_000), 1000);
        assert_eq!(cells(10.0, 10.0, u32::MAX), u32::MAX);
        let tiny = f64::from_bits(1);
        assert_eq!((cells(tiny, tiny, 7), cells(tiny, f64::MAX, 7), cells(0.0, 0.0, 7)), (7, 1, 0));
        assert_eq!(cells(f64::from_bits(2), f64::from_bits(3), 9), 6);
    }

    proptest! {
        #[test]
        fn cells_are_the_least_that_cover(
            error in 1u64..1 << 53, more in 0u64..1 << 53, shift in 0i32..60, levels in 1u32..,
        ) {
            // Integers, so that the products are exact in 128 bits.
            let (error, budget) = (error as f64, (error + more).min(1 << 53) as f64 * 2f64.powi(shift.min(20)));
            let k = cells(error, budget, levels);
            let needed = error as u128 * u128::from(levels);
            prop_assert!(k <= levels && budget as u128 * u128::from(k) >= needed);
            prop_assert!(budget as u128 * u128::from(k - 1) < needed);
        }
    }

    #[test]
    fn dominated_and_unaffordable_options_are_dropped() {
        let choices = [choice(9, 2.0), choice(9, 1.0), choice(4, 3.0), choice(4, 3.0), choice(5, 3.0), choice(1, 11.0)];
        let mut kept = [Kept { size: 0, cells: 0, option: 0 }; 6];
        assert_eq!(keep_layer(&choices, 10.0, 10, 1, &mut kept), (2, 1));
        assert_eq!(kept[0], Kept { size: 9, cells: 0, option: 1 });
        assert_eq!(kept[1], Kept { size: 4, cells: 2, option: 2 });
    }
}
