//! Borrowed gradients: f32, f16 or bf16 values, viewed as a matrix as in PowerSGD.

mod element;

pub use element::{Bf16, Dtype, Element, F16};

use crate::{Error, Result};

/// The values of a gradient, borrowed from the trainer.
///
/// ```
/// use lgreco_core::gradient::{Bf16, Dtype, Values};
/// let raw = [0x3f80u16, 0xbf80]; // as the trainer keeps them
/// let values = Values::Bf16(bytemuck::cast_slice::<u16, Bf16>(&raw));
/// assert_eq!((values.len(), values.dtype()), (2, Dtype::Bf16));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [F16]),
    /// bfloat16.
    Bf16(&'a [Bf16]),
}

/// Runs generic code on the slice inside a [`Values`], for any element type: `with_elements!(values, slice => code)`.
///
/// ```
/// use lgreco_core::gradient::{Bf16, Element, Values, with_elements};
/// fn largest<T: Element>(values: &[T]) -> f32 {
///     values.iter().fold(0.0, |largest, value| value.to_f32().abs().max(largest))
/// }
/// let values = Values::Bf16(&[Bf16(0x3f80), Bf16(0xc000)]);
/// assert_eq!(with_elements!(values, slice => largest(slice)), 2.0);
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __with_elements {
    ($values:expr, $slice:ident => $body:expr) => {
        match $values {
            $crate::gradient::Values::F32($slice) => $body,
            $crate::gradient::Values::F16($slice) => $body,
            $crate::gradient::Values::Bf16($slice) => $body,
        }
    };
}
#[doc(inline)]
pub use __with_elements as with_elements;

impl<'a> From<&'a [f32]> for Values<'a> {
    fn from(values: &'a [f32]) -> Self {
        Values::F32(values)
    }
}

impl<'a> From<&'a [F16]> for Values<'a> {
    fn from(values: &'a [F16]) -> Self {
        Values::F16(values)
    }
}

impl<'a> From<&'a [Bf16]> for Values<'a> {
    fn from(values: &'a [Bf16]) -> Self {
        Values::Bf16(values)
    }
}

impl Values<'_> {
    /// Number of elements.
    pub const fn len(&self) -> usize {
        match self {
            Values::F32(v) => v.len(),
            Values::F16(v) => v.len(),
            Values::Bf16(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub const fn dtype(&self) -> Dtype {
        match self {
            Values::F32(_) => Dtype::F32,
            Values::F16(_) => Dtype::F16,
            Values::Bf16(_) => Dtype::Bf16,
        }
    }
}

/// The matrix view of a tensor. `rows` is the first dimension; `cols` is the product of all other dimensions, 1 for a
/// vector.
///
/// ```
/// use lgreco_core::gradient::Shape;
/// let bias = Shape::from_dims(&[512])?;
/// assert_eq!((bias.rows(), bias.cols(), bias.elements()), (512, 1, 512));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    rows: u32,
    cols: u32,
}

impl Shape {
    /// The shape of a `rows` × `cols` matrix.
    ///
    /// # Errors
    /// [`Error::TooManyElements`] unless `rows`, `cols` and `rows · cols` are below 2^32.
    pub const fn new(rows: usize, cols: usize) -> Result<Self> {
        match rows.checked_mul(cols) {
            Some(n) if n <= u32::MAX as usize && rows <= u32::MAX as usize && cols <= u32::MAX as usize => {
                Ok(Shape { rows: rows as u32, cols: cols as u32 })
            }
            _ => Err(Error::TooManyElements { rows, cols }),
        }
    }

    /// The matrix view of a tensor with dimensions `dims`. A scalar, `[]`, is 1 × 1.
    ///
    /// # Errors
    /// [`Error::TooManyElements`] unless rows, columns and their product are below 2^32.
    ///
    /// ```
    /// use lgreco_core::gradient::Shape;
    /// let convolution = Shape::from_dims(&[64, 3, 3, 3])?;
    /// assert_eq!((convolution.rows(), convolution.cols()), (64, 27));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    pub fn from_dims(dims: &[usize]) -> Result<Self> {
        let (rows, rest) = dims.split_first().map_or((1, dims), |(&r, rest)| (r, rest));
        let cols = if rest.contains(&0) { 0 } else { rest.iter().fold(1usize, |a, &b| a.saturating_mul(b)) };
        Shape::new(rows, cols)
    }

    /// First dimension.
    pub const fn rows(self) -> usize {
        self.rows as usize
    }

    /// Product of the other dimensions.
    pub const fn cols(self) -> usize {
        self.cols as usize
    }

    /// Number of elements, below 2^32.
    pub const fn elements(self) -> usize {
        self.rows() * self.cols()
    }
}

/// One layer's gradient: values in row-major order and their matrix shape.
///
/// ```
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(2, 3)?)?;
/// assert_eq!(gradient.shape().elements(), 6);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    values: Values<'a>,
    shape: Shape,
}

impl<'a> Gradient<'a> {
    /// Pairs `values` with `shape`.
    ///
    /// # Errors
    /// [`Error::Length`] when the number of values is not `shape.elements()`.
    pub const fn new(values: Values<'a>, shape: Shape) -> Result<Self> {
        if values.len() != shape.elements() {
            return Err(Error::Length { what: "gradient values", expected: shape.elements(), found: values.len() });
        }
        Ok(Gradient { values, shape })
    }

    /// The values.
    pub const fn values(&self) -> Values<'a> {
        self.values
    }

    /// The matrix shape.
    pub const fn shape(&self) -> Shape {
        self.shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_refuse_what_indices_cannot_hold() {
        assert!(Shape::new(1 << 16, 1 << 16).is_err());
        assert!(Shape::from_dims(&[usize::MAX, usize::MAX]).is_err());
        assert_eq!(Shape::from_dims(&[]).unwrap().elements(), 1);
        assert_eq!(Shape::from_dims(&[3, 0, usize::MAX]).unwrap().elements(), 0);
    }
}
