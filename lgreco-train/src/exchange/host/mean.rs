//! Sums over workers and the one place where they become means.

use crate::gradient::ValuesMut;
use crate::internal::payload::STRETCH;
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

/// The same, written elsewhere.
struct Put<'a> {
    sum: &'a [f32],
    world: f32,
    mean: &'a mut [f32],
}

impl Kernel for Put<'_> {
    type Output = bool;
    #[inline(always)]
    fn run(self) -> bool {
        let mut largest = 0;
        for (to, x) in self.mean.iter_mut().zip(self.sum) {
            *to = x / self.world;
            largest = largest.max(to.to_bits() & 0x7fff_ffff);
        }
        f32::from_bits(largest).is_finite()
    }
}

impl Divide for Put<'_> {
    fn elements(&self) -> usize {
        self.sum.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let world = self.world;
        let (sum, other_sum) = self.sum.split_at(at);
        let (mean, other_mean) = self.mean.split_at_mut(at);
        Ok((Put { sum, world, mean }, Put { sum: other_sum, world, mean: other_mean }))
    }

    fn join(first: bool, second: bool) -> bool {
        first && second
    }
}

/// Writes the mean of a sum over `world` workers; the sum is then of no use.
///
/// # Errors
/// As [`average`]; [`CoreError::ElementOverflow`] when a mean leaves its element type.
pub(super) fn put(sum: &mut [f32], world: u32, mean: &mut ValuesMut<'_>) -> Result<(), Error> {
    if let Some(mean) = mean.as_f32() {
        return finite(spread(Put { sum, world: world as f32, mean }));
    }
    let mut at = 0;
    for sum in sum.chunks_mut(STRETCH) {
        average(sum, world)?;
        narrow(sum, at, mean)?;
        at += sum.len();
    }
    Ok(())
}

/// Writes values into `mean` from element `at` on.
///
/// # Errors
/// [`CoreError::ElementOverflow`] when one leaves its element type.
pub(super) fn narrow(values: &[f32], at: usize, mean: &mut ValuesMut<'_>) -> Result<(), Error> {
    mean.part(at..at + values.len()).narrow(values).map_err(|error| in_tensor(error, at))
}

/// An error about a value, with its number in the tensor instead of that from `start` on.
pub(super) fn in_tensor(error: Error, start: usize) -> Error {
    match error {
        Error::Core(CoreError::ElementOverflow { index, value }) => {
            Error::Core(CoreError::ElementOverflow { index: start + index, value })
        }
        error => error,
    }
}

/// Turns a sum over `world` workers into their mean.
///
/// # Errors
/// [`CoreError::Overflow`] when the sum was not finite.
pub(super) fn average(sum: &mut [f32], world: u32) -> Result<(), Error> {
    finite(spread(Average { sum, world: world as f32 }))
}

fn finite(is_finite: bool) -> Result<(), Error> {
    is_finite.then_some(()).ok_or(Error::Core(CoreError::Overflow { what: "the sum over the workers" }))
}
