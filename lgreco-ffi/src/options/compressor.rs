//! Whose compressor it is, and what it remembers.

use super::{Known, options_of, put};
use lgreco_train::feedback::Residual;
use lgreco_train::rng::Stream;

pub(crate) struct CompressorOptions {
    /// At step 0.
    pub(crate) stream: Stream,
    error_feedback: bool,
    residual: Residual,
}

impl Default for CompressorOptions {
    fn default() -> CompressorOptions {
        CompressorOptions { stream: Stream::default(), error_feedback: false, residual: Residual::CLASSIC }
    }
}

impl CompressorOptions {
    /// The rule of what is remembered, if anything is.
    pub(crate) fn residual(&self) -> Option<Residual> {
        self.error_feedback.then_some(self.residual)
    }
}

const COMPRESSOR: &[Known<CompressorOptions>] = &[
    Known {
        name: "random_seed",
        expected: "a whole number of at least 0",
        means: "the seed of all random bits, the same on every rank. Default: 0.",
        read: |to, value| put(&mut to.stream.seed, value.number()),
    },
    Known {
        name: "layer_index",
        expected: "the number of a layer, from 0",
        means: "the layer's number in the model, from 0; with the seed it names powersgd's start matrix. Default: 0.",
        read: |to, value| put(&mut to.stream.layer, value.number()),
    },
    Known {
        name: "rank",
        expected: "the number of a worker, from 0",
        means: "the worker's number. Workers must differ here, or their rounding errors do not average out. Default: 0.",
        read: |to, value| put(&mut to.stream.rank, value.number()),
    },
    Known {
        name: "error_feedback",
        expected: "true or false",
        means: "true: what is not sent is remembered, and added to the next gradient. Default: false.",
        read: |to, value| put(&mut to.error_feedback, value.truth()),
    },
    Known {
        name: "residual_dtype",
        expected: "float32, bfloat16 or int8",
        means: "what is remembered is kept in float32, the default, bfloat16 or int8.",
        read: |to, value| put(&mut to.residual.storage, value.storage()),
    },
    Known {
        name: "gain",
        expected: "a number above 0, at most 1",
        means: "how much of an error is remembered, above 0, at most 1. Default: 1.",
        read: |to, value| put(&mut to.residual.gain, value.number()),
    },
    Known {
        name: "reset_every",
        expected: "a number of steps",
        means: "what is remembered becomes zeros after every so many steps, with 0 never. Default: 0.",
        read: |to, value| put(&mut to.residual.reset_every, value.number()),
    },
];

options_of!(CompressorOptions, "a compressor", COMPRESSOR);
