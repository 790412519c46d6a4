//! Exchanges of one layer, or of a model's.

use super::*;
use cudarc::driver::sys;
use lgreco_core::compress::Compressor;
use lgreco_core::rng::Stream;
use lgreco_cuda::{ExchangeConfig, ExchangeProgram};

impl Bench {
    /// Steps of an exchange of [`RANKS`] ranks, which all send what this one does: of one layer, or of a model's.
    pub(super) fn exchange(
        &mut self,
        model: &str,
        name: &str,
        setting: fn(Shape) -> Setting,
        shapes: &[Shape],
    ) -> Outcome<()> {
        let config = ExchangeConfig { world: RANKS as u32, dtype: self.dtype, ..ExchangeConfig::default() };
        let layers: Vec<(Shape, Setting)> = shapes.iter().map(|&shape| (shape, setting(shape))).collect();
        let program = ExchangeProgram::new(&layers, config)?;
        let message = program.message_bytes();
        let (table, residuals) = (memory(program.memory_bytes() as usize)?, memory(program.residual_bytes() as usize)?);
        let messages = memory(RANKS * message)?;
        // SAFETY: as large as the program says, and used here alone.
        let exchange = unsafe { self.backend.begin_exchange(program, table, residuals) }?;
        let encode = seconds(|| {
            for _ in 0..CALLS {
                // SAFETY: the gradients and room for a message. Before a step has ended, residuals stay zeros.
                unsafe { self.backend.encode_exchange(&exchange, self.gradient, messages) }?;
            }
            Ok(self.backend.synchronise()?)
        })?;
        // Of the first layer.
        let &(shape, setting) = layers.first().ok_or("no layer")?;
        let (values, len) = (shape.elements(), setting.payload_len(shape, self.dtype)?);
        let (mut expected, mut found) = (vec![0; len], vec![0u8; len]);
        let host = self.host(shape)?;
        let mut workspace = vec![0; setting.encode_workspace_len(shape, self.dtype)];
        let start = Instant::now();
        setting.encode(&host, Stream::default(), &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        // SAFETY: the payload is that long, behind the message's 16 bytes.
        unsafe { result::memcpy_dtoh_sync(&mut found, messages + 16) }?;
        assert!(found == expected, "{model}{name}: the exchange's payload");
        // Gradients and residuals read, residuals and payloads written.
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let line = format!("exchange: feedback and {name}");
        let size = self.dtype.bytes();
        self.line_of_exchange(model, &line, ((8 + size) * total + message, encode, cpu))?;

        // Every step ends with others' messages of its own number.
        let mut finish = f64::INFINITY;
        for step in 0..6 {
            // SAFETY: the gradients and room for all messages.
            unsafe {
                self.backend.encode_exchange(&exchange, self.gradient, messages)?;
                for rank in 1..RANKS as u64 {
                    let to = messages + rank * message as u64;
                    result::memcpy_dtod_async(to, messages, message, std::ptr::null_mut())?;
                }
                result::ctx::synchronize()?;
                self.backend.synchronise()?;
                let start = Instant::now();
                self.backend.finish_exchange(&exchange, messages, self.other)?;
                self.backend.synchronise()?;
                finish = finish.min(start.elapsed().as_secs_f64());
            }
            let outcome = self.backend.exchange_outcome(&exchange)?;
            assert!((outcome.step, outcome.failed) == (step + 1, 0), "{outcome:?}");
        }
        let (mut payload, mut decoded) = (vec![0u8; len], vec![0.0f32; values]);
        // SAFETY: as long.
        unsafe { result::memcpy_dtoh_sync(&mut payload, messages + 16) }?;
        let means = self.read(self.other, values)?;
        let start = Instant::now();
        lgreco_core::compress::decode(&payload, &mut decoded)?;
        let cpu = RANKS as f64 * start.elapsed().as_secs_f64();
        let mean = |&x: &f32| self.rounded((1..RANKS).fold(x, |sum, _| sum + x) / RANKS as f32);
        assert!(means.iter().zip(&decoded).all(|(found, x)| *found == mean(x)), "{model}{name}: the exchange's means");
        let line = format!("exchange: means of {RANKS} ranks, {name}");
        self.line_of_exchange(model, &line, (size * total + RANKS * message, finish, cpu))?;
        for address in [table, residuals, messages] {
            // SAFETY: allocated above, and used no more.
            unsafe { sys::cuMemFree_v2(address) }.result()?;
        }
        Ok(())
    }

    /// A line of an exchange, of a model if that has a name.
    pub(super) fn line_of_exchange(
        &mut self,
        model: &str,
        name: &str,
        (bytes, here, cpu): (usize, f64, f64),
    ) -> Outcome<()> {
        if model.is_empty() {
            return self.line_of(name, bytes, here, cpu);
        }
        let of_copy = 100.0 * bytes as f64 / here / self.bandwidth;
        println!("{}: {:.3} ms, {of_copy:.0} % of copy", self.named(name), 1e3 * here);
        Ok(())
    }
}
