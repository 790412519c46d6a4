//! Marks the elements whose magnitude reaches a threshold, and collects their values, by vectorised passes.

use super::put;
use crate::gradient::Element;
use crate::lanes::{LANES, LaneKernel, Lanes, dispatch_lanes};
use crate::spread::{Per, spread_parts};

/// Marks the elements with magnitude bits of at least `magnitude`, one bit each, and returns their number. Writes the
/// marked values, as bits of f32, to the front of `kept` if they fit.
#[inline(always)]
fn mark<T: Element, L: Lanes>(lanes: L, values: &[T], magnitude: u32, marks: &mut [u64], kept: &mut [u32]) -> usize {
    let (blocks, rest) = values.as_chunks::<64>();
    let mut last = [T::zeroed(); 64];
    last[..rest.len()].copy_from_slice(rest);
    let mut count = 0;
    for (mark, block) in marks.iter_mut().zip(blocks) {
        *mark = mark_block(lanes, block, magnitude, !0, kept, &mut count);
    }
    if let Some(mark) = marks.get_mut(blocks.len()) {
        *mark = mark_block(lanes, &last, magnitude, !(!0 << rest.len()), kept, &mut count);
    }
    count
}

#[inline(always)]
fn mark_block<T: Element, L: Lanes>(
    lanes: L,
    block: &[T; 64],
    magnitude: u32,
    there: u64,
    kept: &mut [u32],
    count: &mut usize,
) -> u64 {
    let (mut all, mut mask) = ([0; 64], 0);
    for (part, (values, bits)) in block.as_chunks::<LANES>().0.iter().zip(all.as_chunks_mut::<LANES>().0).enumerate() {
        let mut reaches = [0; LANES];
        for i in 0..LANES {
            bits[i] = values[i].to_f32().to_bits();
            reaches[i] = (bits[i] & 0x7fff_ffff >= magnitude) as u32;
        }
        mask |= (lanes.mask(reaches) as u64) << (LANES * part);
    }
    mask &= there;
    *count += put(lanes, &all, mask, kept.get_mut(*count..).unwrap_or_default());
    mask
}

/// One pass that marks elements.
struct AtLeast<'a, T> {
    values: &'a [T],
    magnitude: u32,
    stretch: usize,
    room: &'a mut [u64],
    counts: &'a mut [usize],
}

impl<T: Element> LaneKernel for AtLeast<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let stretches = self.values.chunks(self.stretch).zip(self.room.chunks_mut(self.stretch / 2));
        for ((values, room), count) in stretches.zip(self.counts) {
            let (marks, kept) = marked(room, values.len());
            *count = mark(lanes, values, self.magnitude, marks, kept);
        }
    }
}

type Stretches<'a, T> = (&'a [T], Per<&'a mut [u64]>, Per<&'a mut [usize]>);

#[inline(always)]
fn at_least<T: Element>(
    (values, Per(room, ..), Per(counts, ..)): Stretches<'_, T>,
    (magnitude, stretch): (u32, usize),
) {
    dispatch_lanes(AtLeast { values, magnitude, stretch, room, counts });
}

/// Splits the workspace `room` of a stretch into marks and values.
pub fn marked(room: &mut [u64], elements: usize) -> (&mut [u64], &mut [u32]) {
    let (marks, kept) = room.split_at_mut(elements.div_ceil(64));
    (marks, bytemuck::cast_slice_mut(kept))
}

/// Marks the elements with magnitude bits of at least `magnitude`. `stretch` is a multiple of 64. Each stretch of
/// `stretch` elements has `stretch / 2` separate words of `room`, so that no core fetches data of another core. These
/// words receive the marks of the stretch, and its values if they fit (see [`marked`]). `counts` receives the number of
/// marked elements per stretch.
pub fn mark_at_least<T: Element>(values: &[T], magnitude: u32, stretch: usize, room: &mut [u64], counts: &mut [usize]) {
    let parts = (values, Per(room, stretch / 2, stretch), Per(counts, 1, stretch));
    spread_parts!(values.len(), stretch, parts, (magnitude, stretch), at_least,);
}
