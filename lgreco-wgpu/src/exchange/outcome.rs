//! The end of a step, and what has become of it: what the device knows, in words of the host.
//!
//! It lies in memory of the device, in which every step begins anew. A copy of it that is submitted behind a step has what that step
//! came to, whatever is submitted since: so the host hears of faults steps later, and waits for nothing but the copy.

use super::bucket::{BufferBucket, kernel};
use super::faults::{BufferFault, Faults};
use super::image;
use super::moment;
use super::plan::{Member, Source};
use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::{self, Batch, Part};
use crate::buffers::check_target;
use crate::gpu::Gpu;
use crate::tensor::Input;
use lgreco_core::Error as CoreError;
use lgreco_train::exchange::Part as Sent;
use wgpu::Buffer;

/// What has become of a bucket's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferOutcome {
    /// Whether it has failed, on all ranks, as the bucket's [`found_inf`](BufferBucket::found_inf) says.
    pub has_failed: bool,
    /// What was wrong on this rank, if anything was; of what is wrong with means all ranks say the same. It is
    /// [`Remembered`](BufferFault::Remembered) where the step has not failed.
    pub fault: Option<BufferFault>,
}

/// Bytes in front of an outcome's faults.
const FOUND_INF: u64 = 4;

impl BufferBucket {
    /// Ends a step whose flight has ended well, and does not wait: submits what looks at the means, and swaps buffers. What is left of
    /// gradients and residuals is the residuals then, this step's mean `Q` of PowerSGD is what the next step starts with, the
    /// means are in the gradients' place, in the layers' types, and [`found_inf`](BufferBucket::found_inf) is 0. Where the device finds a
    /// mean that it cannot make, residuals and factors are as before, means are of no use, and `found_inf` is 1, on all ranks. Where it finds
    /// what it cannot remember, of which other ranks do not know, this rank's residuals alone are as before.
    ///
    /// Whether that is so says [`check`](BufferBucket::check), which waits, or [`enqueue_outcome`](BufferBucket::enqueue_outcome), which does not.
    ///
    /// # Errors
    /// [`StepOrder`](lgreco_train::Error::StepOrder) when no flight has ended; those of the device, of which
    /// [`failure`](BufferBucket::failure) says more. Residuals and factors are then unchanged.
    pub fn finish(&mut self, backend: &mut WgpuBackend) -> Result<(), lgreco_train::Error> {
        if !self.is_idle() && (!self.offered || self.due > 0 || self.status.is_some()) {
            return Err(out_of_order("an exchange that has not ended well", "the end of a flight"));
        }
        self.offered = false;
        self.end(backend.gpu()).map_err(|error| self.told(error))?;
        if self.feedback {
            std::mem::swap(&mut self.device.residual, &mut self.device.offered);
        }
        std::mem::swap(&mut self.device.remembered, &mut self.device.factors);
        self.is_finished = true;
        Ok(())
    }

    /// Submits what decides whether the step has ended well.
    fn end(&self, gpu: &mut Gpu) -> Result<(), Error> {
        let on = &self.device;
        let params = moment::Params { feedback: self.feedback.into(), ..moment::Params::default() };
        let bindings = [
            (7, Part::from(&on.residual)),
            (8, (&on.offered).into()),
            (10, (&on.faults).into()),
            (19, (&on.remembered).into()),
            (20, (&on.factors).into()),
            (21, (&on.found_inf).into()),
        ];
        let mut batch = Batch::new(gpu)?;
        // Of layers without elements, too, the step ends.
        batch.dispatch(kernel("end_step"), params, &bindings, self.plan.of_values.len().max(1));
        batch.enqueue()
    }

