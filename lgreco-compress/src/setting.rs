//! Any compressor with its parameters as a plain value, and the decoder of all payloads.

use super::Compressor;
use super::adacomp::{self, AdaComp};
use super::clt::CltK;
use super::combine::{Combine, combine_values};
use super::dense::{self, Dense};
use super::hard_threshold::HardThreshold;
use super::loco::{self, LoCo};
use super::own;
use super::powersgd::{self, PowerSgd};
use super::qsgd::{self, Qsgd, Rounding};
use super::quantised_topk::{self, QuantisedTopK};
use super::sidco::Sidco;
use super::sparse;
use super::topk::{self, TopK};
use super::wire::{HEADER_LEN, Header, Method, Payload};
use crate::Error;
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use lgreco_core::method::{Methods, OwnSetting};

/// One compressor with its parameters: what a plan gives each layer.
///
/// # As text
/// A setting is written as one line of text ([`Display`](core::fmt::Display)) and read from it
/// ([`FromStr`](core::str::FromStr)), neither of which allocates. A text that is read gives the setting that was
/// written, bit for bit. The method and its first number come first; the words after it may stand in any order, are
/// written only where they are not the default, and may be read all the same:
///
/// | text | may go on with | default |
/// |---|---|---|
/// | `dense` | | |
/// | `qsgd BITS` | `bucket ELEMENTS`, `max-norm` or `min-max`, `stochastic` or `nearest` | `bucket 512 max-norm stochastic` |
/// | `topk ELEMENTS` | `f32`, `f16` or `bf16`: the type of the values sent; or `bits NUMBER`, 1 to 8: a sign and a bin | `f32` |
/// | `powersgd RANK` | `iterations NUMBER` | `iterations 1` |
/// | `clt-k ELEMENTS` | | |
/// | `hard-threshold MAGNITUDE` | `f32`, `f16` or `bf16` | `f32` |
/// | `adacomp ELEMENTS` (per bin) | | |
/// | `loco ELEMENTS` (per group) | | |
/// | `sidco DENSITY` | `exponential`, `gamma-pareto` or `pareto`, `stages NUMBER`, `f32`, `f16` or `bf16` | `exponential stages 1 f32` |
///
/// Reading fails with [`Error::SettingWord`] on a word that is not known there, [`Error::SettingSyntax`] where another
/// word or a number is expected or a parameter is there twice, and [`Error::Parameter`] outside of a parameter's range.
/// Whether as many elements can be kept as `topk` and `clt-k` say, the layer decides
/// ([`payload_len`](Compressor::payload_len)).
///
/// ```
/// use lgreco_compress::{Setting, qsgd::{Qsgd, Scale}};
/// let setting = Setting::Qsgd(Qsgd { bits: 4, bucket: 128, scale: Scale::MinMax, ..Qsgd::default() });
/// assert_eq!(setting.to_string(), "qsgd 4 bucket 128 min-max");
/// assert_eq!("qsgd 4 min-max bucket 128 stochastic".parse(), Ok(setting));
/// let misspelt = "qsgd 4 buckt 128".parse::<Setting>().unwrap_err();
/// assert_eq!(misspelt.to_string(), "setting: `buckt` is unknown: is `bucket` meant?");
/// ```
///
/// # Example
/// ```
/// use lgreco_compress::{Compressor, Setting, decode, topk::TopK};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let values = [0.1f32, -3.0, 0.2, 2.0];
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(4, 1)?)?;
/// let setting = Setting::TopK(TopK { keep: 2, values: Dtype::F32 });
/// let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
/// let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32)?];
/// setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
/// let mut decoded = [0.0; 4];
/// decode(&payload, &mut decoded)?;
/// assert_eq!(decoded, [0.0, -3.0, 0.0, 2.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// Uncompressed.
    Dense,
    /// Quantised.
    Qsgd(Qsgd),
    /// Sparsified.
    TopK(TopK),
    /// Sparsified, the values in a few bits.
    QuantisedTopK(QuantisedTopK),
    /// Low rank.
    PowerSgd(PowerSgd),
    /// Sparsified at positions that all workers share.
    CltK(CltK),
    /// Sparsified by magnitude, as many elements as there are.
    HardThreshold(HardThreshold),
    /// What stands out of its bin, as plus or minus one magnitude.
    AdaComp(AdaComp),
    /// Quantised to 4 bits, to nearest.
    LoCo(LoCo),
    /// Sparsified by an estimated magnitude.
    Sidco(Sidco),
    /// A method from outside lgreco.
    Own(OwnSetting),
}

