//! Replaces each group of layers by one merged layer, so that every solver keeps groups and fixed options.
//!
//! A merged layer has the options that all layers of its group share and that no fixed option forbids. Size and error of a
//! merged option are sums over the group. Sums of errors are rounded up to find plans, and rounded down to prove lower
//! bounds.

use super::Constraints;
use crate::table::{Choice, Table};
use crate::{Error, Result, num::Sum};
use alloc::{collections::BTreeMap, vec::Vec};

/// A table with constraints, presented as a table without constraints.
///
/// [`solve`](Merged::solve) and [`frontier`](Merged::frontier) make plans for the original table. To use another
/// planner, such as a [`baseline`](super::baseline), pass it [`view`](Merged::view), then [`expand`](Merged::expand)
/// its options.
///
/// ```
/// use lgreco_core::plan::{Constraints, Merged, Plan, Solver, budget::Budget};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [(80, 0.0), (40, 1.0), (60, 0.0), (30, 2.0), (50, 0.5), (10, 1.0)];
/// let choices = choices.map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4, 6])?;
/// let merged = Merged::new(&table, Constraints::default().group([0, 1]).fix(2, 1))?;
/// assert_eq!(merged.view().layer(0)[1], Choice { size: 70, error: 3.0 });
/// let plan = merged.solve(Budget::Absolute(3.9), None, Solver::default())?;
/// assert_eq!((plan.options(), plan.summary().size), (&[0, 0, 1][..], 150)); // the fixed layer needs 1 of 3.9
///
/// let options = merged.expand(&[1, 0])?;
/// assert_eq!(Plan::from_options(&table, Budget::Absolute(4.0), "by hand", options)?.options(), [1, 1, 1]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Merged<'a> {
    pub(super) table: Table<'a>,
    rows: Vec<Row>,
    ends: Vec<usize>,
    /// The merged options, with errors rounded down.
    low: Vec<Choice>,
    /// The merged options with errors rounded up. `None` if no error is rounded.
    high: Option<Vec<Choice>>,
}

/// A merged layer: its original layers, and their options for each merged option.
#[derive(Clone, Debug)]
struct Row {
    layers: Vec<usize>,
    /// For each merged option, one original option per layer.
    options: Vec<u32>,
}

impl Row {
    fn options(&self) -> core::slice::ChunksExact<'_, u32> {
        self.options.chunks_exact(self.layers.len())
    }
}

