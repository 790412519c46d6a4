//! Exchanges a bucket of layers whose data stays on the device. This module launches `exchange.cu` for layers under
//! QSGD. The kernel `check_payloads` in `kept_means.cu` checks the payloads of QSGD and TopK. [`rotated`] handles
//! layers under EDEN, and [`selection`](crate::selection) layers under TopK. [`sums`] handles uncompressed layers and
//! layers under PowerSGD.
//!
//! Device memory holds two copies of the residuals. A step reads one copy and writes the other. The copies change roles
//! only if no rank has failed, so a step that fails on any rank leaves the residuals unchanged. With two copies, one
//! pass over gradients and residuals makes both the payloads and the new residuals.

#[cfg(feature = "train")]
mod bucket;
mod layer;
mod outcome;
mod program;
mod rotated;
mod summed;
mod sums;

use crate::Error;
use crate::backend::CudaBackend;
use crate::device::Part;
use crate::gpu::{Blocks, looping_pieces};
use crate::kernels::{Kernel, Module};
use crate::selection;
use crate::tensor::checked;
#[cfg(feature = "train")]
pub use bucket::{DeviceBucket, DeviceLayer, DeviceMemory, DeviceRequest};
#[cfg(test)]
pub(crate) use layer::Layer;
use layer::PROGRAM;
pub(crate) use layer::Program;
pub use outcome::{ExchangeFault, ExchangeOutcome};
pub use program::{ExchangeConfig, ExchangeProgram, OnFault};
#[cfg(test)]
pub(crate) use rotated::Params as RotatedParams;
#[cfg(test)]
pub(crate) use summed::{Dense, NON_FINITE_GRADIENT, PEER, Params as SumsParams};

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Exchange, entry }
}

/// The exchange of a bucket: the [`ExchangeProgram`] that describes it, and its device memory.
#[derive(Debug)]
pub struct DeviceExchange {
    program: ExchangeProgram,
    memory: Part,
    residuals: Part,
}

impl DeviceExchange {
    /// The first three arguments of the kernels: the table of layers, the layer of each span, and the [`Program`].
    fn parts(&self) -> [Part; 3] {
        let layers = size_of_val(&*self.program.layers) as u64;
        let [heads, slips] = [self.heads(), self.slips()].map(|part| part.bytes);
        let rest = self.memory.from(PROGRAM + heads + slips);
        [rest.cut(0, layers), rest.from(layers), self.head()]
    }

    /// Returns the arguments of [`parts`](Self::parts) for EDEN's kernels: the second part has the layer of each span
    /// under EDEN.
    fn rotated_parts(&self) -> [Part; 3] {
        let [layers, layer_of, head] = self.parts();
        [layers, layer_of.from(size_of_val(&*self.program.layer_of) as u64), head]
    }

    /// The table of offsets at which the messages begin.
    fn heads(&self) -> Part {
        self.memory.cut(PROGRAM, size_of_val(&*self.program.heads) as u64)
    }

    /// A table for the buffer of the first sum: the positions at which status records begin, after the summed values.
    fn slips(&self) -> Part {
        self.memory.cut(PROGRAM + self.heads().bytes, size_of_val(&*self.program.slips) as u64)
    }

    /// The part with the struct [`Program`].
    fn head(&self) -> Part {
        self.memory.cut(0, PROGRAM)
    }

    /// Returns the world size, and the memory that only TopK uses.
    fn of_tops(&self) -> (u32, Part) {
        (self.program.head.world, self.memory.from(self.program.table_bytes()))
    }

    /// PowerSGD's orthonormal factors `P`, in f32.
    #[cfg(test)]
    pub(crate) fn of_rows(&self) -> Part {
        self.program.places(self.memory).of_rows
    }

    fn blocks(&self) -> Blocks {
        looping_pieces(self.program.head.spans.into())
    }

    /// Returns the address of the f32 that PyTorch's `GradScaler` calls `found_inf`. The f32 is 1 after a step that
    /// failed on any rank, and 0 after other steps.
    pub fn found_inf_address(&self) -> u64 {
        self.memory.address + std::mem::offset_of!(Program, found_inf) as u64
    }
}

