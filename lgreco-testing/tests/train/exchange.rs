use lgreco_testing::exchange::{Case, Outcome, Through, check, check_failure};
use lgreco_testing::noise;
use lgreco_train::Error;
use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::clt::CltK;
use lgreco_train::compress::eden::{self, Eden};
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::powersgd::{PowerSgd, start_matrix};
use lgreco_train::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::sidco::{Fit, Sidco};
use lgreco_train::compress::topk::TopK;
use lgreco_train::compress::{Candidates, Compressor, Setting};
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::exchange::*;
use lgreco_train::gradient::{Bf16, Dtype, Element, Gradient, Shape, Values, ValuesMut};
use lgreco_train::rng::Stream;
use proptest::prelude::*;

fn noise(seed: u64, layer: u32, rank: u32, len: usize) -> Vec<f32> {
    noise::uniform(Stream { seed, step: 77, layer, rank }, len)
}

fn case(layers: &[(Setting, Shape)], world: u32, route: Route) -> Case {
    let worker = |rank| (0..).zip(layers).map(|(l, (_, shape))| noise(9, l, rank, shape.elements())).collect();
    let (layers, gradients) = (layers.to_vec(), (0..world).map(worker).collect());
    Case { layers, gradients, route, reduce_dtype: Dtype::F32, seed: 5, step: 3 }
}

/// A copy of the case in which values are summed on the network as bf16.
fn halved(case: &Case) -> Case {
    Case { reduce_dtype: Dtype::Bf16, ..case.clone() }
}

fn shape(rows: usize, cols: usize) -> Shape {
    Shape::new(rows, cols).unwrap()
}

fn qsgd(bits: u8, bucket: u32, rounding: Rounding) -> Setting {
    Setting::Qsgd(Qsgd { bits, bucket, rounding, scale: Scale::MaxNorm })
}

fn topk(keep: u32) -> Setting {
    Setting::TopK(TopK { keep, values: Dtype::F32 })
}

fn few_bits(keep: u32, bits: u8) -> Setting {
    Setting::QuantisedTopK(QuantisedTopK { keep, bits })
}

fn clt(keep: u32) -> Setting {
    Setting::CltK(CltK { keep })
}

fn hard(lambda: f32) -> Setting {
    Setting::HardThreshold(HardThreshold { lambda, values: Dtype::F32 })
}

fn adacomp(bin: u32) -> Setting {
    Setting::AdaComp(AdaComp { bin })
}

fn loco(group: u32) -> Setting {
    Setting::LoCo(LoCo { group })
}

fn eden(bits: u8, scale: eden::Scale) -> Setting {
    Setting::Eden(Eden { bits, scale })
}

fn sidco(density: f64, stages: u32) -> Setting {
    Setting::Sidco(Sidco { density, fit: Fit::Exponential, stages, values: Dtype::F32 })
}

const LOW_RANK: Setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });

/// A bucket with many kinds of settings, with empty layers, layers smaller than a piece, and layers that are cut.
fn hybrid() -> Vec<(Setting, Shape)> {
    vec![
        (Setting::Dense, shape(7, 1)),
        (qsgd(4, 16, Rounding::Stochastic), shape(9, 31)),
        (LOW_RANK, shape(12, 10)),
        (topk(5), shape(50, 2)),
        (topk(0), shape(0, 3)),
        (Setting::Dense, shape(0, 0)),
        (LOW_RANK, shape(5, 1)),
        (Setting::Qsgd(Qsgd { bits: 3, bucket: 100, scale: Scale::MinMax, rounding: Rounding::Nearest }), shape(3, 1)),
        (clt(7), shape(20, 4)),
        (topk(40), shape(40, 1)),
        (clt(0), shape(3, 0)),
        (hard(0.9), shape(11, 6)),
        (hard(0.3), shape(0, 6)),
        (hard(2.0), shape(8, 1)),
        (adacomp(9), shape(10, 7)),
        (loco(16), shape(15, 7)),
        (sidco(0.1, 2), shape(9, 9)),
        (adacomp(3), shape(2, 0)),
        (loco(5), shape(0, 1)),
        (sidco(0.3, 1), shape(0, 1)),
        (clt(9), shape(3, 3)),
        (Setting::Dense, shape(3, 5)),
    ]
}

#[cfg(feature = "rayon")]
mod cores;
mod failures;
mod golden;
mod group;
mod halves;
mod leader;
mod sharded;
mod spaces;
mod variable;

/// Routes by which every rank gets the whole mean.
const ROUTES: [Route; 2] = [Route::AllGather, Route::ScatterReduce];

