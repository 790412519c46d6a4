//! EF21: both ends hold an estimate of the sender's batch, with one value per position. Each message corrects the
//! estimate.

use crate::compress::check_finite;
use crate::gradient::{Element, Gradient, Shape, with_elements};
use crate::{CoreError, Error};
use alloc::vec::Vec;
use lgreco::error::expect_len;

/// The estimate `e`, in f32.
#[derive(Clone, Debug)]
pub(super) struct Estimate(Vec<f32>);

impl Estimate {
    /// Makes an estimate of zeros.
    pub(super) fn new(shape: Shape) -> Result<Estimate, Error> {
        let mut values = Vec::new();
        let out_of_memory = CoreError::OutOfMemory { words: shape.elements().div_ceil(2) };
        values.try_reserve_exact(shape.elements()).map_err(|_| out_of_memory)?;
        values.resize(shape.elements(), 0.0);
        Ok(Estimate(values))
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.0
    }

    /// Writes the input of the compressor, `x − e`.
    pub(super) fn offer(&self, values: &Gradient<'_>, offered: &mut [f32]) -> Result<(), Error> {
        with_elements!(values.values(), v => {
            offered.iter_mut().zip(&self.0).zip(v).for_each(|((to, e), x)| *to = x.to_f32() - e);
        });
        let finite = offered.iter().all(|x| x.is_finite());
        if !finite {
            check_finite(values)?;
        }
        Ok(CoreError::require_finite(finite, "the difference from the estimate")?)
    }

    /// Adds a correction `c`. On an error nothing changes.
    pub(super) fn correct(&mut self, correction: &[f32]) -> Result<(), Error> {
        let finite = self.0.iter().zip(correction).all(|(e, c)| (e + c).is_finite());
        CoreError::require_finite(finite, "the estimate")?;
        self.0.iter_mut().zip(correction).for_each(|(e, c)| *e += c);
        Ok(())
    }

    /// Bytes that [`save`](Estimate::save) writes.
    pub(super) fn saved_len(&self) -> usize {
        4 * self.0.len()
    }

    /// Saves all values, little-endian.
    pub(super) fn save(&self, bytes: &mut [u8]) {
        bytes.as_chunks_mut().0.iter_mut().zip(&self.0).for_each(|(to, e)| *to = e.to_le_bytes());
    }

    /// Loads the bytes that [`save`](Estimate::save) wrote.
    pub(super) fn restore(&mut self, bytes: &[u8]) -> Result<(), Error> {
        expect_len("bytes of a saved memory", self.saved_len(), bytes.len())?;
        for (e, &bytes) in self.0.iter_mut().zip(bytes.as_chunks().0) {
            *e = f32::from_le_bytes(bytes);
            CoreError::require_saved(e.is_finite(), "an element", e.to_bits().into())?;
        }
        Ok(())
    }
}
