//! AQ-SGD's memory at one end of a cut: one row per sample.
//!
//! Only `commit_step` changes the samples' rows. Until then, updates wait in separate rows, so every pass of a step
//! reads the same rows. `commit_step` publishes the updates: each waiting row replaces the sample's old row. Both ends
//! evict the same rows, because both publish in the order of the messages.

use super::digest;
use super::setting::RowStorage;
use super::values::{get_all, put_all};
use crate::compress::qsgd::{Qsgd, Rounding, Scale};
use crate::gradient::Dtype;
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use lgreco::error::{expect_len, expect_room};

/// Number of values that share a scale in quantised rows.
const BUCKET: u32 = 128;

/// The byte format of a row.
#[derive(Clone, Copy, Debug)]
struct Form {
    storage: RowStorage,
    features: usize,
}

impl Form {
    fn quantiser(bits: u8) -> Qsgd {
        Qsgd { bits, bucket: BUCKET, scale: Scale::MaxNorm, rounding: Rounding::Nearest }
    }

    /// Number of bytes without padding.
    fn content_len(&self) -> Result<usize, CoreError> {
        match self.storage {
            RowStorage::F32 => Ok(4 * self.features),
            RowStorage::Bf16 => Ok(2 * self.features),
            RowStorage::Quantised { bits } => Form::quantiser(bits).body_len(self.features),
        }
    }

