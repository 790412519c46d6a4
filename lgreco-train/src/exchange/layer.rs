//! A layer of a bucket: what all ranks know of it, and what one rank brings and gets.

use super::aggregation::{factor_rank, is_gathered};
use super::moment::{Moment, Route};
use crate::compress::wire::Payload;
use crate::compress::{Compressor, Setting};
use crate::feedback::{copy, is_finite, squared_norm};
use crate::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};
use crate::{CoreError, Error};
use core::ops::Range;
use lgreco::compress::payload::{Combine, combine};
use lgreco::error::expect_len;

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
    /// Whether an uncompressed layer's values, which are f32, may be summed where they are; [`Program::is_in_place`](super::Program)
    /// says which are. All ranks have the same. False where nobody has asked.
    pub in_place: bool,
}

impl From<(Setting, Shape, Dtype)> for Spec<'_> {
    fn from((setting, shape, dtype): (Setting, Shape, Dtype)) -> Self {
        Spec { index: 0, setting, shape, dtype, shards: &[], in_place: false }
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

    /// `Err` unless each rank has a shard of the layer, or no rank where the route is not [`Route::Sharded`].
    pub(crate) fn check_shards(&self, route: Route, world: u32) -> Result<(), Error> {
        if route != Route::Sharded {
            return Ok(expect_len("ends of shards", 0, self.shards.len())?);
        }
        expect_len("ends of shards, one per rank", world as usize, self.shards.len())?;
        let elements = self.shape.elements() as u64;
        let descends = self.shards.windows(2).find(|ends| ends[0] > ends[1]).map(|ends| ends[1]);
        match descends.or(self.shards.last().copied().filter(|&end| end != elements)) {
            Some(end) => {
                let expected = "not before the last rank's, and at last that of the layer";
                Err(CoreError::Parameter { what: "end of a shard", value: end as f64, expected }.into())
            }
            None => Ok(()),
        }
    }
}

/// What becomes of the part of a layer's values that this worker's message does not carry.
///
/// ```
/// use lgreco_train::exchange::Rest;
/// let mut residual = [0.0; 4];
/// let kept = Rest::Beside(&mut residual);
/// assert!(!matches!(kept, Rest::Dropped));
/// ```
#[derive(Debug)]
pub enum Rest<'a> {
    /// Nobody keeps it.
    Dropped,
    /// Nobody keeps it, but its squared norm is wanted. The values are f32.
    Measured(&'a mut f64),
    /// It is the next residual, and is moved here before the mean takes the values' place: one place per element. The values are
    /// f32, gradient and residual together. The slice may be empty until [`Flight::is_averaging`](super::Flight::is_averaging),
    /// and is then the same until the end.
    Beside(&'a mut [f32]),
    /// The same, but the slice holds the residual that was added, which what is left replaces. The residual stays if what is left is
    /// not finite.
    Replacing(&'a mut [f32]),
    /// These f32, gradient and residual together, are compressed instead of the values, and become the next residual. For
    /// values of 16 bits, and for AdaComp, which looks at the gradient alone as well.
    Instead(&'a mut [f32]),
}

/// One layer of a bucket. All but the values is the same on every rank.
///
/// ```
/// use lgreco_train::compress::{Setting, powersgd::PowerSgd};
/// use lgreco_train::exchange::{Layer, Rest};
/// use lgreco_train::gradient::{Shape, ValuesMut};
/// let mut gradient = [1.0; 12];
/// let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
/// let mut factor = vec![0.0; 4 * 2]; // zeros at the first step; kept for the next one
/// let values = ValuesMut::F32(&mut gradient);
/// let layer = Layer { factor: &mut factor, ..Layer::new(0, setting, Shape::new(3, 4)?, values, Rest::Dropped) };
/// # let _ = layer;
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Debug)]
pub struct Layer<'a> {
    /// Index of the layer in the model; with seed, step and rank it names the random bits.
    pub index: u32,
    /// How to compress it.
    pub setting: Setting,
    /// Rows and columns.
    pub shape: Shape,
    /// What to compress, the gradient or, where [`Rest`] says so, gradient and residual together. It becomes the mean over the
    /// workers, by [`Route::Sharded`] in this rank's shard alone. If the exchange fails it is of no use. Empty on a rank that has
    /// failed before.
    pub values: ValuesMut<'a>,
    /// What becomes of what is not sent.
    pub rest: Rest<'a>,
    /// Gets the bytes of this worker's payload, where payloads travel whole ([`Route::AllGather`], and every route under
    /// [`Aggregation::WholePayloads`](super::Aggregation)); otherwise it is untouched, and
    /// [`payload_len`](crate::compress::Compressor::payload_len) tells.
    pub sent: u64,
    /// Gets what this rank alone finds wrong with what is left of its values: it is not finite. What is set
    /// before says that something was found wrong with what is left of the bucket.
    pub late: Option<Error>,
    /// By [`Route::Sharded`]: [where shards end](Spec::shards). Else empty.
    pub shards: &'a [u64],
    /// PowerSGD: the averaged `Q` of the last step, cols × `min(rank, rows, cols)`, column after column; becomes this
    /// step's. Columns of zeros, as at the first step, start afresh. Empty for other settings.
    pub factor: &'a mut [f32],
}

