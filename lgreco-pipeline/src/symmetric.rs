//! Q-sym: codes on a grid that contains zero. Except for its last point, the grid is symmetric about zero.
//!
//! The body has the scales, little-endian, then each sample's codes, packed little-endian and padded with zero bits to
//! whole bytes. Let `h = 2^(bits − 1)` and let `s` be a scale. The code of `x` is
//! `clamp(round(x / s · h), −h, h − 1) + h`, with ties to even. A code `u` decodes to `(u − h) / h · s`. So −s is
//! exact, and s decodes to `s (h − 1) / h`.
//!
//! # Source
//! Wang et al., "AQ-SGD", NeurIPS 2022, the authors' code. Deviations: (1) Scales are f32 or bf16 instead of f16, which
//! overflows at 65504. (2) AQ-SGD's code adds a constant to the scale before dividing. The constant distorts small
//! tensors, so this crate omits it.

use crate::CoreError as Error;
use crate::gradient::{Bf16, Dtype, Element};
use core::iter::repeat;
use lgreco::compress::bits;

/// Number of codes per block: a multiple of 8, so that blocks start on byte boundaries.
const BLOCK: usize = 512;
/// The number 1.5 · 2^23. Adding this constant to a small number rounds that number to an integer, ties to even, and
/// leaves the integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Which values share a scale.
///
/// ```
/// use lgreco_pipeline::{Codec, Scope};
/// use lgreco_pipeline::gradient::Dtype;
/// let small_and_large = [0.01, 10.0, -0.02, -20.0]; // two samples of two channels
/// for (scope, expected) in [
///     (Scope::Sample, [0.0, 8.75, 0.0, -20.0]),
///     (Scope::Channel { channels: 2 }, [0.01, 10.0, -0.02, -20.0]),
/// ] {
///     let codec = Codec::Symmetric { bits: 4, scope, scale: Dtype::F32 };
///     let mut body = vec![0; codec.body_len(2, 2)?];
///     codec.encode(&small_and_large, 2, &[], &mut [0; 1], &mut body)?;
///     let mut decoded = [f32::NAN; 4];
///     codec.decode(&body, 2, &[], &mut decoded)?;
///     assert_eq!(decoded, expected);
/// }
/// # Ok::<(), lgreco_pipeline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The values of a sample.
    Sample,
    /// The values of a channel, over all samples of a message. Feature `j` belongs to channel `j mod channels`.
    Channel {
        /// Number of channels, a divisor of the number of features. With as many channels as features, each feature has
        /// its own scale.
        channels: u32,
    },
}

/// The quantiser with its parameters, for samples of `features` values.
pub(super) struct Symmetric {
    pub(super) bits: u8,
    pub(super) scope: Scope,
    pub(super) scale: Dtype,
    pub(super) features: usize,
}

impl Symmetric {
    /// Number of bytes that the scales of a batch of `samples` samples take.
    fn scales_len(&self, samples: usize) -> usize {
        let count = match self.scope {
            Scope::Sample => samples,
            Scope::Channel { .. } if samples == 0 => 0,
            Scope::Channel { channels } => channels as usize,
        };
        count * self.scale.bytes()
    }

    /// Number of bytes that a sample's codes take.
    fn codes_len(&self) -> usize {
        bits::packed_len(self.features as u64, self.bits) as usize
    }

    /// Number of bytes in the body.
    pub(super) fn body_len(&self, samples: usize) -> usize {
        self.scales_len(samples) + samples * self.codes_len()
    }

    /// Number of words of workspace. The workspace holds the channels' scales.
    pub(super) fn workspace_len(&self) -> usize {
        match self.scope {
            Scope::Sample => 0,
            Scope::Channel { channels } => (channels as usize).div_ceil(2),
        }
    }

