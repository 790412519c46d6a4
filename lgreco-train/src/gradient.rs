//! Gradients, borrowed from the trainer: those of [`lgreco::gradient`], and [`ValuesMut`], which are replaced by
//! their mean.

mod mutable;

pub use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
pub use mutable::ValuesMut;
