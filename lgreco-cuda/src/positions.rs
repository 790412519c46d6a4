//! TopK's payloads: what `positions.cu` is asked to do.

use crate::device::{BLOCK, Part};
use crate::gpu::{Gpu, Scratch, blocks};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use crate::{Error, topk};
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::topk::{Coding, Layout, TopK};
use lgreco_core::compress::wire::HEADER_LEN;

/// `Params` of `positions.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
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
        &["dtype", "count", "sent", "keep", "placement", "low_bits", "low_bytes", "high_bytes", "records"];
}

/// Values a block goes through, and bytes of ones.
const TILE: u64 = 4096;
const ONES: u64 = 8 * BLOCK as u64;
/// Bytes of a record.
const RECORD: u64 = 8;

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

/// Enqueued: all of `payload` but the header. The first word of `status` becomes at least the largest magnitude, the second
/// the k-th largest. `top.keep` is from 1 to the number of elements.
pub(crate) fn encode(gpu: &mut Gpu, tensor: &Tensor, top: TopK, payload: Part, status: Part) -> Result<(), Error> {
    let cut = topk::cut(gpu, tensor, top.keep, status)?;
    gpu.copy(cut.cut(0, 4), status.from(4))?;
    let layout = top.layout(tensor.elements)?;
    let body = Body::of(payload, top, layout);
    let blocks = u64::from(tensor.elements).div_ceil(TILE);
    let params = Params { dtype: tensor.dtype as u32, records: blocks as u32, ..params(top, tensor.elements, layout) };
    let records = gpu.scratch(Scratch::Records, RECORD * blocks)?;
    gpu.launch(kernel("count_kept"), params, &[tensor.part, cut, records], blocks)?;
    // Bits are set in whole words, which payloads do not end with.
    let words = |bytes: u64| bytes.next_multiple_of(4);
    let bits = gpu.scratch(Scratch::Bits, words(layout.low_bytes) + words(layout.high_bytes) + 4)?;
    gpu.clear(bits)?;
    let (low, rest) = (bits.cut(0, words(layout.low_bytes)), bits.from(words(layout.low_bytes)));
    let (high, total) = (rest.cut(0, words(layout.high_bytes)), rest.from(words(layout.high_bytes)));
    gpu.launch(kernel("scan"), params, &[records, total], 1)?;
    let parts = [tensor.part, cut, records, body.values, low, high];
    gpu.launch(kernel("write_kept"), params, &parts, blocks)?;
    gpu.copy(low.cut(0, layout.low_bytes), body.low)?;
    gpu.copy(high.cut(0, layout.high_bytes), body.high)
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
