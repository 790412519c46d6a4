//! TopK's payloads: what `topk_encode.wgsl` and `topk_decode.wgsl` are asked to do.
//!
//! Payloads are read in stretches. They come from the host, which counts the ones of the positions: so every stretch
//! of values knows its part of each table, and any payload is read through bindings of any size, each value uploaded
//! once and looked at by every piece of the result that its stretch reaches.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::gpu::PER_GROUP;
use crate::memory::Scratch;
use crate::tensor::{Piece, Tensor};
use crate::topk::{Params, Sought, kernel, select};
use lgreco_core::compress::topk::{self, Coding, Layout};
use lgreco_core::compress::wire::{HEADER_LEN, Payload};
use lgreco_core::internal::quantised_topk::{self, Keep};
use std::ops::Range;
use wgpu::{Buffer, BufferUsages};

/// Bytes of `Bins` of `few_bits.wgsl`: what is known of the bins of one layer.
pub(crate) const BINS: u64 = 4 * (2 + 4 * 128);
/// Bytes of a block, whose ones are positions.
const BLOCK: usize = PER_GROUP / 8;

/// The parameters that say where the parts of a payload lie.
fn places(kept: Keep, elements: usize) -> Result<Params, Error> {
    let Keep { top, bits } = kept;
    let layout = top.layout(elements as u32)?;
    let [means, sent] = kept.bytes().map(|bytes| bytes as usize);
    let low = HEADER_LEN + means + sent;
    let high = low + layout.low_bytes as usize;
    Ok(Params {
        sent: top.values as u32,
        elements: elements as u32,
        placement: layout.coding as u32,
        low_bits: layout.low_bits,
        values_word: (HEADER_LEN / 4) as u32,
        bits: bits.into(),
        codes: ((HEADER_LEN + means) / 4) as u32,
        low_word: (low / 4) as u32,
        low_bit: (low % 4 * 8) as u32,
        high_word: (high / 4) as u32,
        high_bit: (high % 4 * 8) as u32,
        ..Params::default()
    })
}

/// `Err` when shaders, which number a payload's words in 32 bits, cannot reach all of them.
fn check_reach(payload_len: usize) -> Result<(), Error> {
    const MOST: u64 = 4 * u32::MAX as u64;
    let bytes = payload_len as u64;
    if bytes <= MOST {
        return Ok(());
    }
    Err(Error::TooLarge { what: "a TopK payload", bytes, limit: "reach of 32-bit word numbers", largest: MOST })
}

/// Records the encoding of all but the header; returns the payload's words, header included. Word 0 of `results`
/// becomes the largest magnitude, word 1 the bits of the k-th largest. At least one value is kept.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    kept: Keep,
    payload_len: usize,
    results: &Buffer,
) -> Result<Tensor, Error> {
    check_reach(payload_len)?;
    let keeps = &[kept.top.keep];
    let state = select(batch, &[Sought { tensor, sent: kept.top.values, keeps, result: 0 }], false, results)?;
    // The magnitude in `Keep`.
    batch.copy(&state, 4 * 5, results, 4, 4);
    let payload = Tensor::room(batch, payload_len.div_ceil(4))?;
    let base = Params { dtype: tensor.dtype as u32, ..places(kept, tensor.elements)? };
    let blocks = count(batch, &state, &[(tensor, base)])?;
    if kept.bits > 0 {
        for entry in ["find_exponents", "add_to_bins"] {
            let bindings = [(6, (&state).into()), (18, (&blocks.bins).into())];
            batch.run(kernel(entry), blocks.tasks(&bindings, |params| params));
        }
    }
    let mut window = 0;
    for part in payload.parts() {
        batch.clear(&part.buffer, part.size);
        let within = |params| Params { window, window_len: (part.size / 4) as u32, ..params };
        if kept.bits > 0 {
            let bindings = [(6, (&state).into()), (8, part.clone()), (18, (&blocks.bins).into())];
            batch.run(kernel("make_means"), vec![Task::new(within(base), &bindings, 1)]);
        }
        write(batch, &blocks, &state, &part, within);
        window += (part.size / 4) as u32;
    }
    Ok(payload)
}

/// Blocks of tensors in which is counted what is kept.
pub(crate) struct Blocks {
    pieces: Vec<(Piece, Params)>,
    counts: Buffer,
    /// Of TopK in few bits: the range of what is kept, of each tensor.
    pub(crate) bins: Buffer,
}

impl Blocks {
    /// What is done to all pieces, with parameters changed so.
    fn tasks(&self, bindings: &[(u32, Part)], change: impl Fn(Params) -> Params) -> Vec<Task<Params>> {
        let task = |(piece, params): &(Piece, Params)| {
            let bindings = [&[(1, piece.part.clone())], bindings].concat();
            Task::new(change(*params), &bindings, piece.groups())
        };
        self.pieces.iter().map(task).collect()
    }
}

/// Blocks that [`count`] counts in.
pub(crate) fn blocks_of(batch: &Batch<'_>, tensor: &Tensor) -> usize {
    tensor.all(batch).iter().map(Piece::groups).sum()
}

/// Bytes of what is counted in so many blocks.
pub(crate) fn bytes_of(blocks: usize) -> u64 {
    8 * blocks as u64
}

