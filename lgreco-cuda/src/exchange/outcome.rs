//! The outcome of an exchange's steps, decoded from the status on the device.
//!
//! The status is a struct in device memory, which every step updates. A copy of the status that is enqueued after a
//! step has that step's outcome, even if later steps are already enqueued. So the host can read the outcome one step
//! later, and waits only for the copy.

use super::{DeviceExchange, Program};
use crate::Result;
use crate::backend::CudaBackend;
use crate::device::Part;
use bytemuck::Zeroable;
use lgreco::error::expect_len;

/// A fault in a value of this rank, or in a payload that this rank received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeFault {
    /// An element of the gradient is infinite or NaN.
    NonFinite {
        /// Index of the layer in the exchange.
        layer: usize,
        /// Index of the element.
        index: usize,
    },
    /// A value is too large for its type: the sum of gradient and residual, a sent value, a new residual, or the mean.
    Overflow {
        /// Index of the layer in the exchange.
        layer: usize,
        /// Index of the element.
        index: usize,
    },
    /// A factor of PowerSGD, or its sum over all ranks, is too large for f32.
    Factor {
        /// Index of the layer in the exchange.
        layer: usize,
    },
    /// No encoder wrote the payload of the [rank](ExchangeOutcome::rank) at fault. For example, the header does not fit
    /// the layer, a scale is not finite, or positions are out of order. The payload was damaged in transit, or the
    /// sender is not a valid rank of this exchange.
    Payload {
        /// Index of the layer in the exchange.
        layer: usize,
    },
}

/// The status of an exchange after its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeOutcome {
    /// The number of the next step.
    pub step: u32,
    /// Number of failed steps since the exchange began. A failed step leaves the residuals unchanged.
    pub failed: u32,
    /// Whether the last step failed on any rank.
    pub has_failed: bool,
    /// The first rank at fault in the last step, if any. The rank at fault had values that were not finite, was at
    /// another step, had another [`ExchangeProgram`](crate::ExchangeProgram), or sent a payload that no encoder wrote.
    pub rank: Option<u32>,
    /// The fault that this rank found in the last step, if any, with the first layer and element at fault. If the fault
    /// is a payload that no encoder wrote, all ranks report the same fault. With shards, only the rank that received
    /// the payload reports the fault.
    pub fault: Option<ExchangeFault>,
    /// Whether only this rank knows of the fault. With shards, other ranks do not see faults in the messages for this
    /// rank's own shards.
    pub alone: bool,
    /// The address of the valid half of the residuals: f32, layer after layer.
    pub residuals: u64,
    /// The address of the valid half of PowerSGD's remembered `Q`: f32, column after column, layer after layer. All
    /// values are 0 before the first step.
    pub factors: u64,
}

/// Size of the status in bytes.
const BYTES: usize = size_of::<Program>();

impl DeviceExchange {
    /// Device address and length in bytes of the status. After a step, enqueue a copy of the status to page-locked
    /// memory on the same stream. [`outcome_of`](DeviceExchange::outcome_of) decodes the copy.
    pub fn outcome_address(&self) -> (u64, usize) {
        (self.head().address, BYTES)
    }

    /// Decodes a copy of the status. From any other bytes, the result is meaningless and may name layers and addresses
    /// that the exchange does not have.
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) unless `bytes` has the length that
    /// [`outcome_address`](DeviceExchange::outcome_address) returns.
    pub fn outcome_of(&self, bytes: &[u8]) -> Result<ExchangeOutcome> {
        let mut program = Program::zeroed();
        expect_len("bytes of an exchange's outcome", BYTES, bytes.len())?;
        bytemuck::bytes_of_mut(&mut program).copy_from_slice(bytes);
        Ok(self.told(&program))
    }

    fn told(&self, program: &Program) -> ExchangeOutcome {
        let &Program { step, faults, faulty_rank, told, half, elements, sharded, found_inf, .. } = program;
        let fault = (told != 0).then(|| {
            let key = !told;
            let (layer, index) = ((key >> 32) as usize & 0x1fff_ffff, key as u32 as usize);
            match key >> 61 {
                0 => ExchangeFault::NonFinite { layer, index },
                2 => ExchangeFault::Factor { layer },
                5 => ExchangeFault::Payload { layer },
                _ => ExchangeFault::Overflow { layer, index },
            }
        });
        // For a faulty payload, the reported rank is the sender of the first faulty layer, as on the host. For all
        // other faults, the reported rank is `faulty_rank`, the first faulty rank.
        let broken = matches!(fault, Some(ExchangeFault::Payload { .. })).then_some(!told as u32);
        let is_told = faulty_rank < self.program.head.world;
        let alone = sharded != 0 && fault.is_some() && (broken.is_some() || !is_told);
        let rank = broken.or(is_told.then_some(faulty_rank));
        // The caller may pass arbitrary bytes as a status, so address computations wrap around instead of panicking.
        let at = |part: Part, half_bytes: u64| part.address.wrapping_add(half_bytes.wrapping_mul(half.into()));
        let remembered = self.program.places(self.memory).remembered;
        let residuals = at(self.residuals, elements.wrapping_mul(4));
        let factors = at(remembered, remembered.bytes / 2);
        let has_failed = found_inf != 0.0;
        ExchangeOutcome { step, failed: faults, has_failed, rank, fault, alone, residuals, factors }
    }
}

impl CudaBackend {
    /// Done: returns the outcome of the exchange's steps so far. To avoid the wait, use
    /// [`outcome_address`](DeviceExchange::outcome_address).
    ///
    /// # Errors
    /// Errors of the device.
    pub fn exchange_outcome(&mut self, exchange: &DeviceExchange) -> Result<ExchangeOutcome> {
        let mut program = Program::zeroed();
        self.gpu_mut().read_into(exchange.head(), bytemuck::bytes_of_mut(&mut program))?;
        Ok(exchange.told(&program))
    }
}
