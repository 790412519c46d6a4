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
    write::distinct(model.files(), output.files())?;
    let (outcome, reading) = model.measure_one(search, source.candidates.backend)?;
    let model::Outcome { measured, facts, seconds: measure } = outcome;
    let table = &measured.table;
    let merged = constraints::merged(&model.name, table, asked)?;
    let solved = solve::solve(&model.name, table, &merged, None, solving)?;
    let times = [("reading", reading), ("measuring", measure), ("solving", solved.seconds)];
    let title = solve::title(&model.name, &format!("{}, {}", method.name(), metric.name()));
    solve::pictures(output, title, table, &merged, &solved, Some(&facts), &times)?;
    let report = || {
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
