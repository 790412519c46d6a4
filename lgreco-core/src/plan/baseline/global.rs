use super::{efficient, place, sums};
use crate::error::{expect_len, expect_room};
use crate::plan::Limit;
use crate::{Error, table::Table};

/// From one hull point of a layer to the next, or, with infinite gain, into its smallest option.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Step {
    /// Squared error saved per bit, relative to the table's largest squared error.
    gain: f64,
    layer: u32,
    option: u32,
}

/// Words of workspace that [`global_topk`] needs.
pub fn global_topk_workspace_len(table: &Table) -> usize {
    2 * table.choices().len() + table.choices().len().div_ceil(2)
}

/// Global top-k: one magnitude threshold over the whole model instead of one density per layer.
///
/// Keeping a layer's elements above a threshold τ is where one more element saves τ² of squared error. On a table that
/// is the option which minimises `squared error + λ·size` with one λ for all layers: a point of the lower convex hull of
/// each layer's (size, squared error). λ falls from infinity until the sum of errors, in the table's metric, is within
/// the budget, or as long as the sum of sizes is within the size limit; steps of equal λ are taken one by one in the order
/// of layers. `squared` tells whether the table's errors
/// are squared norms already. It is made for TopK tables, but any table will do.
///
/// ```
/// use lgreco_core::{plan::{Limit, baseline}, table::{Choice, Table}};
/// let choices = [(10, 4.0), (20, 1.0), (10, 3.0), (20, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let (mut workspace, mut options) = (vec![0; baseline::global_topk_workspace_len(&table)], [0; 2]);
/// baseline::global_topk(&table, 6.5, true, &mut workspace, &mut options)?;
/// assert_eq!(options, [1, 0]);
/// baseline::global_topk(&table, Limit::Size(30), true, &mut workspace, &mut options)?;
/// assert_eq!(options, [1, 0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Budget`] when the budget is NaN, infinite or negative; [`Error::Length`] when `options` has not one entry
/// per layer or `workspace` is too short; [`Error::Infeasible`] when the smallest errors exceed the budget,
/// [`Error::SizeInfeasible`] when the smallest sizes exceed the size limit.
///
/// # Complexity
/// O(options·log(options)) time; [`global_topk_workspace_len`] words; no allocator.
///
/// # Source
/// One threshold for the whole model: Sahu et al., "Rethinking gradient sparsification as total error minimization"
/// (NeurIPS 2021). Deviation: the threshold follows from the budget, and steps between the densities of a table.
pub fn global_topk(
    table: &Table,
    limit: impl Into<Limit>,
    squared: bool,
    workspace: &mut [u64],
    options: &mut [u32],
) -> Result<(), Error> {
    expect_len("choices, one per layer", table.layers(), options.len())?;
    expect_room("workspace", global_topk_workspace_len(table), workspace.len())?;
    let limit = limit.into().checked()?;
    let (steps, front) = workspace.split_at_mut(2 * table.choices().len());
    let (steps, front): (&mut [Step], &mut [u32]) = (bytemuck::cast_slice_mut(steps), bytemuck::cast_slice_mut(front));

    // Relative errors, so that squares neither overflow nor make infinities.
    let largest = table.choices().iter().fold(0f64, |largest, choice| largest.max(choice.error));
    let squared_error = |error: f64| {
        let relative = if error > 0.0 { error / largest } else { 0.0 };
        if squared { relative } else { relative * relative }
    };
    let mut count = 0;
    for (layer, choices) in table.iter().enumerate() {
        let efficient = efficient(choices, front);
        steps[count] = Step { gain: f64::INFINITY, layer: layer as u32, option: front[0] };
        count += 1;
        for &option in &front[1..efficient] {
            let gain = loop {
                let (before, after) = (choices[steps[count - 1].option as usize], choices[option as usize]);
                let saved = squared_error(before.error) - squared_error(after.error);
                let gain = saved / (after.size - before.size) as f64;
                if gain < steps[count - 1].gain {
                    break gain;
                }
                count -= 1;
            };
            steps[count] = Step { gain, layer: layer as u32, option };
            count += 1;
        }
    }
    let steps = &mut steps[..count];
    steps.sort_unstable_by(|a, b| b.gain.total_cmp(&a.gain).then(a.layer.cmp(&b.layer)));

    // The first steps enter every layer's smallest option; each later one lowers the error.
    let mut take = |taken: usize| {
        steps[..taken].iter().for_each(|step| options[step.layer as usize] = step.option);
        sums(table, options)
    };
    let taken = place(limit, table.layers()..=count, &mut take)?;
    let (error, size) = take(taken)?;
    limit.expect_met(error, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Summary;
    use crate::table::Choice;
    use crate::testing::tables::Instance;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    fn run(table: &Table, limit: impl Into<Limit>, squared: bool) -> Result<Vec<u32>, Error> {
        let limit = limit.into();
        let run = |garbage: u64| {
            let mut workspace = vec![garbage; global_topk_workspace_len(table)];
            let mut options = vec![!0; table.layers()];
            global_topk(table, limit, squared, &mut workspace, &mut options).map(|()| options)
        };
        let options = run(0);
        assert_eq!(options, run(!0));
        options
    }

    /// The definition: all magnitudes of the model sorted, the largest kept until the budget is met.
    #[test]
    fn keeps_the_largest_magnitudes_of_the_model() {
        let layers: [&[u32]; 3] = [&[9, 7, 3, 1], &[8, 6, 5], &[4, 2]];
        let mut choices = Vec::new();
        let mut ends = Vec::new();
        for layer in layers {
            for kept in 0..=layer.len() {
                let squared: u32 = layer[kept..].iter().map(|x| x * x).sum();
                choices.push(Choice { size: 40 * kept as u64 + 8, error: f64::from(squared) });
            }
            ends.push(choices.len());
        }
        let table = Table::new(&choices, &ends).unwrap();
        for threshold in 0..10 {
            let dropped: u32 = layers.iter().copied().flatten().filter(|&&x| x <= threshold).map(|x| x * x).sum();
            let kept: Vec<u32> =
                layers.iter().map(|layer| layer.iter().filter(|&&x| x > threshold).count() as u32).collect();
            let bits = kept.iter().map(|&kept| 40 * u64::from(kept) + 8).sum();
            assert_eq!(run(&table, f64::from(dropped), true), Ok(kept.clone()));
            assert_eq!(run(&table, Limit::Size(bits), true), Ok(kept));
        }
    }

    proptest! {
        /// With the λ of the last step taken, no option of any layer costs less.
        #[test]
        fn one_multiplier_explains_all_layers(seed in any::<u64>(), squared in any::<bool>(), sized in any::<bool>()) {
            let mut instance = Instance::from_seed(seed, 5, 6);
            let largest = instance.choices.iter().fold(0f64, |largest, choice| largest.max(choice.error));
            prop_assume!(largest > 0.0);
            instance.choices.iter_mut().for_each(|choice| choice.error /= largest);
            let table = instance.table();
            let limit = match sized {
                true => Limit::Size(instance.size_limit),
                false => Limit::Error((instance.budget / largest).min(1e9)),
            };
            let Ok(options) = run(&table, limit, squared) else { return Ok(()) };
            prop_assert!(Summary::of(&table, &options, limit.unproved()).is_ok());
            let cost = |error: f64| if squared { error } else { error * error };
            // Each layer's choice is optimal for the multipliers in [low, high].
            let (mut low, mut high) = (0f64, f64::INFINITY);
            for (choices, &option) in table.iter().zip(&options) {
                let chosen = choices[option as usize];
                for choice in choices {
                    let (saved, bits) = (cost(choice.error) - cost(chosen.error), chosen.size.abs_diff(choice.size) as f64);
                    match choice.size.cmp(&chosen.size) {
                        core::cmp::Ordering::Less => high = high.min(saved / bits),
                        core::cmp::Ordering::Greater => low = low.max(-saved / bits),
                        core::cmp::Ordering::Equal => prop_assert!(saved >= 0.0),
                    }
                }
            }
            prop_assert!(low <= high * (1.0 + 1e-9), "{low} > {high}");
        }
    }

    #[test]
    fn infeasible_tells_the_smallest_error() {
        let choices = [(9, 3.0), (5, 4.0)].map(|(size, error)| Choice { size, error });
        let table = Table::new(&choices, &[2]).unwrap();
        assert_eq!(run(&table, 2.0, false), Err(Error::Infeasible { budget: 2.0, smallest: 3.0 }));
        assert_eq!(run(&table, -1.0, false).unwrap_err().code(), 25);
        assert_eq!(run(&table, Limit::Size(4), false), Err(Error::SizeInfeasible { limit: 4, smallest: 5 }));
        assert_eq!(
            (run(&table, Limit::Size(8), false), run(&table, Limit::Size(9), false)),
            (Ok(vec![1]), Ok(vec![0]))
        );
    }
}
