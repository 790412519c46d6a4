//! Sums over workers and the one place where they become means.

use crate::gradient::ValuesMut;
use crate::internal::payload::STRETCH;
use crate::internal::spread::{Divide, spread};
use crate::simd::Kernel;
use crate::{CoreError, Error};

/// A number that divides, or the inverse of a power of two, with which a product has the same bits in less time.
#[derive(Clone, Copy)]
struct Divisor {
    number: f32,
    is_inverse: bool,
}

impl Divisor {
    fn new(world: u32) -> Divisor {
        match world.is_power_of_two() {
            true => Divisor { number: 1.0 / world as f32, is_inverse: true },
            false => Divisor { number: world as f32, is_inverse: false },
        }
    }

    #[inline(always)]
    fn divide(self, x: f32) -> f32 {
        if self.is_inverse { x * self.number } else { x / self.number }
    }
}

struct Average<'a> {
    sum: &'a mut [f32],
    by: Divisor,
}

impl Kernel for Average<'_> {
    type Output = bool;
    #[inline(always)]
    fn run(self) -> bool {
        let mut largest = 0;
        for x in self.sum {
            *x = self.by.divide(*x);
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
        Ok((Average { sum, by: self.by }, Average { sum: others, by: self.by }))
    }

    fn join(first: bool, second: bool) -> bool {
        first && second
    }
}

/// The same, written elsewhere.
struct Put<'a> {
    sum: &'a [f32],
    by: Divisor,
    mean: &'a mut [f32],
}

impl Kernel for Put<'_> {
    type Output = bool;
    #[inline(always)]
    fn run(self) -> bool {
        let mut largest = 0;
        for (to, x) in self.mean.iter_mut().zip(self.sum) {
            *to = self.by.divide(*x);
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
        let by = self.by;
        let (sum, other_sum) = self.sum.split_at(at);
        let (mean, other_mean) = self.mean.split_at_mut(at);
        Ok((Put { sum, by, mean }, Put { sum: other_sum, by, mean: other_mean }))
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
        return finite(spread(Put { sum, by: Divisor::new(world), mean }));
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
    finite(spread(Average { sum, by: Divisor::new(world) }))
}

fn finite(is_finite: bool) -> Result<(), Error> {
    is_finite.then_some(()).ok_or(Error::Core(CoreError::Overflow { what: "the sum over the workers" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    #[test]
    fn means_are_quotients_whatever_the_world() {
        let magnitudes = [0u32, 1, 2, 3, 0x007f_ffff, 0x0080_0000, 0x0080_0001, 0x0123_4567, 0x3f80_0001, 0x7f7f_ffff];
        let sums: Vec<f32> =
            magnitudes.into_iter().flat_map(|bits| [bits, bits | 1 << 31]).map(f32::from_bits).collect();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for world in [1, 2, 3, 4, 5, 8, 64, 1 << 20] {
            let expected: Vec<f32> = sums.iter().map(|x| x / world as f32).collect();
            let (mut sum, mut mean) = (sums.clone(), vec![f32::NAN; sums.len()]);
            put(&mut sum.clone(), world, &mut ValuesMut::F32(&mut mean)).unwrap();
            average(&mut sum, world).unwrap();
            assert_eq!((bits(&sum), bits(&mean)), (bits(&expected), bits(&expected)), "{world}");
        }
    }
}
