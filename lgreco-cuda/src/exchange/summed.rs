//! The layers of a bucket that are summed by collectives: their tables, the parameters of `exchange_sums.cu`, and the
//! layout of their memory.

use crate::Result;
use crate::device::Part;
use crate::factors::{Factors, Table, Totals};
use bytemuck::{Pod, Zeroable};
use lgreco::gradient::{Dtype, Shape};

/// The struct `Params` in `exchange_sums.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(super) dtype: u32,
    pub(super) reduce_dtype: u32,
    pub(super) dense: u32,
    pub(super) dense_spans: u32,
    pub(super) matrices: u32,
    pub(super) columns: u32,
    pub(super) products: u32,
    pub(super) backs: u32,
    pub(super) grams: u32,
    pub(super) solves: u32,
    pub(super) tiles: u32,
    pub(super) second: u32,
    pub(super) ends: u32,
    pub(super) not_finite: u32,
    pub(super) overflow: u32,
    pub(super) peer: u32,
    pub(super) seed_low: u32,
    pub(super) seed_high: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &[
        "dtype",
        "reduce_dtype",
        "dense",
        "dense_spans",
        "matrices",
        "columns",
        "products",
        "backs",
        "grams",
        "solves",
        "tiles",
        "second",
        "ends",
        "not_finite",
        "overflow",
        "peer",
        "seed_low",
        "seed_high",
    ];
}

/// The struct `Dense` in `exchange_sums.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Dense {
    first: u64,
    start: u64,
    sum: u64,
    first_span: u64,
    count: u32,
    layer: u32,
}

#[cfg(test)]
impl Dense {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("first", std::mem::offset_of!(Dense, first)),
        ("start", std::mem::offset_of!(Dense, start)),
        ("sum", std::mem::offset_of!(Dense, sum)),
        ("first_span", std::mem::offset_of!(Dense, first_span)),
        ("count", std::mem::offset_of!(Dense, count)),
        ("layer", std::mem::offset_of!(Dense, layer)),
    ];
}

/// The code of `lgreco_train::Error::Peer`, which a rank reports when it has found a fault in another rank.
pub(crate) const PEER: u32 = 81;

/// The code of `lgreco_train::Error::NonFiniteGradient`, which a rank reports when its own gradient is not finite.
pub(crate) const NON_FINITE_GRADIENT: u32 = 101;

/// Number of values in a span of an uncompressed layer. A span is the unit of work of a CUDA block.
const SPAN: u64 = 4096;

/// Length of a rank's status record in a summed buffer of this type, in values.
pub(super) fn slip_values(dtype: Dtype) -> u64 {
    if dtype == Dtype::F32 { 1 } else { 3 }
}

/// The layers of a bucket that are summed by collectives: uncompressed layers and layers under PowerSGD.
#[derive(Clone, Debug, Default)]
pub(super) struct Summed {
    pub(super) dense: Vec<Dense>,
    pub(super) matrices: Table,
    dense_spans: u64,
    /// The number of uncompressed pieces that this rank averages, and the number of their spans. These pieces come
    /// before all other uncompressed pieces.
    own: Option<[u64; 2]>,
    /// Index in the buffer of the first sum at which the values of the next piece begin.
    sum: u64,
    /// Number of values so far in the buffer of the first sum.
    values: u64,
}

/// The parts of an exchange's memory for summed layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) dense: Part,
    pub(super) matrices: Part,
    pub(super) counters: Part,
    /// The orthonormal factors `P`.
    pub(super) of_rows: Part,
    /// The `Q` from which `P` is made.
    pub(super) q: Part,
    /// Both halves of the remembered `Q`.
    pub(super) remembered: Part,
    pub(super) partial: Part,
    pub(super) grams: Part,
    pub(super) triangles: Part,
}

impl Summed {
    /// Call this before adding the pieces of an owner. The owner is the rank that averages the pieces. The values of
    /// the pieces begin at `start` in the first sum.
    pub(super) fn begin(&mut self, start: u64) {
        self.sum = start;
    }

