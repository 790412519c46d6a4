//! Tests of exchanges that sum values on the network as bf16.

use super::*;

fn program(setting: Setting, route: Route, shards: &[u64]) -> Program {
    let moment = Moment { rank: 1, world_size: 2, route, reduce_dtype: Dtype::Bf16, seed: 1, step: 0, terms: 0 };
    let spec = Spec { shards, ..Spec::from((setting, shape(10, 10), Dtype::F32)) };
    Program::new([spec].into_iter(), moment, Agreement::Reached, 0).unwrap()
}

/// Values take two bytes. Each rank's status record adds three values.
#[test]
fn sums_take_half_the_bytes() {
    let rounds = |setting, route, shards: &[u64]| -> Vec<_> {
        let spec = Spec { shards, ..Spec::from((setting, shape(10, 10), Dtype::F32)) };
        program(setting, route, shards).rounds([spec].into_iter()).map(|(_, round)| round).collect()
    };
    let whole = Round::AllReduceSumBf16 { values: 100 + 2 * 3 };
    assert_eq!(rounds(Setting::Dense, Route::AllGather, &[]), [whole]);
    let scattered = Round::ReduceScatterSumBf16 { values: 100 + 2 * 2 * 3, own: 60 + 2 * 3 };
    assert_eq!(rounds(Setting::Dense, Route::Sharded, &[40, 100]), [scattered]);
    assert_eq!(rounds(LOW_RANK, Route::AllGather, &[]), [Round::AllReduceSumBf16 { values: 20 + 2 * 3 }; 2]);
}

#[test]
fn f16_is_refused() {
    let moment = Moment { reduce_dtype: Dtype::F16, ..program(Setting::Dense, Route::AllGather, &[]).moment };
    let mut host = Host { layers: &mut [], workspace: &mut [], scratch: None };
    let refused = Flight::begin(&mut host, moment, Agreement::Reached, None).unwrap_err();
    assert_eq!(refused.to_string(), "code of the reduce dtype is 1, expected f32 (0) or bf16 (2)");
}

/// If ranks would sum different types, they get an error before anything else is exchanged.
#[test]
fn ranks_that_sum_different_types_are_told() {
    let whole = case(&[(LOW_RANK, shape(12, 10)), (Setting::Dense, shape(7, 1))], 3, Route::AllGather);
    let results = threads::run(3, |mut worker| {
        let case = if worker.rank() == 1 { halved(&whole) } else { whole.clone() };
        case.exchange(&mut worker, None).map(drop)
    });
    assert_eq!(results, [Err(Error::PeerPlan { rank: 1 }); 3]);
}

/// The rounding error of sent values stays in the residual.
#[test]
fn residuals_keep_what_rounding_leaves() {
    let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
    for (setting, route) in [
        (Setting::Dense, Route::AllGather),
        (Setting::Dense, Route::Sharded),
        (clt(20), Route::AllGather),
        (setting, Route::AllGather),
    ] {
        let halves = halved(&case(&[(setting, shape(9, 8))], 2, route));
        let shards = [31, 72];
        let outcomes = threads::run(2, |mut worker| {
            let rank = worker.rank();
            let sent = halves.gradients[rank as usize][0].clone();
            let (mut left, mut values) = (sent.clone(), sent.clone());
            let shards = if route == Route::Sharded { &shards[..] } else { &[] };
            let spec = Spec { shards, ..Spec::from((setting, shape(9, 8), Dtype::F32)) };
            let mut factor = vec![0.0; if matches!(setting, Setting::PowerSgd(_)) { 2 * 8 } else { 0 }];
            let rest = Rest::Instead(&mut left);
            let layer = Layer::new(0, setting, shape(9, 8), ValuesMut::F32(&mut values), rest);
            let layer = Layer { factor: &mut factor, ..layer.with_shards(shards) };
            let words = workspace_len([spec].into_iter(), route, 2).unwrap();
            let mut host = Host { layers: &mut [layer], workspace: &mut vec![0; words], scratch: None };
            let world_size = 2;
            let moment = Moment { rank, world_size, route, reduce_dtype: Dtype::Bf16, seed: 5, step: 0, terms: 0 };
            let mut flight = Flight::begin(&mut host, moment, Agreement::Needed, None).unwrap();
            while let Some(request) = flight.next(&mut host).unwrap() {
                request.perform(&mut worker).unwrap();
            }
            let rounded = |x: f32| Bf16::from_f32(x).to_f32();
            for (at, (&sent, &left)) in sent.iter().zip(&left).enumerate() {
                let contribution = match setting {
                    Setting::Dense => rounded(sent),
                    Setting::CltK(_) if left != sent => rounded(sent),
                    Setting::CltK(_) => 0.0,
                    _ => continue, // a factor's contribution is only known from the mean
                };
                assert_eq!(sent - contribution, left, "{setting}: of element {at} something is lost");
            }
            assert!(sent.iter().zip(&left).filter(|(sent, left)| **left != 0.0 && left != sent).count() > 10);
            values
        });
        assert!(outcomes.iter().all(|mean| mean.iter().any(|&x| x != 0.0)));
    }
}

/// A worker's contribution consists of its rounded values and factors. The contribution of a single worker is the mean.
#[test]
fn alone_the_mean_is_the_contribution() {
    for layer in [(Setting::Dense, shape(7, 5)), (clt(9), shape(6, 6)), (LOW_RANK, shape(12, 10))] {
        for outcome in halved(&case(&[layer], 1, Route::AllGather)).run() {
            let Outcome { mean, own, .. } = outcome.unwrap();
            for (mean, own) in mean.concat().iter().zip(own.concat()) {
                let rounding = if layer.0 == LOW_RANK { 1e-6 } else { 0.0 };
                assert!((mean - own).abs() <= rounding, "{}: the mean is {mean}, the contribution {own}", layer.0);
            }
        }
    }
}
