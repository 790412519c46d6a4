//! Gradients that are borrowed from the trainer: the types of [`lgreco::gradient`], and [`ValuesMut`] for values that
//! their mean replaces.

mod mutable;

pub use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
pub use mutable::ValuesMut;
