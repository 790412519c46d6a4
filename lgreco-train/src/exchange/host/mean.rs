//! Turns sums over workers into means.

use crate::gradient::ValuesMut;
use crate::{CoreError, Error};
use lgreco::compress::payload::STRETCH;
use lgreco::compress::spread::spread_parts;

/// A divisor. A power of two is stored as its inverse, because multiplying by the inverse gives the same bits and is faster.
#[derive(Clone, Copy)]
struct Divisor {
    number: f32,
    is_inverse: bool,
}

impl Divisor {
    /// The divisor of a sum over `world` workers.
    fn of_sum(world: u32) -> Divisor {
        match world.is_power_of_two() {
            true => Divisor { number: 1.0 / world as f32, is_inverse: true },
            false => Divisor { number: world as f32, is_inverse: false },
        }
    }

    /// The divisor of a sum of [`share`]s.
    fn of_shares(world: u32) -> Divisor {
        match world.is_power_of_two() {
            true => Divisor { number: 1.0, is_inverse: true },
            false => Divisor { number: world as f32 * share(world), is_inverse: false },
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

/// The factor that turns values into shares, before they are summed over `world` workers. The factor is a power of two, and so
/// small that the sum of the shares of finite values is finite. A mean that is computed from shares has the same bits as the sum of
/// the values divided by `world`, unless a share is subnormal.
pub(super) fn share(world: u32) -> f32 {
    1.0 / world.next_power_of_two() as f32
}

/// Writes the mean, computed from the sum of all workers' shares. `sum` is undefined afterwards.
///
/// # Errors
/// The errors of [`average_shares`]; [`CoreError::ElementOverflow`] when a mean exceeds its element type.
pub(super) fn put(sum: &mut [f32], world: u32, mean: &mut ValuesMut<'_>) -> Result<(), Error> {
    if let Some(mean) = mean.as_f32() {
        return finite(spread_parts!(sum.len(), 1, (&*sum, mean), Divisor::of_shares(world), divide));
    }
    let mut at = 0;
    for sum in sum.chunks_mut(STRETCH) {
        average_shares(sum, world)?;
        narrow(sum, at, mean)?;
        at += sum.len();
    }
    Ok(())
}

/// Writes values into `mean` from element `at` on.
///
/// # Errors
/// [`CoreError::ElementOverflow`] when a value exceeds the element type.
pub(super) fn narrow(values: &[f32], at: usize, mean: &mut ValuesMut<'_>) -> Result<(), Error> {
    mean.part(at..at + values.len()).narrow(values).map_err(|error| in_tensor(error, at))
}

/// Adds `start` to the element index in an error, so that the index counts from the beginning of the tensor.
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
    finite(spread_parts!(sum.len(), 1, sum, Divisor::of_sum(world), divide_in_place))
}

/// Like [`average`], for a sum of shares.
pub(super) fn average_shares(sum: &mut [f32], world: u32) -> Result<(), Error> {
    finite(spread_parts!(sum.len(), 1, sum, Divisor::of_shares(world), divide_in_place))
}

/// Turns values into shares, in place.
pub(super) fn to_shares(values: &mut [f32], world: u32) {
    #[inline(always)]
    fn run(values: &mut [f32], share: f32) {
        values.iter_mut().for_each(|x| *x *= share);
    }
    if world > 1 {
        spread_parts!(values.len(), 1, values, share(world), run);
    }
}

fn finite(is_finite: bool) -> Result<(), Error> {
    Ok(CoreError::require_finite(is_finite, "the sum over the workers")?)
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
            let mut sum = sums.clone();
            average(&mut sum, world).unwrap();
            assert_eq!(bits(&sum), bits(&expected), "{world}");

            let normal = |x: &f32| x.abs() * share(world) >= f32::MIN_POSITIVE;
            let sums: Vec<f32> = sums.iter().copied().filter(normal).collect();
            let expected: Vec<f32> = sums.iter().map(|x| x / world as f32).collect();
            let (mut shares, mut mean) = (sums.clone(), vec![f32::NAN; sums.len()]);
            to_shares(&mut shares, world);
            put(&mut shares.clone(), world, &mut ValuesMut::F32(&mut mean)).unwrap();
            average_shares(&mut shares, world).unwrap();
            assert_eq!((bits(&shares), bits(&mean)), (bits(&expected), bits(&expected)), "{world}");
        }
    }
}
