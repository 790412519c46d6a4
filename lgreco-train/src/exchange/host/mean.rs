//! Sums over workers and the one place where they become means.

use crate::internal::spread::{Divide, spread};
use crate::simd::Kernel;
use crate::{CoreError, Error};

struct Average<'a> {
    sum: &'a mut [f32],
    world: f32,
}

impl Kernel for Average<'_> {
    type Output = bool;
    #[inline(always)]
    fn run(self) -> bool {
        let mut largest = 0;
        for x in self.sum {
            *x /= self.world;
            largest = largest.max(x.to_bits() & 0x7fff_ffff);
        }
        f32::from_bits(largest).is_finite()
    }
}

impl Divide for Average<'_> {
    fn elements(&self) -> usize {
        self.sum.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let (sum, others) = self.sum.split_at_mut(at);
        Ok((Average { sum, world: self.world }, Average { sum: others, world: self.world }))
    }

    fn join(first: bool, second: bool) -> bool {
        first && second
    }
}

/// Turns a sum over `world` workers into their mean.
///
/// # Errors
/// [`CoreError::Overflow`] when the sum was not finite.
pub(super) fn average(sum: &mut [f32], world: u32) -> Result<(), Error> {
    if spread(Average { sum, world: world as f32 }) {
        return Ok(());
    }
    Err(Error::Core(CoreError::Overflow { what: "the sum over the workers" }))
}
