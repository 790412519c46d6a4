use super::Tensor;
use crate::gradient::{Bf16, Dtype, Element, F16, Values, with_elements};
use crate::simd::{Kernel, dispatch};
use alloc::vec::Vec;

/// The mean gradient of the steps before a decision. Every rank counts, the measuring rank adds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Window {
    /// Steps seen.
    pub steps: u64,
    /// Means by layer; empty on ranks that do not measure.
    pub means: Vec<Vec<f32>>,
}

struct Blend<'a, T> {
    mean: &'a mut [f32],
    values: &'a [T],
    steps: f32,
}

impl<T: Element> Kernel for Blend<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        // A weighted mean: neither term nor their sum can overflow.
        let (old, new) = ((self.steps - 1.0) / self.steps, 1.0 / self.steps);
        self.mean.iter_mut().zip(self.values).for_each(|(mean, x)| *mean = *mean * old + x.to_f32() * new);
    }
}

impl Window {
    pub(super) fn clear(&mut self) {
        self.steps = 0;
        self.means.iter_mut().for_each(|mean| mean.fill(0.0));
    }

    /// The means in the element types of their layers.
    pub(super) fn typed(&self, tensors: &[Tensor]) -> Vec<Typed<'_>> {
        let typed = self.means.iter().zip(tensors).map(|(mean, tensor)| match tensor.dtype {
            Dtype::F32 => Typed::F32(mean),
            Dtype::F16 => Typed::F16(mean.iter().map(|&x| F16::from_f32(x)).collect()),
            Dtype::Bf16 => Typed::Bf16(mean.iter().map(|&x| Bf16::from_f32(x)).collect()),
        });
        typed.collect()
    }
}

/// Adds a layer's gradient, the `steps`-th, to its mean; on ranks that do not measure, which is empty, does nothing.
pub(super) fn add(mean: &mut [f32], gradient: Values<'_>, steps: u64) {
    let steps = steps as f32;
    with_elements!(gradient, values => dispatch(Blend { mean, values, steps }));
}

/// A mean in the element type of its layer.
pub(super) enum Typed<'a> {
    F32(&'a [f32]),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
}

impl Typed<'_> {
    pub(super) fn values(&self) -> Values<'_> {
        match self {
            Typed::F32(v) => Values::F32(v),
            Typed::F16(v) => Values::F16(v),
            Typed::Bf16(v) => Values::Bf16(v),
        }
    }
}
