use super::{Bf16, F16, Values};
use super::{Dtype, Element};

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
    /// The values, to be read.
    pub const fn values(&self) -> Values<'_> {
        match self {
            ValuesMut::F32(v) => Values::F32(v),
            ValuesMut::F16(v) => Values::F16(v),
            ValuesMut::Bf16(v) => Values::Bf16(v),
        }
    }

    /// Replaces the values, rounded to the element type.
    pub(crate) fn write(&mut self, values: impl Iterator<Item = f32>) {
        self.write_at(0, values);
    }

    /// Replaces as many values from element `from` on.
    pub(crate) fn write_at(&mut self, from: usize, values: impl Iterator<Item = f32>) {
        fn narrow<T: Element>(to: &mut [T], values: impl Iterator<Item = f32>) {
            to.iter_mut().zip(values).for_each(|(to, x)| *to = T::from_f32(x));
        }
        match self {
            ValuesMut::F32(v) => narrow(&mut v[from..], values),
            ValuesMut::F16(v) => narrow(&mut v[from..], values),
            ValuesMut::Bf16(v) => narrow(&mut v[from..], values),
        }
    }
}

/// Position of the first value that `dtype` cannot hold.
pub(crate) fn first_too_large(values: &[f32], dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 => None,
        Dtype::F16 => values.iter().position(|&x| !F16::from_f32(x).to_f32().is_finite()),
        Dtype::Bf16 => values.iter().position(|&x| !Bf16::from_f32(x).to_f32().is_finite()),
    }
}
