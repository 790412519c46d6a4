mod errors;
mod range;
mod same;
mod wire;

use super::*;
use crate::gradient::Values;
use crate::{decode, wire::Payload};
use core::f64::consts::PI;
use std::{vec, vec::Vec};

fn stream(rank: u32) -> Stream {
    Stream { seed: 0x1234_5678_9abc, step: 17, layer: 3, rank }
}

/// Normally distributed values.
fn gaussian(elements: usize, rank: u32) -> Vec<f32> {
    let uniform = |i: usize, j: usize| (stream(rank).block(i as u32)[j] as f64 + 0.5) / (1u64 << 32) as f64;
    let normal = |i| (-2.0 * uniform(i, 0).ln()).sqrt() * (2.0 * PI * uniform(i, 1)).cos();
    (0..elements).map(|i| normal(i) as f32).collect()
}

/// A gradient of one column.
fn column(values: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap()
}

fn encoded(gradient: &Gradient<'_>, eden: Eden, stream: Stream) -> Result<Vec<u8>> {
    let mut payload = vec![0xaa; eden.payload_len(gradient.shape(), gradient.values().dtype())?];
    let len = eden.encode(gradient, stream, &mut [], &mut payload)?;
    assert_eq!(len, payload.len());
    Ok(payload)
}

fn decoded(payload: &[u8]) -> Result<Vec<f32>> {
    let mut values = vec![f32::NAN; Payload::parse(payload)?.header.shape.elements()];
    decode(payload, &mut values)?;
    Ok(values)
}

/// Encodes and decodes.
fn round_trip(values: &[f32], eden: Eden, rank: u32) -> Vec<f32> {
    decoded(&encoded(&column(values), eden, stream(rank)).unwrap()).unwrap()
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| a as f64 * b as f64).sum()
}

fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (a as f64 - b as f64) * (a as f64 - b as f64)).sum()
}

fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn all() -> impl Iterator<Item = Eden> {
    (1..=8).flat_map(|bits| [Scale::Unbiased, Scale::LeastSquares].map(|scale| Eden { bits, scale }))
}
