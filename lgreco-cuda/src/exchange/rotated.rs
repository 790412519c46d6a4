//! Layers under EDEN in an exchange: launches of `exchange_eden.cu`.

use super::DeviceExchange;
use crate::Result;
use crate::device::Part;
use crate::gpu::{Gpu, looping_pieces};
use crate::kernels::{Kernel, Module};
use bytemuck::{Pod, Zeroable};
use lgreco::gradient::Dtype;

/// The struct `Params` in `exchange_eden.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    seed_low: u32,
    seed_high: u32,
}

impl Params {
    pub(super) fn new(dtype: Dtype, seed: u64) -> Self {
        Params { dtype: dtype as u32, seed_low: seed as u32, seed_high: (seed >> 32) as u32 }
    }

    #[cfg(test)]
    pub(crate) const FIELDS: &[&'static str] = &["dtype", "seed_low", "seed_high"];
}

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::ExchangeEden, entry }
}

/// The kernels that this module launches. They are loaded before the first step.
pub(super) const KERNELS: [Kernel; 3] = [kernel("encode_offered"), kernel("check_rotated"), kernel("average_rotated")];

/// Enqueued: launches a kernel for `pieces` pieces of work. The kernel's arguments are the exchange's tables and then
/// `parts`.
fn launch(gpu: &mut Gpu, exchange: &DeviceExchange, entry: &'static str, parts: &[Part], pieces: u64) -> Result<()> {
    let parts = [&exchange.rotated_parts(), parts].concat();
    gpu.launch_capturable(kernel(entry), exchange.program.rotated_params, &parts, looping_pieces(pieces))
}

/// Enqueued: makes the payloads and the next residuals of layers under EDEN. The call takes one launch, or none if no
/// layer is under EDEN.
pub(super) fn encode(gpu: &mut Gpu, exchange: &DeviceExchange, gradients: Part, message: Part) -> Result<()> {
    let spans = u64::from(exchange.program.head.rotated);
    if spans == 0 {
        return Ok(());
    }
    launch(gpu, exchange, "encode_offered", &[gradients, exchange.residuals, message], spans)
}

/// Enqueued: checks that EDEN's payloads are valid, and computes the means. A payload is valid if an encoder can have
/// written it and all decoded values are finite. The call takes two launches, or none if this rank averages no layers
/// under EDEN. The caller ends the step with another launch.
pub(super) fn average(gpu: &mut Gpu, exchange: &DeviceExchange, messages: Part, means: Part) -> Result<()> {
    let head = &exchange.program.head;
    let spans = u64::from(head.own_rotated);
    if spans == 0 {
        return Ok(());
    }
    launch(gpu, exchange, "check_rotated", &[messages], spans * u64::from(head.world))?;
    launch(gpu, exchange, "average_rotated", &[messages, means], spans)
}
