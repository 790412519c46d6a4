//! Divides the host's workspace into the parts of an exchange.

use super::lanes::Scratch;
use super::summed::SLIP_ROOM;
use crate::Error;
use crate::exchange::layout::Layout;
use lgreco::error::expect_room;

/// Words per rank in [`Ranks`].
const WORDS: usize = 5;

/// The part of a workspace that every exchange has.
pub(super) struct Ranks<'a> {
    /// Bytes of each rank's message with payloads for all ranks.
    pub(super) lens: &'a mut [u64],
    /// The length of each rank's share: bytes of pieces, or values of shards.
    pub(super) sent: &'a mut [u64],
    /// The first messages, 24 bytes per rank; later, the lengths of received messages.
    pub(super) spare: &'a mut [u64],
}

impl Layout {
    /// Length of `values` values followed by the ranks' status records; 0 if there are no values.
    fn with_slips(&self, values: usize) -> usize {
        if values == 0 { 0 } else { values + SLIP_ROOM * self.world }
    }

    fn sums_with_slips(&self) -> usize {
        if self.sums == 0 && self.in_place == 0 { 0 } else { self.sums + SLIP_ROOM * self.world }
    }

    fn shards_with_slips(&self) -> usize {
        if self.shards == 0 { 0 } else { self.shards + SLIP_ROOM * self.world * self.world }
    }

    /// Bytes of the buffer for this rank's message, while the lengths of the other messages are unknown.
    fn staged(&self) -> usize {
        if self.varies { self.message } else { 0 }
    }

    /// Words for the position of each lane in each rank's message.
    fn read(&self) -> usize {
        self.lanes().len().saturating_mul(self.world)
    }

    /// Words of the host's workspace that keep their content between calls.
    pub(crate) fn words(&self) -> usize {
        let sums = [self.sums_with_slips(), self.with_slips(self.factors), self.shards_with_slips()];
        let singles = sums.into_iter().map(|len| len.div_ceil(2));
        let bytes =
            [self.positions, self.staged(), self.pieces, self.received, self.arrived].map(|len| len.div_ceil(8));
        singles.chain(bytes).fold(WORDS.saturating_mul(self.world), usize::saturating_add)
    }

    /// Scratch words that the host needs to make means.
    pub(crate) fn averaging_words(&self) -> usize {
        let singles = [self.wide, self.decoded].map(|len| len.div_ceil(2));
        let ranks = [self.read(), self.read(), self.read()];
        singles.into_iter().chain(ranks).fold(0, usize::saturating_add)
    }

    /// Scratch words of any call, with the workspace of compressors.
    pub(crate) fn scratch_words(&self) -> usize {
        self.averaging_words().saturating_add(self.encode)
    }
}

/// A workspace divided into its parts; see [`Layout`].
pub(super) struct Room<'a> {
    pub(super) ranks: Ranks<'a>,
    pub(super) sums: &'a mut [f32],
    pub(super) factors: &'a mut [f32],
    pub(super) shards: &'a mut [f32],
    pub(super) positions: &'a mut [u8],
    pub(super) message: &'a mut [u8],
    pub(super) pieces: &'a mut [u8],
    pub(super) received: &'a mut [u8],
    /// The other ranks' payloads for this rank's pieces; later, the payloads of the means of all pieces.
    pub(super) arrived: &'a mut [u8],
    pub(super) scratch: Scratch<'a>,
}

impl<'a> Room<'a> {
    pub(super) fn new(layout: &Layout, workspace: &'a mut [u64], scratch: Scratch<'a>) -> Result<Self, Error> {
        expect_room("workspace words", layout.words(), workspace.len())?;
        let (ranks, mut words) = workspace.split_at_mut(WORDS * layout.world);
        let (lens, ranks) = ranks.split_at_mut(layout.world);
        let (sent, spare) = ranks.split_at_mut(layout.world);
        Ok(Room {
            ranks: Ranks { lens, sent, spare },
            sums: take(&mut words, layout.sums_with_slips()),
            factors: take(&mut words, layout.with_slips(layout.factors)),
            shards: take(&mut words, layout.shards_with_slips()),
            positions: take(&mut words, layout.positions),
            message: take(&mut words, layout.staged()),
            pieces: take(&mut words, layout.pieces),
            received: take(&mut words, layout.received),
            arrived: take(&mut words, layout.arrived),
            scratch,
        })
    }
}

/// Splits off the first `len` values of a buffer.
fn take<'a, T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(words: &mut &'a mut [u64], len: usize) -> &'a mut [T] {
    let (part, rest) = core::mem::take(words).split_at_mut((len * size_of::<T>()).div_ceil(8));
    *words = rest;
    &mut bytemuck::cast_slice_mut(part)[..len]
}

impl<'a> Scratch<'a> {
    /// Divides scratch memory into its parts. The compressors get the remaining words.
    pub(super) fn new(layout: &Layout, mut words: &'a mut [u64]) -> Result<Self, Error> {
        expect_room("scratch words", layout.averaging_words(), words.len())?;
        Ok(Scratch {
            read: take(&mut words, layout.read()),
            places: take(&mut words, 2 * layout.read()),
            wide: take(&mut words, layout.wide),
            decoded: take(&mut words, layout.decoded),
            encode: words,
        })
    }
}

/// The sum of lengths.
pub(super) fn sum(lens: &[u64]) -> usize {
    lens.iter().sum::<u64>() as usize
}

/// The messages of all ranks.
pub(super) fn messages<'a>(lens: &'a [u64], received: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
    lens.iter().scan(0, |at, &len| {
        let message = received.get(*at..*at + len as usize);
        *at += len as usize;
        message
    })
}
