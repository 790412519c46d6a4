//! Operations on settings of any method, and the decoder of all payloads.

use super::clt::CltK;
use super::combine::{Combine, combine_values};
use super::describe::Reader;
use super::own;
use super::powersgd;
use super::quantised_topk::QuantisedTopK;
use super::registry::{METHODS, decode_parsed, reader};
use super::topk::TopK;
use super::wire::{HEADER_LEN, Header, Method, Payload};
use super::{Compressor, Setting, Traits};
use crate::Error;
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use lgreco_core::method::Methods;

impl Setting {
    /// Whether payloads decode to the gradient in expectation, with errors that are independent between workers. True
    /// for uncompressed values, QSGD under stochastic rounding, EDEN with the unbiased scale, and outside methods that
    /// declare this property.
    ///
    /// ```
    /// # use lgreco_compress::{Setting, qsgd::{Qsgd, Rounding}};
    /// assert!(Setting::Qsgd(Qsgd::default()).is_unbiased());
    /// assert!(!Setting::Qsgd(Qsgd { rounding: Rounding::Nearest, ..Qsgd::default() }).is_unbiased());
    /// ```
    pub fn is_unbiased(&self) -> bool {
        self.traits().unbiased
    }

    /// Bytes that one worker contributes to the exchange of one tensor, header included. Values that the network sums
    /// travel as `reduce_dtype`: uncompressed values, PowerSGD's factors, and CLT-k's values at shared positions. For
    /// all other settings this is [`payload_len`](Compressor::payload_len).
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
    /// The errors of [`payload_len`](Compressor::payload_len).
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

    /// The setting for one piece of a tensor with `elements` elements. TopK and CLT-k keep a proportional share of their
    /// values in the piece, at least one.
    pub fn of_piece(mut self, range: core::ops::Range<usize>, elements: usize) -> Setting {
        if let Setting::TopK(TopK { keep, .. })
        | Setting::QuantisedTopK(QuantisedTopK { keep, .. })
        | Setting::CltK(CltK { keep }) = &mut self
        {
            let before = |end: usize| (*keep as u64 * end as u64 / elements.max(1) as u64) as u32;
            *keep = (before(range.end) - before(range.start)).max(1);
        }
        self
    }

    /// The same setting with its kept values in `bits` bits each, 1 to 8. Returns `None` for all settings except
    /// [`TopK`](Setting::TopK).
    ///
    /// ```
    /// # use lgreco_compress::{Setting, quantised_topk::QuantisedTopK, topk::TopK};
    /// # use lgreco_core::gradient::Dtype;
    /// let topk = Setting::TopK(TopK { keep: 10, values: Dtype::F32 });
    /// assert_eq!(topk.in_few_bits(4), Some(Setting::QuantisedTopK(QuantisedTopK { keep: 10, bits: 4 })));
    /// assert_eq!(Setting::Dense.in_few_bits(4), None);
    /// ```
    pub fn in_few_bits(&self, bits: u8) -> Option<Setting> {
        match *self {
            Setting::TopK(TopK { keep, .. }) => Some(Setting::QuantisedTopK(QuantisedTopK { keep, bits })),
            _ => None,
        }
    }

    /// The [`CltK`] in this setting, or `None` for other methods. Under CLT-k, all workers send values at the positions
    /// of one leader ([`Aggregation::SharedPositions`](crate::Aggregation)).
    pub fn shared_positions(&self) -> Option<&CltK> {
        match self {
            Setting::CltK(clt) => Some(clt),
            _ => None,
        }
    }

    /// Name of the method: the first word of the setting as text.
    pub fn name(&self) -> &'static str {
        match self {
            Setting::Own(own) => own.method().name(),
            _ => METHODS.iter().find(|known| known.id == self.data().0).map_or("", |known| known.name),
        }
    }

    /// The method in the header of this setting's payloads.
    pub fn method(&self) -> Method {
        self.described().method()
    }

    /// Decodes a payload of this setting.
    ///
    /// # Errors
    /// The errors of [`decode`]. [`Error::PayloadHeader`] for a payload of another method.
    pub fn decode(&self, payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
        self.described().decode(payload, values)
    }

    /// Fails unless the setting belongs to one of lgreco's methods or of the outside `methods`.
    ///
    /// # Errors
    /// [`Error::UnknownMethod`].
    pub fn expect_known(&self, methods: &Methods) -> Result<(), Error> {
        match self {
            Setting::Own(own) => match methods.find(own.id()) {
                Some(known) if known.name() == own.method().name() => Ok(()),
                _ => Err(Error::UnknownMethod { id: own.id() }),
            },
            _ => Ok(()),
        }
    }

    /// Checks the parameters against the limits that do not depend on the tensor.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn check(&self) -> Result<(), Error> {
        self.described().check()
    }
}

