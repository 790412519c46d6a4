//! A network of workers that are threads of one process.

use super::{Collective, CollectiveError};
use crate::gradient::{Bf16, Dtype, Element};
use core::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::ScopedJoinHandle;
use std::vec;
use std::vec::Vec;

/// Runs `work` on `world_size` threads that form a group, and returns the results by rank. Each thread gets the
/// collective of its rank. Rank 0 is the caller's thread.
///
/// # Panics
/// When `world_size` is 0 or `work` panics on any thread. After a panic, the other threads get errors, so all threads end.
///
/// ```
/// use lgreco_train::exchange::{Collective, threads};
/// let sums = threads::run(3, |mut worker| {
///     let mut values = [1.0, worker.rank() as f32];
///     worker.all_reduce_sum(&mut values).map(|()| values)
/// });
/// assert_eq!(sums, [Ok([3.0, 3.0]); 3]);
/// ```
pub fn run<T: Send>(world_size: u32, work: impl Fn(ThreadCollective) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let mut group = ThreadCollective::group(world_size).into_iter();
        let own = group.next();
        let others: Vec<_> = group.map(|place| scope.spawn(move || work(place))).collect();
        let mut results: Vec<T> = own.into_iter().map(work).collect();
        let result =
            |thread: ScopedJoinHandle<'_, T>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        results.extend(others.into_iter().map(result));
        results
    })
}

