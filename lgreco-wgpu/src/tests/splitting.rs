//! Tensors larger than a binding or a dispatch, at limits made small for it.

use super::{ROWS, backend, backend_with, small};
use crate::{Error, orthonormal};
use lgreco_core::backend::Job;
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::{Candidates, Setting};
use lgreco_core::gradient::Dtype;
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::{Tensor, check_encode, check_rows};
use lgreco_core::testing::powersgd::uniform;

const ROWS_OF: usize = 1571;
const COLS: usize = 257;

fn tensor() -> Tensor {
    let values: Vec<f32> = uniform(ROWS_OF * COLS, 3).into_iter().map(|x| x * x * x).collect();
    Tensor::new(&values, ROWS_OF, COLS)
}

#[test]
fn three_pieces_do_as_one() {
    let Some(mut backend) = backend_with(wgpu::Features::empty(), small) else { return };
    let tensor = tensor();
    let stream = Stream { seed: 9, ..Stream::default() };
    let pieces = (ROWS_OF * COLS).div_ceil(backend.gpu().piece_len());
    assert!(pieces > 3, "{pieces} pieces");
    for gradient in tensor.gradients() {
        // A bucket for the whole tensor, buckets across pieces, and more buckets than a dispatch has room for.
        for bucket in [u32::MAX, 100_000, 512, 96, 3, 1] {
            for scale in [Scale::MaxNorm, Scale::MinMax] {
                let base = Qsgd { bits: 5, bucket, scale, rounding: Rounding::Stochastic };
                check_encode(&mut backend, &Setting::Qsgd(base), &gradient, stream);
            }
            let base = Qsgd { bucket, ..Qsgd::default() };
            let candidates = Candidates::Qsgd { base, bits: &[1, 2, 8] };
            check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        }
        for keep in [1, 4000, 300_000, (ROWS_OF * COLS) as u32] {
            check_encode(&mut backend, &Setting::TopK(TopK { keep, values: Dtype::Bf16 }), &gradient, stream);
        }
        let keeps = [1, 100, 4000, 40_000, 400_000];
        for values in [Dtype::F32, Dtype::F16] {
            let candidates = Candidates::TopK { values, keeps: &keeps };
            check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        }
    }
}

#[test]
fn matrices_are_cut_along_both_sides() {
    let Some(mut backend) = backend_with(wgpu::Features::empty(), small) else { return };
    let stream = Stream { seed: 4, ..Stream::default() };
    let values = uniform(ROWS_OF * COLS, 5);
    // Rows longer than a dispatch is wide, more of them than it is high, and factors that several workgroups
    // orthonormalise.
    for (rows, cols) in [(ROWS_OF, COLS), (COLS, ROWS_OF), (3, 134_582), (33_000, 3)] {
        let tensor = Tensor::new(&values[..rows * cols], rows, cols);
        let gradient = tensor.gradients()[0];
        let candidates = Candidates::PowerSgd { iterations: 2, ranks: &[1, 2] };
        check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        super::check_low_rank(&mut backend, PowerSgd { rank: 2, iterations: 1 }, &gradient, stream);
    }
}

#[test]
fn payloads_beyond_a_binding_are_written_in_windows() {
    let Some(mut backend) = backend_with(wgpu::Features::empty(), small) else { return };
    let elements = 1_300_000;
    let tensor = Tensor::new(&uniform(elements, 6), elements, 1);
    let top = TopK { keep: 600_000, values: Dtype::F32 };
    // Decoding is refused: it needs the payload in one binding.
    let gradient = tensor.gradients()[0];
    super::check_payload(&mut backend, &Setting::TopK(top), &gradient);
    assert!(matches!(backend.failure(), Some(Error::TooLarge { .. })), "{:?}", backend.failure());
    super::check_payload(&mut backend, &Setting::Qsgd(Qsgd { bits: 8, ..Qsgd::default() }), &gradient);
}

#[test]
fn columns_are_orthonormal_whoever_works_on_them() {
    let Some(mut backend) = backend() else { return };
    let stream = Stream { seed: 6, ..Stream::default() };
    // One workgroup with one dispatch, one with several, and several workgroups with a dispatch per step.
    for (rows, cols, rank, workgroups, dispatches) in
        [(1000, 30, 5, 1, 1), (500, 130, 120, 1, 2), (20_000, 40, 4, 40, 13), (1030, 70, 65, 3, 196)]
    {
        let stretch = orthonormal::stretch(rows, rank, 65_535);
        assert_eq!(rows.div_ceil(stretch), workgroups);
        assert_eq!(orthonormal::dispatches(rows, rank, stretch).len(), dispatches, "{rows} x {rank}");
        let tensor = Tensor::new(&uniform(rows * cols, 7), rows, cols);
        let gradient = tensor.gradients()[0];
        let candidates = Candidates::PowerSgd { iterations: 2, ranks: &[1, 3, rank as u32] };
        check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        super::check_low_rank(&mut backend, PowerSgd { rank: rank as u32, iterations: 1 }, &gradient, stream);
    }
}
