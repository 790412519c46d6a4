//! What has become of an exchange's steps: what the device knows, in words of the host.
//!
//! It lies in a struct of the device's memory, in which every step begins anew. A copy of it that is enqueued behind a step has what
//! that step came to, whatever has been enqueued since: so the host hears of faults a step later, and waits for nothing but the copy.

use super::{DeviceExchange, Program};
use crate::Result;
use crate::backend::CudaBackend;
use crate::device::Part;
use bytemuck::Zeroable;
use lgreco::error::expect_len;

/// What was wrong with a value of this rank, or with what it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeFault {
    /// The gradient's element is infinite or NaN.
    NonFinite {
        /// Index of the layer in the program.
        layer: usize,
        /// The element.
        index: usize,
    },
    /// The gradient with what is remembered, what is sent, what would be remembered, or the mean leaves its type.
    Overflow {
        /// Index of the layer in the program.
        layer: usize,
        /// The element.
        index: usize,
    },
    /// A factor of PowerSGD, or the sum of all ranks', leaves f32.
    Factor {
        /// Index of the layer in the program.
        layer: usize,
    },
    /// No encoder wrote the payload of the [rank](ExchangeOutcome::rank) at fault: its header is not the layer's, a scale is not finite,
    /// positions are out of order, say. It was damaged on its way, or that rank is not what it says.
    Payload {
        /// Index of the layer in the program.
        layer: usize,
    },
}

/// What an exchange knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeOutcome {
    /// The number of the next step.
    pub step: u32,
    /// Steps that failed since the beginning: residuals stayed as they were.
    pub failed: u32,
    /// Whether the last step failed on some rank.
    pub has_failed: bool,
    /// The first rank at fault in the last step, if one was: not finite, at another step, with another program, or with a
    /// payload that no encoder wrote.
    pub rank: Option<u32>,
    /// What was wrong on this rank in the last step, if anything was: its first layer and element. Of a payload that no encoder
    /// wrote all ranks tell the same; by shards the rank that has got it does, alone.
    pub fault: Option<ExchangeFault>,
    /// By shards: whether this rank alone knows of the fault, which it has found in what it got of its own ones.
    pub alone: bool,
    /// The address of the residuals that count: f32, layer after layer.
    pub residuals: u64,
    /// The address of PowerSGD's remembered `Q` that count: f32, column after column of layer after layer; zeros at first.
    pub factors: u64,
}

/// Bytes of what an exchange knows of itself.
const BYTES: usize = size_of::<Program>();

impl DeviceExchange {
    /// Where in the device's memory is what the exchange knows of itself, and of how many bytes: a copy of them to page-locked memory,
    /// enqueued behind a step on the same stream, has what [`outcome_of`](DeviceExchange::outcome_of) reads.
    pub fn outcome_address(&self) -> (u64, usize) {
        (self.head().address, BYTES)
    }

    /// What such a copy says. Other bytes, as many, say something else: layers and addresses that are none of the exchange's, perhaps.
    ///
    /// # Errors
    /// [`Length`](lgreco::Error::Length) unless there are as many bytes as [`outcome_address`](DeviceExchange::outcome_address)
    /// says.
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
        // The first layer's rank, as on the host; on the device it is the first rank's.
        let broken = matches!(fault, Some(ExchangeFault::Payload { .. })).then_some(!told as u32);
        let is_told = faulty_rank < self.program.head.world;
        let alone = sharded != 0 && fault.is_some() && (broken.is_some() || !is_told);
        let rank = broken.or(is_told.then_some(faulty_rank));
        // What is no such copy says anything, and its addresses are nobody's.
        let at = |part: Part, half_bytes: u64| part.address.wrapping_add(half_bytes.wrapping_mul(half.into()));
        let remembered = self.program.places(self.memory).remembered;
        let residuals = at(self.residuals, elements.wrapping_mul(4));
        let factors = at(remembered, remembered.bytes / 2);
        let has_failed = found_inf != 0.0;
        ExchangeOutcome { step, failed: faults, has_failed, rank, fault, alone, residuals, factors }
    }
}

impl CudaBackend {
    /// Done: what has become of the exchange's steps so far. [`outcome_address`](DeviceExchange::outcome_address) is for who does
    /// not want to wait.
    ///
    /// # Errors
    /// Those of the device.
    pub fn exchange_outcome(&mut self, exchange: &DeviceExchange) -> Result<ExchangeOutcome> {
        let mut program = Program::zeroed();
        self.gpu_mut().read_into(exchange.head(), bytemuck::bytes_of_mut(&mut program))?;
        Ok(exchange.told(&program))
    }
}
