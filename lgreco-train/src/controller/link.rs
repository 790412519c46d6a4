//! The cost of sending, learnt from steps and from probes.
//!
//! The exchange of a step, without this rank's computing, takes `constant + bytes · seconds per byte`. The constant contains
//! latencies. Traffic that overlaps with the backward pass costs nothing. If buckets are exchanged during that pass, the constant
//! also contains the time of the pass. The time of the whole exchange is measured, because the time of a single collective would
//! include other collectives and the backward pass.
//!
//! Steps with two different numbers of bytes determine the constant and the seconds per byte. Two such steps may also show that
//! fewer bytes take no less time. Such a finding is valid until the link changes. Steps whose traffic is hidden behind computing do
//! not show such a change, so ranks probe the link before each decision. On a busy host, a probe can be wrong by a large factor. So
//! the model accepts a change only after a second probe, or steps, confirm it. There is one exception: a slower probe counts at once
//! if steps have a size that was never sent, because there are no earlier steps to compare them with. Until steps have determined
//! the seconds per byte, the probe's value is used. The next decision corrects a decision that was based on a probe.

use alloc::vec::Vec;

/// The model of the link: the latest seconds for several numbers of bytes, and the line through these points.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Link {
    /// Levels: pairs of a step's bytes and the latest seconds of steps of this size. The newest level comes last.
    levels: Vec<Level>,
    /// Seconds per byte of a step; `None` before the first step.
    per_byte: Option<f64>,
    /// Seconds per byte of the probe to which newer probes are compared, from the time when the levels were measured.
    probe: Option<f64>,
    /// Seconds per byte of the newest probe.
    latest: Option<f64>,
    /// Whether another probe has confirmed the value of `probe`.
    confirmed: bool,
    /// Whether a probe already indicated a changed link at the last call of [`note`](Link::note).
    suspected: bool,
    /// Number of consecutive samples at the largest size.
    idle: u32,
    /// Largest number of bytes of a step so far.
    most: f64,
    /// Seconds of the newest step's whole exchange.
    whole: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    bytes: f64,
    seconds: f64,
}

/// Seconds of a step as a linear function of its bytes. A negative constant means that traffic is hidden behind computing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub constant: f64,
    pub per_byte: f64,
}

/// Steps belong to the same level if their bytes differ by less than this fraction.
const SAME_BYTES: f64 = 0.1;
/// A level has changed if its old and new times differ by more than this fraction of the longer time. The difference must also
/// exceed [`SAME_STEP`] of the step's time.
const SAME_SECONDS: f64 = 0.15;
/// Changes below this fraction of a whole step's exchange are ignored.
const SAME_STEP: f64 = 0.05;
/// Two probes show the same link if their seconds per byte differ by less than this factor. A difference is also ignored if, for
/// the bytes of the largest step, it makes less than `SAME_STEP` of a step's time.
const SAME_PROBE: f64 = 1.5;
/// If two probes differ by more than this factor, and steps have changed in the same direction, the link has changed by the probes'
/// ratio.
const LIKE_PROBE: f64 = 1.15;
/// Largest plausible ratio of a step's seconds per byte to those of a probe. If the ratio is larger, the probe was wrong.
const LONGER: f64 = 2.0;
/// Number of decisions after which uncompressed steps are compared with compressed steps anew.
const PATIENCE: u32 = 16;
const LEVELS: usize = 4;

impl Link {
    /// Records a typical step since the last decision: its bytes, the seconds of sending them, and the `whole` seconds of its
    /// exchange. If the link [may have changed](Link::may_have_changed), the step should be a recent one.
    pub(super) fn note(&mut self, bytes: f64, seconds: f64, whole: f64) {
        let differ = self.may_have_changed();
        let tolerance = |other: f64| (SAME_SECONDS * other.max(seconds)).max(SAME_STEP * whole);
        let is_same = |level: &Level| (level.bytes - bytes).abs() <= SAME_BYTES * level.bytes.max(bytes);
        let known = self.levels.iter().position(is_same).map(|at| self.levels.remove(at));
        let moved = known.filter(|old| (old.seconds - seconds).abs() > tolerance(old.seconds));
        (self.most, self.whole) = (self.most.max(bytes), whole);
        let are_most = bytes >= self.most * (1.0 - SAME_BYTES);
        // `like_probes` is the old level, if steps and probes have both become slower, or both faster.
        let (before, now) = (self.probe.unwrap_or(0.0), self.latest.unwrap_or(0.0));
        let like_probes = moved.filter(|old| (now - before) * (seconds - old.seconds) > 0.0);
        // Only the probe gives evidence about sizes that were never sent.
        let changed = differ && (self.suspected || like_probes.is_some() || (known.is_none() && now > before));
        self.suspected = differ && !changed;
        // By the earlier probe, steps of this size should have been faster. If the newest probe is faster still, the earlier one was
        // wrong, and the link has not changed.
        let expected = self.line().map_or(f64::INFINITY, |line| line.constant + line.per_byte * bytes);
        let refutes_probe = now < before && seconds > expected + tolerance(expected);
        let mut level = Level { bytes, seconds };
        if changed {
            // Only steps at the largest size show how much traffic is hidden. If the earlier probe is unconfirmed, these steps must
            // also have changed like the probes.
            let trusted = if self.confirmed { known } else { like_probes }.filter(|_| are_most);
            let exposed = trusted.map(|old| (seconds - old.seconds) / (bytes * (now - before)));
            let known_part = self.per_byte.filter(|&per_byte| !are_most && per_byte > 0.0).map(|old| old / before);
            let scaled = known_part.map(|part| part.min(LONGER) * now);
            // `abs` turns -0 into 0.
            self.per_byte = exposed.map(|part| part.clamp(0.0, 1.0).abs() * now).or(scaled).or(self.latest);
            self.begin_anew();
        } else if differ && known.is_none() {
            if refutes_probe {
                (self.probe, self.confirmed, self.suspected) = (self.latest, false, false);
            } else {
                self.levels.clear();
            }
        } else if moved.is_some() {
            let ratio = if like_probes.is_some() && same_probe(before, now) { now / before } else { 1.0 };
            if !(1.0 / LIKE_PROBE..=LIKE_PROBE).contains(&ratio) {
                self.per_byte = self.per_byte.map(|per_byte| per_byte * ratio);
                self.probe = self.latest;
            }
            self.levels.clear();
        } else if let Some(old) = known {
            level.seconds = (old.seconds + seconds) / 2.0;
            self.idle = if are_most { self.idle + 1 } else { 0 };
            if !differ
                && self.idle.is_multiple_of(PATIENCE)
                && are_most
                && self.per_byte < self.latest.map(|probe| probe / 2.0)
            {
                self.per_byte = self.latest;
                self.begin_anew();
            }
        }
        // A level that is faster than the probes allow was measured on a faster link, or while the link changed.
        let (wire, known) = (before.min(now), self.levels.len());
        self.levels.retain(|old| !self.confirmed || old.bytes * wire <= old.seconds);
        if self.levels.len() < known {
            self.per_byte = self.latest;
        }
        if self.levels.len() == LEVELS {
            self.levels.remove(0);
        }
        self.levels.push(level);
        let alone = || if bytes > 0.0 { seconds / bytes } else { 0.0 };
        self.per_byte = Some(self.slope().or(self.per_byte).or(self.latest).unwrap_or_else(alone));
    }

