//! Encoding: select as TopK does, then say of each kept value which bin it is in.

use super::QuantisedTopK;
use super::bins::{Bins, Sums};
use crate::Error;
use crate::compress::positions::Writer;
use crate::compress::topk::write_positions;
use crate::compress::wire::HEADER_LEN;
use crate::compress::{Compressor, bits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, with_elements};
use crate::select;

/// Codes that are packed together.
const BLOCK: usize = 64;

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
        let mut places = kept.iter_mut();
        let writer = Writer::new(parts.layout, positions);
        with_elements!(gradient.values(), v => {
            write_positions(v, parts.layout, top.keep, workspace, writer, |_, value| {
                if let Some(place) = places.next() {
                    *place = value.to_bits();
                }
                Ok(())
            })
        })?;
    }
    quantise(top.bits, kept, means, codes);
    Ok(len)
}

/// Writes the means of the bins of `kept`, bits of f32 values, and the codes.
pub(super) fn quantise(bits: u8, kept: &[u32], means: &mut [u8], codes: &mut [u8]) {
    let magnitudes = kept.iter().map(|bits| bits & 0x7fff_ffff);
    let high = magnitudes.clone().max().unwrap_or(0);
    let low = magnitudes.filter(|&m| m > 0).min().unwrap_or(high);
    let magnitudes = kept.iter().map(|bits| bits & 0x7fff_ffff);
    let mut sums = Sums::new(Bins::new(bits, low, high), magnitudes);
    for (kept, packed) in kept.chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 8 * bits as usize)) {
        let mut block = [0; BLOCK];
        for (code, &value) in block.iter_mut().zip(kept) {
            *code = sums.add(value & 0x7fff_ffff) as u8 | ((value >> 31) as u8) << (bits - 1);
        }
        bits::pack(bits, &block, packed);
    }
    for (place, mean) in means.chunks_exact_mut(4).zip(sums.means()) {
        place.copy_from_slice(&mean.to_le_bytes());
    }
}
