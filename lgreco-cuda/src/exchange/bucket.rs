//! A bucket in device memory, exchanged by the operations of lgreco-train's exchange program. The bucket enqueues the
//! work between collectives; the trainer performs the collectives.

mod shards;
mod space;

use self::shards::{Kept, described};
use self::space::{Enqueuing, Wire};
use super::{DeviceExchange, ExchangeConfig, ExchangeOutcome, ExchangeProgram, Program};
use crate::backend::CudaBackend;
use crate::device::Part;
use crate::tensor::checked;
use crate::{Error, Result};
use lgreco::error::expect_len;
use lgreco_train::compress::Setting;
use lgreco_train::exchange::{Agreement, Flight, Moment, Request};
use lgreco_train::gradient::Shape;

/// Alignment of the parts of a bucket's memory, in bytes.
const ALIGN: u64 = 16;

/// Device memory that a collective reads or writes.
///
/// ```
/// let gathered = lgreco_cuda::DeviceMemory { address: 0x7000_0000, len: 4096 };
/// assert_eq!(gathered.len / 8, 512); // bytes of each of eight ranks
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Address of the first byte, a multiple of 16.
    pub address: u64,
    /// For sums, the number of f32 or bf16 values. For other collectives, the length in bytes.
    pub len: usize,
}

/// A collective on device memory: an all-gather, or an all-reduce that adds up values. For a bucket with
/// [shards](DeviceLayer::shards), the collective is an all-to-all or a reduce-scatter. The caller enqueues the
/// collective on the backend's stream, or on another stream that waits for the backend's stream. The receive buffer of
/// an all-to-all lies directly before this rank's message to itself. Each received message has the length of that
/// message.
pub type DeviceRequest<'b> = Request<'b, DeviceMemory, DeviceMemory, DeviceMemory>;

/// A layer of a bucket on the device.
///
/// ```
/// use lgreco::{compress::{Setting, qsgd::Qsgd}, gradient::Shape};
/// use lgreco_cuda::DeviceLayer;
/// let layer = DeviceLayer { index: 17, shape: Shape::new(512, 512)?, setting: Setting::Qsgd(Qsgd::default()), shards: &[] };
/// let of_two_ranks = DeviceLayer { shards: &[256 * 512, 512 * 512], ..layer };
/// # let _ = of_two_ranks;
/// # Ok::<(), lgreco::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLayer<'a> {
    /// Index of the layer in the model. The index, the seed, the step and the rank select the random words.
    pub index: u32,
    /// Rows and columns.
    pub shape: Shape,
    /// How the layer is compressed.
    pub setting: Setting,
    /// The index at which each rank's shard ends, as in [`Spec`](lgreco_train::exchange::Spec). With shards, each rank
    /// gets only the means of its own shards ([`Route::Sharded`](lgreco_train::exchange::Route)). The list is empty if
    /// each rank gets all means. Either all layers of a bucket have shards, or none has.
    pub shards: &'a [u64],
}

