use super::{Bf16, Dtype, Element, F16, Values};
use crate::simd::dispatch_with;
use crate::{CoreError, Error};
use core::ops::Range;

/// The values of a gradient, borrowed from the trainer to be replaced.
///
/// ```
/// use lgreco_train::gradient::{Dtype, ValuesMut};
/// let mut gradient = vec![1.0f32, 2.0];
/// let values = ValuesMut::from(&mut gradient[..]);
/// assert_eq!((values.values().len(), values.values().dtype()), (2, Dtype::F32));
/// ```
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Half precision.
    F16(&'a mut [F16]),
    /// bfloat16.
    Bf16(&'a mut [Bf16]),
}

impl<'a> From<&'a mut [f32]> for ValuesMut<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        ValuesMut::F32(values)
    }
}

impl ValuesMut<'_> {
    /// The values as a shared borrow.
    pub const fn values(&self) -> Values<'_> {
        match self {
            ValuesMut::F32(v) => Values::F32(v),
            ValuesMut::F16(v) => Values::F16(v),
            ValuesMut::Bf16(v) => Values::Bf16(v),
        }
    }

    /// Replaces the values, rounded to the element type.
    pub(crate) fn write(&mut self, values: impl Iterator<Item = f32>) {
        fn narrow<T: Element>(to: &mut [T], values: impl Iterator<Item = f32>) {
            to.iter_mut().zip(values).for_each(|(to, x)| *to = T::from_f32(x));
        }
        match self {
            ValuesMut::F32(v) => narrow(v, values),
            ValuesMut::F16(v) => narrow(v, values),
            ValuesMut::Bf16(v) => narrow(v, values),
        }
    }

    /// Replaces all values by `values`, rounded to the element type. `values` must be finite, and of the same length.
    ///
    /// # Errors
    /// [`CoreError::ElementOverflow`] with the first value that exceeds the element type.
    pub(crate) fn narrow(&mut self, values: &[f32]) -> Result<(), Error> {
        let fits = match self {
            ValuesMut::F32(v) => {
                v.copy_from_slice(values);
                return Ok(());
            }
            ValuesMut::F16(v) => dispatch_with!((&mut **v, values), narrow),
            ValuesMut::Bf16(v) => dispatch_with!((&mut **v, values), narrow),
        };
        if fits {
            return Ok(());
        }
        let index = first_too_large(values, self.values().dtype()).unwrap_or(0);
        Err(Error::Core(CoreError::ElementOverflow { index, value: values[index] }))
    }

    /// The same values, borrowed for a shorter time.
    pub(crate) fn reborrow(&mut self) -> ValuesMut<'_> {
        match self {
            ValuesMut::F32(v) => ValuesMut::F32(v),
            ValuesMut::F16(v) => ValuesMut::F16(v),
            ValuesMut::Bf16(v) => ValuesMut::Bf16(v),
        }
    }

    /// The values in `range`.
    pub(crate) fn part(&mut self, range: Range<usize>) -> ValuesMut<'_> {
        match self {
            ValuesMut::F32(v) => ValuesMut::F32(&mut v[range]),
            ValuesMut::F16(v) => ValuesMut::F16(&mut v[range]),
            ValuesMut::Bf16(v) => ValuesMut::Bf16(&mut v[range]),
        }
    }

    /// The values before `at`, and the values from `at` on.
    pub(crate) fn split_at<'a>(self, at: usize) -> (ValuesMut<'a>, ValuesMut<'a>)
    where
        Self: 'a,
    {
        fn both<'a, T, R>(values: &'a mut [T], at: usize, of: impl Fn(&'a mut [T]) -> R) -> (R, R) {
            let (first, second) = values.split_at_mut(at);
            (of(first), of(second))
        }
        match self {
            ValuesMut::F32(v) => both(v, at, ValuesMut::F32),
            ValuesMut::F16(v) => both(v, at, ValuesMut::F16),
            ValuesMut::Bf16(v) => both(v, at, ValuesMut::Bf16),
        }
    }

    /// The values, if they are f32.
    pub(crate) fn as_f32(&mut self) -> Option<&mut [f32]> {
        match self {
            ValuesMut::F32(v) => Some(v),
            _ => None,
        }
    }
}

/// Rounds values to a type, and returns whether all rounded values are finite.
#[inline(always)]
fn narrow<T: Element>((to, values): (&mut [T], &[f32])) -> bool {
    let mut fits = true;
    for (to, &x) in to.iter_mut().zip(values) {
        *to = T::from_f32(x);
        fits &= to.to_f32().is_finite();
    }
    fits
}

/// Position of the first value that is too large for `dtype`.
pub(crate) fn first_too_large(values: &[f32], dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 => None,
        Dtype::F16 => values.iter().position(|&x| !F16::from_f32(x).to_f32().is_finite()),
        Dtype::Bf16 => values.iter().position(|&x| !Bf16::from_f32(x).to_f32().is_finite()),
    }
}
