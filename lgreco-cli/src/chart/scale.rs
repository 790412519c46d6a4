//! Maps values to pixels.

use super::text_width;

/// An axis that maps the values from `low` to `high` to the pixels from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
    first: f64,
    last: f64,
}

impl Scale {
    /// A linear axis: `low` is at pixel `first`. If an end is not finite, or if both ends are equal, the range is
    /// changed so that it is valid.
    pub fn linear((low, high): (f64, f64), (first, last): (f64, f64)) -> Scale {
        let (low, high) = if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        let room = if high / 2.0 - low / 2.0 > f64::MIN_POSITIVE { 0.0 } else { low.abs().max(1.0) / 2.0 };
        let (low, high) = ((low - room).max(f64::MIN), (high.max(low) + room).min(f64::MAX));
        Scale { low, high, log: false, first, last }
    }

    /// A logarithmic axis. If an end is not positive or too close to the limits of f64, the axis goes from 0.5 to 2.
    pub fn log((low, high): (f64, f64), (first, last): (f64, f64)) -> Scale {
        let possible = low > 1e-300 && high < 1e300 && high >= low;
        let (low, high) = if possible { (low, high) } else { (0.5, 2.0) };
        let room = if high > low { 1.0 } else { 2.0 };
        let (low, high) = (low / room, high * room);
        Scale { low, high, log: true, first, last }
    }

    /// Pixel coordinate of a value. A value outside the axis gets the coordinate of the nearer end.
    pub fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let part = if self.log {
            (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0)
        };
        self.first + part * (self.last - self.first)
    }

    /// Returns up to 8 round values whose texts fit on the axis at this font size. `beside` is true if the texts are
    /// side by side, and false if they are one above another.
    pub fn ticks(&self, write: &dyn Fn(f64) -> String, size: f64, beside: bool) -> Vec<(f64, String)> {
        let room = |ticks: &[(f64, String)]| {
            ticks.windows(2).all(|pair| {
                let distance = (self.at(pair[1].0) - self.at(pair[0].0)).abs();
                let widths = pair.iter().map(|(_, text)| text_width(text, size)).sum::<f64>() / 2.0 + size;
                pair[0].1 != pair[1].1 && distance >= if beside { widths } else { 2.2 * size }
            })
        };
        let sets = (1..=8).rev().map(|most| self.round_values(most));
        let sets = sets.map(|values| values.into_iter().map(|value| (value, write(value))).collect::<Vec<_>>());
        sets.into_iter().find(|ticks| ticks.len() > 1 && room(ticks)).unwrap_or_default()
    }

    /// At most `most` round values between the ends of the axis.
    fn round_values(&self, most: usize) -> Vec<f64> {
        if !self.log || self.high < 3.0 * self.low {
            return linear_values(self.low, self.high, most);
        }
        let decades = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let of = |steps: &[f64], every: usize| -> Vec<f64> {
            let all = (decades.0..=decades.1).step_by(every).flat_map(|decade| steps.iter().map(move |s| (decade, *s)));
            let values = all.map(|(decade, step)| format!("{step}e{decade}").parse::<f64>().unwrap_or(0.0));
            values.filter(|value| (self.low..=self.high).contains(value)).collect()
        };
        let dense = [&[1.0, 2.0, 3.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0]].map(|steps| of(steps, 1));
        let sparse = [1, 2, 3, 5, 10, 20, 50, 100, 200].map(|every| of(&[1.0], every));
        dense.into_iter().chain(sparse).find(|values| values.len() <= most).unwrap_or_default()
    }
}

/// Multiples of 1, 2 or 5 times a power of ten.
fn linear_values(low: f64, high: f64, most: usize) -> Vec<f64> {
    let step = high / most as f64 - low / most as f64;
    let decade = step.log10().floor() as i32;
    let steps = (decade..=decade + 1).flat_map(|decade| [1.0, 2.0, 5.0].map(|part| (part, decade)));
    for (part, decade) in steps {
        // Divides by powers of ten, because their inverses are not exact: three tenths must give 0.3.
        let (step, whole) = (part * 10f64.powi(decade), 10f64.powi(-decade));
        let (first, last) = ((low / step).ceil(), (high / step).floor());
        if step > 0.0 && last - first < most as f64 {
            let multiples = (0..most).map(|index| first + index as f64).take_while(|&multiple| multiple <= last);
            return multiples
                .map(|multiple| if decade < 0 { multiple * part / whole } else { multiple * step })
                .collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: Scale, beside: bool) -> Vec<String> {
        scale.ticks(&|x| format!("{x}"), 12.0, beside).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_and_as_many_as_fit() {
        assert_eq!(texts(Scale::linear((0.0, 1.0), (300.0, 0.0)), false), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(texts(Scale::linear((0.0, 1.0), (60.0, 0.0)), false), ["0", "0.5", "1"]);
        assert_eq!(texts(Scale::linear((-0.4, 2.9), (0.0, 400.0)), true), ["0", "0.5", "1", "1.5", "2", "2.5"]);
        assert_eq!(
            texts(Scale::log((20.0, 4000.0), (0.0, 400.0)), true),
            ["20", "50", "100", "200", "500", "1000", "2000"]
        );
        assert_eq!(texts(Scale::log((1.0, 1e9), (0.0, 200.0)), true), ["1", "100000"]);
        assert_eq!(texts(Scale::log((2.0, 5.0), (0.0, 400.0)), true), ["2", "2.5", "3", "3.5", "4", "4.5", "5"]);
    }

    #[test]
    fn whatever_the_ends_are_places_are_finite() {
        let ends =
            [0.0, -0.0, 1.0, -1.0, 1e-300, 5e-324, f64::MAX, f64::MIN, f64::INFINITY, f64::NAN, 1.0 + f64::EPSILON];
        for low in ends {
            for high in ends {
                for scale in [Scale::linear((low, high), (0.0, 100.0)), Scale::log((low, high), (0.0, 100.0))] {
                    assert!(texts(scale, false).len() <= 8, "{scale:?}");
                    for value in ends.into_iter().filter(|value| !value.is_nan()) {
                        let at = scale.at(value);
                        assert!((-0.1..=100.1).contains(&at), "{scale:?}: {value} at {at}");
                    }
                }
            }
        }
    }
}
