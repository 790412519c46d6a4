use core::ops::RangeInclusive;
use lgreco::Error;
use lgreco::backend::Portable;
use lgreco::compress::Compressor;
use lgreco::compress::powersgd::*;
use lgreco::compress::wire::Payload;
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::golden;
use lgreco_testing::powersgd::*;
use proptest::prelude::*;

mod rounding;

const STREAM: Stream = Stream { seed: 11, step: 4, layer: 2, rank: 1 };

fn shape(rows: usize, cols: usize) -> Shape {
    Shape::new(rows, cols).unwrap()
}

/// Gradients with flat and steep spectra, of exactly and nearly low rank, constant ones, and some near the ends of f32.
/// Each gradient comes with the range of ranks that it may have in f32, because rounding may hide small singular
/// values.
fn specimens() -> Vec<(Shape, Vec<f32>, RangeInclusive<usize>)> {
    let mut specimens = Vec::new();
    for (rows, cols) in [(1, 1), (1, 9), (9, 1), (7, 5), (40, 33), (64, 27), (33, 130), (70, 270)] {
        let shape = shape(rows, cols);
        let noise = uniform(rows * cols, 3);
        let exact = low_rank(shape, &[1.0, 0.5, 0.1], 5);
        let steep: Vec<f64> = (0..40).map(|c| 0.5f64.powi(c)).collect();
        let full = rows.min(cols);
        specimens.push((shape, exact.iter().zip(&noise).map(|(x, y)| x + 0.03 * y).collect(), full..=full));
        specimens.push((shape, exact.iter().zip(&noise).map(|(x, y)| x + 1e-5 * y).collect(), full.min(3)..=full));
        specimens.push((shape, noise.iter().map(|x| 0.1 + 0.03 * x).collect(), full..=full));
        for scale in [1e30, 1e-30, 1e-38] {
            specimens.push((shape, noise.iter().map(|x| scale * x).collect(), full..=full));
        }
        specimens.push((shape, low_rank(shape, &steep, 7), full.min(10)..=full));
        specimens.push((shape, exact, full.min(3)..=full));
        specimens.push((shape, vec![0.1; rows * cols], 1..=1));
        specimens.push((shape, noise, full..=full));
    }
    specimens
}

#[test]
fn rows_are_the_errors_of_real_encodes() {
    for (shape, values, _) in specimens() {
        for iterations in [1, 4] {
            check_row(&gradient(&values, shape), &[7, 1, 2, 3, 4, 16, 17, 33], iterations, STREAM);
        }
    }
}

/// Long sums of equal terms are a hard case, because their rounding errors have the same sign.
#[test]
fn rows_of_tall_and_wide_gradients_are_the_errors_of_real_encodes() {
    let long = 1 << 18;
    let half = |row: usize| if row < long / 2 { [0.1, 0.0] } else { [0.0, 0.097] };
    let tall: Vec<f32> = (0..long).flat_map(half).collect();
    let wide: Vec<f32> = (0..2).flat_map(|row| (0..long).map(move |col| half(col)[row])).collect();
    let iterations: &[u32] = if std::env::var_os("LGRECO_FULL").is_some() { &[1, 5] } else { &[1] };
    for (shape, values) in [(shape(long, 2), tall), (shape(2, long), wide)] {
        for &iterations in iterations {
            check_row(&gradient(&values, shape), &[1, 2], iterations, STREAM);
        }
    }
}

/// Encode and measure refuse a gradient if its payload could not be decoded. Encode and measure accept all other
/// gradients, and the measured row is finite.
#[test]
fn the_end_of_the_range_is_the_same_for_encode_measure_and_decode() {
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..2000 {
        let shape = shape(1 + seed % 4, 1 + seed / 4 % 4);
        let largest = if seed % 3 == 0 { 2.4e38 } else { 3.4e38 };
        let values: Vec<f32> = uniform(shape.elements(), seed as u64).iter().map(|x| largest * x).collect();
        let g = gradient(&values, shape);
        let compressor = PowerSgd { rank: 1 + seed as u32 % 3, iterations: 1 };
        let mut workspace = vec![!0; measure_workspace_len(shape, Dtype::F32, compressor.rank)];
        let mut payload = vec![0; compressor.payload_len(shape, Dtype::F32).unwrap()];
        let mut row = [f64::NAN];
        let encoded = compressor.encode(&g, STREAM, &mut workspace, &mut payload);
        let measured = measure(&g, &[compressor.rank], 1, STREAM, &mut workspace, &mut row);
        if let Err(error) = encoded {
            assert!(matches!(error, Error::Overflow { .. }) && measured == Err(error), "{error}, {measured:?}");
            refused += 1;
            continue;
        }
        let mut decoded = vec![f32::NAN; values.len()];
        decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
        assert_eq!(measured, Ok(()));
        let norm: f64 = values.iter().map(|&x| x as f64 * x as f64).sum();
        let real = squared_error(&g, &decoded);
        assert!((row[0] - real).abs() <= 1e-5 * real.max(1e-9 * norm), "{row:?}, not {real:e}");
        taken += 1;
    }
    assert!(refused > 100 && taken > 100, "{refused} refused, {taken} taken");
}

