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
        means: "the compressor: qsgd, topk, powersgd, eden, clt-k, sidco, hard-threshold, adacomp or loco. Of several with commas \
                between each layer gets one, and the first says what is uniform. Default: hybrid, which is eden, topk and \
                powersgd.",
        read: |to, value| {
            let methods = value.found.split(',').map(|name| value.made(name.trim().parse::<Method>()));
            to.methods = Some(methods.collect::<Result<_>>()?);
            value.made(Search::of(to.methods.as_deref().unwrap_or_default())).map(drop)
        },
    },
    Known {
        name: "default",
        expected: "a number",
        means: "the first method's parameter in the uniform setting, from which budgets come: bits per element for qsgd (default \
                4) and eden (3); the density, above 0 and at most 1, for topk, clt-k and sidco (0.01); the rank for powersgd (4); \
                the least magnitude for hard-threshold (0.01); elements per bin for adacomp (500), per group for loco (512).",
        read: |to, value| put(&mut to.default, value.number().map(Some)),
    },
    Known {
        name: "candidates",
        expected: "three numbers with commas between: the first, the last and the step",
        means: "the parameters to choose from: \"first,last,step\". Default: around `default`, as in the L-GreCo paper; eden has 1 \
                to 8 bits.",
        read: |to, value| match value.numbers()?[..] {
            [first, last, step] => put(&mut to.candidates, Ok(Some(Range { first, last, step }))),
            _ => Err(value.wrong()),
        },
    },
    Known {
        name: "widths",
        expected: "full and numbers of bits, with commas between",
        means: "how topk may send the values that it keeps: full, or 1 to 8 bits each, with commas between. Default: full.",
        read: |to, value| {
            let widths = value.found.split(',').map(|width| value.made(width.trim().parse::<Width>()));
            put(&mut to.widths, widths.collect::<Result<_>>().map(Some))
        },
    },
    Known {
        name: "metric",
        expected: "squared-l2 or l2",
        means: "what errors are measured in: squared-l2, the default, or l2, the paper's.",
        read: |to, value| put(&mut to.metric, value.made(value.found.parse()).map(Some)),
    },
    Known {
        name: "min_elements",
        expected: "a number of elements",
        means: "layers with fewer elements stay uncompressed. Default: 1024.",
        read: |to, value| put(&mut to.min_elements, value.number().map(Some)),
    },
    Known {
        name: "workers",
        expected: "a number of workers of at least 1",
        means: "whose mean is taken. Errors of unbiased methods are divided by it, which decides between methods. Default: 1; in a \
                controller its world size.",
        read: |to, value| put(&mut to.workers, value.number().map(Some)),
    },
    Known {
        name: "reduce_dtype",
        expected: "float32 or bfloat16",
        means: "the type of values that are summed on the wire, of uncompressed layers and powersgd's factors: float32, the \
                default, or bfloat16.",
        read: |to, value| put(&mut to.reduce_dtype, value.reduce_dtype().map(Some)),
    },
    Known {
        name: "random_seed",
        expected: "a whole number of at least 0",
        means: "the seed of all random bits, the same on every rank. Default: 0.",
        read: |to, value| put(&mut to.random_seed, value.number()),
    },
];

options_of!(SearchOptions, "a search", SEARCH);
