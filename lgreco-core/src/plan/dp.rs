//! Algorithm 1 of the L-GreCo paper: dynamic programming over a discretised limit.
//!
//! The error budget is divided into `levels` cells. The cost of an option is its error in cells, rounded up in exact
//! arithmetic. So a plan that fits the grid also fits the budget. Row `l` holds, for each number of cells, the smallest size
//! of the first `l` layers at exactly that cost. The answer is the smallest entry of the last row.
//!
//! Under a size limit the roles are exchanged: the size limit is divided into cells, and rows hold errors as integers
//! of about 44 bits. So under a size limit, both sizes and errors are rounded.
//!
//! **Ties:** Of plans with equal objective, the solver takes the one with the fewest cells. Of plans with equal
//! objectives and cells, the solver takes the one with the lowest option index in the last layer where they differ.
//!
//! # Where this differs from the released NumPy code, and why
//! * For layer 0, the released code accepts an option only when `cell > error`, for later layers when `cell >= error`.
//!   This module uses `>=` for every layer, as Algorithm 1 does. With `>`, the solver would miss a plan that uses
//!   exactly the budget.
//! * In the released code, every option costs at least one cell. In this module, an error of zero costs no cells. So
//!   "do not compress" is free, and plans can exist for a budget of zero.
//! * If the last row has no finite entry, the released code traces back from cell 0, and returns a plan over budget. In
//!   this case, `solve` returns [`Error::Infeasible`] with the smallest possible error.
//! * The released code accepts NaN, because it discards the result of its check. The released code also divides by the
//!   reference error, even if that error is zero. `solve` excludes NaN and divisions by zero before the grid is built.
//! * **Deviation from Algorithm 1:** because costs are rounded up, sometimes no plan fits the grid although some plans
//!   meet the budget. In this case `solve` returns the plan of least error. If options of a layer have equal error,
//!   this plan has the smallest of these options. Of equal options, this plan has the one with the lowest index.
//!
//! # How it is made fast
//! * A cell holds one number, `objective · 2^k + option`. So relaxing a cell takes one addition and one minimum, and
//!   the minimum also breaks ties. Sizes are divided by their greatest common divisor. If all numbers are below 2^52,
//!   cells are f64, which hold these numbers exactly. Otherwise cells are integers of 128 bits. The same code handles
//!   both formats.
//! * A block of cells stays in the first-level cache while all options of a layer are applied to it. Four options are
//!   relaxed per pass.
//! * Dominated options are dropped: an option is dominated if another one needs at most as many cells and has at most
//!   the same objective. The tie rule never chooses a dominated option.
//! * The cells of each layer's cheapest option are deducted in advance, which leaves fewer cells to fill. Cells that no
//!   choice for the layers so far can reach are skipped.
//! * The trace (the chosen option of every layer and cell) takes most of the memory. With f64 cells, a trace entry
//!   takes one byte, or two bytes if a layer has more than 256 options. With 128-bit cells, an entry takes four bytes.
//!   Bit-packing would save little and slow down the inner loop.

mod cell;
mod grid;

use super::goal::Goal;
use super::{Limit, Summary};
use crate::error::{expect_len, expect_room};
use crate::num::{Sum, Wide, gcd};
use crate::{Error, Result, simd, table::Table};
use cell::{Cell, Fill, LANES};
use grid::{Kept, keep_layer};

/// The paper's number of cells.
pub const LEVELS: u32 = 10_000;

/// The number format of cells and trace.
struct Layout {
    /// Greatest common divisor of all objectives.
    unit: u64,
    /// Bits that hold an option's index.
    index_bits: u32,
    /// Whether every cell fits an f64 exactly.
    narrow: bool,
}

impl Layout {
    /// The layout for an error budget.
    fn of(table: &Table) -> Layout {
        let unit = table.choices().iter().fold(0, |unit, choice| gcd(choice.size, unit)).max(1);
        let index_bits = index_bits(table);
        let total: u64 = table.iter().map(|options| options.iter().map(|choice| choice.size).max().unwrap_or(0)).sum();
        let narrow = index_bits <= NARROW && (u128::from(total / unit) + 1) << index_bits < 1 << 52;
        Layout { unit, index_bits, narrow }
    }

