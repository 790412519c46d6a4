//! Options of error feedback, for compressors and controllers.

use super::{Known, put};
use lgreco_train::feedback::Residual;

pub(super) const RESIDUAL: &[Known<Residual>] = &[
    Known {
        name: "residual_dtype",
        expected: "float32, bfloat16 or int8",
        means: "the type in which residuals are stored: float32, bfloat16 or int8. Default: float32.",
        read: |to, value| put(&mut to.storage, value.storage()),
    },
    Known {
        name: "gain",
        expected: "a number above 0, at most 1",
        means: "the factor a, above 0 and at most 1, in the update of a residual r: r becomes r + a (gradient - \
                decoded payload). Default: 1, which is classic error feedback.",
        read: |to, value| put(&mut to.gain, value.number()),
    },
    Known {
        name: "reset_every",
        expected: "a number of steps",
        means: "the number of steps between resets of the residuals to zeros; 0 means never. Default: 0.",
        read: |to, value| put(&mut to.reset_every, value.number()),
    },
];
