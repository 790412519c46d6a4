//! `lgreco solve --frontier`: the plans that no other plan beats in both size and error.

use super::{constraints, emit, solve, timed};
use crate::args::{ConstraintArgs, SolverArg, Target};
use crate::failure::{Failure, printable};
use crate::report::default_point;
use crate::text_table::Rows;
use crate::units::{counted, grouped, ratio, seconds, significant};
use lgreco::plan::{Frontier, Proof, exact::Limits};
use lgreco::table::NamedTable;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

pub fn run(
    path: &Path,
    solver: SolverArg,
    asked: &ConstraintArgs,
    most: usize,
    target: Option<&Target>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if solver != SolverArg::Exact {
        return Err(Failure::bad_input("--frontier is for --solver exact, which proves its points"));
    }
    let (name, file) = solve::read(path, Target::file(target))?;
    let table = &file.table;
    let merged = constraints::merged(&name, table, asked)?;
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
            uniform.map_or_else(String::new, |uniform| match uniform.size < summary.size {
                true => format!("{} larger", ratio(summary.size, uniform.size)),
                false => format!("{} smaller", ratio(uniform.size, summary.size)),
            }),
            if point.proven() { "proven".into() } else { "not proven".into() },
        ]);
    }
    let which = which(frontier);
    let metric = printable(table.metric());
    format!(
        "{}\nfrontier      {which}\nmetric        {metric}\ntime          solving {}\n",
        rows.render(),
        seconds(took)
    )
}

/// Says which points of the frontier were found.
fn which(frontier: &Frontier) -> String {
    let points = counted(frontier.points.len() as u64, "point");
    let open = frontier.points.iter().filter(|point| !point.proven()).count();
    match frontier {
        Frontier { complete: true, .. } => format!("{points}: the whole frontier"),
        Frontier { proven: true, .. } => format!("{points}, their sizes spread by equal factors: there are more"),
        // All points are proven, but the frontier may be incomplete: a plan without a proof was dropped, because one of
        // the points beats this plan.
        _ if open == 0 => format!("{points}, all proven, but not all sizes between them: others may be missing"),
        _ => format!("{points}, of which {open} not proven: others may be missing"),
    }
}

fn json(table: &NamedTable, frontier: &Frontier, seconds: f64) -> String {
    let point = |point: &lgreco::plan::Point| {
        let summary = point.plan.summary();
        let size_bound = match summary.proof {
            Proof::Size { lower_bound, .. } => lower_bound,
            Proof::Error { .. } => 0,
        };
        let labels = point.plan.options().iter().enumerate();
        let labels: Vec<_> = labels.map(|(layer, &option)| table.label(layer, option as usize)).collect();
        json!({"size": summary.size, "error": summary.error, "proven": point.proven(), "size_lower_bound": size_bound,
            "error_lower_bound": point.error_bound, "options": point.plan.options(), "labels": labels})
    };
    let points: Vec<Value> = frontier.points.iter().map(point).collect();
    let layers: Vec<_> = (0..table.layers()).map(|layer| table.name(layer)).collect();
    let value = json!({"version": 1, "metric": table.metric(), "layers": layers, "complete": frontier.complete, "proven": frontier.proven,
        "points": points,
        "seconds": {"solve": seconds}});
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lgreco::plan::{Constraints, Merged};
    use lgreco::table::{Choice, Table};

    #[test]
    fn points_that_may_be_missing_are_told() {
        let choices = [(4, 0.0), (2, 1.0), (4, 0.0), (2, 3.0)].map(|(size, error)| Choice { size, error });
        let table = Table::new(&choices, &[2, 4]).unwrap();
        let merged = Merged::new(&table, &Constraints::default()).unwrap();
        let whole = merged.frontier(9, Limits::default()).unwrap();
        assert_eq!(which(&whole), "3 points: the whole frontier");
        let some = merged.frontier(2, Limits::default()).unwrap();
        assert_eq!(which(&some), "2 points, their sizes spread by equal factors: there are more");
        // A frontier that left out its only plan without a proof.
        let open = Frontier { complete: false, proven: false, ..whole };
        assert_eq!(which(&open), "3 points, all proven, but not all sizes between them: others may be missing");
    }
}
