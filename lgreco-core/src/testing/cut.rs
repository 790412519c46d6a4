//! What the two ends of a cut promise, checked on any setting, any values and any order of calls.

use crate::Error;
use crate::cut::{
    Codec, CutSetting, Direction, Downstream, Evaluation, Header, Link, LinkMemory, Message, Mode, RowStorage, Scope,
    Sent, Tile, Upstream,
};
use crate::feedback::{Residual, Storage};
use crate::gradient::{Bf16, Dtype, Element, F16, Values};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Both ends of a cut in one process, with buffers that are stale at every call.
#[derive(Clone)]
pub struct Pair {
    /// Sends activations.
    pub above: Upstream,
    /// Sends gradients.
    pub below: Downstream,
}

/// Both ends in one string, to see that nothing has changed.
fn snapshot<T: core::fmt::Debug>(end: &T) -> String {
    format!("{end:?}")
}

/// The bits of values, to compare them exactly.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

impl Pair {
    /// Two ends without a past, of generation 0.
    ///
    /// # Errors
    /// Those of [`Upstream::new`].
    pub fn new(setting: CutSetting) -> Result<Pair, Error> {
        Ok(Pair { above: Upstream::new(setting, 0)?, below: Downstream::new(setting, 0)? })
    }

    fn workspace(&self) -> Vec<u64> {
        vec![!0; self.above.workspace_len().max(self.below.workspace_len())]
    }

    /// A message of activations that stays at the sender. Asserts that an error changes nothing.
    ///
    /// # Errors
    /// Those of [`Upstream::send`].
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
    /// Those of [`Downstream::receive`].
    pub fn deliver(&mut self, message: &[u8]) -> Result<Vec<f32>, Error> {
        let before = snapshot(&self.below);
        let elements = Message::parse(message)?.header.shape.elements();
        let mut values = vec![f32::NAN; elements];
        let received = self.below.receive(message, &mut self.workspace(), &mut values);
        if received.is_err() {
            assert_eq!(snapshot(&self.below), before, "an error changed the receiver");
        }
        received.map(|_| values)
    }

    /// Sends activations and delivers them.
    ///
    /// # Errors
    /// Those of both ends.
    pub fn forward(&mut self, values: Values<'_>, samples: &[Option<u64>]) -> Result<(Sent, Vec<f32>), Error> {
        let (sent, message) = self.send(values, samples)?;
        Ok((sent, self.deliver(&message)?))
    }

    /// Sends gradients and delivers them. Asserts that an error changes nothing.
    ///
    /// # Errors
    /// Those of both ends.
    pub fn backward(&mut self, ticket: u64, gradients: Values<'_>) -> Result<Vec<f32>, Error> {
        let before = snapshot(&self.below);
        let mut message = vec![0xa5; self.below.message_len()];
        let len = self.below.send(ticket, gradients, &mut self.workspace(), &mut message);
        if len.is_err() {
            assert_eq!(snapshot(&self.below), before, "an error changed the sender");
        }
        message.truncate(len?);
        let before = snapshot(&self.above);
        let mut values = vec![f32::NAN; gradients.len()];
        let received = self.above.receive(&message, &mut self.workspace(), &mut values);
        if received.is_err() {
            assert_eq!(snapshot(&self.above), before, "an error changed the receiver");
        }
        assert_eq!(received?, ticket);
        assert!(self.above.receive(&message, &mut self.workspace(), &mut values).is_err(), "gradients taken twice");
        Ok(values)
    }

    /// Forward and back, and the step committed.
    ///
    /// # Errors
    /// Those of both ends.
    pub fn step(&mut self, values: &[f32], samples: &[Option<u64>]) -> Result<Vec<f32>, Error> {
        let (sent, received) = self.forward(Values::F32(values), samples)?;
        self.backward(sent.ticket, Values::F32(&received))?;
        self.commit()?;
        Ok(received)
    }

    /// Commits both ends.
    ///
    /// # Errors
    /// Those of [`Upstream::commit_step`].
    pub fn commit(&mut self) -> Result<(), Error> {
        self.above.commit_step()?;
        self.below.commit_step()?;
        self.check_in_step();
        Ok(())
    }

