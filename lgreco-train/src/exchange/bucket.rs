//! A bucket of layers, from gradients to means.

use super::collective::{Collective, Place};
use super::flight::{Agreement, Flight};
use super::host::Host;
use super::layout::Layout;
use crate::compress::wire::Payload;
use crate::compress::{Compressor, Setting, decode};
use crate::error::expect_len;
use crate::feedback::is_finite;
use crate::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};
use crate::internal::payload::{Combine, combine};
use crate::rng::Stream;
use crate::{CoreError, Error};
use core::ops::Range;

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
    /// Each rank gets the mean of its [shard](Spec::shards) alone, which is what optimisers that are sharded need (FSDP,
    /// ZeRO): one compression, traffic does not grow. Needs [`Collective::all_to_all`], and for dense layers
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

/// What all ranks know of a layer before it is exchanged.
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
    /// How it is compressed.
    pub setting: Setting,
    /// Rows and columns.
    pub shape: Shape,
    /// Of what is compressed: the gradient's, or f32 with a residual.
    pub dtype: Dtype,
    /// [`Route::Sharded`]: where each rank's shard ends, in elements: rank r has those from `shards[r - 1]` to `shards[r]`,
    /// which may be none, and the last rank's end with the layer. Rows of a matrix (FSDP) are shards, and so are what
    /// ranges of a flat buffer (ZeRO) leave of each layer. Empty on other routes.
    pub shards: &'a [u64],
}

impl From<(Setting, Shape, Dtype)> for Spec<'_> {
    fn from((setting, shape, dtype): (Setting, Shape, Dtype)) -> Self {
        Spec { index: 0, setting, shape, dtype, shards: &[] }
    }
}

impl Spec<'_> {
    /// The elements of a rank's shard; none if it has no shard.
    pub fn shard(&self, rank: u32) -> Range<usize> {
        let end = |rank: usize| self.shards.get(rank).map_or(0, |&end| end as usize);
        (rank as usize).checked_sub(1).map_or(0, end)..end(rank as usize)
    }

    /// The elements of which a rank gets the mean.
    pub(crate) fn wanted(&self, route: Route, rank: u32) -> Range<usize> {
        match route {
            Route::Sharded => self.shard(rank),
            _ => 0..self.shape.elements(),
        }
    }

    /// `Err` unless the layer can be sharded, if it is to be.
    pub(crate) fn check_shards(&self, route: Route, world: u32) -> Result<(), Error> {
        if route != Route::Sharded {
            return expect_len("ends of shards", 0, self.shards.len());
        }
        let wrong = |what, value, expected| Err(Error::Core(CoreError::Parameter { what, value, expected }));
        if !self.setting.has_fixed_len() {
            let expected = "one that does not shard, for methods whose lengths the values decide";
            return wrong("route", route as u32 as f64, expected);
        }
        expect_len("ends of shards, one per rank", world as usize, self.shards.len())?;
        let elements = self.shape.elements() as u64;
        let descends = self.shards.windows(2).find(|ends| ends[0] > ends[1]).map(|ends| ends[1]);
        match descends.or(self.shards.last().copied().filter(|&end| end != elements)) {
            Some(end) => {
                wrong("end of a shard", end as f64, "not before the last rank's, and at last that of the layer")
            }
            None => Ok(()),
        }
    }
}

/// What a layer brings to an exchange.
///
/// ```
/// use lgreco_train::exchange::Input;
/// use lgreco_train::gradient::{Gradient, Shape, Values};
/// let (shape, mut sum) = (Shape::new(2, 1)?, [1.5, 0.5]);
/// let alone = Input::from(Gradient::new(Values::F32(&[1.0, 2.0]), shape)?);
/// let with_residual = Input::Compensated { values: &mut sum, shape };
/// assert_eq!(alone.shape(), with_residual.shape());
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Debug)]
pub enum Input<'a> {
    /// Values that stay as they are.
    Gradient(Gradient<'a>),
    /// Gradient and residual together. When the means are ready they are what is left after this worker's contribution: the
    /// next residual.
    Compensated {
        /// One per element.
        values: &'a mut [f32],
        /// Of the tensor.
        shape: Shape,
    },
    /// A gradient whose values nobody needs any more: [`Flight::next`] does not, where layers are dense or their payloads
    /// travel whole.
    Spent {
        /// Of the tensor.
        shape: Shape,
        /// Of its elements.
        dtype: Dtype,
    },
}

impl<'a> From<Gradient<'a>> for Input<'a> {
    fn from(gradient: Gradient<'a>) -> Self {
        Input::Gradient(gradient)
    }
}

impl Input<'_> {
    /// Rows and columns.
    pub fn shape(&self) -> Shape {
        match self {
            Input::Gradient(gradient) => gradient.shape(),
            Input::Compensated { shape, .. } | Input::Spent { shape, .. } => *shape,
        }
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Input::Gradient(gradient) => gradient.values().dtype(),
            Input::Compensated { .. } => Dtype::F32,
            Input::Spent { dtype, .. } => *dtype,
        }
    }

    /// What is to be compressed.
    ///
    /// # Errors
    /// [`CoreError::Length`] when its values are spent, or not as many as elements.
    pub(super) fn get(&self) -> Result<Gradient<'_>, Error> {
        match self {
            Input::Gradient(gradient) => Ok(*gradient),
            Input::Compensated { values, shape } => Ok(Gradient::new(Values::F32(values), *shape)?),
            Input::Spent { shape, .. } => Err(Error::Core(CoreError::Length {
                what: "values of the gradient",
                expected: shape.elements(),
                found: 0,
            })),
        }
    }
}

