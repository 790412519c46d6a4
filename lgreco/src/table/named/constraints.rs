//! Groups of layers that share an option, and fixed options, as named tables state them.

use super::{NamedError, NamedTable};
use crate::compress::Setting;
use crate::plan::{Constraints, Merged};
use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

/// # Groups and fixed options
/// [`merged`](NamedTable::merged) prepares the table for planning within groups and fixed options.
///
/// ```
/// use lgreco::table::{Choice, NamedTable};
/// let option = |label: &str, size| (label.to_string(), Choice { size, error: 1.0 });
/// let mut builder = NamedTable::builder("l2");
/// builder.layer("embed", 100, None, [option("qsgd 4", 400), option("qsgd 2", 200)]);
/// builder.layer("head", 100, None, [option("qsgd 4", 400), option("qsgd 2", 200)]);
/// let mut table = builder.build()?;
/// let head = table.find("head").unwrap();
/// table.set_group(0, Some("tied".into()));
/// table.set_group(head, Some("tied".into()));
/// table.set_fixed_option(head, table.find_option(head, "qsgd 2"));
/// assert_eq!((table.group(0), table.fixed_option(head)), (Some("tied"), Some(1)));
/// # Ok::<(), lgreco::table::NamedError>(())
/// ```
impl NamedTable {
    /// The name of a layer's group, if it has one. All layers of a group get options with the same label.
    pub fn group(&self, layer: usize) -> Option<&str> {
        self.layers[layer].group.as_deref()
    }

    /// Sets or removes the group of a layer. A group consists of the layers that name it.
    pub fn set_group(&mut self, layer: usize, group: Option<String>) {
        self.layers[layer].group = group;
    }

    /// The fixed option of a layer, if it has one. Every plan uses a layer's fixed option.
    pub fn fixed_option(&self, layer: usize) -> Option<u32> {
        self.layers[layer].fixed
    }

    /// Fixes a layer's option. `None` lets the planner choose the option.
    ///
    /// # Panics
    /// When the layer lacks the option.
    pub fn set_fixed_option(&mut self, layer: usize, option: Option<u32>) {
        let options = self.labels(layer).len();
        assert!(option.is_none_or(|option| (option as usize) < options), "there is no option {option:?} of {options}");
        self.layers[layer].fixed = option;
    }

    /// The groups and fixed options that the table states. O(layers·log(groups)).
    pub fn constraints(&self) -> Constraints {
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut constraints = Constraints::default();
        for layer in 0..self.layers() {
            if let Some(group) = self.group(layer) {
                groups.entry(group).or_default().push(layer);
            }
            if let Some(option) = self.fixed_option(layer) {
                constraints.fix(layer, option);
            }
        }
        for group in groups.into_values() {
            constraints.group(group);
        }
        constraints
    }

    /// Prepares the table for planning within `constraints`. Layers of a group share options with the same label.
    ///
    /// If a label occurs twice in each of two layers, the first occurrences match each other, and the second
    /// occurrences match each other. The table's own constraints are ignored.
    ///
    /// ```
    /// # use lgreco::{plan::Constraints, table::{Choice, NamedTable}};
    /// let option = |bits: u64| (format!("qsgd {bits}"), Choice { size: 100 * bits, error: 1.0 });
    /// let mut builder = NamedTable::builder("l2");
    /// builder.layer("q", 100, None, [2, 4, 8].map(option));
    /// builder.layer("k", 100, None, [8, 4].map(option));
    /// builder.layer("v", 100, None, [3].map(option));
    /// let table = builder.build()?;
    /// let merged = table.merged(Constraints::default().group([0, 1]))?;
    /// assert_eq!(merged.expand(&[1, 0])?, [2, 0, 0]); // of `qsgd 4` and `qsgd 8`, the latter
    /// let error = table.merged(Constraints::default().group([0, 2])).unwrap_err().to_string();
    /// assert!(error.starts_with("layer `v`: none of its options is shared by all layers of its group"));
    /// # Ok::<(), lgreco::table::NamedError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Merged::by_key`], with the layer's name added.
    ///
    /// # Complexity
    /// O(options·log(options)).
    pub fn merged(&self, constraints: &Constraints) -> Result<Merged<'_>, NamedError> {
        let keys = |layer| {
            let mut seen = BTreeMap::new();
            let key = |label| {
                let count: &mut usize = seen.entry(label).or_default();
                *count += 1;
                (label, *count)
            };
            self.labels(layer).iter().map(String::as_str).map(key).collect()
        };
        Merged::by_key(&self.view(), constraints, keys).map_err(|error| self.name_error(error))
    }

    /// Index of the layer with this name. O(layers).
    pub fn find(&self, name: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.name == name)
    }

    /// The first option of a layer with this label. If no option has this label, the first option whose setting has
    /// this text. O(options).
    pub fn find_option(&self, layer: usize, text: &str) -> Option<u32> {
        let labelled = self.labels(layer).iter().position(|label| label == text);
        let option = labelled.or_else(|| {
            let setting: Option<Setting> = text.parse().ok();
            let is_meant = |known: &Setting| match known {
                // Without the list of outside methods, `text` cannot be parsed. So the setting's own text is compared
                // with `text`.
                Setting::Own(known) => known.to_string() == text,
                known => Some(*known) == setting,
            };
            self.settings[self.options(layer)].iter().position(|known| known.as_ref().is_some_and(is_meant))
        });
        option.map(|option| option as u32)
    }
}
