use super::{efficient, place, sums};
use crate::error::{expect_len, expect_room};
use crate::plan::Limit;
use crate::{Error, table::Table};

/// A step from one hull point of a layer to the next. A layer's first step leads to its smallest option and has
/// infinite gain.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Step {
    /// Squared error saved per bit, relative to the table's largest squared error.
    gain: f64,
    layer: u32,
    option: u32,
}

/// 8-byte words of workspace that [`global_topk`] needs.
pub fn global_topk_workspace_len(table: &Table) -> usize {
    2 * table.choices().len() + table.choices().len().div_ceil(2)
}

/// Global top-k: one magnitude threshold over the whole model instead of one density per layer.
///
/// TopK with a threshold τ sends an element if sending saves at least τ² of squared error. In an error table, the
/// corresponding option of a layer minimises `squared error + λ·size`, with one λ for all layers. Each such option is a
/// point on the lower convex hull of the layer's pairs (size, squared error).
///
/// The weight λ decreases from infinity. Under an error budget, λ decreases until the sum of errors, in the table's
/// metric, is within the budget. Under a size limit, λ decreases as long as the sum of sizes stays within the limit. If
/// several layers take a step at the same λ, the steps are taken one by one in the order of layers.
///
/// `squared` states whether the table's errors are squared norms. The baseline is meant for TopK tables, but takes any
/// table.
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
/// [`Error::Budget`] when the budget is NaN, infinite or negative. [`Error::Length`] when `options` does not have one
/// entry per layer or `workspace` is too short. [`Error::Infeasible`] when the smallest errors exceed the budget,
/// [`Error::SizeInfeasible`] when the smallest sizes exceed the size limit.
///
/// # Complexity
/// O(options·log(options)) time; [`global_topk_workspace_len`] words; no allocator.
///
/// # Source
/// One threshold for the whole model: Sahu et al., "Rethinking gradient sparsification as total error minimization"
/// (NeurIPS 2021). Deviations: here the budget determines the threshold, and each layer's density is one of the table's
/// densities.
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

    // Divides errors by the largest error, so that squares cannot overflow.
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

    // The first steps, one per layer, lead to the layers' smallest options. Each later step lowers the error.
    let mut take = |taken: usize| {
        steps[..taken].iter().for_each(|step| options[step.layer as usize] = step.option);
        sums(table, options)
    };
    let taken = place(limit, table.layers()..=count, &mut take)?;
    let (error, size) = take(taken)?;
    limit.expect_met(error, size)
}
