//! Charts of lines and points between two axes.

use super::{Anchor, Area, Colour, GRID, Labels, MUTED, Scale, Svg, text_width};

/// How an axis maps values to pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linear. The axis begins at 0 or at the smallest value.
    Linear {
        /// Whether 0 is on the axis.
        zero: bool,
    },
    /// Logarithmic. Values of 0 or less are not drawn.
    Log,
}

/// An axis of a chart.
pub struct Axis<'a> {
    /// What the axis shows, with the unit.
    pub name: &'a str,
    /// Linear or logarithmic.
    pub kind: Kind,
    /// Formats a value as text.
    pub write: &'a dyn Fn(f64) -> String,
}

/// Values that belong together.
#[derive(Clone, Debug)]
pub struct Series<'a> {
    /// Name of the series. An empty name is not written.
    pub name: &'a str,
    /// Colour of the series.
    pub colour: Colour,
    /// The points, as values on both axes.
    pub points: Vec<(f64, f64)>,
    /// Texts beside points, each with the point's index.
    pub notes: Vec<(usize, String)>,
    /// Half the height of each point's error bar, if it has one.
    pub spread: Vec<Option<f64>>,
    /// Whether a line joins the points.
    pub line: bool,
    /// Whether the points are marked.
    pub marks: bool,
}

/// A chart of a few series.
pub struct Chart<'a> {
    /// The horizontal axis.
    pub x: Axis<'a>,
    /// The vertical axis.
    pub y: Axis<'a>,
    /// The data.
    pub series: Vec<Series<'a>>,
    /// Whether the names of the series form a column to the right of their last points. Otherwise each name is beside
    /// its series.
    pub names_right: bool,
}

const SIZE: f64 = 12.0;

impl Axis<'_> {
    fn has(&self, value: f64) -> bool {
        value.is_finite() && (self.kind != Kind::Log || value > 0.0)
    }

    /// An axis that covers all values, with a margin. `room` is the margin as a fraction of the values' range.
    fn scale(&self, values: impl Iterator<Item = f64>, pixels: (f64, f64), room: f64) -> Scale {
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = values.filter(|&v| self.has(v)).fold(ends, |(low, high), v| (low.min(v), high.max(v)));
        match self.kind {
            Kind::Log => {
                let factor = (high / low).powf(room).clamp(1.05, 10.0);
                Scale::log((low / factor, high * factor), pixels)
            }
            Kind::Linear { zero } => {
                let (low, high) = if zero { (low.min(0.0), high.max(0.0)) } else { (low, high) };
                let room = room * (high / 2.0 - low / 2.0) * 2.0;
                let below = if zero && low >= 0.0 { 0.0 } else { room };
                Scale::linear((low - below, high + room), pixels)
            }
        }
    }
}

impl Series<'_> {
    /// A series that is only a line.
    pub fn line<'a>(name: &'a str, colour: Colour, points: Vec<(f64, f64)>) -> Series<'a> {
        Series { name, colour, points, notes: vec![], spread: vec![], line: true, marks: false }
    }

    fn spread(&self, point: usize) -> f64 {
        self.spread.get(point).copied().flatten().filter(|half| half.is_finite()).unwrap_or(0.0)
    }
}

