//! Loss against bytes sent, as SVG: one row of panels per model, one panel per method.

use crate::report::Row;
use crate::schemes::METHODS;
use crate::worker::Failure;
use plotters::prelude::*;
use std::ops::Range;

const PANEL: (u32, u32) = (460, 360);
/// Height of the legend.
const LEGEND: u32 = 172;
/// Width and height of a scheme's entry in the legend.
const ENTRY: (usize, usize) = (215, 22);
/// Colour of text.
const INK: RGBColor = RGBColor(0x26, 0x2b, 0x33);
/// Colour of lines behind the data.
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);

/// A colour per scheme.
const COLOURS: [(&str, RGBColor); 34] = [
    ("uncompressed", RGBColor(0x26, 0x2b, 0x33)),
    ("uniform", RGBColor(0x9a, 0xa3, 0xae)),
    ("uniform+ramp", RGBColor(0x5d, 0x66, 0x73)),
    ("k-means", RGBColor(0xb0, 0x7a, 0x2e)),
    ("k-means-bytes", RGBColor(0x7d, 0x52, 0x14)),
    ("accordion", RGBColor(0xc8, 0x4b, 0x8f)),
    ("legacy", RGBColor(0x8a, 0x8d, 0x2f)),
    ("l-greco-dp", RGBColor(0x7f, 0xb2, 0xe0)),
    ("l-greco", RGBColor(0x2f, 0x6f, 0xb5)),
    ("l-greco+accordion", RGBColor(0x6a, 0x4f, 0xc0)),
    ("l-greco-bytes", RGBColor(0x0f, 0x3f, 0x73)),
    ("l-greco-bytes+ramp", RGBColor(0x10, 0x9c, 0xa8)),
    ("l-greco-bytes+bits", RGBColor(0xd0, 0x8a, 0x00)),
    ("l-greco-13x", RGBColor(0x3b, 0x9d, 0xd6)),
    ("l-greco-13x+bits", RGBColor(0xf2, 0xa6, 0x1f)),
    ("l-greco-11.2x+bits+bf16", RGBColor(0x1e, 0x6b, 0x3a)),
    ("l-greco-30x", RGBColor(0x63, 0xc2, 0xe8)),
    ("l-greco-30x+bits", RGBColor(0xf7, 0xc9, 0x5c)),
    ("uniform+bf16", RGBColor(0xbe, 0x5a, 0x5a)),
    ("l-greco-bytes+bf16", RGBColor(0x8c, 0x1d, 0x40)),
    ("uniform+correction", RGBColor(0x4b, 0x8f, 0x8c)),
    ("l-greco-bytes+bits+correction", RGBColor(0x9b, 0x63, 0xd6)),
    ("l-greco-bytes+bf16+correction", RGBColor(0x5b, 0x2a, 0x86)),
    ("hybrid", RGBColor(0x2e, 0x8b, 0x57)),
    ("hybrid-bytes", RGBColor(0x14, 0x5c, 0x34)),
    ("scalecom", RGBColor(0xd9, 0x53, 0x3c)),
    ("uniform-1", RGBColor(0xe8, 0x8f, 0xb4)),
    ("uniform-2", RGBColor(0xd0, 0x4f, 0x88)),
    ("uniform-3", RGBColor(0x9c, 0x1f, 0x5c)),
    ("l-greco-10.5x", RGBColor(0xb8, 0x7f, 0xd8)),
    ("l-greco-15.6x", RGBColor(0x7a, 0x3f, 0xb0)),
    ("l-greco-10.5x+bits+bf16", RGBColor(0x8f, 0xc9, 0x9b)),
    ("l-greco-15.6x+bits+bf16", RGBColor(0x4f, 0xa8, 0x63)),
    ("l-greco-30x+bits+bf16", RGBColor(0x1f, 0x7a, 0x3f)),
];

