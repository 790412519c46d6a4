//! Encodes TopK: finds the k-th largest magnitude, then writes the elements that reach it.

use super::{STRETCH, TopK, header};
use crate::gradient::{Dtype, Element, Shape};
use crate::positions::{Coding, Layout, Writer};
use crate::select::mark::{mark_at_least, marked};
use crate::select::{self, Cut};
use crate::value::{WireValue, with_wire_type};
use crate::wire::HEADER_LEN;
use crate::{Error, Result};

/// Number of stretches that one call of [`mark_at_least`] marks. With the feature `rayon` the number is larger, because
/// the cores wait for each other after every call.
const TOGETHER: usize = if cfg!(feature = "rayon") { 256 } else { 64 };

/// Writes a payload's body without the header. `workspace` and `body` must have the required lengths.
pub fn encode_body<T: Element>(top: &TopK, elements: &[T], workspace: &mut [u64], body: &mut [u8]) -> Result<()> {
    fill(top, elements, workspace, Body::of(top.keep, top.values, elements.len(), body))
}

pub(super) fn fill<T: Element>(top: &TopK, elements: &[T], workspace: &mut [u64], body: Body<'_>) -> Result<()> {
    if top.keep == 0 {
        return Ok(());
    }
    let cut = cut(elements, Layout::new(elements.len() as u32, top.keep), top.keep, workspace)?;
    with_wire_type!(top.values, V => write::<_, V>(elements, cut, workspace, body.values, body.positions))
}

/// The parts of a payload that receive the values and the positions.
pub(super) struct Body<'a> {
    pub(super) values: &'a mut [u8],
    pub(super) positions: Writer<'a>,
}

impl<'a> Body<'a> {
    /// Writes the header of a payload with `keep` elements. `payload` must have exactly that payload's length.
    pub(super) fn begin(keep: u32, dtype: Dtype, shape: Shape, payload: &'a mut [u8]) -> Result<Self> {
        header(keep, dtype, shape, Layout::new(shape.elements() as u32, keep)).write(payload)?;
        Ok(Body::of(keep, dtype, shape.elements(), &mut payload[HEADER_LEN..]))
    }

    fn of(keep: u32, dtype: Dtype, elements: usize, body: &'a mut [u8]) -> Self {
        let (values, positions) = body.split_at_mut(keep as usize * dtype.bytes());
        Body { values, positions: Writer::new(Layout::new(elements as u32, keep), positions) }
    }
}

/// Writes the positions of the `keep` largest magnitudes; `keep` is at least 1. Passes the bits of the kept values as
/// f32 to `take`, in several calls.
pub(crate) fn write_positions<T: Element>(
    elements: &[T],
    layout: Layout,
    keep: u32,
    workspace: &mut [u64],
    positions: Writer<'_>,
    mut take: impl FnMut(&[u32]),
) -> Result<()> {
    let cut = cut(elements, layout, keep, workspace)?;
    choose(elements, cut, workspace, positions, |bits| {
        take(bits);
        Ok(())
    })
}

/// The boundary of the kept elements, or an error with the first NaN or infinity.
fn cut<T: Element>(values: &[T], layout: Layout, keep: u32, workspace: &mut [u64]) -> Result<Cut> {
    match layout.coding {
        Coding::All => select::check_finite(values).map(|()| Cut { magnitude: 0, ties: u32::MAX }),
        _ => select::kth_largest_magnitude(values, keep, workspace),
    }
}

/// Writes the elements above `cut`, and the first `ties` elements with exactly the cut's magnitude, with their
/// positions. [`choose`] describes `workspace`.
pub(super) fn write<T: Element, V: WireValue>(
    elements: &[T],
    cut: Cut,
    workspace: &mut [u64],
    values: &mut [u8],
    positions: Writer<'_>,
) -> Result<()> {
    let mut slots = values.chunks_exact_mut(size_of::<V>());
    choose(elements, cut, workspace, positions, |bits| {
        for (nth, &bits) in bits.iter().enumerate() {
            if !V::put(f32::from_bits(bits), slots.next().unwrap_or_default()) {
                return Err(nth);
            }
        }
        Ok(())
    })
}

