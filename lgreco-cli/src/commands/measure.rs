//! `lgreco measure`: the table alone.

use super::{emit, model, write};
use crate::args::{Source, Target};
use crate::failure::Failure;
use crate::report;
use lgreco_core::file::TableFile;
use std::io::Write;

pub fn run(source: &Source, json: Option<&Target>, out: &mut dyn Write) -> Result<(), Failure> {
    write::distinct(source.gradients.as_deref(), json, None)?;
    let search = model::search(source)?;
    let model = model::Model::load(source.gradients.as_deref())?;
    let (measured, facts, seconds) = model.measure(&search, source.candidates.backend)?;
    let table = measured.table;
    let times = [("reading", model.read), ("measuring", seconds)];
    let text = report::measured(&table, &facts, &times);
    let file = TableFile { table, budget: None };
    emit(out, || text, || file.to_json(), json)
}
