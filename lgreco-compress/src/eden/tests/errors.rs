//! Tests the errors of decoded values, and compares them with the measured errors.

use super::*;

/// Relative squared errors of the grids on N(0, 1).
const DISTORTIONS: [f64; 8] = [0.3634, 0.1175, 0.03454, 0.009497, 0.002505, 0.0006442, 0.0001635, 0.00004119];

/// Three kinds of values: normal; heavy-tailed; and normal with every 50th value 20 times larger.
fn kinds(elements: usize) -> [(&'static str, Vec<f32>); 3] {
    let normal = gaussian(elements, 0);
    let heavy = gaussian(elements, 1).iter().map(|x| x * x * x).collect();
    let spiky = normal.iter().enumerate().map(|(i, x)| if i % 50 == 7 { 20.0 * x } else { *x }).collect();
    [("normal", normal), ("heavy", heavy), ("spiky", spiky)]
}

#[test]
fn relative_errors_are_those_of_the_grids() {
    for (kind, values) in kinds(16 * BLOCK) {
        for eden in all() {
            let distortion = DISTORTIONS[eden.bits as usize - 1];
            let expected = match eden.scale {
                Scale::Unbiased => distortion / (1.0 - distortion),
                Scale::LeastSquares => distortion,
            };
            let relative = squared_distance(&values, &round_trip(&values, eden, 0)) / product(&values, &values);
            let off = relative / expected - 1.0;
            assert!(off.abs() < 0.05, "{kind}, {eden:?}: {relative}, {off}");
        }
    }
}

#[test]
fn rows_are_what_decoding_gives() {
    let mut all_kinds: Vec<_> = kinds(3 * BLOCK + 2048 + 300).into_iter().collect();
    all_kinds.extend(kinds(300));
    // Also tests constant values, a sparse tensor, and magnitudes near the ends of f32.
    all_kinds.push(("constant", vec![0.3; 2 * BLOCK]));
    all_kinds.push(("one row", (0..BLOCK + 64).map(|i| if i < 64 { 1.0 } else { 0.0 }).collect()));
    all_kinds.push(("large", gaussian(5000, 3).iter().map(|x| x * 1e37).collect()));
    all_kinds.push(("tiny", gaussian(5000, 3).iter().map(|x| x * 1e-40).collect()));
    let widths = [1, 2, 3, 4, 5, 6, 7, 8];
    for (kind, values) in all_kinds {
        for (scale, rank) in [Scale::Unbiased, Scale::LeastSquares].into_iter().zip(5..) {
            let mut row = [f64::NAN; 8];
            measure(&column(&values), scale, &widths, stream(rank), &mut row).unwrap();
            for (bits, error) in widths.into_iter().zip(row) {
                let real = squared_distance(&values, &round_trip(&values, Eden { bits, scale }, rank));
                assert!((error / real - 1.0).abs() < 1e-5, "{kind}, {bits} bits, {scale:?}: {error} {real}");
            }
        }
    }
}

#[test]
fn short_tensors_and_single_values_are_measured_too() {
    for elements in 1..=130 {
        let values = gaussian(elements, 4);
        let mut single = vec![0.0; elements];
        single[elements / 2] = -3.0;
        for (values, eden) in [values, single].iter().flat_map(|values| all().map(move |eden| (values, eden))) {
            let mut row = [f64::NAN];
            measure(&column(values), eden.scale, &[eden.bits], stream(1), &mut row).unwrap();
            let real = squared_distance(values, &round_trip(values, eden, 1));
            assert!((row[0] - real).abs() <= 1e-5 * real, "{elements} elements, {eden:?}: {} {real}", row[0]);
        }
    }
}

#[test]
fn a_single_value_in_a_block_comes_back() {
    for (eden, at) in all().flat_map(|eden| [0, 17, BLOCK - 1].map(|at| (eden, at))) {
        let mut values = vec![0.0; BLOCK];
        values[at] = -0.37;
        let decoded = round_trip(&values, eden, 2);
        assert!(squared_distance(&values, &decoded).sqrt() < 1e-6, "{eden:?} at {at}");
    }
}

/// With the unbiased scale, `⟨x̂, x⟩ = ‖x‖²` holds for every seed and every length.
#[test]
fn the_unbiased_scale_keeps_the_gradients_own_direction() {
    for (values, bits) in [1, 2, 3, 7, 64, 1000, 9000].map(|n| gaussian(n, n as u32)).iter().zip([1, 2, 3, 4, 1, 2, 8])
    {
        let decoded = round_trip(values, Eden { bits, ..Eden::default() }, 9);
        let ratio = product(values, &decoded) / product(values, values);
        assert!((ratio - 1.0).abs() < 1e-6, "{} values, {bits} bits: {ratio}", values.len());
    }
}

/// The squared error of a mean over N seeds is about 1/N of the error of one seed, so the bias is negligible.
#[test]
fn means_over_seeds_tend_to_the_gradient() {
    const DRAWS: u32 = 1000;
    for ((kind, values), bits) in kinds(BLOCK).into_iter().zip([1, 2, 1]) {
        let eden = Eden { bits, ..Eden::default() };
        let (mut sums, mut errors) = (vec![0.0f64; BLOCK], 0.0);
        for rank in 0..DRAWS {
            let decoded = round_trip(&values, eden, rank);
            sums.iter_mut().zip(&decoded).for_each(|(sum, &x)| *sum += x as f64);
            errors += squared_distance(&values, &decoded);
        }
        let of_mean: f64 = sums.iter().zip(&values).map(|(sum, &x)| (sum / DRAWS as f64 - x as f64).powi(2)).sum();
        // Expects that the mean's error is one draw's error divided by the number of draws, within six standard
        // deviations.
        let ratio = of_mean * DRAWS as f64 / (errors / DRAWS as f64);
        assert!((ratio - 1.0).abs() < 6.0 * (2.0 / BLOCK as f64).sqrt(), "{kind}: {ratio}");
    }
}

#[test]
fn workers_with_streams_of_their_own_have_independent_errors() {
    let values = gaussian(BLOCK, 0);
    let eden = Eden { bits: 1, ..Eden::default() };
    let [a, b] = [1, 2].map(|rank| {
        let decoded = round_trip(&values, eden, rank);
        decoded.iter().zip(&values).map(|(decoded, x)| decoded - x).collect::<Vec<f32>>()
    });
    let correlation = product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt();
    assert!(correlation.abs() < 6.0 / (BLOCK as f64).sqrt(), "{correlation}");
}
