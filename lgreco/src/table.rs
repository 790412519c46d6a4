//! Error tables: for each layer a list of options with size and error. Named tables add the names and settings that
//! users and files need.

#[cfg(feature = "alloc")]
mod named;

pub use lgreco_core::table::{Choice, Table};
#[cfg(feature = "alloc")]
pub use named::{Builder, NamedError, NamedTable};
