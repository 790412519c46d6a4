//! What sending costs, learnt from the steps themselves and from probes.
//!
//! A step's exchange takes `constant + bytes · seconds per byte`, without what this rank computes for it. The constant holds
//! latencies, and, where buckets travel while the backward pass goes on, that pass: what is hidden behind it costs nothing. So the
//! time of a whole step's exchange counts, not that of each collective, in which others' and the pass would be counted too.
//!
//! Two different numbers of bytes tell both. What they tell stays true until the link changes, which a step whose bytes are
//! all hidden would not show: before the work of each decision ranks send each other a probe.

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
    /// Those before, if the link has changed since the newest level.
    before: Option<f64>,
    /// Whether it had when the newest level was noted, which may then have been of the link before.
    doubted: bool,
    /// Most bytes of a level.
    most: f64,
    /// Seconds of the newest step's whole exchange.
    whole: f64,
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
/// Probes that differ by a smaller factor are of the same link, and those by which the most bytes would not take more of a step
/// than `SAME_STEP`.
const SAME_PROBE: f64 = 2.0;
const LEVELS: usize = 4;

impl Link {
    /// Takes note of a typical step since the last decision, or, where the link [has changed](Link::has_changed), of the last
    /// ones: what its bytes took of `whole` seconds.
    pub(super) fn note(&mut self, bytes: f64, seconds: f64, whole: f64) {
        let tolerance = |other: f64| (SAME_SECONDS * other.max(seconds)).max(SAME_STEP * whole);
        let is_same = |level: &Level| (level.bytes - bytes).abs() <= SAME_BYTES * level.bytes.max(bytes);
        let known = self.levels.iter().position(is_same).map(|at| self.levels.remove(at));
        let doubted = core::mem::replace(&mut self.doubted, self.before.is_some());
        (self.most, self.whole) = (self.most.max(bytes), whole);
        let mut level = Level { bytes, seconds };
        match (self.before.take().zip(self.probe), known) {
            (Some((before, now)), _) => {
                // What the most bytes do not take, fewer do not either; of more bytes fewer say nothing.
                let exposed = known.filter(|_| bytes >= self.most * (1.0 - SAME_BYTES));
                let exposed = exposed.map(|old| (seconds - old.seconds) / (bytes * (now - before)));
                self.per_byte = match exposed {
                    Some(part) if part.is_finite() => Some(part.clamp(0.0, 1.0) * now),
                    _ => self.per_byte.map(|per_byte| per_byte * now / before),
                };
                self.levels.clear();
            }
            (None, Some(old)) if (old.seconds - seconds).abs() <= tolerance(old.seconds) => {
                level.seconds = (old.seconds + seconds) / 2.0;
            }
            (None, Some(_)) => {
                self.levels.clear();
                self.per_byte = if doubted { self.probe } else { self.per_byte };
            }
            // More bytes do not take less time.
            (None, None) => self.levels.retain(|old| {
                let more = if old.bytes > bytes { old.seconds - seconds } else { seconds - old.seconds };
                more >= -tolerance(old.seconds)
            }),
        }
        if self.levels.len() == LEVELS {
            self.levels.remove(0);
        }
        self.levels.push(level);
        let alone = || if bytes > 0.0 { seconds / bytes } else { 0.0 };
        self.per_byte = Some(self.slope().or(self.per_byte).or(self.probe).unwrap_or_else(alone));
    }

    /// Takes note of what a byte of a probe took.
    pub(super) fn note_probe(&mut self, per_byte: f64) {
        if !(per_byte > 0.0 && per_byte.is_finite()) {
            return; // a clock that is too coarse
        }
        let before = *self.probe.get_or_insert(per_byte);
        let matters = (per_byte - before).abs() * self.most > SAME_STEP * self.whole;
        if !matters || (1.0 / SAME_PROBE..=SAME_PROBE).contains(&(per_byte / before)) {
            return;
        }
        self.probe = Some(per_byte);
        if !self.levels.is_empty() {
            self.before = Some(self.before.unwrap_or(before));
        }
    }

    /// Whether a probe has found another link than that of the newest level.
    pub(super) fn has_changed(&self) -> bool {
        self.before.is_some()
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
        let [per_byte, probe, before] =
            [self.per_byte, self.probe, self.before].map(|number| number.unwrap_or(f64::NAN));
        [per_byte, probe, before, f64::from(u8::from(self.doubted)), self.most, self.whole].into_iter().chain(levels)
    }

    /// The link of these numbers; `None` unless they are all of one.
    pub(super) fn from_numbers(numbers: &[f64]) -> Option<Link> {
        let (&[per_byte, probe, before, doubted, most, whole], rest) = numbers.split_first_chunk()?;
        let levels: Vec<Level> = rest.as_chunks().0.iter().map(|&[bytes, seconds]| Level { bytes, seconds }).collect();
        let known = |number: f64| (number.to_bits() != f64::NAN.to_bits()).then_some(number);
        let [per_byte, probe, before] = [per_byte, probe, before].map(known);
        let complete = rest.len() == 2 * levels.len() && levels.len() <= LEVELS && (doubted == 0.0 || doubted == 1.0);
        let mut all = rest.iter().chain(&per_byte).chain(&probe).chain(&before).chain([&most, &whole]);
        let sound = all.all(|number| number.is_finite() && number.is_sign_positive());
        let link = Link { per_byte, probe, before, doubted: doubted == 1.0, most, whole, levels };
        (complete && sound && link.per_byte.is_some() != link.levels.is_empty()).then_some(link)
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
        for probe in [1e-3, 1.4e-3, 0.7e-3, 0.0, f64::NAN] {
            link.note_probe(probe);
            assert!(!link.has_changed());
        }
        link.note_probe(1e-2);
        assert!(link.has_changed());
        link.note(100.0, 2.0, 2.0);
        expect(&link, 0.0, 2e-2);
        // Where sending takes no time to speak of, a hundred times less of it changes nothing.
        let mut free = after(&[(1000.0, 2.0)]);
        for probe in [1e-5, 1e-7, 9e-5] {
            free.note_probe(probe);
            assert!(!free.has_changed());
        }
        // What a plan's few bytes hide says nothing of all.
        link.note_probe(1e-5);
        link.note(100.0, 2.0, 2.0);
        expect(&link, 2.0 - 2e-3, 2e-5);
    }

    #[test]
    fn what_is_hidden_stays_hidden_as_far_as_it_does() {
        // On a link that is ten times slower all bytes take as long as before, or more by half of what they take longer.
        for (seconds, constant, per_byte) in [(2.0, 2.0, 0.0), (2.0 + 4.5, 1.5, 5e-3)] {
            let mut hidden = Link::default();
            hidden.note_probe(1e-3);
            hidden.note(1000.0, 2.0, 2.0);
            hidden.note_probe(1e-2);
            hidden.note(1000.0, seconds, seconds);
            expect(&hidden, constant, per_byte);
        }
        // Unless the steps were still of the link before.
        let mut late = Link::default();
        late.note_probe(1e-3);
        late.note(1000.0, 2.0, 2.0);
        late.note_probe(1e-2);
        late.note(1000.0, 2.0, 2.0);
        late.note(1000.0, 11.0, 11.0);
        expect(&late, 1.0, 1e-2);
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
        let wrong = [
            &numbers[1..],
            &numbers[..9],
            &[0.0; 2],
            &[0.0; 6],
            &[none, none, none, 2.0, 0.0, 0.0],
            &[1.0, none, none, 0.0, 0.0, 0.0, 1.0, none],
        ];
        for wrong in wrong {
            assert_eq!(Link::from_numbers(wrong), None);
        }
    }
}
