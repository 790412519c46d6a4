//! Draws the size before and after compression.

use super::{Picture, cut, heading, paragraph};
use crate::chart::{Anchor, Area, BLUE, Colour, GREY, INK, MUTED, Svg, TRACK, text_width};
use crate::units;

pub(super) fn draw(picture: &Picture, svg: &mut Svg, area: Area) {
    let note = match picture.uncompressed {
        Some(size) => format!("one worker's payloads; uncompressed {}", units::bits(size)),
        None => "one worker's payloads".into(),
    };
    let mut top = heading(svg, "Size", &note, area) + 16.0;
    let largest = picture.default.map_or(0, |point| point.size).max(picture.chosen.size).max(1);
    let full = area.right - area.left;
    let mut bar = |name: &str, size: u64, colour: Colour| {
        let ratio = picture.uncompressed.map_or_else(String::new, |whole| format!(" ({})", units::ratio(whole, size)));
        let label = format!("{}{ratio}", units::bits(size));
        let width = (full * size as f64 / largest as f64).max(1.0);
        svg.text(&cut(name, 13.0, full - text_width(&label, 13.0) - 12.0), (area.left, top), 13.0, INK, Anchor::Start);
        svg.text(&label, (area.right, top), 13.0, INK, Anchor::End);
        svg.rect(Area::new(area.left, top + 12.0, area.right, top + 36.0), TRACK, "");
        svg.rect(Area::new(area.left, top + 12.0, area.left + width, top + 36.0), colour, "");
        top += 66.0;
    };
    if let Some(default) = picture.default {
        bar(&picture.default_name, default.size, GREY);
    }
    bar("this plan", picture.chosen.size, BLUE);
    for line in &picture.notes {
        top = paragraph(svg, line, (area.left, top), 12.0, MUTED, full);
    }
}
