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
    pub answers: u64,
    pub switches: Option<(Result<Vec<Switch>, Error>, Decided)>,
    pub switched: bool,
    pub terms: u64,
    pub began: Option<f64>,
    /// Messages of all ranks.
    pub words: Vec<u64>,
    /// The plan.
    pub plan: Vec<u64>,
    /// What is sent to see how long it takes.
    pub probe: Option<Probe>,
}

/// What ranks send each other before a decision: twice a word each, which is as good as nothing, and then by turns more and nothing
/// again, for which a rank that has got everything early waits until the others have, too.
pub(super) struct Probe {
    pub words: Vec<u64>,
    /// Words of all ranks' nothing.
    world: usize,
    /// Messages that are still to be sent, of which the last so many are all and nothing by turns.
    left: u32,
    turns: u32,
    /// When that was sent which is timed.
    sent: f64,
    /// Fewest seconds so far of nothing, and of all and the nothing after it.
    nothing: f64,
    both: f64,
}

impl Probe {
    pub(super) fn new(words: usize, times: u32, world: u32) -> Probe {
        let (words, world, left) = (vec![0; words], world as usize, 2 * times + NOTHINGS);
        Probe { words, world, left, turns: 2 * times, sent: 0.0, nothing: f64::INFINITY, both: f64::INFINITY }
    }

    /// What is to be sent now.
    pub(super) fn send(&mut self, now: f64) -> &mut [u64] {
        let (alone, is_all) = (self.left > self.turns, self.left.is_multiple_of(2));
        if alone || is_all {
            self.sent = now;
        }
        let len = if is_all && !alone { self.words.len() } else { self.world };
        &mut self.words[..len]
    }

    /// It has been; whether that was all.
    pub(super) fn done(&mut self, now: f64) -> bool {
        let took = now - self.sent;
        if self.left > self.turns {
            self.nothing = self.nothing.min(took);
        } else if !self.left.is_multiple_of(2) {
            self.both = self.both.min(took);
        }
        self.left -= 1;
        self.left == 0
    }

    /// Seconds per byte of each rank.
    pub(super) fn seconds_per_byte(&self, share_of_others: f64) -> f64 {
        let all = self.both - self.nothing;
        seconds_per_byte([self.nothing, all], 8 * (self.words.len() - self.world), share_of_others)
    }
}

/// How often nothing is sent alone.
const NOTHINGS: u32 = 2;

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

    pub(super) fn switched(&self) -> bool {
        self.switched
    }

    /// Stands for all that ranks must agree on at this step.
    pub(super) fn terms(&self) -> u64 {
        self.terms
    }

    /// Ends the step, or what was said about it.
    pub(super) fn cancel(&mut self) {
        self.stage = Stage::Idle;
        self.switches = None;
    }
}