/// Writes the positions of the elements above `cut`, and of the first `ties` elements with exactly the cut's magnitude.
/// Passes the bits of these elements to `take`. If a value is too large, `take` returns an error with the value's index
/// in the slice.
///
/// `workspace` has one word per two elements, or at least `STRETCH / 2` words. In a longer workspace, more stretches
/// are marked at a time.
#[inline(always)]
fn choose<T: Element>(
    elements: &[T],
    cut: Cut,
    workspace: &mut [u64],
    mut positions: Writer<'_>,
    mut take: impl FnMut(&[u32]) -> Result<(), usize>,
) -> Result<()> {
    let Cut { magnitude, mut ties } = cut;
    let mut counts = [0; TOGETHER];
    let together = STRETCH * (workspace.len() / (STRETCH / 2)).clamp(1, TOGETHER);
    for (first, some) in (0..).step_by(together).zip(elements.chunks(together)) {
        // After the last tie to keep, only larger magnitudes are marked.
        mark_at_least(some, magnitude + (ties == 0) as u32, STRETCH, workspace, &mut counts);
        let mut keep = |at: usize, marks: &mut [u64], bits: &mut [u32]| {
            let kept = without_later_ties(marks, bits, magnitude, &mut ties);
            let too_large = |nth: usize| {
                let index = at + nth_one(marks, nth);
                Error::ElementOverflow { index, value: elements[index].to_f32() }
            };
            take(&bits[..kept]).map_err(too_large)?;
            positions.extend_marked(at, marks);
            Ok::<(), Error>(())
        };
        let stretches = some.chunks(STRETCH).zip(workspace.chunks_mut(STRETCH / 2)).zip(&counts);
        for (at, ((stretch, room), &found)) in (first..).step_by(STRETCH).zip(stretches) {
            let (marks, bits) = marked(room, stretch.len());
            if let Some(bits) = bits.get_mut(..found) {
                keep(at, marks, bits)?;
                continue;
            }
            // The workspace could not hold the marks and the values, because nearly all elements are kept. Reads the
            // values again, one word of marks at a time.
            for (at, (marks, values)) in (at..).step_by(64).zip(marks.chunks_mut(1).zip(stretch.chunks(64))) {
                let (mut places, mut bits) = ([0; 64], [0; 64]);
                let found = select::ones(marks[0], 0, &mut places);
                for (bits, &place) in bits.iter_mut().zip(&places[..found]) {
                    *bits = values[place as usize].to_f32().to_bits();
                }
                keep(at, marks, &mut bits[..found])?;
            }
        }
    }
    positions.finish();
    Ok(())
}

/// Index of the `nth` set bit of these words, counted from 0.
fn nth_one(words: &[u64], nth: usize) -> usize {
    let mut ones = (0..64 * words.len()).filter(|at| words[at / 64] >> (at % 64) & 1 == 1);
    ones.nth(nth).unwrap_or(0)
}

/// Keeps all values of larger magnitude and the first `ties` ties. Moves the kept values to the front of `bits`, clears
/// the marks of all other ties, and returns the number of kept values.
#[inline(always)]
fn without_later_ties(marks: &mut [u64], bits: &mut [u32], magnitude: u32, ties: &mut u32) -> usize {
    let is_tied = |bits: u32| bits & 0x7fff_ffff == magnitude;
    let tied = bits.iter().map(|&bits| is_tied(bits) as u32).sum::<u32>();
    if tied <= *ties {
        *ties -= tied;
        return bits.len();
    }
    let (mut looked_at, mut kept) = (0, 0);
    for mark in marks {
        let mut rest = *mark;
        while rest != 0 {
            let value = bits[looked_at];
            looked_at += 1;
            if is_tied(value) && *ties == 0 {
                *mark &= !(rest & rest.wrapping_neg());
            } else {
                *ties -= is_tied(value) as u32;
                bits[kept] = value;
                kept += 1;
            }
            rest &= rest - 1;
        }
    }
    kept
}
