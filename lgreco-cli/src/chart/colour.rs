//! Colours that are readable on white and on a dark page.

use std::fmt::Write;

/// A colour, with variants for light and dark pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// The colour's name in style sheets.
    pub name: &'static str,
    /// The value for white pages.
    pub light: &'static str,
    /// The value for dark pages.
    pub dark: &'static str,
}

const fn colour(name: &'static str, light: &'static str, dark: &'static str) -> Colour {
    Colour { name, light, dark }
}

/// Colour of text.
pub const INK: Colour = colour("ink", "#262b33", "#e4e7ec");
/// Colour of less important text.
pub const MUTED: Colour = colour("muted", "#626a76", "#9da6b3");
/// Colour of lines behind the data.
pub const GRID: Colour = colour("grid", "#e3e6ea", "#2f353e");
/// Colour of the page.
pub const PAPER: Colour = colour("paper", "#ffffff", "#14171c");
/// Colour of the unfilled part of a bar.
pub const TRACK: Colour = colour("track", "#f0f1f3", "#23282f");
/// Colour of data for comparison.
pub const GREY: Colour = colour("grey", "#8a93a0", "#8a93a0");
/// A colour for data.
pub const BLUE: Colour = colour("blue", "#2f6fb5", "#6aa5e6");
/// A colour for data.
pub const ORANGE: Colour = colour("orange", "#d0751a", "#eda04e");
/// A colour for data.
pub const GREEN: Colour = colour("green", "#3f956c", "#5fc092");
/// A colour for data.
pub const RED: Colour = colour("red", "#b04a5a", "#e58796");
/// A colour for data.
pub const VIOLET: Colour = colour("violet", "#70608f", "#b1a0d8");
/// A colour for data.
pub const TEAL: Colour = colour("teal", "#21858f", "#58bcc6");

/// Colours of a chart's series, first series first. A chart has at most as many series as there are colours.
pub const SERIES: [Colour; 6] = [BLUE, ORANGE, GREEN, RED, VIOLET, TEAL];

const ALL: [Colour; 12] = [INK, MUTED, GRID, PAPER, TRACK, GREY, BLUE, ORANGE, GREEN, RED, VIOLET, TEAL];

/// Rules of a style sheet that give drawn elements their dark colours.
pub fn dark_rules() -> String {
    ALL.iter().fold(String::new(), |mut rules, Colour { name, dark, .. }| {
        let _ = write!(rules, ".{name}{{fill:{dark}}}.{name}-line{{stroke:{dark}}}");
        rules
    })
}

/// The colours as variables of a style sheet, `--ink` and so on.
pub fn variables(dark: bool) -> String {
    ALL.iter().fold(String::new(), |mut rules, colour| {
        let _ = write!(rules, "--{}:{};", colour.name, if dark { colour.dark } else { colour.light });
        rules
    })
}