    /// Writes `body`. The values must be finite.
    pub(super) fn encode(&self, values: &[f32], workspace: &mut [u64], body: &mut [u8]) {
        let (scales, codes) = body.split_at_mut(self.scales_len(values.len() / self.features));
        let scales = scales.chunks_exact_mut(self.scale.bytes());
        let rows = values.chunks_exact(self.features).zip(codes.chunks_exact_mut(self.codes_len()));
        match self.scope {
            Scope::Sample => {
                for ((row, codes), slot) in rows.zip(scales) {
                    let largest = row.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
                    self.encode_row(row, repeat(self.write_scale(largest, slot)), codes);
                }
            }
            Scope::Channel { channels } => {
                let largest = &mut bytemuck::cast_slice_mut::<u64, f32>(workspace)[..channels as usize];
                largest.fill(0.0);
                for group in values.chunks_exact(largest.len()) {
                    largest.iter_mut().zip(group).for_each(|(a, x)| *a = a.max(x.abs()));
                }
                largest.iter_mut().zip(scales).for_each(|(a, slot)| *a = self.write_scale(*a, slot));
                for (row, codes) in rows {
                    self.encode_row(row, largest.iter().copied().cycle(), codes);
                }
            }
        }
    }

    /// Writes a scale and returns its decoded value. A scale that would round to infinity becomes the largest bf16
    /// number.
    fn write_scale(&self, largest: f32, slot: &mut [u8]) -> f32 {
        match self.scale {
            Dtype::F32 => {
                largest.write_le(slot);
                largest
            }
            _ => {
                let scale = Bf16(Bf16::from_f32(largest).0.min(0x7f7f));
                scale.write_le(slot);
                scale.to_f32()
            }
        }
    }

    fn encode_row(&self, row: &[f32], mut scales: impl Iterator<Item = f32>, codes: &mut [u8]) {
        let half = (1i32 << self.bits) / 2;
        let mut block_codes = [0u8; BLOCK];
        for (block, packed) in row.chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 8 * self.bits as usize)) {
            for ((&x, scale), code) in block.iter().zip(&mut scales).zip(&mut block_codes) {
                let part = if scale > 0.0 { x / scale } else { 0.0 };
                let rounded = (part * half as f32 + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32;
                *code = (rounded.clamp(-half, half - 1) + half) as u8;
            }
            block_codes[block.len()..].fill(0);
            bits::pack(self.bits, &block_codes, packed);
        }
    }

    /// Decodes `body` into `values`. `body` must have exactly the length for these values.
    ///
    /// # Errors
    /// [`Error::PayloadBody`] on a scale that is negative or not finite, and on padding that is not zero.
    pub(super) fn decode(&self, body: &[u8], values: &mut [f32]) -> Result<(), Error> {
        let (scales, codes) = body.split_at(self.scales_len(values.len() / self.features));
        let scales = scales.chunks_exact(self.scale.bytes()).map(|bytes| match self.scale {
            Dtype::F32 => f32::read_le(bytes),
            _ => Bf16::read_le(bytes).to_f32(),
        });
        if scales.clone().any(|scale| !(scale.is_finite() && scale.is_sign_positive())) {
            return Err(Error::PayloadBody { what: "a scale is not finite or below zero" });
        }
        let used = self.features as u64 * self.bits as u64 % 8;
        let mut own = scales.clone();
        for (row, codes) in values.chunks_exact_mut(self.features).zip(codes.chunks_exact(self.codes_len())) {
            if used != 0 && codes.last().is_some_and(|&last| last >> used != 0) {
                return Err(Error::PayloadBody { what: "padding is not zero" });
            }
            match self.scope {
                Scope::Sample => self.decode_row(codes, repeat(own.next().unwrap_or(0.0)), row),
                Scope::Channel { .. } => self.decode_row(codes, scales.clone().cycle(), row),
            }
        }
        Ok(())
    }

    fn decode_row(&self, codes: &[u8], mut scales: impl Iterator<Item = f32>, row: &mut [f32]) {
        let half = (1i32 << self.bits) / 2;
        let inverse = 1.0 / half as f32;
        let mut block_codes = [0u8; BLOCK];
        for (block, packed) in row.chunks_mut(BLOCK).zip(codes.chunks(BLOCK / 8 * self.bits as usize)) {
            bits::unpack(self.bits, packed, &mut block_codes);
            for ((x, scale), &code) in block.iter_mut().zip(&mut scales).zip(&block_codes) {
                *x = (code as i32 - half) as f32 * inverse * scale;
            }
        }
    }
}