    /// Discards the levels, because the link has changed since they were measured.
    fn begin_anew(&mut self) {
        self.levels.clear();
        (self.probe, self.confirmed, self.idle) = (self.latest, false, 0);
    }

    /// Records the seconds per byte of a probe.
    pub(super) fn note_probe(&mut self, per_byte: f64) {
        if per_byte > 0.0 && per_byte.is_finite() {
            // Values that are not positive and finite come from a clock that is too coarse.
            self.latest = Some(per_byte);
            self.confirmed |= self.probe.is_some_and(|probe| same_probe(probe, per_byte));
            self.probe = self.probe.or(self.latest);
        }
    }

    /// Whether the newest probe indicates that the link has changed since the levels were measured.
    pub(super) fn may_have_changed(&self) -> bool {
        let Some((before, now)) = self.probe.zip(self.latest) else { return false };
        let matters = (now - before).abs() * self.most > SAME_STEP * self.whole;
        matters && !self.levels.is_empty() && !same_probe(before, now)
    }

    /// The slope of the line through the levels, in which newer levels have more weight; `None` for fewer than two levels.
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

    /// The line through the newest level; `None` before the first.
    pub(super) fn line(&self) -> Option<Line> {
        let (newest, per_byte) = (self.levels.last()?, self.per_byte?);
        Some(Line { constant: newest.seconds - per_byte * newest.bytes, per_byte })
    }

    /// The model as numbers, for saved states; NaN for an unknown number.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        let levels = self.levels.iter().flat_map(|level| [level.bytes, level.seconds]);
        let [per_byte, probe, latest] =
            [self.per_byte, self.probe, self.latest].map(|number| number.unwrap_or(f64::NAN));
        let [confirmed, suspected] = [self.confirmed, self.suspected].map(|flag| f64::from(u8::from(flag)));
        let rest = [f64::from(self.idle), self.most, self.whole];
        [per_byte, probe, latest, confirmed, suspected].into_iter().chain(rest).chain(levels)
    }

    /// Restores the model from its numbers; `None` if the numbers are not valid.
    pub(super) fn from_numbers(numbers: &[f64]) -> Option<Link> {
        let (&[per_byte, probe, latest, confirmed, suspected, idle, most, whole], rest) =
            numbers.split_first_chunk()?;
        let levels: Vec<Level> = rest.as_chunks().0.iter().map(|&[bytes, seconds]| Level { bytes, seconds }).collect();
        let known = |number: f64| (number.to_bits() != f64::NAN.to_bits()).then_some(number);
        let [per_byte, probe, latest] = [per_byte, probe, latest].map(known);
        let flags = [confirmed, suspected].iter().all(|&flag| flag == 0.0 || flag == 1.0);
        let counts = flags && idle == f64::from(idle as u32);
        let complete = rest.len() == 2 * levels.len() && levels.len() <= LEVELS && counts;
        let mut all = rest.iter().chain(&per_byte).chain(&probe).chain(&latest).chain([&most, &whole]);
        let sound = all.all(|number| number.is_finite() && *number >= 0.0);
        let of_one = per_byte.is_some() != levels.is_empty() && probe.is_some() == latest.is_some();
        let (confirmed, suspected, idle) = (confirmed == 1.0, suspected == 1.0, idle as u32);
        let link = Link { per_byte, probe, latest, confirmed, suspected, idle, most, whole, levels };
        (complete && sound && of_one).then_some(link)
    }
}

fn same_probe(before: f64, now: f64) -> bool {
    (1.0 / SAME_PROBE..=SAME_PROBE).contains(&(now / before))
}

#[cfg(test)]
mod tests;