impl<'a> Layer<'a> {
    /// A layer without shards and factors.
    pub fn new(index: u32, setting: Setting, shape: Shape, values: ValuesMut<'a>, rest: Rest<'a>) -> Self {
        Layer { index, setting, shape, values, rest, sent: 0, late: None, shards: &[], factor: &mut [] }
    }

    pub(super) fn spec(&self) -> Spec<'_> {
        let dtype = self.values.values().dtype();
        let (dtype, in_place) = match self.rest {
            Rest::Instead(_) => (Dtype::F32, false),
            _ => (dtype, dtype == Dtype::F32),
        };
        Spec { index: self.index, setting: self.setting, shape: self.shape, dtype, shards: self.shards, in_place }
    }

    /// What is to be compressed.
    ///
    /// # Errors
    /// [`CoreError::Length`] when there are not as many values as elements.
    pub(super) fn get(&self) -> Result<Gradient<'_>, Error> {
        let values = match &self.rest {
            Rest::Instead(values) => Values::F32(values),
            _ => self.values.values(),
        };
        Ok(Gradient::new(values, self.shape)?)
    }

    /// Columns of PowerSGD's factors; 0 for other settings.
    pub(super) fn rank(&self) -> usize {
        factor_rank(&self.setting, self.shape)
    }

    /// Whether everybody gets its whole payload from everybody.
    pub(super) fn is_gathered(&self, route: Route) -> bool {
        is_gathered(&self.setting, route)
    }

    /// The elements of which this rank gets the mean.
    pub(super) fn wanted(&self, moment: &Moment) -> Range<usize> {
        self.spec().wanted(moment.route, moment.rank)
    }

    /// Where the mean goes.
    pub(super) fn mean(&mut self, moment: &Moment) -> ValuesMut<'_> {
        let wanted = self.wanted(moment);
        self.values.part(wanted)
    }

    /// From what this worker's contribution is to be taken off, if anybody wants to know what is left.
    pub(super) fn left(&mut self) -> Option<&mut [f32]> {
        match &mut self.rest {
            Rest::Dropped => None,
            Rest::Measured(_) | Rest::Beside(_) | Rest::Replacing(_) => self.values.as_f32(),
            Rest::Instead(values) => Some(values),
        }
    }

    /// Takes off what this worker's payload holds.
    ///
    /// # Errors
    /// Those of decoding.
    pub(super) fn contribute(&mut self, payload: &[u8], scratch: &mut [f32]) -> Result<(), Error> {
        let setting = self.setting;
        if let Some(values) = self.left() {
            combine(&setting, &Payload::parse(payload)?, Combine::Subtract, values, scratch)?;
            if !setting.traits().shrinks {
                self.check_left();
            }
        }
        Ok(())
    }

    /// Notes where what is left is not finite, if it is to be remembered.
    pub(super) fn check_left(&mut self) {
        let finite = match &self.rest {
            Rest::Dropped | Rest::Measured(_) => true,
            Rest::Beside(_) | Rest::Replacing(_) => self.values.as_f32().is_none_or(|values| is_finite(values)),
            Rest::Instead(values) => is_finite(values),
        };
        self.late = self.late.or(CoreError::require_finite(finite, "the residual").err().map(Error::from));
    }

    /// Moves what is left out of the mean's way; nothing is left of values that are sent as they are.
    ///
    /// # Errors
    /// [`CoreError::Length`] when there is no place for it, or none for the mean.
    pub(super) fn put_nothing(&mut self) -> Result<(), Error> {
        match &mut self.rest {
            Rest::Beside(rest) | Rest::Replacing(rest) => {
                expect_len("values of the rest", self.shape.elements(), rest.len())?;
                rest.fill(0.0);
            }
            Rest::Measured(norm) => **norm = 0.0,
            Rest::Dropped | Rest::Instead(_) => {}
        }
        Ok(())
    }

    /// Moves what is left out of the mean's way.
    ///
    /// # Errors
    /// [`CoreError::Length`] when there is no place for it, or none for the mean.
    pub(super) fn put_rest(&mut self) -> Result<(), Error> {
        expect_len("values", self.shape.elements(), self.values.values().len())?;
        match (&mut self.rest, &mut self.values) {
            (Rest::Beside(rest), ValuesMut::F32(values)) => {
                expect_len("values of the rest", values.len(), rest.len())?;
                copy(values, rest);
            }
            (Rest::Replacing(rest), ValuesMut::F32(values)) => {
                expect_len("values of the rest", values.len(), rest.len())?;
                if self.late.is_none() || is_finite(values) {
                    copy(values, rest);
                }
            }
            (Rest::Measured(norm), ValuesMut::F32(values)) => **norm = squared_norm(values),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let (elements, values) = (self.shape.elements(), self.values.values());
        let needs_f32 = matches!(self.rest, Rest::Beside(_) | Rest::Replacing(_) | Rest::Measured(_));
        if needs_f32 && values.dtype() != Dtype::F32 {
            let expected = "f32 values; others take what is left from a copy";
            return Err(
                CoreError::Parameter { what: "element type", value: values.dtype() as u32 as f64, expected }.into()
            );
        }
        if !values.is_empty() {
            expect_len("values", elements, values.len())?;
        }
        match &self.rest {
            Rest::Beside(rest) | Rest::Replacing(rest) | Rest::Instead(rest) if !rest.is_empty() => {
                expect_len("values of the rest", elements, rest.len())?;
            }
            _ => {}
        }
        Ok(expect_len("warm-start factor", self.shape.cols() * self.rank(), self.factor.len())?)
    }
}
