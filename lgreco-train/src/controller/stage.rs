//! Where the ranks' conversation about a step is.

use super::agreement;
use super::buffers::workspace;
use super::decide::Decided;
use super::layer::Switch;
use crate::Error;
use alloc::vec;
use alloc::vec::Vec;

/// What ranks ask each other before a step: whether a gradient is not finite.
pub(super) const BROKEN: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No step is under way.
    Idle,
    Begun,
    /// Waits for what all ranks say of the step.
    Agreement,
    /// Ranks differ. Waits for all fields of all ranks.
    Fields,
    /// Waits for a probe of the link.
    Probe,
    /// Waits for the measuring rank's plan.
    Plan,
    /// Waits for all ranks to say whether they can take over the new settings.
    Switch,
    /// Buckets may be exchanged.
    Open,
}

/// The conversation of a step.
pub(super) struct Control {
    pub stage: Stage,
    /// What this rank has to say, and whether its gradients are finite.
    pub local: Result<bool, Error>,
    /// Whether ranks are asked although nothing is to be decided.
    pub asks: bool,
    /// Whether ranks have compared their options since this controller was made or loaded.
    pub met: bool,
    /// The first rank that differs from rank 0.
    pub differs: u32,
    pub answers: u64,
    pub switches: Option<(Result<Vec<Switch>, Error>, Decided)>,
    pub switched: bool,
    pub terms: u64,
    pub began: Option<f64>,
    /// Messages of all ranks.
    pub words: Vec<u64>,
    /// The plan, or the fields of all ranks.
    pub plan: Vec<u64>,
    /// What is sent to see how long it takes.
    pub probe: Option<Probe>,
}

/// What ranks send each other before a decision: twice a word each, which is as good as nothing, and then by turns more and nothing
/// again, for which a rank that has got everything early waits until the others have, too. In that nothing they tell each other how
/// much of the allowed time has gone by, so that all go on as long as the slowest may: what interrupts a rank makes a turn longer,
/// never shorter, and of many the shortest is the link's.
pub(super) struct Probe {
    pub words: Vec<u64>,
    /// Words of all ranks' nothing, and which of them is this one's.
    world: usize,
    rank: usize,
    /// Seconds that turns may take together, and how many there are at least.
    allowed: f64,
    least: u32,
    /// Messages so far.
    sent: u32,
    /// When the newest of them was, and how long those of turns took.
    began: f64,
    spent: f64,
    /// Fewest seconds so far of nothing, and of all and the nothing after it.
    nothing: f64,
    both: f64,
}

impl Probe {
    pub(super) fn new(words: usize, [rank, world]: [u32; 2], least: u32, allowed: f64) -> Probe {
        let (words, [rank, world]) = (vec![0; words], [rank, world].map(|ranks| ranks as usize));
        let (nothing, both) = (f64::INFINITY, f64::INFINITY);
        Probe { words, world, rank, allowed, least, sent: 0, began: 0.0, spent: 0.0, nothing, both }
    }

    /// The turns whose messages have all been sent, and whether the next message is a turn's first.
    fn turns(&self) -> Option<(u32, bool)> {
        let messages = self.sent.checked_sub(NOTHINGS)?;
        Some((messages / 2, messages.is_multiple_of(2)))
    }

    /// What is to be sent now.
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

    /// It has been; whether that was all.
    pub(super) fn done(&mut self, now: f64) -> bool {
        let (before, took) = (self.turns(), now - self.began);
        self.sent += 1;
        match before {
            None => self.nothing = self.nothing.min(took),
            Some((_, true)) => {}
            Some((turns, false)) => {
                (self.both, self.spent) = (self.both.min(took), self.spent + took);
                let turns = turns + 1;
                // All ranks hear the same, so that they stop together. What is not a number stops them.
                let mut gone = self.words[..self.world].iter().map(|&word| f64::from_bits(word));
                let may = gone.all(|part| part * f64::from(turns + 1) <= f64::from(turns));
                return turns >= MOST_TURNS || (turns >= self.least && !may);
            }
        }
        false
    }

    /// Seconds per byte of each rank.
    pub(super) fn seconds_per_byte(&self, share_of_others: f64) -> f64 {
        let all = self.both - self.nothing;
        seconds_per_byte([self.nothing, all], 8 * (self.words.len() - self.world), share_of_others)
    }
}

/// How often nothing is sent alone, and how often all and nothing are at most.
const NOTHINGS: u32 = 2;
const MOST_TURNS: u32 = 8;

/// Of the shortest times of nothing and of so many bytes more. What cannot be told from nothing is little.
pub(super) fn seconds_per_byte([nothing, all]: [f64; 2], bytes: usize, share_of_others: f64) -> f64 {
    (all - nothing).max(1e-3 * nothing) / (bytes as f64 * share_of_others)
}

/// What the buckets of a step have come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// What was to be told before the step.
    pub late: Option<Error>,
    pub bytes_out: u64,
    pub broken: bool,
    /// Whether a bucket has told all ranks that they have been given the same settings.
    pub told: bool,
    /// Whether some rank's gradient was not finite, an error or not.
    pub not_finite: bool,
    /// Whether a gradient is missing from the window of a decision.
    pub incomplete: bool,
    /// Seconds of planning, and when exchanging began.
    pub planned: Option<(f64, f64)>,
    /// Bytes that this rank has put on the wire, and seconds that it has computed, where they are measured.
    pub wire: f64,
    pub computing: f64,
    /// Whether a step that was exchanged elsewhere waits for its seconds, and whether it was one of a window.
    pub unmetered: bool,
    pub in_window: bool,
}

impl Control {
    pub(super) fn new(world: u32) -> Result<Control, Error> {
        Ok(Control {
            stage: Stage::Idle,
            local: Ok(false),
            asks: false,
            met: false,
            differs: 0,
            answers: 0,
            switches: None,
            switched: false,
            terms: 0,
            began: None,
            words: workspace(agreement::words(world as usize))?,
            plan: vec![],
            probe: None,
        })
    }

    pub(super) fn expect_open(&self) -> Result<(), Error> {
        match self.stage {
            Stage::Open => Ok(()),
            Stage::Idle => Err(Error::StepOrder { what: "no step is under way", expected: "one that has begun" }),
            _ => Err(Error::StepOrder {
                what: "ranks have not agreed on the step",
                expected: "no control requests left",
            }),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    pub(super) fn expect_idle(&self) -> Result<(), Error> {
        match self.is_idle() {
            true => Ok(()),
            false => Err(Error::StepOrder { what: "a step is under way", expected: "its end" }),
        }
    }

    /// Whether some rank's gradient is not finite.
    pub(super) fn broken(&self) -> bool {
        self.answers & BROKEN != 0
    }

    /// Ends the step, or what was said about it.
    pub(super) fn cancel(&mut self) {
        self.stage = Stage::Idle;
        self.switches = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// What two ranks find, whose turns take so long, and after how many turns; a rank may be `allowed` so many seconds.
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
    fn an_interrupted_turn_is_not_believed_where_there_is_time_for_others() {
        let interrupted = |turn, rank| if turn < 3 && rank == 1 { 0.4 } else { 0.04 };
        let (found, _) = probed(2, [10.0; 2], interrupted);
        let (right, _) = probed(2, [10.0; 2], |_, _| 0.04);
        assert!(found.iter().zip(&right).all(|(found, right)| (found - right).abs() < 1e-12), "{found:?}");
    }
}
