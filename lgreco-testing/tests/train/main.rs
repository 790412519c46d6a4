//! Tests of lgreco-train's properties.

mod controller;
mod exchange;
mod feedback;
#[cfg(feature = "json")]
mod golden;
mod hostile;
mod outer;
mod pipeline;
#[cfg(feature = "json")]
mod vectors;
