//! An owned table whose layers and options have names.

mod constraints;

use super::{Choice, Table};
use crate::compress::Setting;
use crate::error::{Number, distinct};
use crate::{Error, Result};
use alloc::{borrow::ToOwned, string::String, vec::Vec};
use core::fmt;
use core::ops::Range;

/// An owned, validated table with the names of its layers and options.
///
/// ```
/// use lgreco::{plan, table::{Choice, NamedTable}};
/// let mut builder = NamedTable::builder("l2");
/// let option = |label: &str, size, error| (label.to_string(), Choice { size, error });
/// builder.layer("fc1.weight", 1000, Some(0), [option("qsgd 4", 4096, 0.5), option("qsgd 2", 2048, 2.0)]);
/// builder.layer("fc2.weight", 100, Some(0), [option("qsgd 4", 496, 0.1)]);
/// let table = builder.build()?;
/// assert_eq!((table.name(0), table.label(0, 1)), ("fc1.weight", "qsgd 2"));
/// assert_eq!(table.view().layers(), 2);
/// # Ok::<(), lgreco::table::NamedError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTable {
    metric: String,
    layers: Vec<NamedLayer>,
    labels: Vec<String>,
    choices: Vec<Choice>,
    settings: Vec<Option<Setting>>,
    ends: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq)]
struct NamedLayer {
    name: String,
    elements: u64,
    uncompressed_size: Option<u64>,
    default: Option<u32>,
    group: Option<String>,
    fixed: Option<u32>,
}

