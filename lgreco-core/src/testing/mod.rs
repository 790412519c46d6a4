//! Generators, oracles and property checks that tests, fuzz targets and every backend share.

#[cfg(feature = "json")]
pub mod files;
pub mod plans;
pub mod tables;