#[test]
fn factors_are_nested_and_orthonormal() {
    for (specimen, (shape, values, ranks)) in specimens().into_iter().enumerate() {
        let g = gradient(&values, shape);
        for (small, large) in [(1, 2), (3, 16), (16, 17), (5, 40)] {
            check_nested(&g, small, large, 2, STREAM);
        }
        let trip = round_trip(&g, PowerSgd { rank: 20, iterations: 2 }, STREAM).unwrap();
        let (p, _) = factors(&trip.payload, shape);
        let found = p.iter().filter(|c| c.iter().any(|&x| x != 0.0)).count();
        let (least, most) = (20.min(*ranks.start()), 20.min(*ranks.end()));
        assert!((least..=most).contains(&found), "specimen {specimen}, {shape:?}: rank {found}, not {least}..={most}");
        check_orthonormal(&p, found);
    }
}

#[test]
fn errors_are_the_textbooks_and_no_less_than_the_best_possible() {
    for (rows, cols) in [(12, 20), (40, 18)] {
        let shape = shape(rows, cols);
        let values = uniform(rows * cols, 9);
        let g = gradient(&values, shape);
        let spectrum = squared_singular_values(&values, shape);
        let norm: f64 = values.iter().map(|&x| x as f64 * x as f64).sum();
        assert!((spectrum.iter().sum::<f64>() - norm).abs() < 1e-9 * norm);
        for rank in 1..rows.min(cols) {
            let best: f64 = spectrum[rank..].iter().sum();
            let mut errors = Vec::new();
            for iterations in [1, 3, 60] {
                let trip = round_trip(&g, PowerSgd { rank: rank as u32, iterations }, STREAM).unwrap();
                let (error, book) = (
                    squared_error(&g, &trip.decoded),
                    textbook_squared_error(&values, shape, rank, iterations, STREAM),
                );
                assert!((error - book).abs() <= 1e-4 * book, "rank {rank}: {error}, textbook {book}");
                assert!(error >= best * (1.0 - 1e-6), "rank {rank}: {error} beats {best}");
                errors.push(error);
            }
            assert!(errors[2] <= 1.02 * best && errors[2] <= errors[0], "rank {rank}: {errors:?}, best {best}");
        }
    }
}

#[test]
fn matrices_of_low_rank_come_back() {
    let shape = shape(50, 70);
    let values = low_rank(shape, &[1.0, 0.7, 0.4, 0.2], 21);
    let norm: f64 = values.iter().map(|&x| x as f64 * x as f64).sum();
    for rank in [4, 5, 16, 64] {
        let g = gradient(&values, shape);
        let trip = round_trip(&g, PowerSgd { rank, iterations: 1 }, STREAM).unwrap();
        assert!(squared_error(&g, &trip.decoded) < 1e-11 * norm);
    }
}

#[test]
fn zero_and_dependent_columns_become_zero() {
    let noise = uniform(5 * 100, 1);
    let [a, b, c, d, e]: [Vec<f32>; 5] = core::array::from_fn(|i| noise[i * 100..][..100].to_vec());
    let zero = vec![0.0; 100];
    let sum = a.iter().zip(&b).map(|(x, y)| x - 3.0 * y).collect();
    let huge = c.iter().map(|x| 1e30 * x).collect();
    let tiny = d.iter().map(|x| 1e-30 * x).collect();
    let near = a.iter().zip(&e).map(|(x, y)| x + 1e-4 * y).collect();
    let columns = [zero, a.clone(), b, a, sum, huge, tiny, near];
    let result = orthonormal_columns(&columns);
    let zeros: Vec<bool> = result.iter().map(|c| c.iter().all(|&x| x == 0.0)).collect();
    assert_eq!(zeros, [true, false, false, true, true, false, false, false]);
    check_orthonormal(&result, 5);
}

