//! Loops over f32 values.

use crate::gradient::Shape;
use crate::simd::dispatch_with;
use lgreco::compress::spread::spread_parts;

/// Mask of the bits of |x|, which have the same order as the magnitudes. The bits of NaN exceed those of infinity.
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;

/// The f32 values of a plain residual, in its 8-byte words.
pub(crate) fn plain_values(words: &mut [u64], shape: Shape) -> &mut [f32] {
    &mut bytemuck::cast_slice_mut(words)[..shape.elements()]
}

/// Copies values.
pub(crate) fn copy(values: &[f32], to: &mut [f32]) {
    #[inline(always)]
    fn run((values, to): (&[f32], &mut [f32]), (): ()) {
        to.copy_from_slice(values);
    }
    spread_parts!(values.len(), 1, (values, to), (), run);
}

/// The squared L2 norm.
pub(crate) fn squared_norm(values: &[f32]) -> f64 {
    #[inline(always)]
    fn run(values: &[f32]) -> f64 {
        let mut squares = [0.0; 16];
        for chunk in values.chunks(16) {
            chunk.iter().zip(&mut squares).for_each(|(&x, sum)| *sum += x as f64 * x as f64);
        }
        squares.iter().sum()
    }
    dispatch_with!(values, run)
}

/// Whether all values are finite.
pub(crate) fn is_finite(values: &[f32]) -> bool {
    #[inline(always)]
    fn run(values: &[f32], (): ()) -> bool {
        let largest = values.iter().fold(0, |largest: u32, x| largest.max(x.to_bits() & MAGNITUDE));
        largest < f32::INFINITY.to_bits()
    }
    spread_parts!(values.len(), 1, values, (), run)
}
