//! Chooses the elements that AdaComp sends, and their magnitude.

use crate::gradient::{Element, Values, with_elements};
use crate::select::magnitude_bits;
use core::ops::Range;

/// Number of elements that are converted to f32 together.
const BLOCK: usize = 256;

/// The elements of a gradient that AdaComp sends.
pub(super) struct Choice<'a> {
    bin: usize,
    compensated: Values<'a>,
    fresh: Values<'a>,
    /// The magnitude of all sent elements; 0 if none is sent.
    pub(super) magnitude: f32,
    /// Number of elements sent.
    pub(super) count: u32,
}

/// Converts the values in `range` to f32. The range has at most [`BLOCK`] values.
fn read(values: Values<'_>, range: &Range<usize>, block: &mut [f32; BLOCK]) {
    with_elements!(values, v => v[range.clone()].iter().zip(block).for_each(|(x, to)| *to = x.to_f32()));
}

impl<'a> Choice<'a> {
    /// Chooses the elements to send. Values must be finite, and `bin` at least 1.
    pub(super) fn new(bin: usize, compensated: Values<'a>, fresh: Values<'a>) -> Self {
        let mut choice = Choice { bin, compensated, fresh, magnitude: 0.0, count: 0 };
        let (mut largest, mut bins, mut count) = (0.0, 0u32, 0);
        for range in choice.bins() {
            let threshold = choice.largest(range.clone());
            largest += f32::from_bits(threshold) as f64;
            bins += 1;
            choice.for_each_in(range, threshold, |_, _| count += 1);
        }
        let magnitude = (largest / bins.max(1) as f64) as f32;
        if magnitude > 0.0 && count > 0 {
            (choice.magnitude, choice.count) = (magnitude, count);
        }
        choice
    }

    fn bins(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (bin, len) = (self.bin, self.compensated.len());
        (0..len).step_by(bin).map(move |start| start..len.min(start.saturating_add(bin)))
    }

    fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        range.clone().step_by(BLOCK).map(move |start| start..range.end.min(start + BLOCK))
    }

    /// Bits of the largest magnitude in `range`.
    fn largest(&self, range: Range<usize>) -> u32 {
        let mut block = [0.0; BLOCK];
        let of_block = |range: Range<usize>| {
            read(self.compensated, &range, &mut block);
            block[..range.len()].iter().fold(0, |a, &x| a.max(magnitude_bits(x)))
        };
        Self::blocks(range).map(of_block).fold(0, u32::max)
    }

    /// Calls `visit` with position and value of each sent element of a bin.
    fn for_each_in(&self, range: Range<usize>, threshold: u32, mut visit: impl FnMut(usize, f32)) {
        if threshold == 0 {
            return;
        }
        let (mut compensated, mut fresh) = ([0.0; BLOCK], [0.0; BLOCK]);
        for range in Self::blocks(range) {
            read(self.compensated, &range, &mut compensated);
            read(self.fresh, &range, &mut fresh);
            for ((index, &p), &w) in range.zip(&compensated).zip(&fresh) {
                if magnitude_bits(p + w) >= threshold && p != 0.0 {
                    visit(index, p);
                }
            }
        }
    }

    /// Calls `visit` with position and value of each sent element, in ascending order.
    pub(super) fn for_each(&self, mut visit: impl FnMut(usize, f32)) {
        if self.count > 0 {
            self.bins().for_each(|range| self.for_each_in(range.clone(), self.largest(range), &mut visit));
        }
    }

    /// Squared error ‖compensated − decoded‖².
    pub(super) fn squared_error(&self) -> f64 {
        let square = |x: f64| x * x;
        with_elements!(self.compensated, v => {
            let energy = |range: Range<usize>| v[range].iter().map(|x| square(x.to_f32() as f64)).sum::<f64>();
            let (mut sum, mut at) = (0.0, 0);
            self.for_each(|index, p| {
                sum += energy(at..index) + square(p.abs() as f64 - self.magnitude as f64);
                at = index + 1;
            });
            sum + energy(at..v.len())
        })
    }
}
