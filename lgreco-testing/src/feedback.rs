//! Properties of error-feedback memories, checked on any compressor and any gradients.

use super::qsgd::power_of_two;
use crate::reseal;
use lgreco_train::Error;
use lgreco_train::compress::{Compressor, Setting, decode};
use lgreco_train::feedback::{Memory, Residual, SavedState, Storage};
use lgreco_train::gradient::{Gradient, Shape, Values};
use lgreco_train::rng::Stream;

/// A memory with the buffers of its steps. The buffers hold stale data at every step.
pub struct Worker {
    /// The memory.
    pub memory: Memory<Vec<u64>>,
    /// The compressor's setting.
    pub setting: Setting,
    /// Seed, layer and rank of the random bits. The stream's step is the number of steps that the memory has taken.
    pub stream: Stream,
}

/// The result of a step.
pub struct Sent {
    /// The message.
    pub message: Vec<u8>,
    /// The values that the message decodes to.
    pub decoded: Vec<f32>,
}

impl Worker {
    /// A worker with a new memory.
    ///
    /// # Errors
    /// Returns the errors of [`Memory::new`].
    pub fn new(rule: Residual, setting: Setting, shape: Shape, stream: Stream) -> Result<Worker, Error> {
        let words = vec![!0; rule.state_len(shape)];
        Ok(Worker { memory: Memory::new(rule, shape, words)?, setting, stream })
    }

    /// Takes one step. Asserts that the message has the predicted length and decodes to the reported values, and that
    /// an error leaves the memory unchanged.
    ///
    /// # Errors
    /// Returns the errors of [`Memory::step`].
    pub fn step(&mut self, gradient: &Gradient<'_>) -> Result<Sent, Error> {
        let dtype = gradient.values().dtype();
        let mut workspace = vec![!0; self.memory.workspace_len(&self.setting, dtype)];
        let mut message = vec![0xff; self.setting.payload_len(self.memory.shape(), dtype)?];
        let mut decoded = vec![f32::NAN; self.memory.shape().elements()];
        let stream = Stream { step: self.memory.steps() as u32, ..self.stream };
        let before = self.save();
        let result = self.memory.step(&self.setting, gradient, stream, &mut workspace, &mut message, &mut decoded);
        match result {
            Ok(len) if self.setting.has_fixed_len() => {
                assert_eq!(len, message.len(), "the length predicted is the length written")
            }
            Ok(len) => message.truncate(len),
            Err(_) => assert_eq!(self.save(), before, "an error changed the memory"),
        }
        result?;
        let mut again = vec![f32::NAN; decoded.len()];
        decode(&message, &mut again).expect("a payload just made");
        assert_eq!(bits(&again), bits(&decoded));
        Ok(Sent { message, decoded })
    }

    /// The residual.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![f32::NAN; self.memory.shape().elements()];
        self.memory.values(&mut values).expect("one place per element");
        values
    }

    /// The saved memory.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = vec![0xff; self.memory.saved_len()];
        assert_eq!(self.memory.save(&mut bytes), Ok(bytes.len()));
        bytes
    }
}

/// A gradient of f32 values.
pub fn gradient(values: &[f32], shape: Shape) -> Gradient<'_> {
    Gradient::new(Values::F32(values), shape).expect("one value per element")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Asserts mass balance under classic error feedback. Per element, decoded values and residual must add up to the
/// gradients, within the rounding of one addition and one subtraction per step.
///
/// # Errors
/// Returns the errors of [`Memory::step`]. The mass balance has been checked up to the failed step.
pub fn check_mass_balance(setting: Setting, steps: &[Vec<f32>], shape: Shape) -> Result<(), Error> {
    let mut worker = Worker::new(Residual::CLASSIC, setting, shape, Stream::default())?;
    let (mut owed, mut allowed) = (vec![0.0f64; shape.elements()], vec![0.0f64; shape.elements()]);
    let mut result = Ok(());
    for values in steps {
        let before = worker.values();
        match worker.step(&gradient(values, shape)) {
            Ok(sent) => {
                for i in 0..values.len() {
                    let (p, d) = (before[i] as f64 + values[i] as f64, sent.decoded[i] as f64);
                    owed[i] += values[i] as f64 - d;
                    // Allows half a unit in the last place for the addition that gives p, and as much for the
                    // subtraction p − d.
                    allowed[i] += (p.abs() + (p - d).abs()) * 1.001 * power_of_two(-24) + power_of_two(-148);
                }
            }
            Err(error) => result = Err(error),
        }
        for (i, &m) in worker.values().iter().enumerate() {
            let off = (owed[i] - m as f64).abs();
            assert!(off <= allowed[i], "element {i}: off by {off:e}, allowed {:e}", allowed[i]);
        }
    }
    result
}

