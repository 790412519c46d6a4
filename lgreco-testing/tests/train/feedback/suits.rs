//! Compares the check of `suits` with the growth of residuals in simulated training.

use super::*;
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::qsgd::{Qsgd, Scale};
use lgreco_train::feedback::contraction_workspace_len;
use lgreco_train::{CoreError, Error};

/// Returns the squared norm of the residual divided by that of a gradient, after 40 steps with new heavy-tailed
/// gradients.
fn grown(setting: Setting, shape: Shape) -> f64 {
    let mut worker = Worker::new(Residual::CLASSIC, setting, shape, Stream::default()).unwrap();
    let mut norm = 0.0;
    for step in 0..40 {
        let values: Vec<f32> = noise(shape.elements(), step).iter().map(|x| x * x * x).collect();
        norm = values.iter().map(|&x| x as f64 * x as f64).sum();
        worker.step(&gradient(&values, shape)).unwrap();
    }
    worker.memory.squared_norm() / norm
}

#[test]
fn what_is_refused_grows_and_what_is_taken_does_not() {
    let shape = vector(2048);
    for scale in [Scale::MaxNorm, Scale::MinMax] {
        let setting = |bits, bucket| Setting::Qsgd(Qsgd { bits, bucket, scale, ..Qsgd::default() });
        for bits in 1..=8 {
            let refused = matches!(suits(&setting(bits, 512), shape), Err(Error::NotContractive { .. }));
            assert_eq!(refused, bits < 4, "{scale:?}, {bits} bits");
        }
        assert!(grown(setting(1, 512), shape) > 1e6);
        let mild = grown(setting(4, 512), shape);
        assert!(mild < 10.0, "{mild}");
    }
}

#[test]
fn gradients_are_judged_by_themselves() {
    let suits = |setting: Setting, values: &[f32]| {
        let gradient = gradient(values, vector(values.len()));
        let len = contraction_workspace_len(&setting, gradient.shape(), Dtype::F32);
        suits_gradient(&setting, &gradient, Stream::default(), &mut vec![0; len])
    };
    let (mut spiky, flat) = ([0.1; 512], [0.1; 512]);
    spiky[0] = 1.0;
    let two_bits = quantised(2, 512);
    assert_eq!(suits(two_bits, &flat), Ok(()));
    assert!(matches!(suits(two_bits, &spiky), Err(Error::NotContractive { relative }) if relative > 1.0));
    let none = Setting::HardThreshold(HardThreshold { lambda: 9.0, values: Dtype::F32 });
    assert_eq!(suits(none, &spiky), Ok(()));
    spiky[7] = f32::NAN;
    assert!(matches!(suits(two_bits, &spiky), Err(Error::Core(CoreError::NonFinite { index: 7, .. }))));
}

#[test]
fn longer_buckets_need_more_bits() {
    let fits = |bits, bucket, elements| {
        suits(&Setting::Qsgd(Qsgd { bits, bucket, ..Qsgd::default() }), vector(elements)).is_ok()
    };
    assert!(fits(4, 2048, 1 << 20) && !fits(4, 1 << 14, 1 << 20) && fits(6, 1 << 14, 1 << 20));
    // A bucket is no longer than its layer.
    assert!(fits(3, 512, 128) && !fits(3, 512, 512) && fits(2, u32::MAX, 0) && fits(2, u32::MAX, 1));
    assert!(!fits(4, u32::MAX, u32::MAX as usize));
    assert!(fits(8, 1 << 16, 1 << 24) && !fits(8, u32::MAX, 1 << 24));
    let bits = suits(&Setting::Qsgd(Qsgd { bits: 9, ..Qsgd::default() }), vector(3));
    assert!(matches!(bits, Err(Error::Core(CoreError::Parameter { .. }))));
}
