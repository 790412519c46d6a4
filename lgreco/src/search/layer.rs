//! A layer of a model: a named gradient tensor.

#[cfg(doc)]
use crate::Error;
use crate::Result;
use crate::gradient::{Dtype, Gradient, Shape, Values};

/// A named gradient tensor of a model.
///
/// ```
/// use lgreco::{gradient::Values, search::Layer};
/// let layer = Layer::new("conv1.weight", &[4, 3, 3, 3], Values::F32(&[0.5; 108]))?;
/// assert_eq!((layer.gradient().shape().rows(), layer.gradient().shape().cols()), (4, 27));
/// # Ok::<(), lgreco::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    pub(super) name: &'a str,
    pub(super) dims: &'a [usize],
    pub(super) gradient: Gradient<'a>,
}

impl<'a> Layer<'a> {
    /// Pairs a tensor's name and dimensions with its values, in row-major order.
    ///
    /// ```
    /// # use lgreco::{gradient::Values, search::Layer};
    /// assert!(Layer::new("bias", &[4], Values::F32(&[0.5; 4])).is_ok());
    /// assert!(Layer::new("bias", &[4], Values::F32(&[0.5; 5])).is_err());
    /// ```
    ///
    /// # Errors
    /// [`Error::TooManyElements`] from 2^32 elements on. [`Error::Length`] when the number of values is not the product of
    /// `dims`.
    pub fn new(name: &'a str, dims: &'a [usize], values: Values<'a>) -> Result<Self> {
        Ok(Layer { name, dims, gradient: Gradient::new(values, Shape::from_dims(dims)?)? })
    }

    pub(crate) fn of_gradient(name: &'a str, dims: &'a [usize], gradient: Gradient<'a>) -> Self {
        Layer { name, dims, gradient }
    }

    /// The name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The tensor's dimensions.
    pub fn dims(&self) -> &'a [usize] {
        self.dims
    }

    /// The values with their matrix shape.
    pub fn gradient(&self) -> Gradient<'a> {
        self.gradient
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.gradient.values().dtype()
    }
}
