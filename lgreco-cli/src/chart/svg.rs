//! Writes an SVG picture.

use super::{Area, Colour, PAPER, dark_rules};
use std::fmt::Write;

/// An SVG picture. Lengths are in pixels, and y grows downwards.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Which part of a text is placed at the given point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its first character.
    Start,
    /// Its middle.
    Middle,
    /// Its last character.
    End,
}

impl Svg {
    /// An empty picture.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    /// Makes the picture at least `height` high.
    pub fn grow(&mut self, height: f64) {
        self.height = self.height.max(height);
    }

    /// Draws a rectangle. If `tip` is not empty, readers who point at the rectangle see this text.
    pub fn rect(&mut self, area: Area, colour: Colour, tip: &str) {
        let Area { left, top, right, bottom } = area;
        let (width, height) = (number(right - left), number(bottom - top));
        let Colour { name, light, .. } = colour;
        let shape = format!(
            "<rect class=\"{name}\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{height}\" fill=\"{light}\"",
            number(left),
            number(top)
        );
        self.shape(&shape, "rect", tip);
    }

    /// Draws a disc. If `tip` is not empty, readers who point at the disc see this text.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, colour: Colour, tip: &str) {
        let Colour { name, light, .. } = colour;
        let (x, y, radius) = (number(at.0), number(at.1), number(radius));
        self.shape(
            &format!("<circle class=\"{name}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{light}\""),
            "circle",
            tip,
        );
    }

    fn shape(&mut self, shape: &str, tag: &str, tip: &str) {
        self.body += shape;
        self.body += &match tip {
            "" => "/>\n".to_owned(),
            _ => format!("><title>{}</title></{tag}>\n", escaped(tip)),
        };
    }

    /// Draws a line through all points.
    pub fn line(&mut self, points: impl IntoIterator<Item = (f64, f64)>, colour: Colour, width: f64) {
        let places = points.into_iter().fold(String::new(), |mut all, (x, y)| {
            let _ = write!(all, "{}{},{}", if all.is_empty() { "" } else { " " }, number(x), number(y));
            all
        });
        let Colour { name, light, .. } = colour;
        let width = number(width);
        let _ = writeln!(
            self.body,
            "<polyline class=\"{name}-line\" points=\"{places}\" fill=\"none\" stroke=\"{light}\" stroke-width=\"{width}\"/>"
        );
    }

    /// Writes a text. `at` is at half the height of the letters.
    pub fn text(&mut self, words: &str, at: (f64, f64), size: f64, colour: Colour, anchor: Anchor) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let Colour { name, light, .. } = colour;
        let (x, y, size) = (number(at.0), number(at.1 + 0.35 * size), number(size));
        let _ = writeln!(
            self.body,
            "<text class=\"{name}\" x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{light}\">{}</text>",
            escaped(words)
        );
    }

    /// The picture as a file, with a background. `label` describes the picture for screen readers.
    pub fn file(&self, label: &str) -> String {
        let mut paper = Svg::new(self.width, self.height);
        paper.rect(Area::new(0.0, 0.0, self.width, self.height), PAPER, "");
        let style = format!("<style>@media (prefers-color-scheme:dark){{{}}}</style>\n", dark_rules());
        self.element(
            label,
            &format!(" width=\"{}\" height=\"{}\"", number(self.width), number(self.height)),
            &(style + &paper.body),
        )
    }

    /// The picture as an element of a page whose style sheet has the colours. The picture is never wider than the
    /// element around it.
    pub fn element_of_page(&self, label: &str) -> String {
        self.element(label, &format!(" style=\"max-width:{}px\"", number(self.width)), "")
    }

    fn element(&self, label: &str, attributes: &str, before: &str) -> String {
        let (width, height) = (number(self.width), number(self.height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\"{attributes} role=\"img\" \
             aria-label=\"{}\" font-family=\"system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif\">\n{before}{}</svg>\n",
            escaped(label),
            self.body
        )
    }
}

/// Formats `x` with at most one decimal, without an exponent. Values that are not finite become 0.
fn number(x: f64) -> String {
    let tenths = (x * 10.0).round() / 10.0;
    if tenths.is_finite() { format!("{}", tenths.clamp(-1e6, 1e6) + 0.0) } else { "0".into() }
}

/// Escapes `text` for XML and HTML, between tags or within quotes. Forbidden characters are replaced by U+FFFD.
pub fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut all, c| {
        match c {
            '&' => all += "&amp;",
            '<' => all += "&lt;",
            '>' => all += "&gt;",
            '"' => all += "&quot;",
            '\'' => all += "&#39;",
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => all.push('\u{fffd}'),
            _ => all.push(c),
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::INK;

    #[test]
    fn what_is_drawn_is_xml_whatever_texts_and_places_are() {
        let hostile = "</text><script>alert('1')</script>&\u{0}\u{ffff}\"";
        let mut svg = Svg::new(100.0, 50.0);
        svg.text(hostile, (f64::NAN, f64::INFINITY), 12.0, INK, Anchor::End);
        svg.rect(Area::new(0.0, 0.0, 1e300, -0.0), INK, hostile);
        svg.dot((1.0 / 3.0, -0.01), 4.0, INK, "");
        svg.line([(0.0, 0.0), (10.0, 20.5)], INK, 2.0);
        for text in [svg.file(hostile), svg.element_of_page(hostile)] {
            let document = roxmltree::Document::parse(&text).unwrap();
            assert!(!document.descendants().any(|node| node.tag_name().name() == "script"), "{text}");
            let words = document.descendants().find(|node| node.tag_name().name() == "text").unwrap();
            assert_eq!(words.text(), Some("</text><script>alert('1')</script>&\u{fffd}\u{fffd}\""));
            assert!(text.contains("points=\"0,0 10,20.5\"") && text.contains("cx=\"0.3\" cy=\"0\""), "{text}");
            assert!(!text.contains("e300") && !text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
