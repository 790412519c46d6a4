//! The memory of a bucket on the device, and what is done in it.

use super::faults::Faults;
use super::memory::{Memory, USAGES};
use super::moment;
use super::plan::{BufferLayer, Plan, Source};
use super::summed::Summed;
use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::{Batch, Part};
use crate::gpu::Gpu;
use crate::kernels::{Kernel, Shader};
use crate::tensor::{BufferGradient, Input};
use core::sync::atomic::AtomicBool;
use lgreco_train::exchange::{Moment, Slip};
use wgpu::Buffer;

/// A bucket of layers on the device: their residuals, PowerSGD's factors of the last step, and all else that their exchange needs there and on the host. It is made
/// once and serves every step; [`on`](BufferBucket::on) makes a [`Space`](lgreco_train::exchange::Space) of it for a
/// [`Flight`](lgreco_train::exchange::Flight), and [`finish`](BufferBucket::finish) ends the step.
///
/// QSGD, TopK in full and in few bits, PowerSGD and uncompressed layers, by the route of [all-gathers](lgreco_train::exchange::Route::AllGather). Means,
/// residuals and messages have the bits of the host's exchange; those of layers under PowerSGD are within 1e-4 of it and have the
/// same bits on all ranks where all have the same device and driver, which the embedder has to see to, and ranks on the host are
/// refused as disagreeing. Residuals are f32, of error feedback with gain 1.
///
/// ```
/// use lgreco_core::compress::{Setting, qsgd::Qsgd};
/// use lgreco_core::gradient::{Dtype, Shape};
/// use lgreco_train::exchange::{Agreement, Flight, Moment, Route};
/// use lgreco_wgpu::{BufferBucket, BufferGradient, BufferLayer, WgpuBackend, wgpu};
/// # use lgreco_train::exchange::threads::ThreadCollective;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (device, queue) = wgpu::Device::noop(&Default::default()); // an embedder has a real one
/// # let mut backend = WgpuBackend::with_device(device, queue)?;
/// # let mut network = ThreadCollective::group(1).remove(0);
/// let buffer = backend.device().create_buffer(&wgpu::BufferDescriptor {
///     label: None,
///     size: 4 * 4096,
///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
///     mapped_at_creation: false,
/// });
/// let gradient = BufferGradient { buffer: &buffer, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
/// let layer = BufferLayer { index: 0, setting: Setting::Dense, gradient };
/// let world_size = 1;
/// let mut bucket = BufferBucket::new(&mut backend, &[layer], true, world_size)?;
/// for step in 0..3 {
///     // The trainer fills the buffer.
///     let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
///     let moment = Moment { rank: 0, world_size, route, reduce_dtype, seed: 7, step, terms: 0 };
///     let mut space = bucket.on(&mut backend);
///     let mut flight = Flight::begin(&mut space, moment, Agreement::Reached, None)?;
///     while let Some(request) = flight.next(&mut space)? {
///         request.perform(&mut network)?;
///     }
///     bucket.finish(&mut backend)?; // what is submitted from here on finds the mean in the buffer
/// }
/// bucket.check(&mut backend)?; // waits for the last step
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BufferBucket {
    pub(super) plan: Plan,
    pub(super) world: usize,
    pub(super) feedback: bool,
    gradients: Vec<(Buffer, u64)>,
    pub(super) device: Memory,
    pub(super) host: Staging,
    /// Whether gradients and residuals have been added up for the flight under way.
    pub(super) offered: bool,
    /// Ops that are still to make means before the flight can end well.
    pub(super) due: usize,
    /// Whether the flight has been finished.
    pub(super) is_finished: bool,
    /// What has gone wrong on the device.
    pub(super) status: Option<lgreco_train::Error>,
    /// The place of the layer that it is about.
    pub(super) faulty: Option<usize>,
    /// What has gone wrong in full, if it is not about values.
    pub(super) failure: Option<Error>,
    /// What to say of this rank in the next message, if the device says nothing worse.
    pub(super) slip: Slip,
    /// Whether a flight has asked if it may begin, and has done nothing yet.
    pub(super) is_new: AtomicBool,
}

/// Memory of the host, which collectives work on and the device is read into.
#[derive(Debug, Default)]
pub(super) struct Staging {
    pub(super) greetings: Vec<u8>,
    pub(super) sums: Summed,
    pub(super) factors: Summed,
    /// All ranks'.
    pub(super) messages: Vec<u8>,
    pub(super) images: Vec<u32>,
    pub(super) read: Vec<u8>,
}

/// Ranks whose codes of QSGD are added up at most: llvmpipe ends loops early.
pub(crate) const MOST_RANKS: usize = 1024;

pub(super) const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::Exchange, entry }
}

