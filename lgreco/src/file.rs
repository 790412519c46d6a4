//! Table and plan files: JSON, version 1, with schemas in `schemas/` of the repository.
//!
//! Readers are total: any bytes give a value or an [`Error`] that says where. Keys that begin with `x-` are the writers'
//! own and ignored; other keys that version 1 does not know are errors, as are keys that an object has twice. Floats are
//! written with the digits that read back to the same bits.

mod model;
mod plan;
mod read;
mod table;

pub use plan::{PlanFile, PlanLayer, Seconds};
pub use table::TableFile;

use crate::table::NamedError;
use alloc::string::String;

/// The version of both formats.
pub const VERSION: u64 = 1;

/// Why bytes are not a table or plan file.
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
    /// Not JSON, or not the JSON expected there.
    #[error("{}{what}", Prefix(place))]
    Json {
        /// Layer and option, as far as they are known; empty at the top.
        place: String,
        /// What the parser says, with line and column from the start of that place.
        what: String,
    },
    /// A version this library does not read.
    #[error("version is {found}, expected 1")]
    Version {
        /// The version found.
        found: u64,
    },
    /// A field that is missing or not what it should be.
    #[error("{}{field} is {found}, expected {expected}", Prefix(place))]
    Field {
        /// Layer and option; empty at the top.
        place: String,
        /// The field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
        /// The JSON found, shortened, or `missing`.
        found: String,
    },
    /// A file of the other kind: a plan instead of a table, or a table instead of a plan.
    #[error("this is {found}, expected {expected}")]
    Kind {
        /// What it is.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A key that version 1 does not know.
    #[error("{}key `{key}` is unknown: is `{nearest}` meant? (keys of your own begin with `x-`)", Prefix(place))]
    Key {
        /// Layer and option; empty at the top.
        place: String,
        /// The key, shortened.
        key: String,
        /// The known key with the fewest letters to change.
        nearest: &'static str,
    },
    /// A setting that is not understood, or whose parameters are out of range.
    #[error("{}{error}", Prefix(place))]
    Setting {
        /// Layer and option.
        place: String,
        /// What is wrong with it.
        error: crate::Error,
    },
    /// A plan has a layer by its label alone: it was made for a table without settings.
    #[error("layer `{layer}`: the plan has no setting for its option `{label}`")]
    NoSetting {
        /// Name of the layer.
        layer: String,
        /// Label of its option.
        label: String,
    },
    /// The file is well formed; the table in it is not valid, or the plan does not fit the model.
    #[error(transparent)]
    Table(#[from] NamedError),
}

struct Prefix<'a>(&'a str);

impl core::fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}
