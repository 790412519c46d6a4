//! A bucket that stays in the device's memory, exchanged as lgreco-train's flights say: what is done between collectives is
//! enqueued, the collectives are the trainer's.

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

/// What parts of a bucket's memory begin at multiples of.
const ALIGN: u64 = 16;

/// Memory of the device that a collective works on.
///
/// ```
/// let gathered = lgreco_cuda::DeviceMemory { address: 0x7000_0000, len: 4096 };
/// assert_eq!(gathered.len / 8, 512); // bytes of each of eight ranks
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Where it begins, a multiple of 16.
    pub address: u64,
    /// Bytes; f32 or bf16 where they are summed.
    pub len: usize,
}

/// A collective on the device's memory, to be enqueued on the backend's stream, or after what is in it: an all-gather or a sum
/// over all ranks, or, of a bucket with [shards](DeviceLayer::shards), an all-to-all or a reduce-scatter. What of an all-to-all is
/// received lies before this rank's message to itself, which is as long as each of those that come.
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
    /// Of the layer in the model; with seed, step and rank it names the random words.
    pub index: u32,
    /// Rows and columns.
    pub shape: Shape,
    /// How it is compressed.
    pub setting: Setting,
    /// Where each rank's shard ends, as in [`Spec`](lgreco_train::exchange::Spec), if each rank is to get the means of its own
    /// shards, by [`Route::Sharded`](lgreco_train::exchange::Route); else empty. All layers of a bucket have shards, or none.
    pub shards: &'a [u64],
}

/// Layers that are exchanged together, with gradients, residuals and messages in the device's memory.
///
/// A step is [`submit`](DeviceBucket::submit), then [`next`](DeviceBucket::next) and the collective that it asks for until
/// there is none: then the means are, or will be, where the gradients were. Nothing of it waits, allocates or brings anything from
/// the host, so that a step may be captured into a CUDA graph together with its collectives, and replayed: step numbers and with
/// them random words are counted on the device. Different buckets may be in flight at a time on one backend, or each on a
/// stream of its own.
///
/// What goes wrong with values is found on the device and told to all ranks in their messages: means then become what
/// [`OnFault`](crate::OnFault) says and residuals stay as they were, on every rank. Where it is a mean itself that leaves its type,
/// which all ranks find, residuals stay and the step counts as failed, but only that mean is infinite or NaN, and the others are
/// means. [`outcome`](DeviceBucket::outcome) tells it
/// to the host, whenever that asks.
///
/// Where layers have [shards](DeviceLayer::shards), the means are those of this rank's shards, where these were among the gradients, and
/// the other gradients stay. What is wrong with what a rank has got of its own shards, a payload that no encoder wrote or a mean that
/// leaves its type, it [alone](ExchangeOutcome::alone) knows of, and its residuals alone stay as they were; it should tell the others by
/// [`submit_failure`](DeviceBucket::submit_failure).
///
/// ```no_run
/// use lgreco::{compress::{Setting, qsgd::Qsgd}, gradient::Shape};
/// use lgreco_cuda::{CudaBackend, DeviceBucket, DeviceLayer, DeviceMemory, ExchangeConfig};
/// use lgreco_train::exchange::Request;
/// /// `allocate` gives device memory; the stream of `backward` and of the collectives is the backend's.
/// fn train(
///     cuda: &mut CudaBackend,
///     allocate: impl Fn(u64) -> u64,
///     backward: impl Fn() -> u64,
///     (all_gather, all_reduce_sum): (impl Fn(DeviceMemory), impl Fn(DeviceMemory)),
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let (config, setting) = (ExchangeConfig { world: 8, ..ExchangeConfig::default() }, Setting::Qsgd(Qsgd::default()));
///     let layers = [DeviceLayer { index: 0, shape: Shape::new(64, 64)?, setting, shards: &[] }];
///     let memory = allocate(DeviceBucket::bytes(&layers, config)?);
///     // SAFETY: all is large enough, and used on the backend's stream alone.
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
    /// What the device has refused of this step, which the others are told of.
    pub(super) refused: Option<Error>,
}

/// What a bucket's memory is divided into, each part at a multiple of 16.
struct Places {
    program: Part,
    residuals: Part,
    wire: Wire,
}

