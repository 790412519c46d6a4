//! Loops over the memory of a residual, a block of elements at a time.

use super::storage::{Block, GROUP, Storage, largest_bits, load, store, widen};
use crate::gradient::Element;
use crate::rng::Stream;

/// An update of the memory `m`, from a gradient `g` and decoded values `d`.
#[derive(Clone, Copy)]
pub(super) enum Update {
    /// `m ← (1 − gain) m + gain (m + g − d)`.
    Residual { gain: f32 },
    /// `m ← (1 − gain) m + gain d`, where `d` is the compression error.
    Keep { gain: f32 },
    /// `m ← d`.
    Replace,
    /// `m ← factor m`.
    Scale { factor: f32 },
}

/// At most a block of `values` from `start` on; empty if `start` is after the end of `values`.
#[inline(always)]
fn part<T>(values: &[T], start: usize) -> &[T] {
    &values[start.min(values.len())..values.len().min(start + GROUP)]
}

/// Writes `m + g` to `offered`, and returns the bits of the largest magnitude of `m + g`.
#[inline(always)]
pub(super) fn offer<T: Element>((storage, words, gradient, offered): (Storage, &[u64], &[T], &mut [f32])) -> u32 {
    let (mut m, mut g) = ([0.0; GROUP], [0.0; GROUP]);
    let n = offered.len();
    let mut largest = 0;
    for (block, offered) in offered.chunks_mut(GROUP).enumerate() {
        load(storage, words, n, block * GROUP, &mut m);
        widen(part(gradient, block * GROUP), &mut g);
        for i in 0..GROUP {
            g[i] += m[i];
        }
        largest = largest.max(largest_bits(&g));
        offered.copy_from_slice(&g[..offered.len()]);
    }
    largest
}

/// Adds `m` to `values`, and returns the bits of the largest magnitude of the sums.
#[inline(always)]
pub(super) fn add((storage, words, values): (Storage, &[u64], &mut [f32])) -> u32 {
    let (mut m, mut sum) = ([0.0; GROUP], [0.0; GROUP]);
    let n = values.len();
    let mut largest = 0;
    for (block, values) in values.chunks_mut(GROUP).enumerate() {
        load(storage, words, n, block * GROUP, &mut m);
        widen(values, &mut sum);
        for i in 0..GROUP {
            sum[i] += m[i];
        }
        largest = largest.max(largest_bits(&sum));
        values.copy_from_slice(&sum[..values.len()]);
    }
    largest
}

/// Computes the memory after an update, and returns the bits of its largest magnitude. With `store`, also writes the
/// new memory.
pub(super) struct Commit<'a, T> {
    pub(super) update: Update,
    pub(super) storage: Storage,
    pub(super) words: &'a mut [u64],
    pub(super) elements: usize,
    pub(super) gradient: &'a [T],
    pub(super) decoded: &'a [f32],
    pub(super) store: Option<Stream>,
}

impl<T: Element> Commit<'_, T> {
    #[inline(always)]
    pub(super) fn run(self) -> u32 {
        let (mut m, mut g, mut d) = ([0.0; GROUP], [0.0; GROUP], [0.0; GROUP]);
        let n = self.elements;
        let mut largest = 0;
        for start in (0..n).step_by(GROUP) {
            load(self.storage, self.words, n, start, &mut m);
            widen(part(self.decoded, start), &mut d);
            match self.update {
                Update::Residual { gain } => {
                    widen(part(self.gradient, start), &mut g);
                    for i in 0..GROUP {
                        m[i] = (1.0 - gain) * m[i] + gain * ((m[i] + g[i]) - d[i]);
                    }
                }
                Update::Keep { gain } => {
                    for i in 0..GROUP {
                        m[i] = (1.0 - gain) * m[i] + gain * d[i];
                    }
                }
                Update::Replace => m = d,
                Update::Scale { factor } => {
                    for x in &mut m {
                        *x *= factor;
                    }
                }
            }
            match &self.store {
                Some(stream) => store(self.storage, self.words, n, start, &m, stream),
                None => largest = largest.max(largest_bits(&m)),
            }
        }
        largest
    }
}

/// The bits of the memory's largest magnitude.
#[inline(always)]
pub(super) fn largest((elements, words, storage): (usize, &[u64], Storage)) -> u32 {
    let mut m = [0.0; GROUP];
    let blocks = (0..elements).step_by(GROUP);
    blocks.fold(0, |largest, start| {
        load(storage, words, elements, start, &mut m);
        largest.max(largest_bits(&m))
    })
}

/// The squared norm of the memory.
#[inline(always)]
pub(super) fn squared_norm((elements, words, storage): (usize, &[u64], Storage)) -> f64 {
    let mut m = [0.0; GROUP];
    let mut squares = [0.0; LANES];
    for start in (0..elements).step_by(GROUP) {
        load(storage, words, elements, start, &mut m);
        add_squares(&m, &mut squares);
    }
    squares.iter().sum()
}

const LANES: usize = 16;

#[inline(always)]
fn add_squares(block: &Block, squares: &mut [f64; LANES]) {
    for chunk in block.as_chunks::<LANES>().0 {
        for l in 0..LANES {
            squares[l] += chunk[l] as f64 * chunk[l] as f64;
        }
    }
}
