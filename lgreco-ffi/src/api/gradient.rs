use crate::failure::{Failure, Result, one_of};
use crate::pointers::{Range, address, all_disjoint, exactly, slice, slice_mut, text};
use crate::structs::sized_struct;
use core::ffi::{c_char, c_void};
use lgreco_train::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};

/// An element type.
pub type lgreco_dtype = u32;

/// IEEE single precision.
pub const LGRECO_DTYPE_F32: lgreco_dtype = 0;
/// IEEE half precision, stored as its bits.
pub const LGRECO_DTYPE_F16: lgreco_dtype = 1;
/// bfloat16, stored as its bits.
pub const LGRECO_DTYPE_BF16: lgreco_dtype = 2;

/// A named tensor of the model. Begin with LGRECO_LAYER_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_layer {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// The layer's name, UTF-8. Saved states and plans identify the layer by this name.
    pub name: *const c_char,
    /// The layer's dimensions. PowerSGD treats the tensor as a matrix. Its rows are the first dimension, its columns
    /// the product of the other dimensions.
    pub dims: *const usize,
    /// Number of dimensions; 0 for a scalar.
    pub dims_len: usize,
    /// The gradient, row-major. The number of elements is the product of `dims`. The library only reads the gradient.
    /// lgreco_compressor_create does not need a gradient.
    pub values: *const c_void,
    /// Type of the gradient's elements.
    pub dtype: lgreco_dtype,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only integers and raw pointers.
sized_struct!("layer", lgreco_layer {});

/// A layer's name, shape and type, without its gradient.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) dims: &'a [usize],
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
}

impl lgreco_layer {
    /// Reads the layer's name, dimensions and type. A failure that occurs after the name was read also has the name.
    ///
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md; `'a` ends within the call.
    pub(crate) unsafe fn tensor<'a>(&self) -> Result<Tensor<'a>> {
        // SAFETY: the caller meets the safety requirements of this function.
        let (name, dims) =
            unsafe { (text(self.name, "name of a layer")?, slice(self.dims, self.dims_len, "dims of a layer")) };
        let described = || {
            let dims = dims?;
            Ok(Tensor { name, dims, shape: Shape::from_dims(dims)?, dtype: dtype(self.dtype)? })
        };
        described().map_err(|failure: Failure| failure.of_layer(name))
    }

    /// Reads the layer's gradient. Failures name the layer.
    ///
    /// # Safety
    /// The requirements of `tensor` apply.
    pub(crate) unsafe fn gradient<'a>(&self, tensor: Tensor<'a>) -> Result<Gradient<'a>> {
        // SAFETY: the caller meets the safety requirements of this function.
        let values = unsafe { values(self.values, tensor.dtype, tensor.shape.elements()) };
        let gradient = values.and_then(|values| Ok(Gradient::new(values, tensor.shape)?));
        gradient.map_err(|failure| failure.of_layer(tensor.name))
    }

    /// Returns the device address of the gradient.
    pub(crate) fn address(&self, tensor: Tensor<'_>) -> Result<u64> {
        let elements = tensor.shape.elements();
        match tensor.dtype {
            Dtype::F32 => address(self.values.cast::<f32>(), elements, "values"),
            Dtype::F16 | Dtype::Bf16 => address(self.values.cast::<u16>(), elements, "values"),
        }
    }

    /// Returns the memory range of the gradient.
    pub(crate) fn range(&self, tensor: Tensor<'_>) -> Range {
        values_range(self.values, tensor.dtype, tensor.shape)
    }
}

pub(crate) fn dtype(code: lgreco_dtype) -> Result<Dtype> {
    one_of("dtype", code, [Dtype::F32, Dtype::F16, Dtype::Bf16])
}

/// Returns the memory range of a gradient.
pub(crate) fn values_range(pointer: *const c_void, dtype: Dtype, shape: Shape) -> Range {
    Range::of(pointer.cast::<u8>(), shape.elements().saturating_mul(dtype.bytes()), "values")
}