#[test]
fn values_in_few_bits_travel_by_every_route() {
    let layers = [
        (few_bits(30, 2), shape(21, 13)),
        (Setting::Dense, shape(3, 5)),
        (few_bits(9, 8), shape(5, 4)),
        (few_bits(0, 3), shape(0, 4)),
        (few_bits(12, 3), shape(12, 1)),
        (topk(5), shape(10, 2)),
    ];
    for world in [1, 2, 5] {
        for route in [Route::AllGather, Route::ScatterReduce, Route::Sharded] {
            check(&case(&layers, world, route));
            check_failure(&case(&layers, world, route));
        }
    }
}

/// A layer under EDEN is cut between whole blocks, so a small layer is one piece.
#[test]
fn rotated_values_travel_by_every_route() {
    use eden::Scale::{LeastSquares, Unbiased};
    let layers = [
        (eden(2, Unbiased), shape(100, 93)),
        (Setting::Dense, shape(3, 5)),
        (eden(1, LeastSquares), shape(5, 4)),
        (eden(3, Unbiased), shape(0, 4)),
        (eden(8, Unbiased), shape(4097, 1)),
        (topk(5), shape(10, 2)),
    ];
    for world in [1, 2, 5] {
        for route in [Route::AllGather, Route::ScatterReduce, Route::Sharded] {
            check(&case(&layers, world, route));
            check_failure(&case(&layers, world, route));
        }
    }
}

#[test]
fn means_hold_for_1_2_3_and_8_workers() {
    for world in [1, 2, 3, 8] {
        for route in ROUTES.into_iter().chain([Route::Sharded]) {
            let case = case(&hybrid(), world, route);
            check(&case);
            check(&halved(&case));
        }
    }
}

#[test]
fn a_failing_worker_is_named_on_all_and_the_next_exchange_works() {
    for route in ROUTES.into_iter().chain([Route::Sharded]) {
        let whole = case(&hybrid(), 3, route);
        check_failure(&whole);
        check_failure(&halved(&whole));
        for setting in [
            qsgd(4, 16, Rounding::Stochastic),
            topk(30),
            LOW_RANK,
            clt(30),
            hard(0.5),
            adacomp(7),
            loco(8),
            eden(4, eden::Scale::Unbiased),
            sidco(0.2, 1),
            Setting::Dense,
        ] {
            check_failure(&case(&[(setting, shape(10, 20))], 4, route));
        }
    }
}

fn settings() -> impl Strategy<Value = (Setting, Shape)> {
    (0usize..9, 1usize..12, 1usize..12, 1u8..=8, 1u32..40, any::<bool>(), any::<bool>()).prop_map(
        |(method, rows, cols, bits, number, flag, other)| {
            let shape = shape(rows, cols);
            let setting = match method {
                0 => Setting::Dense,
                1 => Setting::Qsgd(Qsgd {
                    bits,
                    bucket: number,
                    scale: if flag { Scale::MinMax } else { Scale::MaxNorm },
                    rounding: if other { Rounding::Nearest } else { Rounding::Stochastic },
                }),
                2 if flag => topk(shape.elements() as u32),
                2 => topk(number.min(shape.elements() as u32)),
                3 => hard(number as f32 / 40.0),
                5 => adacomp(number),
                6 => loco(number),
                7 => sidco(number as f64 / 40.0, bits as u32),
                4 => clt(number.min(shape.elements() as u32)),
                _ => Setting::PowerSgd(PowerSgd { rank: 1 + number % 5, iterations: 1 }),
            };
            (setting, shape)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(60)))]
    #[test]
    fn means_hold_for_any_bucket(
        layers in proptest::collection::vec(settings(), 1..6),
        world in 1u32..6,
        route in 0..3usize,
        half: bool,
        seed: u64,
        scale in -30i32..30,
        sparse in 1u32..4,
    ) {
        let route = [Route::AllGather, Route::ScatterReduce, Route::Sharded][route];
        let mut case = case(&layers, world, route);
        (case.seed, case.reduce_dtype) = (seed, if half { Dtype::Bf16 } else { Dtype::F32 });
        let factor = 2f32.powi(scale);
        for (i, x) in case.gradients.iter_mut().flatten().flatten().enumerate() {
            *x *= if (i as u32).is_multiple_of(sparse) { factor } else { 0.0 };
        }
        check(&case);
    }
}