impl CudaBackend {
    /// Enqueued: uploads `program` into `memory`, and sets `residuals` to zeros. The call first waits until the kernels
    /// are loaded.
    ///
    /// ```no_run
    /// use lgreco::{compress::{Setting, qsgd::Qsgd}, gradient::Shape};
    /// use lgreco_cuda::{CudaBackend, ExchangeConfig, ExchangeProgram};
    /// /// `allocate` returns the address of new device memory. `all_gather` uses the backend's stream.
    /// fn train(
    ///     cuda: &mut CudaBackend,
    ///     allocate: impl Fn(u64) -> u64,
    ///     all_gather: impl Fn(u64, u64),
    ///     backward: impl Fn(u64),
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let config = ExchangeConfig { world: 8, ..ExchangeConfig::default() };
    ///     let program = ExchangeProgram::new(&[(Shape::new(64, 64)?, Setting::Qsgd(Qsgd::default()))], config)?;
    ///     let (gradients, message) = (allocate(4 * 64 * 64), allocate(program.message_bytes() as u64));
    ///     let messages = allocate(8 * program.message_bytes() as u64);
    ///     let (memory, residuals) = (allocate(program.memory_bytes()), allocate(program.residual_bytes()));
    ///     // SAFETY: all memory is large enough, and only work on the backend's stream uses it.
    ///     unsafe {
    ///         let exchange = cuda.begin_exchange(program, memory, residuals)?;
    ///         for step in 0..1000 {
    ///             backward(gradients);
    ///             cuda.encode_exchange(&exchange, gradients, message)?;
    ///             all_gather(message, messages);
    ///             cuda.finish_exchange(&exchange, messages, gradients)?; // the means replace the gradients
    ///             if step % 100 == 99 {
    ///                 println!("{:?}", cuda.exchange_outcome(&exchange)?); // waits
    ///             }
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if an address is 0 or not a multiple of 16; errors of the device.
    ///
    /// # Safety
    /// `memory` must be the address of [`memory_bytes`](ExchangeProgram::memory_bytes) bytes of valid memory, and
    /// `residuals` the address of [`residual_bytes`](ExchangeProgram::residual_bytes) bytes. Both memories are in the
    /// backend's context and do not overlap. Both memories stay valid until the exchange is dropped and all its
    /// enqueued work is done. Only the exchange writes these memories.
    pub unsafe fn begin_exchange(
        &mut self,
        program: ExchangeProgram,
        memory: u64,
        residuals: u64,
    ) -> Result<DeviceExchange, Error> {
        let memory = checked(memory, program.memory_bytes(), 16)?;
        let residuals = checked(residuals, program.residual_bytes(), 16)?;
        let exchange = DeviceExchange { program, memory, residuals };
        let gpu = self.gpu_mut();
        let gathering = ["encode", "announce", "average"].map(kernel);
        gathering
            .into_iter()
            .chain([selection::CHECK])
            .chain(sums::KERNELS)
            .chain(rotated::KERNELS)
            .try_for_each(|kernel| gpu.prepare(kernel))?;
        let tops = &exchange.program.tops;
        if !tops.is_empty() {
            selection::KERNELS.into_iter().try_for_each(|kernel| gpu.prepare(kernel))?;
            let (world, memory) = exchange.of_tops();
            tops.begin(gpu, world, memory)?;
        }
        let [layers, layer_of, head] = exchange.parts();
        let (summed, of) = (&exchange.program.summed, exchange.program.places(memory));
        gpu.write(bytemuck::cast_slice(&summed.dense), of.dense)?;
        gpu.write(bytemuck::cast_slice(&summed.matrices.matrices), of.matrices)?;
        gpu.clear(of.counters)?;
        gpu.clear(of.remembered)?;
        gpu.write(bytemuck::bytes_of(&exchange.program.head), head)?;
        gpu.write(bytemuck::cast_slice(&exchange.program.heads), exchange.heads())?;
        gpu.write(bytemuck::cast_slice(&exchange.program.slips), exchange.slips())?;
        gpu.write(bytemuck::cast_slice(&exchange.program.layers), layers)?;
        gpu.write(bytemuck::cast_slice(&exchange.program.layer_of), layer_of)?;
        let [_, rotated_of, _] = exchange.rotated_parts();
        gpu.write(bytemuck::cast_slice(&exchange.program.rotated_of), rotated_of)?;
        gpu.clear(residuals)?;
        Ok(exchange)
    }

