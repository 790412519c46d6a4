//! Options of a search: the candidates for the layers of a model.

use super::{Known, options_of, put};
use crate::failure::Result;
use core::num::NonZero;
use lgreco_train::gradient::Dtype;
use lgreco_train::search::{Method, Metric, Range, Search, Width};

#[derive(Default)]
pub(crate) struct SearchOptions {
    methods: Option<Vec<Method>>,
    default: Option<f64>,
    candidates: Option<Range>,
    widths: Option<Vec<Width>>,
    pub(super) metric: Option<Metric>,
    min_elements: Option<usize>,
    random_seed: u64,
    workers: Option<NonZero<u32>>,
    reduce_dtype: Option<Dtype>,
}

impl SearchOptions {
    pub(crate) fn search(&self) -> Result<Search> {
        let mut search = Search::of(self.methods.as_deref().unwrap_or(&[Method::Hybrid]))?;
        if let Some(default) = self.default {
            search = search.with_default(default)?;
        }
        if let Some(range) = self.candidates {
            search = search.with_range(range)?;
        }
        if let Some(widths) = &self.widths {
            search = search.with_widths(widths)?;
        }
        search.metric = self.metric.unwrap_or(search.metric);
        search.min_elements = self.min_elements.unwrap_or(search.min_elements);
        search.seed = self.random_seed;
        search.workers = self.workers;
        search.reduce_dtype = self.reduce_dtype.unwrap_or(search.reduce_dtype);
        Ok(search)
    }
}

pub(super) const SEARCH: &[Known<SearchOptions>] = &[
    Known {
        name: "method",
        expected: "a method, or several with commas between",
        means: "the compressors from which a plan chooses one for each layer, with commas between: qsgd, topk, \
                powersgd, eden, clt-k, sidco, hard-threshold, adacomp, loco. The first one with the parameter \
                `default` is the uniform setting, from which budgets are derived. Default: hybrid, which means eden, \
                topk and powersgd and stands alone. Unknown and repeated names give LGRECO_UNKNOWN_NAME.",
        read: |to, value| {
            let methods = value.found.split(',').map(|name| value.made(name.trim().parse::<Method>()));
            to.methods = Some(methods.collect::<Result<_>>()?);
            value.made(Search::of(to.methods.as_deref().unwrap_or_default())).map(drop)
        },
    },
    Known {
        name: "default",
        expected: "a number",
        means: "the first method's parameter in the uniform setting. qsgd and eden: bits per element, 1 to 8 (default \
                4, for eden 3). topk, clt-k and sidco: the density, which is the fraction of elements sent, 2^-32 to 1 \
                (0.01). powersgd: the rank, 1 to 65536 (4). hard-threshold: the smallest magnitude sent, above 0 \
                (0.01). adacomp and loco: elements per bin or group, 1 to 2^24 (500 and 512).",
        read: |to, value| put(&mut to.default, value.number().map(Some)),
    },
    Known {
        name: "candidates",
        expected: "three numbers with commas between: the first, the last and the step",
        means: "\"first,last,step\": the first method's parameters from which plans choose, at most 10000, each in the \
                range of `default`. `default` is always added. Without this option, and for all further methods, they \
                are derived from the method's default D: D/2 to 2 D in steps of 1 for qsgd and powersgd, D/10 to 10 D \
                in steps of D/10 for topk and clt-k, 1 to 8 for eden, D/2 to 2 D in steps of D/4 for the rest.",
        read: |to, value| match value.numbers()?[..] {
            [first, last, step] => put(&mut to.candidates, Ok(Some(Range { first, last, step }))),
            _ => Err(value.wrong()),
        },
    },
    Known {
        name: "widths",
        expected: "full or 1 to 8 bits, or several of these with commas between",
        means: "the formats of the values that topk sends, with commas between: full, which is the gradient's type, or \
                1 to 8, the bits per value. Other values, and methods without topk, give LGRECO_UNKNOWN_NAME. Default: \
                full.",
        read: |to, value| {
            let widths = value.found.split(',').map(|width| value.made(width.trim().parse::<Width>()));
            put(&mut to.widths, widths.collect::<Result<_>>().map(Some))
        },
    },
    Known {
        name: "metric",
        expected: "squared-l2 or l2",
        means: "the error of an option: squared-l2, the squared L2 norm of the compression error, or l2, the norm, as \
                in the L-GreCo paper. Other names give LGRECO_UNKNOWN_NAME. Default: squared-l2, or l2 under a \
                controller's policy paper.",
        read: |to, value| put(&mut to.metric, value.made(value.found.parse()).map(Some)),
    },
    Known {
        name: "min_elements",
        expected: "a number of elements",
        means: "layers with fewer elements stay uncompressed, like all layers with one dimension or fewer. Default: \
                1024.",
        read: |to, value| put(&mut to.min_elements, value.number().map(Some)),
    },
    Known {
        name: "workers",
        expected: "a number of workers of at least 1",
        means: "the number of workers whose payloads are averaged, at least 1. The squared errors of unbiased methods \
                (qsgd, eden) are divided by it, which affects the choice between methods. Default: 1; in a controller, \
                its number of workers, or of nodes (lgreco_controller_create_on_nodes).",
        read: |to, value| put(&mut to.workers, value.number().map(Some)),
    },
    Known {
        name: "reduce_dtype",
        expected: "float32 or bfloat16",
        means: "the type in which ranks sum uncompressed layers, the factors of powersgd and the values of clt-k: \
                float32, or bfloat16, which halves their bytes. In a controller on nodes, the ranks of a node also \
                send each other gradients in this type. Default: float32.",
        read: |to, value| put(&mut to.reduce_dtype, value.reduce_dtype().map(Some)),
    },
    Known {
        name: "random_seed",
        expected: "a whole number of at least 0",
        means: "the seed of all random numbers, 0 to 2^64 - 1, the same on every rank. Default: 0.",
        read: |to, value| put(&mut to.random_seed, value.number()),
    },
];

options_of!(SearchOptions, "a search", SEARCH);
