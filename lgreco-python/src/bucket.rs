//! Buckets: layers that are exchanged together.

use crate::cores::detached;
use crate::error::{LgrecoError, raised};
use crate::memory::Gradients;
use crate::request::Request;
use lgreco_train::controller::two_level::LevelsBucket;
use lgreco_train::controller::{Joined, Tensor};
use lgreco_train::{CoreError, Error};
use pyo3::prelude::*;
use std::sync::Arc;

/// A bucket in flight. Callers call `open`, `submit`, and then `next` until it returns None.
#[pyclass(module = "lgreco._lgreco")]
pub(crate) struct Bucket {
    /// The open bucket; None before the bucket is opened and after it is closed.
    pub(crate) bucket: Option<LevelsBucket>,
    pub(crate) tensors: Arc<[Tensor]>,
    pub(crate) names: Arc<[String]>,
    pub(crate) gradients: Gradients,
    /// Whether one collective sums all gradients, in place.
    #[pyo3(get)]
    pub(crate) is_joined: bool,
}

#[pymethods]
impl Bucket {
    /// Makes an empty bucket, which the controller then opens. So Python already holds the bucket if an interrupt comes
    /// while the controller opens it.
    #[new]
    fn new() -> Bucket {
        let (tensors, names) = (Arc::from([]), Arc::from([]));
        Bucket { bucket: None, tensors, names, gradients: Gradients::default(), is_joined: false }
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.bucket.is_none()
    }

    /// Largest possible number of collectives.
    fn rounds(&self, py: Python<'_>) -> PyResult<usize> {
        let bucket = self.bucket.as_ref().ok_or_else(closed)?;
        let rounds = bucket.rounds().map_err(|error| raised(py, error, &self.names))?.len();
        // One collective sums all layers of a joined bucket.
        Ok(if self.is_joined { rounds + 1 - bucket.layers().len() } else { rounds })
    }

    /// Declares, before `submit` or `submit_failure`, that the gradients are one piece of f32 values on all ranks.
    fn join(&mut self, py: Python<'_>) -> PyResult<()> {
        let Bucket { bucket, names, is_joined, .. } = self;
        *is_joined = bucket.as_mut().ok_or_else(closed)?.join().map_err(|error| raised(py, error, names))?;
        Ok(())
    }

    /// Submits the gradients at these addresses. Until the bucket is done, gradients must stay in place, and nothing
    /// else may use their memory. With `hold_zeros`, layers whose gradient is all zeros keep their residual instead of
    /// sending it.
    fn submit(&mut self, py: Python<'_>, addresses: Vec<usize>, hold_zeros: bool) -> PyResult<()> {
        let Bucket { bucket, tensors, names, gradients, is_joined } = self;
        let bucket = bucket.as_mut().ok_or_else(closed)?;
        let layers = bucket.layers();
        let (expected, found) = (layers.len(), addresses.len());
        if expected != found {
            let what = "gradients, one per layer";
            return Err(raised(py, Error::Core(CoreError::Length { what, expected, found }), names));
        }
        let places = layers
            .iter()
            .zip(addresses)
            .map(|(&layer, address)| (address, tensors[layer].dtype(), tensors[layer].shape().elements()));
        *gradients = Gradients::new(places)?;
        if *is_joined && gradients.in_one_piece().is_none() {
            return Err(LgrecoError::new_err("the gradients of a joined bucket are not one piece of memory"));
        }
        let submitted = detached(py, || {
            for (at, &layer) in layers.iter().enumerate().filter(|_| hold_zeros) {
                if gradients.is_zero(at) {
                    bucket.withhold(layer)?;
                }
            }
            gradients.with(|values| bucket.submit(values))
        });
        submitted.map_err(|error| raised(py, error, names))
    }

    /// Submits a failure instead of gradients: all ranks learn that this rank's trainer has failed.
    fn submit_failure(&mut self, py: Python<'_>, out_of_memory: bool) -> PyResult<()> {
        let bucket = self.bucket.as_mut().ok_or_else(closed)?;
        self.gradients = Gradients::default();
        let failure = match out_of_memory {
            true => CoreError::OutOfMemory { words: 0 }.into(),
            false => Error::StepOrder { what: "the trainer has failed", expected: "gradients" },
        };
        bucket.submit_failure(failure).map_err(|error| raised(py, error, &self.names))
    }

    /// Whether the last call of `next` has paused. The next call returns the last collective.
    #[getter]
    fn is_paused(&self) -> bool {
        self.bucket.as_ref().is_some_and(LevelsBucket::is_paused)
    }

    /// Continues after the previous collective is done, and returns the next collective. Returns None when means have
    /// replaced the gradients. In training over nodes, also returns None once before the last collective.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Request>> {
        let Bucket { bucket, names, gradients, .. } = self;
        let bucket = bucket.as_mut().ok_or_else(closed)?;
        let piece = gradients.in_one_piece().unwrap_or_default();
        let next = detached(py, || {
            gradients.with(|values| {
                if bucket.is_paused() {
                    return Ok(bucket.next(values)?.map(Request::within));
                }
                Ok(bucket.next_joined(values)?.map(|(group, next)| match next {
                    Joined::Request(request) => Request::within((group, request)),
                    Joined::Gradients => Request::of_gradients(piece),
                }))
            })
        });
        next.map_err(|error| raised(py, error, names))
    }
}

fn closed() -> PyErr {
    LgrecoError::new_err("the bucket has been closed")
}
