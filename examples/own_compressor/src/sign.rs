//! Sign-SGD with one magnitude for all elements (Bernstein et al., 2018), scaled as in EF-signSGD (Karimireddy et al.,
//! 2019).

use lgreco::compress::method::{Method, Parameters};
use lgreco::error::expect_len;
use lgreco::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use lgreco::rng::Stream;
use lgreco::{Error, Result};

/// Sends the sign of each element, 1 bit, and the mean magnitude as f32.
///
/// The method is biased. The method suits error feedback, because it is a contraction: its error is smaller than the
/// gradient.
#[derive(Clone, Copy, Debug)]
pub struct Sign;

impl Method for Sign {
    fn id(&self) -> u8 {
        0x80
    }

    fn name(&self) -> &'static str {
        "sign"
    }

    fn parameters(&self) -> usize {
        0
    }

    fn body_len(&self, _: &Parameters, shape: Shape, _: Dtype) -> Result<usize> {
        Ok(4 + shape.elements().div_ceil(8))
    }

    fn encode(
        &self,
        _: &Parameters,
        gradient: &Gradient<'_>,
        _: Stream,
        _: &mut [u64],
        body: &mut [u8],
    ) -> Result<usize> {
        let elements = gradient.shape().elements();
        let (scale, bits) = body[..4 + elements.div_ceil(8)].split_at_mut(4);
        with_elements!(gradient.values(), values => {
            let sum: f64 = values.iter().map(|x| f64::from(x.to_f32().abs())).sum();
            scale.copy_from_slice(&((sum / elements as f64) as f32).to_le_bytes());
            for (byte, values) in bits.iter_mut().zip(values.chunks(8)) {
                let bit = |(place, x): (usize, _)| u8::from(Element::to_f32(x).is_sign_negative()) << place;
                *byte = values.iter().copied().enumerate().map(bit).sum();
            }
        });
        Ok(body.len())
    }

    fn decode(&self, _: &Parameters, shape: Shape, body: &[u8], values: &mut [f32]) -> Result<()> {
        expect_len("payload body bytes", 4 + shape.elements().div_ceil(8), body.len())?;
        let scale = f32::from_le_bytes([body[0], body[1], body[2], body[3]]);
        Error::require_body(scale.is_finite() && scale >= 0.0, "its scale is negative or not finite")?;
        for (values, byte) in values.chunks_mut(8).zip(&body[4..]) {
            for (place, value) in values.iter_mut().enumerate() {
                *value = if byte >> place & 1 == 1 { -scale } else { scale };
            }
        }
        Ok(())
    }
}
