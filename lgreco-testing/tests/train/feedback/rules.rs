use super::*;
use lgreco_testing::residual::STORAGES;
use lgreco_train::compress::{Compressor, decode};
use lgreco_train::gradient::{Bf16, Element, F16, Gradient, Values};
use proptest::prelude::*;

/// Sends a constant gradient through Top-1, and returns the sent values and the residual of each step.
fn constant_stream(rule: Residual, steps: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let shape = vector(3);
    let mut worker = Worker::new(rule, top(1), shape, Stream::default()).unwrap();
    let pairs = (0..steps).map(|_| {
        let sent = worker.step(&gradient(&[3.0, 2.0, 1.0], shape)).unwrap().decoded;
        (sent, worker.values())
    });
    pairs.unzip()
}

#[test]
fn a_constant_gradient_through_top_1() {
    let (sent, memory) = constant_stream(Residual::CLASSIC, 4);
    assert_eq!(sent, [[3., 0., 0.], [0., 4., 0.], [6., 0., 0.], [0., 4., 0.]]);
    assert_eq!(memory, [[0., 2., 1.], [3., 0., 2.], [0., 2., 3.], [3., 0., 4.]]);
    // With a gain below 1, a sent coordinate is not cleared. After 4 is sent, half of its residual of 2 remains.
    let (sent, memory) = constant_stream(Residual { gain: 0.5, ..Residual::CLASSIC }, 3);
    assert_eq!(sent, [[3., 0., 0.], [3., 0., 0.], [0., 4., 0.]]);
    assert_eq!(memory, [[0., 1., 0.5], [0., 2., 1.], [1.5, 1., 1.5]]);
}

#[test]
fn mass_is_balanced() {
    for n in [1, 90, 513, 1500] {
        let shape = if n % 30 == 0 { Shape::new(30, n / 30).unwrap() } else { vector(n) };
        for setting in settings(n as u32) {
            check_mass_balance(setting, &steps(n, 25), shape).unwrap();
        }
    }
}

#[test]
fn what_is_not_sent_is_remembered_to_the_bit() {
    for n in [1usize, 700, 1024] {
        for keep in [1, n as u32 / 50 + 1, n as u32] {
            check_exact_split(Residual::CLASSIC, top(keep), &steps(n, 20), vector(n));
        }
    }
}

/// After T steps with gain a and residual m, the mean of ĝ differs from g by |m| / (a T). This difference must fall
/// like 1 / T for every gain, also if the memory is rounded at random.
#[test]
fn the_mean_delivered_is_the_mean_gradient() {
    let values = noise(600, 5);
    for setting in [top(60), quantised(4, 100), Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 })] {
        let gains: &[f32] = if std::env::var_os("LGRECO_FULL").is_some() { &[1.0, 0.2] } else { &[0.2] };
        for &gain in gains {
            for storage in STORAGES {
                let rule = Residual { gain, reset_every: 0, storage };
                let error = mean_error(rule, setting, &values, Shape::new(30, 20).unwrap(), 2000);
                assert!(error < 0.03, "{setting} {rule:?}: {error}");
            }
        }
    }
}

/// Under Top-1, the small coordinate waits for thousands of steps. With rounding to nearest in bf16, its residual would
/// stop at 512 times the gradient, and would never exceed the large coordinate.
#[test]
fn small_gradients_do_not_stagnate_in_sixteen_bits() {
    let values = [1.0, 1.0 / 1500.0];
    let rule = Residual { gain: 1.0, reset_every: 0, storage: Storage::Bf16 };
    let mut worker = Worker::new(rule, top(1), vector(2), Stream::default()).unwrap();
    let mut sent = 0.0;
    for _ in 0..30_000 {
        sent += worker.step(&gradient(&values, vector(2))).unwrap().decoded[1];
    }
    // The gradients of the second coordinate sum to 20. Each message that sends this coordinate sends about 1 to 2.
    assert!((16.0..24.0).contains(&sent), "{sent}");
    let mut nearest = Bf16(0);
    (0..30_000).for_each(|_| nearest = Bf16::from_f32(nearest.to_f32() + values[1]));
    assert!(nearest.to_f32() < 0.5);
}

/// With LoCo's parameters, 0.3 of a quantiser step arrives as 0.3 of a step on average.
#[test]
fn loco_delivers_fractions_of_a_step() {
    let mut values = [0.3 / 7.0; 64];
    values[0] = 1.0;
    let nearest = Qsgd { bits: 4, bucket: 64, scale: Scale::MaxNorm, rounding: Rounding::Nearest };
    for old in [0.0, 0.5, 0.8, 0.95] {
        let residual = Residual { gain: 1.0 - old, reset_every: 0, ..Residual::LOCO };
        let error = mean_error(residual, Setting::Qsgd(nearest), &values, vector(64), 4000);
        assert!(error < 0.005, "{old}: {error}");
    }
}

#[test]
fn resets_come_after_whole_periods() {
    let rule = Residual { reset_every: 3, ..Residual::CLASSIC };
    let (_, memory) = constant_stream(rule, 7);
    for (t, m) in (1..).zip(memory) {
        assert_eq!(m == [0.0; 3], t % 3 == 0, "step {t}: {m:?}");
    }
}