    /// What a message of evaluation decodes to. Asserts that nothing has changed.
    ///
    /// # Errors
    /// Those of both ends.
    pub fn evaluate(&self, evaluation: Evaluation, values: Values<'_>) -> Result<Vec<f32>, Error> {
        let before = (snapshot(&self.above), snapshot(&self.below));
        let mut message = vec![0xa5; self.above.message_len()];
        let len = self.above.evaluate(evaluation, values, &mut self.workspace(), &mut message)?;
        let mut decoded = vec![f32::NAN; values.len()];
        assert_eq!(self.below.evaluate(&message[..len], &mut decoded), Ok(evaluation));
        assert_eq!((snapshot(&self.above), snapshot(&self.below)), before, "evaluation changed something");
        Ok(decoded)
    }

    /// The bytes of another forward pass, and what they decode to. Asserts that nothing has changed.
    ///
    /// # Errors
    /// Those of [`Upstream::repeat`].
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
        let counts = |c: &crate::cut::Counters| (c.messages, c.bytes, c.hits, c.misses, c.evictions, c.non_finite);
        assert_eq!(counts(a), counts(b));
    }

    /// Both ends saved.
    ///
    /// # Errors
    /// Those of [`Upstream::save`].
    pub fn save(&self) -> Result<[Vec<u8>; 2], Error> {
        let mut bytes = [vec![0xa5; self.above.saved_len()], vec![0xa5; self.below.saved_len()]];
        assert_eq!(self.above.save(&mut bytes[0])?, bytes[0].len());
        assert_eq!(self.below.save(&mut bytes[1])?, bytes[1].len());
        Ok(bytes)
    }

    /// Both ends restored.
    ///
    /// # Errors
    /// Those of [`Upstream::restore`].
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
    ]
}

/// One memory of each kind that remembers samples.
pub fn sample_memories(capacity: u32) -> Vec<LinkMemory> {
    let storages = [RowStorage::F32, RowStorage::Bf16, RowStorage::Quantised { bits: 4 }];
    storages.into_iter().map(|storage| LinkMemory::Samples { capacity, storage }).collect()
}

/// One memory of each kind that goes by batch position.
pub fn position_memories() -> Vec<LinkMemory> {
    let small = Residual { gain: 0.5, reset_every: 3, storage: Storage::Bf16 };
    vec![
        LinkMemory::Residual(Residual::CLASSIC),
        LinkMemory::Residual(small),
        LinkMemory::Mixed(Residual::CLASSIC),
        LinkMemory::Ef21,
    ]
}

/// Bytes as choices, zeros when they run out.
struct Choices<'a>(core::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn of<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.next() as usize % options.len()]
    }
}

/// A setting made of bytes; often one that the ends refuse.
fn setting(choices: &mut Choices<'_>) -> CutSetting {
    let (batch, features) = (1 + choices.next() as u32 % 4, 1 + choices.next() as u32 % 9);
    let mut memories = vec![LinkMemory::None];
    memories.extend(position_memories());
    memories.extend(sample_memories(1 + choices.next() as u32 % 5));
    let mut link = || Link { codec: choices.of(&codecs(features)), memory: choices.of(&memories) };
    let (forward, mut backward) = (link(), link());
    if let (Codec::TopK { keep, .. }, true) = (forward.codec, choices.next().is_multiple_of(2)) {
        backward.codec = Codec::SharedIndex { keep, values: Dtype::Bf16 };
    }
    CutSetting { cut: 5, batch, features, in_flight: 1 + choices.next() as u32 % 3, forward, backward }
}

/// A micro-batch made of bytes.
struct Batch {
    values: Vec<f32>,
    samples: Vec<Option<u64>>,
    dtype: Dtype,
    half: Vec<F16>,
    brain: Vec<Bf16>,
}

