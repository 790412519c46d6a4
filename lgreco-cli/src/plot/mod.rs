//! A plan as a picture: totals and the error/size frontier on top, every layer below.

mod frontier;
mod layers;
mod totals;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Heading.
    pub title: String,
    /// Bits of the uncompressed layers, when known.
    pub uncompressed: Option<u64>,
    /// The default's plan, when the table has one.
    pub default: Option<Point>,
    /// What the default is called.
    pub default_name: String,
    /// The plan.
    pub chosen: Point,
    /// What else there is to say about the plan, line by line.
    pub notes: Vec<String>,
    /// Optimal plans over budgets, ascending.
    pub frontier: Vec<Point>,
    /// Every layer.
    pub layers: Vec<Bar>,
}

/// A plan's place between error and size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The error budget.
    pub budget: f64,
    /// Bits.
    pub size: u64,
}

/// A layer's chosen and default option.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The layer's name.
    pub name: String,
    /// The chosen option's label.
    pub label: String,
    /// Payload bits per element under the chosen option.
    pub chosen: f64,
    /// Payload bits per element under the default option, when there is one.
    pub default: Option<f64>,
}

const WIDTH: u32 = 1120;
const MARGIN: i32 = 28;
const TOP: u32 = 390;
const INK: RGBColor = RGBColor(0x26, 0x2b, 0x33);
const MUTED: RGBColor = RGBColor(0x6b, 0x73, 0x80);
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);
const DEFAULT: RGBColor = RGBColor(0x9a, 0xa3, 0xae);
const CHOSEN: RGBColor = RGBColor(0x2f, 0x6f, 0xb5);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Picture {
    /// Draws the picture as SVG.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("drawing into a string cannot fail");
        svg
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let height = TOP + layers::height(self.layers.len());
        let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        text(&root, &self.title, (MARGIN, 34), 21, &INK, HPos::Left)?;
        let (top, bottom) = root.split_vertically(TOP);
        let (left, right) = top.split_horizontally(WIDTH / 2 - 20);
        totals::draw(self, &left)?;
        frontier::draw(self, &right)?;
        layers::draw(self, &bottom)?;
        drop((left, right, bottom, top));
        root.present()?;
        Ok(())
    }
}

/// Writes `words` with their middle line at `at`.
fn text(area: &Area<'_>, words: &str, at: (i32, i32), size: i32, colour: &RGBColor, anchor: HPos) -> Drawn {
    let style = ("sans-serif", size).into_font().color(colour).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

fn heading(area: &Area<'_>, words: &str, note: &str, at: (i32, i32)) -> Drawn {
    text(area, words, at, 17, &INK, HPos::Left)?;
    text(area, note, (at.0, at.1 + 21), 13, &MUTED, HPos::Left)
}

/// The smallest and largest of the values above 0.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.filter(|&v| v > 0.0).fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)))
}
