//! A bucket of layers, from gradients to means.

use super::collective::{Collective, Place};
use super::workspace::{Lens, Room};
use super::{gather, greeting, reduce, scatter};
use crate::Error;
use crate::compress::Setting;
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;

/// How payloads that cannot be summed on the wire reach everybody, if they have a fixed length (QSGD, TopK, LoCo). Others
/// are always gathered.
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

/// One layer of a bucket. All but the values of the gradient is the same on every rank.
///
/// ```
/// use lgreco_train::compress::{Setting, powersgd::PowerSgd};
/// use lgreco_train::exchange::Layer;
/// use lgreco_train::gradient::{Gradient, Shape, Values};
/// let gradient = Gradient::new(Values::F32(&[1.0; 12]), Shape::new(3, 4)?)?;
/// let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
/// // Zeros at the first step; kept for the next one.
/// let (mut mean, mut factor) = (vec![0.0; 12], vec![0.0; 4 * 2]);
/// let layer = Layer {
///     index: 0,
///     setting,
///     gradient,
///     fresh: None,
///     sent: 0,
///     mean: &mut mean,
///     own: None, // no residual
///     factor: &mut factor,
/// };
/// # let _ = layer;
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Debug)]
pub struct Layer<'a> {
    /// Index of the layer in the model; with seed, step and rank it names the random bits.
    pub index: u32,
    /// How to compress it.
    pub setting: Setting,
    /// What to compress: the gradient, plus the residual where there is one.
    pub gradient: Gradient<'a>,
    /// AdaComp with a memory: the gradient of this step alone, which counts twice. `None` for other settings, and without
    /// a memory.
    pub fresh: Option<Gradient<'a>>,
    /// Gets the bytes of this worker's payload, where payloads travel whole ([`Route::AllGather`], and every route for
    /// methods whose lengths the values decide); otherwise it is untouched, and
    /// [`payload_len`](crate::compress::Compressor::payload_len) tells.
    pub sent: u64,
    /// Gets the mean over the workers; one place per element.
    pub mean: &'a mut [f32],
    /// Gets this worker's own contribution to the mean, to be taken off its residual; one place per element.
    pub own: Option<&'a mut [f32]>,
    /// PowerSGD: the averaged `Q` of the last step, cols × `min(rank, rows, cols)`, column after column; becomes this
    /// step's. Columns of zeros, as at the first step, start afresh. Empty for other settings.
    pub factor: &'a mut [f32],
}

impl Layer<'_> {
    /// Columns of PowerSGD's factors; 0 for other settings.
    pub(super) fn rank(&self) -> usize {
        factor_rank(&self.setting, self.gradient.shape())
    }

    /// Whether everybody gets its whole payload from everybody.
    pub(super) fn is_gathered(&self, route: Route) -> bool {
        is_gathered(&self.setting, route)
    }

    fn check(&self) -> Result<(), Error> {
        let shape = self.gradient.shape();
        if let Some(fresh) = &self.fresh {
            expect_len("rows of the fresh gradient", shape.rows(), fresh.shape().rows())?;
            expect_len("columns of the fresh gradient", shape.cols(), fresh.shape().cols())?;
        }
        expect_len("mean values", shape.elements(), self.mean.len())?;
        if let Some(own) = &self.own {
            expect_len("own values", shape.elements(), own.len())?;
        }
        expect_len("warm-start factor", shape.cols() * self.rank(), self.factor.len())
    }
}

/// Whether payloads of `setting` are gathered whole.
pub(super) fn is_gathered(setting: &Setting, route: Route) -> bool {
    match Aggregation::of(setting) {
        Aggregation::Payloads => route == Route::AllGather,
        Aggregation::VariablePayloads => true,
        Aggregation::AllReduce | Aggregation::FactorAllReduce | Aggregation::SharedPositions => false,
    }
}

/// Columns of PowerSGD's factors; 0 for other settings.
pub(super) fn factor_rank(setting: &Setting, shape: Shape) -> usize {
    match setting {
        Setting::PowerSgd(c) => (c.rank as usize).min(shape.rows()).min(shape.cols()),
        _ => 0,
    }
}

/// Where in a run an exchange happens, seen from one rank.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) place: Place,
    pub(super) seed: u64,
    pub(super) step: u32,
}

impl Moment {
    /// The rank whose positions the settings with shared positions use.
    pub(super) fn leader(&self) -> u32 {
        self.step % self.place.world
    }

    /// The random bits of layer `layer` on rank `rank`.
    pub(super) fn stream(&self, layer: u32, rank: u32) -> Stream {
        Stream { seed: self.seed, step: self.step, layer, rank }
    }
}

