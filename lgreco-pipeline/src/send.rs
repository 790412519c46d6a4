//! The sending half: encodes a batch as a message.

use super::codec::Codec;
use super::digest;
use super::half::{Clock, Half, Scratch, State};
use super::message::{HEADER_LEN, Header, Mode, SAMPLE_ENTRY_LEN, Visit, write_entry};
use super::mixed::restrict;
use super::setting::LinkMemory;
use super::store::Store;
use super::values::put_all;
use crate::gradient::{Element, Gradient, Values, with_elements};
use crate::{CoreError, Error};
use lgreco::compress::select::check_finite;
use lgreco::error::{expect_len, expect_room};

/// Length and header of a written message, and the sums of squares for the counters.
pub(super) struct Written {
    pub(super) len: usize,
    pub(super) header: Header,
    change_energy: f64,
    hit_energy: f64,
}

/// Copies elements from `start` on as exact f32 values.
fn widen(values: Values<'_>, start: usize, wide: &mut [f32]) {
    with_elements!(values, v => wide.iter_mut().zip(&v[start..]).for_each(|(wide, x)| *wide = x.to_f32()));
}

impl Half {
    /// Writes the message of a batch in evaluation.
    pub(super) fn evaluate(
        &self,
        clock: Clock,
        mode: Mode,
        values: Values<'_>,
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<usize, Error> {
        let shape = self.shape_of(values.len(), false)?;
        let codec = if mode == Mode::EvalPlain { Codec::Dense { values: values.dtype() } } else { self.link.codec };
        let len = HEADER_LEN + codec.body_len(shape.rows(), self.features())?;
        expect_room("message bytes", len, message.len())?;
        let Scratch { offered, rest, .. } = self.scratch(workspace, values.len())?;
        self.header(mode, shape, values.dtype(), clock).write(message)?;
        widen(values, 0, offered);
        codec.encode(offered, self.features(), &[], rest, &mut message[HEADER_LEN..len])?;
        Ok(len)
    }

    /// Writes training message `sequence`, and leaves the data that [`remember`](Half::remember) needs in the
    /// workspace. Does not change the memory.
    #[expect(clippy::too_many_arguments, reason = "numbers, inputs, buffers")]
    pub(super) fn write(
        &self,
        clock: Clock,
        sequence: u64,
        ticket: u64,
        values: Values<'_>,
        samples: &[Option<u64>],
        indices: &[u8],
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<Written, Error> {
        let shape = self.shape_of(values.len(), true)?;
        expect_room("message bytes", self.message_len(), message.len())?;
        let mut header = self.training_header(shape, values.dtype(), clock, sequence, ticket);
        let (features, codec) = (self.features(), self.link.codec);
        if let State::Samples(store) = &self.state {
            return self.write_samples(store, header, values, samples, workspace, message);
        }
        let Scratch { offered, decoded, rest } = self.scratch(workspace, values.len())?;
        let len = HEADER_LEN + codec.body_len(shape.rows(), features)?;
        let body = &mut message[HEADER_LEN..len];
        match &self.state {
            State::Residual(memory) => {
                memory.compensate(&Gradient::new(values, shape)?, offered)?;
                if let (LinkMemory::Mixed(_), Codec::TopK { keep, .. }) = (self.link.memory, codec) {
                    memory.values(decoded)?;
                    with_elements!(values, v => {
                        let rows = offered.chunks_exact_mut(features).zip(decoded.chunks_exact_mut(features));
                        for ((offered, remembered), values) in rows.zip(v.chunks_exact(features)) {
                            restrict(keep, values, remembered, rest, offered)?;
                        }
                    });
                }
            }
            State::Estimate(estimate) => {
                estimate.offer(&Gradient::new(values, shape)?, offered)?;
                header.checksum = digest::of_values(estimate.values());
            }
            State::Nothing | State::Samples(_) => widen(values, 0, offered),
        }
        codec.encode(offered, features, indices, rest, body)?;
        if matches!(self.state, State::Residual(_) | State::Estimate(_)) {
            codec.decode(body, features, indices, decoded)?;
        }
        header.write(message)?;
        Ok(Written { len, header, change_energy: 0.0, hit_energy: 0.0 })
    }

    fn write_samples(
        &self,
        store: &Store,
        header: Header,
        values: Values<'_>,
        samples: &[Option<u64>],
        workspace: &mut [u64],
        message: &mut [u8],
    ) -> Result<Written, Error> {
        let (features, codec, dtype) = (self.features(), self.link.codec, values.dtype());
        expect_len("sample ids, one per sample", header.shape.rows(), samples.len())?;
        let Scratch { offered, decoded, rest } = self.scratch(workspace, values.len())?;
        check_unique(samples.iter().flatten().copied(), rest)?;
        with_elements!(values, v => check_finite(v))?;
        let (mut change_energy, mut hit_energy) = (0.0, 0.0);
        let mut at = HEADER_LEN + samples.len() * SAMPLE_ENTRY_LEN;
        let mut coded = 0;
        for (i, &sample) in samples.iter().enumerate() {
            // Rows that the codec encodes lie at the start of `offered`, without gaps. The row of a first visit is sent
            // uncompressed, so the next row takes its place in `offered`.
            let row = &mut offered[coded * features..][..features];
            widen(values, i * features, row);
            let visit = match sample.map(|id| (id, store.checksum(id))) {
                None => Visit::Unremembered,
                Some((_, None)) => Visit::First,
                Some((id, Some(checksum))) => {
                    let remembered = &mut decoded[..features];
                    store.read(id, remembered)?;
                    hit_energy += energy(row);
                    row.iter_mut().zip(&*remembered).for_each(|(x, m)| *x -= m);
                    change_energy += energy(row);
                    CoreError::require_finite(check_finite(row).is_ok(), "the change of a sample")?;
                    Visit::Change { checksum }
                }
            };
            write_entry(sample.unwrap_or(0), visit, &mut message[HEADER_LEN + i * SAMPLE_ENTRY_LEN..]);
            if visit == Visit::First {
                let end = at + features * dtype.bytes();
                put_all(dtype, row, &mut message[at..end])?;
                at = end;
            } else {
                coded += 1;
            }
        }
        let len = at + codec.body_len(coded, features)?;
        let (offered, decoded) = (&mut offered[..coded * features], &mut decoded[..coded * features]);
        codec.encode(offered, features, &[], rest, &mut message[at..len])?;
        codec.decode(&message[at..len], features, &[], decoded)?;
        // Computes the new rows of memory, which are equal at both ends.
        let mut rows = offered.chunks_exact_mut(features).zip(decoded.chunks_exact(features));
        for &sample in samples {
            if sample.is_some_and(|id| !store.holds(id)) {
                continue;
            }
            let Some((row, decoded)) = rows.next() else { break };
            if let Some(id) = sample {
                store.read(id, row)?;
                row.iter_mut().zip(decoded).for_each(|(m, d)| *m += d);
                CoreError::require_finite(check_finite(row).is_ok(), "a sample with its change")?;
            }
        }
        header.write(message)?;
        Ok(Written { len, header, change_energy, hit_energy })
    }

    /// Updates the memory after [`write`](Half::write), from the data in the workspace. On an error nothing changes.
    pub(super) fn remember(
        &mut self,
        written: &Written,
        values: Values<'_>,
        samples: &[Option<u64>],
        workspace: &mut [u64],
    ) -> Result<(), Error> {
        let Scratch { offered, decoded, .. } = self.scratch(workspace, values.len())?;
        let (features, stream) = (self.features(), self.stream());
        match &mut self.state {
            State::Nothing => {}
            State::Residual(memory) => memory.update(&Gradient::new(values, written.header.shape)?, decoded, stream)?,
            State::Estimate(estimate) => estimate.correct(decoded)?,
            State::Samples(store) => {
                store.reserve(samples.len())?;
                let mut rows = offered.chunks_exact(features);
                for (i, &sample) in samples.iter().enumerate() {
                    match sample {
                        None => {
                            rows.next();
                            self.counters.unremembered += 1;
                        }
                        Some(id) if store.holds(id) => {
                            store.stage(id, rows.next().unwrap_or_default())?;
                            self.counters.hits += 1;
                        }
                        Some(id) => {
                            let row = &mut decoded[..features];
                            widen(values, i * features, row);
                            store.stage(id, row)?;
                            self.counters.misses += 1;
                        }
                    }
                }
                self.counters.change_energy += written.change_energy;
                self.counters.hit_energy += written.hit_energy;
            }
        }
        self.count(written.len, &written.header);
        Ok(())
    }
}

fn energy(values: &[f32]) -> f64 {
    values.iter().map(|&x| x as f64 * x as f64).sum()
}

/// Returns an error with the smallest id that occurs twice. The workspace has one word per id.
pub(super) fn check_unique(ids: impl Iterator<Item = u64>, words: &mut [u64]) -> Result<(), Error> {
    let mut count = 0;
    for (word, id) in words.iter_mut().zip(ids) {
        *word = id;
        count += 1;
    }
    let ids = &mut words[..count];
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::DuplicateSample { id: pair[0] }),
        None => Ok(()),
    }
}