impl<'a> Merged<'a> {
    /// Merges the groups of a table without labels. Options match by index.
    ///
    /// # Errors
    /// [`Error::Parameter`] and [`Error::NoSuchOption`] for layers and options that the table lacks.
    /// [`Error::UnequalOptions`] when layers of a group differ in their number of options. [`Error::NoSharedOption`] when
    /// fixed options leave a group without options.
    ///
    /// # Complexity
    /// O(options·log(options)).
    pub fn new(table: &Table<'a>, constraints: &Constraints) -> Result<Merged<'a>> {
        for (layer, first) in constraints.first_of_group(table)?.into_iter().enumerate() {
            let (options, expected) = (table.layer(layer).len(), table.layer(first).len());
            if options != expected {
                return Err(Error::UnequalOptions { layer, options, first, expected });
            }
        }
        Merged::by_key(table, constraints, |layer| (0..table.layer(layer).len()).collect())
    }

    /// Merges the groups of a table whose options have keys. Options with equal keys match.
    ///
    /// The merged layer has the keys that all layers of the group share. `keys` returns the keys of a layer's options;
    /// they must differ within the layer.
    ///
    /// ```
    /// # use lgreco_core::{plan::{Constraints, Merged}, table::{Choice, Table}};
    /// let bits = [&[2, 4, 8][..], &[8, 4]]; // the options of two layers
    /// let choices = bits.concat().into_iter().map(|bits| Choice { size: 100 * bits, error: 1.0 }).collect::<Vec<_>>();
    /// let table = Table::new(&choices, &[3, 5])?;
    /// let merged = Merged::by_key(&table, Constraints::default().group([0, 1]), |layer| bits[layer].to_vec())?;
    /// assert_eq!(merged.expand(&[1])?, [2, 0]); // of 4 and 8 bits, 8
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](Merged::new). [`Error::NoSharedOption`] is also returned when layers of a group have no
    /// common key.
    ///
    /// # Complexity
    /// The same as for [`new`](Merged::new).
    pub fn by_key<K: Ord>(
        table: &Table<'a>,
        constraints: &Constraints,
        keys: impl Fn(usize) -> Vec<K>,
    ) -> Result<Merged<'a>> {
        let mut groups = alloc::vec![Vec::new(); table.layers()];
        for (layer, first) in constraints.first_of_group(table)?.into_iter().enumerate() {
            groups[first].push(layer);
        }
        let allowed = |layer: usize| {
            let fixed = constraints.fixed_option(layer);
            move |option: u32| fixed.is_none_or(|fixed| fixed == option)
        };
        let mut rows = Vec::new();
        for layers in groups.into_iter().filter(|layers| !layers.is_empty()) {
            let (first, is_allowed) = (layers[0], allowed(layers[0]));
            if layers.len() == 1 {
                let options = (0..table.layer(first).len() as u32).filter(|&option| is_allowed(option)).collect();
                rows.push(Row { layers, options });
                continue;
            }
            let known = keys(first).into_iter().zip(0..).filter(|&(_, option)| is_allowed(option));
            let mut shared: Vec<(K, Vec<u32>)> = known.map(|(key, option)| (key, Vec::from([option]))).collect();
            for &layer in &layers[1..] {
                let is_allowed = allowed(layer);
                let own = keys(layer).into_iter().zip(0..).filter(|&(_, option)| is_allowed(option));
                let own: BTreeMap<K, u32> = own.collect();
                shared.retain_mut(|(key, options)| {
                    let option = own.get(key);
                    options.extend(option);
                    option.is_some()
                });
                if shared.is_empty() {
                    return Err(Error::NoSharedOption { layer, first });
                }
            }
            rows.push(Row { layers, options: shared.into_iter().flat_map(|(_, options)| options).collect() });
        }
        Ok(Merged::of_rows(*table, rows))
    }

    fn of_rows(table: Table<'a>, rows: Vec<Row>) -> Merged<'a> {
        let (mut low, mut high, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            for options in row.options() {
                let chosen =
                    || row.layers.iter().zip(options).map(|(&layer, &option)| table.layer(layer)[option as usize]);
                let size = chosen().map(|choice| choice.size).sum();
                let error = |up| chosen().fold(0.0, |sum, choice| add(sum, choice.error, up));
                low.push(Choice { size, error: error(false) });
                high.push(Choice { size, error: error(true) });
            }
            ends.push(low.len());
        }
        let high = (high != low).then_some(high);
        Merged { table, rows, ends, low, high }
    }

    /// The merged table, with errors rounded up. This table has one layer per group and per ungrouped layer, in the
    /// order of their first layers.
    pub fn view(&self) -> Table<'_> {
        self.table_of(self.high.as_ref().unwrap_or(&self.low))
    }

    /// The merged table with errors rounded down.
    pub(super) fn low(&self) -> Table<'_> {
        self.table_of(&self.low)
    }

    /// Whether any sum of errors was rounded.
    pub(super) fn is_rounded(&self) -> bool {
        self.high.is_some()
    }

    fn table_of<'b>(&'b self, choices: &'b [Choice]) -> Table<'b> {
        Table::new(choices, &self.ends).expect("sums of a valid table's options, which fit where the table's do")
    }

    /// The original layers of a merged layer.
    ///
    /// # Panics
    /// When the merged table does not have this layer.
    pub fn layers(&self, layer: usize) -> &[usize] {
        &self.rows[layer].layers
    }

    /// The option of least error for each merged layer, compared without rounding. If several options have equal error,
    /// takes the smallest.
    pub(super) fn most_exact(&self) -> Vec<u32> {
        let least = self.rows.iter().map(|row| {
            let error = |options: &[u32]| -> Sum {
                let layers = row.layers.iter().zip(options);
                layers.map(|(&layer, &option)| self.table.layer(layer)[option as usize].error).collect()
            };
            let size = |options: &[u32]| -> u64 {
                let layers = row.layers.iter().zip(options);
                layers.map(|(&layer, &option)| self.table.layer(layer)[option as usize].size).sum()
            };
            let options = row.options().map(|options| (error(options), size(options))).zip(0..);
            // A sum that overflows f64 is NaN, and is ordered after all numbers.
            let order = |((a, a_size), _): &((Sum, u64), u32), ((b, b_size), _): &((Sum, u64), u32)| {
                let overflow = || a.value().is_nan().cmp(&b.value().is_nan());
                a.partial_cmp(b).unwrap_or_else(overflow).then(a_size.cmp(b_size))
            };
            options.min_by(order).map_or(0, |(_, option)| option)
        });
        least.collect()
    }

    /// Converts options of the merged table into options of the original table.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::NoSuchOption`], under the conditions of [`Table::chosen`] on the merged table.
    ///
    /// # Complexity
    /// O(options).
    pub fn expand(&self, options: &[u32]) -> Result<Vec<u32>> {
        let _ = self.low().chosen(options)?;
        let mut expanded = alloc::vec![0; self.table.layers()];
        for (row, &option) in self.rows.iter().zip(options) {
            let start = option as usize * row.layers.len();
            for (&layer, &option) in row.layers.iter().zip(&row.options[start..]) {
                expanded[layer] = option;
            }
        }
        Ok(expanded)
    }

    /// Checks that a plan for the original table keeps the constraints.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::NoSuchOption`], under the conditions of [`Table::chosen`]. [`Error::RuledOut`]
    /// for the first layer of a group with a forbidden choice. A choice is forbidden if no merged option combines it
    /// with the choices of the group's earlier layers.
    ///
    /// # Complexity
    /// O(options).
    pub fn check(&self, options: &[u32]) -> Result<()> {
        let _ = self.table.chosen(options)?;
        for row in &self.rows {
            let mut allowed: Vec<&[u32]> = row.options().collect();
            for (place, &layer) in row.layers.iter().enumerate() {
                let first = allowed.first().map_or(0, |shared| shared[place]);
                allowed.retain(|shared| shared[place] == options[layer]);
                if allowed.is_empty() {
                    let (option, allowed) = (options[layer] as usize, first as usize);
                    return Err(Error::RuledOut { layer, option, allowed });
                }
            }
        }
        Ok(())
    }
}

