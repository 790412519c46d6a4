//! Draws the increase of the loss against bytes sent, with the seeds' scatter, as SVG: one panel per model and optimiser.

use crate::picture::{self, Area, GRID, INK, colour};
use crate::summary::{Group, Line, Mean};
use crate::worker::Failure;
use plotters::prelude::*;

const PANEL: (u32, u32) = (960, 460);

/// Draws all groups.
pub fn svg(groups: &[Group]) -> Result<String, Failure> {
    let schemes = groups.iter().flat_map(|group| &group.lines).map(|line| &*line.scheme);
    let size = (PANEL.0, PANEL.1 * groups.len().max(1) as u32 + picture::LEGEND);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, panels) = root.split_vertically(picture::LEGEND);
        picture::legend(&top, schemes)?;
        for (group, area) in groups.iter().zip(&panels.split_evenly((groups.len().max(1), 1))) {
            panel(area, group)?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// The place of a line's point: bytes and increase of the loss.
fn place(line: &Line) -> Option<(f64, Mean)> {
    let increase = line.increase.filter(|increase| increase.mean.is_finite())?;
    (line.bytes > 0.0).then_some((line.bytes, increase))
}

fn panel(area: &Area<'_>, group: &Group) -> Result<(), Failure> {
    let title = format!("{}, {}, {} steps", group.model, group.optimizer, group.steps);
    let places = || group.lines.iter().filter_map(place);
    let heights = places().flat_map(|(_, Mean { mean, confidence })| {
        let half = confidence.filter(|half| half.is_finite()).unwrap_or(0.0);
        [mean - half, mean + half]
    });
    let Some(axes) = picture::axes(places().map(|(bytes, _)| bytes), heights) else {
        return picture::nothing(area, &title);
    };
    let mut chart = ChartBuilder::on(area)
        .caption(&title, ("sans-serif", 16).into_font().color(&INK))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(axes.0.log_scale().base(2.0), axes.1)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .x_desc("bytes sent per worker and step")
        .y_desc("loss against uncompressed, %")
        .x_labels(6)
        .y_labels(8)
        .x_label_formatter(&|x| format!("{:.0} kB", x / 1e3))
        .y_label_formatter(&|y| format!("{y:+.1}"))
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    for line in &group.lines {
        let (Some((x, Mean { mean, confidence })), colour) = (place(line), colour(&line.scheme)) else { continue };
        if let Some(half) = confidence.filter(|half| half.is_finite()) {
            let ends = [(x, mean - half), (x, mean + half)];
            chart.draw_series([PathElement::new(ends, colour.stroke_width(2))])?;
        }
        chart.draw_series([Circle::new((x, mean), 4, colour.filled())])?;
        let label = EmptyElement::at((x, mean))
            + Text::new(line.method.clone(), (7, -6), ("sans-serif", 11).into_font().color(&INK));
        chart.draw_series([label])?;
    }
    Ok(())
}
