//! The passes over a plain residual, which is as many f32 as there are elements.
//!
//! Plain residuals are made in place. Classic feedback in f32 compensates into a second buffer, compresses from
//! there, and what is left after the worker's own contribution is the next residual: the two buffers change places,
//! and change back when a step is rolled back. Other formats take a copy and the passes of `Memory::update`.

use crate::gradient::{Element, Shape};
use crate::internal::spread::spread_parts;

/// The bits of |x|, which order as magnitudes do; those of NaN exceed those of infinity.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Words of a plain residual as numbers.
pub(crate) fn plain_values(words: &mut [u64], shape: Shape) -> &mut [f32] {
    &mut bytemuck::cast_slice_mut(words)[..shape.elements()]
}

/// Writes `residual + gradient` to `sum`; answers whether all of it is finite.
pub(super) fn compensate<T: Element>(residual: &[f32], gradient: &[T], sum: &mut [f32]) -> bool {
    #[inline(always)]
    fn run<T: Element>((residual, gradient, sum): (&[f32], &[T], &mut [f32]), (): ()) -> bool {
        let mut largest = 0;
        for ((sum, residual), gradient) in sum.iter_mut().zip(residual).zip(gradient) {
            *sum = residual + gradient.to_f32();
            largest = largest.max(sum.to_bits() & MAGNITUDE);
        }
        largest < f32::INFINITY.to_bits()
    }
    spread_parts(sum.len(), 1, (residual, gradient, sum), (), run)
}

/// Whether all values are finite.
pub(crate) fn is_finite(values: &[f32]) -> bool {
    #[inline(always)]
    fn run(values: &[f32], (): ()) -> bool {
        let largest = values.iter().fold(0, |largest: u32, x| largest.max(x.to_bits() & MAGNITUDE));
        largest < f32::INFINITY.to_bits()
    }
    spread_parts(values.len(), 1, values, (), run)
}
