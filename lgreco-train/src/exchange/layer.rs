//! A layer of a bucket on one rank: its values, and where its compression error goes.

use super::moment::Moment;
#[cfg(doc)]
use super::moment::Route;
use super::spec::{Spec, factor_len, factor_rank};
use crate::compress::wire::Payload;
use crate::compress::{Compressor, Setting};
use crate::feedback::{copy, is_finite, squared_norm};
use crate::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};
use crate::{CoreError, Error};
use core::ops::Range;
use lgreco::compress::payload::{Combine, combine};
use lgreco::error::expect_len;

/// Where a layer's compression error goes: the layer's values minus this worker's decoded payload.
///
/// ```
/// use lgreco_train::exchange::Rest;
/// let mut residual = [0.0; 4];
/// let kept = Rest::Beside(&mut residual);
/// assert!(!matches!(kept, Rest::Dropped));
/// ```
#[derive(Debug)]
pub enum Rest<'a> {
    /// The error is not stored.
    Dropped,
    /// Only the error's squared norm is stored, in this field. The layer's values are f32.
    Measured(&'a mut f64),
    /// The error becomes the next residual. The layer's values are the f32 sum of gradient and residual. The exchange turns the
    /// values into the error, and copies the error to this slice before the mean replaces the values. The slice has one f32 per
    /// element, but may be empty until [`Flight::is_averaging`](super::Flight::is_averaging) returns true. From then on, the flight
    /// must get the same slice.
    Beside(&'a mut [f32]),
    /// Like `Beside`. The slice holds the residual that was added, and the next residual replaces it. If the next residual is not
    /// finite, the old residual stays.
    Replacing(&'a mut [f32]),
    /// This slice holds the f32 sum of gradient and residual, which is compressed in place of the layer's values. The exchange
    /// subtracts this worker's decoded payload from the slice. This variant is for 16-bit gradients, and for AdaComp, which also
    /// needs the gradient alone.
    Instead(&'a mut [f32]),
}

/// One layer of a bucket. Index, setting, shape, shards and factor are the same on every rank.
///
/// ```
/// use lgreco_train::compress::{Setting, powersgd::PowerSgd};
/// use lgreco_train::exchange::{Layer, Rest};
/// use lgreco_train::gradient::{Shape, ValuesMut};
/// let mut gradient = [1.0; 12];
/// let setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });
/// let mut factor = vec![0.0; 4 * 2]; // zeros at the first step; pass it again at the next one
/// let values = ValuesMut::F32(&mut gradient);
/// let layer = Layer { factor: &mut factor, ..Layer::new(0, setting, Shape::new(3, 4)?, values, Rest::Dropped) };
/// # let _ = layer;
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Debug)]
pub struct Layer<'a> {
    /// The description. The layer's index, with seed, step and rank, selects the random bits.
    pub spec: Spec<'a>,
    /// The gradient, or the sum of gradient and residual, according to [`Rest`]. The mean over the workers replaces these values;
    /// with [`Route::Sharded`], only in this rank's shard. The values are undefined if the exchange fails, and empty on a rank that
    /// has failed before.
    pub values: ValuesMut<'a>,
    /// Where the compression error goes.
    pub rest: Rest<'a>,
    /// Gets the length of this worker's payload in bytes, if payloads are not divided: with [`Route::AllGather`], and under
    /// [`Aggregation::WholePayloads`](super::Aggregation). Otherwise, this field is unchanged, and
    /// [`payload_len`](crate::compress::Compressor::payload_len) gives the bytes.
    pub sent: u64,
    /// Gets this rank's error if the compression error is not finite. The caller may set this field in advance, to an error that an
    /// earlier call on this bucket has found.
    pub late: Option<Error>,
    /// PowerSGD: the averaged `Q` of the last step, cols × `min(rank, rows, cols)`, column after column. The averaged `Q` of this
    /// step replaces the old `Q`. Columns of zeros, as at the first step, are replaced by random columns. Empty for other settings.
    pub factor: &'a mut [f32],
}

impl<'a> Layer<'a> {
    /// A layer without shards and factors.
    pub fn new(index: u32, setting: Setting, shape: Shape, values: ValuesMut<'a>, rest: Rest<'a>) -> Self {
        let dtype = input_dtype(&values, &rest);
        let in_place = dtype == Dtype::F32 && !matches!(rest, Rest::Instead(_));
        let spec = Spec { index, in_place, ..Spec::from((setting, shape, dtype)) };
        Layer { spec, values, rest, sent: 0, late: None, factor: &mut [] }
    }

    /// The layer with these [ends of shards](Spec::shards), for [`Route::Sharded`].
    pub fn with_shards(mut self, shards: &'a [u64]) -> Self {
        self.spec.shards = shards;
        self
    }