impl NamedTable {
    /// Starts a table. `metric` is the name of the errors' metric, for display.
    pub fn builder(metric: impl Into<String>) -> Builder {
        Builder(NamedTable {
            metric: metric.into(),
            layers: Vec::new(),
            labels: Vec::new(),
            choices: Vec::new(),
            settings: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// The table without names, as planners take it.
    pub fn view(&self) -> Table<'_> {
        Table::of_checked(&self.choices, &self.ends)
    }

    /// The name of the errors' metric.
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// Number of layers, at least 1.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The name of a layer.
    ///
    /// # Panics
    /// When `layer >= self.layers()`. All functions that take the index of a layer or an option panic if the table
    /// lacks that layer or option.
    pub fn name(&self, layer: usize) -> &str {
        &self.layers[layer].name
    }

    /// Number of elements of a layer's gradient.
    pub fn elements(&self, layer: usize) -> u64 {
        self.layers[layer].elements
    }

    /// Size of a layer's uncompressed gradient in bits, if this size was set.
    pub fn uncompressed_size(&self, layer: usize) -> Option<u64> {
        self.layers[layer].uncompressed_size
    }

    /// Sets the size of a layer's uncompressed gradient in bits. By default, readers assume 32 bits per element.
    pub fn set_uncompressed_size(&mut self, layer: usize, bits: u64) {
        self.layers[layer].uncompressed_size = Some(bits);
    }

    /// The layer's default option, if it has one.
    pub fn default_option(&self, layer: usize) -> Option<u32> {
        self.layers[layer].default
    }

    /// The default options of all layers, if every layer has one.
    pub fn defaults(&self) -> Option<Vec<u32>> {
        self.layers.iter().map(|layer| layer.default).collect()
    }

    /// The labels of a layer's options.
    pub fn labels(&self, layer: usize) -> &[String] {
        &self.labels[self.options(layer)]
    }

    /// The range of a layer's options in the list of all options.
    fn options(&self, layer: usize) -> Range<usize> {
        let start = if layer == 0 { 0 } else { self.ends[layer - 1] };
        start..self.ends[layer]
    }

    /// The label of an option.
    pub fn label(&self, layer: usize, option: usize) -> &str {
        &self.labels(layer)[option]
    }

    /// The setting of an option, or `None` if the setting is not known. Measured tables have all settings. Other tables
    /// have only the settings that the caller has set.
    ///
    /// # Panics
    /// When the table has no such layer or option.
    pub fn setting(&self, layer: usize, option: usize) -> Option<Setting> {
        self.settings[self.options(layer)][option]
    }

    /// Sets the setting of an option, so that plans for this table can be used in training.
    ///
    /// # Panics
    /// When the table has no such layer or option.
    pub fn set_setting(&mut self, layer: usize, option: usize, setting: Setting) {
        let options = self.options(layer);
        self.settings[options][option] = Some(setting);
    }

    /// Appends an option to a layer, for example one of an outside compressor, and returns its index.
    ///
    /// ```
    /// use lgreco::table::{Choice, NamedTable};
    /// let mut builder = NamedTable::builder("squared-l2");
    /// builder.layer("fc1.weight", 1000, Some(0), [("qsgd 4".to_string(), Choice { size: 4192, error: 0.5 })]);
    /// builder.layer("fc2.weight", 1000, Some(0), [("qsgd 4".to_string(), Choice { size: 4192, error: 0.5 })]);
    /// let mut table = builder.build()?;
    /// assert_eq!(table.add_option(0, "mine", Choice { size: 1128, error: 0.6 }, None)?, 1);
    /// assert_eq!((table.label(0, 1), table.label(1, 0)), ("mine", "qsgd 4"));
    /// assert!(table.add_option(0, "mine", Choice { size: 1128, error: f64::NAN }, None).is_err());
    /// # Ok::<(), lgreco::table::NamedError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Table::new`], with names. After an error, the table is unchanged.
    ///
    /// # Panics
    /// When the table has no such layer.
    ///
    /// # Complexity
    /// O(all options).
    pub fn add_option(
        &mut self,
        layer: usize,
        label: impl Into<String>,
        choice: Choice,
        setting: Option<Setting>,
    ) -> Result<u32, NamedError> {
        let (at, options) = (self.ends[layer], self.options(layer).len());
        self.labels.insert(at, label.into());
        self.choices.insert(at, choice);
        self.settings.insert(at, setting);
        self.ends[layer..].iter_mut().for_each(|end| *end += 1);
        if let Err(error) = Table::new(&self.choices, &self.ends) {
            let named = self.name_error(error);
            self.labels.remove(at);
            self.choices.remove(at);
            self.settings.remove(at);
            self.ends[layer..].iter_mut().for_each(|end| *end -= 1);
            return Err(named);
        }
        Ok(options as u32)
    }

    /// Adds names to an error about this table.
    ///
    /// ```
    /// # use lgreco::{Error, table::{Choice, NamedTable}};
    /// # let mut builder = NamedTable::builder("l2");
    /// builder.layer("fc1.weight", 1000, None, [("dense".to_string(), Choice { size: 32000, error: 0.0 })]);
    /// let table = builder.build()?;
    /// let error = table.view().chosen(&[3]).err().unwrap();
    /// assert_eq!(table.name_error(error).to_string(), "layer `fc1.weight`: there is no option 3 of 1");
    /// # Ok::<(), lgreco::table::NamedError>(())
    /// ```
    pub fn name_error(&self, error: Error) -> NamedError {
        let layer = error.layer().filter(|&layer| layer < self.layers());
        let option = layer.zip(error.option()).and_then(|(layer, option)| self.labels(layer).get(option));
        NamedError { error, layer: layer.map(|layer| self.name(layer).to_owned()), option: option.cloned() }
    }
}

/// Collects the layers of a [`NamedTable`].
///
/// ```
/// use lgreco::table::{Choice, NamedTable};
/// let mut builder = NamedTable::builder("l2");
/// for (name, elements) in [("fc1.weight", 1000), ("fc2.weight", 10)] {
///     let dense = Choice { size: 128 + 32 * elements, error: 0.0 };
///     builder.layer(name, elements, Some(0), [("dense".to_string(), dense)]);
/// }
/// assert_eq!(builder.build()?.elements(0), 1000);
/// # Ok::<(), lgreco::table::NamedError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder(NamedTable);

impl Builder {
    /// Adds a layer: name, number of elements, default option (an index into `options`) and labelled options.
    ///
    /// ```
    /// # use lgreco::table::{Choice, NamedTable};
    /// let mut builder = NamedTable::builder("l2");
    /// let option = |bits: u64, error| (format!("qsgd {bits}"), Choice { size: 192 + 1000 * bits, error });
    /// builder.layer("fc1.weight", 1000, Some(1), [option(2, 2.0), option(4, 0.5), option(8, 0.03)]);
    /// let table = builder.build()?;
    /// assert_eq!((table.label(0, 1), table.defaults()), ("qsgd 4", Some(vec![1])));
    /// # Ok::<(), lgreco::table::NamedError>(())
    /// ```
    pub fn layer(
        &mut self,
        name: impl Into<String>,
        elements: u64,
        default: Option<u32>,
        options: impl IntoIterator<Item = (String, Choice)>,
    ) -> &mut Self {
        let table = &mut self.0;
        table.layers.push(NamedLayer {
            name: name.into(),
            elements,
            uncompressed_size: None,
            default,
            group: None,
            fixed: None,
        });
        for (label, choice) in options {
            table.labels.push(label);
            table.choices.push(choice);
            table.settings.push(None);
        }
        table.ends.push(table.choices.len());
        self
    }

    /// Validates the table.
    ///
    /// ```
    /// # use lgreco::table::{Choice, NamedTable};
    /// let mut builder = NamedTable::builder("l2");
    /// builder.layer("fc1.weight", 1000, None, [("qsgd 4".to_string(), Choice { size: 4192, error: f64::NAN })]);
    /// let message = "layer `fc1.weight`, option 0 (`qsgd 4`): error is NaN, expected a finite number >= 0";
    /// assert_eq!(builder.build().unwrap_err().to_string(), message);
    /// ```
    ///
    /// # Errors
    /// The errors of [`Table::new`]. [`Error::NoSuchOption`] for a default that its layer lacks.
    /// [`Error::DuplicateName`] when two layers share a name. All these errors name the layer, and the option if one is
    /// at fault.
    ///
    /// # Complexity
    /// O(options + layers·log(layers)).
    pub fn build(self) -> Result<NamedTable, NamedError> {
        let table = self.0;
        match table.validate() {
            Ok(()) => Ok(table),
            Err(error) => Err(table.name_error(error)),
        }
    }
}

impl NamedTable {
    fn validate(&self) -> Result<()> {
        let view = Table::new(&self.choices, &self.ends)?;
        for (layer, (named, options)) in self.layers.iter().zip(view.iter()).enumerate() {
            if let Some(option) = named.default.map(|option| option as usize).filter(|&option| option >= options.len())
            {
                return Err(Error::NoSuchOption { layer, option, options: options.len() });
            }
        }
        distinct(self.layers.iter().map(|layer| &*layer.name)).map(drop)
    }
}

/// An [`Error`] with the names of the layer and the option at fault.
///
/// ```
/// use lgreco::{Error, table::NamedError};
/// let error = Error::NonFinite { index: 17, value: f32::INFINITY };
/// let named = NamedError { error, layer: Some("fc1.weight".into()), option: None };
/// assert_eq!(named.to_string(), "layer `fc1.weight`: element 17 is inf: gradients must be finite");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NamedError {
    /// The error without names.
    pub error: Error,
    /// Name of the faulty layer, for errors that concern one.
    pub layer: Option<String>,
    /// Label of the faulty option, for errors that concern one.
    pub option: Option<String>,
}

impl fmt::Display for NamedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(name) = &self.layer else { return self.error.fmt(f) };
        write!(f, "layer `{name}`")?;
        if let (Some(option), Some(label)) = (self.error.option(), &self.option) {
            write!(f, ", option {option} (`{label}`)")?;
        }
        match self.error {
            Error::EmptyLayer { .. } => f.write_str(" has no options"),
            Error::OptionError { value, .. } => {
                write!(f, ": error is {}, expected a finite number >= 0", Number(&value))
            }
            Error::SizeOverflow { size, .. } => write!(f, ": size {size} makes the total overflow 64 bits"),
            Error::NoSuchOption { option, options, .. } => write!(f, ": there is no option {option} of {options}"),
            Error::DuplicateName { layer, first } => write!(f, ": layers {first} and {layer} share this name"),
            Error::NoSharedOption { first, .. } => {
                write!(
                    f,
                    ": none of its options is shared by all layers of its group, the first of which is layer {first}, counted from 0; \
                     compare their labels and fixed options"
                )
            }
            Error::RuledOut { allowed, .. } => write!(
                f,
                ": the table's groups and fixed options rule this option out; they allow option {allowed}, for one"
            ),
            other => write!(f, ": {other}"),
        }
    }
}

