//! Options of a compressor: layer, worker, and error feedback.

use super::residual::RESIDUAL;
use super::{Documented, Known, Options, documented_of, put, set};
use crate::failure::Result;
use lgreco_train::feedback::Residual;
use lgreco_train::rng::Stream;

pub(crate) struct CompressorOptions {
    /// Random stream at step 0.
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
    /// The residual's format and gain. `None` without error feedback.
    pub(crate) fn residual(&self) -> Option<Residual> {
        self.error_feedback.then_some(self.residual)
    }
}

const COMPRESSOR: &[Known<CompressorOptions>] = &[
    Known {
        name: "random_seed",
        expected: "a whole number of at least 0",
        means: "the seed of all random numbers, 0 to 2^64 - 1, the same on every rank. Default: 0.",
        read: |to, value| put(&mut to.stream.seed, value.number()),
    },
    Known {
        name: "layer_index",
        expected: "the index of a layer, from 0",
        means: "the index of the layer in the model, from 0. It selects the layer's random numbers, such as powersgd's \
                start matrix. Default: 0.",
        read: |to, value| put(&mut to.stream.layer, value.number()),
    },
    Known {
        name: "rank",
        expected: "the number of a worker, from 0",
        means: "the number of this worker, from 0. Give every worker a different number; otherwise their rounding \
                errors do not average out. Default: 0.",
        read: |to, value| put(&mut to.stream.rank, value.number()),
    },
    Known {
        name: "error_feedback",
        expected: "true or false",
        means: "true: the compressor keeps its compression error as a residual, and adds it to the next gradient. \
                false: it keeps no residual. Default: false.",
        read: |to, value| put(&mut to.error_feedback, value.truth()),
    },
];

impl Options for CompressorOptions {
    const OF: &'static str = "a compressor";

    fn set(&mut self, name: &str, found: &str) -> Option<Result<&'static str>> {
        set(COMPRESSOR, self, name, found).or_else(|| set(RESIDUAL, &mut self.residual, name, found))
    }

    fn documented() -> Vec<Documented> {
        documented_of(COMPRESSOR).chain(documented_of(RESIDUAL)).collect()
    }
}
