//! Draws the Pareto frontier of plans, and the points of the default setting and of the chosen plan.

use super::{Picture, heading};
use crate::chart::{Area, Axis, BLUE, Chart, Colour, GREY, Kind, Series, Svg};
use crate::report::Point;
use crate::units;

pub(super) fn draw(picture: &Picture, svg: &mut Svg, area: Area) {
    let top = heading(svg, "Error against size", "the line: the best plans of any size", area);
    chart(picture, svg, Area { top, ..area });
}

/// The chart without a heading.
pub(super) fn chart(picture: &Picture, svg: &mut Svg, area: Area) {
    let default = picture.default.filter(|default| default.error > 0.0);
    let unit = default.map_or(1.0, |default| default.error);
    let place = |point: &Point| (point.size as f64, point.error / unit);
    let series = |name, colour: Colour, points: &[Point]| Series {
        marks: points.len() == 1,
        ..Series::line(name, colour, points.iter().map(place).collect())
    };
    let mut all = vec![series("", BLUE, &picture.frontier)];
    all.extend(picture.default.as_ref().map(|point| series(&picture.default_name, GREY, std::slice::from_ref(point))));
    all.push(series("this plan", BLUE, &[picture.chosen]));
    let times = |x: f64| if default.is_some() { format!("{}×", short(x)) } else { short(x) };
    let error = if default.is_some() { "error, relative to the default's" } else { "error" };
    Chart {
        x: Axis { name: "size", kind: Kind::Log, write: &|x| units::round(&units::bits(x as u64)) },
        y: Axis { name: error, kind: Kind::Log, write: &times },
        series: all,
        names_right: false,
    }
    .draw(svg, area);
}

/// Formats a number without trailing zeros.
fn short(x: f64) -> String {
    if (0.001..10_000.0).contains(&x) { format!("{}", (x * 1e6).round() / 1e6) } else { format!("{x:.0e}") }
}
