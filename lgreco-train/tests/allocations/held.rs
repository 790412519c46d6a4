//! A controller's memory is small, linear in the model's size, and predicted by `MemoryUse::of`.

use super::{Alone, HELD};
use lgreco_train::Error;
use lgreco_train::compress::{Setting, adacomp::AdaComp, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco_train::controller::{Config, Controller, MemoryUse, Policy, Tensor};
use lgreco_train::exchange::Route;
use lgreco_train::feedback::{Residual, Storage};
use lgreco_train::gradient::{Dtype, ValuesMut};
use lgreco_train::search::{Method, Search};

/// The number of rows of each layer, in a model with 24 small layers and one huge layer, such as an embedding.
pub(crate) fn model(scale: usize) -> Vec<usize> {
    let mut rows = vec![128 * scale; 24];
    rows.push(1280 * scale);
    rows
}

pub(crate) const COLUMNS: usize = 512;

pub(crate) fn config(setting: fn(u32) -> Setting, rows: &[usize], storage: Storage) -> Config {
    let mut config = Config::new(Search::new(Method::TopK));
    config.policy = Policy::Fixed(rows.iter().map(|&rows| setting((rows * COLUMNS) as u32)).collect());
    config.feedback.others = Some(Residual { storage, ..Residual::CLASSIC });
    (config.schedule.warmup, config.schedule.window) = (3, 1);
    config
}

/// Returns the largest memory of a run, in multiples of the model's f32 gradients: first over the whole run, then only
/// after its decision. Also returns the prediction. If `in_flight`, every layer is a separate bucket, and all buckets
/// are exchanged at the same time. Without `in_flight`, steps are blocking.
fn most(config: Config, rows: &[usize], in_flight: bool) -> Result<([f64; 2], MemoryUse), Error> {
    let layers =
        rows.iter().enumerate().map(|(layer, &rows)| Tensor::new(&layer.to_string(), &[rows, COLUMNS], Dtype::F32));
    let mut layers = layers.collect::<Result<Vec<_>, _>>()?;
    if config.route == Route::Sharded {
        layers =
            layers.into_iter().zip(rows).map(|(layer, rows)| layer.with_shards(&[(rows * COLUMNS) as u64])).collect();
    }
    let mut gradients: Vec<Vec<f32>> = rows.iter().map(|rows| vec![0.0; rows * COLUMNS]).collect();
    let elements: usize = gradients.iter().map(Vec::len).sum();
    let before = HELD.get()[0];
    HELD.set([before; 2]);
    let mut controller = Controller::new(config, layers, 0, 1)?;
    let predicted = MemoryUse::of(&controller, in_flight.then_some(1), if in_flight { usize::MAX } else { 1 })?;
    let mut most = 0;
    for step in 0..6 {
        if step == 4 {
            let [held, until] = HELD.get();
            (most, _) = (until, HELD.set([held; 2]));
        }
        for (layer, values) in gradients.iter_mut().enumerate() {
            values.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * (layer + 2) + step) as f32 * 0.37).sin());
        }
        if !in_flight {
            let mut views: Vec<_> = gradients.iter_mut().map(|values| ValuesMut::F32(values)).collect();
            controller.step(&mut Alone, &mut views, 0.1)?;
            continue;
        }
        controller.begin_step(0.1)?;
        while let Some(request) = controller.control()? {
            request.perform(&mut Alone)?;
        }
        let mut buckets = vec![];
        for (layer, values) in gradients.iter_mut().enumerate() {
            let (mut bucket, values) = (controller.open(&[layer])?, [ValuesMut::F32(values)]);
            let mut values = values;
            bucket.submit(&mut values)?;
            buckets.push((bucket, values));
        }
        for (mut bucket, mut values) in buckets {
            while let Some(request) = bucket.next(&mut values)? {
                request.perform(&mut Alone)?;
            }
            controller.close(bucket)?;
        }
        controller.finish_step()?;
    }
    let compressed = HELD.get()[1];
    let multiple = |bytes: usize| (bytes - before) as f64 / (4 * elements) as f64;
    Ok(([multiple(most.max(compressed)), multiple(compressed)], predicted))
}

