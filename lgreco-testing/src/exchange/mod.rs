//! Tests aggregation against exact means. Workers are threads. Every property must hold for every setting and route.

use crate::{adacomp, hard_threshold::expected, quantised_topk, topk::order};
use lgreco_train::Error;
use lgreco_train::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_train::compress::sidco::SMALLEST;
use lgreco_train::compress::{Setting, adacomp::AdaComp, clt::CltK, topk::TopK};
use lgreco_train::exchange::Route;
use lgreco_train::exchange::threads;
use lgreco_train::gradient::{Bf16, Dtype, Element};

mod case;
mod device;
mod members;
mod near;
mod network;
mod shards;
mod space;
mod through;

use case::difference;
pub use case::{Case, Outcome};
pub use members::{Member, damaged_members, members};
pub use shards::{parts, shards};
pub use space::{Bucket, OnHost, check_message, check_space, check_space_damage, check_space_failures, on_host};
pub use through::Through;

/// Initial content of workspaces, on which results must not depend.
const STALE: u64 = 0xa5a5_5a5a_7f80_ffff;

/// The mean by element, exact up to the rounding of f64.
fn mean_of<'a>(values: impl Iterator<Item = &'a [f32]> + Clone) -> Vec<f64> {
    let world = values.clone().count() as f64;
    let len = values.clone().next().map_or(0, <[f32]>::len);
    (0..len).map(|i| values.clone().map(|v| v[i] as f64).sum::<f64>() / world).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Elements per quantiser bucket, and a function that returns the step of a bucket's grid from the bucket's smallest
/// and largest value.
fn quantiser(setting: Setting) -> Option<(u32, impl Fn(f64, f64) -> f64)> {
    let bucket = match setting {
        Setting::Qsgd(c) => c.bucket,
        Setting::LoCo(c) => c.group,
        _ => return None,
    };
    let step = move |low: f64, high: f64| match setting {
        Setting::Qsgd(c) if c.scale == Scale::MinMax => (high - low) / ((1u32 << c.bits) - 1) as f64,
        Setting::Qsgd(c) if c.bits == 1 => 2.0 * high.max(-low),
        Setting::Qsgd(c) => high.max(-low) / ((1u32 << (c.bits - 1)) - 1) as f64,
        _ => high.max(-low) / 8.0,
    };
    Some((bucket, step))
}

/// For each element on one worker: the largest magnitude in the element's quantiser bucket, and the step of the
/// bucket's grid. Each piece of a layer starts a new bucket.
fn grid((bucket, step): &(u32, impl Fn(f64, f64) -> f64), values: &[f32], ends: &[u64]) -> Vec<(f64, f64)> {
    let mut grid = Vec::new();
    let mut start = 0;
    let pieces = ends.iter().map(|&end| &values[core::mem::replace(&mut start, end as usize)..end as usize]);
    for bucket in pieces.flat_map(|piece| piece.chunks(*bucket as usize)) {
        let low = bucket.iter().fold(f64::INFINITY, |a, &x| a.min(x as f64));
        let high = bucket.iter().fold(f64::NEG_INFINITY, |a, &x| a.max(x as f64));
        grid.extend(bucket.iter().map(|_| (high.max(-low), step(low, high))));
    }
    grid
}

/// Runs the case and checks properties that hold for any values. All ranks get means with the same bits. The mean of
/// the contributions is the exchanged mean. Dense layers, and TopK that keeps everything, are exact up to rounding.
/// TopK contributes the largest elements, and CLT-k those at the leader's positions. Errors of quantisers are at most
/// one step of their grid. For methods without random bits and leaders, the order of the ranks does not matter.
///
/// # Panics
/// Panics if a check fails, or a gradient is not finite.
pub fn check(case: &Case) {
    let outcomes: Vec<Outcome> = case.run().into_iter().map(|outcome| outcome.unwrap()).collect();
    for (outcome, on_device) in outcomes.iter().zip(case.run_on_devices()) {
        assert_eq!(outcome.bits(), on_device.unwrap().bits(), "a device ends otherwise");
    }
    let mut rotated = case.clone();
    rotated.gradients.rotate_left(1);
    let rotated = rotated.run().swap_remove(0).unwrap();
    for (l, &(setting, _)) in case.layers.iter().enumerate() {
        let mean = &outcomes[0].mean[l];
        for outcome in &outcomes {
            assert_eq!(bits(mean), bits(&outcome.mean[l]), "{setting}: ranks differ");
            assert_eq!(bits(&outcomes[0].factors[l]), bits(&outcome.factors[l]), "{setting}: factors differ");
        }
        let rounding = rounding(case, l, &outcomes);
        let contributed = mean_of(outcomes.iter().map(|outcome| &outcome.own[l][..]));
        for i in 0..mean.len() {
            let off = (mean[i] as f64 - contributed[i]).abs();
            assert!(off <= rounding[i], "{setting}: element {i} of the mean is {off} off the contributions");
        }
        check_errors(case, l, &outcomes, &rounding);
        // Each rank has different random bits.
        let random = matches!(setting, Setting::Qsgd(Qsgd { rounding: Rounding::Stochastic, .. }) | Setting::Eden(_));
        let stable = !matches!(setting, Setting::PowerSgd(_) | Setting::CltK(_)) && !random;
        if stable && (case.route == Route::AllGather || setting == Setting::Dense) {
            for i in 0..mean.len() {
                let off = (mean[i] as f64 - rotated.mean[l][i] as f64).abs();
                assert!(off <= 2.0 * rounding[i], "{setting}: element {i} depends on the order of ranks by {off}");
            }
        }
    }
}

/// Bound on the rounding of sums over workers. Each operation (additions, division and earlier ones) errs by at most
/// 2^-24 of the summed magnitudes, or by 2^-9 if values are summed as bf16.
fn rounding(case: &Case, layer: usize, outcomes: &[Outcome]) -> Vec<f64> {
    let world = case.world() as f64;
    let summed = matches!(case.layers[layer].0, Setting::Dense | Setting::PowerSgd(_) | Setting::CltK(_));
    let unit = if summed && case.reduce_dtype == Dtype::Bf16 { 1.0 / 256.0 } else { f32::EPSILON as f64 };
    let rank = match case.layers[layer].0 {
        Setting::PowerSgd(c) => c.rank as f64,
        _ => 0.0,
    };
    // In a product of factors, the error of an element may be proportional to the largest possible element.
    let norms = |values: &[f32]| f64::sqrt(values.iter().map(|&x| x as f64 * x as f64).sum());
    let product: f64 = case.gradients.iter().map(|worker| rank * norms(&worker[layer])).sum();
    let magnitude = |i: usize| {
        let sum = case.gradients.iter().map(|worker| worker[layer][i].abs() as f64).sum::<f64>();
        let own = outcomes.iter().map(|outcome| outcome.own[layer][i].abs() as f64).sum::<f64>();
        sum + own + world * outcomes[0].mean[layer][i].abs() as f64 + product
    };
    let len = outcomes[0].mean[layer].len();
    (0..len).map(|i| (world + 4.0) * unit * magnitude(i) + world * 1e-44).collect()
}

/// Checks contributions and mean against the gradients.
fn check_errors(case: &Case, l: usize, outcomes: &[Outcome], rounding: &[f64]) {
    let (setting, shape) = case.layers[l];
    let gradients = || case.gradients.iter().map(|worker| &worker[l][..]);
    let (mean, exact) = (&outcomes[0].mean[l], mean_of(gradients()));
    let off = |i: usize| (mean[i] as f64 - exact[i]).abs();
    let sent = |gradient: &[f32]| -> Vec<f32> {
        let rounded = |&x: &f32| if case.reduce_dtype == Dtype::Bf16 { Bf16::from_f32(x).to_f32() } else { x };
        gradient.iter().map(rounded).collect()
    };
    match setting {
        Setting::Dense => {
            for (outcome, gradient) in outcomes.iter().zip(gradients()) {
                assert_eq!(
                    bits(&outcome.rest[l]),
                    bits(&difference(gradient, &sent(gradient))),
                    "dense layers contribute their gradients"
                );
            }
            (0..mean.len()).for_each(|i| assert!(off(i) <= rounding[i], "dense: element {i} is {} off", off(i)));
        }
        Setting::TopK(TopK { keep, values: Dtype::F32 }) if keep as usize == shape.elements() => {
            (0..mean.len()).for_each(|i| assert!(off(i) <= rounding[i], "topk of all: element {i} is {} off", off(i)));
        }
        Setting::TopK(TopK { keep, values: Dtype::F32 }) if case.route == Route::AllGather => {
            for (outcome, gradient) in outcomes.iter().zip(gradients()) {
                let mut kept = vec![0.0; gradient.len()];
                order(gradient)[..keep as usize].iter().for_each(|&i| kept[i] = gradient[i]);
                assert_eq!(
                    bits(&outcome.rest[l]),
                    bits(&difference(gradient, &kept)),
                    "topk contributes the largest elements"
                );
            }
        }
        Setting::QuantisedTopK(top) if case.route == Route::AllGather => {
            for (outcome, gradient) in outcomes.iter().zip(gradients()) {
                let sent = quantised_topk::expected(gradient, top);
                assert_eq!(
                    bits(&outcome.rest[l]),
                    bits(&difference(gradient, &sent)),
                    "topk in few bits contributes the means of its bins"
                );
            }
        }
        Setting::HardThreshold(hard) => {
            for (outcome, gradient) in outcomes.iter().zip(gradients()) {
                let (sent, _) = expected(gradient, hard).expect("finite gradients");
                assert_eq!(
                    bits(&outcome.rest[l]),
                    bits(&difference(gradient, &sent)),
                    "hard thresholds contribute what reaches them"
                );
            }
        }
        Setting::CltK(CltK { keep }) => {
            let leader = &case.gradients[(case.step % case.world()) as usize][l];
            let mut chosen = vec![false; leader.len()];
            order(leader)[..keep as usize].iter().for_each(|&i| chosen[i] = true);
            for (outcome, gradient) in outcomes.iter().zip(gradients()) {
                let there = sent(gradient).into_iter().zip(&chosen);
                let there: Vec<f32> = there.map(|(x, &c)| if c { x } else { 0.0 }).collect();
                assert_eq!(
                    bits(&outcome.rest[l]),
                    bits(&difference(gradient, &there)),
                    "clt-k contributes values at the leader's positions"
                );
            }
            for i in 0..mean.len() {
                // All ranks select the same positions, so the mean of the selected values is the mean of all values at
                // these positions.
                let expected = if chosen[i] { exact[i] } else { 0.0 };
                assert!((mean[i] as f64 - expected).abs() <= rounding[i], "clt-k: element {i} is {}", mean[i]);
            }
        }
        Setting::AdaComp(AdaComp { bin }) => {
            for (outcome, gradient) in outcomes.iter().zip(gradients()) {
                let sent = adacomp::expected(bin as usize, gradient, gradient);
                assert_eq!(
                    bits(&outcome.rest[l]),
                    bits(&difference(gradient, &sent)),
                    "adacomp contributes what stands out of its bins"
                );
            }
        }
        Setting::Sidco(sidco) if shape.elements() < SMALLEST => {
            for (outcome, gradient) in outcomes.iter().zip(gradients()) {
                let keep = TopK::with_density(sidco.density, gradient.len(), Dtype::F32).expect("a density").keep;
                let mut kept = vec![0.0; gradient.len()];
                // If all values are zeros, of either sign, nothing is sent.
                let sent = if gradient.iter().all(|&x| x == 0.0) { 0 } else { keep as usize };
                order(gradient)[..sent].iter().for_each(|&i| kept[i] = gradient[i]);
                assert_eq!(
                    bits(&outcome.rest[l]),
                    bits(&difference(gradient, &kept)),
                    "sidco contributes the largest elements of a small layer"
                );
            }
        }
        Setting::Qsgd(_) | Setting::LoCo(_) => {
            let quantiser = quantiser(setting).expect("a quantiser");
            let ends = match case.route {
                Route::Sharded => case.shards().swap_remove(l),
                _ => vec![mean.len() as u64],
            };
            let grids: Vec<_> = gradients().map(|gradient| grid(&quantiser, gradient, &ends)).collect();
            let world = case.world() as f64;
            for (i, rounding) in rounding.iter().enumerate() {
                let mut allowed = grids.iter().map(|grid| grid[i].1).sum::<f64>() / world;
                if case.route == Route::ScatterReduce {
                    let norm = grids.iter().map(|grid| grid[i].0 + grid[i].1).sum::<f64>() / world;
                    // The step of the grid is proportional to the mean's norm; `quantiser.1` returns the step for norm
                    // 1.
                    allowed += quantiser.1(-1.0, 1.0) * norm;
                }
                let room = grids.iter().map(|grid| grid[i].0).sum::<f64>() * 1e-6;
                assert!(
                    off(i) <= allowed + room + rounding,
                    "{setting}: element {i} is {} off, {allowed} allowed",
                    off(i)
                );
            }
        }
        _ => {}
    }
}

/// Puts a NaN into the last worker's first non-empty layer. The worker with the NaN must get
/// [`Error::NonFiniteGradient`], and the other workers [`Error::Peer`] with its rank. Then the same workers must
/// exchange the sound case as if nothing had happened.
///
/// # Panics
/// Panics if a check fails, or the case has no elements.
pub fn check_failure(case: &Case) {
    let (last, layer) = (case.gradients.len() - 1, case.layers.iter().position(|(_, s)| s.elements() > 0));
    let layer = layer.expect("a case with elements");
    let mut broken = case.clone();
    let index = broken.gradients[last][layer].len() / 2;
    broken.gradients[last][layer][index] = f32::NAN;
    let results =
        threads::run(case.world(), |mut worker| (broken.exchange(&mut worker, None), case.exchange(&mut worker, None)));
    let sound = case.run();
    let (failed, after): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    assert_eq!(case.assembled(after), sound);
    for ((rank, failed), on_device) in failed.into_iter().enumerate().zip(broken.run_on_devices()) {
        let code = |result: &Result<Outcome, Error>| result.as_ref().err().map(Error::code);
        assert_eq!(code(&failed), code(&on_device), "a device fails otherwise");
        match failed {
            Err(Error::NonFiniteGradient { layer: named, index: found, value }) if rank == last => {
                assert!((named, found) == (layer, index) && value.is_nan());
            }
            Err(Error::Peer { rank: named, code: 101 }) if rank != last => assert_eq!(named as usize, last),
            other => panic!("rank {rank}: {other:?}"),
        }
    }
}
