//! For backends that select on a device: what of a payload goes before its values, and rows of what a payload of TopK in full
//! keeps, which is little.

pub use super::decode::Body;
use super::measure::errors_of_sorted;
use super::stat::Runs;
use super::{QuantisedTopK, measure_workspace_len};
use crate::Error;
use crate::compress::topk::{self, TopK};
use crate::compress::wire::{Header, Payload};
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

/// The row of [`measure`](super::measure), of what TopK leaves out with each of `keeps` and of its payload in f32 with the
/// most of them; `workspace` as there.
///
/// # Errors
/// As [`topk::of_payload`]; [`Error::Length`] when it keeps another number of elements, or a slice has another length.
pub fn measure_from_topk(
    keeps: &[u32],
    bits: &[u8],
    dropped: &[f64],
    whole: &[u8],
    workspace: &mut [u64],
    squared_errors: &mut [f64],
) -> Result<(), Error> {
    let payload = Payload::parse(whole)?;
    let (shape, values) = (payload.header.shape, topk::of_payload(&payload)?.values.as_chunks::<4>().0);
    let most = keeps.iter().copied().max().unwrap_or(0) as usize;
    expect_len("elements kept", most, values.len())?;
    expect_len("errors of what is left out", keeps.len(), dropped.len())?;
    expect_len("squared errors", keeps.len() * bits.len(), squared_errors.len())?;
    expect_room("workspace words", measure_workspace_len(shape, keeps), workspace.len())?;
    let (kept, room) = workspace.split_at_mut(most.div_ceil(2));
    let kept: &mut [u32] = &mut bytemuck::cast_slice_mut(kept)[..most];
    kept.iter_mut().zip(values).for_each(|(place, &value)| *place = u32::from_le_bytes(value) & 0x7fff_ffff);
    kept.sort_unstable();
    errors_of_sorted(&Runs::new(kept, room), keeps, bits, dropped, squared_errors);
    Ok(())
}