impl Chart<'_> {
    /// Draws the chart, or writes "nothing to draw" if no point can be drawn.
    pub fn draw(&self, svg: &mut Svg, area: Area) {
        let place = |&(x, y): &(f64, f64)| self.x.has(x) && self.y.has(y);
        if !self.series.iter().any(|series| series.points.iter().any(place)) {
            svg.text("nothing to draw", (area.left + 8.0, area.top + 20.0), 14.0, MUTED, Anchor::Start);
            return;
        }
        let names = self.series.iter().map(|series| text_width(series.name, SIZE + 1.0)).fold(0.0, f64::max);
        let right = area.right - if self.names_right { names + 28.0 } else { 14.0 };
        let bottom = area.bottom - 46.0;
        let heights = || {
            self.series.iter().flat_map(|series| {
                let ends = |(at, &(_, y)): (usize, &(f64, f64))| [y - series.spread(at), y + series.spread(at)];
                series.points.iter().enumerate().filter(|(_, point)| place(point)).flat_map(ends)
            })
        };
        let widths = || self.series.iter().flat_map(|series| series.points.iter().filter(|p| place(p)).map(|p| p.0));
        let y = self.y.scale(heights(), (bottom, area.top + 26.0), 0.06);
        let y_ticks = y.ticks(self.y.write, SIZE, false);
        let room = y_ticks.iter().map(|(_, text)| text_width(text, SIZE)).fold(20.0, f64::max);
        let room = room.min((area.right - area.left) / 3.0);
        let left = area.left + room + 10.0;
        let x = self.x.scale(widths(), (left, right), if self.names_right { 0.0 } else { 0.04 });
        svg.text(self.y.name, (area.left, area.top + 8.0), SIZE, MUTED, Anchor::Start);
        for (value, text) in &y_ticks {
            svg.line([(left, y.at(*value)), (right, y.at(*value))], GRID, 1.0);
            svg.text(text, (left - 8.0, y.at(*value)), SIZE, MUTED, Anchor::End);
        }
        for (value, text) in x.ticks(self.x.write, SIZE, true) {
            let (at, half) = (x.at(value), text_width(&text, SIZE) / 2.0);
            svg.line([(at, bottom), (at, bottom + 5.0)], GRID, 1.0);
            svg.text(
                &text,
                (at.min(area.right - half).max(area.left + half), bottom + 15.0),
                SIZE,
                MUTED,
                Anchor::Middle,
            );
        }
        svg.text(self.x.name, ((left + right) / 2.0, bottom + 35.0), SIZE, MUTED, Anchor::Middle);
        let mut labels = Labels::new(Area::new(left, area.top + 18.0, area.right, bottom));
        let drawn = self.series.iter().map(|series| self.draw_series(svg, series, (&x, &y), &mut labels));
        let drawn: Vec<_> = drawn.collect();
        self.name_series(svg, &drawn, labels);
    }

    /// Draws one series, and keeps later texts off the series. Returns the pixel coordinates and indices of the points.
    fn draw_series(&self, svg: &mut Svg, series: &Series<'_>, (x, y): (&Scale, &Scale), labels: &mut Labels) -> Places {
        let has = |&(_, point): &(usize, &(f64, f64))| self.x.has(point.0) && self.y.has(point.1);
        let points: Vec<_> = series.points.iter().enumerate().filter(has).collect();
        for &(index, &(across, up)) in &points {
            let half = series.spread(index);
            if half > 0.0 {
                let ends = [(x.at(across), y.at(up - half)), (x.at(across), y.at(up + half))];
                svg.line(ends, series.colour, 1.5);
                labels.take_line(&ends, 2.0);
            }
        }
        let places: Places = points.iter().map(|&(index, point)| (index, (x.at(point.0), y.at(point.1)))).collect();
        if series.line && places.len() > 1 {
            let line: Vec<_> = places.iter().map(|&(_, place)| place).collect();
            labels.take_line(&line, 3.0);
            svg.line(line, series.colour, 2.0);
        }
        for (&(_, place), &(_, &(across, up))) in places.iter().zip(&points) {
            if series.marks || places.len() == 1 {
                let tip = format!("{}: {}, {}", series.name, (self.x.write)(across), (self.y.write)(up));
                svg.dot(place, 5.0, series.colour, &tip);
                labels.take_mark(place);
            }
        }
        places
    }

    fn name_series(&self, svg: &mut Svg, drawn: &[Places], mut labels: Labels) {
        let named =
            || self.series.iter().zip(drawn).filter(|(series, places)| !series.name.is_empty() && !places.is_empty());
        if self.names_right {
            let ends: Vec<_> =
                named().map(|(series, places)| (series.name, series.colour, places[places.len() - 1].1)).collect();
            labels.column(svg, &ends, SIZE + 1.0);
        } else {
            for (series, places) in named() {
                labels.write(svg, series.name, places[places.len() / 2].1, SIZE + 1.0);
            }
        }
        for (series, places) in self.series.iter().zip(drawn) {
            for (point, text) in &series.notes {
                if let Some((_, place)) = places.iter().find(|(index, _)| index == point) {
                    labels.write(svg, text, *place, SIZE);
                }
            }
        }
    }
}

/// Pixels of points, with their indices.
type Places = Vec<(usize, (f64, f64))>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::SERIES;
    use crate::testing::labels::{boxes, overlaps};

    fn chart(names_right: bool, points: impl Fn(usize) -> Vec<(f64, f64)>, kind: Kind) -> String {
        let names = ["plain DDP", "bf16_compress_hook", "powerSGD_hook 4", "QSGD 4", "PowerSGD 8, bf16", "TopK 1 %"];
        let series = names.iter().zip(SERIES).enumerate();
        let series = series.map(|(index, (name, colour))| {
            let notes = vec![(0, format!("{index}.5×")), (9, "none".into())];
            Series { notes, spread: vec![Some(0.1), None], marks: true, ..Series::line(name, colour, points(index)) }
        });
        let write = |value: f64| format!("{value}");
        let axis = || Axis { name: "seconds", kind, write: &write };
        let chart = Chart { x: axis(), y: axis(), series: series.collect(), names_right };
        let mut svg = Svg::new(800.0, 400.0);
        chart.draw(&mut svg, Area::new(10.0, 10.0, 790.0, 390.0));
        svg.file("test")
    }

    #[test]
    fn six_series_are_named_without_covering_anything() {
        for names_right in [false, true] {
            for kind in [Kind::Log, Kind::Linear { zero: true }, Kind::Linear { zero: false }] {
                let svg = chart(
                    names_right,
                    |index| (1..6).map(|x| (f64::from(x), (index + 1) as f64 / f64::from(x))).collect(),
                    kind,
                );
                assert_eq!(overlaps(&svg), Vec::<String>::new(), "{svg}");
                let texts: Vec<String> = boxes(&svg).into_iter().map(|(text, _)| text).collect();
                for name in [
                    "plain DDP",
                    "bf16_compress_hook",
                    "powerSGD_hook 4",
                    "QSGD 4",
                    "PowerSGD 8, bf16",
                    "TopK 1 %",
                    "5.5×",
                ] {
                    assert!(texts.iter().any(|text| text == name), "{name}: {texts:?}");
                }
            }
        }
    }

    #[test]
    fn whatever_the_values_are_there_is_a_picture() {
        let extremes = [0.0, -1.0, 1.0, 1e-300, 1e300, f64::MAX, f64::MIN, f64::NAN, f64::INFINITY];
        for kind in [Kind::Log, Kind::Linear { zero: true }, Kind::Linear { zero: false }] {
            for x in extremes {
                for y in extremes {
                    let svg = chart(false, |_| vec![(x, y), (1.0, y), (y, x)], kind);
                    roxmltree::Document::parse(&svg).unwrap();
                }
            }
            assert!(chart(true, |_| vec![], kind).contains("nothing to draw"));
        }
    }
}