/// Layers that are exchanged together, with gradients, residuals and messages in device memory.
///
/// A step begins with [`submit`](DeviceBucket::submit). Then the caller repeats [`next`](DeviceBucket::next), and
/// performs the collective that each call requests. When `next` has returned `None`, the work that replaces the
/// gradients by the means is enqueued. A step neither waits, nor allocates, nor uploads from the host. So a step and
/// its collectives may be captured into a CUDA graph and replayed. The device counts the steps, which select the random
/// words. Steps of different buckets may run at the same time, on one backend or on several backends with separate
/// streams.
///
/// Each rank's device finds values that cannot be compressed, such as NaN, and reports them in the rank's message.
/// Every rank then sets the means to the value that [`OnFault`](crate::OnFault) defines and keeps its residuals. A step
/// also fails if a mean exceeds the range of its type, which all ranks notice. After such a step, all ranks keep their
/// residuals. Only the mean out of range is infinite or NaN; all other means are valid.
/// [`outcome`](DeviceBucket::outcome) reports failures to the host at any time.
///
/// If layers have [shards](DeviceLayer::shards), this rank gets only the means of its own shards. The means replace the
/// gradients of this rank's shards; all other gradients stay. A rank may receive a payload that no encoder wrote, or a
/// mean of its shards may leave the range of its type. In both cases, only this rank [knows of the
/// fault](ExchangeOutcome::alone), and only this rank keeps its residuals. This rank should report the fault to the
/// other ranks by [`submit_failure`](DeviceBucket::submit_failure).
///
/// ```no_run
/// use lgreco::{compress::{Setting, qsgd::Qsgd}, gradient::Shape};
/// use lgreco_cuda::{CudaBackend, DeviceBucket, DeviceLayer, DeviceMemory, ExchangeConfig};
/// use lgreco_train::exchange::Request;
/// /// `allocate` returns new device memory. `backward` and the collectives use the backend's stream.
/// fn train(
///     cuda: &mut CudaBackend,
///     allocate: impl Fn(u64) -> u64,
///     backward: impl Fn() -> u64,
///     (all_gather, all_reduce_sum): (impl Fn(DeviceMemory), impl Fn(DeviceMemory)),
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let (config, setting) = (ExchangeConfig { world: 8, ..ExchangeConfig::default() }, Setting::Qsgd(Qsgd::default()));
///     let layers = [DeviceLayer { index: 0, shape: Shape::new(64, 64)?, setting, shards: &[] }];
///     let memory = allocate(DeviceBucket::bytes(&layers, config)?);
///     // SAFETY: all memory is large enough, and only work on the backend's stream uses it.
///     unsafe {
///         let mut bucket = DeviceBucket::new(cuda, &layers, config, memory)?;
///         for step in 0..1000 {
///             bucket.submit(cuda, backward())?;
///             while let Some(request) = bucket.next(cuda)? {
///                 match request {
///                     Request::AllGather { buffer } => all_gather(buffer),
///                     Request::AllReduceSum { values } => all_reduce_sum(values),
///                     _ => unreachable!("not without shards"),
///                 }
///             }
///             if step % 100 == 99 {
///                 println!("{:?}", bucket.outcome(cuda)?); // waits; a copy from `outcome_address` does not
///             }
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct DeviceBucket {
    pub(super) exchange: DeviceExchange,
    layers: Vec<Kept>,
    pub(super) moment: Moment,
    wire: Wire,
    pub(super) gradients: u64,
    flight: Option<Flight>,
    /// The device's error in the current step, which this rank reports to the other ranks.
    pub(super) refused: Option<Error>,
}

/// The parts of a bucket's memory, each at a multiple of 16.
struct Places {
    program: Part,
    residuals: Part,
    wire: Wire,
}

/// Sizes of the parts in bytes, in order.
fn sizes(program: &ExchangeProgram) -> [u64; 5] {
    let messages = program.messages_bytes();
    let [sums, factors] = [program.sum_values(), program.factor_values()].map(|values| program.summed_bytes(values));
    [program.memory_bytes(), program.residual_bytes(), messages, sums, factors]
}

fn places(program: &ExchangeProgram, memory: Part) -> Places {
    let mut rest = memory;
    let [own, residuals, messages, sums, factors] = sizes(program).map(|bytes| {
        let part = rest.cut(0, bytes);
        rest = rest.from(bytes.next_multiple_of(ALIGN));
        part
    });
    Places { program: own, residuals, wire: Wire::new(program, [messages, sums, factors]) }
}

fn bytes(program: &ExchangeProgram) -> u64 {
    sizes(program).iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
}

