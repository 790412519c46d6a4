//! A tensor on the device.

use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::{Error, Result};
use lgreco::backend::Job;
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, with_elements};

/// A gradient in device memory, borrowed from a trainer.
///
/// ```
/// use lgreco::gradient::{Dtype, Shape};
/// use lgreco_cuda::DeviceGradient;
/// let shape = Shape::new(4, 1024)?;
/// // SAFETY: nothing reads the gradient's values.
/// let gradient = unsafe { DeviceGradient::new(0x7f00_0000_0000, Dtype::Bf16, shape) };
/// assert_eq!(gradient.map(|gradient| gradient.shape()), Ok(shape));
/// # Ok::<(), lgreco::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DeviceGradient {
    part: Part,
    dtype: Dtype,
    shape: Shape,
}

impl DeviceGradient {
    /// Describes the gradient whose first value is at `address`. The values have row-major order, without gaps. For an
    /// empty gradient the address is ignored.
    ///
    /// # Errors
    /// [`Error::Memory`] if the address is 0 or not a multiple of the values' size.
    ///
    /// # Safety
    /// `address` is valid memory of `shape.elements() * dtype.bytes()` bytes in the backend's context. The memory stays
    /// valid while this gradient or a copy is in use, and until all work enqueued with them is done. Any other work
    /// that writes this memory is ordered before or after that work on the backend's stream.
    pub unsafe fn new(address: u64, dtype: Dtype, shape: Shape) -> Result<Self> {
        let bytes = (shape.elements() * dtype.bytes()) as u64;
        Ok(DeviceGradient { part: checked(address, bytes, dtype.bytes() as u64)?, dtype, shape })
    }

    /// Describes a gradient in the backend's own memory.
    pub(crate) fn of_part(part: Part, dtype: Dtype, shape: Shape) -> Self {
        DeviceGradient { part, dtype, shape }
    }

    /// The matrix shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The type of the values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
}

/// A job that measures a row of the error table, for a gradient on the device.
///
/// ```
/// use lgreco::compress::Candidates;
/// use lgreco::{gradient::Dtype, rng::Stream};
/// use lgreco_cuda::{DeviceGradient, DeviceJob};
/// fn densities(gradient: DeviceGradient) -> DeviceJob<'static> {
///     let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[10, 100, 1000] };
///     DeviceJob { gradient, candidates, stream: Stream::default() }
/// }
/// ```
pub type DeviceJob<'a> = Job<'a, DeviceGradient>;

/// Returns the memory of `bytes` bytes at `address`. `Err` unless `bytes` is 0 or the address is nonzero and a multiple
/// of `align`.
pub(crate) fn checked(address: u64, bytes: u64, align: u64) -> Result<Part> {
    if bytes == 0 {
        return Ok(Part { address: 0, bytes });
    }
    if address == 0 {
        return Err(Error::Memory { what: "has the address 0" });
    }
    if !address.is_multiple_of(align) {
        return Err(Error::Memory { what: "begins at an address that is no multiple of what a value takes" });
    }
    if address.checked_add(bytes).is_none() {
        return Err(Error::Memory { what: "ends beyond the last address" });
    }
    Ok(Part { address, bytes })
}

/// A gradient on the host or the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Input<'a> {
    Host(Gradient<'a>),
    Device(DeviceGradient),
}

impl<'a> From<Gradient<'a>> for Input<'a> {
    fn from(gradient: Gradient<'a>) -> Self {
        Input::Host(gradient)
    }
}

impl From<DeviceGradient> for Input<'_> {
    fn from(gradient: DeviceGradient) -> Self {
        Input::Device(gradient)
    }
}

/// A job that measures a row of the error table, for values on the host or the device.
pub(crate) type Work<'a> = Job<'a, Input<'a>>;

/// Converts jobs with gradients on the host or on the device.
pub(crate) fn work<'a, G: Copy + Into<Input<'a>>>(jobs: &[Job<'a, G>]) -> Vec<Work<'a>> {
    let work =
        |&Job { gradient, candidates, stream }: &Job<'a, G>| Job { gradient: gradient.into(), candidates, stream };
    jobs.iter().map(work).collect()
}

impl<'a> Input<'a> {
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Input::Host(gradient) => gradient.shape(),
            Input::Device(gradient) => gradient.shape,
        }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        match self {
            Input::Host(gradient) => gradient.values().dtype(),
            Input::Device(gradient) => gradient.dtype,
        }
    }

    /// Whether both gradients are the same memory, with values of the same type.
    pub(crate) fn is(&self, other: &Input<'_>) -> bool {
        let same_place = match (self, other) {
            (Input::Host(a), Input::Host(b)) => std::ptr::eq(bytes_of(a), bytes_of(b)),
            (Input::Device(a), Input::Device(b)) => a.part == b.part,
            _ => false,
        };
        same_place && self.dtype() == other.dtype()
    }

    /// Returns the gradient's values on the device. The call first uploads a host gradient.
    pub(crate) fn tensor(&self, gpu: &mut Gpu) -> Result<Tensor> {
        let (dtype, elements) = (self.dtype(), self.shape().elements() as u32);
        let part = match self {
            Input::Host(gradient) => {
                let part = gpu.upload(Scratch::Values, bytes_of(gradient))?;
                // After the wait, further uploads can use all page-locked memory.
                gpu.synchronise()?;
                part
            }
            Input::Device(gradient) => gradient.part,
        };
        Ok(Tensor { part, dtype, elements })
    }
}

/// The values of a host gradient, as bytes.
fn bytes_of<'a>(gradient: &Gradient<'a>) -> &'a [u8] {
    with_elements!(gradient.values(), values => bytemuck::cast_slice(values))
}

/// Values on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub(crate) part: Part,
    pub(crate) dtype: Dtype,
    pub(crate) elements: u32,
}

impl Tensor {
    /// The f32 values of `part`.
    pub(crate) fn of_part(part: Part) -> Tensor {
        Tensor { part, dtype: Dtype::F32, elements: (part.bytes / 4) as u32 }
    }

    /// Done: reads the value of element `index`.
    pub(crate) fn value(&self, gpu: &mut Gpu, index: usize) -> Result<f32> {
        let size = self.dtype.bytes() as u64;
        let at = self.part.cut(size * index as u64, size);
        Ok(match self.dtype {
            Dtype::F32 => gpu.read::<f32>(at)?[0],
            Dtype::F16 => F16(gpu.read::<u16>(at)?[0]).to_f32(),
            Dtype::Bf16 => Bf16(gpu.read::<u16>(at)?[0]).to_f32(),
        })
    }
}
