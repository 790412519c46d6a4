//! Decodes PowerSGD's payloads.

use crate::Error;
use crate::batch::{Batch, Task};
use crate::factor::{Factor, SIDE};
use crate::magnitude;
use crate::memory::Scratch;
use crate::powersgd::{Params, check, kernel};
use crate::rectangles::Cuts;
use crate::tensor::Tensor;
use lgreco::compress::powersgd;
use lgreco::compress::wire::Payload;
use lgreco::gradient::Shape;

/// The factors of a payload, scaled by powers of two to magnitudes below 2, and the exponent that restores the scale of
/// the product.
pub(crate) struct Factors {
    p: Vec<f32>,
    q: Vec<f32>,
    rank: usize,
    exponent: i32,
}

/// Returns the factors of a payload. Returns `None` if the core must decode: if the factors exceed the kernels' limits,
/// or if values are near the limits of f32.
pub(crate) fn of_payload(payload: &Payload<'_>) -> Result<Option<Factors>, Error> {
    let powersgd::Factors { rank, p, q } = powersgd::of_payload(payload)?;
    let rank = rank as usize;
    if check(payload.header.shape, rank).is_err() {
        return Ok(None);
    }
    let widened = |values: &[[u8; 4]]| values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect::<Vec<f32>>();
    let (p, q) = (widened(p), widened(q));
    let exponent = |values: &[f32]| {
        let largest = values.iter().fold(0, |a, x| a.max(x.to_bits() & 0x7fff_ffff));
        // `None` for zeros, subnormal numbers, and values that are not finite.
        (0x0080_0000..magnitude::INFINITY).contains(&largest).then_some((largest >> 23) as i32 - 127)
    };
    let (Some(of_p), Some(of_q)) = (exponent(&p), exponent(&q)) else { return Ok(None) };
    let scaled = |values: &[f32], exponent: i32| {
        let power = 2f64.powi(-exponent);
        values.iter().map(|&x| (f64::from(x) * power) as f32).collect()
    };
    let exponent = of_p + of_q;
    let factors = Factors { p: scaled(&p, of_p), q: scaled(&q, of_q), rank, exponent };
    Ok((-126..=100).contains(&exponent).then_some(factors))
}

/// Records the decoding of factors into `target`.
pub(crate) fn decode(batch: &mut Batch<'_>, factors: &Factors, shape: Shape, target: &Tensor) -> Result<(), Error> {
    let p = Factor::upload(batch, &factors.p, shape.rows(), factors.rank)?;
    let q = Factor::upload(batch, &factors.q, shape.cols(), factors.rank)?;
    let most = SIDE * batch.gpu.most_groups();
    let room = batch.gpu.piece_len();
    let windows = |side, most| Cuts { band: side, most }.of(0..side);
    for rows in windows(shape.rows(), (room / shape.cols()).max(1)) {
        for cols in windows(shape.cols(), room) {
            let output = batch.scratch(Scratch::Output, (4 * rows.len() * cols.len()) as u64)?;
            for y in p.cuts(most).of(rows.clone()) {
                for x in q.cuts(most).of(cols.clone()) {
                    let (of_p, of_q) = (p.band_of(y.start), q.band_of(x.start));
                    let params = Params {
                        offset: ((y.start - rows.start) * cols.len() + x.start - cols.start) as u32,
                        row: (y.start - of_p.first) as u32,
                        col: (x.start - of_q.first) as u32,
                        rows: y.len() as u32,
                        cols: x.len() as u32,
                        stride: cols.len() as u32,
                        all_rows: of_p.rows as u32,
                        all_cols: of_q.rows as u32,
                        columns: factors.rank as u32,
                        exponent: (factors.exponent + 127) as u32,
                        ..Params::default()
                    };
                    let bindings = [(2, (&of_p.buffer).into()), (3, (&of_q.buffer).into()), (5, (&output).into())];
                    let groups = [y.len().div_ceil(SIDE), x.len().div_ceil(SIDE), 1];
                    batch.run(kernel("reconstruct"), vec![Task { params, bindings: bindings.to_vec(), groups }]);
                }
            }
            target.take(batch, &output, rows.start * shape.cols() + cols.start, rows.len() * cols.len());
        }
    }
    Ok(())
}