impl BufferBucket {
    /// A bucket of these layers, in the same order on all ranks, with residuals of zeros if there is `feedback`, for so many
    /// workers. All memory is taken now.
    ///
    /// # Errors
    /// [`Error::Method`] with the name of a method that is not exchanged on the device, or of a matrix that is beyond the kernels, [`Error::Buffer`] when a gradient's
    /// buffer cannot be used, [`Error::TooLarge`] when the bucket or all ranks' messages do not fit a binding, the core's when
    /// a setting does not fit its shape, and those of the device.
    ///
    /// # Complexity
    /// Keeps 8 bytes per element on the device, 4 more with feedback, 4 more where any layer is under TopK or PowerSGD, and 4 more of
    /// what is not compressed; PowerSGD's factors some four times, more for sides beyond 1024; all ranks' messages there and, twice,
    /// on the host; 4 bytes for each value that TopK keeps, of all ranks; and of each layer under TopK 67,200 bytes and 2 bytes per element
    /// (4 of the first 32,768, if it has up to 65,536), or two thirds of one where it has more than 2^18. A step is O(rows · cols · rank) under PowerSGD.
    pub fn new(
        backend: &mut WgpuBackend,
        layers: &[BufferLayer<'_>],
        feedback: bool,
        world_size: u32,
    ) -> Result<BufferBucket, Error> {
        let plan = Plan::new(layers, feedback)?;
        let world = world_size as usize;
        let most = if plan.whole + plan.buckets > 0 { MOST_RANKS } else { u16::MAX.into() };
        if world == 0 || world > most {
            let expected = "from 1 to 65,535, to 1,024 for layers under QSGD";
            let value = f64::from(world_size);
            return Err(lgreco_core::Error::Parameter { what: "number of workers", value, expected }.into());
        }
        let gpu = backend.gpu();
        let groups = plan.of_values.len().max(plan.of_blocks.len()) as u64;
        if groups > gpu.most_groups() as u64 {
            let (limit, largest) = ("max_compute_workgroups_per_dimension", gpu.most_groups() as u64);
            return Err(Error::TooLarge { what: "a bucket, in workgroups,", bytes: groups, limit, largest });
        }
        let mut batch = Batch::new(gpu)?;
        for layer in layers {
            if !layer.gradient.buffer.usage().contains(USAGES) {
                return Err(Error::Buffer {
                    what: "of a bucket's layer needs the usages STORAGE, COPY_SRC and COPY_DST",
                });
            }
            Input::Device(layer.gradient).tensor(&mut batch)?;
        }
        let device = Memory::new(&mut batch, &plan, world, feedback)?;
        batch.read(&[])?;
        let host = Staging {
            sums: Summed::new(plan.sums, world),
            factors: Summed::new(plan.table.q, world),
            messages: vec![0; plan.message * world],
            images: vec![0; plan.image * world],
            ..Staging::default()
        };
        Ok(BufferBucket {
            gradients: layers.iter().map(|layer| (layer.gradient.buffer.clone(), layer.gradient.offset)).collect(),
            plan,
            world,
            feedback,
            device,
            host,
            offered: false,
            due: 0,
            is_finished: false,
            status: None,
            is_new: AtomicBool::new(false),
            faulty: None,
            failure: None,
            slip: Slip { code: 0, fingerprint: 0 },
        })
    }

    /// Where the residual of a layer is, in the bucket's order: f32 values from this byte of the buffer on, which other buffers
    /// take the place of at every [`finish`](BufferBucket::finish); `None` without feedback. To begin from a saved one, write
    /// it there between steps.
    pub fn residual(&self, layer: usize) -> Option<(&Buffer, u64)> {
        let member = self.plan.members.get(layer).filter(|_| self.feedback)?;
        Some((&self.device.residual, 4 * u64::from(member.params.start)))
    }

    /// A buffer whose first word is an f32, the same on all ranks: 1 if the last step has failed, and 0 if its means are sound or there was
    /// none, what loss scalers call `found_inf`. Its usages are `STORAGE`, `COPY_SRC` and `COPY_DST`. An optimiser's shader, submitted after [`finish`](BufferBucket::finish) or after what a flight has answered
    /// instead, may bind it, and leave parameters as they are: nobody has to wait for that. It is 1 while a step is under way,
    /// and of a flight that could not even [begin](lgreco_train::exchange::Flight::begin) that of the step before.
    pub fn found_inf(&self) -> &Buffer {
        &self.device.found_inf
    }

    /// The place in the bucket's order of the layer in which this rank has found fault, in the last flight or when it was
    /// [checked](BufferBucket::check): errors have the element alone.
    pub fn faulty_layer(&self) -> Option<usize> {
        self.faulty
    }

    /// What the device said, in full, when a flight, [`finish`](BufferBucket::finish) or [`check`](BufferBucket::check) last answered
    /// [`Device`](lgreco_core::Error::Device).
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// What the device counts in.
    #[cfg(test)]
    pub(crate) fn counters(&self) -> &Buffer {
        &self.device.extremes
    }

    /// What the next step of layers under PowerSGD starts with.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> &Buffer {
        &self.device.remembered
    }

