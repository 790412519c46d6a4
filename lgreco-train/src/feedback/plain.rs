//! The passes over a plain residual, which is as many f32 as there are elements.
//!
//! Plain residuals are made in place. Classic feedback in f32 compensates into a second buffer, compresses from
//! there, and what is left after the worker's own contribution is the next residual: the two buffers change places,
//! and change back when a step is rolled back. Other formats take a copy and the passes of `Memory::update`.

use crate::gradient::{Element, Shape};
use crate::internal::spread::{Divide, spread};
use crate::simd::Kernel;

/// The bits of |x|, which order as magnitudes do; those of NaN exceed those of infinity.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Words of a plain residual as numbers.
pub(crate) fn plain_values(words: &mut [u64], shape: Shape) -> &mut [f32] {
    &mut bytemuck::cast_slice_mut(words)[..shape.elements()]
}

/// Writes `residual + gradient` to `sum`; answers whether all of it is finite.
pub(super) fn compensate<T: Element>(residual: &[f32], gradient: &[T], sum: &mut [f32]) -> bool {
    spread(Compensate { residual, gradient, sum })
}

/// Whether all values are finite.
pub(crate) fn is_finite(values: &[f32]) -> bool {
    spread(Finite { values })
}

struct Compensate<'a, T> {
    residual: &'a [f32],
    gradient: &'a [T],
    sum: &'a mut [f32],
}

impl<T: Element> Kernel for Compensate<'_, T> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut largest = 0;
        for ((sum, residual), gradient) in self.sum.iter_mut().zip(self.residual).zip(self.gradient) {
            *sum = residual + gradient.to_f32();
            largest = largest.max(sum.to_bits() & MAGNITUDE);
        }
        largest < f32::INFINITY.to_bits()
    }
}

impl<T: Element> Divide for Compensate<'_, T> {
    fn elements(&self) -> usize {
        self.sum.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let Compensate { residual, gradient, sum } = self;
        let ((residual, other_residual), (gradient, others)) = (residual.split_at(at), gradient.split_at(at));
        let (sum, other_sum) = sum.split_at_mut(at);
        let second = Compensate { residual: other_residual, gradient: others, sum: other_sum };
        Ok((Compensate { residual, gradient, sum }, second))
    }

    fn join(first: bool, second: bool) -> bool {
        first && second
    }
}

struct Finite<'a> {
    values: &'a [f32],
}

impl Kernel for Finite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let largest = self.values.iter().fold(0, |largest: u32, x| largest.max(x.to_bits() & MAGNITUDE));
        largest < f32::INFINITY.to_bits()
    }
}

impl Divide for Finite<'_> {
    fn elements(&self) -> usize {
        self.values.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let (values, others) = self.values.split_at(at);
        Ok((Finite { values }, Finite { values: others }))
    }

    fn join(first: bool, second: bool) -> bool {
        first && second
    }
}
