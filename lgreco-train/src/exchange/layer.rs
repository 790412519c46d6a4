//! A layer of a bucket: what all ranks know of it, and what one rank brings and gets.

use super::aggregation::{factor_rank, is_gathered};
use super::moment::{Moment, Route};
use crate::compress::wire::Payload;
use crate::compress::{Compressor, Setting, decode};
use crate::error::expect_len;
use crate::feedback::is_finite;
use crate::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};
use crate::internal::payload::{Combine, combine};
use crate::{CoreError, Error};
use core::ops::Range;

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
    /// [`Route::Sharded`]: where each rank's shard ends, in elements: rank r has those from `shards[r - 1]` to
    /// `shards[r]`, which may be none, and the last rank's end with the layer. Rows of a matrix (FSDP) are shards, and
    /// so are what ranges of a flat buffer (ZeRO) leave of each layer. Empty on other routes.
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
        let expected = "one that does not shard, for methods whose lengths the values decide";
        Error::require(self.setting.has_fixed_len(), "route", route as u32 as f64, expected)?;
        expect_len("ends of shards, one per rank", world as usize, self.shards.len())?;
        let elements = self.shape.elements() as u64;
        let descends = self.shards.windows(2).find(|ends| ends[0] > ends[1]).map(|ends| ends[1]);
        match descends.or(self.shards.last().copied().filter(|&end| end != elements)) {
            Some(end) => {
                let expected = "not before the last rank's, and at last that of the layer";
                Err(Error::parameter("end of a shard", end as f64, expected))
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
    /// Gradient and residual together. When the means are ready they are what is left after this worker's contribution:
    /// the next residual.
    Compensated {
        /// One per element.
        values: &'a mut [f32],
        /// Of the tensor.
        shape: Shape,
    },
    /// A gradient whose values nobody needs any more: [`Flight::next`](super::Flight::next) does not, where layers are
    /// dense or their payloads travel whole.
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
    /// AdaComp with a memory: the gradient of this step alone, which counts twice. `None` for other settings, and
    /// without a memory.
    pub fresh: Option<Gradient<'a>>,
    /// Gets the bytes of this worker's payload, where payloads travel whole ([`Route::AllGather`], and every route for
    /// methods whose lengths the values decide); otherwise it is untouched, and
    /// [`payload_len`](crate::compress::Compressor::payload_len) tells.
    pub sent: u64,
    /// Gets what this rank alone finds wrong with what is left of a compensated gradient: it is not finite.
    pub late: Option<Error>,
    /// By [`Route::Sharded`]: [where shards end](Spec::shards). Else empty.
    pub shards: &'a [u64],
    /// Gets the mean over the workers, rounded to the element type; one place per element, by [`Route::Sharded`] per
    /// element of this rank's shard. It may be empty in [`Flight::begin`](super::Flight::begin), and gradients that
    /// nobody needs any more are such places.
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
            let sparse = matches!(
                self.setting,
                Setting::TopK(_) | Setting::QuantisedTopK(_) | Setting::HardThreshold(_) | Setting::Sidco(_)
            );
            // What TopK sends is f32, or nearer to zero than infinity is, or has the value's sign.
            let finite = sparse || is_finite(values);
            self.late = self.late.or(Error::require_finite(finite, "what is to be remembered").err());
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
