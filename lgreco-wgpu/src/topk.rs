//! TopK: what `topk.wgsl` is asked to do.

use crate::Error;
use crate::batch::{Batch, Part};
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::sums;
use crate::tensor::{Piece, Tensor};
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::gradient::Dtype;
use wgpu::{Buffer, BufferUsages};

/// `Params` of `topk.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    offset: u32,
    dtype: u32,
    first: u32,
    count: u32,
    sent: u32,
    rounds: u32,
    energies: u32,
    first_keep: u32,
    keeps: u32,
    blocks: u32,
    first_block: u32,
    result: u32,
    elements: u32,
    keep: u32,
    placement: u32,
    low_bits: u32,
    values_word: u32,
    low_word: u32,
    low_bit: u32,
    high_word: u32,
    high_bit: u32,
    high_len: u32,
    window: u32,
    window_len: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: [&'static str; 24] = [
        "offset",
        "dtype",
        "first",
        "count",
        "sent",
        "rounds",
        "energies",
        "first_keep",
        "keeps",
        "blocks",
        "first_block",
        "result",
        "elements",
        "keep",
        "placement",
        "low_bits",
        "values_word",
        "low_word",
        "low_bit",
        "high_word",
        "high_bit",
        "high_len",
        "window",
        "window_len",
    ];
}

/// Words of a bin of level 1.
const WORDS: u64 = 6;
/// Bins of level 1; slots, and bins per slot of levels 2 and 3.
pub(crate) const BINS: u64 = 17792;
pub(crate) const SLOTS: u64 = 224;
pub(crate) const MIDDLES: u64 = 512;
pub(crate) const LASTS: u64 = 256;

/// Words of a `Keep`.
const KEEP: usize = 8;
/// Words of ones that a block of the decoder holds.
const ONES: usize = 512;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::TopK, entry }
}

/// Whether sending values of type `from` as `to` changes any.
fn rounds(from: Dtype, to: Dtype) -> bool {
    to != Dtype::F32 && from != to
}

/// The magnitude from which on values become infinite when sent as `dtype`.
pub(crate) fn overflow(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => crate::magnitude::INFINITY,
        Dtype::F16 => 0x477f_f000,
        Dtype::Bf16 => 0x7f7f_8000,
    }
}

/// The tables of selection.
struct Tables {
    bins: Buffer,
    slots: Buffer,
    fine: Buffer,
    prefix: Buffer,
    state: Buffer,
}

impl Tables {
    /// Cleared, with `keeps` (ascending) to look for.
    fn new(batch: &mut Batch<'_>, keeps: &[u32]) -> Result<Tables, Error> {
        let tables = Tables {
            bins: batch.scratch(Scratch::Bins, 4 * WORDS * BINS)?,
            slots: batch.scratch(Scratch::Slots, 4 * (BINS + SLOTS * MIDDLES))?,
            fine: batch.scratch(Scratch::Fine, 4 * SLOTS * (4 * MIDDLES + LASTS))?,
            prefix: batch.scratch(Scratch::Prefix, 4 * 5 * BINS)?,
            state: batch.scratch(Scratch::State, (4 * KEEP * keeps.len()) as u64)?,
        };
        let mut state = vec![0u32; KEEP * keeps.len()];
        state.iter_mut().step_by(KEEP).zip(keeps).for_each(|(slot, &keep)| *slot = keep);
        let state = batch.upload(bytemuck::cast_slice(&state))?;
        batch.copy(&state.buffer, 0, &tables.state, 0, (4 * KEEP * keeps.len()) as u64);
        batch.clear(&tables.bins, 4 * WORDS * BINS);
        Ok(tables)
    }
}

/// Finds where the k largest end for all `keeps`, ascending; with `energies`, the squared errors too.
fn select(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    sent: Dtype,
    keeps: &[u32],
    energies: bool,
    results: &Buffer,
    result: usize,
) -> Result<Tables, Error> {
    let tables = Tables::new(batch, keeps)?;
    let base = Params {
        dtype: tensor.dtype as u32,
        sent: sent as u32,
        rounds: rounds(tensor.dtype, sent) as u32,
        energies: energies as u32,
        result: result as u32,
        ..Params::default()
    };
    let of = |piece: &Piece| Params { offset: piece.skip, count: piece.count as u32, ..base };
    let Tables { bins, slots, fine, prefix, state } = &tables;
    let pieces = tensor.all(batch);
    for piece in &pieces {
        let bindings = [(1, piece.part.clone()), (2, bins.into()), (9, results.into())];
        batch.dispatch(kernel("histogram_1"), of(piece), &bindings, piece.groups());
    }
    batch.dispatch(kernel("prefixes"), base, &[(2, bins.into()), (5, prefix.into())], 1);
    for (group, keeps) in keeps.chunks(SLOTS as usize).enumerate() {
        let first_keep = group * SLOTS as usize;
        let base = Params {
            first_keep: first_keep as u32,
            keeps: keeps.len() as u32,
            result: (result + 1 + 2 * first_keep) as u32,
            ..base
        };
        let of = |piece: &Piece| Params { offset: piece.skip, count: piece.count as u32, ..base };
        batch.clear(slots, slots.size());
        batch.clear(fine, fine.size());
        batch.dispatch(kernel("choose_1"), base, &[(3, slots.into()), (5, prefix.into()), (6, state.into())], 1);
        for (histogram, choose) in [("histogram_2", "choose_2"), ("histogram_3", "choose_3")] {
            for piece in &pieces {
                let bindings = [(1, piece.part.clone()), (3, slots.into()), (4, fine.into())];
                batch.dispatch(kernel(histogram), of(piece), &bindings, piece.groups());
            }
            let mut bindings = vec![(4, fine.into()), (6, state.into())];
            if choose == "choose_2" {
                bindings.push((3, slots.into()));
            }
            batch.dispatch(kernel(choose), base, &bindings, 1);
        }
        if energies {
            let bindings = [(4, fine.into()), (5, prefix.into()), (6, state.into()), (9, results.into())];
            batch.dispatch(kernel("total"), base, &bindings, 1);
        }
    }
    Ok(tables)
}

