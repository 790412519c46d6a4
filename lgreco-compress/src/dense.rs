//! No compression: the payload header, then the uncompressed values.

use super::describe::{Described, Known, Reader};
use super::wire::{HEADER_LEN, Header, Method, Payload};
use super::{Aggregation, Compressor, Cost, ResidualKind, Setting, Traits, check_finite};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::{Error, Result};
use core::fmt;
use lgreco_core::method::Parameters;

/// Sends every value in the gradient's element type, without error. Layers that do not benefit from compression have
/// this setting.
///
/// # Complexity
/// O(elements): one pass to encode, one to decode. Needs no workspace.
///
/// ```
/// use lgreco_compress::{Compressor, dense::Dense};
/// use lgreco_core::gradient::{Dtype, Shape};
/// assert_eq!(Dense.payload_len(Shape::new(10, 3)?, Dtype::Bf16)?, 16 + 30 * 2);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dense;

impl Compressor for Dense {
    fn traits(&self) -> Traits {
        Traits {
            aggregation: Aggregation::AllReduce,
            unbiased: true,
            residual: ResidualKind::Lossless,
            ..Traits::payloads(Cost::of_elements(0, 1.0, 0.0))
        }
    }

    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize> {
        let body = shape.elements().checked_mul(dtype.bytes());
        body.and_then(|body| body.checked_add(HEADER_LEN))
            .ok_or(Error::TooManyElements { rows: shape.rows(), cols: shape.cols() })
    }

    fn encode(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
        let len = self.payload_len(shape, dtype)?;
        expect_room("payload bytes", len, payload.len())?;
        check_finite(gradient)?;
        Header { method: Method::Dense, variant: dtype as u8, parameter: 0, shape }.write(payload)?;
        let body = &mut payload[HEADER_LEN..len];
        with_elements!(gradient.values(), values => write_values(values, body));
        Ok(len)
    }
}

impl Described for Dense {
    fn id(&self) -> u8 {
        KNOWN.id
    }

    fn parameters(&self) -> Parameters {
        [0; 4]
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dense")
    }

    fn method(&self) -> Method {
        Method::Dense
    }

    fn measure_workspace_len(&self, _: Shape, _: Dtype) -> usize {
        0
    }

    fn measure(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64]) -> Result<(f64, usize)> {
        check_finite(gradient)?;
        Ok((0.0, self.payload_len(gradient.shape(), gradient.values().dtype())?))
    }
}

pub(crate) const KNOWN: Known = Known {
    id: 0,
    name: "dense",
    read: Some(|words| words.end().map(|()| Setting::Dense)),
    from_parameters: |_| Ok(Setting::Dense),
};

pub(crate) const READER: Reader =
    Reader { method: Method::Dense, decode, stated: |header| Ok(stated(header)?.0), combine: None, stretch: None };

fn write_values<T: Element>(values: &[T], body: &mut [u8]) {
    for (bytes, &value) in body.chunks_exact_mut(size_of::<T>()).zip(values) {
        value.write_le(bytes);
    }
}

/// Writes the values of a dense payload into `values`.
///
/// ```
/// use lgreco_compress::{Compressor, dense::{self, Dense}, wire::Payload};
/// use lgreco_core::gradient::{Bf16, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::Bf16(&[Bf16(0x3fc0), Bf16(0xc000)]), Shape::new(1, 2)?)?;
/// let mut payload = [0; 20];
/// Dense.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// let mut values = [f32::NAN; 2];
/// dense::decode(&Payload::parse(&payload)?, &mut values)?;
/// assert_eq!(values, [1.5, -2.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when the length of the body or of `values` does not fit the shape. [`Error::PayloadHeader`] for a
/// payload of another method, or for a parameter other than 0. [`Error::PayloadField`] on an unknown element type.
/// [`Error::PayloadBody`] on a value that is not finite.
///
/// # Complexity
/// O(elements), no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let (len, dtype) = stated(&payload.header)?;
    expect_len("decoded values", payload.header.shape.elements(), values.len())?;
    let body = payload.body_of_len(len)?;
    match dtype {
        Dtype::F32 => read_values::<f32>(body, values),
        Dtype::F16 => read_values::<F16>(body, values),
        Dtype::Bf16 => read_values::<Bf16>(body, values),
    }
}

