//! The memory of a bucket on the device as an exchange's space.

use super::bucket::{BufferBucket, Staging};
use super::image::{read_message, write_message};
use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::gpu::Gpu;
use core::sync::atomic::Ordering::Relaxed;
use lgreco_core::Error as CoreError;
use lgreco_core::gradient::Bf16;
use lgreco_core::internal::checksum::Hash;
use lgreco_train::exchange::{Moment, Op, Part, Program, Request, RequestOf, Route, Slip, Space, Spec, judge};

/// Bytes of a greeting: a slip, and the length of the rank's message.
const GREETING: usize = Slip::LEN + 8;

/// A [`BufferBucket`] on its backend, for a flight. Collectives are asked for on memory of the host; only that asking waits for
/// the device.
///
/// What goes wrong with this rank's values is told by the first message after what agrees ranks: greetings do not wait for the
/// device.
pub struct BufferSpace<'a> {
    pub(super) bucket: &'a mut BufferBucket,
    pub(super) gpu: &'a mut Gpu,
}

impl BufferBucket {
    /// The bucket as the space of a flight, on the backend that it was made on.
    pub fn on<'a>(&'a mut self, backend: &'a mut WgpuBackend) -> BufferSpace<'a> {
        BufferSpace { bucket: self, gpu: backend.gpu() }
    }
}

