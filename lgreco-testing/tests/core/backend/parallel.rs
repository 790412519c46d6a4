use lgreco::backend::*;
use lgreco::compress::{Candidates, qsgd::Qsgd};
use lgreco::gradient::{Dtype, Shape, Values};
use lgreco::rng::Stream;
use lgreco::{Error, gradient::Gradient};
use lgreco_testing::powersgd::uniform;

#[test]
fn results_are_those_of_one_core_bit_for_bit() {
    let mut tensors: Vec<(Shape, Vec<f32>)> = (1..12)
        .map(|i| (Shape::new(17 * i, 130 - 9 * i).unwrap(), uniform(17 * i * (130 - 9 * i), i as u64)))
        .collect();
    let rows_of = |tensors: &[(Shape, Vec<f32>)]| {
        let jobs: Vec<Job<'_>> = tensors
            .iter()
            .enumerate()
            .map(|(i, (shape, values))| Job {
                gradient: Gradient::new(Values::F32(values), *shape).unwrap(),
                candidates: match i % 3 {
                    0 => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4, 8] },
                    1 => Candidates::TopK { values: Dtype::F32, keeps: &[1, 100, 7] },
                    _ => Candidates::PowerSgd { iterations: 2, ranks: &[1, 4] },
                },
                stream: Stream { seed: 3, layer: i as u32, ..Stream::default() },
            })
            .collect();
        let places = jobs.iter().map(|job| job.candidates.len()).sum();
        let (mut here, mut spread) = (vec![f64::NAN; places], vec![f64::NAN; places]);
        let mut workspace = vec![!0; Portable.workspace_len(&jobs)];
        let one = Portable.measure(&jobs, &mut workspace, &mut here);
        let all = Parallel.measure(&jobs, &mut [], &mut spread);
        let bits = |rows: Vec<f64>| rows.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        ((one, bits(here)), (all, bits(spread)))
    };
    let (one, all) = rows_of(&tensors);
    assert_eq!(one.0, Ok(()));
    assert_eq!(one, all);
    (tensors[4].1[33], tensors[9].1[5]) = (f32::INFINITY, f32::INFINITY);
    let (one, all) = rows_of(&tensors);
    let first = JobError { job: Some(4), error: Error::NonFinite { index: 33, value: f32::INFINITY } };
    assert_eq!((one.0, all.0), (Err(first), Err(first)));
}