    /// Waits for the device, and says what has become of the step that has been [finished](BufferBucket::finish), as long as no flight
    /// has begun since.
    ///
    /// # Errors
    /// What the flight could not tell yet: [`Overflow`](lgreco_core::Error::Overflow) when a sum over the workers, a product of
    /// PowerSGD's mean factors or what is to be remembered has left f32, [`ElementOverflow`](lgreco_core::Error::ElementOverflow) when a mean its element type,
    /// [`PeerMessage`](lgreco_train::Error::PeerMessage) for what no encoder writes;
    /// [`StepOrder`](lgreco_train::Error::StepOrder) when no step has been finished; those of the device, of which
    /// [`failure`](BufferBucket::failure) says more.
    pub fn check(&mut self, backend: &mut WgpuBackend) -> Result<(), lgreco_train::Error> {
        if self.is_idle() {
            return Ok(());
        }
        if !self.is_finished {
            return Err(out_of_order("the outcome of a step that has not been finished", "finish"));
        }
        let found = self.look(backend.gpu()).map_err(|error| self.told(error))?;
        let Some((fault, error)) = found else { return Ok(()) };
        self.faulty = Some(fault.layer());
        Err(error)
    }

    /// What is wrong with means, or with what is left.
    fn look(&mut self, gpu: &mut Gpu) -> Result<Option<(BufferFault, lgreco_train::Error)>, Error> {
        let Some(fault) = self.read(gpu, &[])?.of_end() else { return Ok(None) };
        Ok(Some((fault, self.of_mean(gpu, fault)?)))
    }

    /// Bytes of what [`enqueue_outcome`](BufferBucket::enqueue_outcome) leaves, a multiple of 4.
    pub fn outcome_bytes(&self) -> u64 {
        FOUND_INF + Faults::bytes(&self.plan, self.world)
    }

    /// Submits a copy of what has become of the last step to `results`, a buffer of the embedder's (usage `COPY_DST`) with room for
    /// [`outcome_bytes`](BufferBucket::outcome_bytes) from byte `offset`, a multiple of 4, on; after [`finish`](BufferBucket::finish), or
    /// after what a flight has answered instead; of a flight that could not even [begin](lgreco_train::exchange::Flight::begin) it has
    /// the step before. It neither waits nor reads back nor takes memory.
    /// [`read_outcome`](BufferBucket::read_outcome) reads what the embedder has mapped, however many steps later.
    ///
    /// # Errors
    /// [`Error::Buffer`] when the outcome cannot be copied there, and what the driver says of the call: [`Error::Refused`], of a buffer that
    /// is mapped for example, [`Error::Lost`] and [`Error::OutOfMemory`].
    pub fn enqueue_outcome(&self, backend: &mut WgpuBackend, results: &Buffer, offset: u64) -> Result<(), Error> {
        check_target(results, offset, self.outcome_bytes())?;
        let mut batch = Batch::new(backend.gpu())?;
        batch.copy(&self.device.found_inf, 0, results, offset, FOUND_INF);
        let faults = Faults::bytes(&self.plan, self.world);
        batch.copy(&self.device.faults, 0, results, offset + FOUND_INF, faults);
        batch.enqueue()
    }

    /// What such a copy says. Bytes from elsewhere give an outcome without meaning.
    ///
    /// # Errors
    /// [`Length`](lgreco_core::Error::Length) unless there are [`outcome_bytes`](BufferBucket::outcome_bytes).
    pub fn read_outcome(&self, bytes: &[u8]) -> Result<BufferOutcome, Error> {
        lgreco_core::internal::error::expect_len("bytes of an outcome", self.outcome_bytes() as usize, bytes.len())?;
        let (found_inf, faults) = bytes.split_at(FOUND_INF as usize);
        let faults = Faults::new(&self.plan, self.world, faults);
        let fault = faults.of_own().or_else(|| faults.of_end());
        Ok(BufferOutcome { has_failed: found_inf.iter().any(|&byte| byte != 0), fault })
    }

    /// A fault with this rank's own part as its compressors would tell it.
    pub(super) fn of_own(&self, gpu: &mut Gpu, fault: BufferFault, part: Sent) -> Result<lgreco_train::Error, Error> {
        let error = match fault {
            BufferFault::NonFinite { layer, index } => {
                CoreError::NonFinite { index, value: self.offered_at(gpu, layer, index)? }
            }
            BufferFault::ElementOverflow { layer, index } => {
                CoreError::ElementOverflow { index, value: self.offered_at(gpu, layer, index)? }
            }
            _ => {
                CoreError::Overflow { what: if part == Sent::Sums { "PowerSGD factor P" } else { "PowerSGD factor Q" } }
            }
        };
        Ok(error.into())
    }

