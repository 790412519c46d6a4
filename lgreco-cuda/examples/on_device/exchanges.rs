//! Measures exchanges of one layer or of a whole model.

use super::*;
use lgreco::compress::Compressor;
use lgreco::rng::Stream;
use lgreco_cuda::{ExchangeConfig, ExchangeProgram};

impl Bench {
    /// Measures and checks steps of an exchange among [`RANKS`] ranks that all send the same message. `shapes` are the
    /// shapes of one layer or of all layers of a model.
    pub(super) fn exchange(&mut self, model: &str, name: &str, setting: SettingOf, shapes: &[Shape]) -> Outcome<()> {
        let config = ExchangeConfig { world: RANKS as u32, dtype: self.dtype, ..ExchangeConfig::default() };
        let layers: Vec<(Shape, Setting)> = shapes.iter().map(|&shape| (shape, setting(shape))).collect();
        let program = ExchangeProgram::new(&layers, config)?;
        let message = program.message_bytes();
        let table = Memory::new(program.memory_bytes() as usize)?;
        let residuals = Memory::new(program.residual_bytes() as usize)?;
        let messages = Memory::new(RANKS * message)?;
        let clock = self.clock;
        // SAFETY: the memory has the size that the program requires, and nothing else uses it.
        let exchange = unsafe { self.backend.begin_exchange(program, table.at(), residuals.at()) }?;
        let encode = clock.seconds(CALLS, || {
            // SAFETY: the addresses are valid for the gradients and for a message. Residuals stay 0 until a step has
            // ended.
            Ok(unsafe { self.backend.encode_exchange(&exchange, self.gradient.at(), messages.at()) }?)
        })?;
        // Only the first layer's payload is checked.
        let &(shape, setting) = layers.first().ok_or("no layer")?;
        let (values, len) = (shape.elements(), setting.payload_len(shape, self.dtype)?);
        let (mut expected, mut found) = (vec![0; len], vec![0u8; len]);
        let host = self.host(shape)?;
        let mut workspace = vec![0; setting.encode_workspace_len(shape, self.dtype)];
        let start = Instant::now();
        setting.encode(&host, Stream::default(), &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        // The first payload begins after the message's header of 16 bytes.
        clock.download(messages.at() + 16, &mut found)?;
        assert!(found == expected, "{model}{name}: the exchange's payload");
        // Counts the bytes that the exchange moves: it reads gradients and residuals, and writes residuals and
        // payloads.
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let line = format!("exchange: feedback and {name}");
        let size = self.dtype.bytes();
        self.line_of_exchange(model, &line, ((8 + size) * total + message, encode, cpu));

        // A message has the number of its step, and a step accepts no message with another number. So each step copies
        // this rank's message into the slots of the other ranks.
        let mut finish = f64::INFINITY;
        for step in 0..=runs()? as u32 {
            // SAFETY: the addresses are valid for the gradients and for all messages.
            unsafe { self.backend.encode_exchange(&exchange, self.gradient.at(), messages.at()) }?;
            for rank in 1..RANKS as u64 {
                clock.copy(messages.at() + rank * message as u64, messages.at(), message)?;
            }
            let took = clock.once(|| {
                // SAFETY: the addresses are valid for all messages, and for one mean per gradient value.
                Ok(unsafe { self.backend.finish_exchange(&exchange, messages.at(), self.other.at()) }?)
            })?;
            finish = finish.min(took);
            let outcome = self.backend.exchange_outcome(&exchange)?;
            assert!((outcome.step, outcome.failed) == (step + 1, 0), "{model}{name}: {outcome:?}");
        }
        let (mut payload, mut decoded) = (vec![0u8; len], vec![0.0f32; values]);
        clock.download(messages.at() + 16, &mut payload)?;
        let means = self.read(self.other.at(), values)?;
        let start = Instant::now();
        lgreco::compress::decode(&payload, &mut decoded)?;
        let cpu = RANKS as f64 * start.elapsed().as_secs_f64();
        let mean = |&x: &f32| self.rounded((1..RANKS).fold(x, |sum, _| sum + x) / RANKS as f32);
        assert!(means.iter().zip(&decoded).all(|(found, x)| *found == mean(x)), "{model}{name}: the exchange's means");
        let line = format!("exchange: means of {RANKS} ranks, {name}");
        self.line_of_exchange(model, &line, (size * total + RANKS * message, finish, cpu));
        Ok(())
    }

    /// Prints the figures of an exchange. `model` is empty if the exchange has only one layer.
    pub(super) fn line_of_exchange(&self, model: &str, name: &str, (bytes, here, cpu): (usize, f64, f64)) {
        if model.is_empty() {
            return self.line_of(name, bytes, here, cpu);
        }
        let of_copy = 100.0 * bytes as f64 / here / self.bandwidth;
        println!("{model}{}: {:.3} ms, {of_copy:.0} % of copy", self.named(name), 1e3 * here);
    }
}