#[test]
fn zeros_stay_zeros() {
    for n in [0usize, 1, 600] {
        let keep = if n == 0 { 0 } else { n as u32 / 3 + 1 };
        for setting in [Setting::Dense, top(keep), quantised(2, 512), settings(9)[3], settings(9)[4]] {
            for rule in rules() {
                let mut worker = Worker::new(rule, setting, vector(n), Stream::default()).unwrap();
                for _ in 0..4 {
                    let sent = worker.step(&gradient(&vec![0.0; n], vector(n))).unwrap();
                    assert!(sent.decoded.iter().all(|&x| x == 0.0) && worker.values().iter().all(|&x| x == 0.0));
                }
                assert_eq!(worker.memory.squared_norm(), 0.0);
            }
        }
    }
}

/// f16 and bf16 gradients are used with their exact values. Uncompressed gradients are sent unchanged.
#[test]
fn sixteen_bit_gradients() {
    let (shape, noise) = (vector(700), noise(700, 3));
    let half: Vec<F16> = noise.iter().map(|&x| F16::from_f32(x)).collect();
    let brain: Vec<Bf16> = noise.iter().map(|&x| Bf16::from_f32(x)).collect();
    let widened: [Vec<f32>; 2] =
        [half.iter().map(|x| x.to_f32()).collect(), brain.iter().map(|x| x.to_f32()).collect()];
    for (values, wide) in [Values::F16(&half), Values::Bf16(&brain)].into_iter().zip(widened) {
        let narrow = Gradient::new(values, shape).unwrap();
        for setting in &settings(700)[1..] {
            for rule in rules() {
                let [mut a, mut b] = [0; 2].map(|_| Worker::new(rule, *setting, shape, Stream::default()).unwrap());
                for _ in 0..4 {
                    assert_eq!(a.step(&narrow).unwrap().message, b.step(&gradient(&wide, shape)).unwrap().message);
                }
                assert_eq!(a.save(), b.save());
            }
        }
        let classic = Residual::CLASSIC;
        let mut worker = Worker::new(classic, Setting::Dense, shape, Stream::default()).unwrap();
        let past: Vec<f32> = wide.iter().map(|x| 0.37 * x).collect();
        worker.memory.set(&past, Stream::default()).unwrap();
        let sent = worker.step(&narrow).unwrap();
        assert_eq!(sent.message.len(), 16 + 2 * 700);
        assert!(worker.memory.squared_norm() > 0.0 && worker.memory.squared_norm() < 2e-3);
        for (i, m) in worker.values().into_iter().enumerate() {
            assert_eq!(m, (past[i] + wide[i]) - sent.decoded[i]);
        }
    }
}

fn saved(memory: &Memory<Vec<u64>>) -> Vec<u8> {
    let mut bytes = vec![0; memory.saved_len()];
    memory.save(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_step_is_its_two_halves() {
    let (shape, gradients) = (Shape::new(30, 20).unwrap(), steps(600, 6));
    for setting in settings(600) {
        for rule in rules() {
            let mut whole = Worker::new(rule, setting, shape, Stream::default()).unwrap();
            let mut halves = Memory::new(rule, shape, vec![!0; rule.state_len(shape)]).unwrap();
            for (step, g) in (0..).zip(&gradients) {
                let (g, stream) = (gradient(g, shape), Stream { step, ..Stream::default() });
                let mut values = vec![f32::NAN; 600];
                halves.compensate(&g, &mut values).unwrap();
                let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
                let mut workspace = vec![!0; setting.encode_workspace_len(shape, Dtype::F32)];
                let encoding = payload_stream(&setting, stream);
                let compensated = gradient(&values, shape);
                let len = setting.encode(&compensated, encoding, &mut workspace, &mut payload).unwrap();
                payload.truncate(len);
                decode(&payload, &mut values).unwrap();
                halves.update(&g, &values, stream).unwrap();
                assert_eq!(whole.step(&g).unwrap().message, payload);
                assert_eq!(saved(&whole.memory), saved(&halves));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(24)))]

    /// For any finite values, a failed step changes nothing, and a successful step keeps the mass balance.
    #[test]
    fn any_gradients_are_balanced(
        bits in prop::collection::vec(prop::collection::vec(any::<u32>(), 40), 1..12),
        keep in 1u32..=40,
        tame: bool,
    ) {
        let mask = if tame { 0xc3ff_ffff } else { !0 };
        let finite = |&b: &u32| Some(f32::from_bits(b & mask)).filter(|x| x.is_finite()).unwrap_or(f32::MAX);
        let gradients: Vec<Vec<f32>> = bits.iter().map(|g| g.iter().map(finite).collect()).collect();
        for setting in [top(keep), Setting::Dense] {
            let result = check_mass_balance(setting, &gradients, vector(40));
            assert!(matches!(result, Ok(()) | Err(lgreco_train::Error::Core(lgreco_train::CoreError::Overflow { .. }))));
        }
    }
}
