//! The mean of all ranks' payloads of one tensor, in the tensor's own element type.

use super::lanes::Scratch;
use super::mean::{average, average_shares, in_tensor, narrow, to_shares};
use crate::compress::Setting;
use crate::compress::wire::Payload;
use crate::gradient::{Shape, ValuesMut};
use crate::simd::{Kernel, dispatch};
use crate::{CoreError, Error};
use lgreco::compress::payload::{
    Combine, STRETCH, combine, combine_stretch, combine_values, place_of, reads_stretches,
};
use lgreco::compress::spread::{Divide, spread};

/// Adds the decoded payloads in the order of ranks, in f32, and writes the mean. If payloads can be read in chunks, all ranks'
/// payloads are added chunk by chunk, so that every element of the mean is written once. If the sum of a chunk then exceeds f32,
/// shares are added instead: values multiplied by a small factor.
///
/// # Errors
/// [`Error::PeerMessage`] with a rank whose payload cannot be decoded; [`CoreError::Overflow`] when the mean is not finite;
/// [`CoreError::ElementOverflow`] when the mean exceeds its element type.
pub(super) fn mean_of<'p, P: Fn(u32) -> &'p [u8] + Sync>(
    world: u32,
    payload_of: P,
    setting: &Setting,
    shape: Shape,
    mean: &mut ValuesMut<'_>,
    Scratch { places, wide, decoded, .. }: &mut Scratch<'_>,
) -> Result<(), Error> {
    if reads_stretches(setting.method()) {
        places.fill(0);
        let places = places.as_chunks_mut().0;
        let (payload_of, mean) = (&payload_of, mean.part(0..shape.elements()));
        return spread(Stretches { world, payload_of, setting, shape, start: 0, mean, places, wide });
    }
    let mut add_up = |sum: &mut [f32]| {
        decode_from(0, payload_of(0), setting, shape, sum)?;
        for rank in 1..world {
            let add = |payload: &Payload<'_>| combine(setting, payload, Combine::Add, sum, decoded);
            read_from(rank, payload_of(rank), setting, shape, add)?;
        }
        average(sum, world)
    };
    if let Some(mean) = mean.as_f32() {
        return add_up(mean);
    }
    let sum = &mut wide[..shape.elements()];
    add_up(sum)?;
    narrow(sum, 0, mean)
}

/// The computation of a mean, or of some of its chunks, from payloads that can be read in chunks.
struct Stretches<'a, P> {
    world: u32,
    payload_of: &'a P,
    setting: &'a Setting,
    shape: Shape,
    /// The first element.
    start: usize,
    mean: ValuesMut<'a>,
    /// The read positions of [`Scratch`]; empty for parts that other cores compute, because these cores have their own memory.
    places: &'a mut [[u64; 2]],
    wide: &'a mut [f32],
}

impl<'p, P: Fn(u32) -> &'p [u8]> Stretches<'_, P> {
    fn read(&self, rank: u32, read: impl FnOnce(&Payload<'_>) -> Result<(), CoreError>) -> Result<(), Error> {
        read_from(rank, (self.payload_of)(rank), self.setting, self.shape, read)
    }

    /// Finds the position in a rank's payload at which the chunk from element `start` begins.
    fn find(&self, rank: u32, start: usize, place: &mut [u64; 2], spare: &mut [f32]) -> Result<(), Error> {
        self.read(rank, |payload| {
            *place = [0; 2];
            match place_of(payload, start)? {
                Some(found) => *place = found,
                None => (0..start)
                    .step_by(STRETCH)
                    .try_for_each(|before| combine_stretch(payload, true, before, place, spare))?,
            }
            Ok(())
        })
    }

    /// The mean of a chunk as a sum of shares, because the sum of values exceeds f32.
    #[cold]
    #[inline(never)]
    fn average_shares(&self, start: usize, mean: &mut [f32]) -> Result<(), Error> {
        let (mut place, mut values) = ([0; 2], [0.0; STRETCH]);
        mean.fill(0.0);
        for rank in 0..self.world {
            self.find(rank, start, &mut place, &mut values)?;
            let values = &mut values[..mean.len()];
            self.read(rank, |payload| combine_stretch(payload, true, start, &mut place, values))?;
            to_shares(values, self.world);
            combine_values(mean, Combine::Add, values);
        }
        average_shares(mean, self.world)
    }
}