    /// Writes the row. Returns false when a value is not finite, or does not fit the storage type.
    fn pack(&self, values: &[f32], row: &mut [u8]) -> Result<bool, CoreError> {
        let content = &mut row[..self.content_len()?];
        let packed = match self.storage {
            RowStorage::F32 => put_all(Dtype::F32, values, content),
            RowStorage::Bf16 => put_all(Dtype::Bf16, values, content),
            RowStorage::Quantised { bits } => Form::quantiser(bits).encode_body(values, Stream::default(), content),
        };
        match packed {
            Ok(()) => Ok(true),
            Err(CoreError::ElementOverflow { .. } | CoreError::NonFinite { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn unpack(&self, row: &[u8], values: &mut [f32]) -> Result<(), CoreError> {
        let content = &row[..self.content_len()?];
        match self.storage {
            RowStorage::F32 => get_all(Dtype::F32, content, values),
            RowStorage::Bf16 => get_all(Dtype::Bf16, content, values),
            RowStorage::Quantised { bits } => Form::quantiser(bits).decode_body(content, values),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Row {
    slot: usize,
    /// Time of the last update, as the value of the store's clock.
    used: u64,
}

/// Counts of published updates: evicted rows, and rows that could not be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) evictions: u64,
    pub(super) non_finite: u64,
}

/// Rows by sample id. Staged updates take effect only at [`publish`](Store::publish), so that every pass of a step
/// reads the same rows.
#[derive(Clone, Debug)]
pub(super) struct Store {
    form: Form,
    capacity: usize,
    row_len: usize,
    slots: Vec<Vec<u8>>,
    free: Vec<usize>,
    rows: BTreeMap<u64, Row>,
    /// Ids by time of the last update.
    order: BTreeMap<u64, u64>,
    clock: u64,
    /// Ids with their new rows; `None` for a row that could not be stored.
    staged: Vec<(u64, Option<usize>)>,
}

impl Store {
    pub(super) fn new(capacity: u32, storage: RowStorage, features: usize) -> Result<Store, Error> {
        let form = Form { storage, features };
        // Rows have whole 32-bit words, as the checksum requires.
        let row_len = form.content_len()?.next_multiple_of(4);
        Ok(Store {
            form,
            capacity: capacity as usize,
            row_len,
            slots: Vec::new(),
            free: Vec::new(),
            rows: BTreeMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            staged: Vec::new(),
        })
    }

    /// Bytes of all rows, including staged and free ones.
    pub(super) fn bytes(&self) -> u64 {
        self.slots.len() as u64 * self.row_len as u64
    }

    /// Number of updates that have not been published.
    pub(super) fn pending(&self) -> usize {
        self.staged.len()
    }

    /// Ids, least recently updated first.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.order.values().copied()
    }

    /// Whether a sample is in memory.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.rows.contains_key(&id)
    }

    /// Checksum of a sample's row, if the sample is in memory.
    pub(super) fn checksum(&self, id: u64) -> Option<u32> {
        self.rows.get(&id).map(|row| digest::of_bytes(&self.slots[row.slot]))
    }

    /// Reads a sample's row. Returns false when the sample is not in memory.
    pub(super) fn read(&self, id: u64, values: &mut [f32]) -> Result<bool, Error> {
        expect_len("remembered values", self.form.features, values.len())?;
        match self.rows.get(&id) {
            Some(row) => Ok(self.form.unpack(&self.slots[row.slot], values).map(|()| true)?),
            None => Ok(false),
        }
    }

    /// Reserves rows for `updates` updates. Allocates only until the store is full.
    pub(super) fn reserve(&mut self, updates: usize) -> Result<(), Error> {
        let out_of_memory = CoreError::OutOfMemory { words: self.row_len.div_ceil(8) };
        self.staged.try_reserve(updates).map_err(|_| out_of_memory)?;
        while self.free.len() < updates {
            let mut row = Vec::new();
            row.try_reserve_exact(self.row_len).map_err(|_| out_of_memory)?;
            row.resize(self.row_len, 0);
            self.slots.try_reserve(1).map_err(|_| out_of_memory)?;
            self.free.try_reserve(self.slots.len() + 1).map_err(|_| out_of_memory)?;
            self.free.push(self.slots.len());
            self.slots.push(row);
        }
        Ok(())
    }

    /// Stages an update. The caller must have [reserved](Store::reserve) a row for the update. If a sample has several
    /// updates, the last one takes effect.
    pub(super) fn stage(&mut self, id: u64, values: &[f32]) -> Result<(), Error> {
        let slot = self.free.pop().ok_or(CoreError::OutOfMemory { words: self.row_len.div_ceil(8) })?;
        if self.form.pack(values, &mut self.slots[slot])? {
            self.staged.push((id, Some(slot)));
        } else {
            self.free.push(slot);
            self.staged.push((id, None));
        }
        Ok(())
    }

    /// Makes the staged updates take effect, in order. Evicts the least recently updated samples beyond the capacity.
    pub(super) fn publish(&mut self) -> Published {
        let mut published = Published::default();
        let mut staged = core::mem::take(&mut self.staged);
        for (id, slot) in staged.drain(..) {
            self.forget(id);
            match slot {
                Some(slot) => self.insert(id, slot),
                None => published.non_finite += 1,
            }
            if self.rows.len() > self.capacity
                && let Some((_, &oldest)) = self.order.first_key_value()
            {
                self.forget(oldest);
                published.evictions += 1;
            }
        }
        self.staged = staged;
        published
    }

    fn insert(&mut self, id: u64, slot: usize) {
        self.rows.insert(id, Row { slot, used: self.clock });
        self.order.insert(self.clock, id);
        self.clock += 1;
    }

    fn forget(&mut self, id: u64) {
        if let Some(row) = self.rows.remove(&id) {
            self.order.remove(&row.used);
            self.free.push(row.slot);
        }
    }

    /// Bytes that [`save`](Store::save) writes.
    pub(super) fn saved_len(&self) -> usize {
        8 + self.rows.len() * (8 + self.row_len)
    }

    /// Saves the number of rows, then ids and rows, least recently updated first.
    pub(super) fn save(&self, bytes: &mut [u8]) {
        let (count, mut rest) = bytes.split_at_mut(8);
        count.copy_from_slice(&(self.rows.len() as u64).to_le_bytes());
        for id in self.ids() {
            let (head, tail) = rest.split_at_mut(8 + self.row_len);
            head[..8].copy_from_slice(&id.to_le_bytes());
            head[8..].copy_from_slice(&self.slots[self.rows[&id].slot]);
            rest = tail;
        }
    }

    /// Replaces all rows by the rows that [`save`](Store::save) wrote. Any bytes may be given. After an error, the
    /// store must not be used.
    pub(super) fn restore(&mut self, bytes: &[u8]) -> Result<(), Error> {
        expect_room("saved samples, bytes", 8, bytes.len())?;
        let (count, rows) = bytes.split_at(8);
        let count = u64::from_le_bytes(count.try_into().unwrap_or_default());
        CoreError::require_saved(count <= self.capacity as u64, "number of samples", count)?;
        let expected = (count as usize).checked_mul(8 + self.row_len);
        expect_len("saved samples, bytes", expected.unwrap_or(usize::MAX), rows.len())?;
        let mut values = vec![0.0; self.form.features];
        let mut seen = BTreeSet::new();
        self.reserve(count as usize)?;
        for row in rows.chunks_exact(8 + self.row_len) {
            let (id, row) = row.split_at(8);
            let id = u64::from_le_bytes(id.try_into().unwrap_or_default());
            CoreError::require_saved(seen.insert(id), "a sample twice, id", id)?;
            let padded = row[self.form.content_len()?..].iter().any(|&byte| byte != 0);
            let sound = !padded && self.form.unpack(row, &mut values).is_ok();
            CoreError::require_saved(sound, "row of a sample, id", id)?;
            let slot = self.free.pop().ok_or(CoreError::OutOfMemory { words: self.row_len.div_ceil(8) })?;
            self.slots[slot].copy_from_slice(row);
            self.insert(id, slot);
        }
        Ok(())
    }
}