/// Asserts that the residual has exactly the values that a sparsifier of f32 values drops. Per element, p = ĝ + m', and
/// one of these two summands is 0.
pub fn check_exact_split(rule: Residual, setting: Setting, steps: &[Vec<f32>], shape: Shape) {
    let mut worker = Worker::new(rule, setting, shape, Stream::default()).expect("parameters in range");
    for values in steps {
        let before = worker.values();
        let sent = worker.step(&gradient(values, shape)).expect("moderate gradients");
        for (i, (&m, &d)) in worker.values().iter().zip(&sent.decoded).enumerate() {
            let p = before[i] + values[i];
            assert!((m == 0.0 && d == p) || (d == 0.0 && m == p), "element {i}: p {p:e}, sent {d:e}, kept {m:e}");
        }
    }
}

/// Sends a constant gradient in `steps` steps. Returns the largest difference between the gradient and the mean of the
/// decoded values, relative to the gradient's largest element.
///
/// # Panics
/// Panics if a step fails.
pub fn mean_error(rule: Residual, setting: Setting, values: &[f32], shape: Shape, steps: u32) -> f64 {
    let mut worker = Worker::new(rule, setting, shape, Stream::default()).expect("parameters in range");
    let mut sums = vec![0.0f64; values.len()];
    for _ in 0..steps {
        let sent = worker.step(&gradient(values, shape)).expect("a moderate gradient");
        sums.iter_mut().zip(&sent.decoded).for_each(|(sum, &d)| *sum += d as f64);
    }
    let largest = values.iter().fold(0.0f64, |a, &x| a.max(x.abs() as f64));
    let errors = sums.iter().zip(values).map(|(&sum, &x)| (sum / steps as f64 - x as f64).abs());
    errors.fold(0.0, f64::max) / largest
}

/// Asserts that a worker that is saved after any step, and restored into stale words, continues bit for bit.
pub fn check_resumes(rule: Residual, setting: Setting, steps: &[Vec<f32>], shape: Shape) {
    let mut worker = Worker::new(rule, setting, shape, Stream::default()).expect("parameters in range");
    for values in steps {
        let bytes = worker.save();
        let saved = SavedState::parse(&bytes).expect("bytes just saved");
        let words = vec![!0; saved.residual().state_len(saved.shape())];
        let memory = saved.restore(words).expect("a saved memory");
        let mut twin = Worker { memory, setting, stream: worker.stream };
        assert_eq!(twin.save(), bytes);
        let [a, b] = [&mut worker, &mut twin].map(|w| w.step(&gradient(values, shape)).expect("moderate gradients"));
        assert_eq!((a.message, bits(&a.decoded)), (b.message, bits(&b.decoded)));
        assert_eq!(worker.save(), twin.save());
    }
}

/// Checks `bytes` twice: unchanged, and with a corrected checksum. Each time, the bytes must be refused, or parse as
/// the saved state of an error-feedback memory. Then the memory must save to the same bytes and take a step without a
/// panic.
pub fn check_saved_bytes(bytes: &[u8]) {
    check_memory(bytes);
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    check_memory(&sealed);
}

fn check_memory(bytes: &[u8]) {
    let Ok(saved) = SavedState::parse(bytes) else { return };
    let words = vec![!0; saved.residual().state_len(saved.shape())];
    let memory = saved.restore(words).expect("checked bytes");
    let mut worker = Worker { memory, setting: Setting::Dense, stream: Stream::default() };
    assert_eq!(worker.save(), bytes);
    assert!(worker.values().iter().all(|x| x.is_finite()));
    let zeros = vec![0.0; saved.shape().elements()];
    let _ = worker.step(&gradient(&zeros, saved.shape()));
}

/// Error-feedback rules: every storage format with gains 1 and 0.2, and a reset every 3 steps.
pub fn rules() -> Vec<Residual> {
    let storages = [Storage::F32, Storage::Bf16, Storage::Int8];
    let with = |storage| [1.0, 0.2].map(|gain| Residual { gain, reset_every: 3, storage });
    storages.into_iter().flat_map(with).collect()
}