/// Workers have independent random bits, so their errors average out. With shared random bits, the mean would keep the
/// error of a single worker.
#[test]
fn the_error_of_the_mean_falls_with_the_number_of_workers() {
    const STEPS: u32 = 60;
    let shape = shape(64, 32);
    let base = Qsgd { bits: 3, bucket: 128, ..Qsgd::default() };
    let values = noise(1, 0, 0, shape.elements());
    let gradient = Gradient::new(Values::F32(&values), shape).unwrap();
    let mut expected = [0.0];
    let candidates = Candidates::Qsgd { base, bits: &[3] };
    candidates.measure(&gradient, Stream::default(), &mut [], &mut expected).unwrap();
    for world in [2, 3, 8] {
        for route in ROUTES.into_iter().chain([Route::Sharded]) {
            let layers = vec![(Setting::Qsgd(base), shape)];
            let gradients = vec![vec![values.clone()]; world];
            let mut case = Case { layers, gradients, route, reduce_dtype: Dtype::F32, seed: 11, step: 0 };
            let (mut squared, mut sum) = (0.0, vec![0.0; values.len()]);
            for step in 0..STEPS {
                case.step = step;
                let outcome = case.run().swap_remove(0).unwrap();
                for ((sum, &mean), &x) in sum.iter_mut().zip(&outcome.mean[0]).zip(&values) {
                    let error = mean as f64 - x as f64;
                    squared += error * error / STEPS as f64;
                    *sum += error / STEPS as f64;
                }
            }
            let world = world as f64;
            let one = expected[0] / world;
            match route {
                // The expected error is the sum of two errors: the error of all pieces except the owner's, and the
                // error of compressing the mean.
                Route::ScatterReduce => {
                    let two = one * (world - 1.0) / world + expected[0];
                    assert!(squared > 0.6 * two && squared < 1.2 * two, "{world}: {squared} {two}");
                }
                _ => {
                    assert!((squared / one - 1.0).abs() < 0.1, "{world}: {squared} {one}")
                }
            }
            let bias: f64 = sum.iter().map(|x| x * x).sum();
            assert!(bias < 1.3 * squared / STEPS as f64, "{world}: {bias} {squared}");
        }
    }
}

/// PowerSGD's Algorithm 1 in f64, from the same start matrix. Returns P̂ P̂ᵀ M for the mean M.
fn textbook(case: &Case, rank: usize) -> Vec<f64> {
    let (rows, cols) = (case.layers[0].1.rows(), case.layers[0].1.cols());
    let mut q = vec![0.0; cols * rank];
    start_matrix(Stream { seed: case.seed, ..Stream::default() }, cols, rank as u32, &mut q).unwrap();
    let mean = |i: usize| case.gradients.iter().map(|w| w[0][i] as f64).sum::<f64>() / case.gradients.len() as f64;
    let mean: Vec<f64> = (0..rows * cols).map(mean).collect();
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for column in q.chunks(cols) {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let column: Vec<f64> = column.iter().map(|&x| x as f64).collect();
        let mut p: Vec<f64> = mean.chunks(cols).map(|row| dot(row, &column)).collect();
        for _ in 0..2 {
            for b in &basis {
                let along = dot(b, &p);
                p.iter_mut().zip(b).for_each(|(p, b)| *p -= along * b);
            }
        }
        let norm = dot(&p, &p).sqrt();
        basis.push(p.iter().map(|x| x / norm).collect());
    }
    let mut result = vec![0.0; rows * cols];
    for p in &basis {
        for c in 0..cols {
            let q: f64 = (0..rows).map(|r| mean[r * cols + c] * p[r]).sum();
            (0..rows).for_each(|r| result[r * cols + c] += p[r] * q);
        }
    }
    result
}

#[test]
fn powersgd_projects_the_mean() {
    for world in [1, 2, 3, 8] {
        for rank in [1, 3] {
            let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
            let case = case(&[(setting, shape(20, 14))], world, Route::AllGather);
            let expected = textbook(&case, rank as usize);
            for outcome in case.run() {
                let mean = &outcome.unwrap().mean[0];
                let off = mean.iter().zip(&expected).fold(0.0f64, |a, (&x, y)| a.max((x as f64 - y).abs()));
                assert!(off < 2e-5, "{world} workers, rank {rank}: {off}");
            }
        }
    }
}

/// Contributions of opposite sign cancel in the mean. The warm start converges to the mean's largest singular
/// direction.
#[test]
fn powersgd_warm_start_converges_to_the_best_approximation_of_the_mean() {
    let (rows, cols) = (6, 5);
    let mut mean = vec![0.0f32; rows * cols];
    (mean[7], mean[24]) = (2.0, 1.0);
    let odd = noise(4, 0, 0, rows * cols);
    let worker = |sign: f32| vec![mean.iter().zip(&odd).map(|(m, o)| m + sign * o).collect()];
    let setting = Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 });
    let case = Case {
        layers: vec![(setting, shape(rows, cols))],
        gradients: vec![worker(1.0), worker(-1.0)],
        route: Route::AllGather,
        reduce_dtype: Dtype::F32,
        seed: 1,
        step: 0,
    };
    let outcomes = threads::run(2, |mut worker| {
        let mut outcome: Option<Outcome> = None;
        for _ in 0..30 {
            outcome = Some(case.exchange(&mut worker, outcome.map(|o| o.factors)).unwrap());
        }
        outcome.unwrap()
    });
    assert_ne!(outcomes[0].own, outcomes[1].own);
    for outcome in outcomes {
        for (i, x) in outcome.mean[0].iter().enumerate() {
            assert!((x - if i == 7 { 2.0 } else { 0.0 }).abs() < 1e-5, "element {i}: {x}");
        }
    }
}