pub(crate) const TOPK: fn(u32) -> Setting = |elements| Setting::TopK(TopK { keep: elements / 100, values: Dtype::F32 });
pub(crate) const QSGD: fn(u32) -> Setting = |_| Setting::Qsgd(Qsgd::default());
const POWERSGD: fn(u32) -> Setting = |_| Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 });
const ADACOMP: fn(u32) -> Setting = |_| Setting::AdaComp(AdaComp { bin: 500 });

/// The limits are multiples of the size of the gradients. The limits include scratch memory for the huge layer, which
/// has 30 % of the elements.
#[test]
fn memory_is_small_linear_and_known() {
    for (setting, storage, in_flight, target, route) in [
        (QSGD, Storage::F32, true, 0.5, Route::AllGather),
        (QSGD, Storage::F32, false, 0.5, Route::AllGather),
        (TOPK, Storage::F32, true, 1.5, Route::AllGather),
        (TOPK, Storage::F32, false, 1.5, Route::AllGather),
        (TOPK, Storage::Int8, true, 0.8, Route::AllGather),
        (POWERSGD, Storage::F32, true, 1.5, Route::AllGather),
        (ADACOMP, Storage::F32, true, 3.0, Route::Sharded),
        (ADACOMP, Storage::F32, false, 3.0, Route::Sharded),
    ] {
        let name = setting(512);
        let mut multiples = vec![];
        for scale in [1, 2] {
            let rows = model(scale);
            let elements = rows.iter().sum::<usize>() * COLUMNS;
            let ([most, compressed], predicted) =
                most(Config { route, ..config(setting, &rows, storage) }, &rows, in_flight).expect("sound steps");
            let known = (predicted.total() - predicted.window) as f64 / (4 * elements) as f64;
            let what = format!("{name}, residuals in {storage:?}, in flight: {in_flight}");
            assert!(compressed <= target, "{what}: {compressed} times the gradients, {target} allowed");
            // This rank is the measuring rank, which also stores the mean gradients of the window for a decision.
            assert!(most <= target + 1.0, "{what}: {most} times the gradients, {target} and 1 for the window allowed");
            assert!(
                (0.9..=1.1).contains(&(known / compressed)),
                "{what}: {compressed} times the gradients, {known} predicted: {predicted:?}"
            );
            multiples.push(compressed);
        }
        let [one, two] = multiples[..] else { unreachable!("two sizes") };
        assert!(two <= one + 0.02, "{name}: {one} and {two} times the gradients");
    }
}

/// Like `memory_is_small_linear_and_known`, for a model with 124 million parameters.
#[test]
#[ignore = "slow: see CONTRIBUTING.md"]
fn memory_of_a_real_size() {
    for (setting, target) in [(QSGD, 0.5), (TOPK, 1.5)] {
        let rows = model(56);
        let elements = rows.iter().sum::<usize>() * COLUMNS;
        let config = config(setting, &rows, Storage::F32);
        let ([most, compressed], predicted) = most(config, &rows, true).expect("sound steps");
        let known = (predicted.total() - predicted.window) as f64 / (4 * elements) as f64;
        assert!(compressed <= target && most <= target + 1.0, "{compressed}, then {most} times the gradients");
        assert!((0.9..=1.1).contains(&(known / compressed)), "{compressed} times the gradients, {known} predicted");
    }
}

/// If steps can be undone, residuals take twice the memory.
#[test]
fn undo_takes_the_residuals_again() {
    let rows = model(1);
    let config = Config { undo: true, ..config(TOPK, &rows, Storage::F32) };
    let ([_, compressed], predicted) = most(config, &rows, true).expect("sound steps");
    assert_eq!(predicted.undo, predicted.residuals);
    assert!((2.0..=2.5).contains(&compressed), "{compressed} times the gradients");
}
