//! Sizes of the memory for the parts of an exchange.

use super::division::Division;
use super::moment::{Moment, Route};
use super::slip;
use super::spec::{Spec, factor_len, factor_rank};
use crate::Error;
use crate::compress::{Compressor, Setting, powersgd};
use crate::gradient::Dtype;
use lgreco::compress::payload::{STRETCH, reads_stretches};
use lgreco::compress::spread::WORTHWHILE;

/// Number of rows of a product that are computed at a time, if the product must be rounded to the mean's element type.
pub(super) const ROWS: usize = 32;

/// Largest number of lanes: runs of layers that the host computes at the same time.
pub(super) const LANES: usize = if cfg!(feature = "rayon") { 4 } else { 1 };

/// A run of consecutive layers with separate scratch memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lane {
    /// Number of layers.
    pub(super) layers: usize,
    /// This lane's part of [`Layout::wide`].
    pub(super) wide: usize,
    /// This lane's part of [`Layout::decoded`].
    pub(super) decoded: usize,
    /// This lane's part of [`Layout::encode`].
    pub(super) encode: usize,
}

/// Smallest dense layer that is summed in place, by a separate all-reduce on the memory of its values. Sending this many elements
/// takes longer than the latency of another collective.
pub(crate) const IN_PLACE: usize = 1 << 16;

/// Whether a layer is summed in place.
pub(super) fn is_in_place(spec: &Spec<'_>, route: Route, reduce_dtype: Dtype) -> bool {
    let travels = spec.setting == Setting::Dense && route != Route::Sharded && reduce_dtype == Dtype::F32;
    let least = if spec.joined { 1 } else { IN_PLACE };
    travels && spec.in_place && spec.shape.elements() >= least
}

/// Divides layers into [`LANES`] runs of about the same number of elements.
struct Divider {
    elements: u64,
    before: u64,
    /// All elements are divided into equal parts, one per lane. This is the index of the part that contains the middle
    /// of the last layer.
    part: u64,
    /// The lane of the last layer.
    lane: usize,
}

impl Divider {
    /// The lane of the next layer. Lanes are used in order, without gaps.
    fn lane_of(&mut self, elements: usize) -> usize {
        let lanes = if self.elements < WORTHWHILE as u64 { 1 } else { LANES as u64 };
        let middle = self.before + elements as u64 / 2;
        let part = (middle * lanes / self.elements.max(1)).min(lanes - 1);
        self.lane += usize::from(part > self.part && self.before > 0);
        (self.part, self.before) = (part, self.before + elements as u64);
        self.lane
    }
}

/// Lengths of the buffers of an exchange's [parts](super::Part). The same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Number of workers.
    pub world: usize,
    /// Number of f32 values: dense values, `P` factors and values at shared positions, in the order of the layers. Status records
    /// follow if there are such values, or if layers are summed in place.
    pub sums: usize,
    /// Number of dense layers that are summed in place.
    pub in_place: usize,
    /// Number of f32 values: `Q` factors. Status records follow.
    pub factors: usize,
    /// Number of bytes: shared positions.
    pub positions: usize,
    /// Number of bytes: this rank's status record and payloads for all ranks. If a message's length depends on values, the largest
    /// possible length.
    pub message: usize,
    /// Whether the length of a message depends on values.
    pub varies: bool,
    /// Number of bytes: status records and payloads of pieces, for all owners together.
    pub pieces: usize,
    /// Number of f32 values: dense values for the reduce-scatter of shards. Each rank's part ends with status records.
    pub shards: usize,
    /// Largest number of bytes of all ranks' messages with payloads for all ranks.
    pub received: usize,
    /// Largest number of bytes of pieces that this rank receives at a time.
    pub arrived: usize,
    /// Number of f32 values: sums of payloads, if the mean's element type is too narrow for them. On the host, for all
    /// lanes together.
    pub wide: usize,
    /// Number of f32 values: one decoded payload per lane, if it needs separate memory. Only on the host.
    pub decoded: usize,
    /// Words of workspace for the host's compressors, in all lanes together.
    pub encode: usize,
    /// The runs of layers that the host computes at the same time: up to four with the feature `rayon`, otherwise one.
    pub(super) lanes: [Lane; LANES],
}

impl Layout {
    /// The lanes that have layers.
    pub(super) fn lanes(&self) -> &[Lane] {
        let used = self.lanes.iter().take_while(|lane| lane.layers > 0).count();
        &self.lanes[..used]
    }

