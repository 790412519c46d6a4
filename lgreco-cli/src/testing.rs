//! What fuzz targets check.

pub mod arguments;