/// Words of results that [`measure`] writes: the largest magnitude, then mantissa and exponent per candidate.
pub(crate) const fn result_words(keeps: usize) -> usize {
    1 + 2 * keeps
}

/// The candidates' places in ascending order of k.
fn order(keeps: &[u32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keeps.len()).collect();
    order.sort_by_key(|&i| keeps[i]);
    order
}

/// Records the measurement of `keeps`, all from 1 to the number of elements.
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    sent: Dtype,
    keeps: &[u32],
    results: &Buffer,
    result: usize,
) -> Result<(), Error> {
    let ascending: Vec<u32> = order(keeps).into_iter().map(|i| keeps[i]).collect();
    select(batch, tensor, sent, &ascending, true, results, result).map(|_| ())
}

/// Reads the squared errors from the words that [`measure`] wrote.
pub(crate) fn errors(keeps: &[u32], words: &[u32], row: &mut [f64]) {
    for (slot, pair) in order(keeps).into_iter().zip(words[1..].as_chunks::<2>().0) {
        row[slot] = sums::value(pair[0], pair[1]);
    }
}

/// How positions are written; see the core's `topk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    code: u32,
    low_bits: u32,
    low_bytes: usize,
    high_bytes: usize,
}

impl Layout {
    fn new(elements: usize, keep: usize) -> Layout {
        if keep == elements {
            return Layout { code: 0, low_bits: 0, low_bytes: 0, high_bytes: 0 };
        }
        let fano = |low_bits: u32| {
            let low_bytes = (keep * low_bits as usize).div_ceil(8);
            Layout { code: 2, low_bits, low_bytes, high_bytes: (keep + ((elements - 1) >> low_bits)).div_ceil(8) }
        };
        let bytes = |layout: &Layout| layout.low_bytes + layout.high_bytes;
        let bitmap = Layout { code: 1, low_bits: 0, low_bytes: 0, high_bytes: elements.div_ceil(8) };
        let fano = (0..32).map(fano).min_by_key(bytes).filter(|fano| bytes(fano) < bytes(&bitmap));
        fano.unwrap_or(bitmap)
    }
}

/// The parameters that say where the parts of a payload lie.
fn places(top: TopK, elements: usize) -> Params {
    let keep = top.keep as usize;
    let layout = Layout::new(elements, keep);
    let low = HEADER_LEN + keep * top.values.bytes();
    let high = low + layout.low_bytes;
    Params {
        sent: top.values as u32,
        elements: elements as u32,
        keep: top.keep,
        placement: layout.code,
        low_bits: layout.low_bits,
        values_word: (HEADER_LEN / 4) as u32,
        low_word: (low / 4) as u32,
        low_bit: (low % 4 * 8) as u32,
        high_word: (high / 4) as u32,
        high_bit: (high % 4 * 8) as u32,
        high_len: (8 * layout.high_bytes) as u32,
        ..Params::default()
    }
}

/// The header's `variant`.
pub(crate) fn variant(top: TopK, elements: usize) -> u8 {
    top.values as u8 | (Layout::new(elements, top.keep as usize).code as u8) << 2
}

