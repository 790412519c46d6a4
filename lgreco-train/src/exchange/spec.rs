//! The description of a layer of a bucket, and what follows from its setting.

use super::moment::Route;
use crate::compress::powersgd::{PowerSgd, effective_rank};
use crate::compress::{Aggregation, Compressor, Setting};
use crate::gradient::{Dtype, Shape};
use crate::{CoreError, Error};
use core::ops::Range;
use lgreco::error::expect_len;

/// The description of a layer, the same on all ranks.
///
/// ```
/// use lgreco_train::compress::Setting;
/// use lgreco_train::exchange::Spec;
/// use lgreco_train::gradient::{Dtype, Shape};
/// let spec = Spec::from((Setting::Dense, Shape::new(10, 10)?, Dtype::F32));
/// assert_eq!((spec.index, spec.setting), (0, Setting::Dense));
/// let fsdp = Spec { shards: &[40, 80, 100], ..spec }; // rows 0..4, 4..8 and 8..10
/// assert_eq!(fsdp.shard(2), 80..100);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec<'a> {
    /// Index of the layer in the model.
    pub index: u32,
    /// The compression method and its parameters.
    pub setting: Setting,
    /// Rows and columns.
    pub shape: Shape,
    /// Element type of the compressor's input: the gradient's, or f32 with a residual.
    pub dtype: Dtype,
    /// With [`Route::Sharded`], the element at which each rank's shard ends. Rank r has the elements from `shards[r - 1]` to
    /// `shards[r]`, a range that may be empty. The last shard ends with the layer. Shards are rows of a matrix (FSDP), or the
    /// part of a layer in a range of a flat buffer (ZeRO). Empty on other routes.
    pub shards: &'a [u64],
    /// Whether the layer may be summed in place if it is uncompressed f32; the same on all ranks.
    /// [`Program::is_in_place`](super::Program) returns whether the layer is summed in place.
    pub in_place: bool,
    /// Whether the values lie in one piece of memory with those of the bucket's other layers, all of which are uncompressed f32;
    /// the same on all ranks. The layer is then summed in place even if it is small, because one collective sums all layers.
    pub joined: bool,
}

impl From<(Setting, Shape, Dtype)> for Spec<'_> {
    fn from((setting, shape, dtype): (Setting, Shape, Dtype)) -> Self {
        Spec { index: 0, setting, shape, dtype, shards: &[], in_place: false, joined: false }
    }
}

impl Spec<'_> {
    /// The elements of a rank's shard; empty if there are no shards.
    pub fn shard(&self, rank: u32) -> Range<usize> {
        let end = |rank: usize| self.shards.get(rank).map_or(0, |&end| end as usize);
        (rank as usize).checked_sub(1).map_or(0, end)..end(rank as usize)
    }

    /// The elements whose mean a rank gets.
    pub(crate) fn wanted(&self, route: Route, rank: u32) -> Range<usize> {
        match route {
            Route::Sharded => self.shard(rank),
            _ => 0..self.shape.elements(),
        }
    }

    /// Whether all ranks gather the layer's whole payloads.
    pub(super) fn is_gathered(&self, route: Route) -> bool {
        is_gathered(self.setting.traits().aggregation, route)
    }

    /// `Err` unless each rank has a shard of the layer with [`Route::Sharded`], and no rank has a shard with other routes.
    pub(crate) fn check_shards(&self, route: Route, world: u32) -> Result<(), Error> {
        if route != Route::Sharded {
            return Ok(expect_len("ends of shards", 0, self.shards.len())?);
        }
        expect_len("ends of shards, one per rank", world as usize, self.shards.len())?;
        let elements = self.shape.elements() as u64;
        let descends = self.shards.windows(2).find(|ends| ends[0] > ends[1]).map(|ends| ends[1]);
        match descends.or(self.shards.last().copied().filter(|&end| end != elements)) {
            Some(end) => {
                let expected = "ascending ends, the last at the end of the layer";
                Err(CoreError::Parameter { what: "end of a shard", value: end as f64, expected }.into())
            }
            None => Ok(()),
        }
    }
}

/// Whether all ranks gather whole payloads of settings with this aggregation.
pub(crate) fn is_gathered(aggregation: Aggregation, route: Route) -> bool {
    match aggregation {
        Aggregation::Payloads => route == Route::AllGather,
        Aggregation::WholePayloads => true,
        Aggregation::AllReduce | Aggregation::FactorAllReduce | Aggregation::SharedPositions => false,
    }
}

/// Columns of PowerSGD's factors; 0 for other settings.
pub(crate) fn factor_rank(setting: &Setting, shape: Shape) -> usize {
    match setting {
        Setting::PowerSgd(PowerSgd { rank, .. }) => effective_rank(shape, *rank),
        _ => 0,
    }
}

/// Number of values of PowerSGD's factor `Q`; 0 for other settings.
pub(crate) fn factor_len(setting: &Setting, shape: Shape) -> usize {
    shape.cols() * factor_rank(setting, shape)
}
