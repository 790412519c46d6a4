//! A page about a plan: settings over the model's depth, the size-error frontier, and a table of layers.

use super::{Cell, Page, table};
use crate::facts::Facts;
use crate::failure::{Failure, printable};
use crate::plot::{Bar, Measure, Picture};
use crate::report::{self, Point, Solved};
use crate::units::{bits, ratio, shape, significant};
use lgreco::file::PlanFile;
use lgreco::plan::Merged;
use lgreco::table::NamedTable;

/// A page about a plan for `table`, solved within the constraints in `merged`. Each entry of `times` is the name of a
/// phase of the work and its seconds.
///
/// # Errors
/// A [`Failure`] when memory for the frontier runs out.
///
/// # Complexity
/// Up to 100 runs of the exact solver.
pub fn of_plan(
    title: &str,
    table: &NamedTable,
    merged: &Merged<'_>,
    solved: &Solved,
    facts: Option<&Facts>,
    times: &[(&str, f64)],
) -> Result<String, Failure> {
    let picture = Picture::of_plan(title, table, merged, &solved.plan, facts)?;
    Ok(drawn(&picture, table, solved, facts, times))
}

/// Like [`of_plan`], but takes the picture of the plan instead of making it.
pub(crate) fn drawn(
    picture: &Picture,
    table: &NamedTable,
    solved: &Solved,
    facts: Option<&Facts>,
    times: &[(&str, f64)],
) -> String {
    let mut page = Page::new(&picture.title);
    let lines = report::plan_lines(table, solved, facts, times);
    page.facts(lines.iter().map(|(name, value)| (*name, &**value)));
    drawings(&mut page, picture);
    let (view, size) = (table.view(), solved.plan.summary().size);
    let row = |(layer, &option): (usize, &u32)| {
        let choice = view.layer(layer)[option as usize];
        let of_facts = |get: &dyn Fn(&Facts) -> String| facts.map_or_else(String::new, get);
        let relative = facts.map(|facts| report::relative(table.metric(), choice.error, facts.norms[layer]));
        [
            Cell::count(layer as u64 + 1),
            Cell::Text(printable(table.name(layer))),
            Cell::Number(Some(table.elements(layer) as f64), of_facts(&|facts| shape(&facts.shapes[layer]))),
            Cell::Text(printable(table.label(layer, option as usize))),
            Cell::count(choice.size.div_ceil(8)),
            share(choice.size, size),
            relative.map_or(Cell::Number(None, String::new()), |part| {
                Cell::Number(Some(part), format!("{} %", significant(100.0 * part)))
            }),
            // The page shows relative errors if `facts` has the norms, and otherwise the plan's absolute errors.
            match facts {
                Some(_) => Cell::Number(None, String::new()),
                None => Cell::Number(Some(choice.error), significant(choice.error)),
            },
        ]
    };
    let rows: Vec<_> = solved.plan.options().iter().enumerate().map(row).collect();
    layers(&mut page, &rows);
    page.finish()
}

/// A page about a plan, made only from the plan file. This page lacks the frontier, shapes and relative errors.
pub fn of_file(title: &str, file: &PlanFile) -> String {
    let bar = |layer: &lgreco::file::PlanLayer| Bar {
        name: printable(&layer.name),
        label: printable(&layer.label),
        chosen: layer.size.div_ceil(8) as f64,
        mark: None,
    };
    let picture = Picture {
        title: printable(title),
        uncompressed: Some(file.uncompressed_size),
        default: None,
        default_name: String::new(),
        chosen: Point { error: file.error, size: file.size },
        notes: Vec::new(),
        frontier: Vec::new(),
        layers: file.layers.iter().map(bar).collect(),
        measure: Measure::Bytes,
    };
    let mut page = Page::new(&picture.title);
    let summary = file.summary();
    let (limit, used) = report::limit_use(&summary, "error");
    let smaller = format!("{} smaller, {}", ratio(file.uncompressed_size, file.size), bits(file.size));
    let error = significant(file.error);
    let certificate = report::certificate(&summary);
    page.facts([("this plan", &*smaller), ("error", &error), (limit, &used), ("lower bound", &certificate)]);
    drawings(&mut page, &picture);
    let row = |(index, layer): (usize, &lgreco::file::PlanLayer)| {
        [
            Cell::count(index as u64 + 1),
            Cell::Text(printable(&layer.name)),
            Cell::Number(None, String::new()),
            Cell::Text(printable(&layer.label)),
            Cell::count(layer.size.div_ceil(8)),
            share(layer.size, file.size),
            Cell::Number(None, String::new()),
            Cell::Number(Some(layer.error), significant(layer.error)),
        ]
    };
    layers(&mut page, &file.layers.iter().enumerate().map(row).collect::<Vec<_>>());
    page.finish()
}

fn drawings(page: &mut Page, picture: &Picture) {
    page.section("Settings over the model's depth", picture.measure.name());
    page.drawing("each layer's setting and size", |width| picture.layers().svg(width));
    if !picture.frontier.is_empty() {
        let note = "The line joins plans that no other plan beats in both size and error.";
        page.section("Size and error", note);
        page.drawing("the size-error frontier, the uniform setting and this plan", |width| {
            picture.frontier(width, if width < 500.0 { 300.0 } else { 380.0 })
        });
    }
}

fn layers(page: &mut Page, rows: &[[Cell; 8]]) {
    page.section("Layers", "A click on a column's name sorts by it.");
    page.html(&table(["#", "layer", "shape", "setting", "bytes", "share", "relative error", "error"], rows));
}

/// The layer's share of the plan's size.
fn share(size: u64, whole: u64) -> Cell {
    let part = size as f64 / whole.max(1) as f64;
    Cell::Number(Some(part), format!("{} %", significant(100.0 * part)))
}
