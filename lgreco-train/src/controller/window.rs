//! The mean of the measuring rank's own gradients, uncompressed and without residual. Decisions are based on this mean. The mean
//! over the workers would be misleading, because it has already been compressed: TopK makes almost no error on a gradient that TopK
//! has made sparse.

use super::Tensor;
use super::buffers::values;
use crate::Error;
use crate::gradient::{Bf16, Dtype, Element, F16, Values, with_elements};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use lgreco::compress::spread::spread_parts;

/// The mean gradient of the steps before a decision. Every rank counts the steps. Only the measuring rank stores the mean gradient.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// Number of steps so far.
    pub steps: u64,
    /// The mean of each layer, empty between a decision and the first step of the next window. On ranks that do not measure, the
    /// list of layers is empty. While a plan task shares the means, nothing is added to them.
    means: Arc<Vec<Vec<f32>>>,
    /// For each layer, `Some` if a device has the mean. The vector holds a copy of the mean, or is empty if no copy was brought to
    /// the host.
    elsewhere: Vec<Option<Vec<f32>>>,
}

impl Window {
    /// An empty window on the measuring rank.
    pub(super) fn new(tensors: &[Tensor]) -> Window {
        Window { steps: 0, means: Arc::new(vec![vec![]; tensors.len()]), elsewhere: vec![None; tensors.len()] }
    }

    /// Allocates the means, at the first step.
    ///
    /// # Errors
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
    pub(super) fn open(&mut self, tensors: &[Tensor]) -> Result<(), Error> {
        for (mean, tensor) in self.means_mut().iter_mut().zip(tensors) {
            *mean = values(tensor.shape.elements())?;
        }
        Ok(())
    }

    /// Records that a device has a layer's mean, and has changed it. A copy on the host is out of date after such a change.
    pub(super) fn note_elsewhere(&mut self, layer: usize) {
        self.elsewhere[layer] = Some(vec![]);
    }

    /// Whether a device has the mean of some layer.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.elsewhere.iter().any(Option::is_some)
    }

    /// For each layer, whether a device has its mean.
    pub(super) fn elsewhere(&self) -> Vec<bool> {
        self.elsewhere.iter().map(Option::is_some).collect()
    }

    /// Takes over a mean from a device. If a task shares the means, the mean is only stored as a copy.
    pub(super) fn bring(&mut self, layer: usize, mean: &[f32]) {
        match Arc::get_mut(&mut self.means) {
            Some(means) => {
                means[layer] = mean.to_vec();
                self.elsewhere[layer] = None;
            }
            None => self.elsewhere[layer] = Some(mean.to_vec()),
        }
    }

    /// A layer's mean, for saved states. `None` on ranks that do not measure, and between windows. `Err` with the layer if its mean must
    /// be brought from a device first.
    pub(super) fn mean(&self, layer: usize) -> Result<Option<&[f32]>, usize> {
        match self.elsewhere.get(layer) {
            Some(Some(mean)) if mean.is_empty() && !self.means[layer].is_empty() => Err(layer),
            Some(Some(mean)) => Ok(Some(mean)),
            _ => Ok(self.means.get(layer).map(Vec::as_slice).filter(|_| self.steps > 0)),
        }
    }

    /// The means as a mutable slice. When this method is called, no task shares the means.
    pub(super) fn means_mut(&mut self) -> &mut [Vec<f32>] {
        let means: &mut Vec<_> = Arc::make_mut(&mut self.means);
        means
    }

    /// The means for a plan task, unless another task has them.
    pub(super) fn share(&mut self) -> Option<Arc<Vec<Vec<f32>>>> {
        self.is_free().then(|| self.means.clone())
    }

    /// Whether no task has the means.
    pub(super) fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.means).is_some()
    }

    /// Whether `means`, which were given to a task, are still the present means.
    pub(super) fn is_of(&self, means: &Arc<Vec<Vec<f32>>>) -> bool {
        Arc::ptr_eq(&self.means, means)
    }

    /// Begins a new window, and frees the means.
    pub(super) fn clear(&mut self) {
        self.steps = 0;
        match Arc::get_mut(&mut self.means) {
            // The means are replaced by empty ones, because `fill` would keep their memory.
            Some(means) => means.iter_mut().for_each(|mean| *mean = vec![]),
            None => self.means = Arc::new(vec![vec![]; self.elsewhere.len()]),
        }
        self.elsewhere.fill(None);
    }
}

/// Adds gradient number `steps` of a layer to its mean. An empty mean stays empty, for instance on ranks that do not measure.
pub(super) fn add(mean: &mut [f32], gradient: Values<'_>, steps: u64) {
    #[inline(always)]
    fn blend<T: Element>((mean, values): (&mut [f32], &[T]), [old, new]: [f32; 2]) {
        mean.iter_mut().zip(values).for_each(|(mean, x)| *mean = *mean * old + x.to_f32() * new);
    }
    let steps = steps as f32;
    // In a weighted mean, neither the terms nor their sum can overflow.
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
    /// A mean, converted to the element type `dtype`.
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
