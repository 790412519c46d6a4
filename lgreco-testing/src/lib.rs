//! Generators, oracles and property checks that tests, benches, fuzz targets and every backend share. Unpublished.
//!
//! Every `check_*` function panics if a check fails, and says what was found.
//!
//! The properties of the core, the compressors and training are tested in `tests/core` and `tests/train`, which are a
//! separate package. The unit tests of those crates test private items. Unit tests do not use lgreco-testing, because
//! its types would differ from the types of the crate under test.
#![forbid(unsafe_code)]

pub mod adacomp;
pub mod backend;
pub mod controller;
#[cfg(feature = "json")]
pub mod documents;
pub mod eden;
pub mod exchange;
pub mod feedback;
#[cfg(feature = "json")]
pub mod files;
pub mod fuzz;
pub mod golden;
pub mod hard_threshold;
pub mod hostile;
pub mod loco;
pub mod models;
pub mod noise;
pub mod oracle;
pub mod pipeline;
pub mod plans;
pub mod powersgd;
pub mod qsgd;
pub mod quantised_topk;
pub mod residual;
pub mod settings;
pub mod sidco;
pub mod tables;
pub mod topk;

/// Corrects the checksum of a damaged saved state: of a controller, a memory, an end of a cut or a cut's setting. All
/// these states end with their checksum. Without the correction, damaged bytes would never reach the later checks.
pub fn reseal(bytes: &mut [u8]) {
    lgreco::checksum::seal(bytes);
}

/// Number of cases for a property that does not use proptest's default. The variable PROPTEST_CASES can only lower this
/// number.
///
/// # Panics
/// Panics if the variable is not a number.
pub fn cases(most: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").map(|cases| cases.parse().expect("PROPTEST_CASES is a number"));
    most.min(asked.unwrap_or(most))
}
