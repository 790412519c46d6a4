//! The smallest size for each error budget.

use super::{Area, CHOSEN, DEFAULT, Drawn, GRID, INK, MUTED, Picture, Point, heading, span, text};
use crate::units;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, Y>>;

pub(super) fn draw(picture: &Picture, area: &Area<'_>) -> Drawn {
    let (unit, axis) = match picture.default {
        Some(default) if default.budget > 0.0 => (default.budget, "error budget, relative to the default's error"),
        _ => (picture.chosen.budget, "error budget, relative to this plan's"),
    };
    heading(area, "Error against size", "the line: the optimum for each budget", (0, 84))?;
    if unit <= 0.0 || picture.frontier.is_empty() {
        return text(area, "the budget is zero: there is no other", (0, 140), 14, &MUTED, HPos::Left);
    }
    let place = |point: &Point| (point.budget / unit, point.size as f64);
    let points = || picture.frontier.iter().chain(&picture.default).chain([&picture.chosen]).map(place);
    let (left, right) = span(points().map(|(x, _)| x));
    let (low, high) = span(points().map(|(_, y)| y));
    let budgets = (left / 1.1..right * 1.1).log_scale().base(2.0);
    let mut chart = ChartBuilder::on(area);
    chart.margin_top(120).margin_right(26).margin_bottom(8).x_label_area_size(44).y_label_area_size(74);
    // Over more than a decade a linear axis would show a line along its foot.
    if high > 10.0 * low {
        curve(picture, area, chart.build_cartesian_2d(budgets, (low / 2.0..high * 1.3).log_scale())?, axis, place)
    } else {
        curve(picture, area, chart.build_cartesian_2d(budgets, 0.0..high.max(1.0) * 1.1)?, axis, place)
    }
}

fn curve<Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    picture: &Picture,
    area: &Area<'_>,
    mut chart: Chart<'_, '_, Y>,
    axis: &str,
    place: impl Fn(&Point) -> (f64, f64) + Copy,
) -> Drawn {
    chart
        .configure_mesh()
        .axis_style(DEFAULT)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 13).into_font().color(&MUTED))
        .x_desc(axis)
        .x_label_formatter(&|x| format!("{}×", (x * 1000.0).round() / 1000.0))
        .y_label_formatter(&|&y| units::bits(y as u64))
        .y_labels(5)
        .draw()?;
    chart.draw_series(LineSeries::new(picture.frontier.iter().map(place), CHOSEN.stroke_width(2)))?;
    let default = picture.default.iter().map(|point| (point, picture.default_name.as_str(), DEFAULT));
    for (point, name, colour) in default.chain([(&picture.chosen, "this plan", CHOSEN)]) {
        let at = place(point);
        if at.0 > 0.0 {
            chart.draw_series([Circle::new(at, 6, colour.filled())])?;
            let (x, y) = chart.backend_coord(&at);
            let (origin_x, origin_y) = area.get_base_pixel();
            // The line falls to the right: its upper right and lower left are free.
            let (aside, below, anchor) = if colour == DEFAULT { (7, -13, HPos::Left) } else { (-7, 15, HPos::Right) };
            text(area, name, (x - origin_x + aside, y - origin_y + below), 13, &INK, anchor)?;
        }
    }
    Ok(())
}
