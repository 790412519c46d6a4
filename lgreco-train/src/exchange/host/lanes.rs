//! Computes several runs of consecutive layers of a bucket at the same time, in rayon's current thread pool (feature
//! `rayon`).
//!
//! A lane is a run of consecutive layers with separate scratch memory. The lanes of a [`Layout`] depend only on the
//! bucket's layers, not on the number of cores. So the memory is the same on any number of cores. Small buckets, and
//! buckets with messages of variable length, have only one lane. Without the feature, every bucket has only one lane.
//! Each layer's results are the same as on one core. If several layers fail, the first layer's error is returned.

use crate::Error;
use crate::exchange::layer::Layer;
use crate::exchange::layout::{LANES, Layout};
use lgreco::compress::spread::join;

/// Scratch memory of ops.
#[derive(Default)]
pub(super) struct Scratch<'a> {
    /// A word per rank: the number of bytes of the rank's message that have been read.
    pub(super) read: &'a mut [u64],
    /// Two words per rank: the position in the rank's payload at which the next chunk begins.
    pub(super) places: &'a mut [u64],
    /// Sums in f32, if the mean's element type is too narrow for them.
    pub(super) wide: &'a mut [f32],
    /// One decoded payload.
    pub(super) decoded: &'a mut [f32],
    /// Workspace of compressors; empty when means are made.
    pub(super) encode: &'a mut [u64],
}

impl Scratch<'_> {
    /// Each lane's number of layers and scratch memory.
    fn lanes(&mut self, layout: &Layout) -> [(usize, Scratch<'_>); LANES] {
        fn take<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
            let (part, others) = core::mem::take(rest).split_at_mut(len);
            *rest = others;
            part
        }
        let Scratch { read, places, wide, decoded, encode } = self;
        let (mut read, mut places) = (&mut read[..], &mut places[..]);
        let (mut wide, mut decoded, mut encode) = (&mut wide[..], &mut decoded[..], &mut encode[..]);
        layout.lanes.map(|lane| {
            let ranks = if lane.layers > 0 { layout.world } else { 0 };
            let scratch = Scratch {
                read: take(&mut read, ranks),
                places: take(&mut places, 2 * ranks),
                wide: take(&mut wide, lane.wide),
                decoded: take(&mut decoded, lane.decoded),
                encode: {
                    let len = lane.encode.min(encode.len());
                    take(&mut encode, len)
                },
            };
            (lane.layers, scratch)
        })
    }
}

/// Data with a part for each layer, in the order of the layers.
pub(super) trait Parts: Send + Sized {
    /// Splits into the parts of the layers `first`, and the parts of all later layers.
    fn split(self, first: &[Layer<'_>]) -> Result<(Self, Self), Error>;
}

/// Calls `visit` with each run of layers, their parts and the scratch memory of their lane.
pub(super) fn side_by_side<'l, P: Parts>(
    layers: &mut [Layer<'l>],
    layout: &Layout,
    scratch: &mut Scratch<'_>,
    parts: P,
    visit: impl Fn(&mut [Layer<'l>], P, &mut Scratch<'_>) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    fn run<'l, P: Parts>(
        layers: &mut [Layer<'l>],
        lanes: &mut [(usize, Scratch<'_>)],
        parts: P,
        visit: &(impl Fn(&mut [Layer<'l>], P, &mut Scratch<'_>) -> Result<(), Error> + Sync),
    ) -> Result<(), Error> {
        if let [(_, scratch)] = lanes {
            return visit(layers, parts, scratch);
        }
        let (lanes, others) = lanes.split_at_mut(lanes.len() / 2);
        let len = lanes.iter().map(|(layers, _)| layers).sum::<usize>();
        let (layers, other_layers) = layers.split_at_mut(len.min(layers.len()));
        let (parts, other_parts) = parts.split(layers)?;
        let (first, second) =
            join(|| run(layers, lanes, parts, visit), || run(other_layers, others, other_parts, visit));
        first.and(second)
    }
    run(layers, &mut scratch.lanes(layout)[..layout.lanes().len().max(1)], parts, &visit)
}
