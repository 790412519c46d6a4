//! What sending costs, learnt from the steps themselves and from probes.
//!
//! A step's exchange takes `constant + bytes · seconds per byte`, without what this rank computes for it. The constant holds
//! latencies, and, where buckets travel while the backward pass goes on, that pass: what is hidden behind it costs nothing. So the
//! time of a whole step's exchange counts, not that of each collective, in which others' and the pass would be counted too.
//!
//! Two different numbers of bytes tell both. What they tell stays true until the link changes, which a step whose bytes are
//! all hidden would not show: before each decision ranks send each other a probe.

use alloc::vec::Vec;

/// Different numbers of bytes, how long they took when they were last sent, and what follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Link {
    /// The newest last.
    levels: Vec<Level>,
    /// Seconds per byte of a step; none before the first.
    per_byte: Option<f64>,
    /// Seconds per byte of a probe when that was so.
    probe: Option<f64>,
    /// Whether the link has changed since the newest level.
    changed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    bytes: f64,
    seconds: f64,
}

/// How long steps take by their bytes. A constant below 0 is the part of the wire that computing hides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub constant: f64,
    pub per_byte: f64,
}

/// Numbers of bytes nearer than this are one level.
const SAME_BYTES: f64 = 0.1;
/// Seconds at a level that differ by more, of them or of the whole step's exchange, are not those of before.
const SAME_SECONDS: f64 = 0.15;
const SAME_STEP: f64 = 0.05;
/// Probes that differ by a smaller factor are of the same link.
const SAME_PROBE: f64 = 1.5;
const LEVELS: usize = 4;

impl Link {
    /// Takes note of a typical step since the last decision: what its bytes took of `whole` seconds.
    ///
    /// Steps before a change and those after it are not told apart: after a probe that has found one, nothing is learnt.
    pub(super) fn note(&mut self, bytes: f64, seconds: f64, whole: f64) {
        let changed = core::mem::take(&mut self.changed);
        let tolerance = |other: f64| (SAME_SECONDS * other.max(seconds)).max(SAME_STEP * whole);
        let is_same = |level: &Level| (level.bytes - bytes).abs() <= SAME_BYTES * level.bytes.max(bytes);
        let known = self.levels.iter().position(is_same).map(|at| self.levels.remove(at));
        let seconds = match known {
            Some(known) if (known.seconds - seconds).abs() <= tolerance(known.seconds) => {
                (known.seconds + seconds) / 2.0
            }
            Some(_) => {
                self.levels.clear();
                // What was hidden may be so no more.
                self.per_byte = if changed { self.probe } else { self.per_byte };
                seconds
            }
            None => {
                // More bytes do not take less time.
                self.levels.retain(|old| {
                    let more = if old.bytes > bytes { old.seconds - seconds } else { seconds - old.seconds };
                    more >= -tolerance(old.seconds)
                });
                seconds
            }
        };
        if self.levels.len() == LEVELS {
            self.levels.remove(0);
        }
        self.levels.push(Level { bytes, seconds });
        let alone = || if bytes > 0.0 { seconds / bytes } else { 0.0 };
        self.per_byte = Some(self.slope().or(self.per_byte).or(self.probe).unwrap_or_else(alone));
    }

    /// Takes note of what a byte of a probe took: where the link has changed, all that is known of it changes likewise.
    /// Returns whether it has.
    pub(super) fn note_probe(&mut self, per_byte: f64) -> bool {
        if !(per_byte > 0.0 && per_byte.is_finite()) {
            return false; // a clock that is too coarse
        }
        let before = *self.probe.get_or_insert(per_byte);
        let factor = per_byte / before;
        if (1.0 / SAME_PROBE..=SAME_PROBE).contains(&factor) {
            return false;
        }
        self.probe = Some(per_byte);
        let Some(slope) = &mut self.per_byte else { return false };
        let more = *slope * (factor - 1.0);
        self.levels.iter_mut().for_each(|level| level.seconds = (level.seconds + more * level.bytes).max(0.0));
        *slope *= factor;
        self.changed = true;
        true
    }

    /// Of the line through the levels, newer ones first of all; `None` of fewer than two.
    fn slope(&self) -> Option<f64> {
        let weight = |age: usize| 1.0 / (1u64 << age.min(LEVELS)) as f64;
        let weighted = || self.levels.iter().rev().enumerate().map(|(age, level)| (weight(age), level));
        let total: f64 = weighted().map(|(weight, _)| weight).sum();
        let mean = |of: fn(&Level) -> f64| weighted().map(|(weight, level)| weight * of(level)).sum::<f64>() / total;
        let (bytes, seconds) = (mean(|level| level.bytes), mean(|level| level.seconds));
        let product = |of: fn(&Level) -> f64, mean: f64| {
            weighted().map(|(weight, level)| weight * (level.bytes - bytes) * (of(level) - mean)).sum::<f64>()
        };
        let (variance, covariance) = (product(|level| level.bytes, bytes), product(|level| level.seconds, seconds));
        (self.levels.len() > 1 && variance > 0.0).then(|| (covariance / variance).max(0.0))
    }

    /// Through the newest level; `None` before the first.
    pub(super) fn line(&self) -> Option<Line> {
        let (newest, per_byte) = (self.levels.last()?, self.per_byte?);
        Some(Line { constant: newest.seconds - per_byte * newest.bytes, per_byte })
    }

