//! Whether gradients are those of the layers, and finite; how far a contribution is from what it stands for.

use super::arena::Kept;
use crate::compress::check_finite;
use lgreco::error::expect_len;
use crate::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};
use crate::{CoreError, Error};

/// Whether gradients are those of the layers.
pub(super) fn check(kept: &[Kept], gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
    expect_len("gradients, one per layer", kept.len(), gradients.len())?;
    for (kept, gradient) in kept.iter().zip(gradients) {
        check_layer(kept.plan.index, kept.plan.shape, kept.plan.dtype, gradient.values())?;
    }
    Ok(())
}

/// Whether values are those of layer `layer`.
pub(super) fn check_layer(layer: usize, shape: Shape, dtype: Dtype, values: Values<'_>) -> Result<(), Error> {
    if values.dtype() != dtype {
        return Err(Error::LayerDtype { layer, found: values.dtype(), expected: dtype });
    }
    if values.len() != shape.elements() {
        let (what, expected, found) = ("the number of values", shape.elements(), values.len());
        return Err(Error::LayerMismatch { layer, what, expected, found });
    }
    Ok(())
}

/// The error of the first value that is NaN or infinite.
pub(super) fn non_finite(layer: usize, values: Values<'_>) -> Option<Error> {
    let column = Shape::new(values.len(), 1).and_then(|shape| Gradient::new(values, shape));
    match column.and_then(|gradient| check_finite(&gradient)) {
        Err(CoreError::NonFinite { index, value }) => Some(Error::NonFiniteGradient { layer, index, value }),
        _ => None,
    }
}

pub(super) fn first_non_finite(kept: &[Kept], gradients: &[ValuesMut<'_>]) -> Option<Error> {
    kept.iter().zip(gradients).find_map(|(kept, gradient)| non_finite(kept.plan.index, gradient.values()))
}
