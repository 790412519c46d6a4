//! Places texts so that they do not cover each other.

use super::{Anchor, Area, Colour, INK, Svg};

/// Largest width of a text in pixels, in the fonts that browsers use. DejaVu Sans is the widest of these fonts.
pub fn text_width(text: &str, size: f64) -> f64 {
    let of = |c: char| match c {
        'i' | 'j' | 'l' | '\'' | '.' | ',' | ':' | ';' | '|' | '!' | ' ' | 'I' => 0.35,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' => 1.0,
        'A'..='Z' | '_' | '+' | '=' | '<' | '>' | '×' | '~' | '#' | '&' => 0.84,
        c if (c as u32) < 0x2000 => 0.65,
        _ => 1.05,
    };
    size * text.chars().map(of).sum::<f64>()
}

/// Shortens `name` to at most `width` pixels by leaving out its middle.
pub fn shortened(name: &str, size: f64, width: f64) -> String {
    if text_width(name, size) <= width {
        return name.into();
    }
    // The narrowest letters are a third as wide as the font size.
    let most = (3.0 * width.max(0.0) / size) as usize + 1;
    let letters: Vec<char> = name.chars().collect();
    let with = |count: usize| -> String {
        let head = count / 3;
        letters[..head].iter().chain(&['…']).chain(&letters[letters.len() - (count - head)..]).collect()
    };
    let fits = |count: &usize| text_width(&with(*count), size) <= width;
    with((1..letters.len().min(most)).rev().find(fits).unwrap_or(1))
}

/// Areas of a chart that texts must not cover, including earlier texts.
#[derive(Clone, Debug)]
pub struct Labels {
    within: Area,
    taken: Vec<Area>,
    marks: Vec<(f64, f64)>,
}

impl Labels {
    /// Restricts texts to `within`. At first no area is taken.
    pub fn new(within: Area) -> Labels {
        Labels { within, taken: Vec::new(), marks: Vec::new() }
    }

    /// Keeps texts off this area.
    pub fn take(&mut self, area: Area) {
        self.taken.push(area);
    }

    /// Keeps texts off this mark. If possible, each text also stays nearer to its own point than to this mark.
    pub fn take_mark(&mut self, (x, y): (f64, f64)) {
        self.take(Area::new(x - 6.0, y - 6.0, x + 6.0, y + 6.0));
        self.marks.push((x, y));
    }

    /// Keeps texts at least `room` pixels away from this line.
    pub fn take_line(&mut self, points: &[(f64, f64)], room: f64) {
        for pair in points.windows(2) {
            let ((x, y), (dx, dy)) = (pair[0], (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1));
            let parts = (dx.abs().max(dy.abs()) / 6.0).ceil().clamp(1.0, 1000.0);
            for part in 0..=parts as usize {
                let (x, y) = (x + dx * part as f64 / parts, y + dy * part as f64 / parts);
                self.take(Area::new(x - room, y - room, x + room, y + room));
            }
        }
    }

    /// Writes `words` as near to `at` as possible without covering anything. If possible, the text stays nearer to `at`
    /// than to other marks. A line joins a distant text to `at`. If the text fits nowhere, nothing is written.
    pub fn write(&mut self, svg: &mut Svg, words: &str, at: (f64, f64), size: f64) {
        let (width, height) = (text_width(words, size), 1.2 * size);
        let distances = |is_strict| (8..200).step_by(6).map(move |distance| (is_strict, f64::from(distance)));
        for (is_strict, distance) in distances(true).chain(distances(false)) {
            // Tries the right side first, then above and below, then the left side.
            let slant = 0.7 * distance;
            let (right, left) = (at.0 + distance, at.0 - distance - width);
            let (near_right, near_left, middle) = (at.0 + slant, at.0 - slant - width, at.0 - width / 2.0);
            let (above, below) = (at.1 - slant - height / 2.0, at.1 + slant + height / 2.0);
            let (over, under) = (at.1 - distance - height / 2.0, at.1 + distance + height / 2.0);
            let places = [
                (right, at.1),
                (near_right, above),
                (near_right, below),
                (middle, over),
                (middle, under),
                (near_left, above),
                (near_left, below),
                (left, at.1),
            ];
            for (x, y) in places {
                let area = Area::new(x, y - height / 2.0, x + width, y + height / 2.0);
                if area.is_within(&self.within)
                    && !self.taken.iter().any(|taken| taken.meets(&area))
                    && !(is_strict
                        && self.marks.iter().any(|&mark| mark != at && area.distance(mark) <= area.distance(at)))
                {
                    self.take(area);
                    if distance > 20.0 {
                        let end = (at.0.clamp(area.left, area.right), at.1.clamp(area.top, area.bottom));
                        svg.line([at, end], super::GREY, 1.0);
                    }
                    svg.text(words, (x, y), size, INK, Anchor::Start);
                    return;
                }
            }
        }
    }

