//! `lgreco plan`: measure, choose, show.

use super::{emit, model, solve};
use crate::args::{MethodArg, Output, Solving, Source};
use crate::failure::Failure;
use crate::report;
use lgreco_core::file::{PlanFile, Seconds};
use lgreco_core::search::{Method, Metric};
use std::io::Write;

const HYBRID_NOTE: &str = "\
Note: the budget bounds the l2 error of one compression. QSGD's error is unbiased and averages out over workers and
steps; TopK's and PowerSGD's is biased and does not: without error feedback the same l2 error can hurt more. An l2
budget taken from uniform QSGD promises equal error, not equal accuracy, once biased compressors share it.";

pub fn run(source: &Source, solving: Solving, output: &Output, out: &mut dyn Write) -> Result<(), Failure> {
    let search = model::search(source)?;
    let model = model::Model::load(source.gradients.as_deref())?;
    let (measured, facts, measure) = model.measure(&search, source.candidates.backend)?;
    let table = &measured.table;
    let (plan, seconds) = solve::solve(&model.name, table, None, solving)?;
    if let Some(path) = &output.plot {
        let (method, metric) = (Method::from(source.method), Metric::from(source.candidates.metric));
        let title = solve::title(&model.name, &format!("{}, {}", method.name(), metric.name()));
        solve::picture(title, table, &plan, Some(&facts)).write(path)?;
    }
    let report = || {
        let times = [("reading", model.read), ("measuring", measure), ("solving", seconds)];
        let mut text = report::plan(table, &plan, Some(&facts), &times);
        if source.method == MethodArg::Hybrid {
            text += &format!("\n{HYBRID_NOTE}\n");
        }
        text
    };
    let json = || {
        let mut file = PlanFile::new(table, &plan);
        file.uncompressed_size = facts.sizes.iter().sum();
        file.seconds = Seconds { measure: Some(measure), solve: Some(seconds) };
        file.to_json()
    };
    emit(out, report, json, output.json.as_ref())
}
