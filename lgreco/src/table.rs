//! What there is to choose from: per layer, a ragged list of options with their size and error; with names and settings where
//! people or files have them.

#[cfg(feature = "alloc")]
mod named;

pub use lgreco_core::table::{Choice, Table};
#[cfg(feature = "alloc")]
pub use named::{Builder, NamedError, NamedTable};
