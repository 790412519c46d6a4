//! The measuring rank's own gradients, uncompressed and without residual, of which the controller decides. The mean
//! over the workers would not do: it is already compressed, and TopK's mean would tell TopK that it loses nothing.

use super::Tensor;
use crate::gradient::{Bf16, Dtype, Element, F16, Values, with_elements};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use lgreco::compress::spread::spread_parts;

/// The mean gradient of the steps before a decision. Every rank counts, the measuring rank adds.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// Steps seen.
    pub steps: u64,
    /// Means by layer, each empty between a decision and the first step of the next window; none on ranks that do not measure.
    /// Shared with a plan task, while there is one, and then not added to.
    means: Arc<Vec<Vec<f32>>>,
    /// Of layers whose means are elsewhere, a copy as they are now, empty where none was brought; by layer, as `means` are.
    elsewhere: Vec<Option<Vec<f32>>>,
}

impl Window {
    /// No steps yet, of a rank that measures.
    pub(super) fn new(tensors: &[Tensor]) -> Window {
        Window { steps: 0, means: Arc::new(vec![vec![]; tensors.len()]), elsewhere: vec![None; tensors.len()] }
    }

    /// Takes the memory of its means, at its first step.
    pub(super) fn open(&mut self, tensors: &[Tensor]) {
        for (mean, tensor) in self.means_mut().iter_mut().zip(tensors) {
            // Zeros of the allocator's, which take no memory before they are written to.
            *mean = vec![0.0; tensor.shape.elements()];
        }
    }

    /// Takes note that a layer's mean is elsewhere, and another one than before.
    pub(super) fn note_elsewhere(&mut self, layer: usize) {
        self.elsewhere[layer] = Some(vec![]);
    }

    /// Whether the means of some layers are elsewhere.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.elsewhere.iter().any(Option::is_some)
    }

    /// By layer, whether its mean is elsewhere.
    pub(super) fn elsewhere(&self) -> Vec<bool> {
        self.elsewhere.iter().map(Option::is_some).collect()
    }

    /// Takes a mean that was elsewhere: it is here from now on, or, while a task has the others, also here.
    pub(super) fn bring(&mut self, layer: usize, mean: &[f32]) {
        match Arc::get_mut(&mut self.means) {
            Some(means) => {
                means[layer] = mean.to_vec();
                self.elsewhere[layer] = None;
            }
            None => self.elsewhere[layer] = Some(mean.to_vec()),
        }
    }

    /// A layer's mean, to be saved; `None` on ranks that do not measure and between windows, `Err` with a layer whose mean has to be brought first.
    pub(super) fn mean(&self, layer: usize) -> Result<Option<&[f32]>, usize> {
        match self.elsewhere.get(layer) {
            Some(Some(mean)) if mean.is_empty() && !self.means[layer].is_empty() => Err(layer),
            Some(Some(mean)) => Ok(Some(mean)),
            _ => Ok(self.means.get(layer).map(Vec::as_slice).filter(|_| self.steps > 0)),
        }
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

    /// Starts anew, whatever was lost or is still with a task that nobody waits for; frees the means.
    pub(super) fn clear(&mut self) {
        self.steps = 0;
        match Arc::get_mut(&mut self.means) {
            // `fill` would keep their memory.
            Some(means) => means.iter_mut().for_each(|mean| *mean = vec![]),
            None => self.means = Arc::new(vec![vec![]; self.elsewhere.len()]),
        }
        self.elsewhere.fill(None);
    }
}

/// Adds a layer's gradient, the `steps`-th, to its mean; on ranks that do not measure, which is empty, does nothing.
pub(super) fn add(mean: &mut [f32], gradient: Values<'_>, steps: u64) {
    #[inline(always)]
    fn blend<T: Element>((mean, values): (&mut [f32], &[T]), [old, new]: [f32; 2]) {
        mean.iter_mut().zip(values).for_each(|(mean, x)| *mean = *mean * old + x.to_f32() * new);
    }
    let steps = steps as f32;
    // A weighted mean: neither term nor their sum can overflow.
    let weights = [(steps - 1.0) / steps, 1.0 / steps];
    let elements = mean.len();
    with_elements!(gradient, values => spread_parts!(elements, 1, (mean, values), weights, blend));
}

/// A mean in the element type of its layer.
pub(super) enum Typed<'a> {
    F32(&'a [f32]),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
}

impl<'a> Typed<'a> {
    /// A mean in this type.
    pub(super) fn new(mean: &'a [f32], dtype: Dtype) -> Typed<'a> {
        match dtype {
            Dtype::F32 => Typed::F32(mean),
            Dtype::F16 => Typed::F16(mean.iter().map(|&x| F16::from_f32(x)).collect()),
            Dtype::Bf16 => Typed::Bf16(mean.iter().map(|&x| Bf16::from_f32(x)).collect()),
        }
    }

    pub(super) fn values(&self) -> Values<'_> {
        match self {
            Typed::F32(v) => Values::F32(v),
            Typed::F16(v) => Values::F16(v),
            Typed::Bf16(v) => Values::Bf16(v),
        }
    }
}