/// Runs `work` like [`run`], for `nodes` nodes of `per_node` threads each. Each thread gets two collectives: of the
/// group of its node, and of the group of its peers. Peers are the threads with the same rank on all nodes. Returns the
/// results by rank, counted node by node.
///
/// ```
/// use lgreco_train::exchange::threads;
/// let places = threads::run_nodes(2, 3, |node, peers| (peers.rank(), node.rank()));
/// assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
/// ```
///
/// # Panics
/// When [`run`] panics, and when `per_node` is 0.
pub fn run_nodes<T: Send>(
    nodes: u32,
    per_node: u32,
    work: impl Fn(ThreadCollective, ThreadCollective) -> T + Sync,
) -> Vec<T> {
    let mut of_peers: Vec<_> = (0..per_node).map(|_| ThreadCollective::group(nodes).into_iter()).collect();
    let mut places = Vec::new();
    for _ in 0..nodes {
        let node = ThreadCollective::group(per_node).into_iter().zip(&mut of_peers);
        places.extend(node.filter_map(|(node, peers)| Some(Mutex::new(Some((node, peers.next()?))))));
    }
    run(nodes * per_node, |worker| {
        let mut place = places[worker.rank() as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let (node, peers) = place.take().expect("a place is taken once");
        drop(place);
        work(node, peers)
    })
}

/// The collectives of one thread in a group. Values are added in rank order, so every run has the same bits.
///
/// If a thread drops its `ThreadCollective`, by returning or by panicking, the group ends. Calls of the other threads
/// then fail with [`ThreadCollective::LEFT`] instead of waiting.
///
/// ```
/// use lgreco_train::exchange::{Collective, threads};
/// let gathered = threads::run(2, |mut worker| {
///     let mut all = [9; 4];
///     all[2 * worker.rank() as usize..][..2].fill(worker.rank() as u8);
///     worker.all_gather(&mut all).map(|()| all)
/// });
/// assert_eq!(gathered, [Ok([0, 0, 1, 1]); 2]);
/// ```
#[derive(Debug)]
pub struct ThreadCollective {
    rank: usize,
    /// Index, 0 or 1, of the slot that the next call uses.
    turn: usize,
    group: Arc<Group>,
}

#[derive(Debug)]
struct Group {
    /// Two slots per worker, used alternately. Before a worker writes to a slot again, all other workers have finished reading the
    /// slot.
    slots: Vec<[RwLock<Slot>; 2]>,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// One worker's part of a call.
#[derive(Debug, Default)]
struct Slot {
    call: Option<Call>,
    bytes: Vec<u8>,
}

/// A call, which must be the same on all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Reduce { len: usize, dtype: Dtype },
    ReduceScatter { len: usize, dtype: Dtype },
    Gather,
    Broadcast { root: u32, len: usize },
    AllToAll,
}

#[derive(Debug, Default)]
struct Meeting {
    /// Number of meetings that have ended. In a meeting, all workers wait for each other.
    ended: u64,
    arrived: usize,
    left: bool,
}

impl ThreadCollective {
    /// This worker's number.
    pub fn rank(&self) -> u32 {
        self.rank as u32
    }

    /// Number of workers.
    pub fn world_size(&self) -> u32 {
        self.group.slots.len() as u32
    }

    /// The error of calls after another worker has left the group.
    ///
    /// ```
    /// use lgreco_train::exchange::{Collective, threads::ThreadCollective};
    /// let mut first = ThreadCollective::group(2).remove(0); // the second is dropped
    /// assert_eq!(first.all_reduce_sum(&mut [1.0]), Err(ThreadCollective::LEFT));
    /// ```
    pub const LEFT: CollectiveError = CollectiveError { code: 1 };
    /// The error of a call in which workers made different calls, or used other lengths than announced.
    ///
    /// ```
    /// use lgreco_train::exchange::{Collective, threads::{self, ThreadCollective}};
    /// let results = threads::run(2, |mut worker| {
    ///     let mut values = vec![1.0; 1 + worker.rank() as usize];
    ///     worker.all_reduce_sum(&mut values)
    /// });
    /// assert_eq!(results, [Err(ThreadCollective::MISMATCH); 2]);
    /// ```
    pub const MISMATCH: CollectiveError = CollectiveError { code: 2 };

    /// Creates a group of `world_size` workers. Returns one `ThreadCollective` per worker, by rank.
    ///
    /// ```
    /// use lgreco_train::exchange::{Collective, threads::ThreadCollective};
    /// let places = ThreadCollective::group(4);
    /// assert_eq!((places[3].rank(), places[3].world_size()), (3, 4)); // one for each thread
    /// ```
    ///
    /// # Panics
    /// When `world_size` is 0.
    pub fn group(world_size: u32) -> Vec<ThreadCollective> {
        assert!(world_size > 0, "a group has at least one worker");
        let group = Arc::new(Group {
            slots: (0..world_size).map(|_| Default::default()).collect(),
            meeting: Mutex::default(),
            changed: Condvar::new(),
        });
        (0..world_size as usize).map(|rank| ThreadCollective { rank, turn: 0, group: group.clone() }).collect()
    }

    /// Waits until all workers of the group have called this function.
    fn meet(&self) -> Result<(), CollectiveError> {
        let mut meeting = self.group.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        if meeting.left {
            return Err(Self::LEFT);
        }
        meeting.arrived += 1;
        if meeting.arrived == self.group.slots.len() {
            meeting.arrived = 0;
            meeting.ended += 1;
            self.group.changed.notify_all();
            return Ok(());
        }
        let this = meeting.ended;
        while meeting.ended == this {
            if meeting.left {
                return Err(Self::LEFT);
            }
            meeting = self.group.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// `Err` unless there is a length per rank, and `room` is their sum.
    fn check_lens(&self, lens: &[u64], room: usize) -> Result<(), CollectiveError> {
        let fits = lens.len() == self.group.slots.len() && sum(lens) == room as u64;
        if fits { Ok(()) } else { Err(Self::MISMATCH) }
    }

    /// Shows the part `own` of `buffer` to the other workers, and fills `buffer` with the parts of all ranks. `len` returns their
    /// lengths.
    fn gather(
        &mut self,
        own: Range<usize>,
        len: impl Fn(usize) -> usize,
        mut buffer: &mut [u8],
    ) -> Result<(), CollectiveError> {
        self.put(Call::Gather, &buffer[own]);
        self.see(Call::Gather, |this| {
            (0..this.group.slots.len()).try_for_each(|rank| take(&mut buffer, len(rank), &this.slot(rank).bytes))
        })
    }

    fn slot(&self, rank: usize) -> RwLockReadGuard<'_, Slot> {
        self.group.slots[rank][self.turn].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows `bytes` to the other workers, and calls `read` when the bytes of all workers can be read.
    fn show(
        &mut self,
        call: Call,
        bytes: &[u8],
        read: impl FnOnce(&Self) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        self.put(call, bytes);
        self.see(call, read)
    }

    /// Writes `bytes` to this worker's slot.
    fn put(&mut self, call: Call, bytes: &[u8]) {
        let slot = &self.group.slots[self.rank][self.turn];
        let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
        slot.call = Some(call);
        slot.bytes.clear();
        slot.bytes.extend_from_slice(bytes);
    }

    /// Waits until all workers have written to their slots, and calls `read` if all made the same call.
    fn see(
        &mut self,
        call: Call,
        read: impl FnOnce(&Self) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        self.meet()?;
        let agreed = (0..self.group.slots.len()).all(|rank| self.slot(rank).call == Some(call));
        let outcome = if agreed { read(self) } else { Err(Self::MISMATCH) };
        self.turn ^= 1;
        outcome
    }
    /// Replaces the values by their sums. Each thread sums one part of them.
    fn reduce<T: Element>(&mut self, values: &mut [T]) -> Result<(), CollectiveError> {
        let call = Call::Reduce { len: values.len(), dtype: T::DTYPE };
        let world = self.group.slots.len();
        let part = |rank: usize| values.len() * rank / world..values.len() * (rank + 1) / world;
        let parts: Vec<_> = (0..world).map(part).collect();
        let own = parts[self.rank].clone();
        let mut sum = vec![T::zeroed(); own.len()];
        self.show(call, bytemuck::cast_slice(values), |this| {
            (0..world).for_each(|rank| this.slot(rank).add(own.start, rank == 0, &mut sum));
            Ok(())
        })?;
        self.show(call, bytemuck::cast_slice(&sum), |this| {
            for (rank, part) in parts.into_iter().enumerate() {
                bytemuck::cast_slice_mut(&mut values[part]).copy_from_slice(&this.slot(rank).bytes);
            }
            Ok(())
        })
    }

    /// Replaces this thread's part of the values by its sum.
    fn reduce_scatter<T: Element>(&mut self, lens: &[u64], values: &mut [T]) -> Result<(), CollectiveError> {
        let before = sum(&lens[..self.rank.min(lens.len())]) as usize;
        let call = Call::ReduceScatter { len: values.len(), dtype: T::DTYPE };
        self.put(call, bytemuck::cast_slice(values));
        self.see(call, |this| {
            this.check_lens(lens, values.len())?;
            let sum = &mut values[before..before + lens[this.rank] as usize];
            (0..lens.len()).for_each(|rank| this.slot(rank).add(before, rank == 0, sum));
            Ok(())
        })
    }
}

impl Slot {
    /// Adds the slot's values, from index `start` on, to `sum`. With `first`, the slot's values replace the old content of `sum`.
    fn add<T: Element>(&self, start: usize, first: bool, sum: &mut [T]) {
        let addends = self.bytes.chunks_exact(size_of::<T>()).skip(start).map(bytemuck::pod_read_unaligned::<T>);
        for (sum, x) in sum.iter_mut().zip(addends) {
            *sum = if first { x } else { T::from_f32(sum.to_f32() + x.to_f32()) };
        }
    }
}

impl Drop for ThreadCollective {
    fn drop(&mut self) {
        self.group.meeting.lock().unwrap_or_else(PoisonError::into_inner).left = true;
        self.group.changed.notify_all();
    }
}

impl Collective for ThreadCollective {
    fn rank(&self) -> u32 {
        self.rank()
    }

    fn world_size(&self) -> u32 {
        self.world_size()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.reduce(values)
    }

    /// Rounds at every addition.
    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.reduce(values)
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let world = self.group.slots.len();
        let len = buffer.len() / world;
        let gathered = self.gather(self.rank * len..(self.rank + 1) * len, |_| len, buffer);
        gathered.and(if buffer.len().is_multiple_of(world) { Ok(()) } else { Err(Self::MISMATCH) })
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let start = sum(&lens[..self.rank.min(lens.len())]);
        let own = lens.get(self.rank).and_then(|len| Some(start as usize..start.checked_add(*len)? as usize));
        let own = own.filter(|own| own.end <= buffer.len()).unwrap_or(0..0);
        let checked = self.check_lens(lens, buffer.len());
        self.gather(own, |rank| checked.map_or(0, |()| lens[rank] as usize), buffer).and(checked)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let call = Call::Broadcast { root, len: bytes.len() };
        let shown = if root as usize == self.rank { bytes.to_vec() } else { Vec::new() };
        self.show(call, &shown, |this| {
            if root >= this.world_size() {
                return Err(Self::MISMATCH);
            }
            bytes.copy_from_slice(&this.slot(root as usize).bytes);
            Ok(())
        })
    }

    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        mut received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        // The slot gets the lengths for all workers, then the bytes.
        let shown: Vec<u8> = send_lens.iter().flat_map(|len| len.to_ne_bytes()).chain(send.iter().copied()).collect();
        self.show(Call::AllToAll, &shown, |this| {
            this.check_lens(received_lens, received.len())?;
            for (rank, &len) in received_lens.iter().enumerate() {
                let slot = this.slot(rank);
                let (lens, mut bytes) =
                    slot.bytes.split_at_checked(8 * this.group.slots.len()).ok_or(Self::MISMATCH)?;
                for (peer, &sent) in lens.as_chunks().0.iter().enumerate() {
                    let sent = u64::from_ne_bytes(sent) as usize;
                    let (part, rest) = bytes.split_at_checked(sent).ok_or(Self::MISMATCH)?;
                    bytes = rest;
                    if peer == this.rank {
                        take(&mut received, len as usize, part)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn reduce_scatter_sum(&mut self, lens: &[u64], values: &mut [f32]) -> Result<(), CollectiveError> {
        self.reduce_scatter(lens, values)
    }

    fn reduce_scatter_sum_bf16(&mut self, lens: &[u64], values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.reduce_scatter(lens, values)
    }
}

fn sum(lens: &[u64]) -> u64 {
    lens.iter().fold(0, |all: u64, len| all.saturating_add(*len))
}

/// Fills the first `len` bytes of `room`, and splits them off.
fn take(room: &mut &mut [u8], len: usize, bytes: &[u8]) -> Result<(), CollectiveError> {
    if bytes.len() != len || room.len() < len {
        return Err(ThreadCollective::MISMATCH);
    }
    let (part, rest) = core::mem::take(room).split_at_mut(len);
    part.copy_from_slice(bytes);
    *room = rest;
    Ok(())
}

#[cfg(test)]
mod tests;
