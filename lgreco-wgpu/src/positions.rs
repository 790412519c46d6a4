//! Decodes TopK's payloads by launches of `topk_decode.wgsl`.
//!
//! Payloads are read in stretches: ranges of values whose data fit a binding. The host has the payload, and counts the
//! 1 bits of the position bitmap. From these counts, the host knows which part of every table a stretch needs. So
//! payloads of any size can be read through small bindings. Each value is uploaded once. The values of a stretch are
//! read again for every piece of the result that the stretch reaches.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::gpu::PER_GROUP;
use crate::memory::Scratch;
use crate::tensor::Tensor;
use crate::topk::{Params, kernel};
use lgreco::compress::quantised_topk::{self, Keep};
use lgreco::compress::topk::{self, Coding, Layout};
use lgreco::compress::wire::Payload;
use std::ops::Range;
use wgpu::{Buffer, BufferUsages};

/// Bytes of a block of the position bitmap.
const BLOCK: usize = PER_GROUP / 8;

/// The body of a payload.
pub(crate) struct Body<'p> {
    kept: Keep,
    layout: Layout,
    /// The means of bins, for TopK in few bits.
    means: &'p [u8],
    /// The values, or the codes for TopK in few bits.
    sent: &'p [u8],
    low: &'p [u8],
    high: &'p [u8],
    /// Number of 1 bits before each block of `high`, and in total.
    ones: Vec<usize>,
}

/// Returns the body of a TopK payload. Returns `None` if the core must decode: if no value is kept, or if the numbers
/// of positions and values differ.
pub(crate) fn of_payload<'p>(payload: &Payload<'p>) -> Result<Option<Body<'p>>, Error> {
    let topk::Body { top, layout, values, positions } = topk::of_payload(payload)?;
    Ok(of_parts(top.into(), layout, [&[], values, positions]))
}

/// Like [`of_payload`], for a payload of TopK in few bits.
pub(crate) fn of_few_bits<'p>(payload: &Payload<'p>) -> Result<Option<Body<'p>>, Error> {
    let quantised_topk::Body { top, layout, means, codes, positions } = quantised_topk::of_payload(payload)?;
    Ok(of_parts(top.into(), layout, [means.as_flattened(), codes, positions]))
}

fn of_parts<'p>(kept: Keep, layout: Layout, [means, sent, positions]: [&'p [u8]; 3]) -> Option<Body<'p>> {
    let (low, high) = positions.split_at(layout.low_bytes as usize);
    let mut ones = vec![0];
    let mut sum = 0;
    ones.extend(high.chunks(BLOCK).map(|block| {
        sum += count_ones(block);
        sum
    }));
    let keep = kept.top.keep as usize;
    let sound = keep > 0 && (layout.coding == Coding::All || sum == keep);
    sound.then_some(Body { kept, layout, means, sent, low, high, ones })
}

pub(crate) fn count_ones(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    let ones: u32 = words.iter().map(|&word| u64::from_le_bytes(word).count_ones()).sum();
    (ones + rest.iter().map(|byte| byte.count_ones()).sum::<u32>()) as usize
}

/// Values of a payload that are processed together, because all their data fit a binding.
struct Stretch {
    values: Range<usize>,
    blocks: Range<usize>,
}

impl Body<'_> {
    /// Divides all values into stretches of at most `most` values and `most_blocks` blocks. A block has at most
    /// [`PER_GROUP`] values.
    fn stretches(&self, most: usize, most_blocks: usize) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        if self.layout.coding == Coding::All {
            let keep = self.kept.top.keep as usize;
            let values = (0..keep).step_by(most).map(|first| first..keep.min(first + most));
            return values.map(|values| Stretch { values, blocks: 0..0 }).collect();
        }
        let mut block = 0;
        while block + 1 < self.ones.len() {
            let first = self.ones[block];
            let fit = self.ones[block + 1..].partition_point(|&end| end - first <= most);
            let end = block + fit.min(most_blocks);
            if self.ones[end] > first {
                stretches.push(Stretch { values: first..self.ones[end], blocks: block..end });
            }
            block = end;
        }
        stretches
    }

    /// Returns the range that contains the positions of a stretch, if an encoder wrote the payload.
    fn positions(&self, stretch: &Stretch) -> Range<usize> {
        let Stretch { values, blocks } = stretch;
        let bits = blocks.start * PER_GROUP..blocks.end * PER_GROUP;
        match self.layout.coding {
            Coding::All => values.clone(),
            Coding::Bitmap => bits,
            // Before the 1 bit of a value, there is one 1 bit per earlier value, and one 0 bit per 2^low_bits
            // positions.
            Coding::EliasFano => {
                (bits.start - values.start) << self.layout.low_bits..(bits.end - values.end + 1) << self.layout.low_bits
            }
        }
    }
}

