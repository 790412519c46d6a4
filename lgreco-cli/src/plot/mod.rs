//! A picture of a plan: totals and the size-error frontier at the top, all layers below.

mod frontier;
mod layers;
mod of_plan;
mod totals;

pub use layers::Layers;

use crate::chart::{Anchor, Area, Colour, INK, MUTED, Svg, text_width};
use crate::report::Point;
use crate::units;

/// Contents of a picture of a plan.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Heading.
    pub title: String,
    /// Total bits of the uncompressed layers, if known.
    pub uncompressed: Option<u64>,
    /// Error and size of the default options, if the table has them.
    pub default: Option<Point>,
    /// Name of the default setting.
    pub default_name: String,
    /// Error and size of the plan.
    pub chosen: Point,
    /// Further statements about the plan, one per line.
    pub notes: Vec<String>,
    /// The plans that no other plan beats in both size and error, smallest first.
    pub frontier: Vec<Point>,
    /// Every layer.
    pub layers: Vec<Bar>,
    /// Quantity that the layers' bars show.
    pub measure: Measure,
}

/// A layer, as a bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The layer's name.
    pub name: String,
    /// The chosen option's label.
    pub label: String,
    /// Length of the bar: the picture's quantity under the chosen option.
    pub chosen: f64,
    /// Position of the mark beside the bar: the picture's quantity under the default option, if the layer has a
    /// default.
    pub mark: Option<f64>,
}

/// Quantity that bars show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bits of the payload per element.
    BitsPerElement,
    /// Bytes of the payload.
    Bytes,
}

impl Measure {
    /// The name of the quantity and of its scale.
    pub fn name(self) -> &'static str {
        match self {
            Measure::BitsPerElement => "payload bits per element, logarithmic",
            Measure::Bytes => "payload bytes, logarithmic",
        }
    }

    /// Formats a value as text.
    fn write(self, value: f64) -> String {
        match self {
            Measure::Bytes => units::round(&units::bytes(value as u64)),
            Measure::BitsPerElement if (0.001..100_000.0).contains(&value) => {
                format!("{}", (value * 1e4).round() / 1e4)
            }
            Measure::BitsPerElement => units::significant(value),
        }
    }
}

/// Width of a picture in pixels. A README page has about this width.
const WIDTH: f64 = 800.0;
const MARGIN: f64 = 22.0;
const TOP: f64 = 378.0;

impl Picture {
    /// The picture as a file.
    pub fn svg(&self) -> String {
        let mut svg = Svg::new(WIDTH, TOP);
        svg.text(&cut(&self.title, 19.0, WIDTH - 2.0 * MARGIN), (MARGIN, 30.0), 19.0, INK, Anchor::Start);
        let middle = 0.44 * WIDTH;
        totals::draw(self, &mut svg, Area::new(MARGIN, 66.0, middle - 10.0, TOP));
        frontier::draw(self, &mut svg, Area::new(middle + 14.0, 66.0, WIDTH - MARGIN, TOP - 24.0));
        let area = Area::new(MARGIN, TOP, WIDTH - MARGIN, TOP);
        let top = heading(&mut svg, "Layers", self.measure.name(), area);
        layers::draw(&self.layers(), &mut svg, Area { top, ..area });
        svg.file(&self.title)
    }

    /// The picture's layers.
    pub fn layers(&self) -> Layers<'_> {
        Layers { bars: &self.layers, measure: self.measure, mark: "default setting" }
    }

    /// The frontier alone, without its heading.
    pub fn frontier(&self, width: f64, height: f64) -> Svg {
        let mut svg = Svg::new(width, height);
        frontier::chart(self, &mut svg, Area::new(0.0, 0.0, width, height));
        svg
    }
}

/// Writes a heading with a note below it. Returns the height below both.
fn heading(svg: &mut Svg, words: &str, note: &str, area: Area) -> f64 {
    svg.text(words, (area.left, area.top + 10.0), 16.0, INK, Anchor::Start);
    paragraph(svg, note, (area.left, area.top + 32.0), 13.0, MUTED, area.right - area.left)
}

/// Writes `words` in lines of at most `width`. `at` is the left end of the first line, at half its height. Returns the
/// height of the next line.
fn paragraph(svg: &mut Svg, words: &str, at: (f64, f64), size: f64, colour: Colour, width: f64) -> f64 {
    let mut line = String::new();
    let mut y = at.1;
    for word in words.split(' ') {
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if !line.is_empty() && text_width(&longer, size) > width {
            svg.text(&line, (at.0, y), size, colour, Anchor::Start);
            (line, y) = (cut(word, size, width), y + 1.4 * size);
        } else {
            line = cut(&longer, size, width);
        }
    }
    svg.text(&line, (at.0, y), size, colour, Anchor::Start);
    y + 1.5 * size
}

/// Shortens `words` to at most `width` pixels.
fn cut(words: &str, size: f64, width: f64) -> String {
    crate::chart::shortened(words, size, width)
}

/// The smallest and the largest of the positive values.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.filter(|&v| v > 0.0).fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::labels::{boxes, overlaps};

    fn picture(layers: usize, name: &str) -> Picture {
        let bar = |layer: usize| Bar {
            name: format!("{name}{layer}"),
            label: ["eden 3", "topk 0.1%, 4 bits", "powersgd 16", "dense", "<b>&"][layer % 5].into(),
            chosen: 0.01 * (1 + layer * layer) as f64,
            mark: (!layer.is_multiple_of(3)).then_some(3.0),
        };
        let point = |size: u64| Point { error: 1e9 / size as f64 / size as f64, size };
        Picture {
            title: format!("{name} · hybrid, squared-l2"),
            uncompressed: Some(12_000_000),
            default: Some(Point { error: 2.0, size: 30_000 }),
            default_name: "eden 3 everywhere".into(),
            chosen: point(28_000),
            notes: vec![
                "4.29× less error than eden 3 everywhere".into(),
                "proven optimal".into(),
                "size limit 2,220,672 bits, 99.93 % of it used".into(),
            ],
            frontier: (1..60).map(|step| point(1000 * step)).collect(),
            layers: (0..layers).map(bar).collect(),
            measure: Measure::BitsPerElement,
        }
    }

    #[test]
    fn texts_cover_nothing_whatever_the_model() {
        for (layers, name) in [(1, "a"), (15, "blocks.0.attention.proj.weight"), (400, "<script>alert(1)</script>.")] {
            let picture = picture(layers, name);
            let mut all = vec![picture.svg()];
            for width in [330.0, 720.0] {
                all.extend([
                    picture.layers().svg(width).file("layers"),
                    picture.frontier(width, 300.0).file("frontier"),
                ]);
            }
            for svg in all {
                let document = roxmltree::Document::parse(&svg).unwrap();
                assert!(!document.descendants().any(|node| node.tag_name().name() == "script"));
                assert_eq!(overlaps(&svg), Vec::<String>::new());
            }
            let texts: Vec<String> = boxes(&picture.svg()).into_iter().map(|(text, _)| text).collect();
            assert!(
                texts.iter().any(|text| text == "this plan") && texts.iter().any(|text| text == "eden 3 everywhere")
            );
        }
    }

    #[test]
    fn a_plan_without_default_frontier_and_error_is_drawn() {
        let nothing = Picture {
            default: None,
            uncompressed: None,
            frontier: vec![],
            chosen: Point { error: 0.0, size: 0 },
            notes: vec![],
            ..picture(2, "layer")
        };
        assert!(nothing.svg().contains("nothing to draw"));
        assert_eq!(overlaps(&nothing.svg()), Vec::<String>::new());
    }
}
