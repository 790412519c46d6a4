//! What sending costs, learnt from the steps themselves.
//!
//! A step's exchange takes `constant + bytes · seconds per byte`, without what this rank computes for it. The constant holds
//! latencies, and, where buckets travel while the backward pass goes on, that pass: what is hidden behind it costs nothing. So the
//! time of a whole step's exchange counts, not that of each collective, in which others' and the pass would be counted too.

use alloc::vec::Vec;

/// Different numbers of bytes, and how long they took when they were last sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Link {
    /// The newest last.
    levels: Vec<Level>,
    /// The last fit's seconds that do not depend on bytes.
    constant: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    bytes: f64,
    seconds: f64,
}

/// How long steps take by their bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub constant: f64,
    pub per_byte: f64,
}

/// Numbers of bytes nearer than this are one level.
const SAME_BYTES: f64 = 0.1;
/// Seconds at a level that differ by more are those of another link.
const SAME_SECONDS: f64 = 0.15;
const LEVELS: usize = 4;

fn near(a: f64, b: f64, within: f64) -> bool {
    (a - b).abs() <= within * a.abs().max(b.abs())
}

impl Link {
    /// Takes note of a typical step since the last decision.
    ///
    /// Nothing tells whether a level of before still holds but the next time at it. Where that is another one the link has
    /// changed: all other levels are of the past, and the constant is believed.
    pub(super) fn note(&mut self, bytes: f64, seconds: f64) {
        let known = self.levels.iter().position(|level| near(level.bytes, bytes, SAME_BYTES));
        let known = known.map(|at| self.levels.remove(at));
        let level = match known {
            Some(known) if near(known.seconds, seconds, SAME_SECONDS) => {
                Level { bytes, seconds: (known.seconds + seconds) / 2.0 }
            }
            Some(_) => {
                self.levels.clear();
                Level { bytes, seconds }
            }
            None => {
                // Fewer bytes do not take longer on the same link.
                self.levels.retain(|old| (old.bytes > bytes) == (old.seconds > seconds * (1.0 - SAME_SECONDS)));
                Level { bytes, seconds }
            }
        };
        if self.levels.len() == LEVELS {
            self.levels.remove(0);
        }
        self.levels.push(level);
        self.constant = self.line().map_or(0.0, |line| line.constant);
    }

    /// Through the levels, newer ones first of all; `None` before the first.
    ///
    /// Of one level alone the constant is the last known, or 0: all of the time is then blamed on the bytes, so that
    /// compression is tried, and the next decision knows.
    pub(super) fn line(&self) -> Option<Line> {
        let newest = self.levels.last()?;
        let through = |constant: f64| Line {
            constant,
            per_byte: if newest.bytes > 0.0 { (newest.seconds - constant) / newest.bytes } else { 0.0 },
        };
        let weight = |age: usize| 1.0 / (1u64 << age.min(LEVELS)) as f64;
        let weighted = || self.levels.iter().rev().enumerate().map(|(age, level)| (weight(age), level));
        let total: f64 = weighted().map(|(weight, _)| weight).sum();
        let mean = |of: fn(&Level) -> f64| weighted().map(|(weight, level)| weight * of(level)).sum::<f64>() / total;
        let (bytes, seconds) = (mean(|level| level.bytes), mean(|level| level.seconds));
        let product = |of: fn(&Level) -> f64, mean: f64| {
            weighted().map(|(weight, level)| weight * (level.bytes - bytes) * (of(level) - mean)).sum::<f64>()
        };
        let (variance, covariance) = (product(|level| level.bytes, bytes), product(|level| level.seconds, seconds));
        if self.levels.len() < 2 || variance <= 0.0 {
            return Some(through(if self.constant < newest.seconds { self.constant } else { 0.0 }));
        }
        let per_byte = (covariance / variance).max(0.0);
        let constant = seconds - per_byte * bytes;
        Some(if constant < 0.0 { through(0.0) } else { Line { constant, per_byte } })
    }

    /// All numbers, for saved states.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        let levels = self.levels.iter().flat_map(|level| [level.bytes, level.seconds]);
        [self.constant, self.levels.len() as f64].into_iter().chain(levels)
    }

    /// The link of these numbers; `None` unless they are all of one.
    pub(super) fn from_numbers(numbers: &[f64]) -> Option<Link> {
        let (&[constant, len], rest) = numbers.split_first_chunk()?;
        let levels: Vec<Level> = rest.as_chunks().0.iter().map(|&[bytes, seconds]| Level { bytes, seconds }).collect();
        let whole = rest.len() == 2 * levels.len() && len == levels.len() as f64 && levels.len() <= LEVELS;
        let sound = numbers.iter().all(|&number| number.is_finite() && number.is_sign_positive());
        (whole && sound).then_some(Link { levels, constant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After steps of so many bytes and seconds.
    fn after(steps: &[(f64, f64)]) -> Line {
        let mut link = Link::default();
        steps.iter().for_each(|&(bytes, seconds)| link.note(bytes, seconds));
        link.line().unwrap()
    }

    fn expect(line: Line, constant: f64, per_byte: f64) {
        assert!((line.constant - constant).abs() <= 1e-9 * constant.max(1e-3), "{line:?}");
        assert!((line.per_byte - per_byte).abs() <= 1e-9 * per_byte, "{line:?}");
    }

    #[test]
    fn one_level_is_all_bytes_and_two_are_a_line() {
        assert_eq!(Link::default().line(), None);
        expect(after(&[(1000.0, 2.0)]), 0.0, 2e-3);
        expect(after(&[(1000.0, 2.0), (100.0, 1.1)]), 1.0, 1e-3);
        expect(after(&[(0.0, 0.5)]), 0.5, 0.0);
        // No constant below 0: a cache, say.
        expect(after(&[(1000.0, 2.0), (100.0, 0.1)]), 0.0, 1e-3);
    }

    #[test]
    fn a_level_that_takes_another_time_is_another_link_behind_the_same_constant() {
        let known = [(1000.0, 2.0), (100.0, 1.1)];
        expect(after(&[&known[..], &[(100.0, 2.0)]].concat()), 1.0, 1e-2);
        // One that takes about as long is the same.
        let line = after(&[&known[..], &[(100.0, 1.0)]].concat());
        expect(line, 2.0 - 1000.0 * line.per_byte, 0.95 / 900.0);
    }

    #[test]
    fn a_longer_time_for_fewer_bytes_is_another_link() {
        expect(after(&[(1000.0, 2.0), (100.0, 3.0)]), 0.0, 3e-2);
        // Noise is not.
        let line = after(&[(1000.0, 2.0), (100.0, 2.1)]);
        assert!(line.per_byte == 0.0 && line.constant > 2.0, "{line:?}");
    }

    #[test]
    fn links_survive_as_numbers() {
        let mut link = Link::default();
        link.note(1000.0, 2.0);
        link.note(100.0, 1.1);
        let numbers: Vec<f64> = link.numbers().collect();
        assert_eq!(Link::from_numbers(&numbers), Some(link));
        for wrong in [&numbers[1..], &numbers[..5], &[0.0, 1.0, f64::NAN, 1.0], &[-1.0, 0.0], &[]] {
            assert_eq!(Link::from_numbers(wrong), None);
        }
    }
}
