//! Buckets whose gradients are one piece of memory: one collective sums all layers that are not compressed.

use super::*;
use lgreco_train::controller::Joined;
use lgreco_train::exchange::{Collective, Request};

/// Layers of one bucket, small and large. The largest is summed in place in any case.
const ELEMENTS: [usize; 4] = [3, 1 << 16, 64, 1000];
const ALL: usize = 3 + (1 << 16) + 64 + 1000;

fn controller(worker: &ThreadCollective, settings: Option<Vec<Setting>>) -> Controller {
    let mut config = config(Method::Qsgd, Policy::Uncompressed);
    if let Some(settings) = settings {
        config.policy = Policy::Fixed(settings);
    }
    let tensors = ELEMENTS.iter().enumerate();
    let tensors = tensors.map(|(at, &elements)| Tensor::new(&format!("{at}"), &[elements], Dtype::F32).unwrap());
    Controller::new(config, tensors.collect(), worker.rank(), worker.world_size()).unwrap()
}

fn gradient(rank: u32) -> Vec<f32> {
    (0..ALL).map(|at| ((at * 37 + rank as usize * 101) % 257) as f32 - 128.0).collect()
}

fn layers(values: &mut [f32]) -> Vec<ValuesMut<'_>> {
    let mut rest = values;
    ELEMENTS.map(|elements| ValuesMut::F32(rest.split_off_mut(..elements).unwrap())).into()
}

/// Takes a step with one bucket. Returns the kinds of its collectives, in order, and its result. A rank that `fails` submits no
/// gradients.
fn step(
    controller: &mut Controller,
    worker: &mut ThreadCollective,
    values: &mut [f32],
    joins: bool,
    fails: bool,
) -> (Vec<String>, Result<(), Error>) {
    controller.begin_step(1.0).unwrap();
    while let Some(request) = controller.control().unwrap() {
        request.perform(worker).unwrap();
    }
    let mut bucket = controller.open(&[0, 1, 2, 3]).unwrap();
    let joined = joins && bucket.join().unwrap();
    match fails {
        true => bucket.submit_failure(Error::NonFiniteGradient { layer: 0, index: 0, value: f32::NAN }).unwrap(),
        false => bucket.submit(&mut layers(values)).unwrap(),
    }
    let mut told = vec![];
    let result = loop {
        let mut present = if fails { vec![] } else { layers(values) };
        match bucket.next_joined(&mut present) {
            Ok(Some(Joined::Request(request))) => {
                told.push(match &request {
                    Request::AllReduceSum { values } => format!("sum {}", values.len()),
                    Request::AllGather { .. } => "all-gather".to_owned(),
                    other => format!("{other:?}"),
                });
                request.perform(worker).unwrap();
            }
            Ok(Some(Joined::Gradients)) => {
                assert!(joined);
                drop(present);
                told.push("gradients".into());
                worker.all_reduce_sum(values).unwrap();
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    controller.close(bucket).unwrap();
    controller.finish_step().unwrap();
    (told, result)
}

#[test]
fn one_collective_sums_a_whole_bucket() {
    on_all(3, |mut worker| {
        let [mut joined, mut apart] = [None, None].map(|settings| controller(&worker, settings));
        let mut alone: Vec<f32> = gradient(worker.rank());
        for at in 0..3 {
            let (mut one, mut other) = (gradient(worker.rank()), gradient(worker.rank()));
            let (told, result) = step(&mut joined, &mut worker, &mut one, true, false);
            assert_eq!(result, Ok(()));
            let sums: Vec<&str> = told.iter().map(|kind| &**kind).filter(|kind| *kind != "all-gather").collect();
            // Before the sum, ranks tell each other whether one has failed. The first bucket also compares layers.
            assert_eq!((sums.len(), sums[1], told.len()), (2, "gradients", if at == 0 { 3 } else { 2 }), "{told:?}");
            let (told, _) = step(&mut apart, &mut worker, &mut other, false, false);
            assert!(told.contains(&format!("sum {}", 1 << 16)) && !told.contains(&"gradients".to_owned()), "{told:?}");
            assert_eq!(one, other);
            alone.copy_from_slice(&one);
        }
        let sums = (0..3).map(gradient).reduce(|sum, one| sum.iter().zip(one).map(|(a, b)| a + b).collect()).unwrap();
        for (mean, sum) in alone.iter().zip(sums) {
            assert!((mean - sum / 3.0).abs() <= 1e-4, "{mean} {sum}");
        }
    });
}

#[test]
fn a_rank_that_fails_is_known_before_the_bucket_is_summed() {
    on_all(2, |mut worker| {
        let mut controller = controller(&worker, None);
        for at in 0..4 {
            let mut values = gradient(worker.rank());
            let fails = at == 2 && worker.rank() == 1;
            let (told, result) = step(&mut controller, &mut worker, &mut values, true, fails);
            assert_eq!(result.is_ok(), at != 2);
            assert_eq!(told.contains(&"gradients".to_owned()), at != 2, "{told:?}");
        }
    });
}

/// One all-reduce carries both the status and the values of a small bucket, so two would be slower.
#[test]
fn small_buckets_are_not_joined() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut controller = controller(&worker, None);
    controller.begin_step(1.0).unwrap();
    while let Some(request) = controller.control().unwrap() {
        request.perform(&mut worker).unwrap();
    }
    for (layers, joins) in [(vec![0, 2, 3], false), (vec![1], true)] {
        let mut bucket = controller.open(&layers).unwrap();
        assert_eq!(bucket.join().unwrap(), joins, "{layers:?}");
        controller.close(bucket).unwrap();
    }
}

#[test]
fn a_bucket_with_a_compressed_layer_is_exchanged_as_before() {
    on_all(2, |mut worker| {
        let mut settings = vec![Setting::Dense; 4];
        settings[1] = "qsgd 4".parse().unwrap();
        let mut controller = controller(&worker, Some(settings));
        for at in 0..4 {
            let mut values = gradient(worker.rank());
            let (told, result) = step(&mut controller, &mut worker, &mut values, true, false);
            assert_eq!(result, Ok(()));
            let is_warm_up = at < 2;
            assert_eq!(told.contains(&"gradients".to_owned()), is_warm_up, "{told:?}");
        }
    });
}
