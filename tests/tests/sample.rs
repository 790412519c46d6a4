//! Tests on the built-in gradients. The entries of each method's table must equal the results of encoding and decoding.

use lgreco_cli::gradients::Gradients;
use lgreco_train::backend::{Parallel, Portable};
use lgreco_train::compress::{Compressor, Setting, decode};
use lgreco_train::gradient::{Gradient, Values};
use lgreco_train::plan::{self, Proof, Solver, Summary, budget::Budget, exact::Limits};
use lgreco_train::rng::Stream;
use lgreco_train::search::{Measured, Method, Metric, Search};

/// Number of encodings per stochastic option.
const DRAWS: u32 = 48;

fn widened(gradient: &Gradient<'_>) -> Vec<f64> {
    match gradient.values() {
        Values::Bf16(v) => v.iter().map(|x| f32::from_bits((x.0 as u32) << 16) as f64).collect(),
        _ => panic!("the sample is bf16"),
    }
}

fn squared_distance(truth: &[f64], decoded: &[f32]) -> f64 {
    truth.iter().zip(decoded).map(|(t, &d)| (t - d as f64) * (t - d as f64)).sum()
}

/// Checks size and error of the options of every layer.
#[test]
fn tables_are_true() {
    let gradients = Gradients::sample();
    let model = gradients.layers();
    for method in [Method::Qsgd, Method::Eden, Method::TopK, Method::PowerSgd, Method::Hybrid] {
        let mut search = Search::new(method);
        search.metric = Metric::SquaredL2;
        let measured = search.measure(&model, &mut Parallel).unwrap();
        assert_eq!(measured.layers.len() + measured.uncompressed.len(), model.len());
        for (layer, choices) in measured.table.view().iter().enumerate() {
            let index = measured.layers[layer];
            let gradient = model[index].gradient();
            let truth = widened(&gradient);
            let mut decoded = vec![0f32; truth.len()];
            // Hybrid tables repeat the options of the other tables, so every seventh option is enough.
            let stride = if method == Method::Hybrid { 7 } else { 1 };
            for (option, choice) in choices.iter().enumerate().step_by(stride) {
                let setting = measured.setting(layer, option).unwrap();
                let stochastic = matches!(setting, Setting::Qsgd(_));
                let draws = if stochastic { DRAWS } else { 1 };
                let mut errors = Vec::new();
                for draw in 0..draws {
                    // This stream differs from the table's stream only in the rank. The other rank changes random
                    // rounding, but not start matrices.
                    let stream = Stream { layer: index as u32, rank: draw, ..Stream::default() };
                    let dtype = gradient.values().dtype();
                    let mut workspace = vec![!0; setting.encode_workspace_len(gradient.shape(), dtype)];
                    let mut payload = vec![0; setting.payload_len(gradient.shape(), dtype).unwrap()];
                    let written = setting.encode(&gradient, stream, &mut workspace, &mut payload).unwrap();
                    assert_eq!(choice.size, 8 * written as u64);
                    decode(&payload, &mut decoded).unwrap();
                    errors.push(squared_distance(&truth, &decoded));
                }
                let count = errors.len() as f64;
                let mean = errors.iter().sum::<f64>() / count;
                let variance = errors.iter().map(|e| (e - mean) * (e - mean)).sum::<f64>() / (count - 1.0).max(1.0);
                // If rounding is random, allows eight standard errors of the mean.
                let tolerance = if stochastic { 8.0 * (variance / count).sqrt() } else { 1e-5 * choice.error };
                assert!(tolerance <= 0.1 * choice.error, "{tolerance} against {} tells nothing", choice.error);
                let name = format!("{} {setting}", model[index].name());
                assert!((mean - choice.error).abs() <= tolerance, "{name}: {} {mean}", choice.error);
            }
        }
    }
}

fn same(a: &Measured, b: &Measured) -> bool {
    a.table == b.table && a.defaults == b.defaults
}

#[test]
fn parallel_measuring_gives_the_same_bits() {
    let gradients = Gradients::sample();
    let model = gradients.layers();
    let search = Search::new(Method::Hybrid);
    assert!(same(&search.measure(&model, &mut Portable).unwrap(), &search.measure(&model, &mut Parallel).unwrap()));
}

/// Checks the guarantees of the solvers on tables from real gradients.
#[test]
fn exact_is_proved_and_never_larger_than_the_others() {
    let gradients = Gradients::sample();
    let model = gradients.layers();
    for method in Method::ALL {
        for metric in [Metric::L2, Metric::SquaredL2] {
            let mut search = Search::new(method);
            search.metric = metric;
            let measured = search.measure(&model, &mut Parallel).unwrap();
            let table = measured.table.view();
            let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
            let size = |solver| *plan::solve(&table, budget, solver).unwrap().summary();
            let uniform: u64 = table.chosen(&measured.defaults).unwrap().map(|c| c.size).sum();
            let exact = size(Solver::default());
            let (dp, rounded) = (size(Solver::Dp { levels: 10_000 }), size(Solver::Exact(Limits { states: 0 })));
            assert!(exact.proven(), "{} {}", method.name(), metric.name());
            assert!(exact.size <= dp.size && dp.size <= uniform);
            let bound = |summary: &Summary| match summary.proof {
                Proof::Size { lower_bound, .. } => lower_bound as f64,
                Proof::Error { lower_bound, .. } => lower_bound,
            };
            let size = exact.size as f64;
            assert!(bound(&rounded) <= size && exact.size <= rounded.size && bound(&dp) <= size);

            // Minimises the error within the size of the uniform setting.
            let error = exact.error;
            let budget = Budget::DefaultSize { alpha: 1.0, options: &measured.defaults };
            let solved = |solver| *plan::solve(&table, budget, solver).unwrap().summary();
            let exact = solved(Solver::default());
            let (dp, rounded) = (solved(Solver::Dp { levels: 10_000 }), solved(Solver::Exact(Limits { states: 0 })));
            let reference: f64 = table.chosen(&measured.defaults).unwrap().map(|choice| choice.error).sum();
            assert!(exact.proven() && exact.size <= uniform, "{} {}", method.name(), metric.name());
            // A uniform hard threshold is already optimal, because all layers share one magnitude.
            assert!(
                exact.error < error || (method == Method::HardThreshold && exact.error == error),
                "{}",
                method.name()
            );
            assert!(exact.error <= dp.error && dp.error <= reference * (1.0 + 1e-12));
            assert!(bound(&rounded) <= exact.error && exact.error <= rounded.error && bound(&dp) <= exact.error);
        }
    }
}
