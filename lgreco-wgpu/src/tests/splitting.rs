//! Tests tensors that exceed a binding or a dispatch, with small limits.

use super::is_full;
use super::{ROWS, check_payload, cut, small_backend};
use crate::WgpuBackend;
use crate::factor::SIDE;
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::eden::Eden;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_decode, check_rows};
use lgreco_testing::powersgd::uniform;

const ROWS_OF: usize = 1571;
const COLS: usize = 257;

fn tensor() -> Tensor {
    let values: Vec<f32> = uniform(ROWS_OF * COLS, 3).into_iter().map(|x| x * x * x).collect();
    Tensor::new(&values, ROWS_OF, COLS)
}

#[test]
fn three_pieces_do_as_one() {
    let Some(mut backend) = small_backend() else { return };
    let tensor = tensor();
    let stream = Stream { seed: 9, ..Stream::default() };
    let pieces = (ROWS_OF * COLS).div_ceil(backend.gpu().piece_len());
    assert!(pieces > 3, "{pieces} pieces");
    for gradient in tensor.gradients() {
        // There are buckets that span the whole tensor or several pieces, and more buckets than fit one dispatch.
        for bucket in [u32::MAX, 100_000, 512, 96, 3, 1] {
            for scale in [Scale::MaxNorm, Scale::MinMax] {
                let base = Qsgd { bits: 5, bucket, scale, rounding: Rounding::Stochastic };
                check_payload(&mut backend, &Setting::Qsgd(base), &gradient, stream);
            }
            let base = Qsgd { bucket, ..Qsgd::default() };
            let candidates = Candidates::Qsgd { base, bits: &[1, 2, 8] };
            check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        }
        for keep in [1, 4000, 300_000, (ROWS_OF * COLS) as u32] {
            check_payload(&mut backend, &Setting::TopK(TopK { keep, values: Dtype::Bf16 }), &gradient, stream);
        }
        let keeps = [1, 100, 4000, 40_000, 400_000];
        for values in [Dtype::F32, Dtype::F16] {
            let candidates = Candidates::TopK { values, keeps: &keeps };
            check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        }
        let candidates = Candidates::QuantisedTopK { keeps: &keeps, bits: &[2, 5, 8] };
        check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        check_payload(&mut backend, &Setting::Eden(Eden::default()), &gradient, stream);
        let candidates = Candidates::Eden { base: Eden::default(), bits: &[1, 4] };
        check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
    }
}

#[test]
fn matrices_are_cut_along_both_sides() {
    let Some(mut backend) = small_backend() else { return };
    let stream = Stream { seed: 4, ..Stream::default() };
    let values = uniform(3 * 134_582, 5);
    // These shapes cover four cases: rows longer than the width of a dispatch, more rows than its height, rows longer
    // than a piece, and factors that several workgroups orthonormalise.
    let sides = [(1571, 90), (3, 134_582), (90, 1571), (33_000, 3)];
    for &(rows, cols) in if is_full() { &sides[..] } else { &sides[..2] } {
        assert!(rows.max(cols) > SIDE * backend.gpu().most_groups());
        let tensor = Tensor::new(&values[..rows * cols], rows, cols);
        let gradient = tensor.gradients()[0];
        let (iterations, ranks): (u32, &[u32]) = if is_full() { (2, &[1, 2]) } else { (1, &[2]) };
        let candidates = Candidates::PowerSgd { iterations, ranks };
        check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
        super::check_low_rank(&mut backend, PowerSgd { rank: 2, iterations: 1 }, &gradient, stream);
    }
}

#[test]
fn payloads_beyond_a_buffer_are_written_and_read_in_windows() {
    let Some(mut backend) = small_backend() else { return };
    let elements = 1_100_000;
    let tensor = Tensor::new(&uniform(elements, 6), elements, 1);
    let gradient = tensor.gradients()[0];
    for (keep, values) in [(550_000, Dtype::F32), (1_099_000, Dtype::F16), (1_100_000, Dtype::Bf16)] {
        assert!(keep as u64 * values.bytes() as u64 > backend.gpu().largest_binding());
        check_payload(&mut backend, &Setting::TopK(TopK { keep, values }), &gradient, Stream::default());
    }
    let qsgd = Qsgd { bits: 8, ..Qsgd::default() };
    check_payload(&mut backend, &Setting::Qsgd(qsgd), &gradient, Stream::default());
}

