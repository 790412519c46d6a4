//! The status record of a rank inside the messages of an exchange: its error, and a fingerprint of the exchange.

use crate::gradient::{Bf16, Dtype, Element};
use crate::{CoreError, Error};

/// Bytes of a status record at the head of a message.
pub(super) const LEN: usize = 16;
/// Bytes of the first message of a rank: its status record, and the length of its next message.
pub(super) const GREETING: usize = LEN + 8;

/// The status record of a rank in every message: 16 bytes at its head, or one f32 or three bf16 after a sum.
///
/// ```
/// use lgreco_train::exchange::Slip;
/// let slip = Slip { code: 4, fingerprint: 7 };
/// let mut message = [0; Slip::LEN];
/// slip.write(&mut message);
/// assert_eq!((Slip::read(&message), slip.to_sum()), (slip, 4.0));
/// assert_eq!(Slip::of_bf16_sum(slip.to_bf16_sum()), Slip::of_sum(slip.to_sum()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slip {
    /// The [code](Error::code) of the rank's failure; 0 for none.
    pub code: u64,
    /// Checksum of everything that ranks must have in common.
    pub fingerprint: u64,
}

const UNREADABLE: u64 = Error::PeerMessage { rank: 0, code: 0 }.code() as u64;
/// Codes of ranks that found an error of another rank, and so were not the first to fail.
const OF_OTHERS: [u64; 3] =
    [UNREADABLE, Error::Peer { rank: 0, code: 0 }.code() as u64, Error::PeerPlan { rank: 0 }.code() as u64];
/// Whether `error` is about another rank's message, or is the [`Error::Peer`] of a rank whose error is about another
/// rank's message. In both cases, all ranks have failed only because they differ, and this function returns the same on all ranks.
pub(crate) fn is_of_others(error: Error) -> bool {
    let code = match error {
        Error::Peer { code, .. } => code,
        error => error.code(),
    };
    OF_OTHERS.contains(&code.into())
}
/// Codes of gradients that are not finite. Training may continue after such a step, so every other error takes precedence.
const NOT_FINITE: [u64; 2] =
    [CoreError::NonFinite { index: 0, value: 0.0 }.code() as u64, Error::NON_FINITE_GRADIENT as u64];
/// In a sum, numbers below this limit are error codes. Numbers from the limit to `END` encode the remainder of a
/// fingerprint. f32 represents all of them exactly.
const FINGERPRINTS: u64 = 1 << 12;
const END: u64 = 1 << 24;

impl Slip {
    /// Bytes of a status record at the head of a message.
    pub const LEN: usize = LEN;

    pub(super) fn new(failure: Option<Error>, fingerprint: u64) -> Slip {
        Slip { code: failure.map_or(0, |error| error.code().into()), fingerprint }
    }

    /// Writes the status record to the head of a message: both numbers, little-endian.
    ///
    /// # Panics
    /// When the message is shorter than a status record.
    pub fn write(self, head: &mut [u8]) {
        let words = [self.code, self.fingerprint].map(u64::to_le);
        head[..LEN].copy_from_slice(bytemuck::bytes_of(&words));
    }