impl DeviceBucket {
    /// Bytes of device memory that a bucket of these layers needs: about 8 per element for residuals, and the messages.
    ///
    /// # Errors
    /// The errors of [`ExchangeProgram::new`]. With shards: [`Error::Method`] for layers under PowerSGD and for a
    /// bucket without elements. Also with shards: [`Parameter`](lgreco::Error::Parameter) or
    /// [`Length`](lgreco::Error::Length) unless each layer has one shard per rank, whose ends ascend up to the layer's
    /// last element.
    pub fn bytes(layers: &[DeviceLayer<'_>], config: ExchangeConfig) -> Result<u64> {
        Ok(bytes(&described(layers, config)?.1))
    }

    /// Enqueued: makes a bucket of these layers, with zero residuals. In each step, the gradients of the layers follow
    /// one another in this order without gaps, as in a DDP bucket. The call first waits until the kernels are loaded.
    /// The layer number in `config.stream` is ignored.
    ///
    /// # Errors
    /// The errors of [`bytes`](DeviceBucket::bytes); [`Error::Memory`] if the address is 0 or not a multiple of 16;
    /// errors of the device.
    ///
    /// # Safety
    /// `memory` is valid memory of [`bytes`](DeviceBucket::bytes) in the backend's context. The memory stays valid
    /// until the bucket is dropped and all its enqueued work is done. Only the bucket and the requested collectives use
    /// the memory.
    pub unsafe fn new(
        cuda: &mut CudaBackend,
        layers: &[DeviceLayer<'_>],
        config: ExchangeConfig,
        memory: u64,
    ) -> Result<DeviceBucket> {
        let (moment, program) = described(layers, config)?;
        let Places { program: own, residuals, wire } = places(&program, checked(memory, bytes(&program), ALIGN)?);
        // SAFETY: the caller guarantees that `memory` is valid, and both addresses lie in `memory`.
        let exchange = unsafe { cuda.begin_exchange(program, own.address, residuals.address) }?;
        let layers = layers.iter().map(|layer| Kept::new(layer, config.dtype)).collect();
        Ok(DeviceBucket { exchange, layers, moment, wire, gradients: 0, flight: None, refused: None })
    }

    /// Enqueued: begins a step; compresses the gradients with the residuals added. The gradients must stay at this
    /// address until [`next`](DeviceBucket::next) has returned `None`. The means then replace the gradients.
    ///
    /// # Errors
    /// [`StepOrder`](lgreco_train::Error::StepOrder) if a step is under way; [`Error::Memory`] if the address is 0 or
    /// not a multiple of the size of a value. These errors leave the bucket unchanged. The step reports any other error
    /// to all ranks, and `next` returns it.
    ///
    /// # Safety
    /// `gradients` is valid memory of all layers' values in the backend's context. Any other work on this memory is
    /// ordered before or after this call on the backend's stream. `cuda` is the backend of [`new`](DeviceBucket::new),
    /// or a backend on another stream of the same context. With another stream, all earlier work on this bucket is
    /// ordered before this call's work.
    pub unsafe fn submit(&mut self, cuda: &mut CudaBackend, gradients: u64) -> Result<()> {
        if self.flight.is_some() {
            return Err(order("a step of the bucket is under way", "one that has ended"));
        }
        let program = &self.exchange.program;
        checked(gradients, program.value_bytes(), program.dtype.bytes() as u64)?;
        self.gradients = gradients;
        let moment = self.moment;
        let flight = self.enqueue(cuda, |space| Flight::begin(space, moment, Agreement::Reached, None))?;
        self.flight = Some(flight);
        Ok(())
    }

    /// Enqueued: begins a step in which this rank has no gradients; call it in place of
    /// [`submit`](DeviceBucket::submit). The device reports the failure to all ranks, and the step fails on all of
    /// them. On this rank, [`next`](DeviceBucket::next) returns `failure` in place of `None`.
    ///
    /// # Errors
    /// The errors of [`submit`](DeviceBucket::submit).
    ///
    /// # Safety
    /// The conditions of [`submit`](DeviceBucket::submit). The step does not read `gradients`, but writes means there
    /// as in any failed step.
    pub unsafe fn submit_failure(&mut self, cuda: &mut CudaBackend, gradients: u64, failure: Error) -> Result<()> {
        let refused = self.refused.replace(failure);
        // SAFETY: the caller guarantees the conditions of `submit`.
        let submitted = unsafe { self.submit(cuda, gradients) };
        if submitted.is_err() {
            self.refused = refused;
        }
        submitted
    }

    /// Enqueued: continues the step up to its next collective. The previously requested collective must already be
    /// enqueued. Returns `None` when the work that replaces the gradients by the means is enqueued. All ranks get
    /// requests for the same collectives. All ranks must start the collectives of different buckets in the same order.
    ///
    /// # Errors
    /// [`StepOrder`](lgreco_train::Error::StepOrder) if no step is under way.
    ///
    /// An error of the device is returned in place of `None`, after all ranks have performed the same collectives. The
    /// step has then failed on all ranks, unless the error came after the last collective. After the last collective,
    /// only this rank learns of the error. If the device cannot even report the error to the other ranks, `next`
    /// returns it at once, and the other ranks wait in the collective.
    ///
    /// # Safety
    /// The conditions of [`submit`](DeviceBucket::submit). The previously requested collective is enqueued before the
    /// work of this call.
    pub unsafe fn next(&mut self, cuda: &mut CudaBackend) -> Result<Option<DeviceRequest<'_>>> {
        let Some(mut flight) = self.flight.take() else {
            return Err(order("no step of the bucket is under way", "gradients that have been submitted"));
        };
        let part = self.enqueue(cuda, |space| {
            flight.next(space)?;
            Ok(space.asked.take())
        })?;
        let Some(part) = part else {
            self.moment.step = self.moment.step.wrapping_add(1);
            return self.refused.take().map_or(Ok(None), Err);
        };
        self.flight = Some(flight);
        Ok(Some(self.wire.request(part, self.moment.reduce_dtype)))
    }

    /// Calls `work` with this bucket as the `Space` of an exchange. If the device has failed, returns the device's
    /// error.
    fn enqueue<T>(
        &mut self,
        cuda: &mut CudaBackend,
        work: impl FnOnce(&mut Enqueuing<'_>) -> Result<T, lgreco_train::Error>,
    ) -> Result<T> {
        let mut space = Enqueuing { cuda, bucket: self, asked: None, failure: None };
        let outcome = work(&mut space);
        let failure = space.failure;
        outcome.map_err(|error| failure.unwrap_or(error.into()))
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.moment.world_size
    }

    /// Returns the address of the f32 that PyTorch's `GradScaler` calls `found_inf`. The f32 is 1 after a step that
    /// failed on any rank, and 0 after other steps.
    pub fn found_inf_address(&self) -> u64 {
        self.exchange.found_inf_address()
    }

    /// Returns two addresses: of the residuals of all layers, and of a u32. The residuals are f32, one layer after the
    /// other. Two copies (halves) of the residuals lie one directly after the other. The u32 says which half is valid
    /// after the enqueued work: 0 for the first, 1 for the second. Use both addresses only in work that is enqueued
    /// between two steps.
    pub fn residual_addresses(&self) -> (u64, u64) {
        let half = self.exchange.head().cut(std::mem::offset_of!(Program, half) as u64, 4);
        (self.exchange.residuals.address, half.address)
    }

    /// Device address and length in bytes of the bucket's outcome. When [`next`](DeviceBucket::next) has returned
    /// `None`, enqueue a copy of the outcome to page-locked memory. [`outcome_of`](DeviceBucket::outcome_of) reads that
    /// step's outcome from the copy, even if later steps have been enqueued.
    pub fn outcome_address(&self) -> (u64, usize) {
        self.exchange.outcome_address()
    }

    /// Decodes a host copy of the bucket's outcome. Layers are numbered in the order of [`new`](DeviceBucket::new).
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) unless `bytes` has the length that
    /// [`outcome_address`](DeviceBucket::outcome_address) returns.
    pub fn outcome_of(&self, bytes: &[u8]) -> Result<ExchangeOutcome> {
        self.exchange.outcome_of(bytes)
    }

    /// Done: returns the outcome of the bucket's steps so far. Layers are numbered in the order of
    /// [`new`](DeviceBucket::new).
    ///
    /// # Errors
    /// Errors of the device.
    pub fn outcome(&self, cuda: &mut CudaBackend) -> Result<ExchangeOutcome> {
        cuda.exchange_outcome(&self.exchange)
    }

    /// Done: copies the residuals of all layers to `values`, in f32, one layer after the other, for a saved state.
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) unless `values` has one value per element; errors of the device.
    pub fn residuals(&self, cuda: &mut CudaBackend, values: &mut [f32]) -> Result<()> {
        let residuals = self.counted(cuda, values.len())?;
        cuda.gpu_mut().read_into(residuals, bytemuck::cast_slice_mut(values))
    }

