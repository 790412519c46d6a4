//! Encoding: find the k-th largest magnitude, then write what reaches it.

use super::positions::{Layout, Writer};
use super::value::{WireValue, with_wire_type};
use super::{TopK, body_len, check_keep};
use crate::Error;
use crate::compress::wire::{HEADER_LEN, Header, Method};
use crate::error::expect_room;
use crate::gradient::{Element, Gradient, with_elements};
use crate::select::{self, Cut};

/// Elements whose positions are collected at a time.
const STRETCH: usize = 1 << 13;

pub(super) fn encode(
    top: &TopK,
    gradient: &Gradient<'_>,
    workspace: &mut [u64],
    payload: &mut [u8],
) -> Result<usize, Error> {
    let shape = gradient.shape();
    let elements = shape.elements();
    check_keep(top.keep, elements)?;
    let len = HEADER_LEN as u64 + body_len(top.keep, elements, top.values);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    expect_room("payload bytes", len, payload.len())?;
    expect_room("workspace words", select::workspace_len(elements), workspace.len())?;
    let variant = top.values as u8 | Layout::new(elements as u32, top.keep).code() << 2;
    Header { method: Method::TopK, variant, parameter: top.keep, shape }.write(payload)?;
    let body = &mut payload[HEADER_LEN..len];
    with_elements!(gradient.values(), v => encode_body(top, v, workspace, body))?;
    Ok(len)
}

/// Fills a payload's body, which a message may hold without its header; everything has the length it needs.
pub(crate) fn encode_body<T: Element>(
    top: &TopK,
    elements: &[T],
    workspace: &mut [u64],
    body: &mut [u8],
) -> Result<(), Error> {
    let layout = Layout::new(elements.len() as u32, top.keep);
    let (values, positions) = body.split_at_mut(top.keep as usize * top.values.bytes());
    let positions = Writer::new(layout, positions);
    if top.keep == 0 {
        return Ok(());
    }
    let cut = match layout {
        Layout::All => select::check_finite(elements).map(|()| Cut { magnitude: 0, ties: u32::MAX })?,
        _ => select::kth_largest_magnitude(elements, top.keep, workspace)?,
    };
    let indices = bytemuck::cast_slice_mut(workspace);
    with_wire_type!(top.values, V => write::<_, V>(elements, cut, indices, values, positions))
}

/// Writes the elements above `cut` and the first of its ties.
fn write<T: Element, V: WireValue>(
    elements: &[T],
    cut: Cut,
    indices: &mut [u32],
    values: &mut [u8],
    mut positions: Writer<'_>,
) -> Result<(), Error> {
    let mut slots = values.chunks_exact_mut(size_of::<V>());
    let Cut { magnitude, mut ties } = cut;
    for (at, stretch) in (0..).step_by(STRETCH).zip(elements.chunks(STRETCH)) {
        // When the ties are used up, only larger magnitudes remain to be found.
        let found = select::indices_at_least(stretch, magnitude + (ties == 0) as u32, indices);
        let mut kept = 0;
        for i in 0..found {
            let index = indices[i];
            let value = stretch[index as usize].to_f32();
            if select::magnitude_bits(value) == magnitude {
                if ties == 0 {
                    continue;
                }
                ties -= 1;
            }
            let slot = slots.next().unwrap_or_default();
            if !V::put(value, slot) {
                return Err(Error::ElementOverflow { index: at + index as usize, value });
            }
            indices[kept] = at as u32 + index;
            kept += 1;
        }
        positions.extend(&indices[..kept]);
    }
    positions.finish();
    Ok(())
}
