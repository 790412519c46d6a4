//! What the device has found wrong, in the words of the host's exchange.

use super::bucket::BufferBucket;
use super::faults::Faults;
use super::image;
use super::plan::{Member, Source};
use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::{self, Batch};
use crate::gpu::Gpu;
use crate::tensor::Input;
use lgreco_core::Error as CoreError;
use lgreco_core::internal::payload::STRETCH;
use lgreco_train::exchange::Part;

/// Rows of a product of factors that the host makes at a time.
const ROWS: usize = 32;

/// A layer's place in the bucket, and what is wrong with it.
type Fault = (usize, lgreco_train::Error);

impl BufferBucket {
    /// Ends a step whose flight has ended well: waits for the device; what is left of gradients and residuals then is the
    /// residuals, this step's mean `Q` of PowerSGD is what the next step starts with, the means are in the gradients' place,
    /// in the layers' types, and [`found_inf`](BufferBucket::found_inf) is 0.
    ///
    /// # Errors
    /// What the flight could not tell yet: [`Overflow`](lgreco_core::Error::Overflow) when a sum over the workers, a product of
    /// PowerSGD's mean factors or what is to be remembered has left f32, [`ElementOverflow`](lgreco_core::Error::ElementOverflow) when a mean its element type,
    /// [`PeerMessage`](lgreco_train::Error::PeerMessage) for what no encoder writes;
    /// [`StepOrder`](lgreco_train::Error::StepOrder) when no flight has ended; those of the device, of which
    /// [`failure`](BufferBucket::failure) says more. Residuals are then unchanged, and means of no use. Factors are unchanged too,
    /// unless it is what is to be remembered that has left f32, of which other ranks do not know.
    pub fn finish(&mut self, backend: &mut WgpuBackend) -> Result<(), lgreco_train::Error> {
        if self.is_idle() {
            return Ok(());
        }
        if !self.offered || self.due > 0 || self.status.is_some() {
            let (what, expected) = ("an exchange that has not ended well", "the end of a flight");
            return Err(lgreco_train::Error::StepOrder { what, expected });
        }
        self.offered = false;
        let gpu = backend.gpu();
        let found = self.read(gpu, &[]).and_then(|faults| Ok((self.of_means(gpu, &faults)?, faults)));
        let (of_means, faults) = found.map_err(|error| self.told(error))?;
        if of_means.is_none() {
            std::mem::swap(&mut self.device.remembered, &mut self.device.factors);
        }
        if let Some((layer, error)) = of_means.or_else(|| self.of_rest(&faults)) {
            self.faulty = Some(layer);
            return Err(error);
        }
        self.tell(backend.gpu(), 0.0).map_err(|error| self.told(error))?;
        if self.feedback {
            std::mem::swap(&mut self.device.residual, &mut self.device.offered);
        }
        Ok(())
    }

    /// What is wrong with this rank's own part, as far as it has been sent, as its compressors would say, and with which layer:
    /// uncompressed layers come first, then those under PowerSGD.
    pub(super) fn of_own(&self, gpu: &mut Gpu, faults: &Faults, part: Part) -> Result<Option<Fault>, Error> {
        for source in Source::SENT {
            let layers = self.plan.members.iter().enumerate();
            for (layer, _) in layers.filter(|(_, member)| member.source() == source) {
                if let Some(index) = faults.first(layer, 0) {
                    let value = self.offered_at(gpu, layer, index)?;
                    return Ok(Some((layer, CoreError::NonFinite { index, value }.into())));
                }
                if faults.first(layer, 5).is_some() {
                    let what = if part == Part::Sums { "PowerSGD factor P" } else { "PowerSGD factor Q" };
                    return Ok(Some((layer, CoreError::Overflow { what }.into())));
                }
                if let Some(index) = faults.first(layer, 4) {
                    let value = self.offered_at(gpu, layer, index)?;
                    return Ok(Some((layer, CoreError::ElementOverflow { index, value }.into())));
                }
            }
        }
        Ok(None)
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

    /// What is wrong with the means.
    fn of_means(&self, gpu: &mut Gpu, faults: &Faults) -> Result<Option<Fault>, Error> {
        for source in Source::MADE {
            let layers = self.plan.members.iter().enumerate();
            for (layer, member) in layers.filter(|(_, member)| member.source() == source) {
                if let Some(rank) = (0..self.world).find(|&rank| faults.is_of_peer(layer, rank)) {
                    let code = image::fault(member, self.payload_of(member, rank)).code();
                    return Ok(Some((layer, lgreco_train::Error::PeerMessage { rank: rank as u32, code })));
                }
                if let Some(error) = self.of_mean(gpu, layer, faults)? {
                    return Ok(Some((layer, error.into())));
                }
            }
        }
        Ok(None)
    }

    /// What is wrong with what is left.
    fn of_rest(&self, faults: &Faults) -> Option<Fault> {
        let late = (0..self.plan.members.len()).find(|&layer| faults.first(layer, 3).is_some());
        let late = late.filter(|_| self.feedback);
        late.map(|layer| (layer, CoreError::Overflow { what: "what is to be remembered" }.into()))
    }

    /// The same of one layer, whose mean the host makes, and looks at, a stretch at a time.
    fn of_mean(&self, gpu: &mut Gpu, layer: usize, faults: &Faults) -> Result<Option<CoreError>, Error> {
        let member = &self.plan.members[layer];
        let (what, stretch) = match member.source() {
            Source::Factors => ("the product of the factors", ROWS * member.shape().cols().max(1)),
            _ => ("the sum over the workers", STRETCH),
        };
        match (faults.first(layer, 1), faults.first(layer, 2)) {
            (Some(infinite), other) if other.is_none_or(|index| infinite / stretch <= index / stretch) => {
                Ok(Some(CoreError::Overflow { what }))
            }
            (_, Some(index)) => {
                let value = match member.source() {
                    Source::Factors => self.product_at(gpu, layer, index)?,
                    _ => self.mean_at(member, index),
                };
                Ok(Some(CoreError::ElementOverflow { index, value }))
            }
            (_, None) => Ok(None),
        }
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
