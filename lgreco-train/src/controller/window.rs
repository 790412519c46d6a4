//! The measuring rank's own gradients, uncompressed and without residual, of which the controller decides. The mean
//! over the workers would not do: it is already compressed, and TopK's mean would tell TopK that it loses nothing.

use super::Tensor;
use crate::gradient::{Bf16, Dtype, Element, F16, Values, with_elements};
use crate::internal::spread::{Divide, spread};
use crate::simd::Kernel;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// The mean gradient of the steps before a decision. Every rank counts, the measuring rank adds.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// Steps seen.
    pub steps: u64,
    /// Means by layer; empty on ranks that do not measure. Shared with a plan task, while there is one, and then not
    /// added to.
    means: Arc<Vec<Vec<f32>>>,
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

impl<T: Element> Divide for Blend<'_, T> {
    fn elements(&self) -> usize {
        self.mean.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let Blend { mean, values, steps } = self;
        let ((mean, other_mean), (values, others)) = (mean.split_at_mut(at), values.split_at(at));
        Ok((Blend { mean, values, steps }, Blend { mean: other_mean, values: others, steps }))
    }

    fn join((): (), (): ()) {}
}

impl Window {
    /// No steps yet, of a rank that measures.
    pub(super) fn new(tensors: &[Tensor]) -> Window {
        Window { steps: 0, means: Arc::new(zeros(tensors)) }
    }

    pub(super) fn means(&self) -> &[Vec<f32>] {
        &self.means
    }

    /// To be added to. Nobody else has them at such times.
    pub(super) fn means_mut(&mut self) -> &mut [Vec<f32>] {
        let means: &mut Vec<_> = Arc::make_mut(&mut self.means);
        means
    }

    /// The means for a task, unless one has them already.
    pub(super) fn share(&mut self) -> Option<Arc<Vec<Vec<f32>>>> {
        self.is_free().then(|| self.means.clone())
    }

    /// Whether no task has the means.
    pub(super) fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.means).is_some()
    }

    /// Whether a task was given these means.
    pub(super) fn is_of(&self, means: &Arc<Vec<Vec<f32>>>) -> bool {
        Arc::ptr_eq(&self.means, means)
    }

    /// Starts anew, whatever was lost or is still with a task that nobody waits for.
    pub(super) fn clear(&mut self, tensors: &[Tensor]) {
        self.steps = 0;
        if self.means.is_empty() {
            return;
        }
        match Arc::get_mut(&mut self.means) {
            Some(means) => means.iter_mut().zip(tensors).for_each(|(mean, tensor)| {
                mean.fill(0.0);
                mean.resize(tensor.shape.elements(), 0.0);
            }),
            None => self.means = Arc::new(zeros(tensors)),
        }
    }
}

fn zeros(tensors: &[Tensor]) -> Vec<Vec<f32>> {
    tensors.iter().map(|tensor| vec![0.0; tensor.shape.elements()]).collect()
}

/// The means in the element types of their layers.
pub(super) fn typed<'a>(means: &'a [Vec<f32>], tensors: &[Tensor]) -> Vec<Typed<'a>> {
    let typed = means.iter().zip(tensors).map(|(mean, tensor)| match tensor.dtype {
        Dtype::F32 => Typed::F32(mean),
        Dtype::F16 => Typed::F16(mean.iter().map(|&x| F16::from_f32(x)).collect()),
        Dtype::Bf16 => Typed::Bf16(mean.iter().map(|&x| Bf16::from_f32(x)).collect()),
    });
    typed.collect()
}

/// Adds a layer's gradient, the `steps`-th, to its mean; on ranks that do not measure, which is empty, does nothing.
pub(super) fn add(mean: &mut [f32], gradient: Values<'_>, steps: u64) {
    let steps = steps as f32;
    with_elements!(gradient, values => spread(Blend { mean, values, steps }));
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
