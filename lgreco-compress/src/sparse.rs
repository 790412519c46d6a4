//! Shared decoding of TopK and TopK in few bits: moves kept values to their positions.

use super::combine::Combine;
use super::positions::{self, Layout};
use super::wire::Payload;
use crate::error::{expect_len, expect_room};
use crate::simd::Kernel;
use crate::spread::{Divide, spread};
use crate::{Error, Result};

/// Number of elements in a stretch, a run of consecutive elements. As f32, a stretch stays in a core's caches while
/// several payloads are added to it.
pub const STRETCH: usize = 1 << 13;

/// The body of a sparse payload.
pub(super) trait Sparse<'a>: Copy + Send {
    /// Splits a payload's body and checks its length. Does not check the kept values and the positions.
    fn of(payload: &Payload<'a>) -> Result<Self>;

    fn positions(&self) -> (Layout, &'a [u8]);

    /// Combines the kept values of the elements from `start` on with `values`. `place` holds the number of earlier kept
    /// values and the bit where their positions end, as in [`positions::for_each_block`]. Elements that are not kept
    /// may be combined with `unkept`, the zero that leaves every element unchanged.
    fn scatter(
        &self,
        start: usize,
        place: &mut [u64; 2],
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<()>;
}

/// Writes the values of a payload to `values`, and zeros elsewhere.
pub(super) fn decode<'a, S: Sparse<'a>>(payload: &Payload<'a>, values: &mut [f32]) -> Result<()> {
    let body = S::of(payload)?;
    expect_len("values", payload.header.shape.elements(), values.len())?;
    decode_body(body, values)
}

pub(super) fn decode_body<'a>(body: impl Sparse<'a>, values: &mut [f32]) -> Result<()> {
    values.fill(0.0);
    scatter_all(body, values, 0.0, |place, value| *place = value)
}

/// Adds or subtracts a payload's values. Takes time in proportion to the number of kept values. Returns the errors of
/// [`decode`].
pub(super) fn combine<'a, S: Sparse<'a>>(payload: &Payload<'a>, how: Combine, values: &mut [f32]) -> Result<()> {
    let body = S::of(payload)?;
    expect_len("values", payload.header.shape.elements(), values.len())?;
    scatter_all(body, values, how.unkept(), move |place, value| how.put(place, value))
}

/// Finds where [`combine_stretch`] begins at `start`, a multiple of [`STRETCH`], without reading the earlier positions.
/// So errors in the earlier positions are not found. Returns `None` if decoding needs the earlier positions.
pub(super) fn place_of<'a, S: Sparse<'a>>(payload: &Payload<'a>, start: usize) -> Result<Option<[u64; 2]>> {
    let (layout, positions) = S::of(payload)?.positions();
    Ok(positions::find(layout, positions, start as u64))
}

/// Adds the values of the elements from `start` on, or writes them if `replace` is set. `start` is a multiple of 64.
/// `place` is the reading position at the end of the previous stretch.
pub(super) fn combine_stretch<'a, S: Sparse<'a>>(
    payload: &Payload<'a>,
    replace: bool,
    start: usize,
    place: &mut [u64; 2],
    values: &mut [f32],
) -> Result<()> {
    let body = S::of(payload)?;
    let elements = payload.header.shape.elements();
    expect_room("elements", start.saturating_add(values.len()), elements)?;
    if replace {
        values.fill(0.0);
    }
    body.scatter(start, place, values, -0.0, |place, value| *place += value)?;
    if start + values.len() == elements { check_end(&body, place) } else { Ok(()) }
}

/// Smallest number of kept values for which a second core pays off.
const WORTHWHILE: u32 = 1 << 13;

/// A loop that moves the kept values of the elements from `start` on to their positions.
struct Scatter<'v, S, F> {
    body: S,
    start: usize,
    /// The argument `place` of [`Sparse::scatter`].
    place: [u64; 2],
    values: &'v mut [f32],
    unkept: f32,
    put: F,
}

impl<'a, S: Sparse<'a>, F: Fn(&mut f32, f32)> Kernel for Scatter<'_, S, F> {
    type Output = Result<[u64; 2]>;

    #[inline(always)]
    fn run(self) -> Result<[u64; 2]> {
        let Scatter { body, start, mut place, values, unkept, put } = self;
        body.scatter(start, &mut place, values, unkept, put).map(|()| place)
    }
}

impl<'a, S: Sparse<'a>, F: Fn(&mut f32, f32) + Copy + Send> Divide for Scatter<'_, S, F> {
    fn elements(&self) -> usize {
        self.values.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let at = at / STRETCH * STRETCH;
        let start = self.start + at;
        let (layout, positions) = self.body.positions();
        let Some(place) = positions::find(layout, positions, start as u64) else {
            return Err(self);
        };
        let Scatter { body, start: first, place: first_place, values, unkept, put } = self;
        let (values, others) = values.split_at_mut(at);
        let second = Scatter { body, start, place, values: others, unkept, put };
        Ok((Scatter { body, start: first, place: first_place, values, unkept, put }, second))
    }

    fn start(self) -> Self::Output {
        self.run() // dispatches to the instruction set while it reads positions
    }
}

fn scatter_all<'a>(
    body: impl Sparse<'a>,
    values: &mut [f32],
    unkept: f32,
    put: impl Fn(&mut f32, f32) + Copy + Send,
) -> Result<()> {
    let all = Scatter { body, start: 0, place: [0; 2], values, unkept, put };
    let place = if body.positions().0.keep() < WORTHWHILE { all.run() } else { spread(all) };
    check_end(&body, &place?)
}

/// Returns an error if the payload has fewer positions than kept values.
fn check_end<'a>(body: &impl Sparse<'a>, place: &[u64; 2]) -> Result<()> {
    let keep = body.positions().0.keep();
    Error::require_body(place[0] >= keep.into(), "fewer positions than kept values")
}
