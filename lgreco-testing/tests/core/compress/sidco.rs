use lgreco::Error;
use lgreco::compress::sidco::{Fit, Sidco};
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::sidco::{check, check_bytes};
use proptest::prelude::*;

const FITS: [Fit; 3] = [Fit::Exponential, Fit::GammaPareto, Fit::Pareto];

fn vector(values: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap()
}

/// Four uniform random numbers in (0, 1).
fn uniform(i: usize, seed: u64) -> [f64; 4] {
    Stream { seed, ..Stream::default() }.block(i as u32).map(|w| (w as f64 + 0.5) / 4294967296.0)
}

/// Two independent normal numbers.
fn normal([u, v, ..]: [f64; 4]) -> [f64; 2] {
    let (radius, angle) = ((-2.0 * u.ln()).sqrt(), 2.0 * core::f64::consts::PI * v);
    [radius * angle.cos(), radius * angle.sin()]
}

/// Signed values of one of five distributions: Laplace, normal, gamma of shape 1/2, Student's t with 3 degrees of
/// freedom, or a mixture of scales.
fn family(which: usize, n: usize, seed: u64) -> Vec<f32> {
    let draw = |i: usize| {
        let u = uniform(i, seed);
        let [a, b] = normal(u);
        let [c, d] = normal(uniform(i, seed + 1000));
        match which {
            0 => -u[0].ln() * if u[1] < 0.5 { 1.0 } else { -1.0 },
            1 => a,
            2 => 0.5 * a * a * if u[2] < 0.5 { 1.0 } else { -1.0 },
            3 => a / ((b * b + c * c + d * d) / 3.0).sqrt(),
            _ => a * [1.0, 0.1, 0.01, 0.001][i * 4 / n],
        }
    };
    (0..n).map(|i| draw(i) as f32).collect()
}

fn ratio(fit: Fit, stages: u32, density: f64, values: &[f32]) -> f64 {
    let sidco = Sidco { density, fit, stages, values: Dtype::F32 };
    check(sidco, &vector(values)) as f64 / (density * values.len() as f64)
}

/// On exponential data, the ratio of sent to wanted density is near 1, for every fit and number of stages.
#[test]
fn exponential_magnitudes() {
    // The values are quantiles, so there is no sampling noise.
    let n = if std::env::var_os("LGRECO_FULL").is_some() { 400_000 } else { 100_000 };
    let values: Vec<f32> = (0..n).map(|i| -((i as f64 + 0.5) / n as f64).ln() as f32).collect();
    for density in [0.001, 0.01, 0.1, 0.3] {
        for fit in FITS {
            for stages in 1..=6 {
                let ratio = ratio(fit, stages, density, &values);
                assert!((ratio - 1.0).abs() <= 0.1, "{fit:?}, {stages} stages, {density}: {ratio}");
            }
        }
    }
}

/// The expected ratios are from a Python simulation of the published stages, at density 0.001 with 1 to 6 exponential
/// stages on the same distributions. The ratios are limited to the range from 0.5 to 2. With 3 and 4 stages, Pareto
/// fits send about the wanted number of values on all distributions.
#[test]
fn other_tails() {
    let simulated: [(usize, [f64; 6]); 3] = [
        (1, [0.5, 0.5, 0.73, 1.05, 1.31, 1.42]),
        (2, [2.0, 1.5, 1.0, 0.96, 0.91, 0.88]),
        (3, [2.0, 2.0, 1.1, 0.58, 0.5, 0.5]),
    ];
    for (which, expected) in simulated {
        let values = family(which, 400_000, 7);
        for (stages, expected) in (1..).zip(expected) {
            let found = ratio(Fit::Exponential, stages, 0.001, &values);
            assert!((found - expected).abs() < 0.15, "family {which}, {stages} stages: {found}, {expected}");
        }
    }
    for which in 0..4 {
        let values = family(which, 400_000, 7);
        for (stages, density) in [(3, 0.001), (4, 0.001), (3, 0.01), (4, 0.01)] {
            let found = ratio(Fit::Pareto, stages, density, &values);
            assert!((0.8..1.2).contains(&found), "family {which}, {stages} stages, {density}: {found}");
        }
    }
}

