//! Generators, oracles and property checks that tests, fuzz targets and every backend share.

pub mod powersgd;