impl core::error::Error for NamedError {}

impl From<NamedError> for Error {
    fn from(named: NamedError) -> Error {
        named.error
    }
}

impl From<Error> for NamedError {
    fn from(error: Error) -> NamedError {
        NamedError { error, layer: None, option: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::ToString, vec};

    fn options(errors: &[f64]) -> Vec<(String, Choice)> {
        errors.iter().map(|&error| (format!("topk {error}%"), Choice { size: 1 << 63, error })).collect()
    }

    fn build(layers: &[(&str, Option<u32>, &[f64])]) -> Result<NamedTable, NamedError> {
        let mut builder = NamedTable::builder("l2");
        for &(name, default, errors) in layers {
            builder.layer(name, 7, default, options(errors));
        }
        builder.build()
    }

    #[test]
    fn errors_name_layer_and_option() {
        let message = |layers: &[(&str, Option<u32>, &[f64])]| build(layers).unwrap_err().to_string();
        assert_eq!(
            message(&[]),
            "the table has no layers: a search leaves out vectors and layers of fewer than `min_elements` elements"
        );
        assert_eq!(message(&[("a", None, &[1.0]), ("b.weight", None, &[])]), "layer `b.weight` has no options");
        assert_eq!(
            message(&[("fc1", None, &[1.0, -2.0])]),
            "layer `fc1`, option 1 (`topk -2%`): error is -2, expected a finite number >= 0"
        );
        assert_eq!(
            message(&[("a", None, &[1.0]), ("b", None, &[1.0])]),
            "layer `b`, option 0 (`topk 1%`): size 9223372036854775808 makes the total overflow 64 bits"
        );
        assert_eq!(message(&[("a", Some(2), &[1.0, 2.0])]), "layer `a`: there is no option 2 of 2");
        let (mut builder, small) = (NamedTable::builder("l2"), ("x".to_owned(), Choice { size: 1, error: 0.0 }));
        builder.layer("a", 1, None, [small.clone()]).layer("b", 1, None, [small.clone()]).layer("a", 1, None, [small]);
        assert_eq!(builder.build().unwrap_err().to_string(), "layer `a`: layers 0 and 2 share this name");
    }

    #[test]
    fn defaults_make_a_plan_only_if_all_are_there() {
        let table = build(&[("a", Some(1), &[1.0, 2.0])]).unwrap();
        assert_eq!(table.defaults(), Some(vec![1]));
        assert_eq!(table.view().layer(0).len(), 2);
        assert_eq!(build(&[("a", None, &[1.0, 2.0])]).unwrap().defaults(), None);
    }
}
