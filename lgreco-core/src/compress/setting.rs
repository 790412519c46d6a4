//! Any compressor with its parameters, and any row of candidates, as plain values.

use super::Compressor;
use super::clt::CltK;
use super::dense::{self, Dense};
use super::powersgd::{self, PowerSgd};
use super::qsgd::{self, Qsgd};
use super::topk::{self, TopK};
use super::wire::{HEADER_LEN, Header, Method, Payload};
use crate::Error;
use crate::error::{expect_len, expect_room};
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
}

impl Setting {
    fn compressor(&self) -> &dyn Compressor {
        match self {
            Setting::Dense => &Dense,
            Setting::Qsgd(c) => c,
            Setting::TopK(c) => c,
            Setting::PowerSgd(c) => c,
            Setting::CltK(c) => c,
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
/// that no encoder writes; [`Error::PayloadBody`] on a body that none writes; [`Error::Overflow`] when PowerSGD's factors multiply to what is
/// not finite; [`Error::Length`] when the body or `values` has not the length the header implies.
///
/// # Complexity
/// O(elements), for PowerSGD O(elements · rank); no workspace.
pub fn decode(payload: &[u8], values: &mut [f32]) -> Result<Header, Error> {
    let payload = Payload::parse(payload)?;
    decode_parsed(&payload, values)?;
    Ok(payload.header)
}

pub(crate) fn decode_parsed(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    match payload.header.method {
        Method::Dense => dense::decode(payload, values),
        Method::Qsgd => qsgd::decode(payload, values),
        Method::TopK => topk::decode(payload, values),
        Method::PowerSgd => powersgd::decode(payload, values),
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
    };
    let len = body.saturating_add(HEADER_LEN);
    expect_room("payload bytes", len, bytes.len())?;
    Ok(len)
}

/// Candidates of one method that share everything but one parameter: one row of the error table, measured together.
///
/// ```
/// use lgreco_core::compress::Candidates;
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[3.0, 0.0, -1.0, 2.0]), Shape::new(2, 2)?)?;
/// let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[1, 2, 3] };
/// let mut workspace = vec![0; candidates.measure_workspace_len(gradient.shape(), Dtype::F32)];
/// let mut row = [0.0; 3];
/// candidates.measure(&gradient, Stream::default(), &mut workspace, &mut row)?;
/// assert_eq!(row, [5.0, 1.0, 0.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Candidates<'a> {
    /// `base` with each of `bits`.
    Qsgd {
        /// Bucket size, scale and rounding; its own bit width is not used.
        base: Qsgd,
        /// Bit widths, 1 to 8.
        bits: &'a [u8],
    },
    /// TopK keeping each of `keeps` elements.
    TopK {
        /// Type of the kept values in the payload.
        values: Dtype,
        /// Numbers of kept elements, 1 to the number of elements.
        keeps: &'a [u32],
    },
    /// PowerSGD at each of `ranks`.
    PowerSgd {
        /// Power iterations, at least 1.
        iterations: u32,
        /// Ranks, at least 1.
        ranks: &'a [u32],
    },
    /// CLT-k keeping each of `keeps` elements, as a leader selects them. On the mean gradient this is the least error
    /// that the mean may have, since no rank's own largest elements are those of the mean.
    CltK {
        /// Numbers of kept elements, 1 to the number of elements.
        keeps: &'a [u32],
    },
}

