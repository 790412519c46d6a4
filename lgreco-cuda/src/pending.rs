//! What has been enqueued and not been checked yet.

use crate::codec::TOLD;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::{Error, Result};
use lgreco::compress::Setting;

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
    /// Zeros but for the first `given`.
    pub(crate) statuses: Option<Part>,
    /// How many have been given to calls since the last check, those included that failed and are none of `calls`.
    given: usize,
}

impl Pending {
    /// `Err` when a check is due.
    pub(crate) fn has_room(&self) -> Result<()> {
        if self.calls.len() < MOST {
            return Ok(());
        }
        Err(Error::Memory { what: "for what is known of enqueued calls is full: they need a check" })
    }

    /// Where the next call's status will be, of zeros.
    pub(crate) fn status(&mut self, gpu: &mut Gpu) -> Result<Part> {
        self.has_room()?;
        let statuses = match self.statuses {
            Some(statuses) => statuses,
            None => {
                let statuses = gpu.scratch(Scratch::Statuses, TOLD * MOST as u64)?;
                gpu.clear(statuses)?;
                *self.statuses.insert(statuses)
            }
        };
        let status = statuses.cut(TOLD * self.calls.len() as u64, TOLD);
        if self.calls.len() < self.given {
            // A call that failed may have written there.
            gpu.clear(status)?;
        }
        self.given = self.calls.len() + 1;
        Ok(status)
    }

    /// Enqueued: all statuses are zeros again. The calls that had them.
    pub(crate) fn clear(&mut self, gpu: &mut Gpu) -> Result<Vec<Enqueued>> {
        if let Some(statuses) = self.statuses {
            gpu.clear(statuses.cut(0, TOLD * self.given as u64))?;
        }
        self.given = 0;
        Ok(std::mem::take(&mut self.calls))
    }
}
