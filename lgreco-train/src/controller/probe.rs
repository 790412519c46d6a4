//! Probes of the link, which measure the seconds per byte: their sizes, and how they run.

use super::Timing;
use super::meter::{LONGEST, Meter};
use super::schedule::Scheduler;
use crate::exchange::share_of_others;
use alloc::vec;
use alloc::vec::Vec;

/// Smallest and largest number of words that all ranks together send in a full round. If an uncompressed step sends fewer words, a
/// round has the words of such a step. The smallest number is larger than the bursts that traffic shapers and buffers let pass.
const PROBED: [f64; 2] = [(1u64 << 16) as f64, (1u64 << 17) as f64];
/// Probes may take at most this fraction of the seconds that exchanges take until the next decision.
const PROBING: f64 = 0.01;
/// The first probe may take five times as long; on busy hosts about 20 % of messages are delayed.
const FIRST: f64 = 5.0;
/// Smallest number of turns (see `Probe`), unless even the smallest round takes too long.
const PROBES: u32 = 2;

/// A measurement of the link by all ranks together.
///
/// Ranks first exchange two empty rounds, of one word each. Then full rounds and empty rounds alternate. In the empty round, a rank
/// that got all data of the full round early waits for the other ranks. A full round and the empty round after it are a turn.
/// Interruptions make a turn longer, never shorter, so the shortest of several turns shows the link. In empty rounds, ranks
/// exchange the fraction of the allowed time that has passed. So all ranks stop together, as soon as the slowest rank would exceed
/// its allowed time.
pub(super) struct Probe {
    /// The words of a full round.
    pub words: Vec<u64>,
    /// Length of an empty round, in words: one per rank.
    world: usize,
    rank: usize,
    /// Seconds that all turns together may take on this rank.
    allowed: f64,
    /// Smallest number of turns.
    least: u32,
    /// Number of rounds so far.
    sent: u32,
    /// When the present turn or empty round began.
    began: f64,
    /// Seconds of all turns so far.
    spent: f64,
    /// Seconds of the shortest empty round.
    nothing: f64,
    /// Seconds of the shortest turn.
    both: f64,
}

impl Probe {
    /// The probe of the present step.
    pub(super) fn of(scheduler: &Scheduler) -> Probe {
        let (words, least, allowed) = (scheduler.probe_words(), scheduler.probe_times(), scheduler.probe_seconds());
        Probe::new(words, [scheduler.rank, scheduler.world], least, allowed)
    }

    fn new(words: usize, [rank, world]: [u32; 2], least: u32, allowed: f64) -> Probe {
        let (words, [rank, world]) = (vec![0; words], [rank, world].map(|ranks| ranks as usize));
        let (nothing, both) = (f64::INFINITY, f64::INFINITY);
        Probe { words, world, rank, allowed, least, sent: 0, began: 0.0, spent: 0.0, nothing, both }
    }

    /// The number of complete turns, and whether the next round is the first of a turn; `None` before the first turn.
    fn turns(&self) -> Option<(u32, bool)> {
        let messages = self.sent.checked_sub(NOTHINGS)?;
        Some((messages / 2, messages.is_multiple_of(2)))
    }

    /// The words of the next round.
    pub(super) fn send(&mut self, now: f64) -> &mut [u64] {
        let is_all = self.turns().is_some_and(|(_, is_first)| is_first);
        if self.turns().is_none_or(|(_, is_first)| is_first) {
            self.began = now;
        }
        let part = (self.spent + now - self.began) / self.allowed;
        self.words[self.rank] = part.to_bits();
        let len = if is_all { self.words.len() } else { self.world };
        &mut self.words[..len]
    }

    /// Records a round that was exchanged, and returns whether it was the last one.
    pub(super) fn done(&mut self, now: f64) -> bool {
        let (before, took) = (self.turns(), now - self.began);
        // If the clock has jumped, the seconds of this round are unknown.
        let took = if (0.0..=LONGEST).contains(&took) { took } else { f64::INFINITY };
        self.sent += 1;
        match before {
            None => self.nothing = self.nothing.min(took),
            Some((_, true)) => {}
            Some((turns, false)) => {
                (self.both, self.spent) = (self.both.min(took), self.spent + took);
                let turns = turns + 1;
                // All ranks read the same words, so they stop together. A NaN also stops all ranks.
                let mut gone = self.words[..self.world].iter().map(|&word| f64::from_bits(word));
                let may = gone.all(|part| part * f64::from(turns + 1) <= f64::from(turns));
                return turns >= MOST_TURNS || (turns >= self.least && !may);
            }
        }
        false
    }

    /// Seconds per byte that each rank sends.
    pub(super) fn seconds_per_byte(&self, share_of_others: f64) -> f64 {
        let all = self.both - self.nothing;
        seconds_per_byte([self.nothing, all], 8 * (self.words.len() - self.world), share_of_others)
    }
}

/// Number of empty rounds before the first turn.
const NOTHINGS: u32 = 2;
/// Largest number of turns.
const MOST_TURNS: u32 = 8;

/// Seconds per byte, from the shortest times of an empty round and of a round with `bytes` more. The difference may be too small to
/// measure, so it is at least a thousandth of the empty round's seconds.
pub(super) fn seconds_per_byte([nothing, all]: [f64; 2], bytes: usize, share_of_others: f64) -> f64 {
    (all - nothing).max(1e-3 * nothing) / (bytes as f64 * share_of_others)
}