impl Candidates<'_> {
    /// Number of candidates.
    ///
    /// ```
    /// # use lgreco_core::compress::Candidates;
    /// assert_eq!(Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8] }.len(), 4);
    /// ```
    pub const fn len(&self) -> usize {
        match self {
            Candidates::Qsgd { bits, .. } => bits.len(),
            Candidates::TopK { keeps, .. } | Candidates::CltK { keeps } => keeps.len(),
            Candidates::PowerSgd { ranks, .. } => ranks.len(),
        }
    }

    /// Whether there are none.
    ///
    /// ```
    /// # use lgreco_core::compress::Candidates;
    /// assert!(Candidates::PowerSgd { iterations: 5, ranks: &[] }.is_empty());
    /// ```
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Candidate `index` as a setting, or `None` past the end.
    ///
    /// ```
    /// use lgreco_core::compress::{Candidates, qsgd::Qsgd};
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 8] };
    /// assert_eq!(candidates.setting(1).map(|setting| setting.to_string()), Some("qsgd 8".into()));
    /// assert_eq!(candidates.setting(2), None);
    /// ```
    pub fn setting(&self, index: usize) -> Option<Setting> {
        match *self {
            Candidates::Qsgd { base, bits } => bits.get(index).map(|&bits| Setting::Qsgd(Qsgd { bits, ..base })),
            Candidates::TopK { values, keeps } => keeps.get(index).map(|&keep| Setting::TopK(TopK { keep, values })),
            Candidates::PowerSgd { iterations, ranks } => {
                ranks.get(index).map(|&rank| Setting::PowerSgd(PowerSgd { rank, iterations }))
            }
            Candidates::CltK { keeps } => keeps.get(index).map(|&keep| Setting::CltK(CltK { keep })),
        }
    }

    /// Words of workspace that [`measure`](Candidates::measure) needs.
    ///
    /// ```
    /// # use lgreco_core::compress::{Candidates, powersgd};
    /// # use lgreco_core::gradient::{Dtype, Shape};
    /// let shape = Shape::new(256, 64)?;
    /// let candidates = Candidates::PowerSgd { iterations: 5, ranks: &[2, 8, 4] };
    /// let words = candidates.measure_workspace_len(shape, Dtype::F32);
    /// assert_eq!(words, powersgd::measure_workspace_len(shape, Dtype::F32, 8)); // that of the largest rank
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    pub fn measure_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        match *self {
            Candidates::Qsgd { .. } => 0,
            Candidates::TopK { keeps, .. } | Candidates::CltK { keeps } => {
                topk::measure_workspace_len(shape, keeps.len())
            }
            Candidates::PowerSgd { ranks, .. } => {
                powersgd::measure_workspace_len(shape, dtype, ranks.iter().copied().max().unwrap_or(0))
            }
        }
    }

    /// Measures every candidate: `squared_errors[i]` is ‖gradient − decode(encode(gradient))‖² under candidate `i`; for
    /// stochastic rounding its expectation over the random bits. TopK and PowerSGD are within 1e-5 of it; the bound of
    /// QSGD, which is wider for tensors of a few values and for stochastic rounding, stands at
    /// [`qsgd::measure`](crate::compress::qsgd::measure).
    ///
    /// ```
    /// # use lgreco_core::{Error, compress::{Candidates, qsgd::Qsgd}, rng::Stream};
    /// # use lgreco_core::gradient::{Gradient, Shape, Values};
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    /// let gradient = Gradient::new(Values::F32(&[1.0, f32::INFINITY, 3.0]), Shape::new(3, 1)?)?;
    /// let found = candidates.measure(&gradient, Stream::default(), &mut [], &mut [0.0; 2]);
    /// assert_eq!(found, Err(Error::NonFinite { index: 1, value: f32::INFINITY }));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NonFinite`] with the first offender; [`Error::Parameter`] when a candidate does not fit the method or
    /// the shape; [`Error::Length`] when `workspace` is too short or `squared_errors` has not one place per candidate;
    /// [`Error::ElementOverflow`] (TopK) and [`Error::Overflow`] (PowerSGD) when a number is too large for the type it
    /// is sent in.
    ///
    /// # Complexity
    /// For QSGD O(elements · candidates) in one pass; for TopK about one pass whatever the number of candidates; for
    /// PowerSGD one encode and decode at the largest rank. See each method's `measure`.
    pub fn measure(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        squared_errors: &mut [f64],
    ) -> Result<(), Error> {
        expect_len("squared errors, one per candidate", self.len(), squared_errors.len())?;
        match *self {
            Candidates::Qsgd { base, bits } => qsgd::measure(gradient, base, bits, squared_errors),
            Candidates::TopK { values, keeps } => topk::measure(gradient, values, keeps, workspace, squared_errors),
            Candidates::PowerSgd { iterations, ranks } => {
                powersgd::measure(gradient, ranks, iterations, stream, workspace, squared_errors)
            }
            Candidates::CltK { keeps } => topk::measure(gradient, Dtype::F32, keeps, workspace, squared_errors),
        }
    }
}
