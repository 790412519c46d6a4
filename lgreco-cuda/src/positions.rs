//! Decodes TopK's payloads by launches of `positions.cu`.

use crate::Result;
use crate::device::{BLOCK, Part};
use crate::gpu::{Gpu, Scratch, blocks};
use crate::kernels::{Kernel, Module};

use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use lgreco::compress::quantised_topk::Keep;
use lgreco::compress::topk::{Coding, Layout};
use lgreco::compress::wire::HEADER_LEN;

/// The struct `Params` in `positions.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    count: u32,
    sent: u32,
    bits: u32,
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
        &["count", "sent", "bits", "keep", "placement", "low_bits", "low_bytes", "high_bytes", "records"];
}

/// Number of bytes of the bitmap of the positions' high bits that a block scans.
const ONES: u64 = 8 * BLOCK as u64;
/// Bytes of a record.
const RECORD: u64 = 4;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Positions, entry }
}

/// A payload's body in parts.
struct Body {
    /// The values. For TopK in few bits, the means and codes.
    values: Part,
    low: Part,
    high: Part,
}

impl Body {
    fn of(payload: Part, keep: Keep, layout: Layout) -> Body {
        let sizes = [HEADER_LEN as u64, keep.bytes().iter().sum(), layout.low_bytes, layout.high_bytes];
        let [_, values, low, high] = payload.split(sizes);
        Body { values, low, high }
    }
}

fn params(Keep { top, bits }: Keep, elements: u32, layout: Layout) -> Params {
    Params {
        count: elements,
        sent: top.values as u32,
        bits: bits.into(),
        keep: top.keep,
        placement: layout.coding as u32,
        low_bits: layout.low_bits,
        low_bytes: layout.low_bytes as u32,
        high_bytes: layout.high_bytes as u32,
        ..Params::default()
    }
}

/// Enqueued: decodes a payload with a checked header into `target`. `status` must be zeros before the call. Returns the
/// status that a payload from an encoder leaves.
pub(crate) fn decode(gpu: &mut Gpu, keep: Keep, payload: Part, target: &Tensor, status: Part) -> Result<[u32; 2]> {
    let top = keep.top;
    let layout = top.layout(target.elements)?;
    let body = Body::of(payload, keep, layout);
    let of_ones = layout.high_bytes.div_ceil(ONES);
    let params = Params { records: of_ones as u32, ..params(keep, target.elements, layout) };
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
    gpu.launch(kernel("check_kept"), params, &[body.values, body.low, positions, status], blocks)?;
    gpu.launch(kernel("scatter"), params, &[body.values, positions, status, target.part], blocks)?;
    Ok([0, if layout.coding == Coding::All { 0 } else { top.keep }])
}