#[test]
fn positions_of_every_kind_are_read_in_stretches() {
    let Some(mut backend) = cut() else { return };
    let elements = 40_000;
    // The kept values are spread over the tensor, or many of them are adjacent.
    let spread = uniform(elements, 8);
    let dense = (0..elements).map(|i| if i < 15_000 { 0.5 } else { 0.01 } * (1.0 + (i % 97) as f32)).collect();
    for values in [spread, dense] {
        let tensor = Tensor::new(&values, 200, 200);
        // For these values of k, positions are sent as Elias-Fano codes, as bitmaps, or not at all.
        for keep in [1, 500, 3000, 9000, 20_000, 39_999, 40_000] {
            for values in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let setting = Setting::TopK(TopK { keep, values });
                check_payload(&mut backend, &setting, &tensor.gradients()[0], Stream::default());
            }
            for bits in [1, 3, 7, 8] {
                let setting = Setting::QuantisedTopK(QuantisedTopK { keep, bits });
                check_payload(&mut backend, &setting, &tensor.gradients()[0], Stream::default());
            }
        }
    }
}

/// Positions must also ascend from the last position of a stretch to the first position of the next stretch.
#[test]
fn equal_positions_on_both_sides_of_a_cut_are_refused() {
    const LOW_BITS: usize = 5;
    let Some(mut backend) = cut() else { return };
    let (elements, keep) = (200_000, 6000);
    let values: Vec<f32> = (0..elements).map(|i| if (50..50 + keep).contains(&i) { 1.0 } else { 0.0 }).collect();
    let tensor = Tensor::new(&values, elements, 1);
    let gradient = tensor.gradients()[0];
    let setting = Setting::TopK(TopK { keep: keep as u32, values: Dtype::F32 });
    let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
    Portable.encode(&setting, &gradient, Stream::default(), &mut [0; 200_000], &mut payload).unwrap();
    check_decode(&mut backend, &payload, elements);
    let low_at = HEADER_LEN + 4 * keep;
    let high_at = low_at + keep * LOW_BITS / 8;
    assert_eq!(payload.len(), high_at + (keep + ((elements - 1) >> LOW_BITS)).div_ceil(8));
    // The index of the first value of the third block. This block does not fit into one stretch with the first two
    // blocks.
    let first: u32 = payload[high_at..high_at + 512].iter().map(|byte| byte.count_ones()).sum();
    assert!(keep > backend.gpu().piece_len() && (first as usize) < keep);
    let bit = |i: usize, payload: &[u8]| payload[low_at + i / 8] >> (i % 8) & 1;
    for i in LOW_BITS * first as usize..LOW_BITS * (first as usize + 1) {
        if bit(i, &payload) != bit(i - LOW_BITS, &payload) {
            payload[low_at + i / 8] ^= 1 << (i % 8);
        }
    }
    assert!(Portable.decode(&payload, &mut vec![0.0; elements]).is_err());
    check_decode(&mut backend, &payload, elements);
}

#[test]
fn factors_beyond_a_buffer_are_cut_into_bands() {
    let Some(mut backend) = small_backend() else { return };
    let (long, rank) = (33_000, 16);
    assert!(4 * long as u64 * u64::from(rank) > backend.gpu().largest_binding());
    check_bands(&mut backend, (long, 17), rank, 1);
    if is_full() {
        check_bands(&mut backend, (17, long), rank, 1);
    }
    let Some(mut backend) = cut() else { return };
    // Together, these cases have many bands of both factors, bands that end inside a tile, and rows that are longer
    // than a piece.
    for (sides, rank) in [((300, 70), 65), ((301, 290), 20), ((3, 5000), 2), ((5000, 3), 1)] {
        check_bands(&mut backend, sides, rank, if is_full() { 2 } else { 1 });
    }
}

fn check_bands(backend: &mut WgpuBackend, (rows, cols): (usize, usize), rank: u32, iterations: u32) {
    let tensor = Tensor::new(&uniform(rows * cols, 10), rows, cols);
    let gradient = tensor.gradients()[0];
    let stream = Stream { seed: 6, ..Stream::default() };
    let candidates = Candidates::PowerSgd { iterations, ranks: &[1, rank.div_ceil(2), rank] };
    check_rows(backend, &[Job { gradient, candidates, stream }], ROWS);
    super::check_low_rank(backend, PowerSgd { rank, iterations }, &gradient, stream);
}
