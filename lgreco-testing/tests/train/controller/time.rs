//! The time model and plans that minimise seconds.

use super::*;
use std::sync::Arc;

/// Gaussian elimination with pivoting on the normal equations with an intercept.
fn textbook(samples: &[(Vec<u64>, f64)]) -> Vec<f64> {
    let columns = samples[0].0.len() + 1;
    let row = |bytes: &[u64]| bytes.iter().map(|&b| b as f64).chain([1.0]).collect::<Vec<_>>();
    let mut system = vec![vec![0.0; columns + 1]; columns];
    for (bytes, seconds) in samples {
        let row = row(bytes);
        for i in 0..columns {
            (0..columns).for_each(|j| system[i][j] += row[i] * row[j]);
            system[i][columns] += row[i] * seconds;
        }
    }
    for i in 0..columns {
        let pivot = (i..columns).max_by(|&a, &b| system[a][i].abs().total_cmp(&system[b][i].abs())).unwrap();
        system.swap(i, pivot);
        for j in 0..columns {
            if j != i {
                let factor = system[j][i] / system[i][i];
                (0..=columns).for_each(|k| system[j][k] -= factor * system[i][k]);
            }
        }
    }
    (0..columns).map(|i| system[i][columns] / system[i][i]).collect()
}

proptest! {
    #[test]
    fn the_fit_is_the_textbooks(
        samples in prop::collection::vec((prop::collection::vec(0u64..1000, 3), 0.0f64..1.0), 8..30),
        slopes in prop::array::uniform3(1u32..100),
    ) {
        // Times that grow with bytes, with some noise.
        let samples: Vec<_> = samples.into_iter().map(|(bytes, noise)| {
            let seconds = bytes.iter().zip(slopes).map(|(&b, slope)| b as f64 * slope as f64 * 1e-3).sum::<f64>();
            (bytes, 2.0 + seconds + noise)
        }).collect();
        let mut model = TimeModel::new(3);
        samples.iter().for_each(|(bytes, seconds)| model.record(bytes, *seconds).unwrap());
        let (fit, expected) = (model.fit(), textbook(&samples));
        if expected[..3].iter().all(|&slope| slope > 1e-6) {
            prop_assert_eq!(fit.kind, FitKind::PerBucket);
            let found = fit.seconds_per_byte.iter().chain([&fit.constant]);
            found.zip(&expected).for_each(|(a, b)| assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{a} {b}"));
        } else {
            prop_assert!(fit.kind != FitKind::PerBucket || fit.seconds_per_byte.iter().all(|&slope| slope >= 0.0));
        }
    }
}

fn fit(buckets: usize, samples: &[(&[u64], f64)]) -> Fit {
    let mut model = TimeModel::new(buckets);
    samples.iter().for_each(|(bytes, seconds)| model.record(bytes, *seconds).unwrap());
    assert_eq!(model.samples(), samples.len() as u64);
    model.fit()
}

#[test]
fn degenerate_samples_have_decided_fits() {
    // None at all, one, and ones that never vary.
    assert_eq!(fit(2, &[]), Fit { kind: FitKind::None, seconds_per_byte: vec![], constant: 0.0 });
    assert_eq!(fit(1, &[(&[5], 3.0)]), Fit { kind: FitKind::None, seconds_per_byte: vec![], constant: 3.0 });
    assert_eq!(fit(1, &[(&[5], 3.0), (&[5], 4.0), (&[5], 5.0)]).kind, FitKind::None);
    // Too few for two slopes; in proportion; a slope that would be negative.
    for samples in [
        &[(&[1, 1][..], 1.0), (&[2, 2], 2.0)][..],
        &[(&[1, 1], 1.0), (&[2, 2], 2.0), (&[3, 3], 3.0), (&[4, 4], 4.0)],
        &[(&[0, 0], 0.0), (&[4, 0], 4.0), (&[0, 2], -0.0), (&[4, 2], 3.0)],
    ] {
        let Fit { kind, seconds_per_byte, .. } = fit(2, samples);
        assert_eq!(kind, FitKind::Pooled);
        assert!(seconds_per_byte[0] == seconds_per_byte[1] && seconds_per_byte[0] > 0.0);
    }
    assert_eq!(fit(2, &[(&[1, 1], 1.0), (&[2, 2], 2.0)]).seconds_per_byte, [0.5; 2]);
    // Times that fall with bytes.
    assert_eq!(fit(1, &[(&[1], 3.0), (&[2], 2.0), (&[3], 1.0)]).kind, FitKind::None);
    // No buckets.
    assert_eq!(fit(0, &[(&[], 1.0), (&[], 2.0)]).constant, 1.5);
}

#[test]
fn samples_that_are_none_are_refused() {
    let mut model = TimeModel::new(1);
    for seconds in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(matches!(model.record(&[1], seconds), Err(Error::Core(CoreError::Parameter { .. }))));
    }
    assert!(matches!(model.record(&[1, 2], 1.0), Err(Error::Core(CoreError::Length { .. }))));
    assert_eq!(model, TimeModel::new(1));
}

