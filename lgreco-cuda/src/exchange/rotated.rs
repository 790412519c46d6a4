//! Layers under EDEN of an exchange: what `exchange_eden.cu` is asked to do.

use super::DeviceExchange;
use crate::Result;
use crate::device::Part;
use crate::gpu::{Gpu, looping_pieces};
use crate::kernels::{Kernel, Module};
use bytemuck::{Pod, Zeroable};

/// `Params` of `exchange_eden.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    seed_low: u32,
    seed_high: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["dtype", "seed_low", "seed_high"];
}

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::ExchangeEden, entry }
}

/// The entry points, which are loaded before there is work.
pub(super) const KERNELS: [Kernel; 3] = [kernel("encode_offered"), kernel("check_rotated"), kernel("average_rotated")];

fn params(exchange: &DeviceExchange) -> Params {
    let (program, seed) = (&exchange.program, exchange.program.seed);
    Params { dtype: program.dtype as u32, seed_low: seed as u32, seed_high: (seed >> 32) as u32 }
}

/// Enqueued, in one launch if there are such layers: their payloads, and what is to be remembered.
pub(super) fn encode(gpu: &mut Gpu, exchange: &DeviceExchange, gradients: Part, message: Part) -> Result<()> {
    let spans = exchange.program.head.rotated;
    if spans == 0 {
        return Ok(());
    }
    let [layers, layer_of, head] = exchange.rotated_parts();
    let parts = [layers, layer_of, head, gradients, exchange.residuals, message];
    gpu.launch_capturable(kernel("encode_offered"), params(exchange), &parts, looping_pieces(spans.into()))
}

/// Enqueued, in two launches if there are such layers: whether encoders wrote the payloads, and the means. Another launch ends the
/// step.
pub(super) fn average(gpu: &mut Gpu, exchange: &DeviceExchange, messages: Part, means: Part) -> Result<()> {
    let head = exchange.program.head;
    let spans = u64::from(head.own_rotated);
    if spans == 0 {
        return Ok(());
    }
    let [layers, layer_of, program] = exchange.rotated_parts();
    let parts = [layers, layer_of, program, messages];
    let pieces = looping_pieces(spans * u64::from(head.world));
    gpu.launch_capturable(kernel("check_rotated"), params(exchange), &parts, pieces)?;
    let parts = [layers, layer_of, program, messages, means];
    gpu.launch_capturable(kernel("average_rotated"), params(exchange), &parts, looping_pieces(spans))
}
