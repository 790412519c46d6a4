//! Saves an end as bytes and restores it. The bytes begin with `LSE`, version 3, the side, three zeros, the generation,
//! the number of steps, and the first sequence number of this step. Then come the setting, the state of the two
//! directions, and a checksum of all earlier bytes.

use super::counters::COUNT_LIMIT;
use super::end::{End, Side};
use super::setting::{Compatibility, CutSetting};
use crate::{CoreError, Error};
use lgreco::checksum;
use lgreco::error::{expect_len, expect_room};

const MAGIC: [u8; 4] = *b"LSE\x03";
/// Number of bytes before the state of the two directions. `SETTING_AT` is the number of bytes before the setting.
const HEAD_LEN: usize = SETTING_AT + CutSetting::PART_BYTES;
const SETTING_AT: usize = 28;

impl<S: Side> End<S> {
    /// Exact number of bytes that [`save`](End::save) writes in the current state.
    pub fn saved_len(&self) -> usize {
        HEAD_LEN + self.forward.saved_len() + self.backward.saved_len() + checksum::LEN
    }

    /// Saves the end to `bytes[..saved_len]` and returns that length. Both ends must be saved after the same step.
    ///
    /// # Errors
    /// [`Error::MidStep`] when updates wait for [`commit_step`](End::commit_step) or tickets are in flight.
    /// [`CoreError::Length`] when `bytes` is too short.
    pub fn save(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        let pending = self.forward.pending() + self.tickets.pending();
        if pending > 0 {
            return Err(Error::MidStep { what: "saving", pending });
        }
        let len = self.saved_len();
        expect_room("bytes of a saved cut", len, bytes.len())?;
        let (head, halves) = bytes[..len - checksum::LEN].split_at_mut(HEAD_LEN);
        head.fill(0);
        head[..4].copy_from_slice(&MAGIC);
        head[4] = S::CODE;
        head[8..12].copy_from_slice(&self.clock.generation.to_le_bytes());
        head[12..20].copy_from_slice(&self.clock.step.to_le_bytes());
        head[20..28].copy_from_slice(&self.first_of_step.to_le_bytes());
        head[SETTING_AT..].copy_from_slice(&self.setting.to_part());
        let (forward, backward) = halves.split_at_mut(self.forward.saved_len());
        self.forward.save(forward)?;
        self.backward.save(backward)?;
        checksum::seal(&mut bytes[..len]);
        Ok(len)
    }

    /// Restores the end that [`save`](End::save) wrote. The restored end continues bit for bit. Any bytes may be given.
    ///
    /// # Errors
    /// [`Error::OtherSetting`] when this end of the cut was saved under another setting. [`CoreError::Checksum`] when the bytes of
    /// a saved end have changed. [`CoreError::SavedState`], [`CoreError::Length`], [`CoreError::Parameter`],
    /// [`Error::FeedbackRule`] and [`CoreError::TooManyElements`] on bytes that no end writes.
    /// [`CoreError::OutOfMemory`] when memory cannot be allocated.
    pub fn restore(setting: CutSetting, bytes: &[u8]) -> Result<End<S>, Error> {
        expect_room("bytes of a saved cut", HEAD_LEN + checksum::LEN, bytes.len())?;
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes));
        CoreError::require_saved(bytes[..4] == MAGIC, "magic or version of a cut", long(0) & 0xffff_ffff)?;
        let (head, halves) = checksum::open(bytes)?.split_at(HEAD_LEN);
        CoreError::require_saved(head[4] == S::CODE, "end of a cut (0 upstream, 1 downstream)", head[4].into())?;
        CoreError::require_saved(head[5..8] == [0; 3], "reserved field", long(4) >> 8 & 0xff_ffff)?;
        let saved = CutSetting::from_part(&head[SETTING_AT..])?;
        match saved.compare(&setting) {
            Compatibility::Same => {}
            Compatibility::TrainsDifferently { what } | Compatibility::EvaluatesDifferently { what } => {
                return Err(Error::OtherSetting { what });
            }
        }
        let mut end = End::new(setting, long(8) as u32)?;
        end.clock.step = long(12);
        CoreError::require_saved(end.clock.step < COUNT_LIMIT, "number of steps", end.clock.step)?;
        let rest = end.forward.restore(halves)?;
        let rest = end.backward.restore(rest)?;
        expect_len("bytes after a saved cut", 0, rest.len())?;
        end.first_of_step = long(20);
        let known = end.first_of_step <= end.forward.sequence;
        Ok(CoreError::require_saved(known, "first message of the step", end.first_of_step).map(|()| end)?)
    }
}