/// Buckets of one layer each, exchanged at so many bytes per second, and compressors that take a microsecond per layer.
fn plan_over(bytes_per_second: [f64; 3]) -> (Decision, Vec<Option<Uncompressed>>) {
    on_all(2, |mut worker| {
        let mut config = config(Method::Qsgd, LGRECO);
        config.objective =
            Objective::Seconds(Arc::new(|setting, _| if *setting == Setting::Dense { 0.0 } else { 1e-6 }));
        config.bucket_bytes = 0;
        let mut controller = Controller::new(config, model(), &worker).unwrap();
        // Only the measuring rank's samples count.
        if worker.rank() == 0 {
            for bytes in [[1000, 0, 0], [0, 1000, 0], [0, 0, 1000], [0, 0, 0], [1000, 1000, 0]] {
                let seconds = bytes.iter().zip(bytes_per_second).map(|(&bytes, speed)| bytes as f64 / speed).sum();
                controller.record_sync(&bytes, seconds).unwrap();
            }
        }
        (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        let reasons = (0..3).map(|layer| controller.metrics(layer).uncompressed).collect();
        (*controller.decision().unwrap(), reasons)
    })
}

#[test]
fn a_plan_turns_itself_off_where_compression_does_not_pay_and_says_so() {
    let small = Some(Uncompressed::Small);
    let (slow, reasons) = plan_over([1e6; 3]);
    assert_eq!((slow.fit, slow.pays(), slow.slower), (Some(FitKind::PerBucket), Some(true), 0));
    assert_eq!(reasons, [None, small, None]);

    let (fast, reasons) = plan_over([1e12; 3]);
    let slower = Some(Uncompressed::Slower);
    assert_eq!((fast.fit, fast.pays(), fast.slower), (Some(FitKind::PerBucket), Some(false), 2));
    assert_eq!(reasons, [slower, small, slower]);
    let (mixed, reasons) = plan_over([1e12, 1e12, 1e6]);
    assert_eq!((mixed.pays(), mixed.slower), (Some(true), 1));
    assert_eq!(reasons, [slower, small, None]);
    // Picoseconds for 16 + 4 · (384 + 320) bytes and another header.
    let plan = fast.plan.unwrap();
    assert!(plan.size.abs_diff(32 + 4 * (384 + 320)) <= 2 && plan.size == fast.uncompressed_size, "{fast:?}");
}

#[test]
fn without_a_fit_bits_are_minimised_and_the_decision_says_so() {
    let bits = |objective: fn() -> Objective| {
        on_all(2, |mut worker| {
            let mut config = config(Method::Qsgd, LGRECO);
            config.objective = objective();
            let mut controller = Controller::new(config, model(), &worker).unwrap();
            (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
            *controller.decision().unwrap()
        })
    };
    let seconds = bits(|| Objective::Seconds(Arc::new(|_, _| 1.0)));
    assert_eq!(Decision { fit: None, ..seconds }, bits(|| Objective::Bits));
    assert_eq!(seconds.fit, Some(FitKind::None));
}

#[test]
fn a_sample_whose_square_leaves_f64_is_refused_and_changes_nothing() {
    let mut model = TimeModel::new(1);
    model.record(&[100], 1e-3).unwrap();
    let before = model.clone();
    assert_eq!(model.record(&[200], 1e200), Err(Error::Core(CoreError::Overflow { what: "a sum of the time model" })));
    assert_eq!(model, before);
    model.record(&[200], 2e-3).unwrap();
    assert_eq!(model.fit().kind, FitKind::PerBucket);
}
