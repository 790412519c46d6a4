//! Tests of a gradient that is not finite on one rank.

use super::*;

#[test]
fn it_spoils_its_bucket_on_all_ranks() {
    for policy in [NonFinite::Error, NonFinite::Skip, NonFinite::PassThrough] {
        for (size, at, sent) in [((2, 2), 3, Dtype::Bf16), ((2, 3), 1, Dtype::F32), ((3, 2), 4, Dtype::F32)] {
            for value in [f32::NAN, f32::INFINITY] {
                let results = on_nodes(size, |place, node, peers| {
                    let mut config = with_undo(Method::TopK, Policy::Uniform);
                    (config.non_finite, config.search.reduce_dtype) = (policy, sent);
                    let mut training = new(config, place);
                    (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
                    let residuals = |training: &TwoLevel| [0, 2].map(|layer| residual(training.controller(), layer));
                    let before = residuals(&training);
                    let mut values = values(place.rank(), 4);
                    if place.rank() == at {
                        values[0][7] = value;
                    }
                    let (report, results) = overlapped(&mut training, node, peers, &mut values, None);
                    let after = residuals(&training);
                    assert!(before[0] == after[0], "the spoilt bucket leaves residuals");
                    assert_eq!(before[1] == after[1], policy == NonFinite::Skip, "{policy:?}");
                    assert_eq!(training.controller().non_finite_steps(), 1);
                    step(&mut training, node, peers).unwrap();
                    (report.outcome, results, values)
                });
                for (rank, (outcome, results, values)) in (0..).zip(results) {
                    assert_eq!(results[..2], [Ok(()); 2]);
                    match policy {
                        NonFinite::Error => {
                            let told = Error::Peer { rank: at, code: 101 };
                            match results[2] {
                                Err(Error::NonFiniteGradient { layer: 0, index: 7, .. }) => assert_eq!(rank, at),
                                result => assert_eq!(result, Err(told), "rank {rank}"),
                            }
                            assert_eq!(outcome, Outcome::Failed);
                        }
                        NonFinite::Skip => {
                            assert_eq!((outcome, results[2]), (Outcome::Skipped, Ok(())));
                            assert!(values[0].iter().chain(&values[1]).all(|&x| x == 0.0));
                        }
                        NonFinite::PassThrough => {
                            assert_eq!((outcome, results[2]), (Outcome::PassedThrough, Ok(())));
                            assert!(values[0].iter().chain(&values[1]).all(|x| x.is_nan()));
                        }
                    }
                }
            }
        }
    }
}