/// A part of a picture.
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws all runs.
pub fn svg(rows: &[Row]) -> Result<String, Failure> {
    let mut models: Vec<&str> = Vec::new();
    for row in rows {
        if !models.contains(&&*row.model) {
            models.push(&row.model);
        }
    }
    let size = (PANEL.0 * METHODS.len() as u32, PANEL.1 * models.len() as u32 + LEGEND);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, panels) = root.split_vertically(LEGEND);
        legend(&top, rows.iter().map(|row| &*row.scheme))?;
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

/// Whether a run is shown in a panel. The uncompressed run is in every panel, hybrid and EDEN are in QSGD's, and CLT-k is
/// in TopK's.
fn belongs(row: &Row, panel: &str) -> bool {
    match &*row.method {
        "none" => true,
        "hybrid" | "eden" | "mixed" => panel == "qsgd",
        "clt-k" => panel == "topk",
        method => method == panel,
    }
}

/// A scheme's colour.
fn colour(scheme: &str) -> RGBColor {
    COLOURS.iter().find(|(name, _)| *name == scheme).map_or(INK, |(_, colour)| *colour)
}

/// Draws the legend of these schemes' colours.
fn legend<'a>(area: &Area<'_>, shown: impl Iterator<Item = &'a str> + Clone) -> Result<(), Failure> {
    let shown = COLOURS.iter().filter(|(name, _)| shown.clone().any(|scheme| scheme == *name));
    let columns = (area.dim_in_pixel().0 as usize / ENTRY.0).max(1);
    for (index, (name, colour)) in shown.enumerate() {
        let (x, y) = ((24 + ENTRY.0 * (index % columns)) as i32, (12 + ENTRY.1 * (index / columns)) as i32);
        area.draw(&PathElement::new([(x, y + 7), (x + 20, y + 7)], colour.stroke_width(3)))?;
        area.draw(&Text::new(*name, (x + 26, y), ("sans-serif", 14).into_font().color(&INK)))?;
    }
    Ok(())
}

/// Axes with a margin around these values. Returns `None` without finite values, because the crate plotters would draw
/// marks on such an axis for ever. A single point gets a margin too.
fn axes(bytes: impl Iterator<Item = f64>, losses: impl Iterator<Item = f64>) -> Option<(Range<f64>, Range<f64>)> {
    let span = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let ((left, right), (low, high)) = (span(&mut { bytes }), span(&mut { losses }));
    if !(left > 0.0 && right.is_finite() && low.is_finite() && high.is_finite()) {
        return None;
    }
    let room = if high > low { 0.05 * (high - low) } else { 0.05 * high.abs().max(1.0) };
    Some((left / 1.1..right * 1.1, low - room..high + room))
}

/// A panel without a chart.
fn nothing(area: &Area<'_>, title: &str) -> Result<(), Failure> {
    let style = ("sans-serif", 16).into_font().color(&INK);
    area.draw(&Text::new(format!("{title}: nothing to draw"), (12, 12), style))?;
    Ok(())
}

/// The points of a run on the axes. Losses that are not finite are left out, and so are zero bytes, which a logarithmic
/// axis cannot show.
fn points(row: &Row) -> Vec<(f64, f64)> {
    let places = row.curve.iter().map(|point| (point.bytes as f64, f64::from(point.loss)));
    places.filter(|&(bytes, loss)| bytes > 0.0 && loss.is_finite()).collect()
}

fn panel(area: &Area<'_>, title: &str, rows: &[&Row]) -> Result<(), Failure> {
    let all = || rows.iter().flat_map(|row| points(row));
    let Some((bytes, losses)) = axes(all().map(|(x, _)| x), all().map(|(_, y)| y)) else {
        return nothing(area, title);
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16).into_font().color(&INK))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(bytes.log_scale().base(2.0), losses)?;
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
        chart.draw_series(LineSeries::new(points(row), colour(&row.scheme).stroke_width(2)))?;
        let last = points(row).into_iter().next_back();
        chart.draw_series(last.map(|at| Circle::new(at, 4, colour(&row.scheme).filled())))?;
    }
    Ok(())
}