/// `a + b`, rounded up or down, and at most the largest f64.
fn add(a: f64, b: f64, up: bool) -> f64 {
    let sum = a + b;
    if sum == f64::INFINITY {
        return f64::MAX;
    }
    // Knuth's TwoSum computes the part that rounding lost.
    let b_part = sum - a;
    let lost = (a - (sum - b_part)) + (b - b_part);
    match up {
        true if lost > 0.0 => sum.next_up().min(f64::MAX),
        false if lost < 0.0 => sum.next_down(),
        _ => sum,
    }
}

#[cfg(test)]
mod tests {
    use super::add;

    #[test]
    fn sums_are_rounded_as_asked() {
        let (tenth, tiny) = (0.1, f64::from_bits(1));
        assert_eq!((add(0.5, 0.25, true), add(0.5, 0.25, false)), (0.75, 0.75));
        assert_eq!((add(1.0, tiny, true), add(1.0, tiny, false)), (1f64.next_up(), 1.0));
        assert_eq!(add(0.2, tenth, true), add(0.2, tenth, false).next_up());
        let half_ulp = f64::MAX * f64::EPSILON / 4.0;
        assert_eq!((add(f64::MAX, f64::MAX, true), add(f64::MAX, half_ulp, true)), (f64::MAX, f64::MAX));
    }
}
