//! `lgreco solve --frontier`: all plans of which none has both less size and less error.

use super::{demands, emit, solve, timed};
use crate::args::{Demands, SolverArg, Target};
use crate::failure::{Failure, printable};
use crate::report::{Rows, default_point};
use crate::units::{counted, grouped, ratio, seconds, significant};
use lgreco_core::plan::{Frontier, Proof, exact::Limits};
use lgreco_core::table::NamedTable;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

pub fn run(
    path: &Path,
    solver: SolverArg,
    demands: &Demands,
    most: usize,
    target: Option<&Target>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if solver != SolverArg::Exact {
        return Err(Failure::bad_input("--frontier is for --solver exact, which proves its points"));
    }
    let (name, file) = solve::read(path, target, None)?;
    let table = &file.table;
    let merged = demands::merged(&name, table, demands)?;
    let doing = format!("solving {}", counted(table.layers() as u64, "layer"));
    let (frontier, seconds) = timed(doing, || merged.frontier(most, Limits::default()));
    let named = |error| Failure::from_core(&error, format_args!("{name}: {}", table.name_error(error)));
    let frontier = frontier.map_err(named)?;
    emit(out, || report(table, &frontier, seconds), || json(table, &frontier, seconds), target)
}

fn report(table: &NamedTable, frontier: &Frontier, took: f64) -> String {
    let mut rows = Rows::new(&["bits", "error", "than uniform", "proof"]);
    let uniform = default_point(table);
    for point in &frontier.points {
        let summary = point.plan.summary();
        rows.add([
            grouped(summary.size),
            significant(summary.error),
            uniform.map_or_else(String::new, |uniform| format!("{} smaller", ratio(uniform.size, summary.size))),
            if point.proven() { "proven".into() } else { "not proven".into() },
        ]);
    }
    let points = counted(frontier.points.len() as u64, "point");
    let which = match frontier.complete {
        true => format!("{points}: the whole frontier"),
        false => format!("{points}, spread evenly by size: there are more"),
    };
    let metric = printable(table.metric());
    format!(
        "{}\nfrontier      {which}\nmetric        {metric}\ntime          solving {}\n",
        rows.render(),
        seconds(took)
    )
}

fn json(table: &NamedTable, frontier: &Frontier, seconds: f64) -> String {
    let point = |point: &lgreco_core::plan::Point| {
        let summary = point.plan.summary();
        let size_bound = match summary.proof {
            Proof::Size { lower_bound, .. } => lower_bound,
            Proof::Error { .. } => 0,
        };
        json!({"size": summary.size, "error": summary.error, "proven": point.proven(), "size_lower_bound": size_bound,
            "error_lower_bound": point.error_bound, "options": point.plan.options()})
    };
    let points: Vec<Value> = frontier.points.iter().map(point).collect();
    let value = json!({"version": 1, "metric": table.metric(), "complete": frontier.complete, "points": points,
        "seconds": {"solve": seconds}});
    format!("{value:#}\n")
}