    pub(super) fn told(&mut self, error: Error) -> lgreco_train::Error {
        let core = error.to_core();
        if !matches!(error, Error::Core(_)) {
            self.failure = Some(error);
        }
        core.into()
    }

    /// Whether nothing is ever exchanged, because no layer has elements.
    pub(super) fn is_idle(&self) -> bool {
        self.plan.sums == 0 && self.plan.message == 0
    }

    /// Forgets the flight before.
    pub(super) fn begin(&mut self, gpu: &mut Gpu) {
        (self.offered, self.is_finished, self.status, self.faulty) = (false, false, None, None);
        let made = [self.plan.sums > 0, self.plan.table.q > 0, self.plan.message > 0];
        self.due = made.map(usize::from).iter().sum();
        // The others wait for this rank's part all the same.
        self.status = self.begin_outcome(gpu).map_err(|error| self.told(error)).err();
    }

    /// Says to what is submitted from now on that the step has failed, until it has ended, and that nothing is at fault yet.
    fn begin_outcome(&self, gpu: &mut Gpu) -> Result<(), Error> {
        let mut batch = Batch::new(gpu)?;
        batch.write(&self.device.found_inf, 0, &1.0f32.to_le_bytes());
        batch.write(&self.device.faults, 0, &vec![0; Faults::bytes(&self.plan, self.world) as usize]);
        batch.written()
    }

