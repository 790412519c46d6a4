//! Measured seconds of a controller's own steps.

use super::compute::{Compute, work};
use super::costs::Costs;
use super::link::Link;
use super::{Config, Tensor};
use crate::compress::{Compressor, Cost, Setting};
use alloc::vec::Vec;

/// The measurements of one rank under [`Objective::MeasuredSeconds`](super::Objective).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Meter {
    /// The most recent steps since the last switch, as a ring buffer.
    recent: Vec<Sample>,
    /// The index in the ring buffer at which the next step is stored.
    at: usize,
    slowest: Slowest,
    pub link: Link,
    pub compute: Compute,
    /// The settings of the layers.
    pub present: Vec<Setting>,
    /// Whether the caller measures its own exchanges.
    pub elsewhere: bool,
    /// Whether the recent steps belong to a window.
    in_window: bool,
    /// The step of the decision whose costs were computed last. If a dropped task is taken again, the steps before the decision
    /// are not recorded again.
    told: Option<u64>,
}

/// One exchanged step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Bytes that this rank puts on the wire.
    pub bytes: f64,
    /// Seconds from the first bucket to the last mean.
    pub seconds: f64,
    /// The part of `seconds` in which this rank computes.
    pub computing: f64,
}

/// Slowdown of the slowest rank relative to this rank; at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slowest {
    seconds: f64,
    computing: f64,
}

/// Number of steps over which medians are taken. A median ignores single steps with allocations or interruptions.
const RECENT: usize = 15;
/// Longest plausible time of a step's exchange or of a probe: an hour, in seconds. Longer times can come from a clock that shows
/// the time of day, because such a clock jumps when it is set.
pub(super) const LONGEST: f64 = 3600.0;
/// Largest slowdown accepted from a peer.
const SLOWEST: f64 = 1e3;

impl Meter {
    pub(super) fn new(present: Vec<Setting>) -> Meter {
        Meter {
            recent: Vec::with_capacity(RECENT),
            at: 0,
            slowest: Slowest { seconds: 1.0, computing: 1.0 },
            link: Link::default(),
            compute: Compute::default(),
            present,
            elsewhere: false,
            in_window: false,
            told: None,
        }
    }

    /// Records a step that the caller has exchanged. Steps of a window are slower, because they wait for gradients to reach the
    /// host. Steps of a window are used only if there are no other steps.
    pub(super) fn record_elsewhere(&mut self, sample: Sample, in_window: bool) {
        if in_window && !self.in_window && !self.recent.is_empty() {
            return;
        }
        if self.in_window != in_window {
            self.clear();
        }
        self.in_window = in_window;
        self.record(sample);
    }

    /// Records a step, unless its seconds come from a clock that has jumped.
    pub(super) fn record(&mut self, sample: Sample) {
        let plausible = |seconds: f64| (0.0..=LONGEST).contains(&seconds);
        if !plausible(sample.seconds) || !plausible(sample.computing) {
            return;
        }
        match self.recent.get_mut(self.at) {
            Some(place) => *place = sample,
            None => self.recent.push(sample),
        }
        self.at = (self.at + 1) % RECENT;
    }

    /// Records the layers' new settings, and discards the steps under the old settings.
    pub(super) fn switch(&mut self, present: Vec<Setting>) {
        (self.present, self.told) = (present, None);
        self.clear();
    }

    fn clear(&mut self) {
        self.recent.clear();
        self.at = 0;
    }

    /// The medians of the recent steps; `None` if there are none.
    fn typical(&self) -> Option<Sample> {
        self.median(RECENT)
    }

    /// Seconds of a typical step's exchange on this rank; `None` before the first step.
    pub(super) fn seconds(&self) -> Option<f64> {
        self.typical().map(|typical| typical.seconds)
    }

    /// The medians of the last `steps` steps.
    fn median(&self, steps: usize) -> Option<Sample> {
        // In a full ring, the oldest step is at the index of the next step.
        let (newer, older) = self.recent.split_at(self.at.min(self.recent.len()));
        let last = newer.iter().rev().chain(older.iter().rev()).take(steps);
        let median = |of: fn(&Sample) -> f64| {
            let (mut all, len) = ([0.0; RECENT], self.recent.len().min(steps));
            all.iter_mut().zip(last.clone()).for_each(|(to, sample)| *to = of(sample));
            all[..len].sort_unstable_by(f64::total_cmp);
            all[len / 2]
        };
        (!self.recent.is_empty()).then(|| Sample {
            bytes: median(|sample| sample.bytes),
            seconds: median(|sample| sample.seconds),
            computing: median(|sample| sample.computing),
        })
    }

    /// This rank's typical seconds, as two f32 in one word, for the message to the other ranks.
    pub(super) fn word(&self) -> u64 {
        let Sample { seconds, computing, .. } = self.typical().unwrap_or_default();
        u64::from((seconds as f32).to_bits()) << 32 | u64::from((computing as f32).to_bits())
    }

