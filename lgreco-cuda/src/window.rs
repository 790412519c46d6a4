//! Keeps the mean of a model's last gradients on the device. The planner makes a plan from this mean. This module
//! launches the kernels of `window.cu`.
//!
//! Means are f32 and have the same bits as the means that a planner keeps on the host. Closing a window rounds the
//! means of 16-bit layers to the layers' type, as the host does before it measures. The rows of a closed window are
//! measured on f32 values.

use crate::Result;
use crate::backend::CudaBackend;
use crate::device::Part;
use crate::gpu::{Gpu, summing_blocks};
use crate::kernels::{Kernel, Module};
use crate::tensor::{DeviceGradient, checked};
use bytemuck::{Pod, Zeroable};
use lgreco::error::expect_len;
use lgreco::gradient::{Dtype, Shape};

/// The struct `Params` in `window.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    old: f32,
    own: f32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["old", "own"];
}

/// The struct `Observed` in `window.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Observed {
    gradient: u64,
    mean: u64,
    dtype: u32,
    count: u32,
    first_block: u32,
    blocks: u32,
}

#[cfg(test)]
impl Observed {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("gradient", std::mem::offset_of!(Observed, gradient)),
        ("mean", std::mem::offset_of!(Observed, mean)),
        ("dtype", std::mem::offset_of!(Observed, dtype)),
        ("count", std::mem::offset_of!(Observed, count)),
        ("first_block", std::mem::offset_of!(Observed, first_block)),
        ("blocks", std::mem::offset_of!(Observed, blocks)),
    ];
}

/// Number of values per block. Blocks take more values if the limit on the number of blocks requires it.
const PER_BLOCK: u64 = 16384;
/// Alignment of the parts, in bytes.
const ALIGN: u64 = 16;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Window, entry }
}

fn blocks(shape: Shape) -> u64 {
    summing_blocks((shape.elements() as u64).div_ceil(PER_BLOCK))
}

/// The mean of a model's last gradients in device memory, layer after layer. The planner makes a plan from this mean.
/// [`observe`](CudaBackend::observe) adds each step's gradients, without copying them.
/// [`close_window`](CudaBackend::close_window) ends the window. [`enqueue_rows`](CudaBackend::enqueue_rows) then
/// measures the window's [gradients](DeviceWindow::gradient). None of these calls waits, allocates or downloads.
///
/// ```no_run
/// use lgreco::gradient::{Dtype, Shape};
/// use lgreco_cuda::{CudaBackend, DeviceWindow, Error};
/// /// Averages two steps. `allocate` returns device memory, and `backward` the device address of a gradient.
/// fn window(cuda: &mut CudaBackend, allocate: impl Fn(u64) -> u64, backward: impl Fn() -> u64) -> Result<DeviceWindow, Error> {
///     let layers = [(Shape::new(64, 64)?, Dtype::Bf16)];
///     // SAFETY: the trainer's memory is large enough, and only work on the backend's stream uses it.
///     unsafe {
///         let window = cuda.begin_window(&layers, allocate(DeviceWindow::bytes(&layers)))?;
///         for step in 1..=2 {
///             cuda.observe(&window, &[(0, backward())], step)?;
///         }
///         cuda.close_window(&window)?; // squared norms are at `window.norms_address()`
///         Ok(window)
///     }
/// }
/// ```
#[derive(Debug)]
pub struct DeviceWindow {
    layers: Vec<(Shape, Dtype)>,
    /// The mean of each layer, in f32.
    means: Vec<Part>,
    table: Part,
    partials: Part,
    norms: Part,
}

impl DeviceWindow {
    /// Bytes of device memory for a window of these layers: about 4 per element.
    pub fn bytes(layers: &[(Shape, Dtype)]) -> u64 {
        let rest: u64 = sizes(layers).iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum();
        layers.iter().map(|&(shape, _)| mean_bytes(shape)).sum::<u64>() + rest
    }

