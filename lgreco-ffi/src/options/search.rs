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
        means: "the compressor: qsgd, topk, powersgd, eden, clt-k, sidco, hard-threshold, adacomp or loco. If several \
                are given, with commas between, each layer gets one of them, and the first one determines the uniform \
                setting. Default: hybrid, which chooses among eden, topk and powersgd.",
        read: |to, value| {
            let methods = value.found.split(',').map(|name| value.made(name.trim().parse::<Method>()));
            to.methods = Some(methods.collect::<Result<_>>()?);
            value.made(Search::of(to.methods.as_deref().unwrap_or_default())).map(drop)
        },
    },
    Known {
        name: "default",
        expected: "a number",
        means: "the first method's parameter in the uniform setting, from which budgets are derived: bits per element \
                for qsgd (default 4) and eden (3); the density, above 0 and at most 1, for topk, clt-k and sidco \
                (0.01); the rank for powersgd (4); the smallest magnitude that is sent for hard-threshold (0.01); \
                elements per bin for adacomp (500); elements per group for loco (512).",
        read: |to, value| put(&mut to.default, value.number().map(Some)),
    },
    Known {
        name: "candidates",
        expected: "three numbers with commas between: the first, the last and the step",
        means: "\"first,last,step\": the parameters among which plans choose; `default` is always one of them. \
                Default: a range around `default`, as in the L-GreCo paper; 1 to 8 bits for eden.",
        read: |to, value| match value.numbers()?[..] {
            [first, last, step] => put(&mut to.candidates, Ok(Some(Range { first, last, step }))),
            _ => Err(value.wrong()),
        },
    },
    Known {
        name: "widths",
        expected: "full or 1 to 8 bits, or several of these with commas between",
        means: "the formats of the values that topk sends: full, or a number of bits from 1 to 8, or several of these \
                with commas between. Default: full.",
        read: |to, value| {
            let widths = value.found.split(',').map(|width| value.made(width.trim().parse::<Width>()));
            put(&mut to.widths, widths.collect::<Result<_>>().map(Some))
        },
    },
    Known {
        name: "metric",
        expected: "squared-l2 or l2",
        means: "the measure of errors: squared-l2, or l2 as in the L-GreCo paper. Default: squared-l2; l2 under the \
                policy paper.",
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
        means: "the number of workers whose payloads are averaged. The squared errors of unbiased methods are divided \
                by it, which affects the choice between methods. Default: 1; in a controller its number of workers, or \
                of nodes (lgreco_controller_create_on_nodes).",
        read: |to, value| put(&mut to.workers, value.number().map(Some)),
    },
    Known {
        name: "reduce_dtype",
        expected: "float32 or bfloat16",
        means: "the type in which uncompressed layers and powersgd's factors are summed: float32, the default, or \
                bfloat16. In a controller on nodes, the ranks of a node also send each other gradients in this type.",
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
