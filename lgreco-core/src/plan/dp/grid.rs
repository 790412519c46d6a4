//! Selection of the options that can appear in an optimal plan on the grid.

use crate::plan::goal::Goal;
use crate::table::Choice;

/// One option on the grid.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Kept {
    /// The objective, in units of the objectives' greatest common divisor.
    pub objective: u64,
    /// Cells that this option needs beyond the layer's cheapest option.
    pub cells: u32,
    /// Index in the layer's list of options.
    pub option: u32,
}

/// Selects the options of one layer that are within the limit and not dominated, in order of index.
///
/// Writes these options to `kept`. Returns the number of selected options, and the number of cells that the cheapest of
/// them needs. If no option is within the limit, returns 0 and `levels`.
pub(super) fn keep_layer(choices: &[Choice], goal: &Goal, levels: u32, unit: u64, kept: &mut [Kept]) -> (usize, u32) {
    let mut count = 0;
    for (option, choice) in choices.iter().enumerate().filter(|(_, choice)| goal.allows(choice)) {
        if let Some(objective) = goal.objective(choice) {
            let cells = goal.cells(choice, levels);
            kept[count] = Kept { objective: objective / unit, cells, option: option as u32 };
            count += 1;
        }
    }
    let kept = &mut kept[..count];
    kept.sort_unstable_by_key(|option| (option.cells, option.objective, option.option));
    let Some(&Kept { cells: cheapest, .. }) = kept.first() else { return (0, levels) };
    let (mut last, mut least) = (0, u64::MAX);
    for at in 0..count {
        if at == 0 || kept[at].objective < least {
            least = kept[at].objective;
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
    use crate::plan::Limit;
    use crate::table::Table;

    fn choice(size: u64, error: f64) -> Choice {
        Choice { size, error }
    }

    #[test]
    fn dominated_and_unaffordable_options_are_dropped() {
        let choices = [choice(9, 2.0), choice(9, 1.0), choice(4, 3.0), choice(4, 3.0), choice(5, 3.0), choice(1, 11.0)];
        let table = Table::new(&choices, &[6]).unwrap();
        let mut kept = [Kept { objective: 0, cells: 0, option: 0 }; 6];
        let goal = Goal::new(&table, Limit::Error(10.0), 63);
        assert_eq!(keep_layer(&choices, &goal, 10, 1, &mut kept), (2, 1));
        assert_eq!(kept[0], Kept { objective: 9, cells: 0, option: 1 });
        assert_eq!(kept[1], Kept { objective: 4, cells: 2, option: 2 });
        // Options 2, 3 and 5 fit 4 bits. Option 3 equals option 2; of options 2 and 5, neither dominates the other.
        let goal = Goal::new(&table, Limit::Size(4), 63);
        assert_eq!(keep_layer(&choices, &goal, 4, 1, &mut kept), (2, 1));
        let objective = |option: usize| goal.objective(&choices[option]).unwrap();
        assert_eq!(kept[0], Kept { objective: objective(2), cells: 3, option: 2 });
        assert_eq!(kept[1], Kept { objective: objective(5), cells: 0, option: 5 });
    }
}