    /// The compressor's input.
    ///
    /// # Errors
    /// [`CoreError::Length`] unless there is one value per element.
    pub(super) fn get(&self) -> Result<Gradient<'_>, Error> {
        let values = match &self.rest {
            Rest::Instead(values) => Values::F32(values),
            _ => self.values.values(),
        };
        Ok(Gradient::new(values, self.spec.shape)?)
    }

    /// Columns of PowerSGD's factors; 0 for other settings.
    pub(super) fn rank(&self) -> usize {
        factor_rank(&self.spec.setting, self.spec.shape)
    }

    /// The elements whose mean this rank gets.
    pub(super) fn wanted(&self, moment: &Moment) -> Range<usize> {
        self.spec.wanted(moment.route, moment.rank)
    }

    /// The part of the values that this rank's mean replaces.
    pub(super) fn mean(&mut self, moment: &Moment) -> ValuesMut<'_> {
        let wanted = self.wanted(moment);
        self.values.part(wanted)
    }

    /// The values from which this worker's contribution is subtracted; `None` if the result is not used.
    pub(super) fn left(&mut self) -> Option<&mut [f32]> {
        match &mut self.rest {
            Rest::Dropped => None,
            Rest::Measured(_) | Rest::Beside(_) | Rest::Replacing(_) => self.values.as_f32(),
            Rest::Instead(values) => Some(values),
        }
    }

    /// Subtracts this worker's decoded payload.
    ///
    /// # Errors
    /// The errors of decoding.
    pub(super) fn contribute(&mut self, payload: &[u8], scratch: &mut [f32]) -> Result<(), Error> {
        let setting = self.spec.setting;
        if let Some(values) = self.left() {
            combine(&setting, &Payload::parse(payload)?, Combine::Subtract, values, scratch)?;
            if !setting.traits().shrinks {
                self.check_left();
            }
        }
        Ok(())
    }

    /// Records an error if the values that become the next residual are not finite.
    pub(super) fn check_left(&mut self) {
        let finite = match &self.rest {
            Rest::Dropped | Rest::Measured(_) => true,
            Rest::Beside(_) | Rest::Replacing(_) => self.values.as_f32().is_none_or(|values| is_finite(values)),
            Rest::Instead(values) => is_finite(values),
        };
        let error = CoreError::require_finite(finite, "the residual").err();
        self.late = self.late.or(error.map(|error| Error::from(error).of_layer(self.spec.index)));
    }

    /// Sets the next residual to zeros, because the values are sent without loss.
    ///
    /// # Errors
    /// [`CoreError::Length`] when the residual has another length.
    pub(super) fn put_nothing(&mut self) -> Result<(), Error> {
        match &mut self.rest {
            Rest::Beside(rest) | Rest::Replacing(rest) => {
                expect_len("values that are not sent", self.spec.shape.elements(), rest.len())?;
                rest.fill(0.0);
            }
            Rest::Measured(norm) => **norm = 0.0,
            Rest::Dropped | Rest::Instead(_) => {}
        }
        Ok(())
    }

    /// Copies the compression error to where [`Rest`] says, before the mean replaces it.
    ///
    /// # Errors
    /// [`CoreError::Length`] when the slice for the compression error or the layer's values have another length.
    pub(super) fn put_rest(&mut self) -> Result<(), Error> {
        expect_len("values", self.spec.shape.elements(), self.values.values().len())?;
        match (&mut self.rest, &mut self.values) {
            (Rest::Beside(rest), ValuesMut::F32(values)) => {
                expect_len("values that are not sent", values.len(), rest.len())?;
                copy(values, rest);
            }
            (Rest::Replacing(rest), ValuesMut::F32(values)) => {
                expect_len("values that are not sent", values.len(), rest.len())?;
                if self.late.is_none() || is_finite(values) {
                    copy(values, rest);
                }
            }
            (Rest::Measured(norm), ValuesMut::F32(values)) => **norm = squared_norm(values),
            _ => {}
        }
        Ok(())
    }

    /// `Err` unless all lengths and types fit together.
    pub(super) fn check(&self) -> Result<(), Error> {
        let (elements, values) = (self.spec.shape.elements(), self.values.values());
        let needs_f32 = matches!(self.rest, Rest::Beside(_) | Rest::Replacing(_) | Rest::Measured(_));
        if needs_f32 && values.dtype() != Dtype::F32 {
            let expected = "f32 values: 16-bit values need `Rest::Instead`";
            return Err(
                CoreError::Parameter { what: "element type", value: values.dtype() as u32 as f64, expected }.into()
            );
        }
        if self.spec.dtype != input_dtype(&self.values, &self.rest) {
            let (what, expected) = ("element type", "that of the layer's description");
            return Err(CoreError::Parameter { what, value: values.dtype() as u32 as f64, expected }.into());
        }
        if !values.is_empty() {
            expect_len("values", elements, values.len())?;
        }
        match &self.rest {
            Rest::Beside(rest) | Rest::Replacing(rest) | Rest::Instead(rest) if !rest.is_empty() => {
                expect_len("values that are not sent", elements, rest.len())?;
            }
            _ => {}
        }
        Ok(expect_len("warm-start factor", factor_len(&self.spec.setting, self.spec.shape), self.factor.len())?)
    }
}

/// Element type of the compressor's input.
fn input_dtype(values: &ValuesMut<'_>, rest: &Rest<'_>) -> Dtype {
    match rest {
        Rest::Instead(_) => Dtype::F32,
        _ => values.values().dtype(),
    }
}
