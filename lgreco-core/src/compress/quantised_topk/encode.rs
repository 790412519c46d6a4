//! Encoding: select as TopK does, then say of each kept value which bin it is in.

use super::QuantisedTopK;
use super::bins::{BLOCK, Bins};
use super::sums::Sums;
use crate::Error;
use crate::compress::positions::Writer;
use crate::compress::topk::write_positions;
use crate::compress::wire::HEADER_LEN;
use crate::compress::{Compressor, bits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, with_elements};
use crate::select;
use crate::simd::{Kernel, dispatch};

pub(super) fn encode(
    top: &QuantisedTopK,
    gradient: &Gradient<'_>,
    workspace: &mut [u64],
    payload: &mut [u8],
) -> Result<usize, Error> {
    let shape = gradient.shape();
    let (parts, len) = (top.parts(shape.elements())?, top.payload_len(shape, Dtype::F32)?);
    expect_room("payload bytes", len, payload.len())?;
    expect_room("workspace words", top.encode_workspace_len(shape, Dtype::F32), workspace.len())?;
    top.header(shape, parts.layout).write(payload)?;
    let (means, rest) = payload[HEADER_LEN..len].split_at_mut(parts.means);
    let (codes, positions) = rest.split_at_mut(parts.codes);
    let (workspace, kept) = workspace.split_at_mut(select::workspace_len(shape.elements()));
    let kept: &mut [u32] = &mut bytemuck::cast_slice_mut(kept)[..top.keep as usize];
    if top.keep > 0 {
        let mut places = &mut *kept;
        let writer = Writer::new(parts.layout, positions);
        with_elements!(gradient.values(), v => {
            write_positions(v, parts.layout, top.keep, workspace, writer, |bits| {
                let (here, rest) = core::mem::take(&mut places).split_at_mut(bits.len());
                here.copy_from_slice(bits);
                places = rest;
            })
        })?;
    }
    quantise(top.bits, kept, means, codes);
    Ok(len)
}

/// Writes the means of the bins of `kept`, bits of f32 values, and the codes.
fn quantise(bits: u8, kept: &[u32], means: &mut [u8], codes: &mut [u8]) {
    dispatch(Quantise { bits, kept, means, codes });
}

struct Quantise<'a> {
    bits: u8,
    kept: &'a [u32],
    means: &'a mut [u8],
    codes: &'a mut [u8],
}

/// The magnitudes of a block, zeros behind them.
#[inline(always)]
fn magnitudes(kept: &[u32]) -> [u32; BLOCK] {
    let mut magnitudes = [0; BLOCK];
    for (magnitude, bits) in magnitudes.iter_mut().zip(kept) {
        *magnitude = bits & 0x7fff_ffff;
    }
    magnitudes
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Quantise { bits, kept, means, codes } = self;
        let (mut low, mut high) = (u32::MAX, 0);
        for bits in kept {
            let magnitude = bits & 0x7fff_ffff;
            high = magnitude.max(high);
            low = if magnitude > 0 { magnitude } else { u32::MAX }.min(low);
        }
        let mut sums = Sums::new(Bins::new(bits, low.min(high), high));
        for kept in kept.chunks(BLOCK) {
            sums.look(&magnitudes(kept));
        }
        for (kept, packed) in kept.chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 8 * bits as usize)) {
            let bins = sums.add(&magnitudes(kept), kept.len());
            let mut block = [0; BLOCK];
            for ((code, &bin), value) in block.iter_mut().zip(&bins).zip(kept) {
                *code = bin as u8 | ((value >> 31) as u8) << (bits - 1);
            }
            bits::pack(bits, &block, packed);
        }
        for (place, mean) in means.chunks_exact_mut(4).zip(sums.means()) {
            place.copy_from_slice(&mean.to_le_bytes());
        }
    }
}
