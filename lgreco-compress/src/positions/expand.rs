//! Values to the places that a bitmap marks, those of many elements at once.

use super::word;
use crate::lanes::{LaneKernel, Lanes};
use crate::{Error, Result};

/// Words whose values are fetched together.
const TOGETHER: usize = 4;

/// Room for their values, and for looking behind them.
pub(crate) type Fetched = [u32; 64 * (TOGETHER + 1)];

/// Puts what is kept of the elements from `start` on, a multiple of 64, into `values`. Finds out how many are kept up to
/// their end.
pub(crate) struct Expand<'a, F, P> {
    /// Of all elements.
    pub(crate) bitmap: &'a [u8],
    /// Whether the tensor ends with these elements.
    pub(crate) is_last: bool,
    pub(crate) start: usize,
    pub(crate) values: &'a mut [f32],
    /// How many are kept before.
    pub(crate) index: u64,
    /// How many are kept in all.
    pub(crate) keep: u64,
    /// Writes the bits of so many kept values from one on.
    pub(crate) fetch: F,
    /// What becomes of an element; `unkept`, a zero, leaves it as it is.
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
                // What is unkept has the sign of `unkept`, and what is kept its own.
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
