//! The receiving half: decodes a message into the batch with which the stage computes.

use super::codec::Codec;
use super::digest;
use super::half::{Clock, Half, Scratch, State, in_step};
use super::message::{HEADER_LEN, Message, Mode, Visit};
use super::send::check_unique;
use super::store::Store;
use super::values::get_all;
use crate::{CoreError, Error};
use lgreco::compress::select::check_finite;
use lgreco::error::expect_len;

impl Half {
    /// Number of values in a message, in any mode.
    pub(super) fn values_len(&self, clock: Clock, message: &[u8]) -> Result<usize, Error> {
        let message = Message::parse(message)?;
        self.check_message(&message, message.header.mode == Mode::Train, clock)?;
        Ok(message.header.shape.elements())
    }

    /// Decodes a message for evaluation.
    pub(super) fn read_evaluation(&self, clock: Clock, message: &Message<'_>, values: &mut [f32]) -> Result<(), Error> {
        self.check_message(message, false, clock)?;
        expect_len("values", message.header.shape.elements(), values.len())?;
        let codec = match message.header.mode {
            Mode::EvalPlain => Codec::Dense { values: message.header.values },
            _ => self.link.codec,
        };
        codec.decode(message.body, self.features(), &[], values)
    }

    /// Returns an error unless a training message has number `sequence` in this direction and was sent in this end's
    /// step.
    pub(super) fn check_numbers(&self, clock: Clock, sequence: u64, message: &Message<'_>) -> Result<(), Error> {
        self.check_message(message, true, clock)?;
        in_step("sequence number", sequence, message.header.sequence)?;
        let expected = self.training_header(message.header.shape, message.header.values, clock, 0, 0);
        in_step("step", expected.step, message.header.step)
    }

    /// Decodes a training message that [`check_numbers`](Half::check_numbers) has accepted. Changes nothing. Under
    /// EF21, `values` receives the correction. Without EF21, `values` receives the values that the stage computes with.
    pub(super) fn read(
        &self,
        message: &Message<'_>,
        indices: &[u8],
        workspace: &mut [u64],
        values: &mut [f32],
    ) -> Result<(), Error> {
        expect_len("values", message.header.shape.elements(), values.len())?;
        match &self.state {
            State::Samples(store) => return self.read_samples(store, message, workspace, values),
            State::Estimate(estimate) => {
                expect_len("values of the estimate", estimate.values().len(), values.len())?;
                values.copy_from_slice(estimate.values());
                in_step("checksum of the estimate", digest::of_values(values) as u64, message.header.checksum as u64)?;
            }
            State::Nothing | State::Residual(_) => {}
        }
        self.link.codec.decode(message.body, self.features(), indices, values)
    }

    fn read_samples(
        &self,
        store: &Store,
        message: &Message<'_>,
        workspace: &mut [u64],
        values: &mut [f32],
    ) -> Result<(), Error> {
        let (features, shape) = (self.features(), message.header.shape);
        let Scratch { decoded, rest, .. } = self.scratch(workspace, values.len())?;
        let visits = || message.visits().filter_map(Result::ok);
        check_unique(visits().filter(|(_, visit)| *visit != Visit::Unremembered).map(|(id, _)| id), rest)?;
        for (id, visit) in visits() {
            let what = match (visit, store.checksum(id)) {
                (Visit::First, Some(_)) => "sent as its first visit, but remembered here",
                (Visit::Change { .. }, None) => "sent as a change, but not remembered here",
                (Visit::Change { checksum }, Some(own)) if checksum != own => "what is remembered has another checksum",
                _ => continue,
            };
            return Err(Error::SampleOutOfStep { id, what });
        }
        let (first, coded) = message.parts();
        let count = visits().filter(|(_, visit)| *visit != Visit::First).count();
        let decoded = &mut decoded[..count * features];
        self.link.codec.decode(coded, features, &[], decoded)?;
        let mut first = first.chunks_exact(features * message.header.values.bytes());
        let mut decoded = decoded.chunks_exact(features);
        for ((id, visit), row) in visits().zip(values.chunks_exact_mut(features)).take(shape.rows()) {
            match visit {
                Visit::First => get_all(message.header.values, first.next().unwrap_or_default(), row)?,
                Visit::Unremembered => row.copy_from_slice(decoded.next().unwrap_or_default()),
                Visit::Change { .. } => {
                    store.read(id, row)?;
                    row.iter_mut().zip(decoded.next().unwrap_or_default()).for_each(|(m, d)| *m += d);
                    if check_finite(row).is_err() {
                        return Err(Error::Core(CoreError::PayloadBody {
                            what: "a sample with its change is not finite",
                        }));
                    }
                }
            }
        }
        Ok(())
    }

    /// Updates the memory after [`read`](Half::read). Under EF21, replaces the correction in `values` by the values
    /// that the stage computes with. On an error nothing changes.
    pub(super) fn take_note(&mut self, message: &Message<'_>, values: &mut [f32]) -> Result<(), Error> {
        let features = self.features();
        match &mut self.state {
            State::Nothing | State::Residual(_) => {}
            State::Estimate(estimate) => {
                estimate.correct(values)?;
                values.copy_from_slice(estimate.values());
            }
            State::Samples(store) => {
                store.reserve(message.header.shape.rows())?;
                for (entry, row) in message.visits().zip(values.chunks_exact(features)) {
                    match entry? {
                        (_, Visit::Unremembered) => self.counters.unremembered += 1,
                        (id, Visit::First) => {
                            store.stage(id, row)?;
                            self.counters.misses += 1;
                        }
                        (id, Visit::Change { .. }) => {
                            store.stage(id, row)?;
                            self.counters.hits += 1;
                        }
                    }
                }
            }
        }
        self.count(HEADER_LEN + message.body.len(), &message.header);
        Ok(())
    }
}