    /// All numbers, for saved states; NaN for none.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        let levels = self.levels.iter().flat_map(|level| [level.bytes, level.seconds]);
        let changed = f64::from(u8::from(self.changed));
        let head = [self.per_byte.unwrap_or(f64::NAN), self.probe.unwrap_or(f64::NAN), changed];
        head.into_iter().chain(levels)
    }

    /// The link of these numbers; `None` unless they are all of one.
    pub(super) fn from_numbers(numbers: &[f64]) -> Option<Link> {
        let (&[per_byte, probe, changed], rest) = numbers.split_first_chunk()?;
        let levels: Vec<Level> = rest.as_chunks().0.iter().map(|&[bytes, seconds]| Level { bytes, seconds }).collect();
        let whole = rest.len() == 2 * levels.len() && levels.len() <= LEVELS;
        let is_sound = |number: &f64| number.is_finite() && number.is_sign_positive();
        let known = |number: f64| (number.to_bits() != f64::NAN.to_bits()).then_some(number);
        let (per_byte, probe) = (known(per_byte), known(probe));
        let sound = rest.iter().chain(&per_byte).chain(&probe).all(is_sound) && (changed == 0.0 || changed == 1.0);
        let changed = changed == 1.0;
        (whole && sound && per_byte.is_some() != levels.is_empty()).then_some(Link { levels, per_byte, probe, changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link after steps of so many bytes and seconds, which are the whole.
    fn after(steps: &[(f64, f64)]) -> Link {
        let mut link = Link::default();
        steps.iter().for_each(|&(bytes, seconds)| link.note(bytes, seconds, seconds));
        link
    }

    fn expect(link: &Link, constant: f64, per_byte: f64) {
        let line = link.line().unwrap();
        assert!((line.constant - constant).abs() <= 1e-9, "{line:?}");
        assert!((line.per_byte - per_byte).abs() <= 1e-9 * per_byte, "{line:?}");
    }

    #[test]
    fn one_level_is_all_bytes_and_two_are_a_line() {
        assert_eq!(Link::default().line(), None);
        expect(&after(&[(1000.0, 2.0)]), 0.0, 2e-3);
        expect(&after(&[(1000.0, 2.0), (100.0, 1.1)]), 1.0, 1e-3);
        expect(&after(&[(0.0, 0.5)]), 0.5, 0.0);
        // Compressing hides what is sent.
        expect(&after(&[(1000.0, 2.0), (100.0, 0.0)]), -2.0 / 9.0, 2.0 / 900.0);
    }

    #[test]
    fn of_one_level_a_probe_tells_the_bytes() {
        let mut link = Link::default();
        link.note_probe(1e-3);
        assert_eq!(link.line(), None);
        link.note(1000.0, 3.0, 3.0);
        expect(&link, 2.0, 1e-3);
        // Until there are two.
        link.note(100.0, 2.55, 3.0);
        expect(&link, 2.5, 5e-4);
    }

    #[test]
    fn a_probe_tells_of_another_link() {
        let mut link = after(&[(1000.0, 2.0), (100.0, 0.2)]);
        assert_eq!([1e-3, 1.4e-3, 0.7e-3, 0.0, f64::NAN].map(|probe| link.note_probe(probe)), [false; 5]);
        expect(&link, 0.0, 2e-3);
        assert!(link.note_probe(1e-2));
        expect(&link, 0.0, 2e-2);
        link.note(100.0, 2.1, 2.1);
        assert_eq!(link.levels.len(), 2, "as expected");
        // What is hidden stays hidden: nothing was to be seen of its time.
        let mut hidden = after(&[(1000.0, 2.0), (100.0, 2.0)]);
        assert_eq!([1e-3, 1e-1].map(|probe| hidden.note_probe(probe)), [false, true]);
        expect(&hidden, 2.0, 0.0);
        // Until it is not.
        hidden.note(100.0, 12.0, 12.0);
        expect(&hidden, 2.0, 1e-1);
    }

    #[test]
    fn another_time_on_the_same_link_is_not_the_bytes() {
        let known = [(1000.0, 2.0), (100.0, 1.1)];
        expect(&after(&[&known[..], &[(100.0, 2.0)]].concat()), 1.9, 1e-3);
        // One that takes about as long is the same.
        let link = after(&[&known[..], &[(100.0, 1.0)]].concat());
        expect(&link, 1.05 - 95.0 / 900.0, 0.95 / 900.0);
        let mut link = Link::default();
        [(1000.0, 0.2), (100.0, 0.0), (100.0, 0.04)]
            .iter()
            .for_each(|&(bytes, seconds)| link.note(bytes, seconds, 1.0));
        assert_eq!(link.levels.len(), 2, "nothing to speak of in a step of a second");
    }

    #[test]
    fn a_longer_time_for_fewer_bytes_is_not_that_of_the_bytes() {
        for levels in [[(1000.0, 2.0), (100.0, 3.0)], [(100.0, 3.0), (1000.0, 2.0)]] {
            assert_eq!(after(&levels).levels.len(), 1);
        }
        // Noise is.
        let line = after(&[(1000.0, 2.0), (100.0, 2.1)]).line().unwrap();
        assert!(line.per_byte == 0.0 && line.constant > 2.0, "{line:?}");
    }

    #[test]
    fn links_survive_as_numbers() {
        let mut link = Link::default();
        link.note(1000.0, 2.0, 2.0);
        link.note(100.0, 0.0, 1.0);
        link.note_probe(1e-3);
        let numbers: Vec<f64> = link.numbers().collect();
        assert_eq!(Link::from_numbers(&numbers).as_ref(), Some(&link));
        let empty: Vec<f64> = Link::default().numbers().collect();
        assert_eq!(Link::from_numbers(&empty), Some(Link::default()));
        let none = f64::NAN;
        let wrong =
            [&numbers[1..], &numbers[..6], &[0.0; 2], &[0.0; 3], &[none, none, 2.0], &[1.0, none, 0.0, 1.0, none]];
        for wrong in wrong {
            assert_eq!(Link::from_numbers(wrong), None);
        }
    }
}