#[test]
fn ill_conditioned_columns_become_orthonormal() {
    // Any two columns differ by about 1e-3 of their norm.
    let common = uniform(200, 1);
    let columns: Vec<Vec<f32>> =
        (0..40).map(|c| common.iter().zip(uniform(200, 100 + c)).map(|(x, y)| x + 1e-3 * y).collect()).collect();
    check_orthonormal(&orthonormal_columns(&columns), 40);
}

/// The FNV-1a hash of payloads and rows never changes. Builds without `std` use the baseline instructions, other builds
/// the widest ones.
#[cfg(not(feature = "gemm"))]
#[test]
fn the_bits_do_not_depend_on_instructions() {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| bytes.iter().for_each(|&b| hash = (hash ^ b as u64).wrapping_mul(0x100_0000_01b3));
    for (rows, cols) in [(70, 270), (270, 70)] {
        let values = uniform(rows * cols, 3);
        let g = gradient(&values, shape(rows, cols));
        let trip = round_trip(&g, PowerSgd { rank: 20, iterations: 2 }, STREAM).unwrap();
        add(&trip.payload);
        trip.decoded.iter().for_each(|x| add(&x.to_le_bytes()));
        let mut workspace = vec![!0; measure_workspace_len(g.shape(), Dtype::F32, 70)];
        let mut row = [0.0; 3];
        measure(&g, &[1, 35, 70], 2, STREAM, &mut workspace, &mut row).unwrap();
        row.iter().for_each(|x: &f64| add(&x.to_le_bytes()));
    }
    assert_eq!(hash, 0x2550_e3ee_abda_0087);
}

#[test]
fn zeros_and_nothing_round_trip() {
    for (rows, cols) in [(0, 0), (0, 5), (5, 0), (1, 1), (20, 30)] {
        let values = vec![0.0; rows * cols];
        let g = gradient(&values, shape(rows, cols));
        check_row(&g, &[1, 4], 2, STREAM);
        let trip = round_trip(&g, PowerSgd { rank: 4, iterations: 2 }, STREAM).unwrap();
        assert!(trip.decoded.iter().all(|x| x.to_bits() == 0));
        assert!(trip.payload[16..].iter().all(|&b| b == 0));
    }
}

#[test]
fn sixteen_bit_gradients_are_their_f32_values() {
    let shape = shape(30, 41);
    let noise = uniform(30 * 41, 2);
    let half: Vec<F16> = noise.iter().map(|&x| F16::from_f32(x)).collect();
    let brain: Vec<Bf16> = noise.iter().map(|&x| Bf16::from_f32(x)).collect();
    let half_wide: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
    let brain_wide: Vec<f32> = brain.iter().map(|x| x.to_f32()).collect();
    for (narrow, wide) in [(Values::F16(&half), &half_wide), (Values::Bf16(&brain), &brain_wide)] {
        let narrow = Gradient::new(narrow, shape).unwrap();
        let compressor = PowerSgd { rank: 6, iterations: 2 };
        let trip = |g: &Gradient<'_>| round_trip(g, compressor, STREAM).unwrap().payload;
        assert_eq!(trip(&narrow), trip(&gradient(wide, shape)));
        check_row(&narrow, &[1, 6, 30], 2, STREAM);
    }
}

#[test]
fn warm_starts_approach_the_best() {
    let shape = shape(60, 45);
    let values = uniform(60 * 45, 4);
    let g = gradient(&values, shape);
    let errors = warm_errors(&g, 5, 100, STREAM);
    let cold = round_trip(&g, PowerSgd { rank: 5, iterations: 1 }, STREAM).unwrap();
    assert_eq!(errors[0], squared_error(&g, &cold.decoded));
    assert!(errors.windows(2).all(|e| e[1] <= e[0] * (1.0 + 1e-6)), "{errors:?}");
    let best: f64 = squared_singular_values(&values, shape)[5..].iter().sum();
    assert!(errors[99] <= 1.01 * best && errors[0] > 1.1 * best);
}

#[test]
fn the_steps_of_one_worker_are_the_compressor() {
    for (rows, cols) in [(1, 6), (30, 50), (70, 20)] {
        let values = uniform(rows * cols, 6);
        check_steps(&gradient(&values, shape(rows, cols)), 18, STREAM);
    }
}

