//! Options of a pipeline cut. Both ends need the same options.

use super::{Known, options_of, put};
use lgreco_pipeline::CutSetting;

pub(crate) struct CutOptions {
    pub(crate) setting: CutSetting,
}

impl Default for CutOptions {
    fn default() -> CutOptions {
        CutOptions { setting: CutSetting::new(0, 0, 0) }
    }
}

const CODEC: &str = "a codec, such as min-max 4 or topk 10 bf16";
const MEMORY: &str = "a memory, such as none, residual or samples 1024";

const CUT: &[Known<CutOptions>] = &[
    Known {
        name: "batch",
        expected: "a number of samples of at least 1",
        means: "the number of samples per message, at least 1. With a memory by position (residual, mixed or ef21) in \
                either direction, every training message has exactly this number; otherwise it is the maximum. \
                Required.",
        read: |to, value| put(&mut to.setting.batch, value.number()),
    },
    Known {
        name: "features",
        expected: "a number of values of at least 1",
        means: "the number of values per sample, at least 1. Required.",
        read: |to, value| put(&mut to.setting.features, value.number()),
    },
    Known {
        name: "forward",
        expected: CODEC,
        means: "the codec of activations: a text as at the top of this header, but not shared-index. Default: min-max \
                4.",
        read: |to, value| put(&mut to.setting.forward.codec, value.made(value.found.parse())),
    },
    Known {
        name: "forward_memory",
        expected: MEMORY,
        means: "the memory of activations: a text as at the top of this header. Default: none.",
        read: |to, value| put(&mut to.setting.forward.memory, value.made(value.found.parse())),
    },
    Known {
        name: "backward",
        expected: CODEC,
        means: "the codec of gradients: a text as at the top of this header. Gradients need milder compression than \
                activations. Default: min-max 8.",
        read: |to, value| put(&mut to.setting.backward.codec, value.made(value.found.parse())),
    },
    Known {
        name: "backward_memory",
        expected: MEMORY,
        means: "the memory of gradients: a text as at the top of this header, but not samples. Default: none.",
        read: |to, value| put(&mut to.setting.backward.memory, value.made(value.found.parse())),
    },
    Known {
        name: "cut",
        expected: "the number of a cut, from 0",
        means: "the number of the cut in the model, from 0. Default: 0.",
        read: |to, value| put(&mut to.setting.cut, value.number()),
    },
    Known {
        name: "in_flight",
        expected: "a number of micro-batches of at least 1",
        means: "the largest number of micro-batches in flight, at least 1. A micro-batch is in flight until its \
                gradients have been sent. Default: 8.",
        read: |to, value| put(&mut to.setting.in_flight, value.number()),
    },
];

options_of!(CutOptions, "a cut", CUT);