    /// Reads the [words](Meter::word) of all ranks, and finds the slowest rank.
    pub(super) fn hear(&mut self, words: impl Iterator<Item = u64> + Clone) {
        let Some(own) = self.typical() else { return };
        let over = |own: f64, shift: u32| {
            let told = words.clone().map(|word| f64::from(f32::from_bits((word >> shift) as u32)));
            let most = told.filter(|seconds| seconds.is_finite()).fold(own, f64::max);
            if own > 0.0 { (most / own).min(SLOWEST) } else { 1.0 }
        };
        self.slowest = Slowest { seconds: over(own.seconds, 32), computing: over(own.computing, 0) };
    }

    /// The costs for the decision of step `due`, learnt from the steps since the last switch; `None` before the first step.
    ///
    /// The rank that computes longest does not wait for other ranks. So the time in which this rank does not compute is the time
    /// for sending.
    pub(super) fn costs(&mut self, due: u64, config: &Config, tensors: &[Tensor], world: u32) -> Option<Costs> {
        // The link may have changed just now. Only the last three steps then show the present state of the link.
        let typical = if self.link.may_have_changed() { self.median(3) } else { self.typical() };
        let mut computing = 0.0;
        if let Some(Sample { bytes, seconds, computing: own }) = typical {
            computing = own * self.slowest.computing;
            let whole = seconds * self.slowest.seconds;
            if self.told.replace(due) != Some(due) {
                self.link.note(bytes, (whole - computing).max(0.0), whole);
                let mut works = [0.0; Cost::FAMILIES];
                for (setting, tensor) in self.present.iter().zip(tensors) {
                    let payloads = Costs::payloads(setting, config.route, world);
                    works[setting.traits().cost.family] += work(setting, tensor.shape, payloads);
                }
                self.compute.note(works, computing);
            }
        }
        Some(Costs {
            line: self.link.line()?,
            compute: self.compute.clone(),
            route: config.route,
            reduce_dtype: config.search.reduce_dtype,
            world,
            tries: !self.elsewhere,
            present: self.present.clone(),
            lens: Vec::new(),
            elements: tensors.iter().map(|tensor| tensor.shape.elements() as f64).sum(),
            measured: typical.map_or(0.0, |typical| typical.seconds * self.slowest.seconds),
            computing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn sample(seconds: f64) -> Sample {
        Sample { bytes: 100.0, seconds, computing: seconds / 4.0 }
    }

    #[test]
    fn interrupted_steps_and_those_before_a_switch_do_not_count() {
        let mut meter = Meter::new(vec![]);
        assert_eq!((meter.typical(), meter.word()), (None, 0));
        (0..40).for_each(|step| meter.record(sample(if step % 5 == 0 { 9.0 } else { 1.0 })));
        assert_eq!(meter.typical(), Some(sample(1.0)));
        (0..8).for_each(|_| meter.record(sample(2.0)));
        assert_eq!(meter.typical(), Some(sample(2.0)), "half of the ring");
        (0..2).for_each(|_| meter.record(sample(4.0)));
        assert_eq!((meter.typical(), meter.median(3)), (Some(sample(2.0)), Some(sample(4.0))));
        meter.switch(vec![]);
        meter.record(sample(3.0));
        assert_eq!(meter.typical(), Some(sample(3.0)));
    }

    #[test]
    fn seconds_of_a_clock_that_jumps_do_not_count() {
        let mut meter = Meter::new(vec![]);
        for seconds in [-3600.0, 1.7e9, f64::NAN, f64::INFINITY] {
            meter.record(sample(seconds));
            meter.record(Sample { computing: seconds, ..sample(1.0) });
        }
        assert_eq!(meter.typical(), None);
        meter.record(sample(1.0));
        assert_eq!(meter.typical(), Some(sample(1.0)));
    }

    #[test]
    fn steps_of_a_window_elsewhere_count_where_there_are_no_others() {
        let mut meter = Meter::new(vec![]);
        let mut typical = |seconds: f64, in_window: bool| {
            meter.record_elsewhere(sample(seconds), in_window);
            meter.typical().map(|typical| typical.seconds)
        };
        let steps = [(9.0, true), (8.0, true), (1.0, false), (9.0, true), (2.0, false), (2.0, false)];
        let found = steps.map(|(seconds, in_window)| typical(seconds, in_window));
        assert_eq!(found, [9.0, 9.0, 1.0, 1.0, 2.0, 2.0].map(Some));
    }

    #[test]
    fn the_slowest_rank_counts_and_nonsense_does_not() {
        let mut meter = Meter::new(vec![]);
        meter.record(sample(1.0));
        let mut slow = meter.clone();
        slow.switch(vec![]);
        slow.record(Sample { computing: 1.5, ..sample(2.0) });
        let junk = u64::from(f32::NAN.to_bits()) << 32 | u64::from((-1f32).to_bits());
        meter.hear([meter.word(), slow.word(), junk, 0].into_iter());
        assert_eq!(meter.slowest, Slowest { seconds: 2.0, computing: 6.0 });
        meter.hear([meter.word(), u64::MAX >> 9].into_iter());
        assert!(meter.slowest.seconds <= SLOWEST && meter.slowest.computing <= SLOWEST);
    }
}
