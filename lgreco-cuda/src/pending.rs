//! What has been enqueued and not been checked yet.

use crate::Error;
use crate::codec::TOLD;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use lgreco_core::compress::Setting;

/// Calls that may be enqueued between two checks.
const MOST: usize = 4096;

/// What has been enqueued.
pub(crate) enum Enqueued {
    Encoding(Setting),
    /// With the status of a payload that an encoder wrote; `None` when any bytes can be decoded.
    Decoding(Option<[u32; 2]>),
}

/// Calls that have not been checked yet, and where what is known of them will be.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) calls: Vec<Enqueued>,
    pub(crate) statuses: Option<Part>,
}

impl Pending {
    /// `Err` when a check is due.
    pub(crate) fn has_room(&self) -> Result<(), Error> {
        if self.calls.len() < MOST {
            return Ok(());
        }
        Err(Error::Memory { what: "for what is known of enqueued calls is full: they need a check" })
    }

    /// Where the next call's status will be.
    pub(crate) fn status(&mut self, gpu: &mut Gpu) -> Result<Part, Error> {
        self.has_room()?;
        let statuses = match self.statuses {
            Some(statuses) => statuses,
            None => *self.statuses.insert(gpu.scratch(Scratch::Statuses, TOLD * MOST as u64)?),
        };
        Ok(statuses.cut(TOLD * self.calls.len() as u64, TOLD))
    }
}
