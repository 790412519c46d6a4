//! Tests EDEN's rows and payloads for blocks of every length, for magnitudes of all sizes, and for errors that are hard
//! to measure.

use super::{ROWS, backend, check_payload, small_backend};
use lgreco::backend::{Backend, Job};
use lgreco::compress::eden::{Eden, Scale};
use lgreco::compress::wire::{Header, Method};
use lgreco::compress::{Candidates, Setting};
use lgreco::gradient::Shape;
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_decode, check_encode, check_rows};
use lgreco_testing::powersgd::uniform;

const SCALES: [Scale; 2] = [Scale::Unbiased, Scale::LeastSquares];

const STREAM: Stream = Stream { seed: 5, step: 1, layer: 2, rank: 3 };

/// Asserts that rows of a tensor, and payloads of the first width, equal the core's, or that both give the same error.
fn check(backend: &mut dyn Backend, values: &[f32], bits: &[u8]) {
    let tensor = Tensor::new(values, values.len(), 1);
    for (scale, gradient) in SCALES.into_iter().zip(tensor.gradients()) {
        let base = Eden { bits: bits[0], scale };
        let candidates = Candidates::Eden { base, bits };
        check_rows(backend, &[Job { gradient, candidates, stream: STREAM }], ROWS);
        check_encode(backend, &Setting::Eden(base), &gradient, STREAM);
    }
}

fn check_scaled(backend: &mut dyn Backend, elements: usize, magnitude: f32, bits: &[u8]) {
    let values: Vec<f32> = uniform(elements, 4).iter().map(|x| x * magnitude).collect();
    check(backend, &values, bits);
}

#[test]
fn every_width_of_every_length_of_block_is_as_in_the_core() {
    let Some(mut backend) = backend() else { return };
    check_scaled(&mut backend, 3 * 4096 + 4095, 1.0, &[1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn payloads_of_every_width_are_made_and_read_on_the_device() {
    let Some(mut backend) = backend() else { return };
    let tensor = Tensor::new(&uniform(2 * 4096 + 4095, 4), 2 * 4096 + 4095, 1);
    for bits in 1..=8 {
        let gradient = &tensor.gradients()[usize::from(bits) % 3];
        let setting = Setting::Eden(Eden { bits, scale: SCALES[usize::from(bits) % 2] });
        check_payload(&mut backend, &setting, gradient, STREAM);
    }
}

/// A tensor of one element decodes to its code's grid point.
#[test]
fn every_code_stands_for_the_same_as_in_the_core() {
    let Some(mut backend) = backend() else { return };
    let shape = Shape::new(1, 1).unwrap();
    for bits in [1, 2, 3, 8u8] {
        for code in (0..=!0u8 >> (8 - bits)).step_by(if bits == 8 { 5 } else { 1 }) {
            let mut payload = [0; 16 + 8 + 4 + 1];
            Header { method: Method::Eden, variant: 0, parameter: bits.into(), shape }.write(&mut payload).unwrap();
            payload[24..28].copy_from_slice(&1f32.to_le_bytes());
            payload[28] = code;
            check_decode(&mut backend, &payload, 1);
        }
    }
    assert_eq!(backend.gpu().decoded, 2 + 4 + 8 + 52, "the core has decoded others");
}

/// Each binding is large enough for only one block.
#[test]
fn a_block_is_a_piece_at_least() {
    let Some(mut backend) = small_backend() else { return };
    backend.gpu().window = 17 << 10;
    assert_eq!(backend.gpu().piece_len(), 4096);
    check_scaled(&mut backend, 3 * 4096 + 300, 1.0, &[1, 4]);
}

/// Norms, inverse norms and some decoded values exceed the range of f32.
#[test]
fn magnitudes_of_all_sizes_are_as_in_the_core() {
    let Some(mut backend) = backend() else { return };
    for magnitude in [f32::MAX, 3e36, 1e32, 1e29, 1e-29, 1e-32, 1e-38, 1e-42] {
        check_scaled(&mut backend, 4096 + 300, magnitude, &[1, 3]);
    }
}

/// If the coordinates of a block are nearly grid points, its error is measured by decoding. Some tested blocks have
/// only zeros.
#[test]
fn errors_that_are_hard_to_measure_are_as_in_the_core() {
    let Some(mut backend) = backend() else { return };
    let spike = |i: usize| if i == 99 { 3.0 } else { 0.0 };
    let nearly = |i: usize| if i == 99 { 3.0 } else { 1e-4 * (i % 7) as f32 };
    let two = |i: usize| if i.is_multiple_of(2048) { 1.0 } else { 0.0 };
    let kinds: [&dyn Fn(usize) -> f32; 4] = [&spike, &nearly, &two, &|_| 0.3];
    for kind in kinds {
        for elements in [4096 + 512, 300] {
            let values: Vec<f32> = (0..elements).map(kind).collect();
            check(&mut backend, &values, &[1, 2, 3, 8]);
        }
    }
}

/// Some blocks have a value that is not finite, and some would decode to infinity.
#[test]
fn the_first_block_at_fault_is_told() {
    let Some(mut backend) = backend() else { return };
    let (infinity, nan, max) = (f32::INFINITY, f32::NAN, f32::MAX);
    for faults in [
        &[(0, max)][..],
        &[(1, nan)],
        &[(2, max)],
        &[(0, max), (1, nan)],
        &[(0, nan), (1, max)],
        &[(1, max), (2, nan)],
        &[(1, infinity), (2, max)],
    ] {
        let mut values = uniform(2 * 4096 + 100, 1);
        for &(block, fault) in faults {
            let end = values.len().min((block + 1) * 4096);
            if fault == max {
                values[block * 4096..end].iter_mut().for_each(|x| *x = max.copysign(*x));
            } else {
                values[block * 4096 + 77] = fault;
            }
        }
        check(&mut backend, &values, &[1, 2]);
    }
}
