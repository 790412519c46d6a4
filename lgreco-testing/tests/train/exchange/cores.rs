//! Tests of buckets whose layers are computed at the same time, with the feature `rayon`.

use super::failures::tamper_in;
use super::*;
use lgreco_train::CoreError;

/// Long and short layers of many methods, ordered so that each lane (a run of layers on one core) has several methods.
fn mixed() -> Vec<(Setting, Shape)> {
    let long = [
        (topk(4000), shape(300, 300)),
        (LOW_RANK, shape(400, 300)),
        (qsgd(4, 512, Rounding::Stochastic), shape(70_000, 1)),
    ];
    let short = [
        (Setting::Dense, shape(60, 50)),
        (qsgd(3, 100, Rounding::Nearest), shape(61, 50)),
        (LOW_RANK, shape(62, 50)),
        (topk(5), shape(63, 50)),
        (clt(70), shape(64, 50)),
        (loco(16), shape(65, 50)),
        (topk(0), shape(0, 3)),
        (topk(900), shape(30, 30)),
    ];
    [&hybrid()[..], &[short; 5].concat(), &long, &[short; 5].concat()].concat()
}

fn of_fixed_len() -> Vec<(Setting, Shape)> {
    mixed().into_iter().filter(|(setting, _)| setting.has_fixed_len()).collect()
}

fn in_pool<R: Send>(cores: usize, run: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap().install(run)
}

#[test]
fn any_number_of_cores_makes_the_same_means_and_contributions() {
    for (layers, route) in [
        (of_fixed_len(), Route::AllGather),
        (of_fixed_len(), Route::Sharded),
        (mixed(), Route::Sharded),
        (mixed(), Route::AllGather),
        (mixed(), Route::ScatterReduce),
    ] {
        let case = case(&layers, 2, route);
        let run = |cores| threads::run(2, |mut worker| in_pool(cores, || case.exchange(&mut worker, None)));
        let alone = run(1);
        assert!(alone.iter().all(Result::is_ok), "{:?}", alone.iter().filter_map(|r| r.as_ref().err()).next());
        for cores in [2, 3, 5] {
            assert!(run(cores) == alone, "{route:?}, {cores} cores");
        }
    }
}

/// If several layers on different cores cannot be sent, the error names the first one.
#[test]
fn the_first_error_is_that_of_one_core() {
    let narrow = Setting::TopK(TopK { keep: 9, values: Dtype::F16 });
    let mut case = case(&[(narrow, shape(100, 200)); 16], 1, Route::AllGather);
    for layer in [5, 9, 14] {
        case.gradients[0][layer][layer] = 1e6 * layer as f32;
    }
    let expected = Error::OfLayer { layer: 5, error: CoreError::ElementOverflow { index: 5, value: 5e6 } };
    for cores in [1, 2, 3, 5] {
        let found = in_pool(cores, || case.exchange(&mut ThreadCollective::group(1).remove(0), None));
        assert_eq!(found, Err(expected), "{cores} cores");
    }
}

/// If several payloads on different cores cannot be read, the error is about the first one.
#[test]
fn the_first_payload_that_cannot_be_read_is_that_of_one_core() {
    let setting = topk(9);
    let case = case(&[(setting, shape(100, 200)); 16], 2, Route::AllGather);
    let len = setting.payload_len(shape(100, 200), Dtype::F32).unwrap();
    // The positions of the magic byte and of the method in a layer's header. The message begins with 16 bytes of status
    // record.
    let (magic, method) = (|layer: usize| 16 + layer * len, |layer: usize| 16 + layer * len + 2);
    for (first, second, code) in [(magic(6), method(13), 40), (method(6), magic(13), 41), (method(3), magic(4), 41)] {
        for cores in [1, 2, 3, 5] {
            let results = tamper_in(&case, 1, &[first, second], 3, |exchange| in_pool(cores, exchange));
            assert_eq!(results, vec![Err(Error::PeerMessage { rank: 1, code }); 2], "{cores} cores");
        }
    }
}
