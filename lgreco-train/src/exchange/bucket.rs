//! A bucket of layers, from gradients to means.

use super::collective::{Collective, Place};
use super::flight::{Agreement, Flight};
use super::host::Host;
use super::layer::{Layer, Spec};
use super::layout::Layout;
use crate::Error;
use crate::compress::Setting;
use crate::gradient::Shape;
use crate::rng::Stream;

/// How payloads that cannot be summed on the wire reach everybody, if they have a fixed length (QSGD, TopK, LoCo).
/// Others are always gathered.
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
pub enum Route {
    /// Everybody gets everybody's payloads: one compression, traffic grows with the number of workers.
    #[default]
    AllGather,
    /// Each rank averages a part and compresses the mean again: two compressions, traffic does not grow. Needs
    /// [`Collective::all_to_all`].
    ScatterReduce,
    /// Each rank gets the mean of its [shard](Spec::shards) alone, which is what optimisers that are sharded need
    /// (FSDP, ZeRO): one compression, traffic does not grow. Needs [`Collective::all_to_all`], and for dense layers
    /// [`Collective::reduce_scatter_sum`]. Not for methods whose lengths the values decide.
    Sharded,
}

/// How a compressor's outputs are combined.
///
/// ```
/// use lgreco_train::compress::{Setting, clt::CltK, powersgd::PowerSgd};
/// use lgreco_train::exchange::Aggregation;
/// let power = Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 });
/// assert_eq!(Aggregation::of(&power), Aggregation::FactorAllReduce);
/// assert_eq!(Aggregation::of(&Setting::CltK(CltK { keep: 10 })), Aggregation::SharedPositions);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregation {
    /// Values are summed on the wire.
    AllReduce,
    /// Two all-reduces, one per factor, the second of which needs the result of the first.
    FactorAllReduce,
    /// The positions of one leader's largest values by broadcast; everybody's values there are summed on the wire.
    SharedPositions,
    /// Payloads travel by a [`Route`] and are summed where they arrive.
    Payloads,
    /// Payloads whose length depends on the values travel by all-gather and are summed where they arrive.
    VariablePayloads,
}

impl Aggregation {
    /// The one that `setting` needs.
    ///
    /// ```
    /// use lgreco_train::compress::{Setting, qsgd::Qsgd};
    /// use lgreco_train::exchange::Aggregation;
    /// assert_eq!(Aggregation::of(&Setting::Dense), Aggregation::AllReduce);
    /// assert_eq!(Aggregation::of(&Setting::Qsgd(Qsgd::default())), Aggregation::Payloads);
    /// ```
    pub const fn of(setting: &Setting) -> Aggregation {
        match setting {
            Setting::Dense => Aggregation::AllReduce,
            Setting::PowerSgd(_) => Aggregation::FactorAllReduce,
            Setting::CltK(_) => Aggregation::SharedPositions,
            Setting::Qsgd(_) | Setting::TopK(_) | Setting::LoCo(_) => Aggregation::Payloads,
            Setting::HardThreshold(_) | Setting::AdaComp(_) | Setting::Sidco(_) => Aggregation::VariablePayloads,
        }
    }
}

/// Whether payloads of `setting` are gathered whole.
pub(crate) fn is_gathered(setting: &Setting, route: Route) -> bool {
    match Aggregation::of(setting) {
        Aggregation::Payloads => route == Route::AllGather,
        Aggregation::VariablePayloads => true,
        Aggregation::AllReduce | Aggregation::FactorAllReduce | Aggregation::SharedPositions => false,
    }
}

/// Whether payloads of `setting` travel by shards.
pub(crate) fn is_sharded(setting: &Setting, route: Route) -> bool {
    route == Route::Sharded && Aggregation::of(setting) == Aggregation::Payloads
}

/// Columns of PowerSGD's factors; 0 for other settings.
pub(super) fn factor_rank(setting: &Setting, shape: Shape) -> usize {
    match setting {
        Setting::PowerSgd(c) => (c.rank as usize).min(shape.rows()).min(shape.cols()),
        _ => 0,
    }
}

/// Where in a run an exchange happens, seen from one rank. All but `rank` is the same on every rank.
///
/// ```
/// use lgreco_train::exchange::{Moment, Route};
/// let moment = Moment { rank: 3, world_size: 4, route: Route::AllGather, seed: 7, step: 100, terms: 0 };
/// # let _ = moment;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// This worker's number, below `world_size`.
    pub rank: u32,
    /// Number of workers.
    pub world_size: u32,
    /// How payloads of fixed length travel.
    pub route: Route,
    /// Of the run's random bits.
    pub seed: u64,
    /// The optimiser's step, so that no two exchanges of a layer share random bits.
    pub step: u32,
    /// Stands for anything else on which ranks must agree.
    pub terms: u64,
}