/// Records the encoding of all but the header; returns the payload's buffer, header included. Word 0 of `results`
/// becomes the largest magnitude, word 1 the bits of the k-th largest. `top.keep` is at least 1.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    top: TopK,
    payload_len: usize,
    results: &Buffer,
) -> Result<Buffer, Error> {
    let tables = select(batch, tensor, top.values, &[top.keep], false, results, 0)?;
    let state = &tables.state;
    // The magnitude in `Keep`.
    batch.copy(state, 4 * 5, results, 4, 4);
    let pieces = tensor.all(batch);
    let total_blocks: usize = pieces.iter().map(Piece::groups).sum();
    let blocks = batch.scratch(Scratch::Blocks, 8 * total_blocks as u64)?;
    let size = (payload_len as u64).next_multiple_of(4);
    let payload = batch.buffer(size, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST)?;
    batch.clear(&payload, size);
    let base = Params { dtype: tensor.dtype as u32, ..places(top, tensor.elements) };
    let mut parts = Vec::new();
    let mut first_block = 0;
    for piece in pieces {
        let params = Params {
            offset: piece.skip,
            first: piece.first as u32,
            count: piece.count as u32,
            first_block: first_block as u32,
            ..base
        };
        first_block += piece.groups();
        let bindings = [(1, piece.part.clone()), (6, state.into()), (7, (&blocks).into())];
        batch.dispatch(kernel("count_block"), params, &bindings, piece.groups());
        parts.push((params, piece));
    }
    scan(batch, &blocks, total_blocks, results, 2);
    let window = batch.gpu.largest_binding() / 256 * 256;
    for at in (0..size).step_by(window as usize) {
        let part = Part { buffer: payload.clone(), offset: at, size: window.min(size - at) };
        for (params, piece) in &parts {
            let params = Params { window: (at / 4) as u32, window_len: (part.size / 4) as u32, ..*params };
            let bindings = [(1, piece.part.clone()), (6, state.into()), (7, (&blocks).into()), (8, part.clone())];
            batch.dispatch(kernel("write_kept"), params, &bindings, piece.groups());
        }
    }
    Ok(payload)
}

fn scan(batch: &mut Batch<'_>, blocks: &Buffer, count: usize, results: &Buffer, result: u32) {
    let params = Params { blocks: count as u32, result, ..Params::default() };
    batch.dispatch(kernel("scan"), params, &[(7, blocks.into()), (9, results.into())], 1);
}

/// Records the decoding of `payload`, whose header has been checked, into `target`. Returns what
/// word 1 of `results` must hold afterwards, and word 0 must be 0 (both are before): else no encoder wrote the payload.
pub(crate) fn decode(
    batch: &mut Batch<'_>,
    top: TopK,
    payload: &[u8],
    target: &Tensor,
    results: &Buffer,
) -> Result<u32, Error> {
    let elements = target.elements;
    let largest = batch.gpu.largest_binding();
    if payload.len() as u64 > largest {
        let limit = "max_storage_buffer_binding_size";
        return Err(Error::TooLarge { what: "a TopK payload", bytes: payload.len() as u64, limit, largest });
    }
    let base = places(top, elements);
    let payload = batch.upload(payload)?;
    let positions = batch.scratch(Scratch::Positions, 4 * u64::from(top.keep))?;
    let groups = batch.gpu.limits.max_compute_workgroups_per_dimension as usize;
    if base.placement != 0 {
        let total = (base.high_len as usize).div_ceil(32 * ONES);
        let blocks = batch.scratch(Scratch::Blocks, 8 * total as u64)?;
        let each = |batch: &mut Batch<'_>, entry, bindings: &[(u32, Part)]| {
            for first in (0..total).step_by(groups) {
                let params = Params { first_block: first as u32, ..base };
                batch.dispatch(kernel(entry), params, bindings, groups.min(total - first));
            }
        };
        each(batch, "count_ones", &[(7, (&blocks).into()), (8, payload.clone())]);
        scan(batch, &blocks, total, results, 1);
        let bindings = [(7, (&blocks).into()), (8, payload.clone()), (9, results.into()), (10, (&positions).into())];
        each(batch, "read_positions", &bindings);
    }
    let window = batch.gpu.piece_len().min(batch.gpu.largest_binding() as usize / 4);
    let total = (top.keep as usize).div_ceil(64);
    for start in (0..elements).step_by(window) {
        let len = window.min(elements - start);
        let decoded = batch.scratch(Scratch::Output, 4 * len as u64)?;
        batch.clear(&decoded, 4 * len as u64);
        for first in (0..total).step_by(groups) {
            let params = Params { first_block: first as u32, window: start as u32, window_len: len as u32, ..base };
            let bindings =
                [(8, payload.clone()), (9, results.into()), (10, (&positions).into()), (11, (&decoded).into())];
            batch.dispatch(kernel("scatter"), params, &bindings, groups.min(total - first));
        }
        target.take(batch, &decoded, start, len);
    }
    Ok(if base.placement == 0 { 0 } else { top.keep })
}

/// The setting of a TopK payload, or `None` when the core's decoder has to say what is wrong with it.
pub(crate) fn of_payload(payload: &lgreco_core::compress::wire::Payload<'_>) -> Option<TopK> {
    let header = payload.header;
    let (keep, elements) = (header.parameter, header.shape.elements());
    let values = [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|&d| d as u8 == header.variant & 3)?;
    let top = TopK { keep, values };
    if keep as usize > elements || keep == 0 || header.variant != variant(top, elements) {
        return None;
    }
    let layout = Layout::new(elements, keep as usize);
    let values_len = keep as usize * values.bytes();
    if payload.body.len() != values_len + layout.low_bytes + layout.high_bytes {
        return None;
    }
    let low = &payload.body[values_len..values_len + layout.low_bytes];
    let padding = 8 * layout.low_bytes - keep as usize * layout.low_bits as usize;
    low.last().is_none_or(|&last| u32::from(last) >> (8 - padding) == 0).then_some(top)
}