    /// The layout of these layers for a [`Host`](super::Host).
    pub(crate) fn of<'a>(layers: impl Iterator<Item = Spec<'a>> + Clone, moment: &Moment) -> Result<Layout, Error> {
        Layout::new(layers, moment.route, moment.world_size, moment.reduce_dtype)
    }

    pub(super) fn new<'a>(
        layers: impl Iterator<Item = Spec<'a>> + Clone,
        route: Route,
        world: u32,
        reduce_dtype: Dtype,
    ) -> Result<Layout, Error> {
        let mut layout = Layout { world: world as usize, ..Layout::default() };
        layout.varies = layers.clone().any(|spec| spec.is_gathered(route) && !spec.setting.has_fixed_len());
        let elements = layers.clone().map(|spec| spec.shape.elements() as u64).sum();
        let mut divider = Divider { elements, before: 0, part: 0, lane: 0 };
        for spec @ Spec { setting, shape, dtype, .. } in layers.clone() {
            spec.check_shards(route, world)?;
            let payload = setting.payload_len(shape, dtype)?;
            let mut encode = setting.encode_workspace_len(shape, dtype);
            // If the length of a payload depends on its values, the position of the next payload is unknown in advance, so there is
            // one lane.
            let lane = if layout.varies { 0 } else { divider.lane_of(shape.elements()) };
            let lane = &mut layout.lanes[lane];
            lane.layers += 1;
            match (setting, setting.shared_positions()) {
                (_, Some(shared)) => {
                    layout.sums += shared.keep as usize;
                    layout.positions += shared.positions_len(shape);
                }
                (Setting::Dense, _) if route == Route::Sharded => layout.shards += shape.elements(),
                (Setting::Dense, _) if is_in_place(&spec, route, reduce_dtype) => layout.in_place += 1,
                (Setting::Dense, _) => layout.sums += shape.elements(),
                (Setting::PowerSgd(c), _) => {
                    layout.sums += shape.rows() * factor_rank(&setting, shape);
                    layout.factors += factor_len(&setting, shape);
                    encode = powersgd::steps_workspace_len(shape, c.rank);
                    lane.decoded = lane.decoded.max(shape.elements().min(ROWS * shape.cols()));
                }
                (setting, _) => {
                    let (stretch, elements) = (shape.elements().min(STRETCH), shape.elements());
                    let (wide, decoded) = match () {
                        // A mean that is compressed again needs memory for all its elements.
                        _ if route == Route::ScatterReduce => (elements, elements),
                        _ if reads_stretches(setting.method()) => (stretch, 0),
                        _ => (elements, elements),
                    };
                    lane.wide = lane.wide.max(wide);
                    lane.decoded = lane.decoded.max(decoded);
                    // The mean that scatter-reduce compresses again is f32.
                    encode = encode.max(setting.encode_workspace_len(shape, Dtype::F32));
                }
            }
            if spec.is_gathered(route) {
                layout.message = layout.message.max(slip::LEN).saturating_add(payload);
            }
            lane.encode = lane.encode.max(encode);
        }
        for lane in layout.lanes {
            layout.wide = layout.wide.saturating_add(lane.wide);
            layout.decoded = layout.decoded.saturating_add(lane.decoded);
            layout.encode = layout.encode.saturating_add(lane.encode);
        }
        layout.received = layout.message.saturating_mul(world as usize);
        if route != Route::AllGather {
            let (pieces, received) = Division::new(layers.clone(), route, world).buffer_lens(layers)?;
            layout.pieces = pieces;
            layout.arrived = received;
        }
        Ok(layout)
    }
}

#[cfg(all(test, feature = "rayon"))]
mod tests {
    use super::*;
    use crate::compress::hard_threshold::HardThreshold;
    use crate::compress::topk::TopK;
    use crate::gradient::Shape;
    use std::vec::Vec;

    fn shape(rows: usize, cols: usize) -> Shape {
        Shape::new(rows, cols).unwrap()
    }

    fn topk(keep: u32) -> Setting {
        Setting::TopK(TopK { keep, values: Dtype::F32 })
    }

    fn hard(lambda: f32) -> Setting {
        Setting::HardThreshold(HardThreshold { lambda, values: Dtype::F32 })
    }

    #[test]
    fn buckets_have_lanes_of_about_as_many_elements() {
        let lanes = |layers: &[(Setting, Shape)]| {
            let specs = layers.iter().map(|&(setting, shape)| Spec::from((setting, shape, Dtype::F32)));
            let layout = Layout::new(specs, Route::AllGather, 2, Dtype::F32).unwrap();
            layout.lanes().iter().map(|lane| lane.layers).collect::<Vec<_>>()
        };
        assert_eq!(lanes(&[(topk(9), shape(100, 200)); 16]), [4; LANES]);
        assert_eq!(lanes(&[(Setting::Dense, shape(100, 200)); 5]), [1, 1, 2, 1]);
        assert_eq!(
            lanes(&[(Setting::Dense, shape(1000, 200)), (topk(9), shape(10, 2)), (topk(9), shape(10, 2))]),
            [1, 2]
        );
        assert_eq!(lanes(&[(topk(0), shape(0, 3)), (topk(9), shape(900, 90)), (topk(0), shape(0, 3))]), [2, 1]);
        assert_eq!(lanes(&[(topk(9), shape(10, 200)); 16]), [16]);
        assert_eq!(lanes(&[(hard(0.1), shape(100, 200)); 16]), [16]);
    }
}