/// Words of workspace that [`aggregate`] needs for layers of these settings, shapes and element types.
///
/// ```
/// use lgreco_train::compress::Setting;
/// use lgreco_train::exchange::{Route, workspace_len};
/// use lgreco_train::gradient::{Dtype, Shape};
/// let layers = [(Setting::Dense, Shape::new(10, 10)?, Dtype::F32)];
/// assert_eq!(workspace_len(layers.into_iter(), Route::AllGather, 4)?, 4 * 4 + 100 / 2);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
///
/// # Errors
/// [`CoreError::Parameter`](crate::CoreError::Parameter) when a setting does not fit its shape.
pub fn workspace_len(
    layers: impl Iterator<Item = (Setting, Shape, Dtype)> + Clone,
    route: Route,
    world_size: u32,
) -> Result<usize, Error> {
    Ok(greeting::words(world_size as usize) + Lens::new(layers, route, world_size)?.words())
}

/// Averages a bucket of layers over the workers; see the [module](crate::exchange) for what is sent and what mean and
/// own contribution are. All workers call it with the same layers, settings, `route`, `seed` and `step`; `step` is the
/// optimiser's, so that no two calls share random bits. PowerSGD does one power iteration per call, whatever its
/// setting says, and relies on `factor` for accuracy.
///
/// When it fails on one worker it fails on all, at the same point of the sequence of collectives, and the next call
/// finds them in step; unless the network itself fails or changes bytes. `mean` and `own` are then of no use; `factor`
/// is unchanged.
///
/// # Errors
/// This rank's: those of the compressors, [`CoreError::Length`](crate::CoreError::Length),
/// [`CoreError::Overflow`](crate::CoreError::Overflow) when a sum over the workers leaves f32. Of others:
/// [`Error::Peer`] names a rank that failed and the code of its error, [`Error::PeerPlan`] a rank with other layers,
/// [`Error::PeerMessage`] one whose payloads cannot be decoded. [`Error::Collective`] when the embedder's call failed.
/// A workspace too short even for the greeting, 4 words per worker, is found on this rank alone.
///
/// # Complexity
/// Encoding once, and for payloads decoding once per worker ([`Route::AllGather`]) or about twice in all
/// ([`Route::ScatterReduce`]). Workspace: [`workspace_len`].
///
/// ```
/// use lgreco_train::compress::{Setting, topk::TopK};
/// use lgreco_train::exchange::{self, Layer, Route, threads};
/// use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
///
/// let shape = Shape::new(4, 1)?;
/// let setting = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
/// let gradients = [[0.0f32, 4.0, 0.0, 1.0], [0.0, 1.0, -2.0, 0.0]];
/// let means = threads::run(2, |mut worker| {
///     let values = &gradients[exchange::Collective::rank(&worker) as usize];
///     let gradient = Gradient::new(Values::F32(values), shape)?;
///     let (mut mean, mut own) = ([0.0; 4], [0.0; 4]);
///     let words = exchange::workspace_len([(setting, shape, Dtype::F32)].into_iter(), Route::AllGather, 2)?;
///     let (own, factor) = (Some(&mut own[..]), &mut [][..]);
///     let layer = Layer { index: 0, setting, gradient, fresh: None, sent: 0, mean: &mut mean, own, factor };
///     exchange::aggregate(&mut worker, &mut [layer], Route::AllGather, 7, 0, &mut vec![0; words])?;
///     Ok::<_, lgreco_train::Error>(mean)
/// });
/// assert_eq!(means, [Ok([0.0, 2.0, -1.0, 0.0]), Ok([0.0, 2.0, -1.0, 0.0])]);
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
    let place = Place::of(collective)?;
    let moment = Moment { place, seed, step };
    let greeting = greeting::words(place.world as usize);
    expect_room("workspace words", greeting, workspace.len())?;
    let (greeting, rest) = workspace.split_at_mut(greeting);

    let prepared = prepare(layers, route, moment, rest);
    let local = prepared.as_ref().map(|(room, len)| (*len, room.message.len())).map_err(|error| *error);
    let fingerprint = greeting::fingerprint(place, layers, route, seed, step);
    let (words, lens) = greeting::exchange(collective, local, fingerprint, greeting)?;
    let (mut room, _) = prepared?;

    reduce::finish(collective, layers, moment, &mut room)?;
    gather::finish(collective, layers, route, place, lens, &mut room)?;
    if !room.shares.is_empty() {
        scatter::finish(collective, layers, moment, words, &mut room)?;
    }
    reduce::keep_factors(layers, room.right);
    Ok(())
}

/// All that can be done without the others; also the length of what is to be gathered from this rank.
fn prepare<'a>(
    layers: &mut [Layer<'_>],
    route: Route,
    moment: Moment,
    workspace: &'a mut [u64],
) -> Result<(Room<'a>, usize), Error> {
    let kinds = layers.iter().map(|layer| (layer.setting, layer.gradient.shape(), layer.gradient.values().dtype()));
    let mut room = Room::new(Lens::new(kinds, route, moment.place.world)?, workspace)?;
    layers.iter().try_for_each(Layer::check)?;
    reduce::begin(layers, moment, &mut room)?;
    let len = gather::begin(layers, route, moment, &mut room)?;
    if route == Route::ScatterReduce {
        scatter::begin(layers, moment, &mut room)?;
    }
    Ok((room, len))
}