/// Records the counting of what `first_keep` of `state` keeps of each tensor, by the tensor's parameters; with `bits`, its range
/// too.
pub(crate) fn count(batch: &mut Batch<'_>, state: &Buffer, tensors: &[(&Tensor, Params)]) -> Result<Blocks, Error> {
    let (mut pieces, mut scans, mut total) = (Vec::new(), Vec::new(), 0);
    for (&(tensor, base), bins) in tensors.iter().zip(0..) {
        let base = Params { bins, ..base };
        let blocks = blocks_of(batch, tensor);
        scans.push(Params { first_block: total as u32, blocks: blocks as u32, ..base });
        for piece in tensor.all(batch) {
            let (offset, first, count) = (piece.skip, piece.first as u32, piece.count as u32);
            let params = Params { offset, first, count, first_block: total as u32, ..base };
            total += piece.groups();
            pieces.push((piece, params));
        }
    }
    let counts = batch.scratch(Scratch::Blocks, bytes_of(total))?;
    let bins = batch.scratch(Scratch::FewBits, BINS * tensors.len() as u64)?;
    batch.clear(&bins, BINS * tensors.len() as u64);
    let blocks = Blocks { pieces, counts, bins };
    let of_counts = (7, Part::from(&blocks.counts));
    let bindings = [(6, state.into()), of_counts.clone(), (18, (&blocks.bins).into())];
    batch.run(kernel("count_block"), blocks.tasks(&bindings, |params| params));
    let scans = scans.into_iter().map(|params| Task::new(params, std::slice::from_ref(&of_counts), 1));
    batch.run(kernel("scan"), scans.collect());
    Ok(blocks)
}

/// Records the writing of what is kept to where the parameters say, in zeros; `within` says which words are bound.
pub(crate) fn write(
    batch: &mut Batch<'_>,
    blocks: &Blocks,
    state: &Buffer,
    part: &Part,
    within: impl Fn(Params) -> Params,
) {
    let counts = (7, (&blocks.counts).into());
    let bindings = [(6, state.into()), counts, (8, part.clone()), (18, (&blocks.bins).into())];
    batch.run(kernel("write_kept"), blocks.tasks(&bindings, within));
}

/// The body of a payload.
pub(crate) struct Body<'p> {
    kept: Keep,
    layout: Layout,
    /// Of bins, in few bits.
    means: &'p [u8],
    /// Values, or codes.
    sent: &'p [u8],
    low: &'p [u8],
    high: &'p [u8],
    /// Ones before each block of `high`, and all.
    ones: Vec<usize>,
}

/// A TopK payload's body, or `None` when it is left to the core: nothing is kept, or positions are not as many as values.
pub(crate) fn of_payload<'p>(payload: &Payload<'p>) -> Result<Option<Body<'p>>, Error> {
    let topk::Body { top, layout, values, positions } = topk::of_payload(payload)?;
    Ok(of_parts(top.into(), layout, [&[], values, positions]))
}

/// The same of one in few bits.
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

/// Values of a payload that are worked on together, because all that belongs to them fits a binding.
struct Stretch {
    values: Range<usize>,
    blocks: Range<usize>,
}

impl Body<'_> {
    /// All values in stretches of at most `most` values and blocks; a block alone has no more than [`PER_GROUP`].
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

    /// Between which positions a stretch's lie, if an encoder wrote them.
    fn positions(&self, stretch: &Stretch) -> Range<usize> {
        let Stretch { values, blocks } = stretch;
        let bits = blocks.start * PER_GROUP..blocks.end * PER_GROUP;
        match self.layout.coding {
            Coding::All => values.clone(),
            Coding::Bitmap => bits,
            // What comes before a one is a one per value, and a zero per step of 2^low_bits.
            Coding::EliasFano => {
                (bits.start - values.start) << self.layout.low_bits..(bits.end - values.end + 1) << self.layout.low_bits
            }
        }
    }
}

/// A stretch on the device.
struct Uploaded {
    params: Params,
    values: Part,
    positions: Buffer,
    range: Range<usize>,
}

/// Records the decoding of a body into `target`. Word 0 of `results` must be 0 afterwards, as it is before: else no
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

/// Uploads a stretch and records the reading of its positions, which stand behind the last of those before.
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
    // Without positions the binding is never read.
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

#[cfg(test)]
mod tests {
    use super::*;
    use lgreco_core::compress::Compressor;
    use lgreco_core::compress::topk::TopK;
    use lgreco_core::gradient::{Dtype, Shape};

    #[test]
    fn payloads_that_words_of_32_bits_cannot_number_are_refused() {
        let len = |keep| {
            let shape = Shape::new(u32::MAX as usize, 1).unwrap();
            TopK { keep, values: Dtype::F32 }.payload_len(shape, Dtype::F32).unwrap()
        };
        // A bitmap, and values up to the last number; and all values, without positions.
        let last = u32::MAX - 4 - (1 << 27);
        assert_eq!(len(last), 4 * u32::MAX as usize);
        assert_eq!(check_reach(len(last)), Ok(()));
        let (what, limit, largest) = ("a TopK payload", "reach of 32-bit word numbers", 4 * u64::from(u32::MAX));
        for keep in [last + 1, 4_209_067_949, u32::MAX] {
            let bytes = len(keep) as u64;
            assert_eq!(check_reach(bytes as usize), Err(Error::TooLarge { what, bytes, limit, largest }));
        }
    }
}
