//! Code that both ends of a cut share.
//!
//! The two ends of a cut are two objects, because they live in two processes and share nothing but messages. Every
//! message carries its generation, sequence number and step, and a checksum of the sender's memory. So if the ends
//! differ, the next message gives an error. Without these numbers, nobody would notice a difference between the ends,
//! which would add noise to the training. Reading or writing a message takes `&self`, and memory is updated only
//! afterwards. So a failed call changes nothing, and evaluation cannot change anything.

use super::counters::Counters;
use super::half::{Clock, Half, State};
use super::message::Direction;
use super::setting::CutSetting;
use super::tickets::Tickets;
use crate::{CoreError, Error};
use core::marker::PhantomData;

/// The two ends of a cut as types: [`Above`] and [`Below`].
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
        /// Direction in which this end sends.
        const SENDS: Direction;
        /// The number that marks this side in saved ends.
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

/// One end of a cut. [`Upstream`](super::Upstream) sends activations and receives gradients.
/// [`Downstream`](super::Downstream) does the reverse. This type has the methods that both ends share. The two type
/// aliases have examples.
#[derive(Clone, Debug)]
pub struct End<S: Side> {
    pub(super) setting: CutSetting,
    pub(super) clock: Clock,
    pub(super) forward: Half,
    pub(super) backward: Half,
    pub(super) tickets: Tickets,
    /// First ticket of this step.
    pub(super) first_of_step: u64,
    side: PhantomData<S>,
}

impl<S: Side> End<S> {
    /// Makes an end without history. Both ends must have the same setting and `generation`. A run that resumes without
    /// [saved](End::save) ends must use a new generation, so that messages of an old end are refused.
    ///
    /// # Errors
    /// The errors of [`CutSetting::check`], and [`CoreError::OutOfMemory`].
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

    /// The setting of the cut.
    pub const fn setting(&self) -> &CutSetting {
        &self.setting
    }

    /// Words (of 64 bits) of workspace that any call needs.
    pub fn workspace_len(&self) -> usize {
        self.forward.workspace_len().max(self.backward.workspace_len())
    }

    /// Number of bytes that suffice for every message that this end writes.
    pub fn message_len(&self) -> usize {
        match S::SENDS {
            Direction::Forward => self.forward.message_len(),
            Direction::Backward => self.backward.message_len(),
        }
    }

    /// Number of values in a message for this end, in any mode: at most `batch` × `features` of the setting. Use this
    /// number to allocate memory before receiving. Do not use the header's shape: a damaged header may state any
    /// number.
    ///
    /// # Errors
    /// The errors of [`Message::parse`](super::Message::parse). [`CoreError::PayloadHeader`] when the message belongs
    /// to another cut or another setting. [`Error::OutOfStep`] when the message belongs to another generation.
    pub fn values_len(&self, message: &[u8]) -> Result<usize, Error> {
        match S::SENDS {
            Direction::Forward => self.backward.values_len(self.clock, message),
            Direction::Backward => self.forward.values_len(self.clock, message),
        }
    }

    /// Closes the ticket of a micro-batch whose gradients will never be sent. Both ends must close the ticket.
    ///
    /// # Errors
    /// [`Error::NotInFlight`] when the ticket is unknown.
    pub fn forget(&mut self, ticket: u64) -> Result<(), Error> {
        self.tickets.close(ticket)
    }

    /// Ends an optimiser step, and applies the step's updates to the memory of samples. Both ends must commit between
    /// the same two activation messages.
    ///
    /// # Errors
    /// [`CoreError::Parameter`] when no activations passed the cut in this step. The error reveals a cut that is
    /// configured but not used.
    pub fn commit_step(&mut self) -> Result<(), Error> {
        let sent = self.forward.sequence > self.first_of_step;
        CoreError::require(sent, "messages forward in this step", 0.0, "at least 1: is the cut in use?")?;
        self.forward.publish();
        self.first_of_step = self.forward.sequence;
        self.clock.step += 1;
        Ok(())
    }

    /// Returns an error unless the forward message with this ticket may be written again.
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

    /// Reads a sample's row in memory into `values`. Returns false, and leaves `values` unchanged, if the sample is not
    /// in memory.
    ///
    /// # Errors
    /// [`CoreError::Length`] when `values` does not have one entry per feature.
    pub fn remembered(&self, sample: u64, values: &mut [f32]) -> Result<bool, Error> {
        match &self.forward.state {
            State::Samples(store) => store.read(sample, values),
            _ => Ok(false),
        }
    }

    /// Ids of the samples in memory, least recently updated first.
    pub fn remembered_samples(&self) -> impl Iterator<Item = u64> {
        let store = match &self.forward.state {
            State::Samples(store) => Some(store),
            _ => None,
        };
        store.into_iter().flat_map(|store| store.ids())
    }

    /// Counters of this end for one direction.
    pub fn counters(&self, direction: Direction) -> &Counters {
        match direction {
            Direction::Forward => &self.forward.counters,
            Direction::Backward => &self.backward.counters,
        }
    }

    /// Bytes of this end's memory, without tickets.
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