impl Batch {
    fn new(choices: &mut Choices<'_>, setting: &CutSetting) -> Batch {
        let samples = match choices.next() % 4 {
            0 => 1 + choices.next() as u32 % setting.batch,
            _ => setting.batch,
        };
        let dtype = choices.of(&[Dtype::F32, Dtype::F32, Dtype::F16, Dtype::Bf16]);
        let scale = choices.of(&[1.0, 1.0, 0.01, f32::MAX / 128.0, 1e-40]);
        let scale = if dtype == Dtype::F16 { scale.min(64.0) } else { scale };
        let wide: Vec<f32> = (0..samples * setting.features).map(|_| choices.next() as i8 as f32 * scale).collect();
        let half: Vec<F16> = wide.iter().map(|&x| F16::from_f32(x)).collect();
        let brain: Vec<Bf16> = wide.iter().map(|&x| Bf16::from_f32(x)).collect();
        let values = match dtype {
            Dtype::F32 => wide,
            Dtype::F16 => half.iter().map(|x| x.to_f32()).collect(),
            Dtype::Bf16 => brain.iter().map(|x| x.to_f32()).collect(),
        };
        let ids = (0..samples).map(|_| Some(choices.next() as u64 % 8).filter(|&id| id < 7)).collect();
        Batch { values, samples: ids, dtype, half, brain }
    }

    fn values(&self) -> Values<'_> {
        match self.dtype {
            Dtype::F32 => Values::F32(&self.values),
            Dtype::F16 => Values::F16(&self.half),
            Dtype::Bf16 => Values::Bf16(&self.brain),
        }
    }
}

/// Any sequence of calls on both ends of a cut of any setting: micro-batches in flight in any order, passes repeated,
/// evaluation, steps, ends saved and restored, messages lost, repeated and damaged.
///
/// # Panics
/// When the ends part, when something that must not change a state does, or a repetition gives other bytes.
pub fn check_program(bytes: &[u8]) {
    let mut choices = Choices(bytes.iter());
    let setting = setting(&mut choices);
    let Ok(mut pair) = Pair::new(setting) else {
        return assert!(setting.check().is_err());
    };
    assert_eq!(CutSetting::from_bytes(&setting.to_bytes()), Ok(setting));
    let mut flying: Vec<(Sent, Batch, Vec<u8>)> = Vec::new();
    let mut first_of_step = 0;
    while choices.0.len() > 0 {
        match choices.next() % 9 {
            0..=2 => {
                let batch = Batch::new(&mut choices, &setting);
                let Ok((sent, message)) = pair.send(batch.values(), &batch.samples) else { continue };
                check_damage(&pair, &message, &mut choices);
                let received = pair.deliver(&message).expect("the next message");
                assert!(received.iter().all(|x| x.is_finite()));
                let again = pair.deliver(&message);
                assert!(matches!(again, Err(Error::OutOfStep { what: "sequence number", .. })), "{again:?}");
                flying.push((sent, batch, message));
            }
            3 | 4 if !flying.is_empty() => {
                let (sent, batch, _) = flying.remove(choices.next() as usize % flying.len());
                let gradients = Batch::new(&mut choices, &setting).values;
                let gradients: Vec<f32> = gradients.iter().copied().cycle().take(batch.values.len()).collect();
                if pair.backward(sent.ticket, Values::F32(&gradients)).is_err() {
                    pair.above.forget(sent.ticket).expect("in flight");
                    pair.below.forget(sent.ticket).expect("in flight");
                }
            }
            5 => {
                let sent = pair.above.counters(Direction::Forward).messages;
                assert_eq!(pair.commit().is_ok(), sent > first_of_step);
                first_of_step = sent;
            }
            6 => {
                let batch = Batch::new(&mut choices, &setting);
                let plain = pair.evaluate(Evaluation::Plain, batch.values());
                assert!(plain.is_ok_and(|plain| bits(&plain) == bits(&batch.values)) || setting_needs(&pair, &batch));
                let _ = pair.evaluate(Evaluation::Compressed, batch.values());
            }
            7 => {
                for (sent, batch, message) in &flying {
                    match pair.repeat(sent.ticket, batch.values(), &batch.samples) {
                        Ok((again, _)) => assert_eq!(again, *message),
                        Err(Error::FeedbackRule { .. }) => {
                            assert!(position_memories().contains(&setting.forward.memory))
                        }
                        Err(error) => assert!(sent.ticket < first_of_step, "{error}"),
                    }
                }
            }
            _ => match pair.save() {
                Ok(saved) => {
                    pair = Pair::restore(setting, &saved).expect("just saved");
                    assert_eq!(pair.save(), Ok(saved));
                }
                Err(error) => assert!(matches!(error, Error::MidStep { pending, .. } if pending >= flying.len())),
            },
        }
        pair.check_in_step();
    }
}