impl Compressor for Setting {
    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize, Error> {
        self.described().payload_len(shape, dtype)
    }

    fn has_fixed_len(&self) -> bool {
        self.described().has_fixed_len()
    }

    fn traits(&self) -> Traits {
        self.described().traits()
    }

    fn heavy_tailed_error(&self, elements: usize) -> Result<f64, Error> {
        self.described().heavy_tailed_error(elements)
    }

    fn encode_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        self.described().encode_workspace_len(shape, dtype)
    }

    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        self.described().encode(gradient, stream, workspace, payload)
    }

    fn encode_with_gradient(
        &self,
        compensated: &Gradient<'_>,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        self.described().encode_with_gradient(compensated, gradient, stream, workspace, payload)
    }
}

/// Decodes any payload into `values` (row-major) and returns its header. The parser accepts any bytes: truncated,
/// hostile or wrong-version payloads return an error. After an error, `values` must not be used.
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
/// that no encoder writes. [`Error::PayloadBody`] on a body that no encoder writes. [`Error::Overflow`] when the
/// product of PowerSGD's factors is not finite. [`Error::Length`] when the length of the body or of `values` differs
/// from the header.
///
/// # Complexity
/// O(elements); O(elements · rank) for PowerSGD. Needs no workspace.
pub fn decode(payload: &[u8], values: &mut [f32]) -> Result<Header, Error> {
    decode_with(&Methods::NONE, payload, values)
}

/// Decodes any payload, including payloads of the outside `methods`, like [`decode`].
///
/// # Errors
/// The errors of [`decode`], the errors of the methods' own decoders, and [`Error::UnknownMethod`].
///
/// # Complexity
/// The complexity of [`decode`].
pub fn decode_with(methods: &Methods, payload: &[u8], values: &mut [f32]) -> Result<Header, Error> {
    let payload = Payload::parse(payload)?;
    match payload.header.method {
        Method::Own(_) => own::decode(&payload, methods, values)?,
        _ => decode_parsed(&payload, values)?,
    }
    Ok(payload.header)
}

/// Adds a payload's values to `values`, or subtracts them. Most methods add in blocks or element by element. The other
/// methods first decode into `scratch`, which must be at least as long as `values`. Returns the errors of [`decode`].
/// After an error, `values` must not be used.
pub fn combine(
    setting: &Setting,
    payload: &Payload<'_>,
    how: Combine,
    values: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), Error> {
    if let Ok(Reader { combine: Some(combine), .. }) = reader(payload.header.method) {
        payload.header.expect_method(setting.method())?;
        return combine(payload, how, values);
    }
    expect_room("scratch values", values.len(), scratch.len())?;
    let scratch = &mut scratch[..values.len()];
    setting.decode(payload, scratch)?;
    combine_values(values, how, scratch);
    Ok(())
}

/// Length in bytes of the payload at the start of `bytes`, as its first bytes state it. Payloads can therefore be
/// concatenated. Only the length of the body is checked. [`decode`] requires exactly this many bytes.
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
/// The errors of [`decode`] that concern the header. [`Error::Length`] when `bytes` is shorter than the payload.
pub fn stated_len(bytes: &[u8]) -> Result<usize, Error> {
    let payload = Payload::parse(bytes)?;
    let header = payload.header;
    let body = match header.method {
        Method::Own(_) => own::stated(&payload)?,
        method => (reader(method)?.stated)(&header)?,
    };
    let len = body.saturating_add(HEADER_LEN);
    expect_room("payload bytes", len, bytes.len())?;
    Ok(len)
}