    /// Call this after adding the pieces of an owner. Returns the index at which the values of these pieces end in the
    /// first sum. The first call must be for this rank's own pieces, and records the number of these pieces.
    pub(super) fn end(&mut self) -> u64 {
        self.own.get_or_insert([self.dense.len() as u64, self.dense_spans]);
        self.sum
    }

    /// Adds an uncompressed layer, or a shard of an uncompressed layer. The added values begin at index `first` among
    /// the values of all layers, and at index `start` in the layer.
    pub(super) fn add_dense(&mut self, count: u32, (first, start): (u64, u32), layer: u32) {
        let start = start.into();
        self.dense.push(Dense { first, start, sum: self.sum, first_span: self.dense_spans, count, layer });
        self.dense_spans += u64::from(count).div_ceil(SPAN);
        self.add(count.into());
    }

    fn add(&mut self, values: u64) {
        self.sum += values;
        self.values += values;
    }

    /// Adds a layer under PowerSGD whose factors have `columns` columns.
    ///
    /// # Errors
    /// The errors of [`Table::add`].
    pub(super) fn add_matrix(&mut self, shape: Shape, columns: u32, first: u64, (layer, id): (u32, u32)) -> Result<()> {
        self.matrices.add(shape, columns, first, layer, id)?;
        self.matrices.place_sum(self.sum);
        self.add(shape.rows() as u64 * u64::from(columns));
        Ok(())
    }

    /// Number of values of the first and of the second sum, without status records.
    pub(super) fn lens(&self) -> [u64; 2] {
        [self.values, self.matrices.totals.q]
    }

    /// Changes `params`, which counts all pieces that this rank sends, so that it counts only the pieces that this rank
    /// averages.
    pub(super) fn own(&self, params: Params) -> Params {
        let [dense, dense_spans] =
            self.own.map_or([params.dense, params.dense_spans], |own| own.map(|number| number as u32));
        Params { dense, dense_spans, ..params }
    }

    /// The common parameters of all launches. `ends` says whether the step ends with the sums.
    pub(super) fn params(&self, [dtype, reduce_dtype]: [Dtype; 2], seed: u64, ends: bool) -> Result<Params> {
        let Totals { columns, products, backs, grams, solves, tiles, .. } = self.matrices.totals;
        let spans = u32::try_from(self.dense_spans);
        Ok(Params {
            dtype: dtype as u32,
            reduce_dtype: reduce_dtype as u32,
            dense: self.dense.len() as u32,
            dense_spans: spans.map_err(|_| lgreco::Error::TooManyElements { rows: usize::MAX, cols: 1 })?,
            matrices: self.matrices.matrices.len() as u32,
            columns,
            products,
            backs,
            grams,
            solves,
            tiles,
            second: 0,
            ends: ends.into(),
            not_finite: NON_FINITE_GRADIENT,
            overflow: lgreco::Error::Overflow { what: "" }.code(),
            peer: PEER,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
        })
    }

    /// Bytes of the parts of [`Places`], in order.
    fn parts(&self) -> [u64; 9] {
        let Totals { p, q, partial, gram, triangle, counters, .. } = self.matrices.totals;
        let tables = [size_of_val(&*self.dense), size_of::<Factors>() * self.matrices.matrices.len()];
        let [dense, matrices] = tables.map(|bytes| bytes as u64);
        [dense, matrices, 4 * u64::from(counters), 4 * p, 4 * q, 2 * 4 * q, 4 * partial, 8 * gram, 8 * triangle]
    }

    /// Bytes that summed layers take in an exchange's memory.
    pub(super) fn bytes(&self) -> u64 {
        self.parts().map(|bytes| bytes.next_multiple_of(16)).iter().sum()
    }

    /// Divides the memory of the summed layers into its parts.
    pub(super) fn places(&self, memory: Part) -> Places {
        let mut at = 0;
        let [dense, matrices, counters, of_rows, q, remembered, partial, grams, triangles] =
            self.parts().map(|bytes| {
                let part = memory.cut(at, bytes);
                at += bytes.next_multiple_of(16);
                part
            });
        Places { dense, matrices, counters, of_rows, q, remembered, partial, grams, triangles }
    }
}
