//! State of one direction at one end: its memory, its sequence number and its counters.

use super::codec::Codec;
use super::counters::{COUNT_LIMIT, Counters};
use super::estimate::Estimate;
use super::message::{Direction, HEADER_LEN, Header, Message, Mode, SAMPLE_ENTRY_LEN, expect};
use super::setting::{CutSetting, Link, LinkMemory};
use super::store::Store;
use crate::feedback::{Memory, SavedState};
use crate::gradient::{Dtype, Shape};
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;
use lgreco::compress::select;
use lgreco::error::{expect_len, expect_room};

/// The memory of one direction at an end.
#[derive(Clone, Debug)]
pub(super) enum State {
    Nothing,
    /// The residual of each position in the batch.
    Residual(Memory<Vec<u64>>),
    /// The EF21 estimate of each position in the batch, which both ends hold.
    Estimate(Estimate),
    /// The row of each sample.
    Samples(Store),
}

/// Generation and step of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    pub(super) generation: u32,
    /// Number of committed steps.
    pub(super) step: u64,
}

/// The parts of a workspace.
pub(super) struct Scratch<'a> {
    /// Input of the compressor.
    pub(super) offered: &'a mut [f32],
    /// Decoded values.
    pub(super) decoded: &'a mut [f32],
    /// Scratch memory for codecs, selections and ids.
    pub(super) rest: &'a mut [u64],
}

/// The sender or the receiver of one direction of a cut.
#[derive(Clone, Debug)]
pub(super) struct Half {
    pub(super) setting: CutSetting,
    pub(super) direction: Direction,
    pub(super) link: Link,
    pub(super) state: State,
    /// Number of messages so far.
    pub(super) sequence: u64,
    pub(super) counters: Counters,
    message_len: usize,
}

impl Half {
    pub(super) fn new(setting: CutSetting, direction: Direction, sends: bool) -> Result<Half, Error> {
        let link = match direction {
            Direction::Forward => setting.forward,
            Direction::Backward => setting.backward,
        };
        let shape = Shape::new(setting.batch as usize, setting.features as usize)?;
        let state = match link.memory {
            LinkMemory::Residual(residual) | LinkMemory::Mixed(residual) if sends => {
                State::Residual(Memory::owned(residual, shape)?)
            }
            LinkMemory::Ef21 => State::Estimate(Estimate::new(shape)?),
            LinkMemory::Samples { capacity, storage } => {
                State::Samples(Store::new(capacity, storage, setting.features as usize)?)
            }
            LinkMemory::None | LinkMemory::Residual(_) | LinkMemory::Mixed(_) => State::Nothing,
        };
        let message_len = longest_message(&setting, direction, &link)?;
        Ok(Half { setting, direction, link, state, sequence: 0, counters: Counters::default(), message_len })
    }

    pub(super) fn features(&self) -> usize {
        self.setting.features as usize
    }

    /// Bytes of the longest message.
    pub(super) fn message_len(&self) -> usize {
        self.message_len
    }

    /// Words of workspace for sending or receiving: two batches, and scratch memory for codecs, selections and ids.
    pub(super) fn workspace_len(&self) -> usize {
        let batch = self.setting.batch as usize;
        let codec = self.link.codec.workspace_len(self.features()).max(select::workspace_len(self.features()));
        2 * (batch * self.features()).div_ceil(2) + codec.max(batch)
    }

