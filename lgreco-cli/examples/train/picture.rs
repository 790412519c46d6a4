//! Loss against bytes sent, as SVG: one row of panels per model, one panel per method.

use crate::report::Row;
use crate::schemes::METHODS;
use crate::worker::Failure;
use plotters::prelude::*;

const PANEL: (u32, u32) = (460, 360);
const LEGEND: u32 = 54;
const INK: RGBColor = RGBColor(0x26, 0x2b, 0x33);
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);

/// A colour per scheme.
const COLOURS: [(&str, RGBColor); 9] = [
    ("uncompressed", RGBColor(0x26, 0x2b, 0x33)),
    ("uniform", RGBColor(0x9a, 0xa3, 0xae)),
    ("k-means", RGBColor(0xb0, 0x7a, 0x2e)),
    ("accordion", RGBColor(0xc8, 0x4b, 0x8f)),
    ("l-greco-dp", RGBColor(0x7f, 0xb2, 0xe0)),
    ("l-greco", RGBColor(0x2f, 0x6f, 0xb5)),
    ("l-greco+accordion", RGBColor(0x6a, 0x4f, 0xc0)),
    ("hybrid", RGBColor(0x2e, 0x8b, 0x57)),
    ("scalecom", RGBColor(0xd9, 0x53, 0x3c)),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws all runs.
pub fn svg(rows: &[Row]) -> Result<String, Failure> {
    let mut models: Vec<&str> = rows.iter().map(|row| row.model).collect();
    models.dedup();
    let size = (PANEL.0 * METHODS.len() as u32, PANEL.1 * models.len() as u32 + LEGEND);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, panels) = root.split_vertically(LEGEND);
        legend(&top)?;
        let panels = panels.split_evenly((models.len(), METHODS.len()));
        let pairs = models.iter().flat_map(|model| METHODS.map(|method| (*model, method)));
        for ((model, method), area) in pairs.zip(&panels) {
            let shown: Vec<&Row> = rows.iter().filter(|row| row.model == model && belongs(row, method)).collect();
            panel(area, &format!("{model}, {method}"), &shown)?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// The uncompressed run is in every panel; hybrid keeps to QSGD's budget; CLT-k sends what TopK does.
fn belongs(row: &Row, panel: &str) -> bool {
    match row.method {
        "none" => true,
        "hybrid" => panel == "qsgd",
        "clt-k" => panel == "topk",
        method => method == panel,
    }
}

fn colour(scheme: &str) -> RGBColor {
    COLOURS.iter().find(|(name, _)| *name == scheme).map_or(INK, |(_, colour)| *colour)
}

fn legend(area: &Area<'_>) -> Result<(), Failure> {
    for (index, (name, colour)) in COLOURS.iter().enumerate() {
        let x = 24 + 150 * index as i32;
        area.draw(&PathElement::new([(x, 28), (x + 20, 28)], colour.stroke_width(3)))?;
        area.draw(&Text::new(*name, (x + 26, 21), ("sans-serif", 14).into_font().color(&INK)))?;
    }
    Ok(())
}

/// The places of a run on the axes: a loss that is not finite has none, nor have zero bytes on a logarithmic one.
fn points(row: &Row) -> Vec<(f64, f64)> {
    let places = row.curve.iter().map(|&(bytes, loss)| (bytes as f64, f64::from(loss)));
    places.filter(|&(bytes, loss)| bytes > 0.0 && loss.is_finite()).collect()
}

fn panel(area: &Area<'_>, title: &str, rows: &[&Row]) -> Result<(), Failure> {
    let all = || rows.iter().flat_map(|row| points(row));
    // The marks of an axis without ends would be counted for ever.
    if all().next().is_none() {
        let style = ("sans-serif", 16).into_font().color(&INK);
        area.draw(&Text::new(format!("{title}: nothing to draw"), (12, 12), style))?;
        return Ok(());
    }
    let span = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (left, right) = span(&mut all().map(|(x, _)| x));
    let (low, high) = span(&mut all().map(|(_, y)| y));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16).into_font().color(&INK))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d((left / 1.1..right * 1.1).log_scale().base(2.0), low * 0.97..high * 1.02)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .x_desc("bytes sent per worker")
        .y_desc("validation loss")
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|x| format!("{:.1} MB", x / 1e6))
        .y_label_formatter(&|y| format!("{y:.2}"))
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    for row in rows {
        chart.draw_series(LineSeries::new(points(row), colour(row.scheme).stroke_width(2)))?;
        let last = points(row).into_iter().next_back();
        chart.draw_series(last.map(|at| Circle::new(at, 4, colour(row.scheme).filled())))?;
    }
    Ok(())
}
