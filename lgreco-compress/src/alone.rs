//! Measures a setting by one encoding and decoding: the default for methods without a faster measurement.

use super::describe::Described;
use super::wire::Payload;
use crate::Result;
use crate::error::expect_room;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::rng::Stream;

/// Words of workspace that [`measure`] needs.
pub(super) fn measure_workspace_len<D: Described + ?Sized>(setting: &D, shape: Shape, dtype: Dtype) -> usize {
    let payload = setting.payload_len(shape, dtype).unwrap_or(0);
    setting.encode_workspace_len(shape, dtype) + payload.div_ceil(8) + shape.elements().div_ceil(2)
}

/// Encodes once, and returns the squared error and the length of the payload in bytes.
pub(super) fn measure<D: Described + ?Sized>(
    setting: &D,
    gradient: &Gradient<'_>,
    stream: Stream,
    workspace: &mut [u64],
) -> Result<(f64, usize)> {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    expect_room("workspace words", measure_workspace_len(setting, shape, dtype), workspace.len())?;
    let (words, rest) = workspace.split_at_mut(setting.encode_workspace_len(shape, dtype));
    let (payload, rest) = rest.split_at_mut(setting.payload_len(shape, dtype)?.div_ceil(8));
    let payload: &mut [u8] = bytemuck::cast_slice_mut(payload);
    let values: &mut [f32] = &mut bytemuck::cast_slice_mut(rest)[..shape.elements()];
    let len = setting.encode(gradient, stream, words, payload)?;
    setting.decode(&Payload::parse(&payload[..len])?, values)?;
    Ok((squared_distance(gradient, values), len))
}

fn squared_distance(gradient: &Gradient<'_>, decoded: &[f32]) -> f64 {
    with_elements!(gradient.values(), values => {
        let square = |(x, y): (_, &f32)| {
            let difference = f64::from(Element::to_f32(x)) - f64::from(*y);
            difference * difference
        };
        values.iter().copied().zip(decoded).map(square).sum()
    })
}