impl BufferSpace<'_> {
    /// Records work and submits it.
    fn enqueue(&mut self, record: impl FnOnce(&mut BufferBucket, &mut Batch<'_>)) -> Result<(), lgreco_train::Error> {
        let done = Batch::new(self.gpu).and_then(|mut batch| {
            record(self.bucket, &mut batch);
            batch.enqueue()
        });
        done.map_err(|error| self.bucket.told(error))
    }

    /// The same of what makes means, of which one op less is due once it is submitted.
    fn make_means(
        &mut self,
        record: impl FnOnce(&mut BufferBucket, &mut Batch<'_>),
    ) -> Result<(), lgreco_train::Error> {
        self.enqueue(record)?;
        self.bucket.due -= 1;
        Ok(())
    }

    /// Waits for what this rank is to send, and for what is wrong with it.
    fn wait(&mut self, part: Part, moment: &Moment) -> Result<(), Error> {
        let bucket = &mut *self.bucket;
        let of = match part {
            Part::Sums => bucket.summed(),
            Part::Factors => bucket.second(),
            _ => bucket.image(),
        };
        let mut faults = bucket.read(self.gpu, std::slice::from_ref(&of))?;
        if part == Part::Payloads && faults.has_lost_cut() {
            let mut batch = Batch::new(self.gpu)?;
            bucket.encode_lost(&mut batch, moment);
            batch.enqueue()?;
            faults = bucket.read(self.gpu, &[of])?;
            #[cfg(test)]
            {
                self.gpu.lost_cuts += 1;
            }
        }
        if let Some(fault) = faults.of_own()
            && bucket.status.is_none()
        {
            let error = bucket.of_own(self.gpu, fault, part)?;
            (bucket.faulty, bucket.status) = (Some(fault.layer()), Some(error));
        }
        Ok(())
    }

    /// This rank's slip.
    fn slip(&self) -> Slip {
        let Slip { code, fingerprint } = self.bucket.slip;
        Slip { code: self.bucket.status.map_or(code, |error| error.code().into()), fingerprint }
    }

    /// Puts this rank's message among all.
    fn put_message(&mut self, moment: &Moment, slip: Slip) {
        let plan = &self.bucket.plan;
        let host = &mut self.bucket.host;
        let message = &mut host.messages[moment.rank as usize * plan.message..][..plan.message];
        if let Some(from) = host.read.len().checked_sub(4 * plan.image) {
            write_message(plan, &host.read[from..], message);
        }
        slip.write(message);
    }

    /// Says how this rank fares before anything is known of its values.
    fn greet(&mut self, moment: &Moment, slip: Slip) {
        let (rank, world) = (moment.rank as usize, moment.world_size as usize);
        let len = if slip.code == 0 { self.bucket.plan.message as u64 } else { 0 };
        let greetings = &mut self.bucket.host.greetings;
        greetings.resize(GREETING * world, 0);
        let own = &mut greetings[GREETING * rank..][..GREETING];
        slip.write(own);
        own[Slip::LEN..].copy_from_slice(&len.to_le_bytes());
    }

    fn judge(
        &mut self,
        part: Part,
        own: Option<lgreco_train::Error>,
        moment: &Moment,
    ) -> Result<(), lgreco_train::Error> {
        let own = self.bucket.status.or(own);
        let BufferBucket { plan, host, .. } = &mut *self.bucket;
        match part {
            Part::Greetings => {
                let greetings = host.greetings.chunks_exact(GREETING);
                judge(own, greetings.clone().map(Slip::read))?;
                for (rank, greeting) in (0..).zip(greetings) {
                    let len = u64::from_le_bytes(std::array::from_fn(|i| greeting[Slip::LEN + i]));
                    if len != plan.message as u64 {
                        let (expected, found) = (plan.message, len as usize);
                        let code = CoreError::Length { what: "message bytes", expected, found }.code();
                        return Err(lgreco_train::Error::PeerMessage { rank, code });
                    }
                }
                Ok(())
            }
            Part::Sums => host.sums.judge(own, moment),
            Part::Factors => host.factors.judge(own, moment),
            Part::Payloads => judge(own, host.messages.chunks_exact(plan.message).map(Slip::read)),
            _ => Ok(()),
        }
    }
}

impl Space for BufferSpace<'_> {
    type Values<'b>
        = &'b mut [f32]
    where
        Self: 'b;
    type Halves<'b>
        = &'b mut [Bf16]
    where
        Self: 'b;
    type Bytes<'b>
        = &'b mut [u8]
    where
        Self: 'b;

    fn layers(&self) -> impl Iterator<Item = Spec<'_>> + Clone {
        self.bucket.plan.members.iter().map(|member| member.spec)
    }

    /// That of no factors, so that ranks may have their buckets on the host; 0 where there are some, so that they may not: factors
    /// of other arithmetic make other means.
    fn remembered(&self) -> u64 {
        if self.bucket.plan.table.q > 0 { 0 } else { Hash::START.0 }
    }

    fn check(&self, program: &Program) -> Result<(), lgreco_train::Error> {
        let Moment { route, world_size, .. } = program.moment;
        if route != Route::AllGather {
            let (value, expected) = (f64::from(route as u32), "all-gather (0), the only one on wgpu devices");
            return Err(CoreError::Parameter { what: "route", value, expected }.into());
        }
        lgreco_core::internal::error::expect_len("workers of the bucket", self.bucket.world, world_size as usize)?;
        self.bucket.is_new.store(true, Relaxed);
        Ok(())
    }

    fn run(&mut self, op: Op, program: &Program) -> Result<(), lgreco_train::Error> {
        let moment = program.moment;
        if self.bucket.is_new.swap(false, Relaxed) {
            self.bucket.begin(self.gpu);
        }
        match op {
            Op::Widen => self.enqueue(|bucket, batch| bucket.offer(batch, &moment)),
            Op::Encode if self.bucket.is_encoded() => Ok(()),
            Op::Encode => self.enqueue(|bucket, batch| {
                bucket.offer(batch, &moment);
                bucket.encode(batch, &moment);
            }),
            Op::Project => self.enqueue(|bucket, batch| {
                bucket.offer(batch, &moment);
                bucket.project(batch, &moment);
            }),
            Op::BackProject => {
                self.bucket.check_summed()?;
                self.enqueue(|bucket, batch| bucket.back_project(batch, &moment))
            }
            Op::AverageFactors => self.bucket.average_factors(),
            Op::Reconstruct => self.make_means(|bucket, batch| bucket.reconstruct(batch, &moment)),
            Op::Average => self.make_means(|bucket, batch| bucket.average(batch, &moment)),
            Op::SumPayloads => {
                let BufferBucket { plan, host, .. } = &mut *self.bucket;
                for (rank, message) in host.messages.chunks_exact(plan.message).enumerate() {
                    let image = &mut host.images[rank * plan.image..][..plan.image];
                    read_message(plan, rank as u32, message, image)?;
                }
                self.make_means(|bucket, batch| bucket.sum_payloads(batch, &moment))
            }
            Op::PutSlip { part: Part::Greetings, slip } => {
                self.greet(&moment, slip);
                Ok(())
            }
            Op::PutSlip { slip, .. } => {
                self.bucket.slip = slip;
                Ok(())
            }
            Op::Judge { part, own } => self.judge(part, own, &moment),
            // What a bucket with such settings and routes has no layers for.
            _ => Ok(()),
        }
    }

    fn request(&mut self, part: Part, program: &Program) -> Result<RequestOf<'_, Self>, lgreco_train::Error> {
        if part == Part::Greetings {
            return Ok(Request::AllGather { buffer: &mut self.bucket.host.greetings });
        }
        if self.bucket.offered
            && let Err(error) = self.wait(part, &program.moment)
        {
            // The others wait for this rank's part all the same.
            let failure = self.bucket.told(error);
            self.bucket.status = self.bucket.status.or(Some(failure));
        }
        let slip = self.slip();
        if part == Part::Payloads {
            self.put_message(&program.moment, slip);
            return Ok(Request::AllGather { buffer: &mut self.bucket.host.messages });
        }
        let Staging { sums, factors, read, .. } = &mut self.bucket.host;
        let summed = if part == Part::Factors { factors } else { sums };
        summed.put(read, slip, &program.moment);
        Ok(summed.request(&program.moment))
    }
}