/// One layer of a bucket. All but the values of the gradient is the same on every rank.
///
/// ```
/// use lgreco_train::compress::{Setting, powersgd::PowerSgd};
/// use lgreco_train::exchange::Layer;
/// use lgreco_train::gradient::{Gradient, Shape, Values, ValuesMut};
/// let gradient = Gradient::new(Values::F32(&[1.0; 12]), Shape::new(3, 4)?)?;
/// let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
/// // Zeros at the first step; kept for the next one.
/// let (mut mean, mut factor) = (vec![0.0; 12], vec![0.0; 4 * 2]);
/// let layer = Layer {
///     index: 0,
///     setting,
///     gradient: gradient.into(),
///     fresh: None,
///     sent: 0,
///     late: None,
///     shards: &[],
///     mean: ValuesMut::F32(&mut mean),
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
    pub gradient: Input<'a>,
    /// AdaComp with a memory: the gradient of this step alone, which counts twice. `None` for other settings, and without
    /// a memory.
    pub fresh: Option<Gradient<'a>>,
    /// Gets the bytes of this worker's payload, where payloads travel whole ([`Route::AllGather`], and every route for
    /// methods whose lengths the values decide); otherwise it is untouched, and
    /// [`payload_len`](crate::compress::Compressor::payload_len) tells.
    pub sent: u64,
    /// Gets what this rank alone finds wrong with what is left of a compensated gradient: it is not finite.
    pub late: Option<Error>,
    /// By [`Route::Sharded`]: [where shards end](Spec::shards). Else empty.
    pub shards: &'a [u64],
    /// Gets the mean over the workers, rounded to the element type; one place per element, by [`Route::Sharded`] per element
    /// of this rank's shard. It may be empty in [`Flight::begin`], and gradients that nobody needs any more are such places.
    pub mean: ValuesMut<'a>,
    /// Gets this worker's own contribution to the mean, to be taken off its residual; one place per element.
    pub own: Option<&'a mut [f32]>,
    /// PowerSGD: the averaged `Q` of the last step, cols × `min(rank, rows, cols)`, column after column; becomes this
    /// step's. Columns of zeros, as at the first step, start afresh. Empty for other settings.
    pub factor: &'a mut [f32],
}

impl Layer<'_> {
    pub(super) fn spec(&self) -> Spec<'_> {
        let (shape, dtype) = (self.gradient.shape(), self.gradient.dtype());
        Spec { index: self.index, setting: self.setting, shape, dtype, shards: self.shards }
    }

    /// Columns of PowerSGD's factors; 0 for other settings.
    pub(super) fn rank(&self) -> usize {
        factor_rank(&self.setting, self.gradient.shape())
    }

    /// Whether everybody gets its whole payload from everybody.
    pub(super) fn is_gathered(&self, route: Route) -> bool {
        is_gathered(&self.setting, route)
    }

    /// Takes what this worker's payload holds off what is compensated, or writes it where contributions go.
    ///
    /// # Errors
    /// Those of decoding.
    pub(super) fn contribute(&mut self, payload: &[u8], scratch: &mut [f32]) -> Result<(), Error> {
        if let Some(own) = &mut self.own {
            decode(payload, own)?;
        }
        if let Input::Compensated { values, .. } = &mut self.gradient {
            combine(&Payload::parse(payload)?, Combine::Subtract, values, scratch)?;
            let sparse = matches!(self.setting, Setting::TopK(_) | Setting::HardThreshold(_) | Setting::Sidco(_));
            // What TopK sends is f32, or nearer to zero than infinity is.
            if !sparse && !is_finite(values) {
                self.late = Some(Error::Core(CoreError::Overflow { what: "what is to be remembered" }));
            }
        }
        Ok(())
    }

    /// `Err` unless there is a place for each element of the mean.
    pub(super) fn check_mean(&self, moment: &Moment) -> Result<(), Error> {
        expect_len("mean values", self.spec().wanted(moment.route, moment.rank).len(), self.mean.values().len())
    }

    pub(super) fn check(&self, moment: &Moment) -> Result<(), Error> {
        let shape = self.gradient.shape();
        if let Some(fresh) = &self.fresh {
            expect_len("rows of the fresh gradient", shape.rows(), fresh.shape().rows())?;
            expect_len("columns of the fresh gradient", shape.cols(), fresh.shape().cols())?;
        }
        if !self.mean.values().is_empty() {
            self.check_mean(moment)?;
        }
        if let Some(own) = &self.own {
            expect_len("own values", shape.elements(), own.len())?;
        }
        if let Input::Compensated { values, .. } = &self.gradient {
            expect_len("compensated values", shape.elements(), values.len())?;
        }
        expect_len("warm-start factor", shape.cols() * self.rank(), self.factor.len())
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

    /// The random bits of rank `rank`'s payload of the layer with index `layer`; those of rank 0 are PowerSGD's start on all.
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
/// [`Request::perform`](super::Request::perform) for each of its requests. PowerSGD does one power iteration per call, whatever its setting says, and relies on `factor` for
/// accuracy.
///
/// Whether ranks bring the same layers and settings is found out anew at every call, by an all-gather of 24 bytes each.
///
/// # Errors
/// Those of [`Flight::begin`] and [`Flight::next`]; [`CoreError::Parameter`] when `collective` has no workers or a rank
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
///     let layer = Layer { index: 0, setting, gradient, fresh: None, sent: 0, late: None, shards, mean, own: None, factor };
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