impl Moment {
    pub(super) fn check(&self) -> Result<(), Error> {
        Place { rank: self.rank, world: self.world_size }.check()
    }

    /// The rank whose positions the settings with shared positions use. `world_size` is not 0.
    pub fn leader(&self) -> u32 {
        self.step % self.world_size
    }

    /// The random bits of rank `rank`'s payload of the layer with index `layer`; those of rank 0 are PowerSGD's start
    /// on all.
    pub fn stream(&self, layer: u32, rank: u32) -> Stream {
        Stream { seed: self.seed, step: self.step, layer, rank }
    }

    /// The random bits of rank `rank`'s payload of the [piece](super::Piece) that `owner` has of a layer; by
    /// [`Route::ScatterReduce`] the owner's own are those of the second compression.
    pub fn piece_stream(&self, layer: u32, rank: u32, owner: u32) -> Stream {
        self.stream(layer, rank.wrapping_mul(self.world_size).wrapping_add(owner))
    }
}

/// Words of workspace that a [`Flight`] on the [`Host`] needs with layers of these settings, shapes and element types.
///
/// ```
/// use lgreco_train::compress::Setting;
/// use lgreco_train::exchange::{Route, workspace_len};
/// use lgreco_train::gradient::{Dtype, Shape};
/// let layers = [(Setting::Dense, Shape::new(10, 10)?, Dtype::F32)];
/// assert_eq!(workspace_len(layers.into_iter(), Route::AllGather, 4)?, 4 * 4 + (100 + 4) / 2);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
///
/// # Errors
/// [`CoreError::Parameter`](crate::CoreError::Parameter) when a setting does not fit its shape.
pub fn workspace_len<'a>(
    layers: impl Iterator<Item = impl Into<Spec<'a>>> + Clone,
    route: Route,
    world_size: u32,
) -> Result<usize, Error> {
    Ok(Layout::new(layers.map(Into::into), route, world_size)?.words())
}

/// Averages a bucket of layers over the workers by blocking collectives: a [`Flight`], and
/// [`Request::perform`](super::Request::perform) for each of its requests. PowerSGD does one power iteration per call,
/// whatever its setting says, and relies on `factor` for accuracy.
///
/// Whether ranks bring the same layers and settings is found out anew at every call, by an all-gather of 24 bytes each.
///
/// # Errors
/// Those of [`Flight::begin`] and [`Flight::next`]; [`CoreError::Parameter`](crate::CoreError::Parameter) when `collective` has no workers or a rank
/// beyond them, [`Error::Collective`] when the embedder's call failed.
///
/// # Complexity
/// Encoding once, and for payloads decoding once per worker ([`Route::AllGather`]) or about twice in all
/// ([`Route::ScatterReduce`]). Workspace: [`workspace_len`].
///
/// ```
/// use lgreco_train::compress::Setting;
/// use lgreco_train::exchange::{self, Collective, Layer, Route, threads};
/// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};
///
/// let (shape, setting) = (Shape::new(2, 1)?, Setting::Dense);
/// let means = threads::run(2, |mut worker| {
///     let values = [1.0, worker.rank() as f32];
///     let gradient = Gradient::new(Values::F32(&values), shape)?;
///     let mut means = [0.0; 2];
///     let words = exchange::workspace_len([(setting, shape, Dtype::F32)].into_iter(), Route::AllGather, 2)?;
///     let factor = &mut [][..];
///     let gradient = gradient.into();
///     let (shards, mean) = (&[][..], ValuesMut::F32(&mut means));
///     let late = None;
///     let layer = Layer { index: 0, setting, gradient, fresh: None, sent: 0, late, shards, mean, own: None, factor };
///     exchange::aggregate(&mut worker, &mut [layer], Route::AllGather, 7, 0, &mut vec![0; words])?;
///     Ok::<_, lgreco_train::Error>(means)
/// });
/// assert_eq!(means, [Ok([1.0, 0.5]); 2]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub fn aggregate<C: Collective + ?Sized>(
    collective: &mut C,
    layers: &mut [Layer<'_>],
    route: Route,
    seed: u64,
    step: u32,
    workspace: &mut [u64],
) -> Result<(), Error> {
    let Place { rank, world } = Place::of(collective)?;
    let moment = Moment { rank, world_size: world, route, seed, step, terms: 0 };
    let mut host = Host { layers, workspace };
    let mut flight = Flight::begin(&mut host, moment, Agreement::Needed, None)?;
    while let Some(request) = flight.next(&mut host)? {
        request.perform(collective)?;
    }
    Ok(())
}
