//! Draws every layer's chosen setting and its default, over the model's depth.

use super::{Bar, Measure, cut, span};
use crate::chart::{
    Anchor, Area, BLUE, Colour, GREEN, GRID, INK, MUTED, ORANGE, RED, Scale, Svg, TEAL, VIOLET, legend, text_width,
};

/// Colours of the methods. The label of a setting begins with the method's name.
const METHODS: [(&str, Colour); 5] =
    [("eden", BLUE), ("qsgd", RED), ("topk", ORANGE), ("powersgd", GREEN), ("dense", VIOLET)];
/// Name and colour of all methods that [`METHODS`] lacks.
const OTHER: (&str, Colour) = ("other", TEAL);

fn method(label: &str) -> (&'static str, Colour) {
    METHODS.into_iter().find(|(name, _)| label.split(' ').next() == Some(*name)).unwrap_or(OTHER)
}

fn row_height(layers: usize) -> f64 {
    (1900.0 / layers.max(1) as f64).floor().clamp(14.0, 24.0)
}

/// The layers to draw.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// The bars, one row each.
    pub bars: &'a [Bar],
    /// Quantity that the bars show.
    pub measure: Measure,
    /// Name of the marks beside the bars, for the legend.
    pub mark: &'a str,
}

impl Layers<'_> {
    /// A picture of only these layers.
    pub fn svg(&self, width: f64) -> Svg {
        let mut svg = Svg::new(width, 0.0);
        draw(self, &mut svg, Area::new(0.0, 0.0, width, 0.0));
        svg
    }
}

/// Draws the layers from the top of `area` on. The picture grows as needed.
pub(super) fn draw(layers: &Layers<'_>, svg: &mut Svg, area: Area) {
    let narrow = area.right - area.left < 500.0;
    let mut entries: Vec<(&str, Colour)> = METHODS.into_iter().chain([OTHER]).collect();
    entries.retain(|entry| layers.bars.iter().any(|bar| method(&bar.label) == *entry));
    if layers.bars.iter().any(|bar| bar.mark.is_some()) {
        entries.push((layers.mark, INK));
    }
    let first = legend(svg, &entries, (area.left, area.top + 8.0), area.right, 13.0) + 16.0;
    let row = row_height(layers.bars.len());
    let letters = (row - 2.0).min(if narrow { 12.0 } else { 13.0 });
    let (most_name, most_label) = if narrow { (0.42, 0.26) } else { (0.3, 0.25) };
    let widest = |texts: &mut dyn Iterator<Item = &str>, most: f64| {
        texts.map(|text| text_width(text, letters)).fold(0.0, f64::max).min(most * (area.right - area.left))
    };
    let names = widest(&mut layers.bars.iter().map(|bar| &*bar.name), most_name);
    let labels = widest(&mut layers.bars.iter().map(|bar| &*bar.label), most_label);
    let values = |bar: &Bar| [Some(bar.chosen), bar.mark].into_iter().flatten();
    let (low, high) = span(layers.bars.iter().flat_map(values));
    let start = area.left + names + 10.0;
    let scale = Scale::log((low / 1.5, high * 1.1), (start, area.right - labels - 10.0));
    let bottom = first + row * layers.bars.len() as f64;
    svg.grow(bottom + 42.0);
    for (tick, text) in scale.ticks(&|value| layers.measure.write(value), 12.0, true) {
        let x = scale.at(tick);
        svg.line([(x, first - 4.0), (x, bottom + 4.0)], GRID, 1.0);
        svg.text(&text, (x, bottom + 16.0), 12.0, MUTED, Anchor::Middle);
    }
    for (index, bar) in layers.bars.iter().enumerate() {
        let top = first + row * index as f64;
        let (middle, end) = (top + row / 2.0, scale.at(bar.chosen));
        let label = cut(&bar.label, letters, labels);
        svg.text(&cut(&bar.name, letters, names), (start - 8.0, middle), letters, INK, Anchor::End);
        let tip = format!("{}: {}, {}", bar.name, bar.label, layers.measure.write(bar.chosen));
        svg.rect(Area::new(start, top + 2.0, end.max(start + 1.0), top + row - 2.0), method(&bar.label).1, &tip);
        let mut label_at = end;
        if let Some(mark) = bar.mark {
            let x = scale.at(mark);
            svg.line([(x, top), (x, top + row)], INK, 2.0);
            if x > end && x < end + text_width(&label, letters) + 14.0 {
                label_at = x;
            }
        }
        svg.text(&label, (label_at + 6.0, middle), letters, MUTED, Anchor::Start);
    }
}
