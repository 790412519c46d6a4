//! The properties of lgreco-train.

mod controller;
mod exchange;
mod feedback;
mod hostile;
mod outer;
mod pipeline;
