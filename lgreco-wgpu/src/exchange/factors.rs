//! What is done on the device for layers under PowerSGD.

use super::bucket::BufferBucket;
use super::matrices::Piece;
use super::moment;
use super::plan::Source;
use crate::batch::{Batch, Part};
use crate::kernels::{Kernel, Shader};
use crate::orthonormal;
use crate::params::params;
use lgreco_train::exchange::Moment;
use lgreco_train::gradient::Dtype;
use lgreco_train::{CoreError, Error};
use std::ops::Range;
use wgpu::Buffer;

params! {
    /// `Job` of `exchange_factors.wgsl`.
    first, count, transposed, first_step, last_step, halves, seed_low, seed_high,
}

/// Which factor is bound as `factor`, with which products are made, and which as `product`, where they go.
#[derive(Clone, Copy)]
enum Direction {
    QToP,
    PToQ,
}

impl BufferBucket {
    /// Records this rank's `P` of all layers, into what is summed.
    pub(super) fn project(&self, batch: &mut Batch<'_>, moment: &Moment) {
        let on = &self.device;
        let job = job(moment, Direction::PToQ);
        self.factors(batch, "start", job, Piece::Column, &[(3, &on.factors), (7, &on.remembered)]);
        let job = self::job(moment, Direction::QToP);
        let bindings = [(1, &on.offered), (2, &on.factors), (4, &on.partial)];
        self.factors(batch, "multiply_chunk", job, Piece::Product, &bindings);
        let bindings = [(3, &on.sums), (4, &on.partial), (10, &on.faults)];
        self.factors(batch, "add_chunks", job, Piece::Sum, &bindings);
    }

    /// Records, of the sum of all ranks' `P`, this rank's `Q`, and what that leaves of what it has offered.
    pub(super) fn back_project(&self, batch: &mut Batch<'_>, moment: &Moment) {
        let on = &self.device;
        batch.write(&on.sums, 0, bytemuck::cast_slice(&self.host.sums.values[..self.plan.sums]));
        let job = job(moment, Direction::QToP);
        self.factors(batch, "scale_columns", job, Piece::Column, &[(3, &on.sums)]);
        self.orthonormalise(batch, job);
        let job = self::job(moment, Direction::PToQ);
        let bindings = [(1, &on.offered), (2, &on.sums), (4, &on.partial)];
        self.factors(batch, "multiply_chunk", job, Piece::Back, &bindings);
        let bindings = [(3, &on.factors), (4, &on.partial), (10, &on.faults)];
        self.factors(batch, "add_chunks", job, Piece::BackSum, &bindings);
        if self.feedback {
            let bindings = [(1, &on.offered), (2, &on.sums), (3, &on.factors), (10, &on.faults)];
            self.factors(batch, "take_off", job, Piece::Tile, &bindings);
        }
    }

    /// Records what makes the columns of all `P` orthonormal.
    fn orthonormalise(&self, batch: &mut Batch<'_>, job: Params) {
        let on = &self.device;
        let of = |steps: &Range<usize>| Params { first_step: steps.start as u32, last_step: steps.end as u32, ..job };
        let [chunks, triangles] = &self.plan.steps;
        let of_p = [(3, &on.sums), (8, &on.inner)];
        for steps in chunks {
            orthonormal::submit_long(batch, steps);
            self.factors(batch, "orthonormalise", of(steps), Piece::Chunk, &of_p);
        }
        for steps in triangles {
            orthonormal::submit_long(batch, steps);
            let bindings = [(3, &on.inner), (8, &on.partial)];
            self.pieces(batch, "orthonormalise", of(steps), Piece::Triangles, (&on.triangles, &bindings));
        }
        self.factors(batch, "multiply_by_triangles", job, Piece::Rows, &of_p);
    }

    /// What is wrong with the sum of all ranks' `P`.
    pub(super) fn check_summed(&self) -> Result<(), Error> {
        let matrices = self.plan.table.matrices.iter();
        let mut sums = matrices.map(|matrix| {
            let len = (matrix.all_rows * matrix.columns) as usize;
            &self.host.sums.values[matrix.p as usize..][..len]
        });
        if sums.all(|p| p.iter().all(|x| x.is_finite())) { Ok(()) } else { Err(overflow()) }
    }

    /// Makes the sum of all ranks' `Q` their mean, on the host, where it is.
    pub(super) fn average_factors(&mut self) -> Result<(), Error> {
        let world = self.world as f32;
        let q = &mut self.host.factors.values[..self.plan.table.q];
        q.iter_mut().for_each(|x| *x /= world);
        if q.iter().all(|x| x.is_finite()) { Ok(()) } else { Err(overflow()) }
    }

    /// Records the means, of the mean of all ranks' `Q`.
    pub(super) fn reconstruct(&self, batch: &mut Batch<'_>, moment: &Moment) {
        let on = &self.device;
        batch.write(&on.factors, 0, bytemuck::cast_slice(&self.host.factors.values[..self.plan.table.q]));
        let bindings = [(2, &on.sums), (3, &on.factors), (12, &on.totals)];
        self.factors(batch, "reconstruct", job(moment, Direction::PToQ), Piece::Tile, &bindings);
        self.means(batch, moment::Params::of(moment, &self.plan, self.feedback), Source::Factors);
    }

    /// Records a dispatch that does all pieces of a kind, of the layers.
    fn factors(
        &self,
        batch: &mut Batch<'_>,
        entry: &'static str,
        job: Params,
        piece: Piece,
        bindings: &[(u32, &Buffer)],
    ) {
        self.pieces(batch, entry, job, piece, (&self.device.matrices, bindings));
    }

    /// Records a dispatch that does all pieces of a kind, of what `matrices` holds.
    fn pieces(
        &self,
        batch: &mut Batch<'_>,
        entry: &'static str,
        job: Params,
        piece: Piece,
        (matrices, bindings): (&Buffer, &[(u32, &Buffer)]),
    ) {
        let (first, count) = self.plan.table.range(piece);
        let job = Params { first: first as u32, count: count as u32, ..job };
        let tables = [(5, matrices), (6, &self.device.pieces)];
        let bindings: Vec<(u32, Part)> =
            tables.iter().chain(bindings).map(|&(binding, buffer)| (binding, buffer.into())).collect();
        let across = count.min(batch.gpu.most_groups());
        let size = [across, count.div_ceil(across.max(1)), 1];
        batch.dispatch_3d(Kernel { shader: Shader::ExchangeFactors, entry }, job, &bindings, size);
    }
}

fn overflow() -> Error {
    CoreError::Overflow { what: "the sum over the workers" }.into()
}

fn job(moment: &Moment, direction: Direction) -> Params {
    Params {
        transposed: matches!(direction, Direction::PToQ) as u32,
        halves: (moment.reduce_dtype == Dtype::Bf16) as u32,
        seed_low: moment.seed as u32,
        seed_high: (moment.seed >> 32) as u32,
        ..Params::default()
    }
}
