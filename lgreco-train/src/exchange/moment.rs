//! The step and the options of an exchange, and the route of its payloads.

use super::collective::Place;
use crate::gradient::Dtype;
use crate::rng::Stream;
use crate::{CoreError, Error};

/// How payloads of [`Aggregation::Payloads`](super::Aggregation) (QSGD, TopK, LoCo) are exchanged. Payloads of
/// [`Aggregation::WholePayloads`](super::Aggregation) are gathered by all ranks with every route.
///
/// ```
/// use lgreco_train::controller::Config;
/// use lgreco_train::exchange::Route;
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::Qsgd));
/// assert_eq!(config.route, Route::AllGather);
/// config.route = Route::ScatterReduce; // pays from a handful of workers on
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// All ranks get all payloads. Values are compressed once. A rank's traffic grows with the number of workers.
    #[default]
    AllGather,
    /// Each rank averages a part and compresses the mean. Values are compressed twice, but a rank's traffic does not grow with the
    /// number of workers. Needs [`Collective::all_to_all`](crate::exchange::Collective::all_to_all).
    ScatterReduce,
    /// Each rank gets only the mean of its [shard](crate::exchange::Spec::shards), as sharded optimisers need (FSDP, ZeRO). Values
    /// are compressed once, and a rank's traffic does not grow with the number of workers. Needs
    /// [`Collective::all_to_all`](crate::exchange::Collective::all_to_all), and for dense layers
    /// [`Collective::reduce_scatter_sum`](crate::exchange::Collective::reduce_scatter_sum).
    Sharded,
}

/// Whether ranks have agreed that their buckets fit together.
///
/// ```
/// use lgreco_train::exchange::Agreement;
/// let mut agreement = Agreement::Needed; // at the first step, and after a change of settings
/// # let _ = &agreement;
/// agreement = Agreement::Reached;
/// # let _ = agreement;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Ranks have not agreed yet. The lengths of messages might differ, so a flight begins with an all-gather of 24 bytes per rank.
    Needed,
    /// Ranks have agreed since layers, settings or route last changed. The messages themselves report other differences and errors.
    Reached,
}

/// The step and the options of an exchange on one rank. All fields except `rank` are the same on every rank.
///
/// ```
/// use lgreco_train::exchange::{Moment, Route};
/// use lgreco_train::gradient::Dtype;
/// let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
/// let moment = Moment { rank: 3, world_size: 4, route, reduce_dtype, seed: 7, step: 100, terms: 0 };
/// # let _ = moment;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// This worker's number, below `world_size`.
    pub rank: u32,
    /// Number of workers.
    pub world_size: u32,
    /// The route of payloads.
    pub route: Route,
    /// The type in which values are summed on the wire: f32 or bf16. The rounding error of a worker's own values stays in its
    /// residual, if the layer has one.
    pub reduce_dtype: Dtype,
    /// The seed of the run's random bits.
    pub seed: u64,
    /// The number of the step, which gives every exchange of a layer new random bits.
    pub step: u32,
    /// A checksum of all further values that the caller requires to be the same on all ranks.
    pub terms: u64,
}

impl Moment {
    pub(super) fn check(&self) -> Result<(), Error> {
        Place { rank: self.rank, world: self.world_size }.check()?;
        check_reduce_dtype(self.reduce_dtype)
    }

    /// The rank whose positions are used under settings with shared positions. `world_size` is not 0.
    pub fn leader(&self) -> u32 {
        self.step % self.world_size
    }

    /// The random bits of rank `rank`'s payload of layer `layer`. For PowerSGD, all ranks start from rank 0's bits.
    pub fn stream(&self, layer: u32, rank: u32) -> Stream {
        Stream { seed: self.seed, step: self.step, layer, rank }
    }

    /// The random bits of rank `rank`'s payload of the [piece](super::Piece) that `owner` has of a layer. For the second
    /// compression of [`Route::ScatterReduce`], pass the owner as `rank`, too.
    pub fn piece_stream(&self, layer: u32, rank: u32, owner: u32) -> Stream {
        self.stream(layer, rank.wrapping_mul(self.world_size).wrapping_add(owner))
    }
}

/// `Err` unless the type of sums has the range of f32.
pub(crate) fn check_reduce_dtype(dtype: Dtype) -> Result<(), Error> {
    let wrong = CoreError::Parameter {
        what: "code of the reduce dtype",
        value: dtype as u8 as f64,
        expected: "f32 (0) or bf16 (2)",
    };
    if dtype == Dtype::F16 { Err(wrong.into()) } else { Ok(()) }
}
