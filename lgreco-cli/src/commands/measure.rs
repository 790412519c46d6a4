//! `lgreco measure`: measures the error table without planning.

use super::{emit, model, write};
use crate::args::{Source, Target};
use crate::failure::Failure;
use crate::report;
use lgreco::file::TableFile;
use std::io::Write;

pub fn run(source: &Source, json: Option<&Target>, out: &mut dyn Write) -> Result<(), Failure> {
    let search = model::search(source)?;
    let model = model::Model::open(source.gradients.as_deref())?;
    write::distinct(model.files(), Target::file(json))?;
    let (outcome, reading) = model.measure_one(search, source.candidates.backend)?;
    let model::Outcome { measured, facts, seconds } = outcome;
    let table = measured.table;
    let times = [("reading", reading), ("measuring", seconds)];
    let text = report::measured(&table, &facts, &times);
    let file = TableFile { table, budget: None };
    emit(out, || text, || file.to_json(), json)
}
