//! What a payload's header promises, checked before the device sees the body.

use lgreco_core::Error;
use lgreco_core::compress::Compressor;
use lgreco_core::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_core::compress::wire::{HEADER_LEN, Payload};
use lgreco_core::gradient::Dtype;

/// The compressor of a QSGD payload, or `None` when the core's decoder has to say what is wrong with it.
pub(crate) fn qsgd(payload: &Payload<'_>) -> Result<Option<Qsgd>, Error> {
    let header = payload.header;
    let scale = if header.variant >> 3 == 0 { Scale::MaxNorm } else { Scale::MinMax };
    let qsgd = Qsgd { bits: (header.variant & 7) + 1, bucket: header.parameter, scale, rounding: Rounding::Nearest };
    if header.variant > 15 || qsgd.bucket == 0 {
        return Ok(None);
    }
    let elements = header.shape.elements();
    if HEADER_LEN + payload.body.len() != qsgd.payload_len(header.shape, Dtype::F32)? {
        return Ok(None);
    }
    let (scales, codes) = payload.body.split_at(crate::qsgd::scales_len(qsgd, elements.div_ceil(qsgd.bucket as usize)));
    let used = (elements as u64 * qsgd.bits as u64 % 8) as u32;
    if used != 0 && codes.last().is_some_and(|&last| last >> used != 0) {
        return Ok(None);
    }
    let ends = scales.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    let ordered = match scale {
        Scale::MaxNorm => ends.clone().all(|norm| norm >= 0.0),
        Scale::MinMax => scales.as_chunks::<8>().0.iter().all(|bytes| {
            let end = |at: usize| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            end(0) <= end(4)
        }),
    };
    Ok((ordered && ends.clone().all(f32::is_finite)).then_some(qsgd))
}
