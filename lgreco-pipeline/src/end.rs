//! What both ends of a cut have in common.
//!
//! The two ends of a cut share nothing but messages, because they live in two processes; so they are two objects.
//! Every message says which it is (generation, sequence number, step, checksum of what its sender remembers), so ends
//! that have parted are told at the next message instead of training on noise. To read or write a message takes
//! `&self`; only then is anything remembered, so a failure changes nothing and evaluation cannot.

use super::counters::Counters;
use super::half::{Clock, Half, State};
use super::message::Direction;
use super::setting::CutSetting;
use super::tickets::Tickets;
use crate::{CoreError, Error};
use core::marker::PhantomData;

/// Which end of a cut, as a type: [`Above`] or [`Below`].
pub trait Side: sealed::Side {}

/// The [`Side`] of [`Upstream`](super::Upstream).
#[derive(Clone, Copy, Debug)]
pub struct Above;

/// The [`Side`] of [`Downstream`](super::Downstream).
#[derive(Clone, Copy, Debug)]
pub struct Below;

impl Side for Above {}
impl Side for Below {}

pub(super) mod sealed {
    use super::{Above, Below, Direction};

    pub trait Side: Clone + core::fmt::Debug {
        /// The direction in which this end sends.
        const SENDS: Direction;
        /// What saved ends call this one.
        const CODE: u8;
    }

    impl Side for Above {
        const SENDS: Direction = Direction::Forward;
        const CODE: u8 = 0;
    }

    impl Side for Below {
        const SENDS: Direction = Direction::Backward;
        const CODE: u8 = 1;
    }
}

/// One end of a cut: [`Upstream`](super::Upstream), which sends activations and receives gradients, or
/// [`Downstream`](super::Downstream), which does the reverse. Here is what both can do; their examples stand with them.
#[derive(Clone, Debug)]
pub struct End<S: Side> {
    pub(super) setting: CutSetting,
    pub(super) clock: Clock,
    pub(super) forward: Half,
    pub(super) backward: Half,
    pub(super) tickets: Tickets,
    /// The first ticket of this step.
    pub(super) first_of_step: u64,
    side: PhantomData<S>,
}

impl<S: Side> End<S> {
    /// An end without a past. Both ends must be made with the same setting and `generation`; a run that resumes without
    /// [saved](End::save) ends takes a generation it has not used, so that an old end is noticed.
    ///
    /// # Errors
    /// Those of [`CutSetting::check`]; [`CoreError::OutOfMemory`].
    pub fn new(setting: CutSetting, generation: u32) -> Result<End<S>, Error> {
        setting.check()?;
        let half = |direction| Half::new(setting, direction, direction == S::SENDS);
        Ok(End {
            setting,
            clock: Clock { generation, step: 0 },
            forward: half(Direction::Forward)?,
            backward: half(Direction::Backward)?,
            tickets: Tickets::new(&setting)?,
            first_of_step: 0,
            side: PhantomData,
        })
    }

    /// The setting.
    pub const fn setting(&self) -> &CutSetting {
        &self.setting
    }

    /// Words of workspace that any call needs.
    pub fn workspace_len(&self) -> usize {
        self.forward.workspace_len().max(self.backward.workspace_len())
    }

    /// Bytes of the longest message that this end writes.
    pub fn message_len(&self) -> usize {
        match S::SENDS {
            Direction::Forward => self.forward.message_len(),
            Direction::Backward => self.backward.message_len(),
        }
    }

    /// How many values a message for this end holds, whatever its mode: at most `batch` × `features` of the setting.
    /// What to make room for before a message is received, since a damaged header may state any number.
    ///
    /// # Errors
    /// Those of [`Message::parse`](super::Message::parse); [`CoreError::PayloadHeader`] when the message is another cut's
    /// or made under another setting; [`Error::OutOfStep`] when it is of another generation.
    pub fn values_len(&self, message: &[u8]) -> Result<usize, Error> {
        match S::SENDS {
            Direction::Forward => self.backward.values_len(self.clock, message),
            Direction::Backward => self.forward.values_len(self.clock, message),
        }
    }

    /// Gives back the ticket of a micro-batch whose gradients will never travel. The other end must do the same.
    ///
    /// # Errors
    /// [`Error::NotInFlight`].
    pub fn forget(&mut self, ticket: u64) -> Result<(), Error> {
        self.tickets.close(ticket)
    }

    /// Ends an optimiser step: what the step's messages made of the samples is remembered from now on. Both ends must
    /// commit between the same two activation messages.
    ///
    /// # Errors
    /// [`CoreError::Parameter`] when no activations went through the cut in this step: it is configured, but not in use.
    pub fn commit_step(&mut self) -> Result<(), Error> {
        let sent = self.forward.sequence > self.first_of_step;
        CoreError::require(sent, "messages forward in this step", 0.0, "at least 1: is the cut in use?")?;
        self.forward.publish();
        self.first_of_step = self.forward.sequence;
        self.clock.step += 1;
        Ok(())
    }

    /// `Err` unless a forward message may be made again.
    pub(super) fn check_repeat(&self, ticket: u64) -> Result<(), Error> {
        self.tickets.get(ticket, self.forward.features())?;
        if self.setting.forward.memory.by_position() {
            let needs = "the first message kept, for its memory has gone on since";
            return Err(Error::FeedbackRule { rule: "a forward memory by position", needs });
        }
        if ticket < self.first_of_step {
            return Err(Error::OutOfStep {
                what: "ticket of an earlier step",
                expected: self.first_of_step,
                found: ticket,
            });
        }
        Ok(())
    }

    /// Reads what is remembered of a sample into `values`; false, and `values` untouched, when nothing is.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `values` has not one place per feature.
    pub fn remembered(&self, sample: u64, values: &mut [f32]) -> Result<bool, Error> {
        match &self.forward.state {
            State::Samples(store) => store.read(sample, values),
            _ => Ok(false),
        }
    }

    /// Ids of the samples remembered, least recently updated first.
    pub fn remembered_samples(&self) -> impl Iterator<Item = u64> {
        let store = match &self.forward.state {
            State::Samples(store) => Some(store),
            _ => None,
        };
        store.into_iter().flat_map(|store| store.ids())
    }

    /// What this end has done in one direction.
    pub fn counters(&self, direction: Direction) -> &Counters {
        match direction {
            Direction::Forward => &self.forward.counters,
            Direction::Backward => &self.backward.counters,
        }
    }

    /// Bytes of what this end remembers, without tickets.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = |half: &Half| match &half.state {
            State::Nothing => 0,
            State::Residual(memory) => 8 * memory.residual().state_len(memory.shape()) as u64,
            State::Estimate(estimate) => estimate.saved_len() as u64,
            State::Samples(store) => store.bytes(),
        };
        bytes(&self.forward) + bytes(&self.backward)
    }
}
