//! Encoding: find the k-th largest magnitude, then write what reaches it.

use super::{TopK, body_len, check_keep};
use crate::Error;
use crate::compress::positions::{Layout, Writer};
use crate::compress::value::{WireValue, with_wire_type};
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
    let layout = Layout::new(elements as u32, top.keep);
    let variant = top.values as u8 | layout.code() << 2;
    Header { method: Method::TopK, variant, parameter: top.keep, shape }.write(payload)?;
    let (values, positions) = payload[HEADER_LEN..len].split_at_mut(top.keep as usize * top.values.bytes());
    let positions = Writer::new(layout, positions);
    if top.keep > 0 {
        with_elements!(gradient.values(), v => {
            let cut = cut(v, layout, top.keep, workspace)?;
            let indices = bytemuck::cast_slice_mut(workspace);
            with_wire_type!(top.values, V => write::<_, V>(v, cut, indices, values, positions)?)
        });
    }
    Ok(len)
}

/// Writes the positions of the `keep` largest magnitudes, `keep` at least 1.
pub(in crate::compress) fn write_positions<T: Element>(
    elements: &[T],
    layout: Layout,
    keep: u32,
    workspace: &mut [u64],
    positions: Writer<'_>,
) -> Result<(), Error> {
    let cut = cut(elements, layout, keep, workspace)?;
    choose(elements, cut, bytemuck::cast_slice_mut(workspace), positions, |_, _| Ok(()))
}

/// Where the kept elements end; `Err` with the first that is not finite.
fn cut<T: Element>(values: &[T], layout: Layout, keep: u32, workspace: &mut [u64]) -> Result<Cut, Error> {
    match layout {
        Layout::All => select::check_finite(values).map(|()| Cut { magnitude: 0, ties: u32::MAX }),
        _ => select::kth_largest_magnitude(values, keep, workspace),
    }
}

/// Writes the elements above `cut` and the first of its ties, and their positions.
fn write<T: Element, V: WireValue>(
    elements: &[T],
    cut: Cut,
    indices: &mut [u32],
    values: &mut [u8],
    positions: Writer<'_>,
) -> Result<(), Error> {
    let mut slots = values.chunks_exact_mut(size_of::<V>());
    choose(elements, cut, indices, positions, |index, value| {
        if V::put(value, slots.next().unwrap_or_default()) {
            return Ok(());
        }
        Err(Error::ElementOverflow { index, value })
    })
}

/// Writes the positions of the elements above `cut` and of the first of its ties, and hands each to `take`.
///
/// `indices` has room for one per element, [`STRETCH`] at most.
#[inline(always)]
fn choose<T: Element>(
    elements: &[T],
    cut: Cut,
    indices: &mut [u32],
    mut positions: Writer<'_>,
    mut take: impl FnMut(usize, f32) -> Result<(), Error>,
) -> Result<(), Error> {
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
            take(at + index as usize, value)?;
            indices[kept] = at as u32 + index;
            kept += 1;
        }
        positions.extend(&indices[..kept]);
    }
    positions.finish();
    Ok(())
}