    /// The layout for a size limit, which never needs more workspace than the layout of [`of`](Layout::of). The sum of
    /// a plan's objectives is below 2^([`bits`](Layout::bits)).
    fn of_errors(table: &Table) -> Layout {
        let index_bits = index_bits(table);
        Layout { unit: 1, index_bits, narrow: index_bits <= NARROW }
    }

    fn bits(&self) -> u32 {
        if self.narrow { 51 - self.index_bits } else { 63 }
    }

    fn workspace_len(&self, table: &Table, levels: u32) -> usize {
        let rows = stride(levels).saturating_add(2 * LANES).saturating_mul(if self.narrow { 2 } else { 4 });
        let trace = stride(levels).saturating_mul(table.layers()).saturating_mul(self.trace_bytes()).div_ceil(8);
        (2 * table.choices().len() + table.layers()).saturating_add(rows).saturating_add(trace)
    }

    /// Bytes of one trace entry.
    fn trace_bytes(&self) -> usize {
        match (self.narrow, self.index_bits) {
            (true, ..=8) => 1,
            (true, _) => 2,
            (false, _) => 4,
        }
    }
}

/// Largest number of index bits in an f64 cell. The other bits hold the objective.
const NARROW: u32 = 16;

fn index_bits(table: &Table) -> u32 {
    table.iter().map(<[_]>::len).max().unwrap_or(1).next_power_of_two().trailing_zeros()
}

/// Cells of a row or a trace, rounded up to whole blocks.
fn stride(levels: u32) -> usize {
    (levels as usize).saturating_add(1).div_ceil(LANES).saturating_mul(LANES)
}

/// 8-byte words of workspace that [`solve`] needs, or `usize::MAX` if the number overflows.
///
/// # Complexity
/// O(options) time. The result is about 2·options + 2·levels words and layers·levels bytes, if cells are f64 and no
/// layer has more than 256 options.
pub fn workspace_len(table: &Table, levels: u32) -> usize {
    Layout::of(table).workspace_len(table, levels)
}

/// Chooses one option per layer by Algorithm 1 on a grid of `levels` cells, at least 1.
///
/// Finds the smallest size within an error budget, or the smallest error within a size limit. Under an error budget,
/// the lower bound is the sum of the layers' smallest sizes. Options whose error alone exceeds the budget are ignored.
/// Under a size limit, the lower bound is the sum of the layers' smallest errors. Options whose size alone exceeds the
/// limit are ignored.
///
/// ```
/// use lgreco_core::{plan::{Limit, dp}, table::{Choice, Table}};
/// let choices = [(80, 0.0), (40, 1.0), (20, 3.0), (60, 0.0), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[3, 5])?;
/// let mut workspace = vec![0; dp::workspace_len(&table, dp::LEVELS)];
/// let mut options = [0; 2];
/// let summary = dp::solve(&table, 3.0, 3, &mut workspace, &mut options)?;
/// assert_eq!((options, summary.size, summary.error), ([1, 1], 70, 3.0));
///
/// // Of 10 000 cells the errors 1 and 2 need 3334 and 6667: one too many.
/// let summary = dp::solve(&table, 3.0, dp::LEVELS, &mut workspace, &mut options)?;
/// assert_eq!((options, summary.size, summary.error), ([2, 0], 80, 3.0));
///
/// let summary = dp::solve(&table, Limit::Size(90), dp::LEVELS, &mut workspace, &mut options)?;
/// assert_eq!((options, summary.size, summary.error), ([1, 1], 70, 3.0));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Budget`] when the budget is NaN, infinite or negative. [`Error::Parameter`] for `levels == 0`.
/// [`Error::Length`] when `options` does not have one entry per layer or `workspace` is too short.
/// [`Error::Infeasible`], with the smallest possible error, when no plan meets the budget. [`Error::SizeInfeasible`],
/// with the smallest possible size, when no plan meets the size limit.
///
/// # Complexity
/// O(options·levels) time; [`workspace_len`] words; no allocator.
///
/// # Source
/// L-GreCo (MLSys 2024), Algorithm 1; deviations in the [module](self).
pub fn solve(
    table: &Table,
    limit: impl Into<Limit>,
    levels: u32,
    workspace: &mut [u64],
    options: &mut [u32],
) -> Result<Summary> {
    expect_len("choices, one per layer", table.layers(), options.len())?;
    Error::require(levels > 0, "levels", 0.0, "at least 1")?;
    let limit = limit.into().checked()?;
    expect_room("workspace", workspace_len(table, levels), workspace.len())?;
    let layout = match limit {
        Limit::Error(_) => Layout::of(table),
        Limit::Size(_) => Layout::of_errors(table),
    };
    let goal = Goal::new(table, limit, layout.bits());

    let lower_bound = least(table, &goal, options)?;
    let (kept_words, workspace) = workspace.split_at_mut(2 * table.choices().len());
    let (ends, workspace) = workspace.split_at_mut(table.layers());
    let kept: &mut [Kept] = bytemuck::cast_slice_mut(kept_words);

    let (mut start, mut paid) = (0, 0u64);
    for (end, choices) in ends.iter_mut().zip(table.iter()) {
        let layer = &mut kept[start..start + choices.len()];
        let (count, cheapest) = keep_layer(choices, &goal, levels, layout.unit, layer);
        start += count;
        *end = start as u64;
        paid += u64::from(cheapest);
    }
    if paid <= u64::from(levels) {
        let grid = Grid { kept: &kept[..start], ends, cells: levels - paid as u32, layout };
        match (grid.layout.narrow, grid.layout.trace_bytes()) {
            (true, 1) => grid.solve::<f64, u8>(workspace, options),
            (true, _) => grid.solve::<f64, u16>(workspace, options),
            (false, _) => grid.solve::<Wide, u32>(workspace, options),
        }
    }
    Summary::of(table, options, goal.proof(lower_bound))
}

