//! EF21: what both ends hold for the values of the other's batch, by position; messages correct it.

use crate::Error;
use crate::feedback::{Memory, Residual, is_finite};
use crate::gradient::{Element, Gradient, Shape, with_elements};
use alloc::vec::Vec;

/// The estimate `e`, in f32.
#[derive(Clone, Debug)]
pub(super) struct Estimate(pub(super) Memory<Vec<u64>>);

impl Estimate {
    /// Zeros.
    pub(super) fn new(shape: Shape) -> Result<Estimate, Error> {
        Memory::owned(Residual::CLASSIC, shape).map(Estimate)
    }

    /// Writes what is to be compressed, `x − e`.
    pub(super) fn offer(&self, values: &Gradient<'_>, offered: &mut [f32]) -> Result<(), Error> {
        self.0.values(offered)?;
        with_elements!(values.values(), v => offered.iter_mut().zip(v).for_each(|(e, x)| *e = x.to_f32() - *e));
        let finite = is_finite(offered);
        if !finite {
            crate::compress::check_finite(values)?;
        }
        Error::require_finite(finite, "the gradient with what is remembered")
    }

    /// Adds a correction `c`; on an error nothing changes.
    pub(super) fn correct(&mut self, correction: &[f32]) -> Result<(), Error> {
        let estimate = self.0.plain_mut();
        let finite = estimate.iter().zip(correction).all(|(e, c)| (e + c).is_finite());
        Error::require_finite(finite, "what is to be remembered")?;
        estimate.iter_mut().zip(correction).for_each(|(e, c)| *e += c);
        self.0.count();
        Ok(())
    }
}