impl<'p, P: Fn(u32) -> &'p [u8] + Sync> Kernel for Stretches<'_, P> {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn run(self) -> Result<(), Error> {
        let Stretches { world, payload_of, setting, shape, start, mut mean, places, wide } = self;
        let stretches = Stretches { mean: ValuesMut::F32(&mut []), places: &mut [], wide: &mut [], ..self };
        let elements = mean.values().len();
        let mut at = 0;
        // Payloads of an empty tensor are checked, too.
        loop {
            let end = elements.min(at + STRETCH);
            let mut add_up = |sum: &mut [f32]| {
                for (rank, place) in (0..world).zip(&mut *places) {
                    let read = |payload: &Payload<'_>| combine_stretch(payload, rank == 0, start + at, place, sum);
                    read_from(rank, payload_of(rank), setting, shape, read)?;
                }
                average(sum, world).or_else(|_| stretches.average_shares(start + at, sum))
            };
            match mean.as_f32() {
                Some(mean) => add_up(&mut mean[at..end])?,
                None => {
                    let sum = &mut wide[..end - at];
                    add_up(sum)?;
                    narrow(sum, at, &mut mean).map_err(|error| in_tensor(error, start))?;
                }
            }
            at = end;
            if end == elements {
                return Ok(());
            }
        }
    }
}

/// Largest number of ranks for which chunks are divided between cores. All cores except the first keep a read position
/// per rank on the stack.
const RANKS: usize = 64;
impl<'p, P: Fn(u32) -> &'p [u8] + Sync> Divide for Stretches<'_, P> {
    fn elements(&self) -> usize {
        self.mean.values().len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let at = at / STRETCH * STRETCH;
        if self.world as usize > RANKS || at == 0 {
            return Err(self);
        }
        let Stretches { world, payload_of, setting, shape, start, mean, places, wide } = self;
        let (mean, other) = mean.split_at(at);
        let first = Stretches { world, payload_of, setting, shape, start, mean, places, wide };
        let (places, wide) = (&mut [][..], &mut [][..]);
        Ok((first, Stretches { world, payload_of, setting, shape, start: start + at, mean: other, places, wide }))
    }

    #[inline(never)] // so that callers do not reserve stack for its arrays
    fn start(self) -> Result<(), Error> {
        if !self.places.is_empty() {
            return dispatch(self);
        }
        let (mut places, mut wide) = ([[0; 2]; RANKS], [0.0; STRETCH]);
        for (rank, place) in (0..self.world).zip(&mut places) {
            self.find(rank, self.start, place, &mut wide)?;
        }
        dispatch(Stretches { places: &mut places[..self.world as usize], wide: &mut wide, ..self })
    }
}

/// Decodes a payload of `rank` for a tensor of this setting and shape.
pub(super) fn decode_from(
    rank: u32,
    payload: &[u8],
    setting: &Setting,
    shape: Shape,
    values: &mut [f32],
) -> Result<(), Error> {
    read_from(rank, payload, setting, shape, |payload| setting.decode(payload, values))
}

/// Calls `read` with a payload of `rank`, after a check that the payload fits this setting and shape.
fn read_from(
    rank: u32,
    payload: &[u8],
    setting: &Setting,
    shape: Shape,
    read: impl FnOnce(&Payload<'_>) -> Result<(), CoreError>,
) -> Result<(), Error> {
    let checked = || {
        let payload = Payload::parse(payload)?;
        if (payload.header.method, payload.header.shape) != (setting.method(), shape) {
            return Err(CoreError::PayloadBody { what: "its method or shape is not that of the layer" });
        }
        read(&payload)
    };
    checked().map_err(|error| Error::PeerMessage { rank, code: error.code() })
}