/// Chooses for each layer the option of least error under an error budget, or of least size under a size limit. Returns
/// a lower bound of the objective.
fn least(table: &Table, goal: &Goal, options: &mut [u32]) -> Result<u64> {
    let (mut error, mut size, mut lower_bound) = (Sum::default(), 0, 0u64);
    for (option, choices) in options.iter_mut().zip(table.iter()) {
        let best = goal.least(choices);
        *option = best as u32;
        error.add(choices[best].error);
        size += choices[best].size;
        let allowed = choices.iter().filter(|choice| goal.allows(choice)).filter_map(|choice| goal.objective(choice));
        lower_bound += allowed.min().unwrap_or(0);
    }
    goal.limit.expect_met(error, size)?;
    Ok(lower_bound)
}

/// The discretised problem. Every layer has an option that costs no cells. A plan may use at most `cells` cells in
/// total.
struct Grid<'a> {
    kept: &'a [Kept],
    ends: &'a [u64],
    cells: u32,
    layout: Layout,
}

impl Grid<'_> {
    fn solve<C: Cell, T: bytemuck::Pod + cell::Trace>(&self, workspace: &mut [u64], options: &mut [u32]) {
        let stride = stride(self.cells);
        let row = (stride + 2 * LANES) * size_of::<C>() / 8;
        let (previous, workspace) = workspace.split_at_mut(row);
        let (next, trace) = workspace.split_at_mut(row);
        let fill = Fill {
            kept: self.kept,
            ends: self.ends,
            cells: self.cells,
            index_bits: self.layout.index_bits,
            rows: [bytemuck::cast_slice_mut::<u64, C>(previous), bytemuck::cast_slice_mut::<u64, C>(next)],
            trace: bytemuck::cast_slice_mut::<u64, T>(trace),
        };
        let mut cell = simd::dispatch_with!(fill, Fill::run);
        let trace: &[T] = bytemuck::cast_slice(trace);
        for layer in (0..options.len()).rev() {
            let start = if layer == 0 { 0 } else { self.ends[layer - 1] as usize };
            let kept = &self.kept[start + trace[layer * stride + cell].index()];
            options[layer] = kept.option;
            cell -= kept.cells as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Choice;

    #[test]
    fn the_number_formats_meet_at_52_bits() {
        for total in [(1u64 << 51) - 2, (1 << 51) - 1, 1 << 51, 1 << 52, u64::MAX - 1] {
            let choices = [(total, 0.0), (total - 1, 1.0), (1, 0.5)].map(|(size, error)| Choice { size, error });
            let table = Table::new(&choices, &[2, 3]).unwrap();
            assert_eq!(Layout::of(&table).narrow, total < (1 << 51) - 2, "{total}");
        }
    }
}