/// Whether a batch is of another size than a memory by position allows.
fn setting_needs(pair: &Pair, batch: &Batch) -> bool {
    let setting = pair.above.setting();
    batch.values.len() < setting.batch as usize * setting.features as usize
}

/// Delivers a message lost, late and damaged to copies of the receiver.
fn check_damage(pair: &Pair, message: &[u8], choices: &mut Choices<'_>) {
    let mut late = pair.clone();
    late.deliver(message).expect("the next message");
    let mut damaged = message.to_vec();
    let at = choices.next() as usize % damaged.len();
    damaged[at] ^= 1 << (choices.next() % 8);
    if let Ok(values) = pair.clone().deliver(&damaged) {
        assert!(values.iter().all(|x| x.is_finite()));
    }
    assert!(pair.clone().deliver(&message[..message.len() - 1]).is_err());
}

/// Any bytes as a message: refused, or decoded to finite values by an end that waits for just this one; and refused
/// with a byte less.
///
/// # Panics
/// When a property does not hold.
pub fn check_message(bytes: &[u8]) {
    let Ok(Message { header, .. }) = Message::parse(bytes) else { return };
    assert!(Message::parse(&bytes[..bytes.len() - 1]).is_err());
    let Header { shape, codec, .. } = header;
    if shape.elements() > 1 << 14 || header.direction == Direction::Backward {
        return;
    }
    let memory = match header.memory {
        0 => LinkMemory::None,
        1 => LinkMemory::Residual(Residual::CLASSIC),
        2 => LinkMemory::Mixed(Residual::CLASSIC),
        3 => LinkMemory::Ef21,
        _ => LinkMemory::Samples { capacity: 100, storage: RowStorage::F32 },
    };
    let setting = CutSetting {
        forward: Link { codec, memory },
        ..CutSetting::new(header.cut, shape.rows() as u32, shape.cols() as u32)
    };
    let Ok(mut below) = Downstream::new(setting, header.generation) else { return };
    let mut workspace = vec![!0; below.workspace_len()];
    let mut values = vec![f32::NAN; shape.elements()];
    let before = snapshot(&below);
    if below.evaluate(bytes, &mut values).is_ok() || below.receive(bytes, &mut workspace, &mut values).is_ok() {
        assert!(values.iter().all(|x| x.is_finite()));
    } else {
        assert_eq!(snapshot(&below), before);
    }
}

/// Any bytes as saved ends: refused, or an end that saves to the same bytes.
///
/// # Panics
/// When a property does not hold.
pub fn check_saved(bytes: &[u8]) {
    let Some(Ok(setting)) = bytes.get(28..28 + CutSetting::BYTES).map(CutSetting::from_bytes) else { return };
    assert_eq!(setting.to_bytes(), bytes[28..28 + CutSetting::BYTES]);
    if setting.batch as u64 * setting.features as u64 > 1 << 14 || setting.in_flight > 16 {
        return;
    }
    if let Ok(above) = Upstream::restore(setting, bytes) {
        let mut again = vec![0xa5; above.saved_len()];
        assert_eq!((above.save(&mut again), &again[..]), (Ok(bytes.len()), bytes));
    }
    if let Ok(below) = Downstream::restore(setting, bytes) {
        let mut again = vec![0xa5; below.saved_len()];
        assert_eq!((below.save(&mut again), &again[..]), (Ok(bytes.len()), bytes));
    }
}

/// Any bytes as a message and as saved ends.
///
/// # Panics
/// When a property does not hold.
pub fn check_bytes(bytes: &[u8]) {
    check_message(bytes);
    check_saved(bytes);
}
