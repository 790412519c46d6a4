//! Decoded values added to others, or taken off them, without a copy of their own in memory.

use crate::simd::Kernel;
use crate::spread::{Divide, spread};

/// How decoded values meet those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// They are added.
    Add,
    /// They are subtracted.
    Subtract,
}

impl Combine {
    /// The zero that changes nothing.
    pub(super) fn unkept(self) -> f32 {
        match self {
            Combine::Add => -0.0,
            Combine::Subtract => 0.0,
        }
    }

    /// `place`, combined with a decoded value.
    #[inline(always)]
    pub(super) fn put(self, place: &mut f32, value: f32) {
        match self {
            Combine::Add => *place += value,
            Combine::Subtract => *place -= value,
        }
    }
}

/// Combines two slices, element by element.
pub fn combine_values(values: &mut [f32], how: Combine, others: &[f32]) {
    match how {
        Combine::Add => spread(Each { values, others, put: |place: &mut f32, x: f32| *place += x }),
        Combine::Subtract => spread(Each { values, others, put: |place: &mut f32, x: f32| *place -= x }),
    }
}

struct Each<'a, F> {
    values: &'a mut [f32],
    others: &'a [f32],
    put: F,
}

impl<F: Fn(&mut f32, f32)> Kernel for Each<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        self.values.iter_mut().zip(self.others).for_each(|(place, &x)| (self.put)(place, x));
    }
}

impl<F: Fn(&mut f32, f32) + Copy + Send> Divide for Each<'_, F> {
    fn elements(&self) -> usize {
        self.values.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let Each { values, others, put } = self;
        let ((values, more), (others, further)) = (values.split_at_mut(at), others.split_at(at));
        Ok((Each { values, others, put }, Each { values: more, others: further, put }))
    }

    fn join((): (), (): ()) {}
}