/// Bytes of the body that a header implies, and the type of the values in it.
pub(super) fn stated(header: &Header) -> Result<(usize, Dtype)> {
    header.expect_method(Method::Dense)?;
    header.expect_parameter(0)?;
    let dtype = Dtype::from_code(header.variant)?;
    Ok((Dense.payload_len(header.shape, dtype)? - HEADER_LEN, dtype))
}

fn read_values<T: Element>(body: &[u8], values: &mut [f32]) -> Result<()> {
    for (value, bytes) in values.iter_mut().zip(body.chunks_exact(size_of::<T>())) {
        *value = T::read_le(bytes).to_f32();
    }
    Error::require_body(values.iter().all(|v| v.is_finite()), "a value is not finite")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::Values;
    use std::vec;
    use std::vec::Vec;

    fn encode(values: Values<'_>, rows: usize, cols: usize) -> Result<Vec<u8>, Error> {
        let gradient = Gradient::new(values, Shape::new(rows, cols)?)?;
        let mut payload = vec![0xaa; Dense.payload_len(gradient.shape(), values.dtype())?];
        Dense.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
        Ok(payload)
    }

    #[test]
    fn golden_bytes() {
        let header = [b'L', 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
        let body = [0, 0, 0x80, 0x3f, 0, 0, 0, 0x80]; // 1.0 and -0.0
        assert_eq!(encode(Values::F32(&[1.0, -0.0]), 1, 2).unwrap(), [header.as_slice(), &body].concat());
        let halves = encode(Values::Bf16(&[Bf16(0x3f80), Bf16(0xc000)]), 1, 2).unwrap();
        assert_eq!((halves[3], &halves[16..]), (2, [0x80, 0x3f, 0x00, 0xc0].as_slice()));
    }

    #[test]
    fn every_finite_value_comes_back() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let halves: Vec<F16> = all.iter().map(|&b| F16(b)).filter(|h| h.to_f32().is_finite()).collect();
        let payload = encode(Values::F16(&halves), halves.len(), 1).unwrap();
        let mut decoded = vec![f32::NAN; halves.len()];
        decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
        assert!(halves.iter().zip(&decoded).all(|(h, d)| h.to_f32().to_bits() == d.to_bits()));
    }

    #[test]
    fn strangers_and_non_finite_values_are_refused() {
        let refused = encode(Values::F32(&[0.0, f32::INFINITY, f32::NAN]), 3, 1);
        assert_eq!(refused, Err(Error::NonFinite { index: 1, value: f32::INFINITY }));
        let payload = encode(Values::F32(&[1.0, 2.0]), 2, 1).unwrap();
        let decode = |bytes: &[u8], room: usize| decode(&Payload::parse(bytes)?, &mut vec![0.0; room]);
        assert_eq!(decode(&payload, 2), Ok(()));
        assert!(matches!(decode(&payload, 3), Err(Error::Length { .. })));
        assert!(matches!(decode(&payload[..23], 2), Err(Error::Length { .. })));
        let with = |at: usize, byte: u8| {
            let mut bytes = payload.clone();
            bytes[at] = byte;
            decode(&bytes, 2)
        };
        assert!(matches!(with(3, 7), Err(Error::PayloadField { .. })));
        for (at, byte) in [(2, 2), (4, 77), (7, 1)] {
            assert!(matches!(with(at, byte), Err(Error::PayloadHeader { .. })), "byte {at}");
        }
        let mut infinite = payload.clone();
        infinite[16..20].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert!(matches!(decode(&infinite, 2), Err(Error::PayloadBody { .. })));
    }
}
