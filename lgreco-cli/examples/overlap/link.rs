//! Threads that exchange as if a network lay between them.

use lgreco_train::exchange::threads::ThreadCollective;
use lgreco_train::exchange::{Collective, CollectiveError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Waits for as long as it takes one worker to send so many bytes.
pub type Link = Arc<dyn Fn(u64) + Send + Sync>;

/// Takes no time.
pub fn instant() -> Link {
    Arc::new(|_| ())
}

/// A worker's link of so many Mbit/s, which carries one message at a time.
pub fn of_mbits(mbits: f64) -> Link {
    let busy = Mutex::new(());
    Arc::new(move |bytes| {
        let _busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::sleep(Duration::from_secs_f64(bytes as f64 * 8.0 / (mbits * 1e6)));
    })
}

/// A place in a group of threads, behind a link.
pub struct Linked {
    pub threads: ThreadCollective,
    pub link: Link,
}

impl Linked {
    /// Sends what one worker sends in a ring: in every turn the mean part of `bytes`.
    fn ring(&self, bytes: usize, turns: u64) {
        (self.link)(bytes as u64 * turns / u64::from(self.world_size()));
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
        self.ring(size_of_val(values), 2 * u64::from(self.world_size() - 1));
        self.threads.all_reduce_sum(values)
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.ring(buffer.len(), u64::from(self.world_size() - 1));
        self.threads.all_gather(buffer)
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.ring(buffer.len(), u64::from(self.world_size() - 1));
        self.threads.all_gather_each(lens, buffer)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        (self.link)(bytes.len() as u64);
        self.threads.broadcast(root, bytes)
    }
}