    /// The sum of a gradient's element, which is still there, and the residual's.
    fn offered_at(&self, gpu: &mut Gpu, layer: usize, index: usize) -> Result<f32, Error> {
        let mut batch = Batch::new(gpu)?;
        let tensor = Input::Device(self.gradient(layer)).tensor(&mut batch)?;
        let parts: Vec<_> = std::iter::once(tensor.word_of(index)).chain(self.residual_at(layer, index)).collect();
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&batch.read(&parts)?);
        let gradient = tensor.value_in(words[0], index);
        Ok(words.get(1).map_or(gradient, |&residual| f32::from_bits(residual) + gradient))
    }

    /// A fault with a mean, or with what is left, as the host would tell it, of what has been received.
    fn of_mean(&self, gpu: &mut Gpu, fault: BufferFault) -> Result<lgreco_train::Error, Error> {
        let member = &self.plan.members[fault.layer()];
        let is_product = member.source() == Source::Factors;
        let error = match fault {
            BufferFault::Payload { rank, .. } => {
                let code = image::fault(member, self.payload_of(member, rank as usize)).code();
                return Ok(lgreco_train::Error::PeerMessage { rank, code });
            }
            BufferFault::ElementOverflow { layer, index } => {
                let value = if is_product { self.product_at(gpu, layer, index)? } else { self.mean_at(member, index) };
                CoreError::ElementOverflow { index, value }
            }
            BufferFault::Remembered { .. } => CoreError::Overflow { what: "what is to be remembered" },
            _ if is_product => CoreError::Overflow { what: "the product of the factors" },
            _ => CoreError::Overflow { what: "the sum over the workers" },
        };
        Ok(error.into())
    }

    /// An element of the product of PowerSGD's mean factors.
    fn product_at(&self, gpu: &mut Gpu, layer: usize, index: usize) -> Result<f32, Error> {
        let Some(matrix) = self.plan.table.matrices.iter().find(|matrix| matrix.number as usize == layer) else {
            return Ok(f32::NAN);
        };
        let [rows, cols] = [matrix.all_rows, matrix.all_cols].map(|side| side as usize);
        let columns = matrix.columns as usize;
        let (offset, size) = (4 * u64::from(matrix.p), 4 * (rows * columns) as u64);
        let part = batch::Part { buffer: self.device.sums.clone(), offset, size };
        let p: Vec<f32> = bytemuck::pod_collect_to_vec(&Batch::new(gpu)?.read(&[part])?);
        let q = &self.host.factors.values[matrix.q as usize..];
        let (row, col) = (index / cols, index % cols);
        Ok((0..columns).map(|c| p[c * rows + row] * q[c * cols + col]).sum())
    }

    fn payload_of(&self, member: &Member, rank: usize) -> &[u8] {
        let (at, len) = member.payload.map_or((0, 0), |payload| (payload.at, payload.len));
        &self.host.messages[rank * self.plan.message + at..][..len]
    }

    /// An element of the mean, in f32, from what has been received.
    fn mean_at(&self, member: &Member, index: usize) -> f32 {
        let total = if member.payload.is_none() {
            self.host.sums.values[member.params.sums as usize + index]
        } else {
            let mut decoded = vec![0.0f32; member.shape().elements()];
            let held = (0..self.world).map(|rank| {
                // What cannot be decoded has been refused before.
                let done = lgreco_core::compress::decode(self.payload_of(member, rank), &mut decoded);
                done.map_or(f32::NAN, |_| decoded[index])
            });
            held.reduce(|sum, x| sum + x).unwrap_or(f32::NAN)
        };
        total / self.world as f32
    }
}

fn out_of_order(what: &'static str, expected: &'static str) -> lgreco_train::Error {
    lgreco_train::Error::StepOrder { what, expected }
}
