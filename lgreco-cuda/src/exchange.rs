//! One exchange of a bucket of layers without the host: what `exchange.cu` is asked to do with those under QSGD, whose payloads
//! `check_payloads` of `kept_means.cu` looks at with TopK's.
//! [`rotated`] has those under EDEN, [`selection`](crate::selection) those under TopK, [`sums`] uncompressed ones and those under
//! PowerSGD.
//!
//! Residuals lie twice in the device's memory: a step reads one half and writes the other, and which half counts changes
//! where no rank has failed. So one read of gradients and residuals makes payloads and new residuals, and a step that turns
//! out to have failed on another rank has changed nothing.

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
pub(crate) use summed::{Dense, PEER, Params as SumsParams};

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Exchange, entry }
}

/// A program with its memory.
#[derive(Debug)]
pub struct DeviceExchange {
    program: ExchangeProgram,
    memory: Part,
    residuals: Part,
}

impl DeviceExchange {
    /// The parts that kernels take first: layers, the layers of spans, the program.
    fn parts(&self) -> [Part; 3] {
        let layers = size_of_val(&*self.program.layers) as u64;
        let [heads, slips] = [self.heads(), self.slips()].map(|part| part.bytes);
        let rest = self.memory.from(PROGRAM + heads + slips);
        [rest.cut(0, layers), rest.from(layers), self.head()]
    }

    /// The same with the layers of spans under EDEN.
    fn rotated_parts(&self) -> [Part; 3] {
        let [layers, layer_of, head] = self.parts();
        [layers, layer_of.from(size_of_val(&*self.program.layer_of) as u64), head]
    }

    /// Where messages begin, and where slips do behind what is summed.
    fn heads(&self) -> Part {
        self.memory.cut(PROGRAM, size_of_val(&*self.program.heads) as u64)
    }

    fn slips(&self) -> Part {
        self.memory.cut(PROGRAM + self.heads().bytes, size_of_val(&*self.program.slips) as u64)
    }

    /// The program.
    fn head(&self) -> Part {
        self.memory.cut(0, PROGRAM)
    }

    /// The world, and the memory that TopK has to itself.
    fn of_tops(&self) -> (u32, Part) {
        (self.program.head.world, self.memory.from(self.program.table_bytes()))
    }

    /// The `P` that are orthonormal, in f32.
    #[cfg(test)]
    pub(crate) fn of_rows(&self) -> Part {
        self.program.places(self.memory).of_rows
    }

    fn blocks(&self) -> Blocks {
        looping_pieces(self.program.head.spans.into())
    }

    /// The address of an f32 that is 1 after a step that failed on some rank, else 0: what PyTorch's `GradScaler` calls
    /// `found_inf`.
    pub fn found_inf_address(&self) -> u64 {
        self.memory.address + std::mem::offset_of!(Program, found_inf) as u64
    }
}

impl CudaBackend {
    /// Enqueued: brings a program into `memory`, and sets its residuals to zeros. Loads the kernels first, which waits.
    ///
    /// ```no_run
    /// use lgreco::{compress::{Setting, qsgd::Qsgd}, gradient::Shape};
    /// use lgreco_cuda::{CudaBackend, ExchangeConfig, ExchangeProgram};
    /// /// `allocate` gives device memory, and the stream of `all_gather` is the backend's.
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
    ///     // SAFETY: all is large enough, and used on the backend's stream alone.
    ///     unsafe {
    ///         let exchange = cuda.begin_exchange(program, memory, residuals)?;
    ///         for step in 0..1000 {
    ///             backward(gradients);
    ///             cuda.encode_exchange(&exchange, gradients, message)?;
    ///             all_gather(message, messages);
    ///             cuda.finish_exchange(&exchange, messages, gradients)?; // the means take the gradients' places
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
    /// [`Error::Memory`] when an address is 0 or no multiple of 16; those of the device.
    ///
    /// # Safety
    /// Until the exchange is dropped, and until all work enqueued with it is done, both are valid memory of
    /// [`memory_bytes`](ExchangeProgram::memory_bytes) and [`residual_bytes`](ExchangeProgram::residual_bytes) in the
    /// backend's context, apart from each other, which nothing else writes.
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