/// Bytes of the parts, in order.
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
    /// Bytes of device memory that a bucket of these layers works in: some 8 per element for residuals, and messages.
    ///
    /// # Errors
    /// Those of [`ExchangeProgram::new`]. With shards also [`Error::Method`] for layers under PowerSGD, and for a bucket without
    /// elements; [`Parameter`](lgreco::Error::Parameter) or [`Length`](lgreco::Error::Length) unless the shards of
    /// each layer are as many as ranks, ascend, and end with it.
    pub fn bytes(layers: &[DeviceLayer<'_>], config: ExchangeConfig) -> Result<u64> {
        Ok(bytes(&described(layers, config)?.1))
    }

    /// Enqueued: a bucket of these layers, whose residuals are zeros; its gradients follow one another without gaps, in
    /// this order, as in a bucket of DDP. Loads the kernels first, which waits. Of `config.stream` the layer is not looked at.
    ///
    /// # Errors
    /// Those of [`bytes`](DeviceBucket::bytes); [`Error::Memory`] when the address is 0 or no multiple of 16; those of the device.
    ///
    /// # Safety
    /// Until the bucket is dropped, and until all work enqueued with it is done, `memory` is valid memory of
    /// [`bytes`](DeviceBucket::bytes) in the backend's context, which nothing else uses but the collectives asked for.
    pub unsafe fn new(
        cuda: &mut CudaBackend,
        layers: &[DeviceLayer<'_>],
        config: ExchangeConfig,
        memory: u64,
    ) -> Result<DeviceBucket> {
        let (moment, program) = described(layers, config)?;
        let Places { program: own, residuals, wire } = places(&program, checked(memory, bytes(&program), ALIGN)?);
        // SAFETY: parts of the memory that the caller promises.
        let exchange = unsafe { cuda.begin_exchange(program, own.address, residuals.address) }?;
        let layers = layers.iter().map(|layer| Kept::new(layer, config.dtype)).collect();
        Ok(DeviceBucket { exchange, layers, moment, wire, gradients: 0, flight: None, refused: None })
    }

    /// Enqueued: compresses the gradients of a step, with what is remembered. They must stay where they are until
    /// [`next`](DeviceBucket::next) has returned `None`, and are then replaced by the means.
    ///
    /// # Errors
    /// [`StepOrder`](lgreco_train::Error::StepOrder) when a step is under way; [`Error::Memory`] when the address is 0, or no
    /// multiple of what a value takes. The bucket is then as it was. What else fails is told to all ranks: `next` returns it.
    ///
    /// # Safety
    /// `gradients` is valid memory of all layers' values in the backend's context, which nothing else uses, other than work
    /// ordered before or after on the backend's stream. The backend is that of [`new`](DeviceBucket::new), or one on another
    /// stream of the same context which the work on this bucket so far is ordered before.
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

    /// Enqueued: says in place of [`submit`](DeviceBucket::submit) that this rank has no gradients to give. All ranks are told: the
    /// step fails on all, and on this one [`next`](DeviceBucket::next) returns `failure` in place of `None`.
    ///
    /// # Errors
    /// As [`submit`](DeviceBucket::submit).
    ///
    /// # Safety
    /// As [`submit`](DeviceBucket::submit); `gradients` are not read, and replaced as those of any step that fails.
    pub unsafe fn submit_failure(&mut self, cuda: &mut CudaBackend, gradients: u64, failure: Error) -> Result<()> {
        let refused = self.refused.replace(failure);
        // SAFETY: as the caller promises.
        let submitted = unsafe { self.submit(cuda, gradients) };
        if submitted.is_err() {
            self.refused = refused;
        }
        submitted
    }

    /// Enqueued: goes on, once the collective asked for before is enqueued, until the next one; `None` when the making of the
    /// means is enqueued. All ranks are asked for the same collectives, and must start those of different buckets in the same
    /// order.
    ///
    /// # Errors
    /// [`StepOrder`](lgreco_train::Error::StepOrder) when no step is under way; those of the device, in place of `None`: all ranks
    /// have made the same collectives then, and the step has failed on all, unless the device refused what comes after the last
    /// collective: of that this rank alone knows. At another time only if the device refuses even to tell the others, who then
    /// wait.
    ///
    /// # Safety
    /// As [`submit`](DeviceBucket::submit); the collective asked for before is enqueued before what is enqueued now.
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

    /// Calls `work` with the bucket as a flight sees it; errors are in the device's own words.
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

    /// The address of an f32 that is 1 after a step that failed on some rank, else 0: what PyTorch's `GradScaler` calls
    /// `found_inf`.
    pub fn found_inf_address(&self) -> u64 {
        self.exchange.found_inf_address()
    }

    /// Where what is remembered of all layers lies, in f32, one after the other: twice, the second place behind the first, and the
    /// address of a u32 that says which of them counts, 0 or 1, after what is enqueued. For work that is enqueued between two steps.
    pub fn residual_addresses(&self) -> (u64, u64) {
        let half = self.exchange.head().cut(std::mem::offset_of!(Program, half) as u64, 4);
        (self.exchange.residuals.address, half.address)
    }

    /// Where in the device's memory is what the bucket knows of its steps, and of how many bytes. A copy of them to page-locked
    /// memory, enqueued when [`next`](DeviceBucket::next) has returned `None`, has what
    /// [`outcome_of`](DeviceBucket::outcome_of) reads of that step, whatever has been enqueued since.
    pub fn outcome_address(&self) -> (u64, usize) {
        self.exchange.outcome_address()
    }

    /// What such a copy says; layers are numbered as they were given.
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) unless there are as many bytes as [`outcome_address`](DeviceBucket::outcome_address)
    /// says.
    pub fn outcome_of(&self, bytes: &[u8]) -> Result<ExchangeOutcome> {
        self.exchange.outcome_of(bytes)
    }

    /// Done: what has become of the bucket's steps so far; layers are numbered as they were given.
    ///
    /// # Errors
    /// Those of the device.
    pub fn outcome(&self, cuda: &mut CudaBackend) -> Result<ExchangeOutcome> {
        cuda.exchange_outcome(&self.exchange)
    }

    /// Done: what is remembered of all layers, in f32, one after the other, for a saved state.
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) when `values` has not a place for each element; those of the device.
    pub fn residuals(&self, cuda: &mut CudaBackend, values: &mut [f32]) -> Result<()> {
        let residuals = self.counted(cuda, values.len())?;
        cuda.gpu_mut().read_into(residuals, bytemuck::cast_slice_mut(values))
    }

    /// Done: what was remembered of all layers before step `step`, the last one that has been submitted, however far that has
    /// come: for who gives it up because a collective has failed. Before a step that has not been submitted it is what
    /// [`residuals`](DeviceBucket::residuals) gives.
    ///
    /// # Errors
    /// As [`residuals`](DeviceBucket::residuals).
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

    /// Enqueued: forgets what is remembered of a layer, between two steps; nothing where there is no such layer. For layers
    /// that are to go without error feedback, after each step that has not failed.
    ///
    /// # Errors
    /// Those of the device.
    pub fn forget(&mut self, cuda: &mut CudaBackend, layer: usize) -> Result<()> {
        let Some(forgotten) = self.layers.get(layer) else { return Ok(()) };
        let first: usize = self.layers[..layer].iter().map(Kept::elements).sum();
        let [start, bytes] = [first, forgotten.elements()].map(|values| 4 * values as u64);
        self.halves().into_iter().try_for_each(|half| cuda.gpu_mut().clear(half.cut(start, bytes)))
    }

    /// Both places for residuals, of which one counts.
    fn halves(&self) -> [Part; 2] {
        let bytes = 4 * self.exchange.program.head.elements;
        [0, bytes].map(|start| self.exchange.residuals.cut(start, bytes))
    }

    /// Done: remembers these values instead, between two steps.
    ///
    /// # Errors
    /// As [`residuals`](DeviceBucket::residuals).
    pub fn set_residuals(&mut self, cuda: &mut CudaBackend, values: &[f32]) -> Result<()> {
        let residuals = self.counted(cuda, values.len())?;
        cuda.gpu_mut().write(bytemuck::cast_slice(values), residuals)?;
        cuda.synchronise()
    }

    /// Done: takes over the residuals of another bucket of the same layers and how many steps it has taken, between two steps:
    /// so layers get other settings. PowerSGD's factors begin afresh.
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) when the layers have other numbers of elements; those of the device.
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

    /// The half of the residuals that counts, of `values` values.
    fn counted(&self, cuda: &mut CudaBackend, values: usize) -> Result<Part> {
        let elements = self.exchange.program.head.elements as usize;
        expect_len("residuals", elements, values)?;
        Ok(Part { address: self.outcome(cuda)?.residuals, bytes: 4 * elements as u64 })
    }
}

fn order(what: &'static str, expected: &'static str) -> Error {
    lgreco_train::Error::StepOrder { what, expected }.into()
}