    /// Enqueued: makes this rank's message for all layers under QSGD, EDEN and TopK, and the next residuals of these
    /// layers. The call compresses `residual + gradient` under each layer's setting, with the random words of the
    /// exchange's step. The payloads have the same bits as the core's payloads. Each payload begins at a multiple of 16
    /// bytes. The call takes two launches, or at most six with layers under TopK. If the bucket has both layers under
    /// EDEN and layers under other methods, the call takes one more launch. The call does nothing if all layers are
    /// uncompressed or under PowerSGD. The call may be captured into a graph.
    ///
    /// # Errors
    /// [`Error::Memory`] if an address is 0, if the address `message` is not a multiple of 16, or if the address
    /// `gradients` is not a multiple of a value's size. Errors of the device. The call does not report values that are
    /// not finite. The device detects them, and the step fails: see [`finish_exchange`](CudaBackend::finish_exchange).
    ///
    /// # Complexity
    /// The call reads gradients and residuals once (under EDEN twice), and writes payloads and residuals once. For f32
    /// values under QSGD with 4 bits, this is 12.5 bytes per value. For each layer, TopK also reads a sample of a
    /// sixteenth of the values, at most 65,536. In three cases TopK reads the next residuals three more times:
    /// * The layer has more than 32,768 values, and TopK keeps more than 7 of 32 values.
    /// * The layer has so many equal magnitudes that the memory for values above the sampled bound is too small.
    /// * The sample gives a wrong bound on the k-th largest magnitude. The probability of a wrong bound is below 1 in
    ///   10^8.
    ///
    /// If the gain is below 1, TopK reads and writes the next residuals once more, and reads the previous residuals
    /// once more.
    ///
    /// # Safety
    /// The memory at `gradients` must be valid and hold the values of all layers, one layer after the other. The memory
    /// at `message` must be valid and have [`message_bytes`](ExchangeProgram::message_bytes) bytes. Both memories are
    /// in the backend's context and do not overlap. Any other work on these memories is ordered before or after this
    /// call on the backend's stream. The exchange was begun on this backend.
    pub unsafe fn encode_exchange(
        &mut self,
        exchange: &DeviceExchange,
        gradients: u64,
        message: u64,
    ) -> Result<(), Error> {
        let program = &exchange.program;
        if !program.is_gathered() {
            return Ok(());
        }
        let gradients = checked(gradients, program.value_bytes(), program.dtype.bytes() as u64)?;
        let message = checked(message, program.head.apart, 16)?;
        let [layers, layer_of, head] = exchange.parts();
        let gpu = self.gpu_mut();
        let parts = [layers, layer_of, head, gradients, exchange.residuals, message];
        if program.head.spans > 0 {
            gpu.launch_capturable(kernel("encode"), program.params, &parts, exchange.blocks())?;
        }
        rotated::encode(gpu, exchange, gradients, message)?;
        if !program.tops.is_empty() {
            let parts = [head, gradients, exchange.residuals, message];
            program.tops.encode(gpu, program.dtype, exchange.of_tops(), parts)?;
        }
        // TopK's last launch has already written the status. With shards, a later call writes the status, because this
        // rank may still find faults before that call.
        let is_announced = !program.tops.is_empty() || program.head.sharded != 0;
        if is_announced { Ok(()) } else { self.announce_exchange(exchange, message) }
    }

    /// Enqueued, in one launch: writes this rank's status at the head of its message. With shards, this rank has one
    /// message for each rank, and all these messages get the status. With shards, `message` begins with this rank's
    /// message to itself.
    pub(crate) fn announce_exchange(&mut self, exchange: &DeviceExchange, message: Part) -> Result<(), Error> {
        let parts = [exchange.head(), exchange.heads(), message];
        self.gpu_mut().launch_capturable(kernel("announce"), exchange.program.params, &parts, 1)
    }

    /// Enqueued: computes the means from the messages of all ranks, and ends the step. The messages lie one after
    /// another, in the order of the ranks. The call takes two launches, or at most four with layers under TopK. Layers
    /// under EDEN take two more launches. If all layers are uncompressed or under PowerSGD, the call does nothing,
    /// because [`average_exchange`](CudaBackend::average_exchange) ends the step.
    ///
    /// A step fails if a rank has failed, is at another step, has another [`ExchangeProgram`], or sent a payload that
    /// no encoder wrote. In a failed step, all ranks set the means of all layers to the value that [`OnFault`] defines,
    /// and keep their residuals. All ranks also keep their residuals if a mean exceeds the range of its type. The means
    /// may replace the gradients in place. The call may be captured into a graph.
    ///
    /// # Errors
    /// The errors of [`encode_exchange`](CudaBackend::encode_exchange).
    ///
    /// # Complexity
    /// The call reads the scales of QSGD and EDEN once, then all payloads once, and writes the means once. TopK reads
    /// the positions three times.
    ///
    /// # Safety
    /// The memory at `messages` must be valid and hold one message per rank. The memory at `means` must be valid and
    /// large enough for the values of all layers. Both memories are in the backend's context and do not overlap. Any
    /// other work on these memories is ordered before or after this call on the backend's stream. The exchange was
    /// begun on this backend.
    pub unsafe fn finish_exchange(
        &mut self,
        exchange: &DeviceExchange,
        messages: u64,
        means: u64,
    ) -> Result<(), Error> {
        let program = &exchange.program;
        if !program.is_gathered() {
            return Ok(());
        }
        let messages = checked(messages, program.head.apart * u64::from(program.head.world), 16)?;
        let means = checked(means, program.value_bytes(), program.dtype.bytes() as u64)?;
        let [layers, layer_of, head] = exchange.parts();
        let gpu = self.gpu_mut();
        let spans = program.head.own_spans;
        program.tops.check(gpu, exchange.of_tops(), (spans, [head, messages, layers, layer_of]))?;
        rotated::average(gpu, exchange, messages, means)?;
        if program.tops.has_own() {
            program.tops.average(gpu, program.dtype, exchange.of_tops(), [head, messages, means])?;
            if spans == 0 {
                return Ok(());
            }
        }
        let parts = [layers, layer_of, head, messages, means];
        // If a step fails, this launch overwrites all means with zeros or NaN, also those of layers under EDEN.
        let pieces = spans.max(program.head.own_rotated).max(1);
        gpu.launch_capturable(kernel("average"), program.params, &parts, looping_pieces(pieces.into()))
    }
}
