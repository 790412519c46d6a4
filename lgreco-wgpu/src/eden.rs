//! EDEN: launches of `eden.wgsl`, and of `eden_payloads.wgsl` for payloads.
//!
//! A workgroup processes one block. Workgroup memory can hold half of a block of 4096 values. So the values are in
//! registers, and invocations exchange values in two halves. Payloads have the core's bits, because the kernels do all
//! f32 arithmetic in integers. The kernels also do the f64 arithmetic of norms and scales in integers.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::params::params;
use crate::tensor::{Piece, Tensor};
use lgreco::compress::eden::{BLOCK, Eden, LEVELS, Scale, seed};
use lgreco::compress::wire::HEADER_LEN;
use lgreco::rng::Stream;
use wgpu::Buffer;

params! {
    /// The struct `Params` in `eden.wgsl`, with the same layout.
    offset, dtype, first, count, least_squares, widths, bits, step, layer, rank, seed_low, seed_high, record, result,
}

impl Params {
    /// Returns these parameters, completed for a piece of a tensor.
    pub(crate) fn of(self, tensor: &Tensor, piece: &Piece) -> Params {
        let (dtype, first, count) = (tensor.dtype as u32, piece.first as u32, piece.count as u32);
        Params { offset: piece.skip, dtype, first, count, ..self }
    }
}

pub(crate) const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::Eden, entry }
}

/// Returns a seed's low and high half.
fn halves(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

/// The parameters that depend on the scale and the stream of random words.
pub(crate) fn params(scale: Scale, stream: Stream) -> Params {
    let [seed_low, seed_high] = halves(seed(stream));
    Params { least_squares: (scale == Scale::LeastSquares) as u32, seed_low, seed_high, ..Params::default() }
}

/// Number of EDEN blocks in `elements` values, the first of which must begin a block.
pub(crate) fn blocks(elements: usize) -> usize {
    elements / BLOCK + (elements % BLOCK).count_ones() as usize
}

/// Uploads the levels of all widths, one grid after another, in 256 words. The thresholds halfway between adjacent
/// levels follow.
pub(crate) fn grids(batch: &mut Batch<'_>) -> Result<Part, Error> {
    let mut levels = LEVELS.concat();
    levels.push(f32::INFINITY);
    let halfway = |pair: &[f32]| ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
    let thresholds: Vec<f32> = levels.windows(2).map(halfway).collect();
    levels.extend(thresholds);
    batch.upload(bytemuck::cast_slice(&levels))
}

/// Returns the error of a gradient, if any. `finite` reports the first value that is not finite. `words[1]` is 0 if all
/// blocks decode to finite values. Otherwise `words[1]` is `!position`, where `position` is the first value of the
/// first block that does not. Of two errors, the one at the earlier position is returned, because the core checks one
/// block after another.
pub(crate) fn check(finite: Result<(), Error>, words: &[u32]) -> Result<(), Error> {
    let overflow = words[1];
    let is_first = match &finite {
        Ok(()) => overflow != 0,
        Err(Error::Core(lgreco::Error::NonFinite { index, .. })) => *index as u64 > u64::from(!overflow),
        Err(_) => false,
    };
    if is_first { Err(lgreco::Error::Overflow { what: "a decoded value" }.into()) } else { finite }
}

/// Records the encoding of everything except the header, and returns the payload's words, header included. [`check`]
/// reads the first words of `results`.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    eden: Eden,
    stream: Stream,
    payload_len: usize,
    results: &Buffer,
) -> Result<Tensor, Error> {
    let payload = Tensor::room(batch, payload_len.div_ceil(4))?;
    let (grids, seed) = (grids(batch)?, batch.upload(&seed(stream).to_le_bytes())?);
    let bits = usize::from(eden.bits);
    let base = Params { bits: bits as u32, ..params(eden.scale, stream) };
    let scales_at = HEADER_LEN / 4 + 2;
    payload.take(batch, &seed.buffer, HEADER_LEN / 4, 2);
    for piece in tensor.all(batch) {
        let (blocks, words_len) = (blocks(piece.count), (piece.count * bits).div_ceil(32));
        let scales = batch.scratch(Scratch::Scales, 4 * blocks as u64)?;
        let words = batch.scratch(Scratch::Words, 4 * words_len as u64)?;
        batch.clear(&scales, 4 * blocks as u64);
        batch.clear(&words, 4 * words_len as u64);
        let of_payload = [(3, (&scales).into()), (4, (&words).into()), (6, results.into())];
        let bindings = [&[(1, piece.part.clone()), (2, grids.clone())], &of_payload[..]].concat();
        batch.run(kernel("encode_rotated"), vec![Task::new(base.of(tensor, &piece), &bindings, blocks)]);
        payload.take(batch, &scales, scales_at + piece.first / BLOCK, blocks);
        let codes_at = scales_at + self::blocks(tensor.elements);
        payload.take(batch, &words, codes_at + piece.first / 32 * bits, words_len);
    }
    Ok(payload)
}

/// Records the decoding of a body into `target`. The core has checked the body, except scales and values. Word 0 of
/// `results` must be 0 before the call. Word 0 stays 0 unless a scale or a value is invalid.
pub(crate) fn decode(
    batch: &mut Batch<'_>,
    eden: Eden,
    body: &[u8],
    target: &Tensor,
    results: &Buffer,
) -> Result<(), Error> {
    let (bits, grids) = (usize::from(eden.bits), grids(batch)?);
    let (seed, rest) = body.split_first_chunk().ok_or(lgreco::Error::PayloadBody { what: "it has no seed" })?;
    let [seed_low, seed_high] = halves(u64::from_le_bytes(*seed));
    let (scales, codes) = rest.split_at(4 * blocks(target.elements));
    for first in (0..target.elements).step_by(batch.gpu.piece_len()) {
        let count = batch.gpu.piece_len().min(target.elements - first);
        let blocks = blocks(count);
        let scales = batch.upload(&scales[4 * (first / BLOCK)..][..4 * blocks])?;
        let words = batch.upload(&codes[first / 8 * bits..((first + count) * bits).div_ceil(8)])?;
        let output = batch.scratch(Scratch::Output, 4 * count as u64)?;
        let bindings = [(2, grids.clone()), (3, scales), (4, words), (5, (&output).into()), (6, results.into())];
        let (first_value, count_of) = (first as u32, count as u32);
        let params =
            Params { first: first_value, count: count_of, bits: bits as u32, seed_low, seed_high, ..Params::default() };
        batch.run(kernel("decode_rotated"), vec![Task::new(params, &bindings, blocks)]);
        target.take(batch, &output, first, count);
    }
    Ok(())
}
