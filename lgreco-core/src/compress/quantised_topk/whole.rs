//! For backends that select on a device. To and from payloads of TopK in full: what is kept is little, and its bins and
//! means are integers, so that the host finishes with the same bytes. And of payloads that the device finishes, what goes before
//! their values.

pub use super::decode::Body;
use super::encode::quantise;
use super::measure::errors_of_sorted;
use super::stat::Runs;
use super::{QuantisedTopK, measure_workspace_len};
use crate::Error;
use crate::compress::positions::BLOCK;
use crate::compress::topk::{self, TopK};
use crate::compress::wire::{HEADER_LEN, Header, Payload};
use crate::compress::{Compressor, bits};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Shape};

/// What selects the same elements.
pub fn in_full(top: &QuantisedTopK) -> TopK {
    TopK { keep: top.keep, values: Dtype::F32 }
}

/// The header of a payload.
///
/// # Errors
/// [`Error::Parameter`] unless bits and elements kept are such as the shape allows.
pub fn header(top: &QuantisedTopK, shape: Shape) -> Result<Header, Error> {
    Ok(top.header(shape, top.parts(shape.elements())?.layout))
}

/// The parts of a payload's body. Finds fault with it where [`decode`](super::decode) does without looking at each value.
///
/// # Errors
/// As there, but for the positions.
pub fn of_payload<'a>(payload: &Payload<'a>) -> Result<Body<'a>, Error> {
    Body::of(payload)
}

/// Bytes of the payload that [`to_topk`] makes.
///
/// # Errors
/// As [`of_payload`]: what a header says is not allocated before it has been looked at.
pub fn whole_len(payload: &Payload<'_>) -> Result<usize, Error> {
    in_full(&Body::of(payload)?.top).payload_len(payload.header.shape, Dtype::F32)
}

/// The values that a payload of TopK in f32 keeps, as their bits.
fn kept<'a>(whole: &'a [u8]) -> Result<(Shape, topk::Body<'a>, impl Iterator<Item = u32> + 'a), Error> {
    let payload = Payload::parse(whole)?;
    let body = topk::of_payload(&payload)?;
    let values = body.values.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
    Ok((payload.header.shape, body, values))
}

/// Makes the payload of `top` of that of TopK [in full](in_full), and returns its length; `words` has a place per
/// element kept.
///
/// # Errors
/// As [`topk::of_payload`]; [`Error::Length`] when it keeps another number of elements, or a buffer is too short.
pub fn from_topk(top: &QuantisedTopK, whole: &[u8], words: &mut [u32], payload: &mut [u8]) -> Result<usize, Error> {
    let (shape, body, values) = kept(whole)?;
    let (parts, len) = (top.parts(shape.elements())?, top.payload_len(shape, Dtype::F32)?);
    expect_len("elements kept", top.keep as usize, values.size_hint().0)?;
    expect_room("words, one per element kept", top.keep as usize, words.len())?;
    expect_room("payload bytes", len, payload.len())?;
    top.header(shape, parts.layout).write(payload)?;
    let (means, rest) = payload[HEADER_LEN..len].split_at_mut(parts.means);
    let (codes, positions) = rest.split_at_mut(parts.codes);
    let words = &mut words[..top.keep as usize];
    words.iter_mut().zip(values).for_each(|(word, value)| *word = value);
    quantise(top.bits, words, means, codes);
    positions.copy_from_slice(body.positions);
    Ok(len)
}

/// Makes of a payload in few bits that of TopK in f32 with the same values, whose length it returns.
///
/// # Errors
/// As [`decode`](super::decode), but for the positions; [`Error::Length`] when `whole` is too short.
pub fn to_topk(payload: &Payload<'_>, whole: &mut [u8]) -> Result<usize, Error> {
    let (body, shape) = (Body::of(payload)?, payload.header.shape);
    let top = in_full(&body.top);
    let len = top.payload_len(shape, Dtype::F32)?;
    expect_room("payload bytes", len, whole.len())?;
    top.header(shape)?.write(whole)?;
    let (values, positions) = whole[HEADER_LEN..len].split_at_mut(4 * top.keep as usize);
    let (meanings, mut room) = (body.meanings(), [0; bits::some_room(BLOCK)]);
    for (first, values) in (0..).step_by(BLOCK).zip(values.as_chunks_mut::<4>().0.chunks_mut(BLOCK)) {
        let codes = body.codes(first, values.len(), &mut room);
        for (place, &code) in values.iter_mut().zip(codes) {
            *place = meanings[code as usize].to_le_bytes();
        }
    }
    positions.copy_from_slice(body.positions);
    Ok(len)
}

/// The row of [`measure`](super::measure), of what TopK leaves out with each of `keeps` and of its payload in f32 with the
/// most of them; `workspace` as there.
///
/// # Errors
/// As [`from_topk`].
pub fn measure_from_topk(
    keeps: &[u32],
    bits: &[u8],
    dropped: &[f64],
    whole: &[u8],
    workspace: &mut [u64],
    squared_errors: &mut [f64],
) -> Result<(), Error> {
    let (shape, _, values) = kept(whole)?;
    let most = keeps.iter().copied().max().unwrap_or(0) as usize;
    expect_len("elements kept", most, values.size_hint().0)?;
    expect_len("errors of what is left out", keeps.len(), dropped.len())?;
    expect_len("squared errors", keeps.len() * bits.len(), squared_errors.len())?;
    expect_room("workspace words", measure_workspace_len(shape, keeps), workspace.len())?;
    let (kept, room) = workspace.split_at_mut(most.div_ceil(2));
    let kept: &mut [u32] = &mut bytemuck::cast_slice_mut(kept)[..most];
    kept.iter_mut().zip(values).for_each(|(place, value)| *place = value & 0x7fff_ffff);
    kept.sort_unstable();
    errors_of_sorted(&Runs::new(kept, room), keeps, bits, dropped, squared_errors);
    Ok(())
}