    /// Enqueued, in two launches, with layers under TopK in at most six, and in one more where EDEN comes to others: this rank's
    /// message for all layers under QSGD, EDEN and TopK, `residual + gradient` under each one's setting with the random words of the
    /// exchange's step, and what is to be remembered. Bit for bit the core's payloads, each at a multiple of 16. Nothing where all
    /// layers travel by sums. May be captured into a graph.
    ///
    /// # Errors
    /// [`Error::Memory`] when an address is 0, the message's no multiple of 16, or the gradients' none of their type's size;
    /// those of the device. What is wrong with values is found on the device: see
    /// [`finish_exchange`](CudaBackend::finish_exchange).
    ///
    /// # Complexity
    /// One read of gradients and residuals, under EDEN two, one write of payloads and residuals: 12.5 bytes per f32 value at 4 bits
    /// under QSGD. Under TopK, a sample more: a sixteenth of a layer, 65,536 values at most. The next residuals are read three times more in layers of
    /// more than 32,768 values that keep more than 7 of 32, in layers with so many ties that there is no room for what is gathered,
    /// and where the sample is wrong, by a chance of less than one in 10^8. A gain below 1 adds another read and write of the next
    /// residuals, and another read of the last ones.
    ///
    /// # Safety
    /// The gradients are valid memory of all layers' values, one after the other, and the message of
    /// [`message_bytes`](ExchangeProgram::message_bytes), in the backend's context, apart from each other, which nothing else
    /// uses, other than work ordered before or after on the backend's stream. The exchange was begun on this backend.
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
        // TopK's last launch has done it; by shards it is done when more is known.
        let is_announced = !program.tops.is_empty() || program.head.sharded != 0;
        if is_announced { Ok(()) } else { self.announce_exchange(exchange, message) }
    }

    /// Enqueued, in one launch: what this rank tells of itself at the head of its message or, by shards, of the messages for all
    /// ranks, of which its own begins there.
    pub(crate) fn announce_exchange(&mut self, exchange: &DeviceExchange, message: Part) -> Result<(), Error> {
        let parts = [exchange.head(), exchange.heads(), message];
        self.gpu_mut().launch_capturable(kernel("announce"), exchange.program.params, &parts, 1)
    }

    /// Enqueued, in two launches, with layers under TopK in at most four, and in two more with layers under EDEN: the means of all
    /// ranks' messages, which lie one after another, in the order of the ranks, and the step's end. Nothing where all layers travel
    /// by sums: then [`average_exchange`](CudaBackend::average_exchange) ends the step. Where a rank has failed, or is at another
    /// step, or has another program, or a payload that no encoder wrote, the means of all layers are what [`OnFault`] says and
    /// residuals stay as they were, on all ranks; so do they where a mean leaves its type. The means may take the gradients' places.
    /// May be captured into a graph.
    ///
    /// # Errors
    /// As [`encode_exchange`](CudaBackend::encode_exchange).
    ///
    /// # Complexity
    /// One read of all payloads, and one of QSGD's and EDEN's scales before; one write of the means; under TopK three reads of the
    /// positions.
    ///
    /// # Safety
    /// The messages are valid memory of as many as there are ranks, and the means of all layers' values, in the backend's
    /// context, apart from each other, which nothing else uses, other than work ordered before or after on the backend's
    /// stream. The exchange was begun on this backend.
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
        // Those under EDEN are filled here where a step fails.
        let pieces = spans.max(program.head.own_rotated).max(1);
        gpu.launch_capturable(kernel("average"), program.params, &parts, looping_pieces(pieces.into()))
    }
}