    /// Done: copies to `values` the residuals that all layers had before step `step`. Step `step` must be the last
    /// submitted step; it need not have ended. A caller needs these residuals to abandon a step in which a collective
    /// has failed. If `step` has not been submitted, the call copies the current
    /// [`residuals`](DeviceBucket::residuals).
    ///
    /// # Errors
    /// The errors of [`residuals`](DeviceBucket::residuals).
    pub fn residuals_before(&self, cuda: &mut CudaBackend, step: u32, values: &mut [f32]) -> Result<()> {
        let counted = self.counted(cuda, values.len())?;
        let outcome = self.outcome(cuda)?;
        let has_changed = outcome.step == step.wrapping_add(1) && outcome.rank.is_none() && outcome.fault.is_none();
        let [first, second] = self.halves();
        let before = match (has_changed, counted == first) {
            (true, true) | (false, false) => second,
            _ => first,
        };
        cuda.gpu_mut().read_into(before, bytemuck::cast_slice_mut(values))
    }

    /// Enqueued: sets the residual of a layer to zeros, between two steps. If no layer has this number, the call does
    /// nothing. For layers without error feedback, make this call after each successful step.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn forget(&mut self, cuda: &mut CudaBackend, layer: usize) -> Result<()> {
        let Some(forgotten) = self.layers.get(layer) else { return Ok(()) };
        let first: usize = self.layers[..layer].iter().map(Kept::elements).sum();
        let [start, bytes] = [first, forgotten.elements()].map(|values| 4 * values as u64);
        self.halves().into_iter().try_for_each(|half| cuda.gpu_mut().clear(half.cut(start, bytes)))
    }

    /// Both halves of the residuals, of which one is valid.
    fn halves(&self) -> [Part; 2] {
        let bytes = 4 * self.exchange.program.head.elements;
        [0, bytes].map(|start| self.exchange.residuals.cut(start, bytes))
    }

    /// Done: replaces the residuals of all layers by `values`, between two steps.
    ///
    /// # Errors
    /// The errors of [`residuals`](DeviceBucket::residuals).
    pub fn set_residuals(&mut self, cuda: &mut CudaBackend, values: &[f32]) -> Result<()> {
        let residuals = self.counted(cuda, values.len())?;
        cuda.gpu_mut().write(bytemuck::cast_slice(values), residuals)?;
        cuda.synchronise()
    }

    /// Done: takes over the residuals and the step number of another bucket of the same layers, between two steps. A
    /// caller uses this to change the settings of layers. PowerSGD's remembered factors are not taken over: PowerSGD
    /// starts again from random matrices.
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) if the layers of the two buckets differ in their numbers of elements; errors
    /// of the device.
    ///
    /// # Safety
    /// Both buckets were made on this backend.
    pub unsafe fn take_over(&mut self, cuda: &mut CudaBackend, other: &DeviceBucket) -> Result<()> {
        let elements = |bucket: &DeviceBucket| bucket.layers.iter().map(Kept::elements).collect();
        let [own, others]: [Vec<usize>; 2] = [elements(self), elements(other)];
        if own != others {
            let (what, expected, found) = ("elements of the layers", own.iter().sum(), others.iter().sum());
            return Err(lgreco::Error::Length { what, expected, found }.into());
        }
        let before = other.counted(cuda, others.iter().sum())?;
        let after = self.counted(cuda, own.iter().sum())?;
        cuda.gpu_mut().copy(before, after)?;
        let step = other.outcome(cuda)?.step;
        cuda.gpu_mut()
            .write(&step.to_ne_bytes(), self.exchange.head().cut(std::mem::offset_of!(Program, step) as u64, 4))?;
        self.moment.step = step;
        cuda.synchronise()
    }

    /// Returns the valid half of the residuals. `Err` unless the half has `values` values.
    fn counted(&self, cuda: &mut CudaBackend, values: usize) -> Result<Part> {
        let elements = self.exchange.program.head.elements as usize;
        expect_len("residuals", elements, values)?;
        Ok(Part { address: self.outcome(cuda)?.residuals, bytes: 4 * elements as u64 })
    }
}

fn order(what: &'static str, expected: &'static str) -> Error {
    lgreco_train::Error::StepOrder { what, expected }.into()
}
