//! Memory that buckets use for a short time: scratch memory, and messages inside a node.
//!
//! Buckets in flight give this memory back before they are closed, and other buckets of the step take it. A lock protects the list
//! of free buffers. Without the feature `threads`, there is no lock: buckets free their buffers and allocate new ones.

use super::buffers::grow;
use crate::Error;
use alloc::vec::Vec;
#[cfg(feature = "threads")]
use {
    alloc::{collections::VecDeque, sync::Arc},
    std::sync::{Mutex, MutexGuard, TryLockError},
    std::thread,
};

/// Largest number of free buffers that are kept: one from the newest bucket, and one from the bucket before.
#[cfg(feature = "threads")]
const KEPT: usize = 2;
/// A message accepts a buffer of at most twice its length plus this number of words.
const SMALL: usize = 512;

/// The pool from which buckets take memory for a short time, and to which they return this memory. Clones share the memory.
#[derive(Clone, Default)]
pub(super) enum Spare {
    /// Each user keeps its own memory, because buckets are exchanged one at a time.
    #[default]
    Own,
    /// Buckets share the memory. The list has the buffers that no bucket uses, in ascending order of length.
    #[cfg(feature = "threads")]
    Shared(Arc<Mutex<VecDeque<Vec<u64>>>>),
    #[cfg(not(feature = "threads"))]
    Freed,
}

impl Spare {
    /// Memory that the buckets of a step share.
    pub(super) fn shared() -> Spare {
        #[cfg(feature = "threads")]
        let shared = Spare::Shared(Arc::default());
        #[cfg(not(feature = "threads"))]
        let shared = Spare::Freed;
        shared
    }

    /// Makes `memory` at least `words` words long, for scratch memory of one call. Afterwards, the contents of `memory` are
    /// undefined.
    pub(super) fn provide(&self, memory: &mut Vec<u64>, words: usize) -> Result<(), Error> {
        self.provide_up_to(usize::MAX, memory, words)
    }

    /// Like [`provide`](Spare::provide), for a message. A message takes no buffer of more than about twice its length, because a
    /// longer message may need that buffer at the same time.
    pub(super) fn provide_message(&self, memory: &mut Vec<u64>, words: usize) -> Result<(), Error> {
        self.provide_up_to(words.saturating_mul(2).saturating_add(SMALL), memory, words)
    }

    #[cfg_attr(not(feature = "threads"), expect(unused_variables, clippy::unused_self, reason = "all memory is new"))]
    fn provide_up_to(&self, most: usize, memory: &mut Vec<u64>, words: usize) -> Result<(), Error> {
        #[cfg(feature = "threads")]
        if let Spare::Shared(free) = self
            && memory.len() < words
        {
            // If no buffer fits, a new one replaces the shortest.
            let fits = |free: &Vec<u64>| (words..=most).contains(&free.len());
            let mut free = lock(free);
            let found = free.iter().position(fits).unwrap_or(0);
            let taken = free.remove(found);
            drop(free);
            *memory = taken.filter(fits).unwrap_or_default();
        }
        grow(memory, words)
    }

    /// Takes `memory` back, unless its user keeps it. Frees the shortest buffer if there are more than `KEPT`.
    pub(super) fn release(&self, memory: &mut Vec<u64>) {
        match self {
            Spare::Own => {}
            #[cfg(feature = "threads")]
            Spare::Shared(free) if !memory.is_empty() => {
                let memory = core::mem::take(memory);
                let mut free = lock(free);
                let at = free.partition_point(|other| other.len() < memory.len());
                free.insert(at, memory);
                let shortest = if free.len() > KEPT { free.pop_front() } else { None };
                // The lock is not held while memory is freed.
                drop(free);
                drop(shortest);
            }
            #[cfg(feature = "threads")]
            Spare::Shared(_) => {}
            #[cfg(not(feature = "threads"))]
            Spare::Freed => *memory = Vec::new(),
        }
    }

    /// Frees all memory that no bucket uses.
    pub(super) fn clear(&self) {
        #[cfg(feature = "threads")]
        if let Spare::Shared(free) = self {
            *lock(free) = VecDeque::new();
        }
    }
}

/// Locks the list. Threads hold the lock for a few instructions only, so a waiting thread yields and tries again. `Mutex::lock` is
/// not called, because ThreadSanitizer does not see that std's compiled code waits in this function.
#[cfg(feature = "threads")]
fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match list.try_lock() {
            Ok(list) => return list,
            Err(TryLockError::Poisoned(list)) => return list.into_inner(),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
}
