//! AdaComp: sends the elements that stand out in their bin of consecutive elements, all as plus or minus one magnitude.
//!
//! Let `p` be the gradient plus the residual of earlier steps, and `w` the gradient of this step:
//!
//! 1. `G = p`, and `H = p + w`, which counts this step's gradient twice.
//! 2. The threshold of a bin of `bin` elements is its largest `|G|`. The mean of all thresholds is the magnitude `s`.
//! 3. Where `|H|` reaches the threshold of its bin, `s` is sent with the sign of `G`. Zeros are never sent. Nothing is
//!    sent if `s` underflows to 0.
//!
//! The number of sent elements depends on the gradient: a few per bin, about five for white noise. If `s` is larger
//! than the magnitude that it replaces, the new residual has the opposite sign. Without a residual, `p = w`, and every
//! element with at least half of its bin's largest magnitude is sent.
//!
//! # Payload body
//! `parameter` is k, the number of sent elements; `variant` is 0.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | `s`, f32 little-endian, positive; 0 when k = 0 |
//! | from n and k | the positions, as in [`topk`](super::topk) |
//! | ⌈k / 8⌉ | signs, 1 for negative: the i-th position's sign is bit i mod 8 of byte i div 8; unused bits are 0 |
//!
//! # Source
//! Chen et al., "AdaComp: Adaptive residual gradient compression for data-parallel distributed training", AAAI 2018,
//! with bins of 50 for convolutions and 500 for other layers. Deviation: we code positions in the whole tensor by
//! Elias–Fano. The paper codes an element's sign and its offset in the bin together, in 8 or 16 bits. Our coding takes
//! 6.3 bits per sent element instead of 8 when 10 % are sent, and 9.6 bits instead of 16 when 1 % are sent. Our coding
//! also has no limit on the bin size.
//!
//! AdaComp is the only method that reads two gradients: with and without the residual. So each layer of an exchange has
//! a field for the gradient without the residual, which only AdaComp reads.

mod choose;
pub(crate) mod decode;
mod setting;

pub use decode::decode;
pub(super) use decode::{combine, stated};
pub(crate) use setting::{KNOWN, PLANNED, READER};

use super::positions::{Layout, Writer};
use super::wire::{self, HEADER_LEN, Header, Method};
use super::{Compressor, Cost, Traits, check_finite};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;
use crate::{Error, Result};
use choose::Choice;

/// Sends a few elements of each bin, as plus or minus one magnitude.
///
/// # Complexity
/// Encoding reads the gradient five times. It needs no workspace.
///
/// ```
/// use lgreco_compress::{Compressor, adacomp::AdaComp, decode};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let values = [0.25f32, -1.0, 0.0, 3.0, 1.0, 1.25]; // bins of three with the largest 1 and 3
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(6, 1)?)?;
/// let ada = AdaComp { bin: 3 };
/// let mut payload = vec![0; ada.payload_len(gradient.shape(), Dtype::F32)?];
/// let len = ada.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// let mut decoded = [f32::NAN; 6];
/// decode(&payload[..len], &mut decoded)?;
/// assert_eq!(decoded, [0.0, -2.0, 0.0, 2.0, 0.0, 0.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaComp {
    /// Elements per bin, at least 1; the last bin may be shorter.
    pub bin: u32,
}

impl AdaComp {
    pub(super) fn check(&self) -> Result<()> {
        Error::require(self.bin > 0, "bin size", 0.0, "at least 1")
    }

    /// Encodes `compensated` (`p`, gradient plus residual), where `fresh` (`w`) is the gradient of this step. Without a
    /// residual, `compensated` and `fresh` are equal, as in [`encode`](Compressor::encode).
    ///
    /// ```
    /// use lgreco_compress::{Compressor, adacomp::AdaComp, wire::Payload};
    /// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
    /// let shape = Shape::new(3, 1)?;
    /// let compensated = Gradient::new(Values::F32(&[2.0, 1.5, 1.5]), shape)?;
    /// let fresh = Gradient::new(Values::F32(&[0.0, 0.5, -0.5]), shape)?;
    /// let ada = AdaComp { bin: 3 };
    /// let mut payload = vec![0; ada.payload_len(shape, Dtype::F32)?];
    /// let len = ada.encode_compensated(&compensated, &fresh, &mut payload)?;
    /// assert_eq!(Payload::parse(&payload[..len])?.header.parameter, 2); // 2 and 1.5 + 0.5 reach 2; 1.5 − 0.5 does not
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`encode`](Compressor::encode), and [`Error::Length`] when the shapes differ.
    pub fn encode_compensated(
        &self,
        compensated: &Gradient<'_>,
        fresh: &Gradient<'_>,
        payload: &mut [u8],
    ) -> Result<usize> {
        let shape = compensated.shape();
        self.check()?;
        expect_len("rows of the fresh gradient", shape.rows(), fresh.shape().rows())?;
        expect_len("columns of the fresh gradient", shape.cols(), fresh.shape().cols())?;
        check_finite(compensated)?;
        check_finite(fresh)?;
        let choice = Choice::new(self.bin as usize, compensated.values(), fresh.values());
        let len = payload_len(choice.count, shape)?;
        expect_room("payload bytes", len, payload.len())?;
        Header { method: Method::AdaComp, variant: 0, parameter: choice.count, shape }.write(payload)?;
        let layout = Layout::new(shape.elements() as u32, choice.count);
        let (magnitude, body) = payload[HEADER_LEN..len].split_at_mut(4);
        magnitude.copy_from_slice(&choice.magnitude.to_le_bytes());
        let (positions, signs) = body.split_at_mut(layout.bytes() as usize);
        signs.fill(0);
        let mut writer = Writer::new(layout, positions);
        let mut sent = 0;
        choice.for_each(|index, value| {
            writer.extend(&[index as u32]);
            signs[sent / 8] |= (value.is_sign_negative() as u8) << (sent % 8);
            sent += 1;
        });
        writer.finish();
        Ok(len)
    }
}

/// Bytes of a payload with `count` elements.
fn payload_len(count: u32, shape: Shape) -> Result<usize> {
    let body = 4 + Layout::new(shape.elements() as u32, count).bytes() + (count as u64).div_ceil(8);
    wire::payload_len(body, shape)
}

impl Compressor for AdaComp {
    fn traits(&self) -> Traits {
        Traits { sees_gradient: true, ..Traits::whole(Cost::of_elements(2, 4.0, 0.0)) }
    }

    fn encode_with_gradient(
        &self,
        compensated: &Gradient<'_>,
        gradient: &Gradient<'_>,
        _: Stream,
        _: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        self.encode_compensated(compensated, gradient, payload)
    }

    /// An upper bound: one bit for the position and one bit for the sign of every element.
    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        self.check()?;
        wire::payload_len(4 + 2 * (shape.elements() as u64).div_ceil(8), shape)
    }

    fn has_fixed_len(&self) -> bool {
        false
    }

    fn encode(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        self.encode_compensated(gradient, gradient, payload)
    }
}

/// Measures without a residual. Returns the squared error and the payload's length in bytes.
///
/// The result is a poor prediction of the errors in a run with error feedback. AdaComp leaves large residuals by
/// design, and they change the error.
///
/// # Complexity
/// Five passes. Needs no workspace.
fn measure(ada: &AdaComp, gradient: &Gradient<'_>) -> Result<(f64, usize)> {
    check_finite(gradient)?;
    ada.check()?;
    let choice = Choice::new(ada.bin as usize, gradient.values(), gradient.values());
    Ok((choice.squared_error(), payload_len(choice.count, gradient.shape())?))
}