#[test]
fn sixteen_bit_gradients_are_summed_as_f32() {
    let shape = shape(33, 3);
    for setting in [
        Setting::Dense,
        topk(99),
        topk(10),
        clt(10),
        hard(0.5),
        adacomp(7),
        loco(8),
        sidco(0.2, 1),
        qsgd(8, 16, Rounding::Nearest),
        LOW_RANK,
    ] {
        for route in ROUTES {
            let wide = |rank| noise(2, 0, rank, 99).iter().map(|&x| Bf16::from_f32(x).to_f32()).collect::<Vec<_>>();
            let gradients = vec![vec![wide(0)], vec![wide(1)]];
            let expected =
                Case { layers: vec![(setting, shape)], gradients, route, reduce_dtype: Dtype::F32, seed: 5, step: 0 }
                    .run();
            let means = threads::run(2, |mut worker| {
                let mut values: Vec<Bf16> = noise(2, 0, worker.rank(), 99).into_iter().map(Bf16::from_f32).collect();
                let words = workspace_len([(setting, shape, Dtype::Bf16)].into_iter(), route, 2).unwrap();
                let mut factor = vec![0.0; if setting == LOW_RANK { 6 } else { 0 }];
                let layer = Layer::new(0, setting, shape, ValuesMut::Bf16(&mut values), Rest::Dropped);
                let layer = Layer { factor: &mut factor, ..layer };
                aggregate(&mut worker, &mut [layer], route, 5, 0, &mut vec![0; words]).unwrap();
                values
            });
            for (mean, expected) in means.iter().zip(expected) {
                let expected: Vec<Bf16> = expected.unwrap().mean[0].iter().map(|&x| Bf16::from_f32(x)).collect();
                assert_eq!(*mean, expected, "{setting}");
            }
        }
    }
}

/// Each uncompressed layer of 2^16 elements or more is summed in place, by a separate collective. Failures are reported
/// before these collectives.
#[test]
fn large_dense_layers_are_summed_in_their_place() {
    let large = (Setting::Dense, shape(300, 256));
    for layers in [vec![large], vec![(topk(9), shape(30, 2)), large, (Setting::Dense, shape(9, 5)), large]] {
        for world in [1, 2, 4] {
            let case = case(&layers, world, Route::AllGather);
            check(&case);
            check_failure(&case);
        }
    }
    // With three workers, each gradient is multiplied by 1/4 before the sum.
    let case = case(&[large], 3, Route::AllGather);
    let outcomes: Vec<Outcome> = case.run().into_iter().map(Result::unwrap).collect();
    let exact = |i: usize| case.gradients.iter().map(|worker| worker[0][i] as f64).sum::<f64>() / 3.0;
    let off = |(i, &x): (usize, &f32)| (x as f64 - exact(i)).abs();
    assert!(outcomes[0].mean[0].iter().enumerate().all(|value| off(value) < 1e-6));
    assert!(
        outcomes.iter().all(|outcome| outcome.mean == outcomes[0].mean && outcome.rest[0].iter().all(|&x| x == 0.0))
    );
}

/// The sum over the four ranks exceeds f32, but their mean does not.
#[test]
fn the_mean_of_large_dense_layers_does_not_overflow() {
    let mut case = case(&[(Setting::Dense, shape(256, 256))], 4, Route::AllGather);
    case.gradients.iter_mut().for_each(|worker| worker[0].fill(3e38));
    for outcome in case.run() {
        assert!(outcome.unwrap().mean[0].iter().all(|&mean| mean == 3e38));
    }
}

/// Tensors are cut where the quantiser's buckets end. So pieces are quantised like the whole tensor, except for the
/// owner's own piece.
#[test]
fn cutting_a_tensor_changes_no_quantiser_bucket() {
    let layers = [(qsgd(4, 64, Rounding::Nearest), shape(50, 20)), (qsgd(8, 7, Rounding::Nearest), shape(30, 3))];
    let whole = case(&layers, 3, Route::AllGather).run();
    let pieces = case(&layers, 3, Route::ScatterReduce).run();
    let mut differing = vec![0; 1000 + 90];
    for (whole, pieces) in whole.iter().zip(&pieces) {
        let flat = |r: &Result<Outcome, Error>| r.as_ref().unwrap().own.concat();
        for ((count, x), y) in differing.iter_mut().zip(flat(whole)).zip(flat(pieces)) {
            *count += (x != y) as u32;
        }
    }
    assert!(differing.iter().all(|&count| count <= 1) && differing.contains(&1));
}