impl Scheduler {
    /// Whether seconds are measured, and this is the last step before the next decision's task.
    pub(super) fn is_last_before_task(&self) -> bool {
        let Scheduler { due, step, config, meter, .. } = self;
        meter.is_some() && *due == step.checked_add(config.schedule.lead.saturating_add(1))
    }

    /// Number of words in a full round of all ranks together; the same on all ranks. A round never has more words than an
    /// uncompressed step sends. A round is smaller if, by the last decision's measurements, it would exceed the allowed seconds.
    pub(super) fn probe_words(&self) -> usize {
        let model = self.tensors.iter().map(|tensor| tensor.bytes() / 8).sum::<u64>();
        let [least, most] = PROBED;
        let allowed = (self.affordable_words() / f64::from(PROBES)).clamp(least, most);
        let each = model.min(allowed as u64) / u64::from(self.world);
        each.max(2) as usize * self.world as usize
    }

    /// Smallest number of turns: one if even the smallest round takes too long, else two.
    pub(super) fn probe_times(&self) -> u32 {
        if self.affordable_words() < self.probe_words() as f64 * f64::from(PROBES) { 1 } else { PROBES }
    }

    /// Seconds that the turns may take on this rank: a fraction of the measured seconds of its steps until the next decision.
    fn probe_seconds(&self) -> f64 {
        let Scheduler { config, decision, meter, .. } = self;
        let seconds = meter.as_ref().and_then(Meter::seconds).unwrap_or_default();
        let part = if decision.is_none() { FIRST * PROBING } else { PROBING };
        part * config.schedule.period as f64 * seconds
    }

    /// Number of words that all probes until the next decision may have, from the seconds per byte of the last decision, which all
    /// ranks know.
    fn affordable_words(&self) -> f64 {
        let Scheduler { config, decision, .. } = self;
        let timing = decision.and_then(|decision| decision.timing);
        // Both numbers are copied out of the `Option` before the comparison: otherwise, compiled code may compare uninitialised
        // memory, which Valgrind reports.
        let of_link = |Timing { plan, seconds_per_byte, .. }| [plan, seconds_per_byte];
        let [plan, seconds_per_byte] = timing.map_or([0.0; 2], of_link);
        if seconds_per_byte <= 0.0 {
            return f64::INFINITY;
        }
        let seconds = PROBING * config.schedule.period as f64 * plan;
        seconds / (8.0 * seconds_per_byte * share_of_others(self.world))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// The seconds per byte that two ranks find, and the number of turns, if full rounds take `took(turn, rank)` seconds.
    fn probed(least: u32, allowed: [f64; 2], took: impl Fn(u32, usize) -> f64) -> (Vec<f64>, u32) {
        let mut ranks = [0, 1].map(|rank| Probe::new(1002, [rank as u32, 2], least, allowed[rank]));
        let mut now = [0.0; 2];
        for message in 0.. {
            let turn = (message as u32).saturating_sub(NOTHINGS) / 2;
            let sent: Vec<Vec<u64>> = ranks.iter_mut().zip(now).map(|(rank, now)| rank.send(now).to_vec()).collect();
            assert_eq!(sent[0].len(), sent[1].len());
            let each = sent[0].len() / 2;
            let is_all = sent[0].len() > 2;
            for rank in [0, 1] {
                now[rank] += if is_all { took(turn, rank) } else { 0.001 };
                let all = sent[0][..each].iter().chain(&sent[1][each..]);
                ranks[rank].words.iter_mut().zip(all).for_each(|(word, &heard)| *word = heard);
            }
            let done = [0, 1].map(|rank| ranks[rank].done(now[rank]));
            assert_eq!(done[0], done[1]);
            if done[0] {
                return (ranks.iter().map(|rank| rank.seconds_per_byte(0.5)).collect(), turn + 1);
            }
        }
        unreachable!()
    }

    #[test]
    fn ranks_stop_together_when_the_slowest_may_not_go_on() {
        let turns = |least, allowed| probed(least, allowed, |_, _| 0.039).1;
        assert_eq!([1, 2].map(|least| turns(least, [0.0; 2])), [1, 2]);
        assert_eq!(turns(1, [0.2, 10.0]), 5);
        assert_eq!(turns(1, [10.0, 0.2]), 5);
        assert_eq!(turns(1, [10.0, 10.0]), MOST_TURNS);
        assert_eq!(turns(1, [f64::NAN, 10.0]), 1);
    }

    #[test]
    fn turns_in_which_a_clock_jumps_are_not_believed() {
        let (right, _) = probed(2, [10.0; 2], |_, _| 0.04);
        for jump in [-3600.0, 1.7e9] {
            let (found, _) = probed(2, [10.0; 2], |turn, rank| if (turn, rank) == (0, 1) { jump } else { 0.04 });
            assert!(found.iter().zip(&right).all(|(found, right)| (found - right).abs() < 1e-6), "{jump}: {found:?}");
        }
        // No turn of rank 1 has a plausible time, so the result is not finite, and the link ignores this probe.
        let (found, _) = probed(1, [0.0, 10.0], |_, rank| if rank == 1 { -3600.0 } else { 0.04 });
        assert!(found[0].is_finite() && !found[1].is_finite(), "{found:?}");
    }

    #[test]
    fn an_interrupted_turn_is_not_believed_where_there_is_time_for_others() {
        let interrupted = |turn, rank| if turn < 3 && rank == 1 { 0.4 } else { 0.04 };
        let (found, _) = probed(2, [10.0; 2], interrupted);
        let (right, _) = probed(2, [10.0; 2], |_, _| 0.04);
        assert!(found.iter().zip(&right).all(|(found, right)| (found - right).abs() < 1e-12), "{found:?}");
    }
}
