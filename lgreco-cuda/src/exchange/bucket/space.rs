//! Implements lgreco-train's [`Space`] for a bucket: enqueues the operations of an exchange.

use super::DeviceBucket;
use super::shards::Kept;
use super::{DeviceMemory, DeviceRequest};
use crate::backend::CudaBackend;
use crate::device::Part;
use crate::exchange::program::ExchangeProgram;
use crate::gpu::Gpu;
use crate::{Error, Result};
use lgreco_train::exchange::{self, Op, Program, Request, RequestOf, Slip, Space, Spec};
use lgreco_train::gradient::Dtype;

/// The buffers of the collectives.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    /// The messages of all ranks. With shards: first the messages from the other ranks to this rank, then this rank's
    /// message to itself, and then this rank's messages to the other ranks.
    messages: Part,
    sums: Part,
    factors: Part,
    /// Offset of this rank's message. With shards, offset of this rank's message to itself.
    own: u64,
    /// The three lists are used only with shards, and have one entry per rank. `sum_lens` has the number of values in
    /// the rank's part of the sums, `send_lens` the bytes sent to the rank, and `received_lens` the bytes received from
    /// the rank.
    sum_lens: Vec<u64>,
    send_lens: Vec<u64>,
    received_lens: Vec<u64>,
}

impl Wire {
    pub(super) fn new(program: &ExchangeProgram, [messages, sums, factors]: [Part; 3]) -> Wire {
        let (rank, apart) = (program.rank(), program.head.apart);
        let of_others =
            |lens: Vec<u64>| lens.iter().zip(0..).map(|(&len, owner)| if owner == rank { 0 } else { len }).collect();
        let place = if program.head.sharded == 0 { rank } else { program.head.world - 1 };
        Wire {
            messages,
            sums,
            factors,
            own: u64::from(place) * apart,
            sum_lens: program.sum_lens(),
            send_lens: of_others(program.messages.clone()),
            received_lens: of_others(vec![apart; program.messages.len()]),
        }
    }

    /// Returns this rank's message. With shards, this is the message to itself, and the messages to the other ranks
    /// follow.
    fn message(&self) -> Part {
        self.messages.from(self.own)
    }

    /// Returns the request for the collective that exchanges `part`.
    pub(super) fn request(&self, part: exchange::Part, reduce_dtype: Dtype) -> DeviceRequest<'_> {
        let memory = |Part { address, bytes }: Part| DeviceMemory { address, len: bytes as usize };
        let sums = |sums: Part| DeviceMemory { address: sums.address, len: sums.bytes as usize / reduce_dtype.bytes() };
        let half = reduce_dtype == Dtype::Bf16;
        let reduce = |part| match (half, sums(part)) {
            (true, values) => Request::AllReduceSumBf16 { values },
            (false, values) => Request::AllReduceSum { values },
        };
        let lens = &self.sum_lens;
        match part {
            exchange::Part::Sums => reduce(self.sums),
            exchange::Part::Factors => reduce(self.factors),
            exchange::Part::Shards if half => Request::ReduceScatterSumBf16 { lens, values: sums(self.sums) },
            exchange::Part::Shards => Request::ReduceScatterSum { lens, values: sums(self.sums) },
            exchange::Part::ShardPayloads => {
                let sent: u64 = self.send_lens.iter().sum();
                let own = self.received_lens.iter().sum::<u64>();
                Request::AllToAll {
                    send: memory(self.messages.from(self.messages.bytes - sent)),
                    send_lens: &self.send_lens,
                    received: memory(self.messages.cut(0, own)),
                    received_lens: &self.received_lens,
                }
            }
            _ => Request::AllGather { buffer: memory(self.messages) },
        }
    }
}

pub(super) struct Enqueuing<'b> {
    pub(super) cuda: &'b mut CudaBackend,
    pub(super) bucket: &'b mut DeviceBucket,
    /// The part for which a collective was requested.
    pub(super) asked: Option<exchange::Part>,
    /// The device's first error.
    pub(super) failure: Option<Error>,
}

