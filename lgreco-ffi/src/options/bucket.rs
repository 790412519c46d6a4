//! Options of a bucket on a device. All ranks need the same options, except `rank`.

use super::{Known, options_of, put};
use lgreco_train::gradient::Dtype;
use lgreco_train::rng::Stream;

pub(crate) struct BucketOptions {
    /// Random stream of the first step.
    pub(crate) stream: Stream,
    pub(crate) world_size: u32,
    /// Index of each layer in the model. `None` means 0, 1, 2 and so on.
    pub(crate) indices: Option<Vec<u32>>,
    pub(crate) gain: f32,
    pub(crate) nan_on_fault: bool,
    pub(crate) reduce_dtype: Dtype,
}

impl Default for BucketOptions {
    fn default() -> BucketOptions {
        let (stream, reduce_dtype) = (Stream::default(), Dtype::F32);
        BucketOptions { stream, world_size: 1, indices: None, gain: 1.0, nan_on_fault: false, reduce_dtype }
    }
}

const BUCKET: &[Known<BucketOptions>] = &[
    Known {
        name: "world_size",
        expected: "a number of workers of at least 1",
        means: "the number of workers, at least 1. Default: 1.",
        read: |to, value| put(&mut to.world_size, value.number()),
    },
    Known {
        name: "rank",
        expected: "the number of a worker, from 0",
        means: "the number of this worker, below `world_size`. Default: 0.",
        read: |to, value| put(&mut to.stream.rank, value.number()),
    },
    Known {
        name: "step",
        expected: "the number of a step, from 0",
        means: "the number of the first step, 0 to 2^32 - 1. Default: 0.",
        read: |to, value| put(&mut to.stream.step, value.number()),
    },
    Known {
        name: "indices",
        expected: "one index per layer, with commas between",
        means: "the index of each layer in the model, with commas between. It selects the layer's random numbers. Any \
                other number of indices than layers gives LGRECO_LENGTH. Default: 0,1,2 and so on.",
        read: |to, value| put(&mut to.indices, value.numbers().map(Some)),
    },
    Known {
        name: "gain",
        expected: "a number above 0, at most 1",
        means: "the factor a, above 0 and at most 1, in the update of a residual r: r becomes r + a (gradient - \
                decoded payload). Default: 1, which is classic error feedback.",
        read: |to, value| put(&mut to.gain, value.number()),
    },
    Known {
        name: "on_fault",
        expected: "zeros or nan",
        means: "the value of all means of the bucket after a step in which some rank has failed: zeros, or nan, which \
                a loss scaler detects. Default: zeros.",
        read: |to, value| put(&mut to.nan_on_fault, value.word(&[("zeros", false), ("nan", true)])),
    },
    Known {
        name: "reduce_dtype",
        expected: "float32 or bfloat16",
        means: "the type in which ranks sum uncompressed layers and the factors of powersgd: float32, or bfloat16, \
                which halves their bytes. The residual keeps the rounding errors of this rank's uncompressed values \
                and of its factor Q. Default: float32.",
        read: |to, value| put(&mut to.reduce_dtype, value.reduce_dtype()),
    },
    Known {
        name: "random_seed",
        expected: "a whole number of at least 0",
        means: "the seed of all random numbers, 0 to 2^64 - 1, the same on every rank. Default: 0.",
        read: |to, value| put(&mut to.stream.seed, value.number()),
    },
];

options_of!(BucketOptions, "a bucket on a device", BUCKET);
