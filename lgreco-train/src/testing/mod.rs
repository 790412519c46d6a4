//! Generators and property checks of training, beside those of [`lgreco_core::testing`].
//!
//! Every `check_*` function panics when what it checks does not hold, and says what was found.

#[cfg(any(test, feature = "std"))]
pub mod controller;
#[cfg(any(test, feature = "std"))]
pub mod exchange;
pub mod feedback;
#[cfg(any(test, feature = "std"))]
pub mod hostile;
pub mod pipeline;
pub mod residual;

pub use lgreco_core::testing::*;
