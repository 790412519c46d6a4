//! Options of error feedback, for compressors and controllers.

use super::{Known, put};
use lgreco_train::feedback::Residual;

pub(super) const RESIDUAL: &[Known<Residual>] = &[
    Known {
        name: "residual_dtype",
        expected: "float32, bfloat16 or int8",
        means: "the type of residuals: float32, the default, bfloat16 or int8.",
        read: |to, value| put(&mut to.storage, value.storage()),
    },
    Known {
        name: "gain",
        expected: "a number above 0, at most 1",
        means: "the part of a new compression error that residuals take up, above 0, at most 1. Default: 1.",
        read: |to, value| put(&mut to.gain, value.number()),
    },
    Known {
        name: "reset_every",
        expected: "a number of steps",
        means: "residuals become zeros after every so many steps; with 0 never. Default: 0.",
        read: |to, value| put(&mut to.reset_every, value.number()),
    },
];
