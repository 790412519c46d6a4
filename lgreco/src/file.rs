//! Table and plan files: JSON, version 1, with schemas in `schemas/` of the repository.
//!
//! Readers accept any bytes, and return a value or an [`Error`] that names the field. Keys that begin with `x-` are
//! private to the writer; readers ignore them. Other unknown keys, and keys that occur twice in an object, are errors.
//! Floats are written with enough digits to read back the same bits.

mod model;
mod plan;
mod read;
mod table;

pub use plan::{PlanFile, PlanLayer, Seconds};
pub use table::TableFile;

use crate::table::NamedError;
use alloc::string::String;

/// The version of both file formats.
pub const VERSION: u64 = 1;

/// An error in a table or plan file.
///
/// ```
/// use lgreco::file::{Error, TableFile};
/// assert_eq!(TableFile::parse(br#"{"version": 2}"#), Err(Error::Version { found: 2 }));
/// let message = TableFile::parse(br#"{"version": 1, "metric": 3}"#).unwrap_err().to_string();
/// assert_eq!(message, "metric is 3, expected a string");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not JSON, or the JSON value has a wrong type or form.
    #[error("{}{what}", Prefix(place))]
    Json {
        /// The layer and the option that contain the error, as far as known. Empty if the error is at the file's top
        /// level.
        place: String,
        /// The parser's message. Line and column are counted from the start of this layer or option, or of the file.
        what: String,
    },
    /// This library does not read the file's version.
    #[error("version is {found}, expected 1")]
    Version {
        /// The version in the file.
        found: u64,
    },
    /// A field is missing or has a wrong value.
    #[error("{}{field} is {found}, expected {expected}", Prefix(place))]
    Field {
        /// Layer and option. Empty if the error is at the file's top level.
        place: String,
        /// Name of the field.
        field: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The JSON in the file, shortened, or `missing`.
        found: String,
    },
    /// The file is of the other kind: a plan instead of a table, or a table instead of a plan.
    #[error("this is {found}, expected {expected}")]
    Kind {
        /// The kind of the file.
        found: &'static str,
        /// The expected kind.
        expected: &'static str,
    },
    /// The file has a key that version 1 does not define.
    #[error("{}key `{key}` is unknown: is `{nearest}` meant? (keys of your own begin with `x-`)", Prefix(place))]
    Key {
        /// Layer and option. Empty if the error is at the file's top level.
        place: String,
        /// The unknown key, shortened.
        key: String,
        /// The known key at the smallest edit distance.
        nearest: &'static str,
    },
    /// The text of a setting is wrong, or its parameters are out of range.
    #[error("{}{error}", Prefix(place))]
    Setting {
        /// Layer and option.
        place: String,
        /// The error in the setting.
        error: crate::Error,
    },
    /// The plan has a label but no setting for a layer. Plans that were made for a table without settings have only
    /// labels.
    #[error("layer `{layer}`: the plan has no setting for its option `{label}`")]
    NoSetting {
        /// Name of the layer.
        layer: String,
        /// Label of its option.
        label: String,
    },
    /// The file is well formed, but its table is invalid or its plan does not fit the model.
    #[error(transparent)]
    Table(#[from] NamedError),
}

struct Prefix<'a>(&'a str);

impl core::fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}