#[test]
fn options_have_effects_and_limits() {
    let (shape, values) = (shape(8, 8), uniform(64, 6));
    let g = gradient(&values, shape);
    let payload = |rank, iterations, stream| round_trip(&g, PowerSgd { rank, iterations }, stream).unwrap().payload;
    assert_ne!(payload(2, 1, STREAM), payload(2, 2, STREAM));
    assert_ne!(payload(2, 1, STREAM), payload(2, 1, Stream { seed: 12, ..STREAM }));
    assert_ne!(payload(2, 1, STREAM), payload(2, 1, Stream { layer: 3, ..STREAM }));
    assert_eq!(payload(2, 1, STREAM), payload(2, 1, Stream { step: 9, rank: 5, ..STREAM }));
    assert_eq!(payload(8, 1, STREAM), payload(99, 1, STREAM));
    for (rank, iterations) in [(0, 1), (1, 0), (1, 1001), (1, u32::MAX)] {
        let refused = round_trip(&g, PowerSgd { rank, iterations }, STREAM).err();
        assert!(matches!(refused, Some(Error::Parameter { .. })));
    }
}

#[test]
fn bad_gradients_name_the_first_offender() {
    let mut values = uniform(100, 6);
    (values[70], values[33]) = (f32::NAN, f32::NEG_INFINITY);
    let g = gradient(&values, shape(10, 10));
    let offender = Error::NonFinite { index: 33, value: f32::NEG_INFINITY };
    assert_eq!(round_trip(&g, PowerSgd { rank: 2, iterations: 1 }, STREAM).err(), Some(offender));
    let mut workspace = vec![0; measure_workspace_len(g.shape(), Dtype::F32, 2)];
    assert_eq!(measure(&g, &[2], 1, STREAM, &mut workspace, &mut [0.0]), Err(offender));
    let mut workspace = vec![0; steps_workspace_len(g.shape(), 2)];
    let zeros = [0.0; 20];
    assert_eq!(project(&g, 2, &zeros, &mut workspace, &mut [0.0; 20]), Err(offender));
    assert_eq!(back_project(&g, 2, &zeros, &mut workspace, &mut [0.0; 20]), Err(offender));
    let huge = vec![f32::MAX; 100];
    let overflow = round_trip(&gradient(&huge, shape(10, 10)), PowerSgd { rank: 2, iterations: 1 }, STREAM).err();
    assert!(matches!(overflow, Some(Error::Overflow { .. })));
}

#[test]
fn payload_bytes_are_fixed() {
    golden::check_powersgd(&mut Portable);
}

#[test]
fn hostile_payloads_are_errors() {
    let values = uniform(12 * 9, 6);
    let payload =
        round_trip(&gradient(&values, shape(12, 9)), PowerSgd { rank: 3, iterations: 1 }, STREAM).unwrap().payload;
    let mut out = vec![0.0; 108];
    let mut outcome = |bytes: &[u8]| decode(&Payload::parse(bytes).unwrap(), &mut out);
    assert!(matches!(outcome(&payload[..payload.len() - 1]), Err(Error::Length { .. })));
    for (at, value) in [(2, 1), (3, 1)] {
        let mut wrong = payload.clone();
        wrong[at] = value;
        assert!(matches!(outcome(&wrong), Err(Error::PayloadHeader { .. })));
    }
    for rank in [0u8, 10] {
        let mut wrong = payload.clone();
        wrong[4] = rank;
        assert!(matches!(outcome(&wrong), Err(Error::PayloadBody { .. })));
    }
    let mut wrong = payload.clone();
    wrong[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(outcome(&wrong), Err(Error::PayloadBody { .. })));
    let mut large = payload.clone();
    large[16..].as_chunks_mut::<4>().0.fill(1e30f32.to_le_bytes());
    assert!(matches!(outcome(&large), Err(Error::Overflow { .. })));
    for len in 0..payload.len() {
        check_hostile(&payload[..len]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(32)))]

    #[test]
    fn any_shape_and_rank(rows in 1usize..90, cols in 1usize..90, rank in 1u32..40, iterations in 1u32..4, seed: u64) {
        let values = uniform(rows * cols, seed);
        let (g, stream) = (gradient(&values, shape(rows, cols)), Stream { seed: !seed, ..STREAM });
        check_row(&g, &[rank, 1, rank.div_ceil(2)], iterations, stream);
        check_nested(&g, rank, rank + 7, iterations, stream);
        check_steps(&g, rank, stream);
    }

    #[test]
    fn any_bytes(rank in 0u8..12, rows in 0u8..12, cols in 0u8..12, body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![b'L', 1, 3, 0, rank, 0, 0, 0, rows, 0, 0, 0, cols, 0, 0, 0];
        bytes.extend(&body);
        check_hostile(&bytes);
        bytes.resize(16 + 4 * rank as usize * (rows as usize + cols as usize), 0x3f);
        check_hostile(&bytes);
    }
}
