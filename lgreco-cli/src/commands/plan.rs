//! `lgreco plan`: measures gradients, chooses a plan and shows it.

use super::{constraints, emit, model, solve, write};
use crate::args::{ConstraintArgs, Output, Solving, Source};
use crate::failure::Failure;
use crate::report;
use lgreco::file::{PlanFile, Seconds};
use lgreco::search::{Method, Metric};
use std::io::Write;

pub fn run(
    source: &Source,
    solving: Solving,
    asked: &ConstraintArgs,
    output: &Output,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut search = model::search(source)?;
    if solving.paper {
        search.metric = source.candidates.metric.unwrap_or(Metric::L2);
    }
    let (method, metric) = (search.method(), search.metric);
    let model = model::Model::open(source.gradients.as_deref())?;
    write::distinct(model.files(), output.json.as_ref(), output.plot.as_deref())?;
    let (outcome, reading) = model.measure_one(search, source.candidates.backend)?;
    let model::Outcome { measured, facts, seconds: measure } = outcome;
    let table = &measured.table;
    let merged = constraints::merged(&model.name, table, asked)?;
    let solved = solve::solve(&model.name, table, &merged, None, solving)?;
    if let Some(path) = &output.plot {
        let title = format!("{}, {}", method.name(), metric.name());
        let title = solve::title(&model.name, &title);
        write::file(path, &solve::picture(title, table, &merged, &solved.plan, Some(&facts)).svg())?;
    }
    let report = || {
        let times = [("reading", reading), ("measuring", measure), ("solving", solved.seconds)];
        let mut text = report::plan(table, &solved, Some(&facts), &times);
        if method == Method::Hybrid {
            text += report::HYBRID_NOTE;
        }
        text
    };
    let json = || {
        let mut file = PlanFile::new(table, &solved.plan);
        file.seconds = Seconds { measure: Some(measure), solve: Some(solved.seconds) };
        file.to_json()
    };
    emit(out, report, json, output.json.as_ref())
}
