use crate::Error;
use crate::compress::Setting;
use crate::exchange::Spec;
use crate::gradient::{Dtype, Shape};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A parameter tensor of the model: its name, by which saved state is found again, its dimensions and element type.
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

    /// The same tensor with shards: where each rank's [ends](crate::exchange::Spec::shards), in elements. For
    /// [`Route::Sharded`](crate::exchange::Route), which needs them, and no other.
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

    /// Where each rank's shard ends; empty if there are none.
    pub fn shards(&self) -> &[u64] {
        &self.shards
    }

    /// What an exchange by this setting knows of it.
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
