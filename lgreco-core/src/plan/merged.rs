//! A table in which the layers of a group are one, so that any solver keeps groups and fixed options.
//!
//! The merged layer has the options that all layers of the group have, without those that a fixed option rules out. An
//! option's size is the sum of the layers' sizes and its error the sum of their errors, as every plan's are. Sums of errors
//! are rounded: up, so that a plan within a budget there is within it here, and once more down, for lower bounds.

use super::Constraints;
use crate::table::{Choice, NamedError, NamedTable, Table};
use crate::{Error, Result, num::Sum};
use alloc::{collections::BTreeMap, vec::Vec};
use core::cmp::Ordering;

/// A table and its constraints, as a table without constraints that any solver takes.
///
/// [`solve`](Merged::solve) and [`frontier`](Merged::frontier) do all of it. Other choosers, such as a
/// [`baseline`](super::baseline), choose for [`view`](Merged::view) and [`expand`](Merged::expand) their choices.
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
    /// With errors rounded down.
    low: Vec<Choice>,
    /// With errors rounded up, where that differs.
    high: Option<Vec<Choice>>,
}

/// The layers that are one, and the options of each option.
#[derive(Clone, Debug)]
struct Row {
    layers: Vec<usize>,
    /// Option after option, for each of the layers.
    options: Vec<u32>,
}

impl Row {
    fn options(&self) -> core::slice::ChunksExact<'_, u32> {
        self.options.chunks_exact(self.layers.len())
    }
}

impl<'a> Merged<'a> {
    /// Merges the groups of a table without labels: options are matched by their index.
    ///
    /// # Errors
    /// [`Error::Parameter`] and [`Error::NoSuchOption`] for layers and options that the table does not have;
    /// [`Error::UnequalOptions`] where layers of a group differ in their number of options; [`Error::NoSharedOption`] where
    /// fixed options leave a group none.
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
        Merged::matched(table, constraints, |layer| (0..table.layer(layer).len()).collect())
    }

    /// Merges the groups of a table with labels: an option is shared by the layers that have its label. Where a layer has
    /// a label twice, the first is matched with the first and the second with the second.
    ///
    /// `constraints` replace those that the table states: [`Constraints::of`] reads them.
    ///
    /// ```
    /// # use lgreco_core::{plan::{Constraints, Merged}, table::{Choice, NamedTable}};
    /// let option = |bits: u64| (format!("qsgd {bits}"), Choice { size: 100 * bits, error: 1.0 });
    /// let mut builder = NamedTable::builder("l2");
    /// builder.layer("q", 100, None, [2, 4, 8].map(option));
    /// builder.layer("k", 100, None, [8, 4].map(option));
    /// builder.layer("v", 100, None, [3].map(option));
    /// let table = builder.build()?;
    /// let merged = Merged::named(&table, Constraints::default().group([0, 1]))?;
    /// assert_eq!(merged.expand(&[1, 0])?, [2, 0, 0]); // of `qsgd 4` and `qsgd 8`, the latter
    /// let error = Merged::named(&table, Constraints::default().group([0, 2])).unwrap_err().to_string();
    /// assert!(error.starts_with("layer `v`: it is in a group with layer 0, and no option is left"));
    /// # Ok::<(), lgreco_core::table::NamedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`new`](Merged::new), with the layer's name; [`Error::NoSharedOption`] also where layers of a group have no
    /// label in common.
    ///
    /// # Complexity
    /// As [`new`](Merged::new).
    pub fn named(table: &'a NamedTable, constraints: &Constraints) -> Result<Merged<'a>, NamedError> {
        let keys = |layer| {
            let mut seen = BTreeMap::new();
            let labels = table.labels(layer).iter();
            let key = labels.map(|label| {
                let count: &mut usize = seen.entry(label.as_str()).or_default();
                *count += 1;
                (label.as_str(), *count)
            });
            key.collect()
        };
        Merged::matched(&table.view(), constraints, keys).map_err(|error| table.name_error(error))
    }

    /// `keys` gives a key for each option of a layer; options with equal keys match.
    fn matched<K: Ord>(
        table: &Table<'a>,
        constraints: &Constraints,
        keys: impl Fn(usize) -> Vec<K>,
    ) -> Result<Merged<'a>> {
        let (mut rows, mut row_of): (Vec<Row>, Vec<usize>) = (Vec::new(), Vec::new());
        for (layer, first) in constraints.first_of_group(table)?.into_iter().enumerate() {
            if first == layer {
                row_of.push(rows.len());
                let options = (0..table.layer(layer).len() as u32).collect();
                rows.push(Row { layers: Vec::from([layer]), options });
                continue;
            }
            row_of.push(row_of[first]);
            let row = &mut rows[row_of[first]];
            let (known, own) = (keys(first), keys(layer));
            let own: BTreeMap<&K, u32> = own.iter().zip(0..).collect();
            let shared = row.options().filter_map(|options| {
                let option = own.get(&known[options[0] as usize])?;
                Some(options.iter().chain([option]).copied())
            });
            row.options = shared.flatten().collect();
            row.layers.push(layer);
            if row.options.is_empty() {
                return Err(Error::NoSharedOption { layer, first });
            }
        }
        for (layer, fixed) in constraints.fixed() {
            let row = &mut rows[row_of[layer]];
            let place = row.layers.iter().position(|&member| member == layer).unwrap_or(0);
            row.options = row.options().filter(|options| options[place] == fixed).flatten().copied().collect();
            if row.options.is_empty() {
                let other = row.layers.iter().copied().find(|&other| other != layer);
                return Err(Error::NoSharedOption { layer, first: other.unwrap_or(layer) });
            }
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

    /// The merged table: a layer for each group, and for each layer without one, in the order of their first layers. Errors
    /// are sums, rounded up.
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

    /// The layers that a layer of the merged table stands for.
    ///
    /// # Panics
    /// When the merged table has no such layer.
    pub fn layers(&self, layer: usize) -> &[usize] {
        &self.rows[layer].layers
    }

    /// Every merged layer's option of the least error, before any rounding.
    pub(super) fn most_exact(&self) -> Vec<u32> {
        let least = self.rows.iter().map(|row| {
            let error = |options: &[u32]| -> Sum {
                let layers = row.layers.iter().zip(options);
                layers.map(|(&layer, &option)| self.table.layer(layer)[option as usize].error).collect()
            };
            let errors = row.options().map(error).zip(0..);
            let less = |a: &(Sum, u32), b: &(Sum, u32)| a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal);
            errors.min_by(less).map_or(0, |(_, option)| option)
        });
        least.collect()
    }

    /// What choices for the merged table are for the table itself.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::NoSuchOption`] as [`Table::chosen`] of the merged table.
    ///
    /// # Complexity
    /// O(layers).
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

    /// Whether a plan for the table keeps the constraints.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::NoSuchOption`] as [`Table::chosen`].
    ///
    /// # Complexity
    /// O(options).
    pub fn allows(&self, options: &[u32]) -> Result<bool> {
        let _ = self.table.chosen(options)?;
        let is_allowed = |row: &Row| {
            let chosen = || row.layers.iter().map(|&layer| options[layer]);
            row.options().any(|shared| shared.iter().copied().eq(chosen()))
        };
        Ok(self.rows.iter().all(is_allowed))
    }
}

/// `a + b`, rounded up or down; at most the largest f64.
fn add(a: f64, b: f64, up: bool) -> f64 {
    let sum = a + b;
    if sum == f64::INFINITY {
        return f64::MAX;
    }
    // Knuth's TwoSum: what the rounding to nearest has lost.
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
