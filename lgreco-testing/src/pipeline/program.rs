//! Runs arbitrary bytes as a program of calls on both ends of a cut.

use super::{Pair, bits, codecs, position_memories, sample_memories};
use lgreco_pipeline::Error;
use lgreco_pipeline::{Codec, CutSetting, Direction, Evaluation, Link, LinkMemory, Sent};
use lgreco_train::gradient::{Bf16, Dtype, Element, F16, Values};

/// Turns bytes into choices. After the last byte, all choices are 0.
struct Choices<'a>(core::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn of<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.next() as usize % options.len()]
    }
}

/// A setting that the choices select. The ends of a cut often refuse such a setting.
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

/// A micro-batch that the choices select.
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

/// Largest number of bytes of a program: about twenty calls.
const LONGEST: usize = 400;

/// Runs any sequence of calls on both ends of a cut of any setting. Micro-batches are in flight in any order. Passes
/// are repeated, steps and evaluations happen, ends are saved and restored, and messages are lost, repeated and
/// damaged.
///
/// # Panics
/// Panics if the ends diverge, if a call changes a state that it must not change, or if a repetition gives other bytes.
pub fn check_program(bytes: &[u8]) {
    let mut choices = Choices(bytes[..bytes.len().min(LONGEST)].iter());
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
                if let Ok(values) = pair.clone().deliver(&damaged(&message, &mut choices)) {
                    assert!(values.iter().all(|x| x.is_finite()));
                }
                assert!(pair.clone().deliver(&message[..message.len() - 1]).is_err());
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
                let Ok(message) = pair.reply(sent.ticket, Values::F32(&gradients)) else {
                    pair.above.forget(sent.ticket).expect("in flight");
                    pair.below.forget(sent.ticket).expect("in flight");
                    continue;
                };
                if let Ok((_, values)) = pair.clone().deliver_back(&damaged(&message, &mut choices)) {
                    assert!(values.iter().all(|x| x.is_finite()));
                }
                let (ticket, values) = pair.deliver_back(&message).expect("the next message");
                assert!(ticket == sent.ticket && values.iter().all(|x| x.is_finite()));
            }
            5 => {
                let sent = pair.above.counters(Direction::Forward).messages;
                assert_eq!(pair.commit().is_ok(), sent > first_of_step);
                first_of_step = sent;
            }
            6 => {
                let batch = Batch::new(&mut choices, &setting);
                let plain = pair.evaluate(Evaluation::Plain, batch.values());
                assert!(plain.is_ok_and(|plain| bits(&plain) == bits(&batch.values)) || refused(&pair, &batch));
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

/// Whether the batch has too few values, or a value that is not finite. An end whose memory is keyed by batch position
/// must refuse such a batch.
fn refused(pair: &Pair, batch: &Batch) -> bool {
    let setting = pair.above.setting();
    batch.values.len() < setting.batch as usize * setting.features as usize
        || batch.values.iter().any(|x| !x.is_finite())
}

/// A copy of the message with one changed bit.
fn damaged(message: &[u8], choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = message.to_vec();
    bytes[choices.next() as usize % message.len()] ^= 1 << (choices.next() % 8);
    bytes
}
