//! Determines which pieces of a bucket's layers each rank averages: all layers or, with shards, the pieces that the
//! rank owns.

use super::DeviceLayer;
use crate::exchange::program::{ExchangeConfig, ExchangeProgram, Piece};
use crate::{Error, Result};
use lgreco_train::compress::Setting;
use lgreco_train::exchange::{Agreement, Moment, Program, Route, Spec};
use lgreco_train::gradient::{Dtype, Shape};

/// Like [`DeviceLayer`], but owns the list of shards.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    index: u32,
    shape: Shape,
    setting: Setting,
    dtype: Dtype,
    shards: Vec<u64>,
}

impl Kept {
    pub(super) fn new(layer: &DeviceLayer<'_>, dtype: Dtype) -> Kept {
        let Spec { index, setting, shape, dtype, shards, .. } = spec(layer, dtype);
        Kept { index, shape, setting, dtype, shards: shards.to_vec() }
    }

    pub(super) fn spec(&self) -> Spec<'_> {
        let &Kept { index, shape, setting, dtype, ref shards } = self;
        Spec { index, shards, ..Spec::from((setting, shape, dtype)) }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.elements()
    }
}

fn spec<'a>(layer: &DeviceLayer<'a>, dtype: Dtype) -> Spec<'a> {
    let &DeviceLayer { index, shape, setting, shards } = layer;
    // Compressors encode the sum of gradient and residual, which is f32 for gradients of any type.
    let dtype = if setting == Setting::Dense { dtype } else { Dtype::F32 };
    Spec { index, shards, ..Spec::from((setting, shape, dtype)) }
}

/// Returns the [`Moment`] of the first step (its rank, route, seed and number), and the [`ExchangeProgram`].
pub(super) fn described(layers: &[DeviceLayer<'_>], config: ExchangeConfig) -> Result<(Moment, ExchangeProgram)> {
    let ExchangeConfig { dtype, reduce_dtype, world: world_size, stream, .. } = config;
    let (rank, seed, step) = (stream.rank, stream.seed, stream.step);
    let sharded = layers.iter().any(|layer| !layer.shards.is_empty());
    let route = if sharded { Route::Sharded } else { Route::AllGather };
    let moment = Moment { rank, world_size, route, reduce_dtype, seed, step, terms: 0 };
    if !sharded {
        let layers = layers.iter().map(|layer| (layer.index, layer.shape, layer.setting));
        return Ok((moment, ExchangeProgram::of_layers(layers, config)?));
    }
    let specs = || layers.iter().map(|layer| spec(layer, dtype));
    // `Program::new` also checks that the shards are valid.
    let program = Program::new(specs(), moment, Agreement::Reached, 0)?;
    let owners = (0..world_size).map(|owner| pieces(&program, specs(), owner)).collect::<Result<Vec<_>, _>>()?;
    let elements = specs().map(|spec| spec.shape.elements() as u64).sum();
    if elements == 0 {
        return Err(Error::Method("exchanges by shards of layers without elements"));
    }
    Ok((moment, ExchangeProgram::of_pieces(&owners, elements, config)?))
}

/// Returns the pieces that the rank `owner` averages, in the order of the layers.
fn pieces<'a>(program: &Program, specs: impl Iterator<Item = Spec<'a>> + Clone, owner: u32) -> Result<Vec<Piece>> {
    let moment = program.moment;
    let mut compressed = program.pieces(specs.clone(), owner).peekable();
    let (mut all, mut before) = (Vec::new(), 0);
    for (number, spec) in specs.enumerate() {
        let mut add = |start: usize, shape, setting| {
            let rank = moment.piece_stream(spec.index, moment.rank, owner).rank;
            let (layer, first) = (number as u32, before + start as u64);
            all.push(Piece { layer, id: spec.index, rank, first, start: start as u32, shape, setting });
        };
        let shard = spec.shard(owner);
        match (spec.setting, compressed.next_if(|next| next.as_ref().map_or(true, |(place, _)| *place == number))) {
            (_, Some(piece)) => {
                let (_, piece) = piece?;
                add(piece.range.start, piece.shape, piece.setting);
            }
            (Setting::Dense, None) if !shard.is_empty() => {
                add(shard.start, Shape::new(shard.len(), 1)?, Setting::Dense);
            }
            (Setting::PowerSgd(_), None) => return Err(Error::Method("exchanges by shards under PowerSGD")),
            // The owner's shard of this layer is empty.
            (
                Setting::Dense | Setting::Qsgd(_) | Setting::Eden(_) | Setting::TopK(_) | Setting::QuantisedTopK(_),
                None,
            ) => {}
            _ => return Err(Error::Method("exchanges by shards under this setting")),
        }
        before += spec.shape.elements() as u64;
    }
    Ok(all)
}