    /// A layer's gradient, or its mean.
    pub(super) fn gradient(&self, layer: usize) -> BufferGradient<'_> {
        let (member, (buffer, offset)) = (&self.plan.members[layer], &self.gradients[layer]);
        BufferGradient { buffer, offset: *offset, dtype: member.dtype, shape: member.shape() }
    }

    /// Records what comes first: the sum of gradients and residuals, of all layers. Those under QSGD are encoded at once, if workgroups
    /// have all values of their buckets.
    pub(super) fn offer(&mut self, batch: &mut Batch<'_>, moment: &Moment) {
        if std::mem::replace(&mut self.offered, true) {
            return;
        }
        let (plan, on) = (&self.plan, &self.device);
        batch.clear(&on.extremes, on.extremes.size());
        // Bits of TopK's payloads are put one to another.
        batch.clear(&on.image, on.image.size());
        for (member, (buffer, offset)) in plan.members.iter().zip(&self.gradients) {
            let bytes = (member.shape().elements() * member.dtype.bytes()) as u64;
            batch.copy(buffer, *offset, &on.values, 4 * u64::from(member.params.start), bytes);
        }
        let (params, groups) = (moment::Params::of(moment, plan, self.feedback), plan.of_values.len());
        let bindings = [
            (1, Part::from(&on.values)),
            (2, (&on.extremes).into()),
            (5, (&on.layers).into()),
            (6, (&on.of_values).into()),
            (7, if self.feedback { &on.residual } else { &on.of_blocks }.into()),
            (8, (&on.offered).into()),
            (10, (&on.faults).into()),
        ];
        if plan.has_others {
            let bindings = [&bindings[..], &[(9, (&on.sums).into())]].concat();
            batch.dispatch(kernel("offer"), params, &bindings, groups);
        }
        if plan.whole > 0 {
            let bindings = [&bindings[..], &[(4, (&on.image).into())]].concat();
            batch.dispatch(kernel("offer_codes"), params, &bindings, groups);
        }
        if plan.kept > 0 {
            let bindings = [&bindings[..], &[(15, (&on.entries).into())]].concat();
            batch.dispatch(kernel("gather_offered"), params, &bindings, groups);
        }
    }

    /// Whether all payloads were made when they were offered.
    pub(super) fn is_encoded(&self) -> bool {
        self.offered && self.plan.kept == 0 && self.plan.buckets == 0
    }

    /// Records the encoding into this rank's image of all payloads that are not there yet.
    pub(super) fn encode(&self, batch: &mut Batch<'_>, moment: &Moment) {
        let plan = &self.plan;
        let params = moment::Params::of(moment, plan, self.feedback);
        if plan.kept > 0 {
            self.encode_topk(batch, params);
        } else if plan.buckets > 0 {
            let bindings = [&self.of_values()[..], &self.of_codes()].concat();
            batch.dispatch(kernel("encode"), params, &bindings, plan.of_values.len());
        }
    }

    /// What is offered, and of each workgroup of it the layer.
    pub(super) fn of_values(&self) -> [(u32, Part); 3] {
        let on = &self.device;
        [(1, (&on.offered).into()), (5, (&on.layers).into()), (6, (&on.of_values).into())]
    }

    /// What QSGD's codes are made by, and where they go.
    pub(super) fn of_codes(&self) -> [(u32, Part); 2] {
        [(2, (&self.device.extremes).into()), (4, (&self.device.image).into())]
    }

    /// Records the means of uncompressed layers, of the sums in [`Staging::sums`].
    pub(super) fn average(&self, batch: &mut Batch<'_>, moment: &Moment) {
        // For PowerSGD they have gone to the device before.
        if self.plan.table.q == 0 {
            batch.write(&self.device.sums, 0, bytemuck::cast_slice(&self.host.sums.values[..self.plan.sums]));
        }
        if self.plan.dense > 0 {
            self.means(batch, moment::Params::of(moment, &self.plan, self.feedback), Source::Sums);
        }
    }

    /// Records the means of payloads, of the images in [`Staging::images`].
    pub(super) fn sum_payloads(&self, batch: &mut Batch<'_>, moment: &Moment) {
        let (plan, on) = (&self.plan, &self.device);
        let params = moment::Params::of(moment, plan, self.feedback);
        batch.write(&on.images, 0, bytemuck::cast_slice(&self.host.images));
        if plan.kept > 0 {
            let payloads = [(4, Part::from(&on.images)), (5, (&on.layers).into()), (10, (&on.faults).into())];
            let positions = (13, Part::from(&on.positions));
            let bindings = [&payloads[..], &[(6, (&on.of_blocks).into()), positions.clone()]].concat();
            let groups = [plan.of_blocks.len(), self.world, 1];
            batch.dispatch_3d(kernel("read_positions"), params, &bindings, groups);
            let added = [(6, (&on.of_values).into()), (8, (&on.offered).into()), (12, (&on.totals).into()), positions];
            batch.dispatch(kernel("add_kept"), params, &[&payloads[..], &added].concat(), plan.of_values.len());
        }
        self.means(batch, params, Source::Payloads);
    }

    /// Records the making of means, and their copying to where the gradients were.
    pub(super) fn means(&self, batch: &mut Batch<'_>, params: moment::Params, source: Source) {
        let (plan, on) = (&self.plan, &self.device);
        let params = moment::Params { source: source as u32, ..params };
        let bindings = [
            (4, (&on.images).into()),
            (5, (&on.layers).into()),
            (6, (&on.of_values).into()),
            (8, (&on.offered).into()),
            (9, (&on.sums).into()),
            (10, (&on.faults).into()),
            (11, (&on.values).into()),
            (12, (&on.totals).into()),
        ];
        batch.dispatch(kernel("average"), params, &bindings, plan.of_values.len());
        for (member, (buffer, offset)) in plan.members.iter().zip(&self.gradients) {
            if member.source() == source {
                let bytes = (member.shape().elements() * member.dtype.bytes()) as u64;
                batch.copy(&on.values, 4 * u64::from(member.params.start), buffer, *offset, bytes);
            }
        }
    }

    /// Waits; what the device has found, and behind it in [`Staging::read`] the values that are summed or this rank's image.
    pub(super) fn read(&mut self, gpu: &mut Gpu, parts: &[Part]) -> Result<Faults<'_>, Error> {
        let size = Faults::bytes(&self.plan, self.world);
        let faults = Part { buffer: self.device.faults.clone(), offset: 0, size };
        let parts: Vec<Part> = std::iter::once(faults).chain(parts.iter().cloned()).collect();
        let mut read = std::mem::take(&mut self.host.read);
        let done = Batch::new(gpu)?.read_into(&parts, &mut read);
        self.host.read = read;
        done.map(|()| Faults::new(&self.plan, self.world, &self.host.read))
    }

    /// The values that are summed first.
    pub(super) fn summed(&self) -> Part {
        Part { buffer: self.device.sums.clone(), offset: 0, size: 4 * self.plan.sums as u64 }
    }

    /// PowerSGD's `Q`.
    pub(super) fn second(&self) -> Part {
        Part { buffer: self.device.factors.clone(), offset: 0, size: 4 * self.plan.table.q as u64 }
    }

    /// This rank's image.
    pub(super) fn image(&self) -> Part {
        Part { buffer: self.device.image.clone(), offset: 0, size: 4 * self.plan.image as u64 }
    }

    /// A layer's residual at an element.
    pub(super) fn residual_at(&self, layer: usize, index: usize) -> Option<Part> {
        let (buffer, offset) = self.residual(layer)?;
        Some(Part { buffer: buffer.clone(), offset: offset + 4 * index as u64, size: 4 })
    }
}