/// Returns the caller's gradient for reading.
///
/// # Safety
/// `pointer` is null, misaligned, or valid for reads of `elements` values of this type during `'a`.
pub(crate) unsafe fn values<'a>(pointer: *const c_void, dtype: Dtype, elements: usize) -> Result<Values<'a>> {
    // SAFETY: the caller meets the safety requirements of this function; F16 and Bf16 are transparent over u16.
    unsafe {
        Ok(match dtype {
            Dtype::F32 => Values::F32(slice(pointer.cast(), elements, "values")?),
            Dtype::F16 => Values::F16(slice(pointer.cast(), elements, "values")?),
            Dtype::Bf16 => Values::Bf16(slice(pointer.cast(), elements, "values")?),
        })
    }
}

/// Returns the caller's gradient for writing, because the mean will replace the gradient.
///
/// # Safety The requirements of `values` apply. The memory is also valid for writes, and nothing else uses the memory
/// during `'a`.
pub(crate) unsafe fn values_mut<'a>(pointer: *mut c_void, dtype: Dtype, elements: usize) -> Result<ValuesMut<'a>> {
    // SAFETY: the caller meets the safety requirements of this function; F16 and Bf16 are transparent over u16.
    unsafe {
        Ok(match dtype {
            Dtype::F32 => ValuesMut::F32(slice_mut(pointer.cast(), elements, "gradient")?),
            Dtype::F16 => ValuesMut::F16(slice_mut(pointer.cast(), elements, "gradient")?),
            Dtype::Bf16 => ValuesMut::Bf16(slice_mut(pointer.cast(), elements, "gradient")?),
        })
    }
}

/// Describes a layer's gradient by the layer's index in the model, type and shape.
pub(super) struct GradientLayer {
    pub(super) index: usize,
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
}

impl GradientLayer {
    pub(super) fn of(index: usize, tensor: &lgreco_train::controller::Tensor) -> GradientLayer {
        GradientLayer { index, dtype: tensor.dtype(), shape: tensor.shape() }
    }
}

/// The caller's gradients, one per layer. References to the gradients exist only during a call.
pub(super) struct Gradients {
    layers: Vec<GradientLayer>,
    /// Empty between calls. The vector is a field so that calls need no allocation.
    values: Vec<ValuesMut<'static>>,
    ranges: Vec<Range>,
}

impl Gradients {
    pub(super) fn new(layers: Vec<GradientLayer>) -> Gradients {
        Gradients { values: Vec::with_capacity(layers.len()), ranges: Vec::with_capacity(layers.len()), layers }
    }

    /// Returns the caller's pointers as a slice, or `Err` unless there is one pointer per layer.
    ///
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md.
    pub(super) unsafe fn pointers<'a>(&self, pointers: *const *mut c_void, len: usize) -> Result<&'a [*mut c_void]> {
        exactly(self.layers.len(), len, "gradients, one per layer")?;
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe { slice(pointers, len, "gradients") }
    }

    /// Runs a call on the gradients at `pointers`. There is one pointer per layer, or `pointers` is empty.
    ///
    /// # Safety
    /// Pointers are null, misaligned, or valid for the layer's number of values. Nothing else uses these values during
    /// the call.
    pub(super) unsafe fn with<T>(
        &mut self,
        pointers: &[*mut c_void],
        call: impl FnOnce(&mut [ValuesMut<'static>]) -> T,
    ) -> Result<T> {
        self.values.clear();
        self.ranges.clear();
        for (&pointer, layer) in pointers.iter().zip(&self.layers) {
            // SAFETY: the caller meets the safety requirements of this function. The references in `values` are cleared
            // after `call`. After a failure they are not used, and the next run clears them.
            let values = unsafe { values_mut(pointer, layer.dtype, layer.shape.elements()) };
            let (what, index) = ("gradients", layer.index);
            let of_layer = |failure| Failure::OfElement { what, index, failure: Box::new(failure) };
            self.values.push(values.map_err(of_layer)?);
            self.ranges.push(values_range(pointer, layer.dtype, layer.shape).of_layer(layer.index));
        }
        all_disjoint(&mut self.ranges)?;
        let done = call(&mut self.values);
        self.values.clear();
        Ok(done)
    }
}
