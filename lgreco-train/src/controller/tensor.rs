//! Description of a layer of the model, and checks of its gradients.

use crate::Error;
use crate::compress::{Setting, check_finite};
use crate::exchange::Spec;
use crate::gradient::{Dtype, Gradient, Shape, Values};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A parameter tensor of the model: name, dimensions and element type. Saved states are keyed by the name.
///
/// ```
/// use lgreco_train::{controller::Tensor, gradient::Dtype};
/// let tensor = Tensor::new("conv1.weight", &[64, 3, 3, 3], Dtype::F32)?;
/// assert_eq!((tensor.name(), tensor.shape().cols()), ("conv1.weight", 27));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    pub(super) shape: Shape,
    pub(super) dtype: Dtype,
    pub(super) shards: Arc<[u64]>,
}

impl Tensor {
    /// Describes a tensor.
    ///
    /// ```
    /// # use lgreco_train::{controller::Tensor, gradient::Dtype};
    /// assert!(Tensor::new("table", &[1 << 20, 1 << 12], Dtype::Bf16).is_err());
    /// ```
    ///
    /// # Errors
    /// [`CoreError::TooManyElements`](crate::CoreError::TooManyElements) from 2^32 elements on.
    pub fn new(name: &str, dims: &[usize], dtype: Dtype) -> Result<Self, Error> {
        let shape = Shape::from_dims(dims)?;
        Ok(Tensor { name: name.into(), dims: dims.into(), shape, dtype, shards: Arc::default() })
    }

    /// Divides the tensor into shards. `ends` has the element at which each rank's shard
    /// [ends](crate::exchange::Spec::shards). [`Route::Sharded`](crate::exchange::Route) needs shards, and other routes
    /// refuse them.
    ///
    /// ```
    /// # use lgreco_train::{controller::Tensor, gradient::Dtype};
    /// // As FSDP has it on two ranks: rows 0 to 2, and rows 3 and 4.
    /// let tensor = Tensor::new("weight", &[5, 10], Dtype::F32)?.with_shards(&[30, 50]);
    /// assert_eq!(tensor.shards(), [30, 50]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn with_shards(mut self, ends: &[u64]) -> Self {
        self.shards = ends.into();
        self
    }

    /// The element at which each rank's shard ends; empty without shards.
    pub fn shards(&self) -> &[u64] {
        &self.shards
    }

    /// The layer's description for an exchange under this setting.
    pub(super) fn spec(&self, setting: Setting) -> Spec<'_> {
        Spec { shards: &self.shards, ..Spec::from((setting, self.shape, self.dtype)) }
    }

    /// The name.
    ///
    /// ```
    /// # use lgreco_train::{controller::Tensor, gradient::Dtype};
    /// let tensor = Tensor::new("conv1.weight", &[64, 3, 3, 3], Dtype::F32)?;
    /// assert_eq!(tensor.name(), "conv1.weight");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dimensions.
    ///
    /// ```
    /// # use lgreco_train::{controller::Tensor, gradient::Dtype};
    /// let tensor = Tensor::new("conv1.weight", &[64, 3, 3, 3], Dtype::F32)?;
    /// assert_eq!(tensor.dims(), [64, 3, 3, 3]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The matrix view of the dimensions.
    ///
    /// ```
    /// # use lgreco_train::{controller::Tensor, gradient::Dtype};
    /// let tensor = Tensor::new("conv1.weight", &[64, 3, 3, 3], Dtype::F32)?;
    /// assert_eq!((tensor.shape().rows(), tensor.shape().cols()), (64, 27));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// The element type.
    ///
    /// ```
    /// # use lgreco_train::{controller::Tensor, gradient::Dtype};
    /// let tensor = Tensor::new("conv1.weight", &[64, 3, 3, 3], Dtype::F32)?;
    /// assert_eq!(tensor.dtype(), Dtype::F32);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Bytes of the uncompressed gradient.
    pub(super) const fn bytes(&self) -> u64 {
        (self.shape.elements() * self.dtype.bytes()) as u64
    }
}

/// `Err` unless values have the element type and number of elements of layer `layer`.
pub(super) fn check_layer(layer: usize, shape: Shape, dtype: Dtype, values: Values<'_>) -> Result<(), Error> {
    if values.dtype() != dtype {
        return Err(Error::LayerDtype { layer, found: values.dtype(), expected: dtype });
    }
    if values.len() != shape.elements() {
        let (what, expected, found) = ("the number of values", shape.elements(), values.len());
        return Err(Error::LayerMismatch { layer, what, expected, found });
    }
    Ok(())
}

/// `Err` with the first value that is NaN or infinite.
pub(super) fn expect_finite(layer: usize, values: Values<'_>) -> Result<(), Error> {
    let column = Gradient::new(values, Shape::new(values.len(), 1)?)?;
    check_finite(&column).map_err(|error| Error::from(error).of_layer(layer as u32))
}
