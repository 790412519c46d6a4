//! A matrix cut into parts that a dispatch can work on.

use crate::batch::{Batch, Part};
use crate::tensor::Tensor;
use lgreco_core::gradient::Shape;

/// A part of the matrix in one binding: whole rows, or some of one.
#[derive(Clone, Debug)]
pub(crate) struct Rectangle {
    pub(crate) part: Part,
    pub(crate) offset: usize,
    pub(crate) row: usize,
    pub(crate) col: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Cuts a tensor into rectangles of at most `most_rows` × `most_cols`.
pub(crate) fn rectangles(
    batch: &Batch<'_>,
    tensor: &Tensor,
    shape: Shape,
    most_rows: usize,
    most_cols: usize,
) -> Vec<Rectangle> {
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
            for y in (0..rows).step_by(most_rows) {
                for x in (0..cols).step_by(most_cols) {
                    rectangles.push(Rectangle {
                        part: piece.part.clone(),
                        offset: piece.skip as usize + at - piece.first + y * width + x,
                        row: row + y,
                        col: col + x,
                        rows: most_rows.min(rows - y),
                        cols: most_cols.min(cols - x),
                    });
                }
            }
            at += rows * cols;
        }
    }
    rectangles
}