    /// Writes texts in one column at the right end. Each text is as near as possible to the height of its point,
    /// without covering another text. A line in the text's colour joins the text to its point.
    pub fn column(&mut self, svg: &mut Svg, texts: &[(&str, Colour, (f64, f64))], size: f64) {
        let within = (self.within.top, self.within.bottom);
        let x = self.within.right - texts.iter().map(|(words, ..)| text_width(words, size)).fold(0.0, f64::max);
        let step = 1.25 * size;
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by(|&a, &b| texts[a].2.1.total_cmp(&texts[b].2.1));
        // The first pass, from top to bottom, moves each text below the previous text. The second pass, from bottom to
        // top, moves texts that are below the chart back into the chart.
        let mut heights: Vec<f64> = Vec::new();
        for &text in &order {
            let least = heights.last().map_or(within.0 + size / 2.0, |above| above + step);
            heights.push(texts[text].2.1.max(least));
        }
        let mut most = within.1 - size / 2.0;
        for height in heights.iter_mut().rev() {
            *height = height.min(most);
            most = *height - step;
        }
        for (&text, y) in order.iter().zip(heights) {
            let (words, colour, from) = texts[text];
            svg.line([from, (x - 12.0, y), (x - 5.0, y)], colour, 1.0);
            svg.text(words, (x, y), size, INK, Anchor::Start);
        }
        self.take(Area { left: x - 12.0, ..self.within });
    }
}

/// Draws a legend in rows from `at` on, up to the pixel `right`. Returns the height below the last row.
pub fn legend(svg: &mut Svg, entries: &[(&str, Colour)], at: (f64, f64), right: f64, size: f64) -> f64 {
    let (mut x, mut y) = at;
    for (words, colour) in entries {
        let width = 20.0 + text_width(words, size);
        if x > at.0 && x + width > right {
            (x, y) = (at.0, y + 1.6 * size);
        }
        svg.rect(Area::new(x, y - 6.0, x + 13.0, y + 6.0), *colour, "");
        svg.text(words, (x + 18.0, y), size, INK, Anchor::Start);
        x += width + 14.0;
    }
    y + size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::SERIES;
    use crate::testing::labels::{boxes, overlaps};

    #[test]
    fn many_texts_at_one_place_do_not_cover_each_other() {
        let mut svg = Svg::new(400.0, 300.0);
        let mut labels = Labels::new(Area::new(0.0, 0.0, 400.0, 300.0));
        labels.take(Area::new(196.0, 146.0, 204.0, 154.0));
        for index in 0..8 {
            labels.write(&mut svg, &format!("PowerSGD {index}"), (200.0, 150.0), 12.0);
        }
        let svg = svg.file("test");
        assert_eq!((boxes(&svg).len(), overlaps(&svg)), (8, vec![]));
    }

    #[test]
    fn a_column_keeps_its_distances_and_stays_within() {
        let mut svg = Svg::new(400.0, 100.0);
        let texts: Vec<_> = SERIES.iter().map(|&colour| ("plain DDP", colour, (300.0, 95.0))).collect();
        Labels::new(Area::new(0.0, 0.0, 400.0, 100.0)).column(&mut svg, &texts, 12.0);
        let svg = svg.file("test");
        assert_eq!(overlaps(&svg), Vec::<String>::new());
        assert!(boxes(&svg).iter().all(|(_, area)| area.top >= 0.0 && area.bottom <= 101.0), "{svg}");
    }

    #[test]
    fn entries_of_a_legend_go_on_in_the_next_row() {
        let mut svg = Svg::new(300.0, 100.0);
        let entries: Vec<_> = SERIES.iter().map(|&colour| ("lgreco PowerSGD", colour)).collect();
        let bottom = legend(&mut svg, &entries, (10.0, 10.0), 290.0, 12.0);
        let svg = svg.file("test");
        assert_eq!(overlaps(&svg), Vec::<String>::new());
        assert!(bottom > 40.0 && boxes(&svg).iter().all(|(_, area)| area.right <= 300.0), "{svg}");
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shortened("fc1.weight", 12.0, 100.0), "fc1.weight");
        let short = shortened(&"transformer.".repeat(9), 12.0, 100.0);
        assert!(short.starts_with("tra") && short.contains('…') && short.ends_with("former."), "{short}");
        assert!(text_width(&short, 12.0) <= 100.0);
        assert_eq!(shortened("ab", 12.0, 0.0).chars().count(), 2);
    }
}
