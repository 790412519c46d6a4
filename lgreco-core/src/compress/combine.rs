//! Decoded values added to others, or taken off them, without a copy of their own in memory.

pub use super::accumulate::Combine;
use super::setting::decode_parsed;
use super::wire::{Method, Payload};
use super::{adacomp, powersgd, qsgd, topk};
use crate::Error;
use crate::error::expect_room;
use crate::simd::{Kernel, dispatch};

/// Combines what a payload holds with `values`; for most methods in blocks or element by element, for others by way of
/// `scratch`, which has a place per element. Same errors as [`decode`](super::decode); `values` are then of no use.
pub fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32], scratch: &mut [f32]) -> Result<(), Error> {
    match payload.header.method {
        Method::TopK => topk::combine(payload, how, values),
        Method::AdaComp => adacomp::combine(payload, how, values),
        Method::Qsgd => qsgd::combine(payload, how, values),
        Method::PowerSgd => powersgd::combine(payload, how, values),
        Method::Dense | Method::LoCo => {
            expect_room("scratch values", values.len(), scratch.len())?;
            let scratch = &mut scratch[..values.len()];
            decode_parsed(payload, scratch)?;
            combine_values(values, how, scratch);
            Ok(())
        }
    }
}

/// Combines two slices, element by element.
pub fn combine_values(values: &mut [f32], how: Combine, others: &[f32]) {
    match how {
        Combine::Add => dispatch(Each { values, others, put: |place: &mut f32, x: f32| *place += x }),
        Combine::Subtract => dispatch(Each { values, others, put: |place: &mut f32, x: f32| *place -= x }),
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
