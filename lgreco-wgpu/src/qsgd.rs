//! QSGD: what `qsgd.wgsl` is asked to do.

use crate::Error;
use crate::batch::Batch;
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::params::params;
use crate::sums::{self, RECORD};
use crate::tensor::{Piece, Tensor};
use lgreco_core::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::rng::Stream;
use std::ops::Range;
use wgpu::Buffer;

params! {
    /// `Params` of `qsgd.wgsl`.
    offset, dtype, first, count, bucket, first_bucket, buckets, sign_magnitude, min_max, nearest,
    widths, bits, log_levels, inverse_levels, step, layer, rank, seed_low, seed_high, record,
    result,
}

/// Elements that an invocation works on, in a row.
const PER_INVOCATION: usize = 32;
/// Bytes of a bucket's entry in `extremes` and in `grids`.
const EXTREMES: u64 = 12;
const GRID: u64 = 28;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::Qsgd, entry }
}

fn sign_magnitude(qsgd: Qsgd) -> bool {
    qsgd.scale == Scale::MaxNorm && qsgd.bits > 1
}

/// Whole buckets that are worked on together, because their grids fit a binding.
struct BucketRange {
    elements: Range<usize>,
    first_bucket: usize,
    buckets: usize,
}

fn bucket_ranges(batch: &Batch<'_>, elements: usize, bucket: u32) -> Vec<BucketRange> {
    let bucket = bucket as usize;
    // Ranges begin where words of codes do.
    let unit = bucket << (PER_INVOCATION.trailing_zeros() - bucket.trailing_zeros().min(5));
    let most = ((batch.gpu.window / GRID) as usize).min(batch.gpu.most_groups() * 64);
    let len = unit.saturating_mul((most / (unit / bucket)).max(1));
    let starts = (0..elements).step_by(len);
    let range = |start: usize| {
        let end = elements.min(start.saturating_add(len));
        BucketRange { elements: start..end, first_bucket: start / bucket, buckets: (end - start).div_ceil(bucket) }
    };
    starts.map(range).collect()
}

/// The parameters that a setting decides.
pub(crate) fn of_setting(qsgd: Qsgd) -> Params {
    let sign_magnitude = sign_magnitude(qsgd);
    let log_levels = qsgd.bits as u32 - sign_magnitude as u32;
    Params {
        bucket: qsgd.bucket,
        sign_magnitude: sign_magnitude as u32,
        min_max: (qsgd.scale == Scale::MinMax) as u32,
        nearest: (qsgd.rounding == Rounding::Nearest) as u32,
        bits: qsgd.bits as u32,
        log_levels,
        inverse_levels: (1.0 / ((1u32 << log_levels) - 1) as f32).to_bits(),
        ..Params::default()
    }
}

/// The parameters all kernels of a piece share.
fn params(tensor: &Tensor, piece: &Piece, qsgd: Qsgd, range: &BucketRange) -> Params {
    Params {
        offset: piece.skip,
        dtype: tensor.dtype as u32,
        first: piece.first as u32,
        count: piece.count as u32,
        first_bucket: range.first_bucket as u32,
        buckets: range.buckets as u32,
        ..of_setting(qsgd)
    }
}

/// Finds the grids of a range of buckets.
fn grids(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    qsgd: Qsgd,
    range: &BucketRange,
    results: &Buffer,
    status: u32,
) -> Result<Buffer, Error> {
    let extremes = batch.scratch(Scratch::Extremes, EXTREMES * range.buckets as u64)?;
    let grids = batch.scratch(Scratch::Grids, GRID * range.buckets as u64)?;
    batch.clear(&extremes, EXTREMES * range.buckets as u64);
    for piece in tensor.pieces(batch, range.elements.clone()) {
        let params = params(tensor, &piece, qsgd, range);
        let bindings = [(1, piece.part.clone()), (2, (&extremes).into())];
        batch.dispatch(kernel("extreme_values"), params, &bindings, piece.groups());
    }
    let params = Params {
        buckets: range.buckets as u32,
        sign_magnitude: sign_magnitude(qsgd) as u32,
        min_max: (qsgd.scale == Scale::MinMax) as u32,
        result: status,
        ..Params::default()
    };
    let bindings = [(2, (&extremes).into()), (3, (&grids).into()), (6, results.into())];
    batch.dispatch(kernel("make_grids"), params, &bindings, range.buckets.div_ceil(64));
    Ok(grids)
}

/// Words of results that [`measure`] writes: the largest magnitude, then a record for the widths with a sign and one
/// for those without.
pub(crate) const RESULT_WORDS: usize = 3 * RECORD;

