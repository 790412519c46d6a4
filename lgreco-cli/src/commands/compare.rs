//! `lgreco compare`: runs all solvers and baselines on the same tables.

use super::{emit, model, solve, timed, write};
use crate::args::{BudgetArg, Compare, Limits, SizeArg, Target};
use crate::comparison::{Comparison, Scheme, compared};
use crate::failure::Failure;
use crate::report::{HYBRID_NOTE, Point};
use lgreco::Error;
use lgreco::plan::budget::Budget;
use lgreco::plan::{self, Limit, Plan, Proof, Solver, Summary, baseline};
use lgreco::search::{Measured, Method, Metric};
use lgreco::table::Table;
use serde_json::{Value, json};
use std::io::Write;

pub fn run(compare: &Compare, out: &mut dyn Write) -> Result<(), Failure> {
    solve::expect_multiple(compare.limits)?;
    let all: Vec<Vec<Method>> = match (compare.method, &*compare.methods) {
        (Some(method), _) => vec![vec![method]],
        (None, []) => Method::COMPARED.iter().map(|&method| vec![method]).collect(),
        (None, methods) => vec![methods.to_vec()],
    };
    let search = |methods: &Vec<Method>| {
        model::build_search(methods, &compare.candidates, compare.default, compare.range, &compare.widths)
    };
    let searches = all.iter().map(search).collect::<Result<Vec<_>, Failure>>()?;
    let model = model::Model::open(compare.gradients.as_deref())?;
    write::distinct(model.files(), Target::file(compare.json.as_ref()))?;
    let (outcomes, _) = model.measure(&searches, compare.candidates.backend)?;
    let (mut comparisons, mut infeasible) = (Vec::new(), Vec::new());
    for ((methods, search), outcome) in all.iter().zip(searches).zip(outcomes) {
        let model::Outcome { measured, facts, seconds: measure } = outcome;
        let (metric, names) = (search.metric, model::names(methods));
        let failed = |error| {
            let named = measured.table.name_error(error);
            Failure::from_core(&error, format_args!("{}: {names}: {named}", model.name))
        };
        let table = measured.table.view();
        for budget in budgets(compare.limits, &measured.defaults) {
            let limit = budget.limit(&table).map_err(failed)?;
            let uniform = chosen(&table, limit, "uniform", || Ok(measured.defaults.clone())).map_err(failed)?;
            let mut schemes = vec![Scheme { seconds: None, ..uniform }];
            let smallest = match choosers(methods, metric, &measured, compare.levels, limit) {
                Ok(others) => {
                    schemes.extend(others);
                    None
                }
                Err(error @ (Error::Infeasible { .. } | Error::SizeInfeasible { .. })) => {
                    infeasible.push(format!("{names}: {error}"));
                    match error {
                        Error::SizeInfeasible { smallest, .. } => Some(Limit::Size(smallest)),
                        Error::Infeasible { smallest, .. } => Some(Limit::Error(smallest)),
                        _ => None,
                    }
                }
                Err(error) => return Err(failed(error)),
            };
            comparisons.push(Comparison {
                method: names.clone(),
                metric: metric.name(),
                limit,
                uncompressed: facts.sizes.iter().sum(),
                uniform: Point { error: uniform.error, size: uniform.size },
                measure,
                schemes,
                smallest,
            });
        }
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

/// Returns the budget that the user gave. Without a budget, returns two: the error and the size of the uniform setting.
fn budgets(limits: Limits, options: &[u32]) -> Vec<Budget<'_>> {
    let alpha = limits.alpha.unwrap_or(1.0);
    let (error, size) = (Budget::Defaults { alpha, options }, Budget::DefaultSize { alpha, options });
    match (limits.budget, limits.size) {
        (Some(BudgetArg::Absolute(value)), _) => vec![Budget::Absolute(value)],
        (Some(BudgetArg::Uniform), _) => vec![error],
        (None, Some(SizeArg::Bits(bits))) => vec![Budget::Size(bits)],
        (None, Some(SizeArg::Uniform)) => vec![size],
        (None, None) => vec![error, size],
    }
}

/// Makes the plans of all solvers and baselines within a limit, without the uniform setting.
fn choosers(
    methods: &[Method],
    metric: Metric,
    measured: &Measured,
    levels: u32,
    limit: Limit,
) -> Result<Vec<Scheme>, Error> {
    let (table, defaults) = (&measured.table.view(), &measured.defaults);
    let elements: Vec<u64> = (0..table.layers()).map(|layer| measured.table.elements(layer)).collect();
    let default_errors: Vec<f64> = table.chosen(defaults)?.map(|choice| choice.error).collect();
    let clusters = table.iter().map(<[_]>::len).max().unwrap_or(1).min(MOST_CLUSTERS);

    let mut schemes = Vec::new();
    // k-means gives all layers of a cluster the option of the same index. So an index must mean the same setting in all
    // layers.
    if methods.len() == 1 && methods != [Method::Hybrid] {
        schemes.push(chosen(table, limit, "k-means", || {
            let mut workspace = vec![0; baseline::kmeans_workspace_len(table, clusters)];
            let mut options = vec![0; table.layers()];
            baseline::kmeans(table, limit, &elements, &default_errors, clusters, &mut workspace, &mut options)?;
            Ok(options)
        })?);
    }
    if methods == [Method::TopK] {
        schemes.push(chosen(table, limit, "global top-k", || {
            let (mut workspace, mut options) =
                (vec![0; baseline::global_topk_workspace_len(table)], vec![0; table.layers()]);
            baseline::global_topk(table, limit, metric == Metric::SquaredL2, &mut workspace, &mut options)?;
            Ok(options)
        })?);
    }
    for solver in [Solver::Dp { levels }, Solver::default()] {
        let (plan, seconds) = timed(format!("solving ({})", solver.name()), || {
            plan::solve_against(table, limit.into(), Some(defaults), solver)
        });
        let plan = plan?;
        let proof = Some(plan.summary().proof);
        schemes.push(Scheme { proof, ..scheme(&plan, solver.name(), true, seconds) });
    }
    Ok(schemes)
}

/// Largest number of k-means clusters. CGX and the L-GreCo paper have at most one cluster per bit width.
const MOST_CLUSTERS: usize = 8;

/// The plan of the options that `choose` returns. It may exceed `limit`.
fn chosen(
    table: &Table<'_>,
    limit: Limit,
    name: &'static str,
    choose: impl FnOnce() -> Result<Vec<u32>, Error>,
) -> Result<Scheme, Error> {
    let (options, seconds) = timed(format!("choosing ({name})"), choose);
    let options = options?;
    let own = Budget::Defaults { alpha: 1.0, options: &options }.limit(table)?;
    let plan = Plan::from_options(table, own.into(), name, options)?;
    let within_budget = match (own, limit) {
        (Limit::Error(own), Limit::Error(budget)) => own <= budget,
        (_, Limit::Size(limit)) => plan.summary().size <= limit,
        (Limit::Size(_), Limit::Error(_)) => false,
    };
    Ok(scheme(&plan, name, within_budget, seconds))
}

fn scheme(plan: &Plan, name: &'static str, within_budget: bool, seconds: f64) -> Scheme {
    let &Summary { size, error, .. } = plan.summary();
    Scheme { name, size, error, within_budget, proof: None, seconds: Some(seconds) }
}

fn json(comparisons: &[Comparison]) -> String {
    let scheme = |s: &Scheme| {
        let lower_bound = s.proof.map(|proof| match proof {
            Proof::Size { lower_bound, .. } => json!(lower_bound),
            Proof::Error { lower_bound, .. } => json!(lower_bound),
        });
        let proven = s.proof.map(|proof| Summary { size: s.size, error: s.error, proof }.proven());
        json!({"scheme": s.name, "size": s.size, "error": s.error, "within_budget": s.within_budget,
            "lower_bound": lower_bound, "proven": proven, "seconds": s.seconds})
    };
    let comparison = |c: &Comparison| {
        let schemes: Vec<Value> = c.schemes.iter().map(scheme).collect();
        let limit = match c.limit {
            Limit::Error(budget) => ("budget", json!(budget)),
            Limit::Size(bits) => ("size_limit", json!(bits)),
        };
        let smallest = match c.smallest {
            Some(Limit::Size(bits)) => ("smallest_size", json!(bits)),
            Some(Limit::Error(error)) => ("smallest_error", json!(error)),
            None => ("smallest_error", Value::Null),
        };
        json!({"method": c.method, "metric": c.metric, limit.0: limit.1, "uncompressed_size": c.uncompressed,
            "default_size": c.uniform.size, "default_error": c.uniform.error, "seconds": {"measure": c.measure},
            "schemes": schemes, "feasible": c.smallest.is_none(), smallest.0: smallest.1})
    };
    let comparisons: Vec<Value> = comparisons.iter().map(comparison).collect();
    format!("{:#}\n", json!({"version": 1, "comparisons": comparisons}))
}
