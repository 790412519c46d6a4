//! Compares payloads and exchanges of certain layers under TopK with the core. The gathered values of these layers do
//! not fit into their memory. This happens if a layer keeps too many values, or if too many values are equal.

use super::exchange::{config, steps_of};
use super::exchange_topk::of;
use super::sample::{KINDS, edited};
use super::simt::{Flavour, flavour};
use super::{backend, some};
use crate::CudaBackend;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Setting, topk::TopK};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_encode};
use lgreco_testing::powersgd::uniform;

const COUNT: u32 = 33_001;

fn top(keep: u32, values: Dtype) -> Setting {
    Setting::TopK(TopK { keep, values })
}

fn few(keep: u32, bits: u8) -> Setting {
    Setting::QuantisedTopK(QuantisedTopK { keep, bits })
}

/// Returns values of k: some small, some around the largest k for which the kernels gather values, and some larger, up
/// to all values.
fn keeps(count: u32) -> [u32; 10] {
    let most = count / 4 - count / 32;
    [count / 100, count / 10, most - 1, most, most + 1, count / 2, count / 10 * 9, count - 2, count - 1, count]
}

/// Returns the kinds of values of the sample tests, and four more. The first kind has two magnitudes, and the second
/// kind has few different 16-bit values. The third kind has magnitudes that the bins of a sample cannot distinguish.
/// The fourth kind has small values and a few large values, so that a lower bin has no values in its upper powers of
/// two.
fn kinds() -> impl Iterator<Item = fn(usize, f32) -> f32> {
    let more: [fn(usize, f32) -> f32; 4] = [
        |i, x| if i.is_multiple_of(3) { x.signum() } else { 0.5 },
        |_, x| f32::from_bits(x.to_bits() & 0xffc0_0000),
        |i, _| f32::from_bits(0x3f80_0000 + i as u32),
        |i, x| if i.is_multiple_of(100) { 1.0 } else { x * 2f32.powi(-18) },
    ];
    KINDS.into_iter().chain(more)
}

fn values(kind: fn(usize, f32) -> f32, count: usize, seed: u64) -> Vec<f32> {
    uniform(count, seed).into_iter().enumerate().map(|(i, x)| kind(i, x)).collect()
}

fn check(backend: &mut CudaBackend, kind: fn(usize, f32) -> f32, number: usize) {
    check_some(backend, kind, number, |_| true);
}

/// Checks payloads for the chosen values of k.
fn check_some(backend: &mut CudaBackend, kind: fn(usize, f32) -> f32, number: usize, is_chosen: impl Fn(u32) -> bool) {
    let tensor = Tensor::new(&values(kind, COUNT as usize, 5), COUNT as usize, 1);
    for (at, keep) in keeps(COUNT).into_iter().enumerate().filter(|&(_, keep)| is_chosen(keep)) {
        let gradient = tensor.gradients()[(number + at) % 3];
        let sent = [Dtype::F32, Dtype::F16, Dtype::Bf16][at % 3];
        check_encode(backend, &top(keep, sent), &gradient, Stream::default());
        check_encode(backend, &few(keep, ((number + at) % 8) as u8 + 1), &gradient, Stream::default());
    }
}

#[test]
fn payloads_are_the_cores_at_any_k() {
    for (number, kind) in some(kinds().enumerate()) {
        let Some(mut backend) = backend(flavour(), number as i32 % 4) else { return };
        check(&mut backend, kind, number);
    }
}

/// For only one kind of values, a single block must find the k-th largest magnitude. Layers of that kind keep nearly
/// all of their nonzero values, and the sample has hardly any nonzero values.
#[test]
fn ties_take_no_slow_way() {
    let slow = "settle(top, offered, cut, spans, entries, room);\n            }";
    let Some(mut without) = edited(Flavour::Plain, 0, slow, "}") else { return };
    for (number, kind) in some(kinds().enumerate().filter(|(number, _)| [1, 2, 3, 6, 8, 10].contains(number))) {
        let is_sparse = |keep| number == 3 && keep == COUNT / 100;
        check_some(&mut without, kind, number, |keep| !is_sparse(keep));
    }
}

fn layers() -> Vec<(Shape, Setting)> {
    let of = |count: u32, setting| (Shape::new(count as usize, 1).unwrap(), setting);
    let mut layers = vec![
        of(33_000, top(50, Dtype::F32)),
        of(4096, top(4000, Dtype::F32)),
        of(4097, few(4097, 4)),
        of(33_000, few(33_000, 2)),
    ];
    for (number, keep) in keeps(COUNT).into_iter().enumerate().skip(1).step_by(2) {
        layers.push(of(COUNT, top(keep, [Dtype::F32, Dtype::Bf16][number / 2 % 2])));
        layers.push(of(COUNT, few(keep, 2 + number as u8 / 2)));
    }
    layers
}

/// Tests layers that share launches, in every order of blocks, with residuals.
#[test]
fn buckets_are_the_cores() {
    let layers = layers();
    for (number, kind) in some(kinds().enumerate().filter(|(number, _)| [0, 3, 7, 8, 11].contains(number))) {
        let Some(mut backend) = backend(flavour(), 1 + number as i32 % 5) else { return };
        let config = config([Dtype::F32, Dtype::Bf16][number % 2], [1.0, 0.6][number % 2]);
        let compared = steps_of(&mut backend, &layers, config, 2, |count, seed| values(kind, count, seed));
        assert_eq!(compared, Ok(2 * of(&layers)), "{number}");
    }
}

#[test]
fn no_kernel_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    for (kind, (keep, bits)) in [(KINDS[0], (16_500, 4)), (KINDS[3], (30_000, 2)), (KINDS[7], (COUNT, 2))] {
        let tensor = Tensor::new(&values(kind, COUNT as usize, 5), COUNT as usize, 1);
        check_encode(&mut backend, &top(keep, Dtype::F16), &tensor.gradients()[0], Stream::default());
        check_encode(&mut backend, &few(keep, bits), &tensor.gradients()[2], Stream::default());
    }
}

#[test]
#[ignore = "slow"]
fn planted_faults_are_found() {
    let Some(mut backend) =
        edited(Flavour::Plain, 0, "digits_of(magnitude, most - guess)", "digits_of(magnitude, most)")
    else {
        return;
    };
    let layers = layers();
    let found = kinds().enumerate().filter(|(number, _)| [0, 3, 6, 11].contains(number)).any(|(_, kind)| {
        let of_kind = |count, seed| values(kind, count, seed);
        let steps = || steps_of(&mut backend, &layers, config(Dtype::F32, 1.0), 2, of_kind);
        super::exchange::told(steps).is_err()
    });
    assert!(found);
}