    /// Returns the mean of a layer, in f32, or `None` if no layer has this number. Measure the mean only after the
    /// window is closed.
    pub fn gradient(&self, layer: usize) -> Option<DeviceGradient> {
        let (&part, &(shape, _)) = (self.means.get(layer)?, self.layers.get(layer)?);
        Some(DeviceGradient::of_part(part, Dtype::F32, shape))
    }

    /// Returns the address of an array with one f64 per layer. After the window is closed, each f64 is the squared norm
    /// of the layer's mean.
    pub fn norms_address(&self) -> u64 {
        self.norms.address
    }

    /// Returns the table entries for the layers in `gradients`, and the layer of each block.
    fn table(&self, gradients: impl Iterator<Item = (usize, u64)>) -> Result<(Vec<Observed>, Vec<u32>)> {
        let (mut rows, mut layer_of) = (Vec::new(), Vec::new());
        let mut seen = vec![false; self.layers.len()];
        for (layer, gradient) in gradients {
            if seen.get_mut(layer).is_some_and(|seen| std::mem::replace(seen, true)) {
                let (what, expected) = ("layer", "each of the window's once");
                return Err(lgreco::Error::Parameter { what, value: layer as f64, expected }.into());
            }
            let &(shape, dtype) = self.layers.get(layer).ok_or(no_layer(layer))?;
            let bytes = (shape.elements() * dtype.bytes()) as u64;
            let gradient = checked(gradient, bytes, dtype.bytes() as u64)?.address;
            let (blocks, number) = (blocks(shape), rows.len() as u32);
            rows.push(Observed {
                gradient,
                mean: self.means[layer].address,
                dtype: dtype as u32,
                count: shape.elements() as u32,
                first_block: layer_of.len() as u32,
                blocks: blocks as u32,
            });
            layer_of.extend(std::iter::repeat_n(number, blocks as usize));
        }
        Ok((rows, layer_of))
    }

    /// Enqueued: uploads tables to the device.
    fn upload(&self, gpu: &mut Gpu, rows: &[Observed], layer_of: &[u32]) -> Result<[Part; 2]> {
        let [first, second] = self.table.split([size_of_val(rows) as u64, size_of_val(layer_of) as u64]);
        gpu.write(bytemuck::cast_slice(rows), first)?;
        gpu.write(bytemuck::cast_slice(layer_of), second)?;
        Ok([first, second])
    }
}

fn no_layer(layer: usize) -> lgreco::Error {
    lgreco::Error::Parameter { what: "layer", value: layer as f64, expected: "one of the window's" }
}

fn mean_bytes(shape: Shape) -> u64 {
    (4 * shape.elements() as u64).next_multiple_of(ALIGN)
}

/// Returns the sizes of the tables, of the partial sums and of the norms, in bytes.
fn sizes(layers: &[(Shape, Dtype)]) -> [u64; 3] {
    let blocks: u64 = layers.iter().map(|&(shape, _)| blocks(shape)).sum();
    let count = layers.len() as u64;
    [size_of::<Observed>() as u64 * count + 4 * blocks, 8 * blocks, 8 * count]
}

impl CudaBackend {
    /// Enqueued: makes a window of these layers in `memory`, with means of zero. The call first waits until the kernels
    /// are loaded.
    ///
    /// # Errors
    /// [`Memory`](crate::Error::Memory) if the address is 0 or not a multiple of 16; errors of the device.
    ///
    /// # Safety
    /// `memory` is valid memory of [`bytes`](DeviceWindow::bytes) in the backend's context. The memory stays valid
    /// until the window and its gradients are dropped and all work enqueued with them is done. Only the window's calls
    /// write this memory.
    pub unsafe fn begin_window(&mut self, layers: &[(Shape, Dtype)], memory: u64) -> Result<DeviceWindow> {
        let memory = checked(memory, DeviceWindow::bytes(layers), ALIGN)?;
        let (mut rest, mut means) = (memory, Vec::with_capacity(layers.len()));
        for &(shape, _) in layers {
            means.push(rest.cut(0, 4 * shape.elements() as u64));
            rest = rest.from(mean_bytes(shape));
        }
        let gpu = self.gpu_mut();
        ["blend", "close", "add_squares"].map(kernel).into_iter().try_for_each(|kernel| gpu.prepare(kernel))?;
        gpu.clear(memory.cut(0, memory.bytes - rest.bytes))?;
        let [table, partials, norms] = sizes(layers).map(|bytes| {
            let part = rest.cut(0, bytes);
            rest = rest.from(bytes.next_multiple_of(ALIGN));
            part
        });
        Ok(DeviceWindow { layers: layers.to_vec(), means, table, partials, norms })
    }

