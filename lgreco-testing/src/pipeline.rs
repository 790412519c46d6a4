//! Properties of the two ends of a cut, checked on any setting, any values and any order of calls.

mod bytes;
mod program;

pub use bytes::{check_bytes, check_message, check_saved};
pub use program::check_program;

use core::fmt::Write;
use lgreco_pipeline::Error;
use lgreco_pipeline::{
    Codec, CutSetting, Direction, Downstream, Evaluation, LinkMemory, Message, Mode, RowStorage, Scope, Sent, Tile,
    Upstream,
};
use lgreco_train::feedback::{Residual, Storage};
use lgreco_train::gradient::{Dtype, Values};

/// Both ends of a cut in one process. Buffers hold stale data at every call.
#[derive(Clone)]
pub struct Pair {
    /// The end that sends activations.
    pub above: Upstream,
    /// The end that sends gradients.
    pub below: Downstream,
}

/// An end as text, to verify that nothing has changed.
fn snapshot<T: core::fmt::Debug>(end: &T) -> String {
    let mut text = String::with_capacity(1 << 12);
    write!(text, "{end:?}").expect("a string takes any text");
    text
}

/// The bits of values, for exact comparison.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

impl Pair {
    /// Makes both ends of a cut, with generation 0.
    ///
    /// # Errors
    /// Returns the errors of [`Upstream::new`].
    pub fn new(setting: CutSetting) -> Result<Pair, Error> {
        Ok(Pair { above: Upstream::new(setting, 0)?, below: Downstream::new(setting, 0)? })
    }

    fn workspace(&self) -> Vec<u64> {
        vec![!0; self.above.workspace_len().max(self.below.workspace_len())]
    }

    /// Encodes activations without delivering them. Asserts that an error changes nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Upstream::send`].
    pub fn send(&mut self, values: Values<'_>, samples: &[Option<u64>]) -> Result<(Sent, Vec<u8>), Error> {
        let before = snapshot(&self.above);
        let mut message = vec![0xa5; self.above.message_len()];
        let sent = self.above.send(values, samples, &mut self.workspace(), &mut message);
        if sent.is_err() {
            assert_eq!(snapshot(&self.above), before, "an error changed the sender");
        }
        let sent = sent?;
        message.truncate(sent.len);
        let header = Message::parse(&message).expect("a message just made").header;
        assert_eq!((header.direction, header.mode, header.ticket), (Direction::Forward, Mode::Train, sent.ticket));
        Ok((sent, message))
    }

    /// Delivers a message of activations. Asserts that an error changes nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Downstream::receive`].
    pub fn deliver(&mut self, message: &[u8]) -> Result<Vec<f32>, Error> {
        let before = snapshot(&self.below);
        let elements = self.below.values_len(message);
        let mut values = vec![f32::NAN; elements.unwrap_or(0)];
        let received = self.below.receive(message, &mut self.workspace(), &mut values);
        assert!(elements.is_ok() || received.is_err(), "received what is {elements:?} values");
        if received.is_err() {
            assert_eq!(snapshot(&self.below), before, "an error changed the receiver");
        }
        received.map(|_| values)
    }

    /// Sends activations and delivers them.
    ///
    /// # Errors
    /// Returns the errors of both ends.
    pub fn forward(&mut self, values: Values<'_>, samples: &[Option<u64>]) -> Result<(Sent, Vec<f32>), Error> {
        let (sent, message) = self.send(values, samples)?;
        Ok((sent, self.deliver(&message)?))
    }

    /// Encodes gradients without delivering them. Asserts that an error changes nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Downstream::send`].
    pub fn reply(&mut self, ticket: u64, gradients: Values<'_>) -> Result<Vec<u8>, Error> {
        let before = snapshot(&self.below);
        let mut message = vec![0xa5; self.below.message_len()];
        let len = self.below.send(ticket, gradients, &mut self.workspace(), &mut message);
        if len.is_err() {
            assert_eq!(snapshot(&self.below), before, "an error changed the sender");
        }
        message.truncate(len?);
        Ok(message)
    }

    /// Delivers a message of gradients, and also returns their ticket. Asserts that an error changes nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Upstream::receive`].
    pub fn deliver_back(&mut self, message: &[u8]) -> Result<(u64, Vec<f32>), Error> {
        let before = snapshot(&self.above);
        let elements = self.above.values_len(message);
        let mut values = vec![f32::NAN; elements.unwrap_or(0)];
        let received = self.above.receive(message, &mut self.workspace(), &mut values);
        assert!(elements.is_ok() || received.is_err(), "received what is {elements:?} values");
        if received.is_err() {
            assert_eq!(snapshot(&self.above), before, "an error changed the receiver");
        }
        received.map(|ticket| (ticket, values))
    }

    /// Sends gradients and delivers them.
    ///
    /// # Errors
    /// Returns the errors of both ends.
    pub fn backward(&mut self, ticket: u64, gradients: Values<'_>) -> Result<Vec<f32>, Error> {
        let message = self.reply(ticket, gradients)?;
        let (answered, values) = self.deliver_back(&message)?;
        assert_eq!(answered, ticket);
        assert!(self.deliver_back(&message).is_err(), "gradients taken twice");
        Ok(values)
    }

    /// Takes a step: sends activations and gradients, and commits.
    ///
    /// # Errors
    /// Returns the errors of both ends.
    pub fn step(&mut self, values: &[f32], samples: &[Option<u64>]) -> Result<Vec<f32>, Error> {
        let (sent, received) = self.forward(Values::F32(values), samples)?;
        self.backward(sent.ticket, Values::F32(&received))?;
        self.commit()?;
        Ok(received)
    }

