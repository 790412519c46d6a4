use super::*;
use lgreco_train::compress::Compressor;
use lgreco_train::gradient::{F16, Gradient, Values};
use lgreco_train::{CoreError, Error};

#[test]
fn bad_gradients_name_the_first_offender_and_change_nothing() {
    let mut values = noise(700, 1);
    (values[650], values[640]) = (f32::NEG_INFINITY, f32::NAN);
    for setting in settings(700) {
        for rule in rules() {
            let mut worker = Worker::new(rule, setting, vector(700), Stream::default()).unwrap();
            worker.step(&gradient(&noise(700, 2), vector(700))).unwrap();
            let before = worker.save();
            let error = worker.step(&gradient(&values, vector(700))).err();
            assert!(
                matches!(error, Some(Error::Core(CoreError::NonFinite { index: 640, value })) if value.is_nan()),
                "{rule:?}: {error:?}"
            );
            assert_eq!(worker.save(), before);
        }
    }
}

#[test]
fn overflow_changes_nothing() {
    let shape = vector(3);
    for rule in rules() {
        let mut worker = Worker::new(rule, top(1), shape, Stream::default()).unwrap();
        worker.memory.set(&[0.0, 3e38, 0.0], Stream::default()).unwrap();
        let before = worker.save();
        let error = worker.step(&gradient(&[1.0, 3e38, 2.0], shape)).err();
        assert!(matches!(error, Some(Error::Core(CoreError::Overflow { .. }))), "{rule:?}: {error:?}");
        assert_eq!(worker.save(), before);
    }
    // The sent value fits, but the residual does not: 3.3996e38 is above the largest bf16.
    let rule = Residual { storage: Storage::Bf16, ..Residual::CLASSIC };
    let mut worker = Worker::new(rule, top(1), shape, Stream::default()).unwrap();
    let error = worker.step(&gradient(&[f32::MAX, 1.0, 3.3996e38], shape)).err();
    assert!(matches!(error, Some(Error::Core(CoreError::Overflow { .. }))));
    // An uncompressed f16 gradient exceeds the largest f16 value when the residual is added.
    let classic = Residual::CLASSIC;
    let mut worker = Worker::new(classic, Setting::Dense, shape, Stream::default()).unwrap();
    worker.memory.set(&[0.0, 65000.0, 0.0], Stream::default()).unwrap();
    let half = [F16(0), F16(0x7000), F16(0)];
    let error = worker.step(&Gradient::new(Values::F16(&half), shape).unwrap()).err();
    assert_eq!(error, Some(Error::Core(CoreError::ElementOverflow { index: 1, value: 73192.0 })));
}

#[test]
fn rules_are_refused_where_they_do_not_work() {
    let shape = vector(4);
    for gain in [0.0, -0.5, 1.5, f32::NAN] {
        let refused = Memory::new(Residual { gain, ..Residual::CLASSIC }, shape, vec![0; 4]).err();
        assert!(matches!(refused, Some(Error::Core(CoreError::Parameter { .. }))));
    }
    let short = Memory::new(Residual::CLASSIC, shape, vec![0; 1]).err();
    assert!(matches!(short, Some(Error::Core(CoreError::Length { expected: 2, found: 1, .. }))));
}

#[test]
fn short_buffers_and_other_shapes_are_errors() {
    let (shape, setting) = (Shape::new(2, 3).unwrap(), top(2));
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    for rule in rules() {
        let memory = Worker::new(rule, setting, shape, Stream::default()).unwrap().memory;
        let words = memory.workspace_len(&setting, Dtype::F32);
        let bytes = setting.payload_len(shape, Dtype::F32).unwrap();
        let outcome = |shape, words, bytes, places| {
            let (mut workspace, mut message, mut decoded) = (vec![0; words], vec![0; bytes], vec![0.0; places]);
            let g = gradient(&values, shape);
            memory.clone().step(&setting, &g, Stream::default(), &mut workspace, &mut message, &mut decoded)
        };
        assert_eq!(outcome(shape, words, bytes + 9, 6), Ok(bytes));
        let flat = Shape::new(3, 2).unwrap();
        let wrong = [
            (flat, words, bytes, 6),
            (shape, words - 1, bytes, 6),
            (shape, words, bytes - 1, 6),
            (shape, words, bytes, 7),
        ];
        for (shape, words, bytes, places) in wrong {
            assert!(
                matches!(outcome(shape, words, bytes, places), Err(Error::Core(CoreError::Length { .. }))),
                "{rule:?}"
            );
        }
    }
}

/// QSGD with three levels and wide buckets has an error larger than its input, so the residual outgrows the gradient.
#[test]
fn what_is_no_contraction_is_refused_and_would_grow() {
    let (shape, values) = (vector(2048), noise(2048, 4));
    let relative = |setting: Setting| {
        let mut workspace = vec![!0; contraction_workspace_len(&setting, shape, Dtype::F32)];
        contraction(&setting, &gradient(&values, shape), Stream::default(), &mut workspace).unwrap()
    };
    let grown = |setting| {
        let mut worker = Worker::new(Residual::CLASSIC, setting, shape, Stream::default()).unwrap();
        (0..60).for_each(|_| {
            worker.step(&gradient(&values, shape)).unwrap();
        });
        worker.memory.squared_norm() / values.iter().map(|&x| x as f64 * x as f64).sum::<f64>()
    };
    let (wild, tame) = (quantised(2, 2048), quantised(4, 512));
    assert!(relative(wild) > 1.2 && relative(tame) < 0.1);
    assert_eq!(require_contraction(relative(wild)), Err(Error::NotContractive { relative: relative(wild) }));
    assert_eq!(require_contraction(relative(tame)), Ok(()));
    assert!(require_contraction(f64::NAN).is_err() && require_contraction(1.0).is_err());
    assert!(grown(wild) > 100.0 && grown(tame) < 1.0, "{} {}", grown(wild), grown(tame));
}

/// The relative error agrees with the error of encoding and decoding.
#[test]
fn contraction_is_what_a_step_loses() {
    let (shape, values) = (Shape::new(40, 25).unwrap(), noise(1000, 6));
    let g = gradient(&values, shape);
    let energy: f64 = values.iter().map(|&x| x as f64 * x as f64).sum();
    for setting in settings(1000) {
        let mut workspace = vec![!0; contraction_workspace_len(&setting, shape, Dtype::F32)];
        let relative = contraction(&setting, &g, Stream::default(), &mut workspace).unwrap();
        let mut worker = Worker::new(Residual::CLASSIC, setting, shape, Stream::default()).unwrap();
        worker.step(&g).unwrap();
        let lost = worker.memory.squared_norm() / energy;
        // Under stochastic rounding, an expectation is compared with one draw of a thousand values.
        let allowed = if setting == quantised(4, 100) { 0.15 * relative } else { 1e-4 * relative };
        assert!((relative - lost).abs() <= allowed, "{setting}: {relative} {lost}");
        let zeros = [0.0; 1000];
        assert_eq!(contraction(&setting, &gradient(&zeros, shape), Stream::default(), &mut workspace), Ok(0.0));
        let bad = [f32::NAN; 1000];
        let error = contraction(&setting, &gradient(&bad, shape), Stream::default(), &mut workspace).err();
        assert!(matches!(error, Some(Error::Core(CoreError::NonFinite { index: 0, .. }))));
    }
}
