//! `lgreco compare`: every way of choosing, on the same tables.

use super::{emit, model, timed, write};
use crate::args::{Compare, MethodArg};
use crate::failure::Failure;
use crate::report::{Comparison, HYBRID_NOTE, Scheme, compared};
use clap::ValueEnum;
use lgreco_core::Error;
use lgreco_core::plan::budget::Budget;
use lgreco_core::plan::{self, Plan, Solver, Summary, baseline};
use lgreco_core::search::{Measured, Method, Metric};
use lgreco_core::table::Table;
use serde_json::{Value, json};
use std::io::Write;

pub fn run(compare: &Compare, out: &mut dyn Write) -> Result<(), Failure> {
    let methods = compare.method.map_or_else(|| MethodArg::value_variants().to_vec(), |method| vec![method]);
    let search =
        |&method| model::build_search(method, &compare.candidates, compare.default, compare.range, &compare.widths);
    let searches = methods.iter().map(search).collect::<Result<Vec<_>, Failure>>()?;
    let model = model::Model::open(compare.gradients.as_deref())?;
    write::distinct(model.files(), compare.json.as_ref(), None)?;
    let (outcomes, _) = model.measure(&searches, compare.candidates.backend)?;
    let (mut comparisons, mut infeasible) = (Vec::new(), Vec::new());
    for ((method, search), outcome) in methods.into_iter().zip(searches).zip(outcomes) {
        let model::Outcome { measured, facts, seconds: measure } = outcome;
        let (method, metric) = (Method::from(method), search.metric);
        let failed = |error| {
            let named = measured.table.name_error(error);
            Failure::from_core(&error, format_args!("{}: {}: {named}", model.name, method.name()))
        };
        let budget = Budget::Defaults { alpha: compare.alpha, options: &measured.defaults };
        let limit = budget.limit(&measured.table.view()).map_err(failed)?;
        let uniform = chosen(&measured.table.view(), limit, "uniform", || Ok(measured.defaults.clone()));
        let mut schemes = vec![Scheme { seconds: None, ..uniform.map_err(failed)? }];
        let smallest_error = match choosers(method, metric, &measured, compare, limit) {
            Ok(others) => {
                schemes.extend(others);
                None
            }
            Err(error @ Error::Infeasible { smallest, .. }) => {
                infeasible.push(format!("{}: {error}", method.name()));
                Some(smallest)
            }
            Err(error) => return Err(failed(error)),
        };
        comparisons.push(Comparison {
            method: method.name(),
            metric: metric.name(),
            budget: limit,
            uncompressed: facts.sizes.iter().sum(),
            uniform: schemes[0].size,
            measure,
            schemes,
            smallest_error,
        });
    }
    if infeasible.len() == comparisons.len() {
        return Err(Failure::no_result(format_args!("{}: {}", model.name, infeasible.join("; "))));
    }
    let report = || {
        let hybrid = comparisons.iter().any(|comparison| comparison.method == Method::Hybrid.name());
        compared(&comparisons) + if hybrid { HYBRID_NOTE } else { "" }
    };
    emit(out, report, || json(&comparisons), compare.json.as_ref())
}

/// What everything but the uniform setting makes of the error budget `limit`.
fn choosers(
    method: Method,
    metric: Metric,
    measured: &Measured,
    compare: &Compare,
    limit: f64,
) -> Result<Vec<Scheme>, Error> {
    let (table, defaults) = (&measured.table.view(), &measured.defaults);
    let elements: Vec<u64> = (0..table.layers()).map(|layer| measured.table.elements(layer)).collect();
    let default_errors: Vec<f64> = table.chosen(defaults)?.map(|choice| choice.error).collect();
    let clusters = table.iter().map(<[_]>::len).max().unwrap_or(1).min(MOST_CLUSTERS);

    let mut schemes = Vec::new();
    if method != Method::Hybrid {
        schemes.push(chosen(table, limit, "k-means", || {
            let mut workspace = vec![0; baseline::kmeans_workspace_len(table, clusters)];
            let mut options = vec![0; table.layers()];
            baseline::kmeans(table, limit, &elements, &default_errors, clusters, &mut workspace, &mut options)?;
            Ok(options)
        })?);
    }
    if method == Method::TopK {
        schemes.push(chosen(table, limit, "global top-k", || {
            let (mut workspace, mut options) =
                (vec![0; baseline::global_topk_workspace_len(table)], vec![0; table.layers()]);
            baseline::global_topk(table, limit, metric == Metric::SquaredL2, &mut workspace, &mut options)?;
            Ok(options)
        })?);
    }
    let budget = Budget::Defaults { alpha: compare.alpha, options: defaults };
    for solver in [Solver::Dp { levels: compare.levels }, Solver::default()] {
        let (plan, seconds) = timed(format!("solving ({})", solver.name()), || plan::solve(table, budget, solver));
        let plan = plan?;
        let lower_bound = Some(plan.summary().lower_bound);
        schemes.push(Scheme { lower_bound, ..scheme(&plan, solver.name(), true, seconds) });
    }
    Ok(schemes)
}

/// CGX and the L-GreCo paper cluster layers into no more groups than there are bit widths.
const MOST_CLUSTERS: usize = 8;

/// The plan that `choose` makes, which need not keep the budget `limit`.
fn chosen(
    table: &Table<'_>,
    limit: f64,
    name: &'static str,
    choose: impl FnOnce() -> Result<Vec<u32>, Error>,
) -> Result<Scheme, Error> {
    let (options, seconds) = timed(format!("choosing ({name})"), choose);
    let options = options?;
    let own = Budget::Defaults { alpha: 1.0, options: &options }.limit(table)?;
    let plan = Plan::from_options(table, Budget::Absolute(own), name, options)?;
    Ok(scheme(&plan, name, own <= limit, seconds))
}

fn scheme(plan: &Plan, name: &'static str, within_budget: bool, seconds: f64) -> Scheme {
    let &Summary { size, error, .. } = plan.summary();
    Scheme { name, size, error, within_budget, lower_bound: None, seconds: Some(seconds) }
}

fn json(comparisons: &[Comparison]) -> String {
    let scheme = |s: &Scheme| {
        json!({"scheme": s.name, "size": s.size, "error": s.error, "within_budget": s.within_budget,
            "lower_bound": s.lower_bound, "proven": s.lower_bound.map(|bound| s.size <= bound), "seconds": s.seconds})
    };
    let comparison = |c: &Comparison| {
        let schemes: Vec<Value> = c.schemes.iter().map(scheme).collect();
        json!({"method": c.method, "metric": c.metric, "budget": c.budget, "uncompressed_size": c.uncompressed,
            "default_size": c.uniform, "seconds": {"measure": c.measure}, "schemes": schemes, "feasible": c.smallest_error.is_none(),
            "smallest_error": c.smallest_error})
    };
    let comparisons: Vec<Value> = comparisons.iter().map(comparison).collect();
    format!("{:#}\n", json!({"version": 1, "comparisons": comparisons}))
}
