use super::*;
use lgreco_testing::residual::STORAGES;
use lgreco_train::{CoreError, Error};
use proptest::prelude::*;

fn memory(storage: Storage, n: usize) -> Memory<Vec<u64>> {
    let rule = Residual { storage, ..Residual::CLASSIC };
    Memory::new(rule, vector(n), vec![!0; rule.state_len(vector(n))]).unwrap()
}

fn kept(storage: Storage, values: &[f32], step: u32) -> Vec<f32> {
    let mut memory = memory(storage, values.len());
    memory.set(values, Stream { step, ..Stream::default() }).unwrap();
    let mut kept = vec![f32::NAN; values.len()];
    memory.values(&mut kept).unwrap();
    kept
}

/// The distance between representable numbers near `x`, in a group with the largest magnitude `largest`.
fn spacing(storage: Storage, x: f32, largest: f32) -> f64 {
    match storage {
        Storage::F32 => 0.0,
        Storage::Bf16 => (x.abs() as f64 * 2f64.powi(-7)).max(2f64.powi(-133)),
        Storage::Int8 => (largest as f64 / 63.5).max(2f64.powi(-126)),
    }
}

#[test]
fn representable_numbers_are_kept() {
    let brains: Vec<f32> = (0..=u16::MAX).map(|b| f32::from_bits((b as u32) << 16)).filter(|x| x.is_finite()).collect();
    assert_eq!(kept(Storage::Bf16, &brains, 1), brains);
    for exponent in [-126, -40, 0, 17, 121] {
        let codes: Vec<f32> = (-127..=127).map(|c| c as f32 * 2f32.powi(exponent)).collect();
        for step in 0..50 {
            assert_eq!(kept(Storage::Int8, &codes, step), codes);
        }
    }
    let odd = [f32::MAX, -f32::MAX, 1e-45, 0.1];
    assert_eq!(kept(Storage::F32, &odd, 0), odd);
}

/// The mean of many roundings is the number itself, within five standard deviations of the two-point distribution.
#[test]
fn rounding_is_right_on_average() {
    let values: Vec<f32> = noise(600, 8);
    let repeats = 3000;
    for storage in [Storage::Bf16, Storage::Int8] {
        let mut sums = vec![0.0f64; 600];
        for step in 0..repeats {
            sums.iter_mut().zip(kept(storage, &values, step)).for_each(|(sum, x)| *sum += x as f64);
        }
        for (group, (values, sums)) in values.chunks(GROUP).zip(sums.chunks(GROUP)).enumerate() {
            let largest = values.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            for (i, (&x, &sum)) in values.iter().zip(sums).enumerate() {
                let spacing = spacing(storage, x, largest);
                let allowed = 5.0 * 0.5 * spacing / (repeats as f64).sqrt() + spacing * 2f64.powi(-15);
                let off = (sum / repeats as f64 - x as f64).abs();
                assert!(off <= allowed, "{storage:?} group {group} element {i}: off by {off:e}, allowed {allowed:e}");
            }
        }
    }
}

#[test]
fn the_ends_of_the_range() {
    for (storage, largest) in [
        (Storage::F32, f32::MAX),
        (Storage::Bf16, f32::from_bits(0x7f7f_0000)),
        (Storage::Int8, 127.0 * 2f32.powi(121)),
    ] {
        assert_eq!(kept(storage, &[largest, -largest], 0), [largest, -largest]);
        let mut memory = memory(storage, 2);
        memory.set(&[1.0, 2.0], Stream::default()).unwrap();
        for bad in [f32::from_bits(largest.to_bits() + 1), f32::INFINITY, f32::NAN] {
            assert!(matches!(memory.set(&[0.0, bad], Stream::default()), Err(Error::Core(CoreError::Overflow { .. }))));
        }
        assert_eq!(memory.squared_norm(), 5.0);
    }
}

#[test]
fn rescaling_by_powers_of_two_is_exact() {
    for storage in STORAGES {
        let mut memory = memory(storage, 1000);
        memory.set(&noise(1000, 2), Stream::default()).unwrap();
        let (mut before, mut after) = (vec![0.0; 1000], vec![0.0; 1000]);
        memory.values(&mut before).unwrap();
        memory.rescale(2f32.powi(-16), Stream { step: 5, ..Stream::default() }).unwrap();
        memory.values(&mut after).unwrap();
        assert!(before.iter().zip(&after).all(|(b, a)| a * 65536.0 == *b));
        memory.rescale(2f32.powi(16), Stream::default()).unwrap();
        memory.values(&mut after).unwrap();
        assert_eq!(before, after);
        for factor in [0.0, -1.0, f32::INFINITY, f32::NAN] {
            assert!(matches!(memory.rescale(factor, Stream::default()), Err(Error::Core(CoreError::Parameter { .. }))));
        }
        memory.rescale(2f32.powi(100), Stream::default()).unwrap();
        assert!(matches!(
            memory.rescale(2f32.powi(100), Stream::default()),
            Err(Error::Core(CoreError::Overflow { .. }))
        ));
        assert!(memory.squared_norm().is_finite());
    }
}

#[test]
fn state_is_as_large_as_said() {
    for (n, lens) in [(0, [0, 0, 0]), (1, [1, 1, 1]), (512, [256, 128, 65]), (4099, [2050, 1025, 514])] {
        for (storage, len) in STORAGES.into_iter().zip(lens) {
            let rule = Residual { storage, ..Residual::CLASSIC };
            assert_eq!(rule.state_len(vector(n)), len);
            assert!(Memory::new(rule, vector(n), vec![0; len]).is_ok());
            assert!(len == 0 || Memory::new(rule, vector(n), vec![0; len - 1]).is_err());
        }
    }
}

proptest! {
    /// Any finite number is rounded to one of the two adjacent representable numbers, and never to the other sign.
    #[test]
    fn any_number_is_rounded_to_a_neighbour(bits in prop::collection::vec(any::<u32>(), 1..1100), step: u32, shift in 0u32..60) {
        let tame = |b: u32| f32::from_bits((b & 0x807f_ffff) | ((b >> 23 & 0xff) % (shift + 1) + 3 * shift).min(253) << 23);
        let values: Vec<f32> = bits.iter().map(|&b| tame(b)).collect();
        for storage in STORAGES {
            let kept = kept(storage, &values, step);
            for (values, kept) in values.chunks(GROUP).zip(kept.chunks(GROUP)) {
                let largest = values.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                for (&x, &k) in values.iter().zip(kept) {
                    let off = (x as f64 - k as f64).abs();
                    prop_assert!(off <= spacing(storage, x, largest) && k * x.signum() >= 0.0, "{storage:?}: {x:e} {k:e}");
                }
            }
        }
    }
}
