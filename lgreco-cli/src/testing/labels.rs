//! Finds texts that cover each other in pictures.

use crate::chart::{Area, text_width};

/// The texts of an SVG from this crate, each with the area that it covers.
pub fn boxes(svg: &str) -> Vec<(String, Area)> {
    let text = |element: &str| {
        let (attributes, rest) = element.split_once('>')?;
        let (words, _) = rest.split_once("</text>")?;
        let attribute = |name: &str| attributes.split_once(&format!(" {name}=\""))?.1.split('"').next();
        let number = |name: &str| attribute(name)?.parse::<f64>().ok();
        let words = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")]
            .iter()
            .fold(words.to_owned(), |words, (code, sign)| words.replace(code, sign));
        let (x, y, size) = (number("x")?, number("y")?, number("font-size")?);
        let width = text_width(&words, size);
        let left = match attribute("text-anchor")? {
            "start" => x,
            "middle" => x - width / 2.0,
            _ => x - width,
        };
        // The area extends from the top of capitals to below the baseline.
        Some((words, Area::new(left, y - 0.75 * size, left + width, y + 0.2 * size)))
    };
    svg.split("<text").skip(1).map(|element| text(element).expect("a text as Svg::text writes it")).collect()
}

/// Describes the texts of an SVG that cover each other or leave the picture at a side.
pub fn overlaps(svg: &str) -> Vec<String> {
    let boxes = boxes(svg);
    let view = svg.split_once("viewBox=\"0 0 ").expect("a picture").1;
    let width: f64 = view.split(' ').next().and_then(|width| width.parse().ok()).expect("a width");
    let mut found = Vec::new();
    for (index, (words, area)) in boxes.iter().enumerate() {
        // Coordinates are rounded to tenths.
        if area.left < -0.1 || area.right > width + 0.1 {
            found.push(format!("`{words}` leaves the picture: {area:?}"));
        }
        for (other, place) in &boxes[..index] {
            let beside = area.left >= place.right || place.left >= area.right;
            if !beside && area.top < place.bottom && place.top < area.bottom {
                found.push(format!("`{words}` covers `{other}`: {area:?}, {place:?}"));
            }
        }
    }
    found
}
