//! How much memory the parts of an exchange take.

use super::aggregation::{factor_rank, is_gathered};
use super::division::Division;
use super::layer::Spec;
use super::moment::Route;
use super::slip;
use crate::Error;
use crate::compress::{Compressor, Setting, powersgd};
use crate::gradient::Dtype;
use crate::internal::clt::Positions;
use crate::internal::payload::STRETCH;

/// Rows of a product that are made at a time, where the mean's place is too narrow for all of them: some of a product's
/// tiles.
pub(super) const ROWS: usize = 32;

/// Lengths of what an exchange's [parts](super::Part) are made in. The same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Number of workers.
    pub world: usize,
    /// f32: dense values, `P` factors and values at shared positions, in the order of the layers. Where there are any,
    /// a slip per rank follows.
    pub sums: usize,
    /// f32: `Q` factors. Likewise.
    pub factors: usize,
    /// Bytes: shared positions.
    pub positions: usize,
    /// Bytes: this rank's slip and payloads that everybody gets; the most if lengths vary.
    pub message: usize,
    /// Whether the values decide the length of a message.
    pub varies: bool,
    /// Bytes: slips and payloads of pieces, of all owners together.
    pub pieces: usize,
    /// f32: dense values that are summed by shards. Where there are any, a slip per rank ends each shard.
    pub shards: usize,
    /// Bytes: what comes from others, at the most.
    pub received: usize,
    /// f32: sums of payloads, where the mean's place is too narrow for them; on the host.
    pub wide: usize,
    /// f32: one decoded payload, where it takes memory of its own; on the host.
    pub decoded: usize,
    /// Words: what the host's compressors need.
    pub encode: usize,
}

impl Layout {
    pub(super) fn new<'a>(
        layers: impl Iterator<Item = Spec<'a>> + Clone,
        route: Route,
        world: u32,
    ) -> Result<Layout, Error> {
        let mut layout = Layout { world: world as usize, ..Layout::default() };
        for spec @ Spec { setting, shape, dtype, .. } in layers.clone() {
            spec.check_shards(route, world)?;
            let payload = setting.payload_len(shape, dtype)?;
            let mut encode = setting.encode_workspace_len(shape, dtype);
            match setting {
                Setting::Dense if route == Route::Sharded => layout.shards += shape.elements(),
                Setting::Dense => layout.sums += shape.elements(),
                Setting::PowerSgd(c) => {
                    let rank = factor_rank(&setting, shape);
                    layout.sums += shape.rows() * rank;
                    layout.factors += shape.cols() * rank;
                    encode = powersgd::steps_workspace_len(shape, c.rank);
                    layout.decoded = layout.decoded.max(shape.elements().min(ROWS * shape.cols()));
                }
                Setting::CltK(c) => {
                    layout.sums += c.keep as usize;
                    layout.positions += c.positions_len(shape);
                }
                _ => {
                    let (stretch, elements) = (shape.elements().min(STRETCH), shape.elements());
                    let (wide, decoded) = match setting {
                        // What is compressed again is all there at a time.
                        _ if route == Route::ScatterReduce => (elements, elements),
                        Setting::LoCo(_) | Setting::AdaComp(_) => (elements, elements),
                        _ => (stretch, 0),
                    };
                    layout.wide = layout.wide.max(wide);
                    layout.decoded = layout.decoded.max(decoded);
                    // The mean that scatter-reduce compresses again is f32.
                    encode = encode.max(setting.encode_workspace_len(shape, Dtype::F32));
                }
            }
            if is_gathered(&setting, route) {
                layout.message = layout.message.max(slip::LEN).saturating_add(payload);
                layout.varies |= !setting.has_fixed_len();
            }
            layout.encode = layout.encode.max(encode);
        }
        layout.received = layout.message.saturating_mul(world as usize);
        if route != Route::AllGather {
            let (pieces, received) = Division::new(layers.clone(), route, world).buffer_lens(layers)?;
            layout.pieces = pieces;
            layout.received = layout.received.max(received);
        }
        Ok(layout)
    }
}
