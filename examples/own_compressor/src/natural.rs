//! Natural compression (Horváth et al., 2019), restricted to a few powers of two.

use lgreco::compress::method::{Method, Parameters};
use lgreco::error::expect_len;
use lgreco::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use lgreco::rng::Stream;
use lgreco::{Error, Result};

/// Sends 3 bits per element: its sign, and a code. The code means 0 or one of three powers of two. The largest of these
/// is the smallest power of two that is not below the largest magnitude.
///
/// Each magnitude is rounded up or down at random, so that its expectation is unchanged: the method is unbiased. The
/// paper uses all powers of f32. Unlike the paper's method, this method rounds values below the smallest of the three
/// powers to that power or 0.
#[derive(Clone, Copy, Debug)]
pub struct Natural;

/// Bits per element: sign and code.
const BITS: usize = 3;

impl Method for Natural {
    fn id(&self) -> u8 {
        0x81
    }

    fn name(&self) -> &'static str {
        "natural"
    }

    fn parameters(&self) -> usize {
        0
    }

    fn is_unbiased(&self, _: &Parameters) -> bool {
        true
    }

    fn body_len(&self, _: &Parameters, shape: Shape, _: Dtype) -> Result<usize> {
        Ok(4 + (BITS * shape.elements()).div_ceil(8))
    }

    fn encode(
        &self,
        _: &Parameters,
        gradient: &Gradient<'_>,
        stream: Stream,
        _: &mut [u64],
        body: &mut [u8],
    ) -> Result<usize> {
        let len = self.body_len(&[0; 4], gradient.shape(), Dtype::F32)?;
        let (scale, codes) = body[..len].split_at_mut(4);
        codes.fill(0);
        with_elements!(gradient.values(), values => {
            let largest = values.iter().map(|x| x.to_f32().abs()).fold(0.0, f32::max);
            // The smallest power of two that is at least `largest`, or f32's maximum, because f32 has no power above
            // 2^127.
            let top = f64::from(largest).log2().ceil().exp2().min(f64::from(f32::MAX)) as f32;
            scale.copy_from_slice(&top.to_le_bytes());
            for (index, x) in values.iter().enumerate() {
                let (x, place) = (x.to_f32(), BITS * index);
                let share = if top > 0.0 { f64::from(x.abs()) / f64::from(top) } else { 0.0 };
                let below = (1..4).rev().find(|&code| level(code) <= share).unwrap_or(0);
                let gap = level((below + 1).min(3)) - level(below);
                let draw = f64::from(stream.word(index as u64)) / (1u64 << 32) as f64;
                let up = below < 3 && draw * gap < share - level(below);
                let code = (below + u32::from(up)) | u32::from(x.is_sign_negative()) << 2;
                let shifted = (code as u16) << (place % 8);
                codes[place / 8] |= shifted as u8;
                codes.get_mut(place / 8 + 1).into_iter().for_each(|next| *next |= (shifted >> 8) as u8);
            }
        });
        Ok(len)
    }

    fn decode(&self, _: &Parameters, shape: Shape, body: &[u8], values: &mut [f32]) -> Result<()> {
        expect_len("payload body bytes", self.body_len(&[0; 4], shape, Dtype::F32)?, body.len())?;
        let (scale, codes) = body.split_at(4);
        let top = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
        Error::require_body(top.is_finite() && top >= 0.0, "its scale is negative or not finite")?;
        for (index, value) in values.iter_mut().enumerate() {
            let place = BITS * index;
            let pair = u16::from(codes[place / 8]) | u16::from(codes.get(place / 8 + 1).copied().unwrap_or(0)) << 8;
            let code = u32::from(pair >> (place % 8));
            let magnitude = level(code & 3) as f32 * top;
            *value = if code >> 2 & 1 == 1 { -magnitude } else { magnitude };
        }
        Ok(())
    }
}

/// The magnitude of a code, relative to the largest power of two.
fn level(code: u32) -> f64 {
    [0.0, 0.25, 0.5, 1.0][code as usize]
}
