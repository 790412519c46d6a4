//! A collective of threads that takes as long as a collective over a network.

use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::exchange::{Collective, CollectiveError};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Waits for the time in which one worker sends this number of bytes.
pub type Link = Arc<dyn Fn(u64) + Send + Sync>;

/// A link of this rate in Mbit/s, which sends one message after another.
pub fn of_mbits(mbits: NonZeroU32) -> Link {
    let busy = Mutex::new(());
    Arc::new(move |bytes| {
        let _busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::sleep(Duration::from_secs_f64(bytes as f64 * 8e-6 / f64::from(mbits.get())));
    })
}

/// A worker's collective in a group of threads, and its link.
pub struct Linked {
    pub threads: ThreadCollective,
    pub link: Link,
}

impl Linked {
    /// Waits for `rounds` trips around a ring of all workers, in which each worker sends one part of the bytes at a time.
    fn ring(&self, bytes: usize, rounds: u64) {
        let workers = u64::from(self.world_size());
        (self.link)(rounds * (workers - 1) * bytes as u64 / workers);
    }
}

impl Collective for Linked {
    fn rank(&self) -> u32 {
        self.threads.rank()
    }

    fn world_size(&self) -> u32 {
        self.threads.world_size()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.ring(size_of_val(values), 2);
        self.threads.all_reduce_sum(values)
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.ring(buffer.len(), 1);
        self.threads.all_gather(buffer)
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.ring(buffer.len(), 1);
        self.threads.all_gather_each(lens, buffer)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        (self.link)(bytes.len() as u64);
        self.threads.broadcast(root, bytes)
    }
}
