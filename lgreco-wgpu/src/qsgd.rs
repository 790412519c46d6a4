//! QSGD: launches of `qsgd.wgsl`.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::error::{BufferJobError, of_job};
use crate::gpu::PER_GROUP;
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::packing::packs;
use crate::params::params;
use crate::sums::{self, RECORD, Segment};
use crate::tensor::{Piece, Row, Tensor};
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::wire::HEADER_LEN;
use lgreco::rng::Stream;
use std::ops::Range;
use wgpu::Buffer;

params! {
    /// The struct `Params` in `qsgd.wgsl`, with the same layout.
    offset, dtype, first, count, bucket, first_bucket, first_grid, buckets, sign_magnitude, min_max, nearest,
    widths, bits, log_levels, inverse_levels, step, layer, rank, seed_low, seed_high, record,
    result,
}

/// Number of consecutive elements that an invocation processes.
const PER_INVOCATION: usize = 32;
/// Bytes of a bucket's entry in `extremes`.
const EXTREMES: u64 = 12;
/// Bytes of a bucket's entry in `grids`.
const GRID: u64 = 28;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::Qsgd, entry }
}

/// A range of whole buckets, so few that their grids fit a binding.
struct BucketRange {
    elements: Range<usize>,
    first_bucket: usize,
    buckets: usize,
}

fn bucket_ranges(batch: &Batch<'_>, elements: usize, bucket: u32) -> Vec<BucketRange> {
    let bucket = bucket as usize;
    // Each range begins at a whole word of codes.
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

/// Returns parameters in which only the fields that depend on the setting are set.
pub(crate) fn of_setting(qsgd: Qsgd) -> Params {
    let log_levels = qsgd.log_levels();
    Params {
        bucket: qsgd.bucket,
        sign_magnitude: qsgd.sign_magnitude() as u32,
        min_max: (qsgd.scale == Scale::MinMax) as u32,
        nearest: (qsgd.rounding == Rounding::Nearest) as u32,
        bits: qsgd.bits as u32,
        log_levels,
        inverse_levels: (1.0 / ((1u32 << log_levels) - 1) as f32).to_bits(),
        ..Params::default()
    }
}

/// A range of a tensor's buckets. The kernels find the grids of several such ranges together.
#[derive(Clone, Copy)]
struct Grids<'t> {
    tensor: &'t Tensor,
    qsgd: Qsgd,
    range: &'t BucketRange,
    /// Index of the grid of the first bucket.
    first: usize,
    /// Index of a result word. If the largest magnitude is not finite, a kernel raises this word to at least this
    /// magnitude.
    status: usize,
}

impl Grids<'_> {
    /// Returns the pieces that contain the buckets, with the common parameters of all kernels.
    fn pieces(&self, batch: &Batch<'_>) -> impl Iterator<Item = (Piece, Params)> {
        let pieces = self.tensor.pieces(batch, self.range.elements.clone());
        pieces.into_iter().map(move |piece| {
            let params = Params {
                offset: piece.skip,
                dtype: self.tensor.dtype as u32,
                first: piece.first as u32,
                count: piece.count as u32,
                first_bucket: (self.range.first_bucket as u32).wrapping_sub(self.first as u32),
                first_grid: self.first as u32,
                buckets: self.range.buckets as u32,
                result: self.status as u32,
                ..of_setting(self.qsgd)
            };
            (piece, params)
        })
    }
}

/// Records the search for the grids of all buckets.
fn grids(batch: &mut Batch<'_>, of: &[Grids<'_>], results: &Buffer) -> Result<Buffer, Error> {
    let buckets = of.iter().map(|of| of.first + of.range.buckets).max().unwrap_or(0);
    let extremes = batch.scratch(Scratch::Extremes, EXTREMES * buckets as u64)?;
    let grids = batch.scratch(Scratch::Grids, GRID * buckets as u64)?;
    batch.clear(&extremes, EXTREMES * buckets as u64);
    let (mut found, mut made) = (Vec::new(), Vec::new());
    for of in of {
        for (piece, params) in of.pieces(batch) {
            let bindings = [(1, piece.part.clone()), (2, Part::from(&extremes))];
            found.push(Task::new(params, &bindings, piece.groups()));
            if piece.first == of.range.elements.start {
                let bindings = [(2, Part::from(&extremes)), (3, Part::from(&grids)), (6, Part::from(results))];
                made.push(Task::new(params, &bindings, of.range.buckets.div_ceil(64)));
            }
        }
    }
    batch.run(kernel("extreme_values"), found);
    batch.run(kernel("make_grids"), made);
    Ok(grids)
}

