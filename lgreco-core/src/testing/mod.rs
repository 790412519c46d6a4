//! Generators, oracles and property checks that tests, fuzz targets and every backend share.

pub mod feedback;
#[cfg(feature = "json")]
pub mod files;
pub mod models;
pub mod oracle;
pub mod plans;
pub mod powersgd;
pub mod qsgd;
pub mod tables;
pub mod topk;
