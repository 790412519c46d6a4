//! Every layer's chosen setting against its default.

use super::{Area, Bar, CHOSEN, Drawn, GRID, INK, MARGIN, MUTED, Picture, WIDTH, heading, span, text};
use crate::units;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const HEAD: i32 = 78;
const FOOT: i32 = 44;
const NAMES: i32 = 300;
const LABELS: i32 = 110;

/// Colours of the methods, by the word a label begins with.
const METHODS: [(&str, RGBColor); 5] = [
    ("eden", CHOSEN),
    ("qsgd", RGBColor(0xb0, 0x4a, 0x5a)),
    ("topk", RGBColor(0xdd, 0x84, 0x2a)),
    ("powersgd", RGBColor(0x3f, 0x95, 0x6c)),
    ("dense", RGBColor(0x70, 0x60, 0x8f)),
];

fn method(label: &str) -> Option<usize> {
    METHODS.iter().position(|(name, _)| label.split(' ').next() == Some(*name))
}

fn row_height(layers: usize) -> i32 {
    (1900 / layers.max(1) as i32).clamp(14, 24)
}

pub(super) fn height(layers: usize) -> u32 {
    (HEAD + FOOT + row_height(layers) * layers as i32) as u32
}

/// A logarithmic axis in pixels.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn around(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = span(values);
        if low > high { Axis { low: 0.5, high: 2.0 } } else { Axis { low: low / 1.5, high: high * 1.1 } }
    }

    fn pixel(&self, value: f64) -> i32 {
        let width = WIDTH as i32 - MARGIN - LABELS - NAMES;
        let part = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        NAMES + (part * width as f64).round() as i32
    }

    /// Round multiples of powers of ten, the fewer the longer the axis.
    fn ticks(&self) -> Vec<f64> {
        let steps: &[f64] = match self.high / self.low {
            0.0..8.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            8.0..200.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|tick| (self.low..self.high).contains(tick)).collect()
    }
}

pub(super) fn draw(picture: &Picture, area: &Area<'_>) -> Drawn {
    heading(area, "Layers", "payload bits per element, logarithmic", (MARGIN, 10))?;
    legend(picture, area)?;
    let row = row_height(picture.layers.len());
    let bottom = HEAD + row * picture.layers.len() as i32;
    let values = |bar: &Bar| [Some(bar.chosen), bar.default].into_iter().flatten();
    let axis = Axis::around(picture.layers.iter().flat_map(values));
    for tick in axis.ticks() {
        let x = axis.pixel(tick);
        area.draw(&PathElement::new([(x, HEAD - 4), (x, bottom + 4)], GRID))?;
        text(area, &number(tick), (x, bottom + 16), 13, &MUTED, HPos::Center)?;
    }
    let letters = (row - 2).min(14);
    for (index, bar) in picture.layers.iter().enumerate() {
        let top = HEAD + row * index as i32;
        let middle = top + row / 2;
        let end = axis.pixel(bar.chosen);
        let colour = method(&bar.label).map_or(CHOSEN, |index| METHODS[index].1);
        text(area, &shortened(&bar.name, 38), (NAMES - 10, middle), letters, &INK, HPos::Right)?;
        area.draw(&Rectangle::new([(NAMES, top + 2), (end, top + row - 2)], colour.filled()))?;
        let mut label_at = end;
        if let Some(default) = bar.default {
            let x = axis.pixel(default);
            area.draw(&PathElement::new([(x, top), (x, top + row)], INK.stroke_width(2)))?;
            if (x - end).abs() < 90 {
                label_at = end.max(x);
            }
        }
        text(area, &bar.label, (label_at + 7, middle), letters, &MUTED, HPos::Left)?;
    }
    Ok(())
}

fn legend(picture: &Picture, area: &Area<'_>) -> Drawn {
    let mut x = NAMES;
    let present = METHODS
        .iter()
        .enumerate()
        .filter(|(index, _)| picture.layers.iter().any(|bar| method(&bar.label) == Some(*index)));
    for (_, (name, colour)) in present {
        area.draw(&Rectangle::new([(x, 24), (x + 14, 38)], colour.filled()))?;
        text(area, name, (x + 20, 31), 13, &INK, HPos::Left)?;
        x += 34 + 8 * name.len() as i32;
    }
    if picture.layers.iter().any(|bar| bar.default.is_some()) {
        area.draw(&PathElement::new([(x + 4, 22), (x + 4, 40)], INK.stroke_width(2)))?;
        text(area, "default setting", (x + 12, 31), 13, &INK, HPos::Left)?;
    }
    Ok(())
}

fn number(tick: f64) -> String {
    if (0.001..100_000.0).contains(&tick) {
        format!("{}", (tick * 1e6).round() / 1e6)
    } else {
        units::significant(tick)
    }
}

/// At most `limit` characters, with the middle left out.
fn shortened(name: &str, limit: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= limit {
        return name.into();
    }
    let (head, tail) = (limit / 3, limit - limit / 3 - 1);
    letters[..head].iter().chain(&['…']).chain(&letters[letters.len() - tail..]).collect()
}
