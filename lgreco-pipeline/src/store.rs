//! What one end of a cut remembers of each sample (AQ-SGD).
//!
//! Rows change at `commit_step` alone. Updates wait in rows of their own, so every pass of a step reads the same
//! rows; publishing swaps rows, and evicts alike at both ends, because both publish in the order of the messages.

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

/// Values that share a scale in quantised rows.
const BUCKET: u32 = 128;

/// How a row becomes bytes.
#[derive(Clone, Copy, Debug)]
struct Form {
    storage: RowStorage,
    features: usize,
}

impl Form {
    fn quantiser(bits: u8) -> Qsgd {
        Qsgd { bits, bucket: BUCKET, scale: Scale::MaxNorm, rounding: Rounding::Nearest }
    }

    /// Bytes without padding.
    fn content_len(&self) -> Result<usize, CoreError> {
        match self.storage {
            RowStorage::F32 => Ok(4 * self.features),
            RowStorage::Bf16 => Ok(2 * self.features),
            RowStorage::Quantised { bits } => Form::quantiser(bits).body_len(self.features),
        }
    }

    /// Writes the row; false when a number is not finite, or not any more.
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
    /// When it was last updated.
    used: u64,
}

/// What happened when a step's updates were published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) evictions: u64,
    pub(super) non_finite: u64,
}

/// Rows by sample id. Updates are staged and change nothing before they are published, so that every pass of a step
/// sees the same rows.
#[derive(Clone, Debug)]
pub(super) struct Store {
    form: Form,
    capacity: usize,
    row_len: usize,
    slots: Vec<Vec<u8>>,
    free: Vec<usize>,
    rows: BTreeMap<u64, Row>,
    /// Ids by when they were last updated.
    order: BTreeMap<u64, u64>,
    clock: u64,
    /// Ids and their new rows, or `None` for one that could not be stored.
    staged: Vec<(u64, Option<usize>)>,
}

impl Store {
    pub(super) fn new(capacity: u32, storage: RowStorage, features: usize) -> Result<Store, Error> {
        let form = Form { storage, features };
        // Whole words, for the checksum.
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

    /// Bytes of all rows, staged and free ones among them.
    pub(super) fn bytes(&self) -> u64 {
        self.slots.len() as u64 * self.row_len as u64
    }

    /// Updates that have not been published.
    pub(super) fn pending(&self) -> usize {
        self.staged.len()
    }

    /// Ids, least recently updated first.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.order.values().copied()
    }

    /// Whether a sample is remembered.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.rows.contains_key(&id)
    }

    /// The checksum of a sample's row, if it is remembered.
    pub(super) fn checksum(&self, id: u64) -> Option<u32> {
        self.rows.get(&id).map(|row| digest::of_bytes(&self.slots[row.slot]))
    }

    /// Reads a sample's row; false when it is not remembered.
    pub(super) fn read(&self, id: u64, values: &mut [f32]) -> Result<bool, Error> {
        expect_len("remembered values", self.form.features, values.len())?;
        match self.rows.get(&id) {
            Some(row) => Ok(self.form.unpack(&self.slots[row.slot], values).map(|()| true)?),
            None => Ok(false),
        }
    }

    /// Makes room for so many updates. Allocates while the store grows, never once it is full.
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

    /// Stages an update, for which room has been [reserved](Store::reserve). Of several for one sample the last counts.
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

    /// Puts the staged updates in force, in order, and forgets the least recently updated samples beyond capacity.
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

    /// Bytes of [`save`](Store::save).
    pub(super) fn saved_len(&self) -> usize {
        8 + self.rows.len() * (8 + self.row_len)
    }

    /// Writes the number of rows, then ids and rows, least recently updated first.
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

    /// Replaces what is remembered by what [`save`](Store::save) wrote; any bytes may be given. On an error the store
    /// holds nothing of use.
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