/// Covers zeros, a single value, equal magnitudes, few values above a stage's threshold, magnitudes at both ends of f32,
/// and small tensors.
#[test]
fn degenerate_gradients() {
    let n = 1500;
    let mut one = vec![0.0; n];
    one[7] = -3.0;
    let two: Vec<f32> = (0..n).map(|i| if i % 2 == 0 { 1.0 } else { -2.0 }).collect();
    let near: Vec<f32> = (0..n).map(|i| 1.0 + (i % 2) as f32 * f32::EPSILON).collect();
    let ends: Vec<f32> = (0..n).map(|i| if i % 3 == 0 { f32::MAX } else { f32::from_bits(1 + i as u32 % 5) }).collect();
    // 1490 values with positions take more bytes than 1500 values without positions.
    let nearly_all: Vec<f32> = (0..n).map(|i| if i < 10 { 0.0 } else { 1e-9 * (i % 50) as f32 + 1e-9 }).collect();
    let few = vec![0.5, -0.25, 1.0];
    for values in [vec![0.0; n], one, vec![-1.5; n], two, near, ends, nearly_all, few, vec![], vec![0.0; 5]] {
        for fit in FITS {
            for stages in [1, 2, 5, 40] {
                for density in [0.0005, 0.01, 0.2, 0.7, 1.0] {
                    check(Sidco { density, fit, stages, values: Dtype::F32 }, &vector(&values));
                }
            }
        }
    }
}

#[test]
fn parameters_lengths_and_values_are_checked() {
    let good = Sidco { density: 0.5, fit: Fit::Exponential, stages: 1, values: Dtype::F16 };
    let values = [1.0, 65520.0, -3.0];
    let shape = vector(&values).shape();
    // Each stage is a pass over the elements. Millions of stages would each remove only one element, so their number is
    // limited.
    let stages = [0, 1101, u32::MAX].map(|stages| Sidco { stages, ..good });
    for bad in [Sidco { density: 0.0, ..good }, Sidco { density: f64::NAN, ..good }].into_iter().chain(stages) {
        assert!(matches!(bad.payload_len(shape, Dtype::F32), Err(Error::Parameter { .. })));
        assert!(matches!(measure(&values, bad, 500), Err(Error::Parameter { .. })));
    }
    let encode = |sidco: Sidco, words: usize, bytes: usize| {
        sidco.encode(&vector(&values), Stream::default(), &mut vec![0; words], &mut vec![0; bytes])
    };
    assert_eq!(encode(good, 2, 40), Err(Error::ElementOverflow { index: 1, value: 65520.0 }));
    let wide = Sidco { values: Dtype::F32, ..good };
    assert_eq!(encode(wide, 2, 25), Ok(25));
    assert!(matches!(encode(wide, 1, 25), Err(Error::Length { .. })));
    assert!(matches!(encode(wide, 2, 24), Err(Error::Length { .. })));
    let words = Setting::Sidco(wide).measure_workspace_len(shape, Dtype::F32);
    assert!(measure(&values, wide, words).is_ok());
    assert!(matches!(measure(&values, wide, words - 1), Err(Error::Length { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(100)))]
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        check_bytes(&bytes);
    }

    #[test]
    fn any_finite(
        head in any::<[u8; 3]>(),
        bits in prop::collection::vec(any::<u32>().prop_map(|b| b & 0xbf7f_ffff), 20..60),
    ) {
        let bytes: Vec<u8> = head.into_iter().chain(bits.iter().flat_map(|b| b.to_le_bytes())).collect();
        check_bytes(&bytes);
    }
}

fn measure(values: &[f32], sidco: Sidco, words: usize) -> Result<(f64, usize), Error> {
    Setting::Sidco(sidco).measure(&vector(values), Stream::default(), &mut vec![0; words])
}
