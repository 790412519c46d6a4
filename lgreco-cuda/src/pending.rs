//! Enqueued calls that have not been checked yet.

use crate::codec::TOLD;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::{Error, Result};
use lgreco::compress::Setting;

/// Largest number of calls between two checks.
const MOST: usize = 4096;

/// An enqueued call.
pub(crate) enum Enqueued {
    Encoding(Setting),
    /// A decoding, with the status that a valid payload leaves. The status is `None` if any bytes of the right length
    /// are a valid payload.
    Decoding(Option<[u32; 2]>),
}

/// Calls that have not been checked yet, and the memory of their statuses.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) calls: Vec<Enqueued>,
    /// The memory of the statuses. All statuses after the first `given` are zeros.
    pub(crate) statuses: Option<Part>,
    /// Number of statuses given to calls since the last check. The number includes the status of a call that failed;
    /// `calls` does not include that call.
    given: usize,
}

impl Pending {
    /// `Err` if so many calls are pending that a check is due.
    pub(crate) fn has_room(&self) -> Result<()> {
        if self.calls.len() < MOST {
            return Ok(());
        }
        Err(Error::Memory { what: "for what is known of enqueued calls is full: they need a check" })
    }

    /// Returns the memory for the next call's status, filled with zeros.
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
            // An earlier call that failed may have written to this status.
            gpu.clear(status)?;
        }
        self.given = self.calls.len() + 1;
        Ok(status)
    }

    /// Enqueued: sets all statuses to zeros. Returns the pending calls and forgets them.
    pub(crate) fn clear(&mut self, gpu: &mut Gpu) -> Result<Vec<Enqueued>> {
        if let Some(statuses) = self.statuses {
            gpu.clear(statuses.cut(0, TOLD * self.given as u64))?;
        }
        self.given = 0;
        Ok(std::mem::take(&mut self.calls))
    }
}
