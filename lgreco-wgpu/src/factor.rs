//! A factor of PowerSGD on the device.
//!
//! A factor is cut into bands of rows, so that each band fits a binding even at the largest rank.

use crate::Error;
use crate::batch::{Batch, Part};
use crate::rectangles::Cuts;
use std::ops::Range;
use wgpu::Buffer;

/// Side of a square tile. The number of rows of a band is a multiple of a tile's.
pub(crate) const SIDE: usize = 16;

/// A factor of `rank` columns, cut into bands of rows that fit a binding. A band is stored in column-major order.
pub(crate) struct Factor {
    bands: Vec<Band>,
    rank: usize,
    height: usize,
}

/// Rows of a factor, in a separate buffer or after other values.
pub(crate) struct Band {
    pub(crate) buffer: Buffer,
    /// Number of values before this band in the buffer.
    pub(crate) at: usize,
    /// The first row.
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

/// Returns the number of rows of a band of at most `window` bytes. A band has at least the rows of one tile, which fit
/// even under the lowest accepted limits.
pub(crate) fn height(window: u64, rank: usize) -> usize {
    ((window / 4) as usize / rank / SIDE * SIDE).max(SIDE)
}

impl Factor {
    /// Makes a factor with its bands in new buffers. `buffer` makes a band's buffer from the band's number, rows and
    /// bytes.
    pub(crate) fn new(
        batch: &mut Batch<'_>,
        rows: usize,
        rank: usize,
        mut buffer: impl FnMut(&mut Batch<'_>, usize, Range<usize>, u64) -> Result<Buffer, Error>,
    ) -> Result<Factor, Error> {
        let height = height(batch.gpu.window, rank);
        let ranges = Cuts { band: height, most: height }.of(0..rows);
        let bands = ranges.enumerate().map(|(number, range)| {
            let buffer = buffer(batch, number, range.clone(), (4 * rank * range.len()) as u64)?;
            Ok(Band { buffer, at: 0, first: range.start, rows: range.len() })
        });
        Ok(Factor { bands: bands.collect::<Result<_, Error>>()?, rank, height })
    }

    /// Returns a factor that begins after `at` values of a buffer.
    pub(crate) fn within(buffer: &Buffer, at: usize, rows: usize, rank: usize) -> Factor {
        let band = Band { buffer: buffer.clone(), at, first: 0, rows };
        Factor { bands: vec![band], rank, height: rows.next_multiple_of(SIDE) }
    }

    /// Uploads a factor with the values of `columns`. Each column has `rows` values.
    pub(crate) fn upload(batch: &mut Batch<'_>, columns: &[f32], rows: usize, rank: usize) -> Result<Factor, Error> {
        Factor::new(batch, rows, rank, |batch, _, band, _| {
            let mut values = Vec::with_capacity(rank * band.len());
            columns.chunks(rows).for_each(|column| values.extend_from_slice(&column[band.clone()]));
            Ok(batch.upload(bytemuck::cast_slice(&values))?.buffer)
        })
    }

    pub(crate) fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// Returns the band that has this row.
    pub(crate) fn band_of(&self, row: usize) -> &Band {
        &self.bands[row / self.height]
    }

    /// Number of rows of each band except the last.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// Returns where to cut one side of the matrix, so that no part crosses the end of a band of this factor.
    pub(crate) fn cuts(&self, most: usize) -> Cuts {
        Cuts { band: self.height, most }
    }

    /// Returns the parts of buffers with the columns, one column after another.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let part = |band: &Band, offset, size| Part { buffer: band.buffer.clone(), offset, size };
        if let [band] = &self.bands[..] {
            return vec![part(band, 0, (4 * band.rows * self.rank) as u64)];
        }
        let column = |c: usize| self.bands.iter().map(move |band| (band, (4 * band.rows) as u64, c as u64));
        (0..self.rank).flat_map(column).map(|(band, size, c)| part(band, c * size, size)).collect()
    }
}
