//! Settings as numbers: in the planner's broadcast and in saved states.

use super::Uncompressed;
use crate::{CoreError, Error};
use crate::compress::Setting;
use crate::compress::method::Methods;

/// Words of a coded choice.
pub(super) const WORDS: usize = 3;

/// What a layer is given: its setting and, where that is uncompressed, why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub setting: Setting,
    pub uncompressed: Option<Uncompressed>,
}

impl Choice {
    pub(super) const fn dense(why: Uncompressed) -> Choice {
        Choice { setting: Setting::Dense, uncompressed: Some(why) }
    }

    /// The method's id and the reason in the low bytes of the first word, the four parameters after them.
    pub(super) fn encode(&self) -> [u64; WORDS] {
        let (id, [a, b, c, d]) = self.setting.data();
        let reason = self.uncompressed.map_or(0, |why| why as u64 + 1);
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [u64::from(id) | reason << 8 | u64::from(a) << 32, pair(b, c), d.into()]
    }

    /// The choice that encodes to exactly these words, under the methods that this program knows.
    ///
    /// # Errors
    /// [`CoreError::UnknownMethod`]; [`CoreError::SavedState`].
    pub(super) fn decode(words: [u64; WORDS], methods: &Methods) -> Result<Choice, Error> {
        let wrong = CoreError::SavedState { what: "a layer's setting", found: words[0] };
        let high = |word: u64| (word >> 32) as u32;
        let parameters = [high(words[0]), words[1] as u32, high(words[1]), words[2] as u32];
        let setting = match Setting::from_data(words[0] as u8, parameters, methods) {
            Err(error @ CoreError::UnknownMethod { .. }) => return Err(error.into()),
            found => found.map_err(|_| wrong)?,
        };
        let uncompressed = match (words[0] >> 8) as u8 {
            0 => None,
            reason => Some(*Uncompressed::ALL.get(reason as usize - 1).ok_or(wrong)?),
        };
        let choice = Choice { setting, uncompressed };
        let told = uncompressed.is_some() == (setting == Setting::Dense);
        if told && choice.encode() == words { Ok(choice) } else { Err(wrong.into()) }
    }
}
