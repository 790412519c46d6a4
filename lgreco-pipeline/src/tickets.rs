//! Tickets of micro-batches whose gradients have not been exchanged yet.

use super::setting::CutSetting;
use crate::gradient::Shape;
use crate::{CoreError, Error};
use alloc::vec::Vec;

/// A slot for the ticket of a micro-batch: its number, its number of samples, and the indices that TopK kept, if the
/// gradients use shared-index.
#[derive(Clone, Debug)]
struct Ticket {
    /// Number of the ticket; `None` when the slot is free.
    number: Option<u64>,
    samples: usize,
    indices: Vec<u8>,
    indices_len: usize,
}

/// A fixed number of slots for tickets, with preallocated memory.
#[derive(Clone, Debug)]
pub(super) struct Tickets {
    places: Vec<Ticket>,
}

impl Tickets {
    pub(super) fn new(setting: &CutSetting) -> Result<Tickets, Error> {
        let (batch, features) = (setting.batch as usize, setting.features as usize);
        let shared = matches!(setting.backward.codec, super::Codec::SharedIndex { .. });
        let len = if shared { setting.forward.codec.indices_len(batch, features)? } else { 0 };
        let out_of_memory = CoreError::OutOfMemory { words: len.div_ceil(8) };
        let mut places = Vec::new();
        places.try_reserve_exact(setting.in_flight as usize).map_err(|_| out_of_memory)?;
        for _ in 0..setting.in_flight {
            let mut indices = Vec::new();
            indices.try_reserve_exact(len).map_err(|_| out_of_memory)?;
            indices.resize(len, 0);
            places.push(Ticket { number: None, samples: 0, indices, indices_len: 0 });
        }
        Ok(Tickets { places })
    }

    /// Number of micro-batches in flight.
    pub(super) fn pending(&self) -> usize {
        self.places.iter().filter(|place| place.number.is_some()).count()
    }

    /// Returns an error when no slot is free.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        match self.pending() < self.places.len() {
            true => Ok(()),
            false => Err(Error::TooManyInFlight { limit: self.places.len() as u32 }),
        }
    }

    /// Stores a ticket. If the gradients use shared-index, also stores the indices in `body`.
    pub(super) fn open(&mut self, number: u64, setting: &CutSetting, samples: usize, body: &[u8]) -> Result<(), Error> {
        self.check_room()?;
        let (codec, features) = (setting.forward.codec, setting.features as usize);
        for place in &mut self.places {
            if place.number.is_none() {
                if !place.indices.is_empty() {
                    place.indices_len = codec.indices_len(samples, features)?;
                    codec.indices(body, features, &mut place.indices[..place.indices_len])?;
                }
                (place.number, place.samples) = (Some(number), samples);
                break;
            }
        }
        Ok(())
    }

    /// Returns the shape of a micro-batch in flight, and the TopK indices of its samples.
    pub(super) fn get(&self, number: u64, features: usize) -> Result<(Shape, &[u8]), Error> {
        let place = self.places.iter().find(|place| place.number == Some(number));
        let place = place.ok_or(Error::NotInFlight { ticket: number })?;
        Ok((Shape::new(place.samples, features)?, &place.indices[..place.indices_len]))
    }

    /// Frees the slot of a ticket.
    pub(super) fn close(&mut self, number: u64) -> Result<(), Error> {
        let place = self.places.iter_mut().find(|place| place.number == Some(number));
        place.ok_or(Error::NotInFlight { ticket: number })?.number = None;
        Ok(())
    }
}