/// Number of result words of [`measure`], in three records: the largest magnitude, the widths with a sign, and the
/// widths without a sign.
pub(crate) const RESULT_WORDS: usize = 3 * RECORD;

/// Widths to measure for a tensor: either only widths whose codes have a sign, or only widths whose codes have none.
struct Kind<'a> {
    row: &'a Row<'a, (Qsgd, &'a [u8])>,
    qsgd: Qsgd,
    /// Bit `b - 1` says whether width `b` is measured.
    widths: u32,
    ranges: Vec<BucketRange>,
    /// Number of the record of `results` that receives the sums.
    record: usize,
}

impl Kind<'_> {
    /// Returns the grids of one range, numbered from 0.
    fn grids<'k>(&'k self, range: &'k BucketRange) -> Grids<'k> {
        Grids { tensor: self.row.tensor, qsgd: self.qsgd, range, first: 0, status: self.row.result }
    }
}

fn kinds<'a>(batch: &Batch<'_>, row: &'a Row<'a, (Qsgd, &'a [u8])>) -> impl Iterator<Item = Kind<'a>> {
    let (base, bits) = row.sought;
    [true, false].into_iter().zip(row.result / RECORD + 1..).filter_map(move |(kind, record)| {
        let of_kind = |&&bits: &&u8| Qsgd { bits, ..base }.sign_magnitude() == kind;
        let &first = bits.iter().find(of_kind)?;
        let widths = bits.iter().filter(of_kind).fold(0, |mask, &bits| mask | 1u32 << (bits - 1));
        let ranges = bucket_ranges(batch, row.tensor.elements, base.bucket);
        Some(Kind { row, qsgd: Qsgd { bits: first, ..base }, widths, ranges, record })
    })
}

/// Records the commands that measure the widths of each row. The results of each row begin at a multiple of [`RECORD`].
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    rows: &[Row<'_, (Qsgd, &[u8])>],
    results: &Buffer,
) -> Result<(), BufferJobError> {
    let kinds: Vec<Kind<'_>> = rows.iter().flat_map(|row| kinds(batch, row)).collect();
    let Some(first) = kinds.first() else { return Ok(()) };
    let left = |kind: &Kind<'_>| {
        let pieces = kind.ranges.iter().flat_map(|range| kind.grids(range).pieces(batch).collect::<Vec<_>>());
        pieces.map(|(piece, _)| sums::left_of(piece.groups())).sum::<usize>()
    };
    let of_kinds = Segment::in_turn(kinds.iter().map(|kind| (left(kind), kind.record)));
    let totals = sums::totals(batch, &of_kinds).map_err(of_job(first.row.job))?;
    let ranges = kinds.iter().flat_map(|kind| kind.ranges.iter().map(move |range| (kind, range)));
    let ranges: Vec<(&Kind<'_>, &BucketRange)> = ranges.collect();
    let window = batch.gpu.window;
    let fits = |ranges: &[(&Kind<'_>, &BucketRange)]| {
        GRID * ranges.iter().map(|(_, range)| range.buckets as u64).sum::<u64>() <= window
    };
    let mut target = 0;
    for pack in packs(&ranges, fits) {
        record(batch, pack, (&totals, &mut target), results).map_err(of_job(pack[0].0.row.job))?;
    }
    sums::finish(batch, totals, &of_kinds, results).map_err(of_job(first.row.job))
}

/// Records the commands that measure buckets whose grids are in one buffer. The sums go to `totals`, from record
/// `target` on, as in [`sums::run`].
fn record(
    batch: &mut Batch<'_>,
    ranges: &[(&Kind<'_>, &BucketRange)],
    (totals, target): (&Buffer, &mut usize),
    results: &Buffer,
) -> Result<(), Error> {
    let mut first = 0;
    let placed = ranges.iter().map(|&(kind, range)| {
        let placed = Grids { first, ..kind.grids(range) };
        first += range.buckets;
        placed
    });
    let placed: Vec<Grids<'_>> = placed.collect();
    let grids = grids(batch, &placed, results)?;
    let tasks = placed.iter().zip(ranges).flat_map(|(placed, (kind, _))| {
        let task = |(piece, params): (Piece, Params)| {
            let bindings = [(1, piece.part.clone()), (3, (&grids).into())];
            Task::new(Params { widths: kind.widths, ..params }, &bindings, piece.groups())
        };
        placed.pieces(batch).map(task).collect::<Vec<Task<Params>>>()
    });
    let tasks: Vec<Task<Params>> = tasks.collect();
    sums::run(batch, kernel("row"), &tasks, |params, record| params.record = record, (totals, target))
}

/// Returns the squared errors at the widths `bits`, from the words that [`measure`] wrote.
pub(crate) fn errors<'a>(base: Qsgd, bits: &'a [u8], words: &'a [u32]) -> impl Iterator<Item = f64> + 'a {
    bits.iter().map(move |&bits| {
        let record = if (Qsgd { bits, ..base }).sign_magnitude() { RECORD } else { 2 * RECORD };
        sums::value(words[record + bits as usize - 1], words[record + RECORD / 2 + bits as usize - 1])
    })
}

/// Records the encoding of everything except the header, and returns the payload's words, header included.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    qsgd: Qsgd,
    stream: Stream,
    payload_len: usize,
    results: &Buffer,
) -> Result<Tensor, Error> {
    let payload = Tensor::room(batch, payload_len.div_ceil(4))?;
    let codes_at = HEADER_LEN + tensor.elements.div_ceil(qsgd.bucket as usize) * qsgd.scale_bytes();
    for range in bucket_ranges(batch, tensor.elements, qsgd.bucket) {
        let of = Grids { tensor, qsgd, range: &range, first: 0, status: 0 };
        let grids = grids(batch, &[of], results)?;
        let scales = (range.buckets * qsgd.scale_bytes()) as u64;
        let words = batch.scratch(Scratch::Words, scales)?;
        let with_stream = |params: Params| Params {
            step: stream.step,
            layer: stream.layer,
            rank: stream.rank,
            seed_low: stream.seed as u32,
            seed_high: (stream.seed >> 32) as u32,
            ..params
        };
        let pieces: Vec<(Piece, Params)> = of.pieces(batch).collect();
        let bindings = [(3, (&grids).into()), (4, (&words).into())];
        batch.run(kernel("scales"), vec![Task::new(pieces[0].1, &bindings, range.buckets.div_ceil(64))]);
        let at = HEADER_LEN + range.first_bucket * qsgd.scale_bytes();
        payload.take(batch, &words, at / 4, scales as usize / 4);
        for (piece, params) in &pieces {
            let whole = piece.count.next_multiple_of(PER_INVOCATION) / 8 * qsgd.bits as usize;
            let words = batch.scratch(Scratch::Words, whole as u64)?;
            let bindings = [(1, piece.part.clone()), (3, (&grids).into()), (4, (&words).into())];
            batch.run(kernel("encode"), vec![Task::new(with_stream(*params), &bindings, piece.groups())]);
            let codes = (piece.count * qsgd.bits as usize).div_ceil(8);
            let at = codes_at + piece.first / 8 * qsgd.bits as usize;
            payload.take(batch, &words, at / 4, codes.div_ceil(4));
        }
    }
    Ok(payload)
}

/// Records the decoding of a body into `target`. The core must have checked the body.
pub(crate) fn decode(batch: &mut Batch<'_>, qsgd: Qsgd, body: &[u8], target: &Tensor) -> Result<(), Error> {
    let elements = target.elements;
    let (scales, codes) = body.split_at(elements.div_ceil(qsgd.bucket as usize) * qsgd.scale_bytes());
    for range in bucket_ranges(batch, elements, qsgd.bucket) {
        let [start, end] =
            [range.first_bucket, range.first_bucket + range.buckets].map(|bucket| bucket * qsgd.scale_bytes());
        let extremes = batch.upload(&scales[start..end])?;
        for first in range.elements.clone().step_by(batch.gpu.piece_len()) {
            let count = batch.gpu.piece_len().min(range.elements.end - first);
            let of_piece = first / 8 * qsgd.bits as usize..((first + count) * qsgd.bits as usize).div_ceil(8);
            let words = batch.upload(&codes[of_piece])?;
            let output = batch.scratch(Scratch::Output, 4 * count as u64)?;
            let bindings = [(2, extremes.clone()), (4, words.clone()), (5, (&output).into())];
            let params = Params {
                first: first as u32,
                count: count as u32,
                first_bucket: range.first_bucket as u32,
                ..of_setting(qsgd)
            };
            batch.run(kernel("decode"), vec![Task::new(params, &bindings, count.div_ceil(PER_GROUP))]);
            target.take(batch, &output, first, count);
        }
    }
    Ok(())
}
