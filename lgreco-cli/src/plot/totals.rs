//! Size before and after.

use super::{Area, CHOSEN, DEFAULT, Drawn, INK, MARGIN, MUTED, Picture, heading, text};
use crate::units;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const LEFT: i32 = MARGIN;
const FULL: i32 = 470;

pub(super) fn draw(picture: &Picture, area: &Area<'_>) -> Drawn {
    let note = match picture.uncompressed {
        Some(size) => format!("one worker's payloads; uncompressed these layers are {}", units::bits(size)),
        None => "one worker's payloads".into(),
    };
    heading(area, "Size", &note, (LEFT, 84))?;
    let largest = picture.default.map_or(0, |point| point.size).max(picture.chosen.size).max(1);
    let mut top = 146;
    let mut bar = |name: &str, size: u64, colour: &RGBColor| -> Drawn {
        let width = (FULL as f64 * size as f64 / largest as f64).round() as i32;
        text(area, name, (LEFT, top), 14, &INK, HPos::Left)?;
        let ratio = picture.uncompressed.map_or_else(String::new, |whole| format!("  ({})", units::ratio(whole, size)));
        let label = format!("{}{ratio}", units::bits(size));
        text(area, &label, (LEFT + FULL, top), 14, &INK, HPos::Right)?;
        area.draw(&Rectangle::new([(LEFT, top + 13), (LEFT + FULL, top + 41)], DEFAULT.mix(0.15).filled()))?;
        area.draw(&Rectangle::new([(LEFT, top + 13), (LEFT + width.max(1), top + 41)], colour.filled()))?;
        top += 78;
        Ok(())
    };
    if let Some(default) = picture.default {
        bar(&picture.default_name, default.size, &DEFAULT)?;
    }
    bar("this plan", picture.chosen.size, &CHOSEN)?;
    for line in &picture.notes {
        text(area, line, (LEFT, top), 14, &MUTED, HPos::Left)?;
        top += 22;
    }
    Ok(())
}
