//! What a table says about layers that share an option and layers whose option is fixed.

use super::NamedTable;
use crate::compress::Setting;
use alloc::string::String;

/// # Groups and fixed options
/// [`plan::Merged::named`](crate::plan::Merged::named) plans within them.
///
/// ```
/// use lgreco_core::table::{Choice, NamedTable};
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
/// # Ok::<(), lgreco_core::table::NamedError>(())
/// ```
impl NamedTable {
    /// The group of a layer, if it is in one: all layers of a group get options of the same label.
    pub fn group(&self, layer: usize) -> Option<&str> {
        self.layers[layer].group.as_deref()
    }

    /// Puts a layer into a group, which exists because layers name it, or into none.
    pub fn set_group(&mut self, layer: usize, group: Option<String>) {
        self.layers[layer].group = group;
    }

    /// The option that every plan has for a layer, if one is fixed.
    pub fn fixed_option(&self, layer: usize) -> Option<u32> {
        self.layers[layer].fixed
    }

    /// Fixes a layer's option, or leaves it to the planner.
    ///
    /// # Panics
    /// When the layer does not have the option.
    pub fn set_fixed_option(&mut self, layer: usize, option: Option<u32>) {
        let options = self.labels(layer).len();
        assert!(option.is_none_or(|option| (option as usize) < options), "there is no option {option:?} of {options}");
        self.layers[layer].fixed = option;
    }

    /// The layer of a name. O(layers).
    pub fn find(&self, name: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.name == name)
    }

    /// The first option of a layer with this label, or else with this setting as text. O(options).
    pub fn find_option(&self, layer: usize, text: &str) -> Option<u32> {
        let labelled = self.labels(layer).iter().position(|label| label == text);
        let option = labelled.or_else(|| {
            let setting: Setting = text.parse().ok()?;
            self.settings[self.options(layer)].iter().position(|&known| known == Some(setting))
        });
        option.map(|option| option as u32)
    }
}