    /// Splits the workspace for a message of `elements` values.
    pub(super) fn scratch<'a>(&self, workspace: &'a mut [u64], elements: usize) -> Result<Scratch<'a>, Error> {
        expect_room("workspace words", self.workspace_len(), workspace.len())?;
        let words = elements.div_ceil(2);
        let (first, rest) = workspace.split_at_mut(words);
        let (second, rest) = rest.split_at_mut(words);
        let values = |words| &mut bytemuck::cast_slice_mut::<u64, f32>(words)[..elements];
        Ok(Scratch { offered: values(first), decoded: values(second), rest })
    }

    /// The shape of `values` values: samples × features.
    ///
    /// # Errors
    /// [`CoreError::Length`] unless the values are whole samples, and the setting allows their number.
    pub(super) fn shape_of(&self, values: usize, training: bool) -> Result<Shape, Error> {
        let samples = values / self.features();
        expect_len("values, whole samples", samples * self.features(), values)?;
        self.check_samples(samples, training)?;
        Ok(Shape::new(samples, self.features())?)
    }

    fn check_samples(&self, samples: usize, training: bool) -> Result<(), Error> {
        let batch = self.setting.batch as usize;
        if training && self.setting.by_position() {
            let what = "samples, the same for every message in training under a memory by position";
            return Ok(expect_len(what, batch, samples)?);
        }
        expect_room("samples, at least 1", 1, samples)?;
        Ok(expect_room("samples that a message may have, against those there are", samples, batch)?)
    }

    /// A header for a message with this mode, shape and element type. Sequence number, ticket, step and checksum are 0.
    pub(super) fn header(&self, mode: Mode, shape: Shape, values: Dtype, clock: Clock) -> Header {
        Header {
            direction: self.direction,
            mode,
            memory: self.link.memory.code(),
            values,
            codec: self.link.codec,
            cut: self.setting.cut,
            shape,
            generation: clock.generation,
            sequence: 0,
            ticket: 0,
            step: 0,
            checksum: 0,
        }
    }

    /// The header of training message `sequence`.
    pub(super) fn training_header(
        &self,
        shape: Shape,
        values: Dtype,
        clock: Clock,
        sequence: u64,
        ticket: u64,
    ) -> Header {
        let step = match self.direction {
            Direction::Forward => clock.step,
            Direction::Backward => 0,
        };
        Header { sequence, ticket, step, ..self.header(Mode::Train, shape, values, clock) }
    }

    /// Random bits for rounding the memory to its storage type.
    pub(super) fn stream(&self) -> Stream {
        Stream { seed: 0, step: self.sequence as u32, layer: self.setting.cut, rank: self.direction as u32 }
    }

    /// Number of updates that wait for the end of the step.
    pub(super) fn pending(&self) -> usize {
        match &self.state {
            State::Samples(store) => store.pending(),
            _ => 0,
        }
    }

    /// Counts a training message and advances the sequence number.
    pub(super) fn count(&mut self, len: usize, header: &Header) {
        self.sequence += 1;
        self.counters.messages += 1;
        self.counters.bytes += len as u64;
        self.counters.uncompressed_bytes += header.shape.elements() as u64 * header.values.bytes() as u64;
    }

    /// Makes the step's updates take effect.
    pub(super) fn publish(&mut self) {
        if let State::Samples(store) = &mut self.state {
            let published = store.publish();
            self.counters.evictions += published.evictions;
            self.counters.non_finite += published.non_finite;
        }
    }

    /// Bytes that [`save`](Half::save) writes.
    pub(super) fn saved_len(&self) -> usize {
        let memory = match &self.state {
            State::Nothing => 0,
            State::Residual(memory) => memory.saved_len(),
            State::Estimate(estimate) => estimate.saved_len(),
            State::Samples(store) => store.saved_len(),
        };
        8 + Counters::BYTES + 8 + memory
    }

    /// Saves sequence number, counters, length of the memory, and memory.
    pub(super) fn save(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let (head, memory) = bytes.split_at_mut(16 + Counters::BYTES);
        head[..8].copy_from_slice(&self.sequence.to_le_bytes());
        head[8..8 + Counters::BYTES].copy_from_slice(&self.counters.to_bytes());
        head[8 + Counters::BYTES..].copy_from_slice(&(memory.len() as u64).to_le_bytes());
        match &self.state {
            State::Nothing => {}
            State::Residual(state) => drop(state.save(memory)?),
            State::Estimate(estimate) => estimate.save(memory),
            State::Samples(store) => store.save(memory),
        }
        Ok(())
    }

    /// Loads the bytes that [`save`](Half::save) wrote, and returns the bytes after them. After an error, the half must
    /// not be used.
    pub(super) fn restore<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        expect_room("bytes of a saved cut", 16 + Counters::BYTES, bytes.len())?;
        let (head, rest) = bytes.split_at(16 + Counters::BYTES);
        let long = |at: usize| head[at..].first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes));
        let memory_len = usize::try_from(long(8 + Counters::BYTES)).unwrap_or(usize::MAX);
        expect_room("bytes of a saved cut", memory_len, rest.len())?;
        let (memory, rest) = rest.split_at(memory_len);
        match &mut self.state {
            State::Nothing => expect_len("bytes of a saved memory", 0, memory_len)?,
            State::Estimate(estimate) => estimate.restore(memory)?,
            State::Residual(state) => {
                let saved = SavedState::parse(memory)?;
                let same = (saved.residual(), saved.shape()) == (state.residual(), state.shape());
                CoreError::require_saved(same, "memory of another rule or shape, updates", saved.steps())?;
                *state = saved.restore(vec![0; saved.residual().state_len(saved.shape())])?;
            }
            State::Samples(store) => store.restore(memory)?,
        }
        self.sequence = long(0);
        CoreError::require_saved(self.sequence < COUNT_LIMIT, "sequence number", self.sequence)?;
        let counters = head[8..].first_chunk().and_then(Counters::from_bytes);
        self.counters =
            counters.ok_or(CoreError::SavedState { what: "one of the counters, messages", found: long(8) })?;
        Ok(rest)
    }

    /// Returns an error unless the message has this half's direction, cut and setting, and the generation of `clock`.
    /// The message must be one of training if `training` is true, and otherwise one of evaluation.
    pub(super) fn check_message(&self, message: &Message<'_>, training: bool, clock: Clock) -> Result<(), Error> {
        let header = &message.header;
        let codec = |codec: &Codec| u64::from_be_bytes(codec.to_bytes());
        expect("direction", self.direction as u64, header.direction as u64)?;
        expect("mode other than training", !training as u64, (header.mode != Mode::Train) as u64)?;
        expect("cut", self.setting.cut as u64, header.cut as u64)?;
        expect("features", self.setting.features as u64, header.shape.cols() as u64)?;
        expect("codec", codec(&self.link.codec), codec(&header.codec))?;
        expect("memory", self.link.memory.code() as u64, header.memory as u64)?;
        in_step("generation", clock.generation as u64, header.generation as u64)?;
        self.check_samples(header.shape.rows(), training)
    }
}

/// Returns an error unless the number that this end expects and the number in the message are equal.
pub(super) fn in_step(what: &'static str, expected: u64, found: u64) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::OutOfStep { what, expected, found }) }
}

/// Bytes of the longest message in any mode.
fn longest_message(setting: &CutSetting, direction: Direction, link: &Link) -> Result<usize, Error> {
    let (batch, features) = (setting.batch as usize, setting.features as usize);
    let plain = |samples| Codec::Dense { values: Dtype::F32 }.body_len(samples, features);
    let mut longest = link.codec.longest_body(batch, features)?;
    if direction == Direction::Forward {
        longest = longest.max(plain(batch)?);
    }
    if let LinkMemory::Samples { .. } = link.memory {
        let entries = batch.saturating_mul(SAMPLE_ENTRY_LEN);
        // As long as the codec encodes at least one sample, the length is nearly linear in the number of first visits.
        // So the longest message has 0, `batch - 1` or `batch` first visits.
        for first in [0, batch - 1, batch] {
            let values = plain(first)?.saturating_add(link.codec.longest_body(batch - first, features)?);
            longest = longest.max(entries.saturating_add(values));
        }
    }
    Ok(HEADER_LEN.saturating_add(longest))
}
