//! Cuts a matrix into parts that a dispatch can process.

use crate::batch::{Batch, Part};
use crate::tensor::Tensor;
use lgreco::gradient::Shape;
use std::ops::Range;

/// Says where a side of the matrix is cut: at every multiple of `band`, and at least after every `most` rows or
/// columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuts {
    pub(crate) band: usize,
    pub(crate) most: usize,
}

impl Cuts {
    /// Cuts a range into parts.
    pub(crate) fn of(self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut start = range.start;
        std::iter::from_fn(move || {
            let end = range.end.min(start + self.most).min((start / self.band + 1) * self.band);
            let part = (start < end).then_some(start..end);
            start = end;
            part
        })
    }
}

/// A rectangular part of the matrix, whose values lie in one binding.
#[derive(Clone, Debug)]
pub(crate) struct Rectangle {
    pub(crate) part: Part,
    pub(crate) offset: usize,
    pub(crate) row: usize,
    pub(crate) col: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Cuts a tensor into rectangles. `cuts` says where to cut the rows and where to cut the columns.
pub(crate) fn rectangles(batch: &Batch<'_>, tensor: &Tensor, shape: Shape, cuts: [Cuts; 2]) -> Vec<Rectangle> {
    let width = shape.cols();
    let mut rectangles = Vec::new();
    for piece in tensor.all(batch) {
        let (mut at, end) = (piece.first, piece.first + piece.count);
        while at < end {
            let (row, col) = (at / width, at % width);
            let (rows, cols) = if col == 0 && end - at >= width {
                ((end - at) / width, width)
            } else {
                (1, (width - col).min(end - at))
            };
            for y in cuts[0].of(row..row + rows) {
                for x in cuts[1].of(col..col + cols) {
                    rectangles.push(Rectangle {
                        part: piece.part.clone(),
                        offset: piece.skip as usize + at - piece.first + (y.start - row) * width + x.start - col,
                        row: y.start,
                        col: x.start,
                        rows: y.len(),
                        cols: x.len(),
                    });
                }
            }
            at += rows * cols;
        }
    }
    rectangles
}
