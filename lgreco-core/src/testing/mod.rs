//! Generators, oracles and property checks that tests, fuzz targets and every backend share.
//!
//! Every `check_*` function panics when what it checks does not hold, and says what was found.

pub mod adacomp;
pub mod backend;
#[cfg(feature = "json")]
pub mod documents;
#[cfg(feature = "json")]
pub mod files;
pub mod fuzz;
pub mod golden;
pub mod hard_threshold;
pub mod hostile;
pub mod loco;
pub mod models;
pub mod oracle;
pub mod plans;
pub mod powersgd;
pub mod qsgd;
pub mod quantised_topk;
pub mod settings;
pub mod sidco;
pub mod tables;
pub mod topk;

/// Makes the checksum of a saved state right again, whatever its bytes are: of a controller, a memory, an end of a cut or
/// a cut's setting, all of which end with it. What is behind the checksum is reached by this alone.
pub fn reseal(bytes: &mut [u8]) {
    crate::checksum::seal(bytes);
}
