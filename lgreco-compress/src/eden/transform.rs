//! The Walsh–Hadamard transform of a block, in place.
//!
//! Additions and subtractions have one fixed order per length, so every instruction set gives the same bits.

use super::BLOCK;

/// Number of values in a row. A row is transformed first, because its transform shuffles values inside vector
/// registers.
const INNER: usize = 256;
/// Number of rows in a block.
const ROWS: usize = BLOCK / INNER;

/// Replaces `values` by `H · values`; their number is a power of two, at most [`BLOCK`]. `H` has the entries
/// `(-1)^popcount(i & j)`. Transforming twice multiplies the values by their number.
#[inline(always)]
pub(super) fn transform(values: &mut [f32]) {
    let (rows, rest) = values.as_chunks_mut::<INNER>();
    for row in rows.iter_mut() {
        inner(row); // a loop, because a function passed as a value would not be inlined
    }
    match <&mut [[f32; INNER]; ROWS]>::try_from(rows) {
        Ok(rows) => across(rows),
        Err(_) if rest.is_empty() => levels(values, INNER),
        Err(_) => levels(values, 1),
    }
}

/// Runs the levels of the transform from `stride` on.
#[inline(always)]
fn levels(values: &mut [f32], mut stride: usize) {
    while stride < values.len() {
        for pair in values.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        stride *= 2;
    }
}

/// Transforms a row.
#[inline(always)]
fn inner(row: &mut [f32; INNER]) {
    let mut other = [0.0; INNER];
    // Each stage computes one level and rotates the index by one bit, so eight stages restore the order.
    for _ in 0..INNER.ilog2() / 2 {
        stage(row, &mut other);
        stage(&other, row);
    }
}

/// Writes sums and differences of the two halves alternately.
#[inline(always)]
fn stage(from: &[f32; INNER], to: &mut [f32; INNER]) {
    let (low, high) = from.split_at(INNER / 2);
    for ((pair, a), b) in to.as_chunks_mut::<2>().0.iter_mut().zip(low).zip(high) {
        *pair = [a + b, a - b];
    }
}

/// Runs the levels of the transform that combine different rows of a block.
#[inline(always)]
fn across(rows: &mut [[f32; INNER]; ROWS]) {
    for i in 0..INNER {
        let mut column: [f32; ROWS] = core::array::from_fn(|row| rows[row][i]);
        let mut stride = 1;
        while stride < ROWS {
            for row in 0..ROWS {
                if row & stride == 0 {
                    let (a, b) = (column[row], column[row + stride]);
                    (column[row], column[row + stride]) = (a + b, a - b);
                }
            }
            stride *= 2;
        }
        for (row, value) in rows.iter_mut().zip(column) {
            row[i] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;
    use crate::simd::dispatch_with;
    use std::vec::Vec;

    fn lengths() -> impl Iterator<Item = usize> {
        (0..=BLOCK.ilog2()).map(|log| 1 << log)
    }

    /// Random integers, so that sums are exact.
    fn numbers(len: usize) -> Vec<f32> {
        (0..len as u64).map(|i| (Stream::default().word(i) % 2001) as f32 - 1000.0).collect()
    }

    #[test]
    fn every_sum_is_that_of_the_definition() {
        for len in lengths() {
            let values = numbers(len);
            let mut transformed = values.clone();
            dispatch_with!(&mut transformed[..], transform);
            for i in (0..len).step_by(len.div_ceil(300) | 1) {
                let term = |j: usize| if (i & j).count_ones().is_multiple_of(2) { values[j] } else { -values[j] };
                assert_eq!(transformed[i], (0..len).map(term).sum::<f32>(), "{i} of {len}");
            }
        }
    }

    #[test]
    fn it_is_its_own_inverse() {
        for len in lengths() {
            let values = numbers(len);
            let mut twice = values.clone();
            dispatch_with!(&mut twice[..], transform);
            assert!(len == 1 || twice != values);
            dispatch_with!(&mut twice[..], transform);
            assert!(values.iter().zip(&twice).all(|(x, y)| x * len as f32 == *y), "{len} values");
        }
    }

    #[test]
    fn the_baseline_instructions_give_the_same_bits() {
        for len in lengths() {
            let values: Vec<f32> = numbers(len).iter().map(|x| x / 7.0).collect();
            let (mut chosen, mut baseline) = (values.clone(), values);
            dispatch_with!(&mut chosen[..], transform);
            transform(&mut baseline);
            assert!(chosen.iter().zip(&baseline).all(|(a, b)| a.to_bits() == b.to_bits()), "{len} values");
        }
    }
}
