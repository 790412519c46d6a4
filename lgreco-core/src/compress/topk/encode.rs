//! Encoding: find the k-th largest magnitude, then write what reaches it.

use super::{STRETCH, TopK, check_keep, header, payload_len};
use crate::Error;
use crate::compress::positions::{BLOCK, Coding, Layout, Writer};
use crate::compress::value::{WireValue, with_wire_type};
use crate::compress::wire::HEADER_LEN;
use crate::error::expect_room;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::select::{self, Cut};

/// Stretches that are looked at together; more by several cores, which wait for each other at the end.
const TOGETHER: usize = if cfg!(feature = "rayon") { 256 } else { 64 };

pub(super) fn encode(
    top: &TopK,
    gradient: &Gradient<'_>,
    workspace: &mut [u64],
    payload: &mut [u8],
) -> Result<usize, Error> {
    let shape = gradient.shape();
    let elements = shape.elements();
    check_keep(top.keep, elements)?;
    let len = payload_len(top.keep, shape, top.values)?;
    expect_room("payload bytes", len, payload.len())?;
    expect_room("workspace words", select::workspace_len(elements), workspace.len())?;
    let body = Body::begin(top.keep, top.values, shape, &mut payload[..len])?;
    with_elements!(gradient.values(), v => fill(top, v, workspace, body))?;
    Ok(len)
}

/// Fills a payload's body, which a message may hold without its header; everything has the length it needs.
pub fn encode_body<T: Element>(
    top: &TopK,
    elements: &[T],
    workspace: &mut [u64],
    body: &mut [u8],
) -> Result<(), Error> {
    fill(top, elements, workspace, Body::of(top.keep, top.values, elements.len(), body))
}

fn fill<T: Element>(top: &TopK, elements: &[T], workspace: &mut [u64], body: Body<'_>) -> Result<(), Error> {
    if top.keep == 0 {
        return Ok(());
    }
    let cut = cut(elements, Layout::new(elements.len() as u32, top.keep), top.keep, workspace)?;
    let indices = bytemuck::cast_slice_mut(workspace);
    with_wire_type!(top.values, V => write::<_, V>(elements, cut, indices, body.values, body.positions))
}

/// Where values and positions of a payload go.
pub(super) struct Body<'a> {
    pub(super) values: &'a mut [u8],
    pub(super) positions: Writer<'a>,
}

impl<'a> Body<'a> {
    /// Writes the header of a payload with `keep` elements, which has exactly its length.
    pub(super) fn begin(keep: u32, dtype: Dtype, shape: Shape, payload: &'a mut [u8]) -> Result<Self, Error> {
        header(keep, dtype, shape, Layout::new(shape.elements() as u32, keep)).write(payload)?;
        Ok(Body::of(keep, dtype, shape.elements(), &mut payload[HEADER_LEN..]))
    }

    fn of(keep: u32, dtype: Dtype, elements: usize, body: &'a mut [u8]) -> Self {
        let (values, positions) = body.split_at_mut(keep as usize * dtype.bytes());
        Body { values, positions: Writer::new(Layout::new(elements as u32, keep), positions) }
    }
}

/// Writes the positions of the `keep` largest magnitudes, `keep` at least 1, and hands them with the bits of their values as
/// f32 to `take`, a block at a time.
pub(in crate::compress) fn write_positions<T: Element>(
    elements: &[T],
    layout: Layout,
    keep: u32,
    workspace: &mut [u64],
    positions: Writer<'_>,
    take: impl FnMut(&[u32], &[u32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let cut = cut(elements, layout, keep, workspace)?;
    choose(elements, cut, bytemuck::cast_slice_mut(workspace), positions, take)
}

/// Where the kept elements end; `Err` with the first that is not finite.
fn cut<T: Element>(values: &[T], layout: Layout, keep: u32, workspace: &mut [u64]) -> Result<Cut, Error> {
    match layout.coding {
        Coding::All => select::check_finite(values).map(|()| Cut { magnitude: 0, ties: u32::MAX }),
        _ => select::kth_largest_magnitude(values, keep, workspace),
    }
}

/// Writes the elements above `cut` and the first of its ties, and their positions.
pub(super) fn write<T: Element, V: WireValue>(
    elements: &[T],
    cut: Cut,
    indices: &mut [u32],
    values: &mut [u8],
    positions: Writer<'_>,
) -> Result<(), Error> {
    let mut slots = values.chunks_exact_mut(size_of::<V>());
    choose(elements, cut, indices, positions, |indices, bits| {
        for (&index, &bits) in indices.iter().zip(bits) {
            let (index, value) = (index as usize, f32::from_bits(bits));
            if !V::put(value, slots.next().unwrap_or_default()) {
                return Err(Error::ElementOverflow { index, value });
            }
        }
        Ok(())
    })
}

/// Writes the positions of the elements above `cut` and of the first of its ties, and hands them with the bits of their
/// values to `take`.
///
/// `indices` has room for one per element, or for [`STRETCH`] at least; more is used to look at more stretches at a time.
#[inline(always)]
fn choose<T: Element>(
    elements: &[T],
    cut: Cut,
    indices: &mut [u32],
    mut positions: Writer<'_>,
    mut take: impl FnMut(&[u32], &[u32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let Cut { magnitude, mut ties } = cut;
    let (mut counts, mut gathered) = ([0; TOGETHER], [0; BLOCK]);
    let together = STRETCH * (indices.len() / STRETCH).clamp(1, TOGETHER);
    for (first, some) in (0usize..).step_by(together).zip(elements.chunks(together)) {
        // When the ties are used up, only larger magnitudes remain to be found.
        select::indices_at_least(some, magnitude + (ties == 0) as u32, STRETCH, indices, &mut counts);
        let stretches = some.chunks(STRETCH).zip(indices.chunks_mut(STRETCH)).zip(&counts);
        for (at, ((stretch, indices), &found)) in (first..).step_by(STRETCH).zip(stretches) {
            let has_values = select::with_values(indices, found).is_some();
            let (indices, values) = indices.split_at_mut(found);
            for (block, indices) in (0..).step_by(BLOCK).zip(indices.chunks_mut(BLOCK)) {
                let count = indices.len();
                let bits = if has_values {
                    &mut values[block..block + count]
                } else {
                    let found = gathered.iter_mut().zip(&*indices);
                    found.for_each(|(bits, &index)| *bits = stretch[index as usize].to_f32().to_bits());
                    &mut gathered[..count]
                };
                indices.iter_mut().for_each(|index| *index += at as u32);
                let kept = without_later_ties(indices, bits, magnitude, &mut ties);
                take(&indices[..kept], &bits[..kept])?;
                positions.extend(&indices[..kept]);
            }
        }
    }
    positions.finish();
    Ok(())
}

/// Moves what has another magnitude, and the first `ties` that have not, to the front; returns their number.
#[inline(always)]
fn without_later_ties(indices: &mut [u32], bits: &mut [u32], magnitude: u32, ties: &mut u32) -> usize {
    let is_tied = |bits: u32| bits & 0x7fff_ffff == magnitude;
    let tied = bits.iter().map(|&bits| is_tied(bits) as u32).sum::<u32>();
    if tied <= *ties {
        *ties -= tied;
        return bits.len();
    }
    let mut kept = 0;
    for i in 0..bits.len() {
        if is_tied(bits[i]) {
            if *ties == 0 {
                continue;
            }
            *ties -= 1;
        }
        (indices[kept], bits[kept]) = (indices[i], bits[i]);
        kept += 1;
    }
    kept
}