impl Setting {
    fn compressor(&self) -> &dyn Compressor {
        match self {
            Setting::Dense => &Dense,
            Setting::Qsgd(c) => c,
            Setting::TopK(c) => c,
            Setting::QuantisedTopK(c) => c,
            Setting::PowerSgd(c) => c,
            Setting::CltK(c) => c,
            Setting::HardThreshold(c) => c,
            Setting::AdaComp(c) => c,
            Setting::LoCo(c) => c,
            Setting::Sidco(c) => c,
            Setting::Own(c) => c,
        }
    }

    /// Whether payloads decode to the gradient in expectation, with errors that are independent from worker to worker: QSGD
    /// under stochastic rounding, and uncompressed.
    ///
    /// ```
    /// # use lgreco_compress::{Setting, qsgd::{Qsgd, Rounding}};
    /// assert!(Setting::Qsgd(Qsgd::default()).is_unbiased());
    /// assert!(!Setting::Qsgd(Qsgd { rounding: Rounding::Nearest, ..Qsgd::default() }).is_unbiased());
    /// ```
    pub fn is_unbiased(&self) -> bool {
        match self {
            Setting::Dense => true,
            Setting::Qsgd(qsgd) => qsgd.rounding == Rounding::Stochastic,
            Setting::Own(own) => own.method().is_unbiased(own.parameters()),
            _ => false,
        }
    }

    /// Bytes that a worker brings to an exchange of one tensor, the header included, where what is summed on the wire
    /// travels as `reduce_dtype`: uncompressed values, PowerSGD's factors, and values at shared positions. Payloads are as
    /// long as they are.
    ///
    /// ```
    /// # use lgreco_compress::{Setting, powersgd::PowerSgd};
    /// # use lgreco_core::gradient::{Dtype, Shape};
    /// let setting = Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 });
    /// let shape = Shape::new(100, 50)?;
    /// assert_eq!(setting.exchanged_len(shape, Dtype::F32, Dtype::F32)?, 16 + 4 * 4 * (100 + 50));
    /// assert_eq!(setting.exchanged_len(shape, Dtype::F32, Dtype::Bf16)?, 16 + 4 * 2 * (100 + 50));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`payload_len`](Compressor::payload_len).
    pub fn exchanged_len(&self, shape: Shape, dtype: Dtype, reduce_dtype: Dtype) -> Result<usize, Error> {
        let len = self.payload_len(shape, dtype)?;
        let values = match self {
            Setting::Dense => shape.elements(),
            Setting::PowerSgd(c) => powersgd::effective_rank(shape, c.rank) * (shape.rows() + shape.cols()),
            Setting::CltK(c) => c.keep as usize,
            _ => 0,
        };
        let of_payload = if *self == Setting::Dense { dtype.bytes() } else { Dtype::F32.bytes() };
        Ok(len - values * of_payload.saturating_sub(reduce_dtype.bytes()))
    }

    /// What payloads of this setting say that they are.
    pub const fn method(&self) -> Method {
        match self {
            Setting::Dense => Method::Dense,
            Setting::Qsgd(_) => Method::Qsgd,
            Setting::TopK(_) | Setting::CltK(_) | Setting::HardThreshold(_) | Setting::Sidco(_) => Method::TopK,
            Setting::QuantisedTopK(_) => Method::QuantisedTopK,
            Setting::PowerSgd(_) => Method::PowerSgd,
            Setting::AdaComp(_) => Method::AdaComp,
            Setting::LoCo(_) => Method::LoCo,
            Setting::Own(own) => Method::Own(own.id()),
        }
    }

    /// Decodes a payload of this setting.
    ///
    /// # Errors
    /// As [`decode`]; [`Error::PayloadHeader`] for another method's payload.
    pub fn decode(&self, payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
        match self {
            Setting::Own(own) => own::decode_as(payload, own, values),
            _ => decode_parsed(payload, values),
        }
    }

    /// `Err` unless the parameters are in the ranges that they have for any tensor.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Setting::Dense | Setting::TopK(_) | Setting::CltK(_) => Ok(()),
            Setting::Qsgd(c) => c.check(),
            Setting::QuantisedTopK(c) => c.check(),
            Setting::PowerSgd(c) => c.check(),
            Setting::HardThreshold(c) => c.check(),
            Setting::AdaComp(c) => c.check(),
            Setting::LoCo(c) => c.check(),
            Setting::Sidco(c) => c.check(),
            Setting::Own(c) => c.method().check(c.parameters()),
        }
    }
}

impl Compressor for Setting {
    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize, Error> {
        self.compressor().payload_len(shape, dtype)
    }

    fn has_fixed_len(&self) -> bool {
        self.compressor().has_fixed_len()
    }

    fn encode_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        self.compressor().encode_workspace_len(shape, dtype)
    }

    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        self.compressor().encode(gradient, stream, workspace, payload)
    }
}

