//! Passes over the layers of a bucket, with the feature `rayon` over several at a time.

use super::arena::Kept;
use crate::Error;
use crate::gradient::ValuesMut;
use lgreco::compress::spread::{WORTHWHILE, join};

/// Calls `visit` with each layer, its gradient and its part of `room`, as long as `len` says. The error is that of the
/// first layer that fails; others may have been visited.
pub(super) fn for_each(
    kept: &mut [Kept],
    gradients: &mut [ValuesMut<'_>],
    room: &mut [f32],
    len: &(impl Fn(&Kept) -> usize + Sync),
    visit: &(impl Fn(&mut Kept, &mut ValuesMut<'_>, &mut [f32]) -> Result<(), Error> + Sync),
) -> Result<(), Error> {
    if let Some(at) = middle(kept) {
        let (kept, others) = kept.split_at_mut(at);
        let (gradients, other_gradients) = gradients.split_at_mut(at.min(gradients.len()));
        let (room, other_room) = room.split_at_mut(kept.iter().map(len).sum());
        let (first, second) = join(
            || for_each(kept, gradients, room, len, visit),
            || for_each(others, other_gradients, other_room, len, visit),
        );
        return first.and(second);
    }
    let mut room = room;
    for (kept, gradient) in kept.iter_mut().zip(gradients) {
        let (part, rest) = room.split_at_mut(len(kept));
        visit(kept, gradient, part)?;
        room = rest;
    }
    Ok(())
}

/// Where to divide layers of enough elements, neither first nor last.
fn middle(kept: &[Kept]) -> Option<usize> {
    let elements: usize = kept.iter().map(|kept| kept.plan.shape.elements()).sum();
    let mut before = 0;
    let at = kept.iter().take_while(|kept| {
        before += kept.plan.shape.elements();
        2 * before <= elements
    });
    let at = at.count().max(1);
    (elements >= WORTHWHILE && at < kept.len()).then_some(at)
}