    /// Reads the status record at the head of a message.
    ///
    /// # Panics
    /// When the message is shorter than a status record.
    pub fn read(message: &[u8]) -> Slip {
        let word = |at: usize| message[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Slip { code: word(0), fingerprint: word(1) }
    }

    /// The status record as one f32 for an all-reduce. In the place of this number, all other ranks have zero.
    pub fn to_sum(self) -> f32 {
        match self.code {
            0 => (FINGERPRINTS + self.fingerprint % (END - FINGERPRINTS)) as f32,
            code => code.min(FINGERPRINTS - 1) as f32,
        }
    }

    /// Reads the number that [`to_sum`](Slip::to_sum) has made. The result has only a part of the fingerprint.
    pub fn of_sum(sum: f32) -> Slip {
        let whole = sum as u64;
        match whole {
            _ if whole as f32 != sum || !(1..END).contains(&whole) => Slip { code: UNREADABLE, fingerprint: 0 },
            _ if whole < FINGERPRINTS => Slip { code: whole, fingerprint: 0 },
            _ => Slip { code: 0, fingerprint: whole },
        }
    }

    /// Number of values that a rank's status record takes after a sum.
    pub const fn values(dtype: Dtype) -> usize {
        match dtype {
            Dtype::F32 => 1,
            Dtype::F16 | Dtype::Bf16 => 3,
        }
    }

    /// [`to_sum`](Slip::to_sum) as three digits of base 256, the lowest first, because bf16 represents no larger integers exactly.
    pub fn to_bf16_sum(self) -> [Bf16; 3] {
        let whole = self.to_sum() as u32;
        [0, 8, 16].map(|shift| Bf16::from_f32((whole >> shift & 0xff) as f32))
    }

    /// Reads [`to_bf16_sum`](Slip::to_bf16_sum)'s digits.
    pub fn of_bf16_sum(sum: [Bf16; 3]) -> Slip {
        let digits = sum.map(Bf16::to_f32);
        if digits.iter().any(|&digit| digit as u8 as f32 != digit) {
            return Slip { code: UNREADABLE, fingerprint: 0 };
        }
        Slip::of_sum(digits.iter().rev().fold(0.0, |whole, digit| 256.0 * whole + digit))
    }
}

/// `Ok` if no rank has failed and all have the same fingerprint. `own` is this rank's error. `slips` are the status records of all
/// ranks.
///
/// # Errors
/// Either all ranks fail, or no rank fails. Either all ranks fail because of gradients that are not finite, or no rank fails for
/// this reason. A rank that has failed gets its own error, unless another rank has a more serious error. Other ranks get
/// [`Error::Peer`] with the first rank that failed by itself. [`Error::PeerPlan`] has the first rank whose fingerprint differs
/// from that of rank 0.
pub fn judge(own: Option<Error>, slips: impl Iterator<Item = Slip> + Clone) -> Result<(), Error> {
    let mut failed = (0..).zip(slips.clone()).filter(|(_, slip)| slip.code != 0);
    let weight = |code: u64| match code {
        _ if OF_OTHERS.contains(&code) => 0,
        _ if NOT_FINITE.contains(&code) => 1,
        _ => 2,
    };
    let heaviest = failed.clone().map(|(_, slip)| weight(slip.code)).max();
    let first = failed.find(|(_, slip)| Some(weight(slip.code)) == heaviest);
    match (own, first) {
        (Some(own), Some((rank, slip))) if weight(slip.code) > weight(own.code().into()) => {
            return Err(Error::of_peer(rank, slip.code));
        }
        (Some(own), _) => return Err(own),
        (None, Some((rank, slip))) => return Err(Error::of_peer(rank, slip.code)),
        (None, None) => {}
    }
    let first = slips.clone().next().map(|slip| slip.fingerprint);
    match (0..).zip(slips).find(|(_, slip)| Some(slip.fingerprint) != first) {
        Some((rank, _)) => Err(Error::PeerPlan { rank }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const FINE: Slip = Slip { code: 0, fingerprint: 0xfeed_beef_1234_5678 };
    const BROKEN: Error = Error::Core(CoreError::NonFinite { index: 3, value: f32::INFINITY });
    const JUNK: Error = Error::PeerMessage { rank: 2, code: 40 };

    #[test]
    fn slips_survive_messages_and_sums() {
        for slip in [FINE, Slip::new(Some(BROKEN), 7), Slip::new(Some(JUNK), 0)] {
            let mut head = [0xa5; LEN + 3];
            slip.write(&mut head);
            assert_eq!(Slip::read(&head), slip);
            assert_eq!(Slip::of_sum(slip.to_sum()).code, slip.code);
            assert_eq!(Slip::of_bf16_sum(slip.to_bf16_sum()), Slip::of_sum(slip.to_sum()));
        }
        let near = Slip { fingerprint: FINE.fingerprint + 1, ..FINE };
        assert_ne!(Slip::of_sum(FINE.to_sum()), Slip::of_sum(near.to_sum()));
        for fingerprint in [0, END - FINGERPRINTS - 1, END - FINGERPRINTS, u64::MAX] {
            let told = Slip { code: 0, fingerprint }.to_sum();
            assert_eq!(Slip::of_sum(told), Slip { code: 0, fingerprint: told as u64 });
            let digits = Slip { code: 0, fingerprint }.to_bf16_sum();
            assert_eq!(Slip::of_bf16_sum(digits), Slip { code: 0, fingerprint: told as u64 });
        }
        for junk in [f32::NAN, f32::INFINITY, -1.0, 0.0, 0.5, 4096.5, 16777216.0, 1e30] {
            assert_eq!(Slip::of_sum(junk).code, UNREADABLE, "{junk}");
        }
        for junk in [f32::NAN, f32::INFINITY, -1.0, 0.5, 256.0, 1e30] {
            for at in 0..3 {
                let mut digits = FINE.to_bf16_sum();
                digits[at] = Bf16::from_f32(junk);
                assert_eq!(Slip::of_bf16_sum(digits).code, UNREADABLE, "{junk}");
            }
        }
    }

    #[test]
    fn whoever_failed_first_is_named() {
        let slips = |failures: [Option<Error>; 3]| failures.map(|failure| Slip::new(failure, 1));
        let judged = |own, failures| judge(own, slips(failures).into_iter());
        assert_eq!(judged(None, [None; 3]), Ok(()));
        assert_eq!(judged(None, [None, Some(BROKEN), None]), Err(Error::Peer { rank: 1, code: 4 }));
        assert_eq!(judged(Some(BROKEN), [None, Some(BROKEN), None]), Err(BROKEN));
        // Rank 2 had failed, so ranks 0 and 1 could not read its message.
        let failures = [Some(JUNK), Some(JUNK), Some(BROKEN)];
        let results: Vec<_> = failures.iter().map(|&own| judged(own, failures)).collect();
        assert_eq!(
            results,
            [Err(Error::Peer { rank: 2, code: 4 }), Err(Error::Peer { rank: 2, code: 4 }), Err(BROKEN)]
        );
        assert_eq!(judged(Some(JUNK), [None, Some(JUNK), None]), Err(JUNK));
        assert_eq!(judged(None, [None, Some(JUNK), None]), Err(Error::Peer { rank: 1, code: 83 }));
        let overflow = Error::Core(CoreError::Overflow { what: "a sum" });
        let failures = [Some(BROKEN), Some(overflow), None];
        let told = Err(Error::Peer { rank: 1, code: 5 });
        assert_eq!([judged(failures[0], failures), judged(failures[2], failures)], [told; 2]);
        assert_eq!(judged(failures[1], failures), Err(overflow));
        let differing = [FINE, FINE, Slip { fingerprint: 0, ..FINE }];
        assert_eq!(judge(None, differing.into_iter()), Err(Error::PeerPlan { rank: 2 }));
    }
}
