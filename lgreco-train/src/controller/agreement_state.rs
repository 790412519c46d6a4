//! State machine of the agreement before a step, and sums over the step's buckets.

use super::agreement;
use super::buffers::workspace;
use super::decision::Decided;
use super::layer::Switch;
use super::probe::Probe;
use crate::Error;
use alloc::vec;
use alloc::vec::Vec;

/// Flag in a rank's message: one of the rank's gradients is not finite.
pub(super) const BROKEN: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No step is under way.
    Idle,
    Begun,
    /// Waits for the agreement messages of all ranks.
    Agreement,
    /// Ranks differ. Waits for all fields of all ranks.
    Fields,
    /// Waits for a message of a probe of the link.
    Probe,
    /// Waits for the measuring rank's plan.
    Plan,
    /// Waits for the messages of all ranks that report whether they can switch to the new settings.
    Switch,
    /// Buckets may be exchanged.
    Open,
}

/// The agreement of one step.
pub(super) struct Control {
    pub stage: Stage,
    /// `Ok(true)` means that a gradient of this rank is not finite. `Err` has this rank's error.
    pub local: Result<bool, Error>,
    /// Whether the step begins with an agreement.
    pub asks: bool,
    /// Whether ranks have compared their options since this controller was made or loaded.
    pub met: bool,
    /// The first rank whose fingerprint differs from rank 0's.
    pub differs: u32,
    /// Bitwise or of the flags in all ranks' messages.
    pub answers: u64,
    /// The decision, with the prepared switch of settings or the reason why this rank cannot switch.
    pub switches: Option<(Result<Vec<Switch>, Error>, Decided)>,
    /// Whether settings have changed in this step.
    pub switched: bool,
    /// Fingerprint of the step. Buckets send it in their messages, so that all ranks compare it.
    pub terms: u64,
    /// The time at which the step began.
    pub began: Option<f64>,
    /// The agreement messages of all ranks.
    pub words: Vec<u64>,
    /// Buffer for the measuring rank's plan, or for the fields of all ranks.
    pub plan: Vec<u64>,
    pub probe: Option<Probe>,
}

/// Totals and findings over the buckets of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTotals {
    /// This rank's error that no message had reported yet when the step began.
    pub late: Option<Error>,
    /// Bytes that this rank has sent.
    pub bytes_out: u64,
    /// Whether the gradients of a bucket became zeros or NaN because some gradient was not finite.
    pub broken: bool,
    /// Whether the exchange of a bucket has confirmed that all ranks were given the same settings.
    pub told: bool,
    /// Whether some rank's gradient was not finite, under every [`NonFinite`](super::NonFinite) option.
    pub not_finite: bool,
    /// Whether this rank could not read the last message of a bucket.
    pub unread: bool,
    /// Whether a gradient is missing from the window of a decision.
    pub incomplete: bool,
    /// Seconds of planning, and the time at which the exchange began.
    pub planned: Option<(f64, f64)>,
    /// Bytes that this rank puts on the wire, if seconds are measured.
    pub wire: f64,
    /// Seconds that this rank has computed, if seconds are measured.
    pub computing: f64,
    /// Whether a device has exchanged the step, but the step's seconds have not been recorded yet.
    pub unmetered: bool,
    /// Whether the step that `unmetered` refers to belongs to the window of a decision.
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

    /// `Err` unless buckets may be exchanged.
    pub(super) fn expect_open(&self) -> Result<(), Error> {
        match self.stage {
            Stage::Open => Ok(()),
            Stage::Idle => {
                Err(Error::StepOrder { what: "no step is under way", expected: "`begin_step` before this call" })
            }
            _ => Err(Error::StepOrder {
                what: "the ranks have not agreed on the step yet",
                expected: "`control` until it returns no request",
            }),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// `Err` while a step is under way.
    pub(super) fn expect_idle(&self) -> Result<(), Error> {
        match self.is_idle() {
            true => Ok(()),
            false => Err(Error::StepOrder { what: "a step is under way", expected: "a call between two steps" }),
        }
    }

    /// Whether some rank's gradient is not finite.
    pub(super) fn broken(&self) -> bool {
        self.answers & BROKEN != 0
    }

    /// Ends the step, even if its agreement is not complete.
    pub(super) fn cancel(&mut self) {
        self.stage = Stage::Idle;
        self.switches = None;
    }
}
