//! What TopK's payloads hold: what `positions.cu` is asked to do.

use crate::Error;
use crate::device::{BLOCK, Part};
use crate::gpu::{Gpu, Scratch, blocks};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::topk::{Coding, Layout, TopK};
use lgreco_core::compress::wire::HEADER_LEN;

/// `Params` of `positions.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    count: u32,
    sent: u32,
    keep: u32,
    placement: u32,
    low_bits: u32,
    low_bytes: u32,
    high_bytes: u32,
    records: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] =
        &["count", "sent", "keep", "placement", "low_bits", "low_bytes", "high_bytes", "records"];
}

/// Bytes of ones that a block goes through.
const ONES: u64 = 8 * BLOCK as u64;
/// Bytes of a record.
const RECORD: u64 = 4;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Positions, entry }
}

/// A payload's body in parts.
struct Body {
    values: Part,
    low: Part,
    high: Part,
}

impl Body {
    fn of(payload: Part, top: TopK, layout: Layout) -> Body {
        let (values, low) = (HEADER_LEN as u64, u64::from(top.keep) * top.values.bytes() as u64);
        let (low, high) = (values + low, layout.low_bytes);
        Body {
            values: payload.cut(values, low - values),
            low: payload.cut(low, high),
            high: payload.cut(low + high, layout.high_bytes),
        }
    }
}

fn params(top: TopK, elements: u32, layout: Layout) -> Params {
    Params {
        count: elements,
        sent: top.values as u32,
        keep: top.keep,
        placement: layout.coding as u32,
        low_bits: layout.low_bits,
        low_bytes: layout.low_bytes as u32,
        high_bytes: layout.high_bytes as u32,
        ..Params::default()
    }
}

/// Enqueued: decodes a payload whose header has been checked into `target`. Afterwards the two words of `status` must be 0
/// and what is returned: else no encoder wrote the payload.
pub(crate) fn decode(gpu: &mut Gpu, top: TopK, payload: Part, target: &Tensor, status: Part) -> Result<u32, Error> {
    let layout = top.layout(target.elements)?;
    let body = Body::of(payload, top, layout);
    let of_ones = layout.high_bytes.div_ceil(ONES);
    let params = Params { records: of_ones as u32, ..params(top, target.elements, layout) };
    gpu.clear(status)?;
    gpu.clear(target.part)?;
    let positions = gpu.scratch(Scratch::Positions, 4 * u64::from(top.keep))?;
    if layout.coding != Coding::All {
        let records = gpu.scratch(Scratch::Records, RECORD * of_ones)?;
        gpu.launch(kernel("count_ones"), params, &[body.high, records], of_ones)?;
        gpu.launch(kernel("scan"), params, &[records, status.from(4)], 1)?;
        let parts = [body.low, body.high, records, positions, status];
        gpu.launch(kernel("read_positions"), params, &parts, of_ones)?;
    }
    let blocks = blocks(u64::from(top.keep));
    gpu.launch(kernel("check_kept"), params, &[body.values, positions, status], blocks)?;
    gpu.launch(kernel("scatter"), params, &[body.values, positions, status, target.part], blocks)?;
    Ok(if layout.coding == Coding::All { 0 } else { top.keep })
}