impl Enqueuing<'_> {
    /// Makes the launches of an operation. Some launches also perform later operations up to the next collective, such
    /// as writing this rank's status.
    fn enqueue(&mut self, op: Op) -> Result<()> {
        let DeviceBucket { exchange, gradients, wire, .. } = &*self.bucket;
        let [messages, sums, factors] = [wire.messages, wire.sums, wire.factors].map(|part| part.address);
        // SAFETY: the caller of `submit` or `next` guarantees that the gradients are valid. The caller of `new`
        // guarantees that all other memory is valid.
        unsafe {
            match op {
                Op::Encode | Op::EncodeShards => {
                    self.cuda.encode_exchange(exchange, *gradients, wire.message().address)
                }
                Op::PutSlip { part: exchange::Part::Sums | exchange::Part::Shards, .. } => {
                    self.cuda.project_exchange(exchange, *gradients, sums)
                }
                Op::PutSlip { part: exchange::Part::Factors, .. } => {
                    self.cuda.back_project_exchange(exchange, sums, factors)
                }
                Op::PutSlip { part: exchange::Part::ShardPayloads, .. } => {
                    self.cuda.announce_exchange(exchange, wire.message())
                }
                Op::Average | Op::AverageShards => self.cuda.average_exchange(exchange, sums, factors, *gradients),
                Op::SumPayloads | Op::SumShards => self.cuda.finish_exchange(exchange, messages, *gradients),
                _ => Ok(()),
            }
        }
    }

    /// Reports to the other ranks that the device has refused the work for this rank's part of a collective.
    fn tell(&mut self, part: exchange::Part, slip: Slip) -> Result<()> {
        let DeviceBucket { exchange, wire, .. } = &*self.bucket;
        let (program, gpu) = (&exchange.program, self.cuda.gpu_mut());
        match part {
            exchange::Part::Sums | exchange::Part::Shards => {
                gpu.clear(wire.sums)?;
                program.slips.iter().try_for_each(|&values| tell_in(gpu, program, wire.sums, values, slip))
            }
            exchange::Part::Factors => {
                gpu.clear(wire.factors)?;
                tell_in(gpu, program, wire.factors, program.head.factors, slip)
            }
            // Sets the first word of each message. The other ranks only check whether the first word is 0.
            _ => {
                let head = |&head: &u64| gpu.write_words(&[slip.code as u32], wire.message().from(head));
                program.heads.iter().try_for_each(head)
            }
        }
    }

    /// Keeps the device's first error, and returns it as an error of lgreco-train.
    fn failed(&mut self, error: Error) -> lgreco_train::Error {
        let core = error.to_core();
        self.failure.get_or_insert(error);
        lgreco_train::Error::Core(core)
    }
}

/// Writes this rank's status record after `values` summed values. The caller has set all other values of the buffer to
/// zeros.
fn tell_in(gpu: &mut Gpu, program: &ExchangeProgram, buffer: Part, values: u64, slip: Slip) -> Result<()> {
    let at = program.summed_bytes(values as usize + program.slip_values() * program.rank() as usize);
    if program.reduce_dtype == Dtype::F32 {
        return gpu.write_words(&[slip.to_sum().to_bits()], buffer.cut(at, 4));
    }
    // The device writes whole words. For the last rank, the second word may reach into the padding after the buffer.
    let [low, middle, high] = slip.to_bf16_sum().map(|digit| u64::from(digit.0));
    let digits = (low | middle << 16 | high << 32) << (8 * (at % 4));
    let words = [digits as u32, (digits >> 32) as u32];
    gpu.write_words(&words, Part { address: buffer.address + at / 4 * 4, bytes: 8 })
}

impl Space for Enqueuing<'_> {
    type Values<'a>
        = DeviceMemory
    where
        Self: 'a;
    type Halves<'a>
        = DeviceMemory
    where
        Self: 'a;
    type Bytes<'a>
        = DeviceMemory
    where
        Self: 'a;

    fn layers(&self) -> impl Iterator<Item = Spec<'_>> + Clone {
        self.bucket.layers.iter().map(Kept::spec)
    }

    /// Checks nothing, because the memory was made for exactly these layers.
    fn check(&self, _: &Program) -> Result<(), lgreco_train::Error> {
        Ok(())
    }

    /// If the device refuses work for this rank's part, this rank reports the error to the other ranks and still
    /// continues the step to its end. So all ranks take part in the same collectives and count the same steps.
    fn run(&mut self, op: Op, program: &Program) -> Result<(), lgreco_train::Error> {
        let makes_part = matches!(op, Op::Encode | Op::EncodeShards | Op::PutSlip { .. });
        let is_told = self.bucket.refused.is_some() && makes_part;
        if !is_told && let Err(error) = self.enqueue(op) {
            self.bucket.refused.get_or_insert(error);
        }
        let Op::PutSlip { part, .. } = op else { return Ok(()) };
        let Some(code) = self.bucket.refused.as_ref().map(|error| error.to_core().code().into()) else { return Ok(()) };
        let slip = Slip { code, fingerprint: program.fingerprint };
        self.tell(part, slip).map_err(|error| self.failed(error))
    }

    fn request(&mut self, part: exchange::Part, program: &Program) -> Result<RequestOf<'_, Self>, lgreco_train::Error> {
        self.asked = Some(part);
        Ok(self.bucket.wire.request(part, program.moment.reduce_dtype))
    }
}
