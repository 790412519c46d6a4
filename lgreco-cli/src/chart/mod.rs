//! Draws charts as SVG, in light and dark colours, for plan pictures, pages and this project's trainers.

mod area;
mod colour;
mod labels;
mod lines;
mod scale;
mod svg;

pub use area::Area;
pub use colour::{
    BLUE, Colour, GREEN, GREY, GRID, INK, MUTED, ORANGE, PAPER, RED, SERIES, TEAL, TRACK, VIOLET, dark_rules, variables,
};
pub use labels::{Labels, legend, shortened, text_width};
pub use lines::{Axis, Chart, Kind, Series};
pub use scale::Scale;
pub use svg::{Anchor, Svg, escaped};
