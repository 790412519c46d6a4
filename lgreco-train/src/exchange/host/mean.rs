//! Sums over workers and the one place where they become means.

use crate::gradient::ValuesMut;
use crate::internal::payload::STRETCH;
use crate::internal::spread::spread_parts;
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

#[inline(always)]
fn divide_in_place(sum: &mut [f32], by: Divisor) -> bool {
    let mut largest = 0;
    for x in sum {
        *x = by.divide(*x);
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest).is_finite()
}

#[inline(always)]
fn divide((sum, mean): (&[f32], &mut [f32]), by: Divisor) -> bool {
    let mut largest = 0;
    for (to, x) in mean.iter_mut().zip(sum) {
        *to = by.divide(*x);
        largest = largest.max(to.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest).is_finite()
}

/// Writes the mean of a sum over `world` workers; the sum is then of no use.
///
/// # Errors
/// As [`average`]; [`CoreError::ElementOverflow`] when a mean leaves its element type.
pub(super) fn put(sum: &mut [f32], world: u32, mean: &mut ValuesMut<'_>) -> Result<(), Error> {
    if let Some(mean) = mean.as_f32() {
        return finite(spread_parts(sum.len(), 1, (&*sum, mean), Divisor::new(world), divide));
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
    finite(spread_parts(sum.len(), 1, sum, Divisor::new(world), divide_in_place))
}

fn finite(is_finite: bool) -> Result<(), Error> {
    Error::require_finite(is_finite, "the sum over the workers")
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
