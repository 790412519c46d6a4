//! Makes columns orthonormal, including zero and dependent columns.
//!
//! Processes each panel in two passes. A pass subtracts the projection on all earlier panels, then runs modified
//! Gram–Schmidt inside the panel. Two passes are enough: Giraud, Langou, Rozložník, "The loss of orthogonality in the
//! Gram–Schmidt orthogonalization process", 2005. The work by panels follows the block Gram–Schmidt of Barlow and
//! Smoktunowicz, 2013. Exact powers of two first scale the columns to magnitude 1, so that no square leaves the range
//! of f32.

use super::product::{inner_sums, outer_sums};
use super::{LANES, Row, add_scaled, largest, panels, scale, to_unit};
use crate::num::sqrt;
use crate::simd::dispatch_with;

/// A column is treated as dependent if subtracting its projections on the earlier columns leaves at most this fraction
/// of its norm. Such a remainder is rounding error: f32 keeps a relative error of 6e-8 in each subtracted term.
const DEPENDENT: f64 = 1.0 / (1 << 20) as f64;
/// In the second pass, an orthogonal column keeps its norm. A column that loses more than half of its norm was only
/// rounding error.
const UNSTABLE: f64 = 0.5;
/// Number of rows summed in f32 before the sum is added in f64.
const CHUNK: usize = 64;

/// Replaces the columns of `factor` (`len` × `rank`, in panels) by orthonormal ones. The first `i` columns span the
/// same space as before, for every `i`. Dependent and zero columns become exact zeros. Values must be finite.
pub(crate) fn orthonormalise(factor: &mut [Row], len: usize, rank: usize) {
    debug_assert_eq!(factor.len(), panels(rank) * len);
    if len > 0 {
        dispatch_with!((factor, len), orthonormalise_panels);
    }
}

#[inline(always)]
fn orthonormalise_panels((factor, len): (&mut [Row], usize)) {
    for panel in 0..factor.len() / len {
        let (done, rest) = factor.split_at_mut(panel * len);
        let current = &mut rest[..len];
        let mut norms = [0.0; LANES];
        for threshold in [DEPENDENT, UNSTABLE] {
            scale(current, &largest(current).map(to_unit));
            let smallest = squares(current).map(|before| threshold * threshold * before);
            for earlier in done.chunks_exact(len) {
                subtract_projection(current, earlier);
            }
            norms = gram_schmidt(current, &smallest);
        }
        scale(current, &norms.map(|n: f64| if n > 0.0 { (1.0 / sqrt(n)) as f32 } else { 0.0 }));
    }
}

/// Squared norm of each column of a panel, in f64.
pub(crate) fn squared_norms(panel: &[Row]) -> [f64; LANES] {
    #[inline(always)]
    fn sums(panel: &[Row]) -> [f64; LANES] {
        let mut sums = [0.0; LANES];
        for row in panel {
            for l in 0..LANES {
                sums[l] += row[l] as f64 * row[l] as f64;
            }
        }
        sums
    }
    dispatch_with!(panel, sums)
}

#[inline(always)]
fn add_to(sums: &mut [f64; LANES], [a, b, c, d]: [Row; 4]) {
    for l in 0..LANES {
        sums[l] += (a[l] as f64 + b[l] as f64) + (c[l] as f64 + d[l] as f64);
    }
}

/// Squared norm of each lane, summed in f32 in chunks.
#[inline(always)]
fn squares(panel: &[Row]) -> [f64; LANES] {
    let mut sums = [0.0; LANES];
    let square = |sum: Row, x: Row| core::array::from_fn(|l| sum[l] + x[l] * x[l]);
    for chunk in panel.chunks(CHUNK) {
        let [mut a, mut b, mut c, mut d] = [[0.0; LANES]; 4];
        let (fours, last) = chunk.as_chunks::<4>();
        for x in fours {
            a = square(a, x[0]);
            b = square(b, x[1]);
            c = square(c, x[2]);
            d = square(d, x[3]);
        }
        for &x in last {
            a = square(a, x);
        }
        add_to(&mut sums, [a, b, c, d]);
    }
    sums
}

/// Computes `current -= earlier · (earlierᵀ current)`.
#[inline(always)]
fn subtract_projection(current: &mut [Row], earlier: &[Row]) {
    let mut products = [[0.0f64; LANES]; LANES];
    for (a, x) in earlier.chunks(CHUNK).zip(current.chunks(CHUNK)) {
        for half in 0..2 {
            let sums = outer_sums(&a.as_flattened()[8 * half..], LANES, x);
            for (product, sum) in products[8 * half..].iter_mut().zip(&sums) {
                for l in 0..LANES {
                    product[l] += sum[l] as f64;
                }
            }
        }
    }
    let products = products.map(|row| row.map(|x| x as f32));
    let (blocks, last) = earlier.as_chunks::<8>();
    let (outs, last_out) = current.as_chunks_mut::<8>();
    for (a, out) in blocks.iter().zip(outs) {
        subtract(out, &inner_sums(a.each_ref().map(|row| &row[..]), &products));
    }
    let zeros = [0.0; LANES];
    let a = core::array::from_fn(|b| last.get(b).map_or(&zeros[..], |row| &row[..]));
    subtract(last_out, &inner_sums(a, &products));
}

#[inline(always)]
fn subtract(rows: &mut [Row], sums: &[Row; 8]) {
    for (row, sum) in rows.iter_mut().zip(sums) {
        for l in 0..LANES {
            row[l] -= sum[l];
        }
    }
}

/// Makes the lanes orthogonal, from left to right, and returns their squared norms. A lane with a squared norm of at
/// most `smallest` becomes zero, and its returned norm is 0.
#[inline(always)]
fn gram_schmidt(panel: &mut [Row], smallest: &[f64; LANES]) -> [f64; LANES] {
    let mut norms = [0.0; LANES];
    let mut factors = [0.0; LANES];
    for c in 0..LANES {
        let products = subtract_lane(panel, c.saturating_sub(1), &factors, c);
        if products[c] > smallest[c] {
            norms[c] = products[c];
        }
        for l in 0..LANES {
            let factor = if l > c && norms[c] > 0.0 { products[l] / norms[c] } else { 0.0 };
            factors[l] = factor as f32;
        }
    }
    for row in panel {
        for l in 0..LANES {
            row[l] = if norms[l] > 0.0 { row[l] } else { 0.0 };
        }
    }
    norms
}

/// Subtracts `factors[l]` times lane `done` from every lane `l`. Returns the products of lane `next` with all lanes.
#[inline(always)]
fn subtract_lane(panel: &mut [Row], done: usize, factors: &Row, next: usize) -> [f64; LANES] {
    #[inline(always)]
    fn step(sum: Row, row: &mut Row, done: usize, factors: &Row, next: usize) -> Row {
        let x = row[done];
        *row = core::array::from_fn(|l| row[l] - factors[l] * x);
        add_scaled(sum, row[next], *row)
    }
    let mut sums = [0.0; LANES];
    for chunk in panel.chunks_mut(CHUNK) {
        let [mut a, mut b, mut c, mut d] = [[0.0; LANES]; 4];
        let (fours, last) = chunk.as_chunks_mut::<4>();
        for rows in fours {
            a = step(a, &mut rows[0], done, factors, next);
            b = step(b, &mut rows[1], done, factors, next);
            c = step(c, &mut rows[2], done, factors, next);
            d = step(d, &mut rows[3], done, factors, next);
        }
        for row in last {
            a = step(a, row, done, factors, next);
        }
        add_to(&mut sums, [a, b, c, d]);
    }
    sums
}
