//! Random values for tests. The values are made in this crate, because the crate is compiled with optimisation, and
//! tests are not.

use lgreco::rng::Stream;

/// Uniform values in [−1, 1).
pub fn uniform(stream: Stream, len: usize) -> Vec<f32> {
    (0..len as u64).map(|i| (stream.word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Multiples of 1/64 in [−1, 1). Sums and means of a few such values are exact.
pub fn multiples(stream: Stream, len: usize) -> Vec<f32> {
    (0..len as u64).map(|i| (stream.word(i) >> 25) as f32 / 64.0 - 1.0).collect()
}

/// Roughly normal values of variance 1/3: sums of four uniform ones.
pub fn bell_shaped(stream: Stream, len: usize) -> Vec<f32> {
    let block = |i| stream.block(i as u32).map(|word| word as f32 / 4294967296.0 - 0.5);
    (0..len).map(|i| block(i).iter().sum()).collect()
}