    /// Enqueued, in one launch: adds the `steps`-th gradients of the window to the means. `gradients` has pairs of a
    /// layer's number and the address of its gradient, in the layer's type. A mean becomes
    /// `mean · (steps - 1) / steps + gradient / steps`. A layer that is not observed in a step keeps its mean.
    ///
    /// # Errors
    /// [`Parameter`](lgreco::Error::Parameter) for an unknown or repeated layer, and if `steps` is 0.
    /// [`Memory`](crate::Error::Memory) if an address is 0 or not a multiple of the size of a value. Errors of the
    /// device. After any other error, no work has been enqueued.
    ///
    /// # Complexity
    /// The call reads gradients and means once, and writes the means once.
    ///
    /// # Safety
    /// Each address is valid memory of the layer's values in the backend's context. Any other work that writes this
    /// memory is ordered before or after this call on the backend's stream. The window was begun in the same context,
    /// and all earlier work on the window is ordered before this call's work.
    pub unsafe fn observe(&mut self, window: &DeviceWindow, gradients: &[(usize, u64)], steps: u64) -> Result<()> {
        if steps == 0 {
            let (what, expected) = ("number of a window's step", "1 or more");
            return Err(lgreco::Error::Parameter { what, value: 0.0, expected }.into());
        }
        let (rows, layer_of) = window.table(gradients.iter().copied())?;
        let gpu = self.gpu_mut();
        let parts = window.upload(gpu, &rows, &layer_of)?;
        let steps = steps as f32;
        let params = Params { old: (steps - 1.0) / steps, own: 1.0 / steps };
        gpu.launch(kernel("blend"), params, &parts, layer_of.len() as u64)
    }

    /// Enqueued, in two launches: rounds the means of 16-bit layers to the layers' type, and sums the squares of each
    /// layer's mean. Do not observe a closed window.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Complexity
    /// The call reads all means once, and writes the means of 16-bit layers once.
    pub fn close_window(&mut self, window: &DeviceWindow) -> Result<()> {
        // The kernel that closes a window reads no gradients, so the table has the means' addresses instead.
        let means = window.means.iter().map(|mean| mean.address).enumerate();
        let (rows, layer_of) = window.table(means)?;
        let gpu = self.gpu_mut();
        let [layers, layer_of_blocks] = window.upload(gpu, &rows, &layer_of)?;
        let parts = [layers, layer_of_blocks, window.partials];
        gpu.launch(kernel("close"), Params::default(), &parts, layer_of.len() as u64)?;
        let parts = [layers, window.partials, window.norms];
        gpu.launch(kernel("add_squares"), Params::default(), &parts, rows.len() as u64)
    }

    /// Done: returns the squared norm of each layer's mean. The window must be [closed](CudaBackend::close_window).
    ///
    /// # Errors
    /// Errors of the device.
    pub fn window_norms(&mut self, window: &DeviceWindow) -> Result<Vec<f64>> {
        self.gpu_mut().read(window.norms)
    }

    /// Done: copies a layer's current mean to `values`, in f32.
    ///
    /// # Errors
    /// [`Parameter`](lgreco::Error::Parameter) for an unknown layer; [`Length`](lgreco::Error::Length) unless `values`
    /// is as long as the layer; errors of the device.
    pub fn window_mean(&mut self, window: &DeviceWindow, layer: usize, values: &mut [f32]) -> Result<()> {
        let &mean = window.means.get(layer).ok_or(no_layer(layer))?;
        expect_len("values of a mean", (mean.bytes / 4) as usize, values.len())?;
        self.gpu_mut().read_into(mean, bytemuck::cast_slice_mut(values))
    }
}