/// A stretch of a payload that has been uploaded to the device.
struct Uploaded {
    params: Params,
    values: Part,
    positions: Buffer,
    range: Range<usize>,
}

/// Records the decoding of a body into `target`. Word 0 of `results` must be 0 before the call. Word 0 stays 0 if an
/// encoder wrote the payload.
pub(crate) fn decode(batch: &mut Batch<'_>, body: &Body<'_>, target: &Tensor, results: &Buffer) -> Result<(), Error> {
    let most = batch.gpu.piece_len();
    let mut uploaded: Vec<Uploaded> = Vec::new();
    for stretch in body.stretches(most, batch.gpu.most_groups().min(most * 4 / BLOCK)) {
        let last = uploaded.last();
        let next = upload(batch, body, &stretch, target.elements, last, results)?;
        uploaded.push(next);
    }
    for start in (0..target.elements).step_by(most) {
        let len = most.min(target.elements - start);
        let decoded = batch.scratch(Scratch::Output, 4 * len as u64)?;
        batch.clear(&decoded, 4 * len as u64);
        for stretch in uploaded.iter().filter(|s| s.range.start < start + len && start < s.range.end) {
            let params = Params { window: start as u32, window_len: len as u32, ..stretch.params };
            let bindings = [
                (9, results.into()),
                (10, (&stretch.positions).into()),
                (11, (&decoded).into()),
                (12, stretch.values.clone()),
            ];
            let groups = (params.count as usize).div_ceil(PER_GROUP);
            batch.run(kernel("scatter"), vec![Task::new(params, &bindings, groups)]);
        }
        target.take(batch, &decoded, start, len);
    }
    Ok(())
}

/// Uploads a stretch and records the reading of its positions. The buffer of positions begins with the last position of
/// the previous stretch.
fn upload(
    batch: &mut Batch<'_>,
    body: &Body<'_>,
    stretch: &Stretch,
    elements: usize,
    before: Option<&Uploaded>,
    results: &Buffer,
) -> Result<Uploaded, Error> {
    let Layout { coding, low_bits, .. } = body.layout;
    let Stretch { values, blocks } = stretch;
    let Keep { top, bits } = body.kept;
    let width = body.kept.width();
    let (first_sent, first_low) = (values.start * width, values.start * low_bits as usize);
    let params = Params {
        sent: top.values as u32,
        bits: bits.into(),
        codes: (body.means.len() / 4) as u32,
        code_bit: (first_sent % 8) as u32,
        first: values.start as u32,
        count: values.len() as u32,
        first_block: blocks.start as u32,
        elements: elements as u32,
        placement: coding as u32,
        low_bits,
        low_bit: (first_low % 8) as u32,
        ..Params::default()
    };
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    // If all values are kept, no positions are sent, and the binding is never read.
    let words = if coding == Coding::All { 1 } else { 1 + values.len() };
    let positions = batch.buffer(4 * words as u64, usage)?;
    if coding != Coding::All {
        if let Some(before) = before {
            batch.copy(&before.positions, 4 * u64::from(before.params.count), &positions, 0, 4);
        }
        let starts = body.ones[blocks.clone()].iter().map(|&ones| (ones - values.start) as u32);
        let starts = batch.upload(bytemuck::cast_slice(&starts.collect::<Vec<u32>>()))?;
        let high = batch.upload(&body.high[blocks.start * BLOCK..body.high.len().min(blocks.end * BLOCK)])?;
        let low = batch.upload(&body.low[first_low / 8..(values.end * low_bits as usize).div_ceil(8)])?;
        let bindings = [(9, results.into()), (10, (&positions).into()), (13, low), (14, high), (15, starts)];
        batch.run(kernel("read_positions"), vec![Task::new(params, &bindings, blocks.len())]);
    }
    let sent = &body.sent[first_sent / 8..(values.end * width).div_ceil(8)];
    let sent = if bits == 0 { batch.upload(sent)? } else { batch.upload(&[body.means, sent].concat())? };
    Ok(Uploaded { params, values: sent, positions, range: body.positions(stretch) })
}
