//! What both ends of a cut have in common.

use super::counters::{COUNT_LIMIT, Counters};
use super::half::{Clock, Half, State};
use super::message::Direction;
use super::setting::{Compatibility, CutSetting};
use super::tickets::Tickets;
use crate::checksum;
use crate::error::{expect_len, expect_room};
use crate::{CoreError, Error};

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Sends activations.
    Upstream = 0,
    /// Receives them.
    Downstream = 1,
}

const MAGIC: [u8; 4] = *b"LSE\x02";
/// Bytes before the halves, and of what precedes the setting.
const HEAD_LEN: usize = SETTING_AT + CutSetting::PART_BYTES;
const SETTING_AT: usize = 28;

#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) setting: CutSetting,
    role: Role,
    pub(super) clock: Clock,
    pub(super) forward: Half,
    pub(super) backward: Half,
    pub(super) tickets: Tickets,
    /// The first ticket of this step.
    pub(super) first_of_step: u64,
}

impl End {
    pub(super) fn new(setting: CutSetting, generation: u32, role: Role) -> Result<End, Error> {
        setting.check()?;
        let upstream = role == Role::Upstream;
        Ok(End {
            setting,
            role,
            clock: Clock { generation, step: 0 },
            forward: Half::new(setting, Direction::Forward, upstream)?,
            backward: Half::new(setting, Direction::Backward, !upstream)?,
            tickets: Tickets::new(&setting)?,
            first_of_step: 0,
        })
    }

    pub(super) fn workspace_len(&self) -> usize {
        self.forward.workspace_len().max(self.backward.workspace_len())
    }

    pub(super) fn commit_step(&mut self) -> Result<(), Error> {
        if self.forward.sequence == self.first_of_step {
            let expected = "at least 1: is the cut in use?";
            return Err(Error::Core(CoreError::Parameter {
                what: "messages forward in this step",
                value: 0.0,
                expected,
            }));
        }
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

    pub(super) fn remembered(&self, sample: u64, values: &mut [f32]) -> Result<bool, Error> {
        match &self.forward.state {
            State::Samples(store) => store.read(sample, values),
            _ => Ok(false),
        }
    }

    pub(super) fn remembered_samples(&self) -> impl Iterator<Item = u64> {
        let store = match &self.forward.state {
            State::Samples(store) => Some(store),
            _ => None,
        };
        store.into_iter().flat_map(|store| store.ids())
    }

    pub(super) fn counters(&self, direction: Direction) -> &Counters {
        match direction {
            Direction::Forward => &self.forward.counters,
            Direction::Backward => &self.backward.counters,
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = |half: &Half| match &half.state {
            State::Nothing => 0,
            State::Positions(memory) => 8 * memory.rule().state_len(memory.shape()) as u64,
            State::Samples(store) => store.bytes(),
        };
        bytes(&self.forward) + bytes(&self.backward)
    }

    pub(super) fn saved_len(&self) -> usize {
        HEAD_LEN + self.forward.saved_len() + self.backward.saved_len() + checksum::LEN
    }

    /// `LSE`, version 2; role, three zeros; generation; steps; the first sequence number of this step; the setting; the
    /// two halves; the checksum of all before it.
    pub(super) fn save(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        let pending = self.forward.pending() + self.tickets.pending();
        if pending > 0 {
            return Err(Error::MidStep { what: "saving", pending });
        }
        let len = self.saved_len();
        expect_room("bytes of a saved cut", len, bytes.len())?;
        let (head, halves) = bytes[..len - checksum::LEN].split_at_mut(HEAD_LEN);
        head.fill(0);
        head[..4].copy_from_slice(&MAGIC);
        head[4] = self.role as u8;
        head[8..12].copy_from_slice(&self.clock.generation.to_le_bytes());
        head[12..20].copy_from_slice(&self.clock.step.to_le_bytes());
        head[20..28].copy_from_slice(&self.first_of_step.to_le_bytes());
        head[SETTING_AT..].copy_from_slice(&self.setting.to_part());
        let (forward, backward) = halves.split_at_mut(self.forward.saved_len());
        self.forward.save(forward);
        self.backward.save(backward);
        checksum::seal(&mut bytes[..len]);
        Ok(len)
    }

    pub(super) fn restore(setting: CutSetting, bytes: &[u8], role: Role) -> Result<End, Error> {
        expect_room("bytes of a saved cut", HEAD_LEN + checksum::LEN, bytes.len())?;
        let wrong = |what, found: u64| Err(Error::Core(CoreError::SavedState { what, found }));
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes));
        if bytes[..4] != MAGIC {
            return wrong("magic or version of a cut", long(0) & 0xffff_ffff);
        }
        let (head, halves) = checksum::open(bytes)?.split_at(HEAD_LEN);
        if head[4] != role as u8 {
            return wrong("end of a cut (0 upstream, 1 downstream)", head[4] as u64);
        }
        if head[5..8] != [0; 3] {
            return wrong("reserved field", long(4) >> 8 & 0xff_ffff);
        }
        let saved = CutSetting::from_part(&head[SETTING_AT..])?;
        match saved.compare(&setting) {
            Compatibility::Same => {}
            Compatibility::TrainsDifferently { what } | Compatibility::EvaluatesDifferently { what } => {
                return Err(Error::OtherSetting { what });
            }
        }
        let mut end = End::new(setting, long(8) as u32, role)?;
        end.clock.step = long(12);
        if end.clock.step >= COUNT_LIMIT {
            return wrong("number of steps", end.clock.step);
        }
        let rest = end.forward.restore(halves)?;
        let rest = end.backward.restore(rest)?;
        expect_len("bytes after a saved cut", 0, rest.len())?;
        end.first_of_step = long(20);
        if end.first_of_step > end.forward.sequence {
            return wrong("first message of the step", end.first_of_step);
        }
        Ok(end)
    }
}