/// Decodes any payload into `values` (row-major) and returns its header. The parser is total: truncated, hostile or
/// wrong-version bytes are an error, and `values` then holds nothing to be used.
///
/// ```
/// use lgreco_compress::{Compressor, Setting, decode, wire::Method};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[1.0, 2.0]), Shape::new(1, 2)?)?;
/// let mut payload = [0; 24];
/// Setting::Dense.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// let mut values = [0.0; 2];
/// assert_eq!(decode(&payload, &mut values)?.method, Method::Dense);
/// assert!(decode(&payload[..23], &mut values).is_err());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::PayloadHeader`], [`Error::PayloadField`], [`Error::TooManyElements`] and [`Error::Parameter`] on a header
/// that no encoder writes; [`Error::PayloadBody`] on a body that none writes; [`Error::Overflow`] when PowerSGD's
/// factors multiply to what is not finite; [`Error::Length`] when the body or `values` has not the length the header
/// implies.
///
/// # Complexity
/// O(elements), for PowerSGD O(elements · rank); no workspace.
pub fn decode(payload: &[u8], values: &mut [f32]) -> Result<Header, Error> {
    decode_with(&Methods::NONE, payload, values)
}

/// [`decode`] of any payload, those of `methods` among them.
///
/// # Errors
/// As [`decode`], those of the methods' own decoders, and [`Error::UnknownMethod`].
///
/// # Complexity
/// That of [`decode`].
pub fn decode_with(methods: &Methods, payload: &[u8], values: &mut [f32]) -> Result<Header, Error> {
    let payload = Payload::parse(payload)?;
    match payload.header.method {
        Method::Own(_) => own::decode(&payload, methods, values)?,
        _ => decode_parsed(&payload, values)?,
    }
    Ok(payload.header)
}

/// [`decode`] of what has been parsed already, of lgreco's own methods.
pub fn decode_parsed(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    match payload.header.method {
        Method::Dense => dense::decode(payload, values),
        Method::Qsgd => qsgd::decode(payload, values),
        Method::TopK => topk::decode(payload, values),
        Method::PowerSgd => powersgd::decode(payload, values),
        Method::AdaComp => adacomp::decode(payload, values),
        Method::LoCo => loco::decode(payload, values),
        Method::QuantisedTopK => quantised_topk::decode(payload, values),
        Method::Own(id) => Err(Error::UnknownMethod { id }),
    }
}

/// Combines what a payload of `setting` holds with `values`; for most methods in blocks or element by element, for others by way of
/// `scratch`, which has a place per element. Same errors as [`decode`]; `values` are then of no use.
pub fn combine(
    setting: &Setting,
    payload: &Payload<'_>,
    how: Combine,
    values: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), Error> {
    match payload.header.method {
        Method::TopK => sparse::combine::<topk::Body<'_>>(payload, how, values),
        Method::QuantisedTopK => sparse::combine::<quantised_topk::Body<'_>>(payload, how, values),
        Method::AdaComp => adacomp::combine(payload, how, values),
        Method::Qsgd => qsgd::combine(payload, how, values),
        Method::PowerSgd => powersgd::combine(payload, how, values),
        Method::Dense | Method::LoCo | Method::Own(_) => {
            expect_room("scratch values", values.len(), scratch.len())?;
            let scratch = &mut scratch[..values.len()];
            setting.decode(payload, scratch)?;
            combine_values(values, how, scratch);
            Ok(())
        }
    }
}

/// Length of the payload that `bytes` begin with. Its header states it, so payloads may stand one after the other; of
/// what follows the header only the length is looked at, and [`decode`] wants exactly that many bytes.
///
/// ```
/// use lgreco_compress::{Compressor, Setting, decode, stated_len};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[1.0, 2.0]), Shape::new(1, 2)?)?;
/// let mut message = [0; 100];
/// Setting::Dense.encode(&gradient, Stream::default(), &mut [], &mut message)?;
/// assert_eq!(stated_len(&message)?, 24);
/// assert!(stated_len(&message[..23]).is_err());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// Those of [`decode`] that concern the header; [`Error::Length`] when there are fewer bytes.
pub fn stated_len(bytes: &[u8]) -> Result<usize, Error> {
    let payload = Payload::parse(bytes)?;
    let header = payload.header;
    let body = match header.method {
        Method::Dense => dense::stated(&header)?.0,
        Method::Qsgd => qsgd::stated(&header)?,
        Method::TopK => topk::stated(&header)?.0,
        Method::PowerSgd => powersgd::stated(&header)?,
        Method::AdaComp => adacomp::stated(&header)?.0,
        Method::LoCo => loco::stated(&header)?,
        Method::QuantisedTopK => quantised_topk::stated(&header)?,
        Method::Own(_) => own::stated(&payload)?,
    };
    let len = body.saturating_add(HEADER_LEN);
    expect_room("payload bytes", len, bytes.len())?;
    Ok(len)
}
