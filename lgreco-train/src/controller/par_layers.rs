//! Passes over the layers of a bucket. With the feature `rayon`, several layers are visited at the same time.

use super::lent_layer::LentLayer;
use crate::Error;
use crate::gradient::ValuesMut;
use lgreco::compress::spread::{WORTHWHILE, join};

/// Calls `visit` with each layer, its gradient and its part of the buffer `room`. `len` returns the length of this part. Returns
/// the error of the first layer that fails; other layers may have been visited.
pub(super) fn for_each(
    layers: &mut [LentLayer],
    gradients: &mut [ValuesMut<'_>],
    room: &mut [f32],
    len: &(impl Fn(&LentLayer) -> usize + Sync),
    visit: &(impl Fn(&mut LentLayer, &mut ValuesMut<'_>, &mut [f32]) -> Result<(), Error> + Sync),
) -> Result<(), Error> {
    if let Some(at) = middle(layers) {
        let (layers, others) = layers.split_at_mut(at);
        let (gradients, other_gradients) = gradients.split_at_mut(at.min(gradients.len()));
        let (room, other_room) = room.split_at_mut(layers.iter().map(len).sum());
        let (first, second) = join(
            || for_each(layers, gradients, room, len, visit),
            || for_each(others, other_gradients, other_room, len, visit),
        );
        return first.and(second);
    }
    let mut room = room;
    for (layer, gradient) in layers.iter_mut().zip(gradients) {
        let (part, rest) = room.split_at_mut(len(layer));
        visit(layer, gradient, part)?;
        room = rest;
    }
    Ok(())
}

/// The index at which the layers are divided into two halves; `None` if the layers have too few elements.
fn middle(layers: &[LentLayer]) -> Option<usize> {
    let elements: usize = layers.iter().map(|layer| layer.state.plan.shape.elements()).sum();
    let mut before = 0;
    let at = layers.iter().take_while(|layer| {
        before += layer.state.plan.shape.elements();
        2 * before <= elements
    });
    let at = at.count().max(1);
    (elements >= WORTHWHILE && at < layers.len()).then_some(at)
}
