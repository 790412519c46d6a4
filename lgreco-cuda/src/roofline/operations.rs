//! What an operation of the backend comes to, and how long it should take on a GPU.

use super::bounds::{Counts, bound};
use super::calls::{Call, Method, commands};
use super::gpus::Gpu;
use super::hot::HOT;
use crate::Error;
use lgreco_core::gradient::{Dtype, Shape};

/// Seconds of a command (a launch, a copy of a few bytes, memory filled) among others.
const COMMAND: f64 = 2e-6;
/// Bins of a layer's values in TopK's rows, which are of 32 powers of two.
const FILLED: f64 = 32.0 * 128.0;
/// Values of a layer that TopK's sample has, at most, and how many there are for each of them at least.
const SAMPLE: usize = 65536;
const SAMPLED: usize = 16;

/// Over what a pass of an operation goes.
#[derive(Clone, Copy)]
enum Over {
    Values,
    /// A sample of each layer.
    Sample,
    /// As many bins as a layer fills, or empties.
    Bins,
}

/// A pass of an operation.
pub(super) struct Pass {
    /// As `bounds.txt` names it, or empty where memory alone counts.
    kernel: &'static str,
    over: Over,
    /// Bytes of device memory that a value takes there, on average.
    bytes: f64,
    /// And a layer.
    of_layer: f64,
    /// Values of a thread.
    of_thread: f64,
    /// How often a value is worked on there, on average.
    times: f64,
}

/// What the backend is asked for.
pub struct Operation {
    /// As `examples/on_device` calls it.
    pub name: &'static str,
    /// Bytes per value that have to be read and written whatever is done.
    pub bytes: f64,
    /// The share of a copy's bandwidth that it is to reach, as it was said before it was built.
    pub target: Option<f64>,
    call: Call,
    method: Method,
    /// Of gradients.
    dtype: Dtype,
    passes: &'static [Pass],
    /// The least share that is predicted for each of [`Gpu::ALL`].
    pub(super) floors: [f64; 3],
}

impl Operation {
    pub(super) const fn new(
        name: &'static str,
        bytes: f64,
        (call, method, dtype): (Call, Method, Dtype),
        passes: &'static [Pass],
        floors: [f64; 3],
    ) -> Self {
        Operation { name, bytes, target: None, call, method, dtype, passes, floors }
    }

    pub(super) const fn reaching(self, target: f64) -> Self {
        Operation { target: Some(target), ..self }
    }
}

pub(super) const fn pass(kernel: &'static str, bytes: f64, of_thread: f64) -> Pass {
    Pass { kernel, over: Over::Values, bytes, of_layer: 0.0, of_thread, times: 1.0 }
}

/// A pass that works on a value so often, or on a part of the values; the bytes are those of all that.
pub(super) const fn often(times: f64, kernel: &'static str, bytes: f64, of_thread: f64) -> Pass {
    Pass { times, ..pass(kernel, bytes, of_thread) }
}

/// A pass whose kernels are bound by memory alone.
pub(super) const fn moved(bytes: f64, of_layer: f64) -> Pass {
    Pass { of_layer, ..pass("", bytes, 1.0) }
}

/// Over the bins of TopK's rows, with the bytes of one, by a block of 256 threads for each layer.
pub(super) const fn bins(kernel: &'static str, bytes: f64) -> Pass {
    Pass { over: Over::Bins, ..pass(kernel, bytes, FILLED / 256.0) }
}

/// TopK's sample, by the kernel of the gradient's type, with the bytes of one value: those of whole sectors of memory, of 32 bytes,
/// which single values are read in.
pub(super) const fn sample(kernel: &'static str, bytes: f64) -> Pass {
    Pass { over: Over::Sample, ..pass(kernel, bytes, 4.0) }
}

/// Seconds, and the bandwidth of the bytes that have to be read and written, as a share of a copy's.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// Seconds.
    pub seconds: f64,
    /// Of the bandwidth of a copy.
    pub of_copy: f64,
}

impl Operation {
    /// Commands that it enqueues for these layers.
    ///
    /// # Errors
    /// [`Error`] as of the backend's call.
    pub fn commands(&self, shapes: &[Shape]) -> Result<f64, Error> {
        commands(self.call, (self.method, self.dtype), shapes)
    }

    /// What is predicted for these layers, in so many commands.
    pub fn predict(&self, gpu: &Gpu, shapes: &[Shape], commands: f64) -> Prediction {
        let values: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let passes = self.passes.iter().map(|pass| pass.seconds(gpu, shapes));
        let seconds = passes.sum::<f64>() + COMMAND * commands;
        Prediction { seconds, of_copy: self.bytes * values as f64 / gpu.copy / seconds }
    }
}

impl Pass {
    fn seconds(&self, gpu: &Gpu, shapes: &[Shape]) -> f64 {
        let total = |of: fn(usize) -> usize| shapes.iter().map(|shape| of(shape.elements())).sum::<usize>() as f64;
        let (values, bytes) = match self.over {
            Over::Values => (total(|elements| elements), self.bytes),
            Over::Bins => (FILLED * shapes.len() as f64, self.bytes),
            Over::Sample => (total(|elements| elements.div_ceil(SAMPLED).min(SAMPLE)), self.bytes),
        };
        let of_layers = self.of_layer * shapes.len() as f64 / gpu.copy;
        of_layers
            + match self.kernel {
                "" => values * bytes / gpu.copy,
                kernel => {
                    let (block, counts) = known(kernel, gpu.code);
                    gpu.pass((values * self.times, bytes / self.times), &counts, block, self.of_thread)
                }
            }
    }
}

/// A kernel's threads per block, and its bound.
pub(super) fn known(kernel: &str, code: u32) -> (u32, Counts) {
    let hot = HOT.iter().find(|hot| hot.name() == kernel).unwrap_or_else(|| panic!("no hot kernel is called {kernel}"));
    (hot.block, bound(kernel, code).unwrap_or_else(|| panic!("bounds.txt has no {kernel} for sm_{code}")))
}
