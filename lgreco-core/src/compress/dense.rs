//! No compression: the values as they are, behind the payload header.

use super::wire::{HEADER_LEN, Header, Method, Payload};
use super::{Compressor, check_finite};
use crate::Error;
use crate::error::{expect_len, expect_room};
use crate::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, with_elements};
use crate::rng::Stream;

/// Sends every value in the gradient's own type: error 0, the option where compression does not pay.
///
/// # Complexity
/// One pass each way, no workspace.
///
/// ```
/// use lgreco_core::compress::{Compressor, dense::Dense};
/// use lgreco_core::gradient::{Dtype, Shape};
/// assert_eq!(Dense.payload_len(Shape::new(10, 3)?, Dtype::Bf16)?, 16 + 30 * 2);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dense;

impl Compressor for Dense {
    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize, Error> {
        Ok(HEADER_LEN + shape.elements() * dtype.bytes())
    }

    fn encode_workspace_len(&self, _: Shape, _: Dtype) -> usize {
        0
    }

    fn encode(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64], payload: &mut [u8]) -> Result<usize, Error> {
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

fn write_values<T: Element>(values: &[T], body: &mut [u8]) {
    for (bytes, &value) in body.chunks_exact_mut(size_of::<T>()).zip(values) {
        value.write_le(bytes);
    }
}

/// Writes the values of a dense payload into `values`.
///
/// ```
/// use lgreco_core::compress::{Compressor, dense::{self, Dense}, wire::Payload};
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
/// [`Error::Length`] when body or `values` do not fit the shape, [`Error::PayloadHeader`] on an unknown element type,
/// [`Error::PayloadBody`] on a value that is not finite.
///
/// # Complexity
/// O(elements), no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    let elements = payload.header.shape.elements();
    expect_len("decoded values", elements, values.len())?;
    let dtype = Dtype::from_code(payload.header.variant)?;
    let body = payload.body_of_len(elements * dtype.bytes())?;
    match dtype {
        Dtype::F32 => read_values::<f32>(body, values),
        Dtype::F16 => read_values::<F16>(body, values),
        Dtype::Bf16 => read_values::<Bf16>(body, values),
    }
}

fn read_values<T: Element>(body: &[u8], values: &mut [f32]) -> Result<(), Error> {
    for (value, bytes) in values.iter_mut().zip(body.chunks_exact(size_of::<T>())) {
        *value = T::read_le(bytes).to_f32();
    }
    if values.iter().all(|v| v.is_finite()) {
        Ok(())
    } else {
        Err(Error::PayloadBody { what: "a value is not finite" })
    }
}