/// Records the measurement of `bits`, of which there are some; `result` is a multiple of [`RECORD`].
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    base: Qsgd,
    bits: &[u8],
    results: &Buffer,
    result: usize,
) -> Result<(), Error> {
    for (kind, record) in [(true, result / RECORD + 1), (false, result / RECORD + 2)] {
        let of_kind = |&&bits: &&u8| sign_magnitude(Qsgd { bits, ..base }) == kind;
        let Some(&first) = bits.iter().find(of_kind) else { continue };
        let qsgd = Qsgd { bits: first, ..base };
        let widths = bits.iter().filter(of_kind).fold(0, |mask, &bits| mask | 1u32 << (bits - 1));
        let ranges = bucket_ranges(batch, tensor.elements, base.bucket);
        let pieces = ranges.iter().flat_map(|range| tensor.pieces(batch, range.elements.clone()));
        let left: usize = pieces.map(|piece| sums::left_of(piece.groups())).sum();
        let totals = batch.scratch(Scratch::Totals, sums::bytes(left))?;
        let mut count = 0;
        for range in ranges {
            let grids = grids(batch, tensor, qsgd, &range, results, result as u32)?;
            for piece in tensor.pieces(batch, range.elements.clone()) {
                let output = batch.scratch(Scratch::Output, sums::bytes(piece.groups()))?;
                let params = Params { widths, ..params(tensor, &piece, qsgd, &range) };
                let bindings = [(1, piece.part.clone()), (3, (&grids).into()), (5, (&output).into())];
                batch.dispatch(kernel("row"), params, &bindings, piece.groups());
                count += sums::add(batch, &output, piece.groups(), &totals, count);
            }
        }
        sums::finish(batch, totals, count, results, record)?;
    }
    Ok(())
}

/// The squared errors of `bits` in the words that [`measure`] wrote.
pub(crate) fn errors<'a>(base: Qsgd, bits: &'a [u8], words: &'a [u32]) -> impl Iterator<Item = f64> + 'a {
    bits.iter().map(move |&bits| {
        let record = if sign_magnitude(Qsgd { bits, ..base }) { RECORD } else { 2 * RECORD };
        sums::value(words[record + bits as usize - 1], words[record + RECORD / 2 + bits as usize - 1])
    })
}

/// Bytes of the scales of `buckets` buckets.
pub(crate) fn scales_len(qsgd: Qsgd, buckets: usize) -> usize {
    buckets * if qsgd.scale == Scale::MinMax { 8 } else { 4 }
}

/// Records the encoding of all but the header; returns the payload's words, header included.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    qsgd: Qsgd,
    stream: Stream,
    payload_len: usize,
    results: &Buffer,
) -> Result<Tensor, Error> {
    let payload = Tensor::room(batch, payload_len.div_ceil(4))?;
    let codes_at = HEADER_LEN + scales_len(qsgd, tensor.elements.div_ceil(qsgd.bucket as usize));
    for range in bucket_ranges(batch, tensor.elements, qsgd.bucket) {
        let grids = grids(batch, tensor, qsgd, &range, results, 0)?;
        let scales = scales_len(qsgd, range.buckets) as u64;
        let words = batch.scratch(Scratch::Words, scales)?;
        let params_of = |piece: &Piece| Params {
            step: stream.step,
            layer: stream.layer,
            rank: stream.rank,
            seed_low: stream.seed as u32,
            seed_high: (stream.seed >> 32) as u32,
            ..params(tensor, piece, qsgd, &range)
        };
        let pieces = tensor.pieces(batch, range.elements.clone());
        let bindings = [(3, (&grids).into()), (4, (&words).into())];
        batch.dispatch(kernel("scales"), params_of(&pieces[0]), &bindings, range.buckets.div_ceil(64));
        let at = HEADER_LEN + scales_len(qsgd, range.first_bucket);
        payload.take(batch, &words, at / 4, scales as usize / 4);
        for piece in &pieces {
            let whole = piece.count.next_multiple_of(PER_INVOCATION) / 8 * qsgd.bits as usize;
            let words = batch.scratch(Scratch::Words, whole as u64)?;
            let bindings = [(1, piece.part.clone()), (3, (&grids).into()), (4, (&words).into())];
            batch.dispatch(kernel("encode"), params_of(piece), &bindings, piece.groups());
            let codes = (piece.count * qsgd.bits as usize).div_ceil(8);
            let at = codes_at + piece.first / 8 * qsgd.bits as usize;
            payload.take(batch, &words, at / 4, codes.div_ceil(4));
        }
    }
    Ok(payload)
}

/// Records the decoding of a body that the core has checked into `target`.
pub(crate) fn decode(batch: &mut Batch<'_>, qsgd: Qsgd, body: &[u8], target: &Tensor) -> Result<(), Error> {
    let elements = target.elements;
    let (scales, codes) = body.split_at(scales_len(qsgd, elements.div_ceil(qsgd.bucket as usize)));
    for range in bucket_ranges(batch, elements, qsgd.bucket) {
        let of_range = scales_len(qsgd, range.first_bucket)..scales_len(qsgd, range.first_bucket + range.buckets);
        let extremes = batch.upload(&scales[of_range])?;
        for first in range.elements.clone().step_by(batch.gpu.piece_len()) {
            let count = batch.gpu.piece_len().min(range.elements.end - first);
            let of_piece = first / 8 * qsgd.bits as usize..((first + count) * qsgd.bits as usize).div_ceil(8);
            let words = batch.upload(&codes[of_piece])?;
            let output = batch.scratch(Scratch::Output, 4 * count as u64)?;
            let bindings = [(2, extremes.clone()), (4, words.clone()), (5, (&output).into())];
            let piece = Piece { part: words, skip: 0, first, count };
            batch.dispatch(kernel("decode"), params(target, &piece, qsgd, &range), &bindings, piece.groups());
            target.take(batch, &output, first, count);
        }
    }
    Ok(())
}