    /// Commits both ends.
    ///
    /// # Errors
    /// Returns the errors of [`Upstream::commit_step`].
    pub fn commit(&mut self) -> Result<(), Error> {
        self.above.commit_step()?;
        self.below.commit_step()?;
        self.check_in_step();
        Ok(())
    }

    /// The values that an evaluation message decodes to. Asserts that nothing has changed.
    ///
    /// # Errors
    /// Returns the errors of both ends.
    pub fn evaluate(&self, evaluation: Evaluation, values: Values<'_>) -> Result<Vec<f32>, Error> {
        let before = (snapshot(&self.above), snapshot(&self.below));
        let mut message = vec![0xa5; self.above.message_len()];
        let len = self.above.evaluate(evaluation, values, &mut self.workspace(), &mut message)?;
        let mut decoded = vec![f32::NAN; values.len()];
        assert_eq!(self.below.evaluate(&message[..len], &mut decoded), Ok(evaluation));
        assert_eq!((snapshot(&self.above), snapshot(&self.below)), before, "evaluation changed something");
        Ok(decoded)
    }

    /// The bytes of a repeated forward pass, and the values they decode to. Asserts that nothing has changed.
    ///
    /// # Errors
    /// Returns the errors of [`Upstream::repeat`].
    pub fn repeat(
        &self,
        ticket: u64,
        values: Values<'_>,
        samples: &[Option<u64>],
    ) -> Result<(Vec<u8>, Vec<f32>), Error> {
        let before = (snapshot(&self.above), snapshot(&self.below));
        let mut message = vec![0xa5; self.above.message_len()];
        let len = self.above.repeat(ticket, values, samples, &mut self.workspace(), &mut message)?;
        message.truncate(len);
        let mut decoded = vec![f32::NAN; values.len()];
        self.below.repeat(&message, &mut self.workspace(), &mut decoded).expect("both ends are at this ticket");
        assert_eq!((snapshot(&self.above), snapshot(&self.below)), before, "a repetition changed something");
        Ok((message, decoded))
    }

    /// Asserts that both ends remember the same samples, in the same order of age, with the same bits.
    pub fn check_in_step(&self) {
        let ids: Vec<u64> = self.above.remembered_samples().collect();
        assert_eq!(ids, self.below.remembered_samples().collect::<Vec<_>>());
        let features = self.above.setting().features as usize;
        for id in ids {
            let [mut a, mut b] = [0; 2].map(|_| vec![f32::NAN; features]);
            assert_eq!((self.above.remembered(id, &mut a), self.below.remembered(id, &mut b)), (Ok(true), Ok(true)));
            assert_eq!(bits(&a), bits(&b), "sample {id}");
            assert!(a.iter().all(|x| x.is_finite()));
        }
        let [a, b] = [self.above.counters(Direction::Forward), self.below.counters(Direction::Forward)];
        let counts = |c: &lgreco_pipeline::Counters| (c.messages, c.bytes, c.hits, c.misses, c.evictions, c.non_finite);
        assert_eq!(counts(a), counts(b));
    }

    /// Saves both ends.
    ///
    /// # Errors
    /// Returns the errors of [`Upstream::save`].
    pub fn save(&self) -> Result<[Vec<u8>; 2], Error> {
        let mut bytes = [vec![0xa5; self.above.saved_len()], vec![0xa5; self.below.saved_len()]];
        assert_eq!(self.above.save(&mut bytes[0])?, bytes[0].len());
        assert_eq!(self.below.save(&mut bytes[1])?, bytes[1].len());
        Ok(bytes)
    }

    /// Restores both ends.
    ///
    /// # Errors
    /// Returns the errors of [`Upstream::restore`].
    pub fn restore(setting: CutSetting, bytes: &[Vec<u8>; 2]) -> Result<Pair, Error> {
        Ok(Pair { above: Upstream::restore(setting, &bytes[0])?, below: Downstream::restore(setting, &bytes[1])? })
    }
}

/// One codec of each kind for samples of `features` values.
pub fn codecs(features: u32) -> Vec<Codec> {
    let keep = features.div_ceil(3);
    let channels = if features.is_multiple_of(2) { 2 } else { features };
    vec![
        Codec::Dense { values: Dtype::F32 },
        Codec::MinMax { bits: 3, tile: Tile::Batch },
        Codec::MinMax { bits: 4, tile: Tile::Elements(3) },
        Codec::Symmetric { bits: 2, scope: Scope::Sample, scale: Dtype::Bf16 },
        Codec::Symmetric { bits: 5, scope: Scope::Channel { channels }, scale: Dtype::F32 },
        Codec::TopK { keep, values: Dtype::F32 },
        Codec::TopK { keep, values: Dtype::F16 },
        Codec::Eden { bits: 2 },
    ]
}

/// One memory of each kind that remembers samples.
pub fn sample_memories(capacity: u32) -> Vec<LinkMemory> {
    let storages = [RowStorage::F32, RowStorage::Bf16, RowStorage::Quantised { bits: 4 }];
    storages.into_iter().map(|storage| LinkMemory::Samples { capacity, storage }).collect()
}

/// One memory of each kind that is keyed by batch position.
pub fn position_memories() -> Vec<LinkMemory> {
    let small = Residual { gain: 0.5, reset_every: 3, storage: Storage::Bf16 };
    vec![
        LinkMemory::Residual(Residual::CLASSIC),
        LinkMemory::Residual(small),
        LinkMemory::Mixed(Residual::CLASSIC),
        LinkMemory::Ef21,
    ]
}
