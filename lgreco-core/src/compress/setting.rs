//! Any compressor with its parameters as a plain value, and the decoder of all payloads.

use super::Compressor;
use super::adacomp::{self, AdaComp};
use super::clt::CltK;
use super::dense::{self, Dense};
use super::hard_threshold::HardThreshold;
use super::loco::{self, LoCo};
use super::powersgd::{self, PowerSgd};
use super::qsgd::{self, Qsgd};
use super::sidco::Sidco;
use super::topk::{self, TopK};
use super::wire::{HEADER_LEN, Header, Method, Payload};
use crate::Error;
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use core::fmt;

/// One compressor with its parameters: what a plan gives each layer.
///
/// ```
/// use lgreco_core::compress::{Compressor, Setting, decode, topk::TopK};
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
}

impl Setting {
    fn compressor(&self) -> &dyn Compressor {
        match self {
            Setting::Dense => &Dense,
            Setting::Qsgd(c) => c,
            Setting::TopK(c) => c,
            Setting::PowerSgd(c) => c,
            Setting::CltK(c) => c,
            Setting::HardThreshold(c) => c,
            Setting::AdaComp(c) => c,
            Setting::LoCo(c) => c,
            Setting::Sidco(c) => c,
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

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Dense => write!(f, "dense"),
            Setting::Qsgd(c) => write!(f, "qsgd {}", c.bits),
            Setting::TopK(c) => write!(f, "topk k={}", c.keep),
            Setting::PowerSgd(c) => write!(f, "powersgd {}", c.rank),
            Setting::CltK(c) => write!(f, "clt-k k={}", c.keep),
            Setting::HardThreshold(c) => write!(f, "threshold {}", c.lambda),
            Setting::AdaComp(c) => write!(f, "adacomp {}", c.bin),
            Setting::LoCo(c) => write!(f, "loco {}", c.group),
            Setting::Sidco(c) => write!(f, "sidco {}", c.density),
        }
    }
}

/// Decodes any payload into `values` (row-major) and returns its header. The parser is total: truncated, hostile or
/// wrong-version bytes are an error, and `values` then holds nothing to be used.
///
/// ```
/// use lgreco_core::compress::{Compressor, Setting, decode, wire::Method};
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
    let payload = Payload::parse(payload)?;
    decode_parsed(&payload, values)?;
    Ok(payload.header)
}

/// [`decode`] of what has been parsed already.
pub fn decode_parsed(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    match payload.header.method {
        Method::Dense => dense::decode(payload, values),
        Method::Qsgd => qsgd::decode(payload, values),
        Method::TopK => topk::decode(payload, values),
        Method::PowerSgd => powersgd::decode(payload, values),
        Method::AdaComp => adacomp::decode(payload, values),
        Method::LoCo => loco::decode(payload, values),
    }
}

/// Length of the payload that `bytes` begin with. Its header states it, so payloads may stand one after the other; of
/// what follows the header only the length is looked at, and [`decode`] wants exactly that many bytes.
///
/// ```
/// use lgreco_core::compress::{Compressor, Setting, decode, stated_len};
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
    let Payload { header, .. } = Payload::parse(bytes)?;
    let body = match header.method {
        Method::Dense => dense::stated(&header)?.0,
        Method::Qsgd => qsgd::stated(&header)?,
        Method::TopK => topk::stated(&header)?.0,
        Method::PowerSgd => powersgd::stated(&header)?,
        Method::AdaComp => adacomp::stated(&header)?.0,
        Method::LoCo => loco::stated(&header)?,
    };
    let len = body.saturating_add(HEADER_LEN);
    expect_room("payload bytes", len, bytes.len())?;
    Ok(len)
}
