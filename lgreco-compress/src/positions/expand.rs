//! Moves values to the positions that a bitmap marks, many elements at a time.

use super::word;
use crate::lanes::{LaneKernel, Lanes};
use crate::{Error, Result};

/// Number of bitmap words that one fetch of values covers.
const TOGETHER: usize = 4;

/// Buffer for the kept values of `TOGETHER` bitmap words. With the 64 additional entries, 64 entries can be read from
/// any fetched value on.
pub(crate) type Fetched = [u32; 64 * (TOGETHER + 1)];

/// Combines `values`, which are the elements from `start` on, with the payload's kept values at these elements. `start`
/// is a multiple of 64. Returns the number of values that are kept before the end of these elements.
pub(crate) struct Expand<'a, F, P> {
    /// Bitmap of all elements of the tensor.
    pub(crate) bitmap: &'a [u8],
    /// Whether the tensor ends with the last of `values`.
    pub(crate) is_last: bool,
    pub(crate) start: usize,
    pub(crate) values: &'a mut [f32],
    /// Number of values kept before `start`.
    pub(crate) index: u64,
    /// Number of values kept in the whole tensor.
    pub(crate) keep: u64,
    /// Fetches the bits of kept values, given the first index, the count and the buffer.
    pub(crate) fetch: F,
    /// Combines an element with its kept value. Elements that are not kept are combined with `unkept`, which is +0 or
    /// −0.
    pub(crate) put: P,
    pub(crate) unkept: f32,
}

impl<F, P> LaneKernel for Expand<'_, F, P>
where
    F: FnMut(u64, usize, &mut Fetched) -> Result<()>,
    P: Fn(&mut f32, f32),
{
    type Output = Result<u64>;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Result<u64> {
        let Expand { bitmap, is_last, start, values, mut index, keep, mut fetch, put, unkept } = self;
        let (mut fetched, sign) = ([0; size_of::<Fetched>() / 4], unkept.to_bits());
        let word_at = |element: usize| word(bitmap.get(element / 8..).unwrap_or_default());
        let end = start + values.len();
        for (start, places) in (start..).step_by(64 * TOGETHER).zip(values.chunks_mut(64 * TOGETHER)) {
            let (mut words, mut found) = ([0; TOGETHER], 0);
            for (w, places) in places.chunks(64).enumerate() {
                words[w] = word_at(start + 64 * w) & (!0 >> (64 - places.len()));
                found += words[w].count_ones() as usize;
            }
            let there = (keep.saturating_sub(index)).min(found as u64) as usize;
            fetch(index, there, &mut fetched)?;
            let mut at = 0;
            for (&word, places) in words.iter().zip(places.chunks_mut(64)) {
                // If `unkept` is −0, this loop flips the signs of kept values, and the loop below flips all signs. So
                // kept values do not change, and all other elements get `unkept`.
                let mut kept = [0; 64];
                if let Some(fetched) = fetched[at..].first_chunk::<64>() {
                    for i in 0..64 {
                        kept[i] = fetched[i] ^ sign;
                    }
                }
                let expanded = lanes.expand(&kept, word);
                if let Some(places) = places.first_chunk_mut::<64>() {
                    for i in 0..64 {
                        put(&mut places[i], f32::from_bits(expanded[i] ^ sign));
                    }
                } else {
                    places.iter_mut().zip(expanded).for_each(|(place, bits)| put(place, f32::from_bits(bits ^ sign)));
                }
                at += word.count_ones() as usize;
            }
            index += there as u64;
            Error::require_body(there == found, "more positions than kept values")?;
        }
        let beyond = is_last && !end.is_multiple_of(64) && word_at(end - end % 64) >> (end % 64) != 0;
        Error::require_body(!beyond, "a position outside the tensor").map(|()| index)
    }
}
