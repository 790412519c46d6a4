//! Exchanges of one layer, or of a model's.

use super::*;
use cudarc::driver::sys;
use lgreco_core::compress::{Compressor, powersgd};
use lgreco_core::gradient::{Gradient, Values};
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
        let config = ExchangeConfig { world: RANKS as u32, ..ExchangeConfig::default() };
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
        let (values, len) = (shape.elements(), setting.payload_len(shape, Dtype::F32)?);
        let (mut expected, mut found) = (vec![0; len], vec![0u8; len]);
        let host = Gradient::new(Values::F32(&self.values[..values]), shape)?;
        let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
        let start = Instant::now();
        setting.encode(&host, Stream::default(), &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        // SAFETY: the payload is that long, behind the message's 16 bytes.
        unsafe { result::memcpy_dtoh_sync(&mut found, messages + 16) }?;
        assert!(found == expected, "{model}{name}: the exchange's payload");
        // Gradients and residuals read, residuals and payloads written.
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let line = format!("exchange: feedback and {name}");
        self.line_of_exchange(model, &line, shapes, (12 * total + message, encode, cpu))?;

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
        let (mut payload, mut decoded, mut means) = (vec![0u8; len], vec![0.0f32; values], vec![0.0f32; values]);
        // SAFETY: as long.
        unsafe {
            result::memcpy_dtoh_sync(&mut payload, messages + 16)?;
            result::memcpy_dtoh_sync(&mut means, self.other)?;
        }
        let start = Instant::now();
        lgreco_core::compress::decode(&payload, &mut decoded)?;
        let cpu = RANKS as f64 * start.elapsed().as_secs_f64();
        let mean = |&x: &f32| (1..RANKS).fold(x, |sum, _| sum + x) / RANKS as f32;
        assert!(means.iter().zip(&decoded).all(|(found, x)| *found == mean(x)), "{model}{name}: the exchange's means");
        let line = format!("exchange: means of {RANKS} ranks, {name}");
        self.line_of_exchange(model, &line, shapes, (4 * total + RANKS * message, finish, cpu))?;
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
        shapes: &[Shape],
        (bytes, here, cpu): (usize, f64, f64),
    ) -> Outcome<()> {
        if model.is_empty() {
            return self.line_of(name, bytes, here, cpu);
        }
        let against = self.against(1, (model, name), shapes, here)?;
        let of_copy = 100.0 * bytes as f64 / here / self.bandwidth;
        println!("{name}: {:.3} ms, {of_copy:.0} % of copy{against}", 1e3 * here);
        Ok(())
    }

    /// Steps of an exchange of PowerSGD's factors with no other rank.
    pub(super) fn sums(&mut self) -> Outcome<()> {
        let (shape, rank, values) = (self.shape, 4, self.values.len());
        let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
        let program = ExchangeProgram::new(&[(shape, setting)], ExchangeConfig::default())?;
        let (of_rows, of_cols) = (program.sum_values(), program.factor_values());
        let (table, residuals) = (memory(program.memory_bytes() as usize)?, memory(program.residual_bytes() as usize)?);
        let (sums, factors) = (memory(4 * of_rows)?, memory(4 * of_cols)?);
        // SAFETY: as large as the program says, and used here alone.
        let exchange = unsafe { self.backend.begin_exchange(program, table, residuals) }?;
        // No other rank: what is summed stays as it is.
        let here = seconds(|| {
            for _ in 0..CALLS {
                // SAFETY: the gradient, room for both sums and for the means.
                unsafe {
                    self.backend.project_exchange(&exchange, self.gradient, sums)?;
                    self.backend.back_project_exchange(&exchange, sums, factors)?;
                    self.backend.average_exchange(&exchange, sums, factors, self.other)?;
                }
            }
            Ok(self.backend.synchronise()?)
        })?;
        let outcome = self.backend.exchange_outcome(&exchange)?;
        assert!((outcome.failed, outcome.fault) == (0, None), "{outcome:?}");
        let (mut p, mut q, mut means) = (vec![0.0f32; of_rows], vec![0.0f32; of_cols], vec![0.0f32; values]);
        // SAFETY: as long.
        unsafe {
            result::memcpy_dtoh_sync(&mut p, sums)?;
            result::memcpy_dtoh_sync(&mut q, factors)?;
            result::memcpy_dtoh_sync(&mut means, self.other)?;
        }
        let (p, q) = (&p[..shape.rows() * rank as usize], &q[..shape.cols() * rank as usize]);
        let mut expected = vec![0.0; values];
        let mut workspace = vec![0; powersgd::steps_workspace_len(shape, rank)];
        let (mut own_p, mut own_q) = (p.to_vec(), q.to_vec());
        powersgd::orthonormalise(shape, rank, &mut workspace, &mut own_p)?;
        powersgd::reconstruct(shape, rank, &own_p, q, &mut expected)?;
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let apart = norm(&mut means.iter().zip(&expected).map(|(found, expected)| found - expected));
        // Products are added up in another order.
        assert!(apart <= 1e-4 * norm(&mut expected.iter().copied()), "the exchange's means of factors");
        let host = Gradient::new(Values::F32(&self.values), shape)?;
        let start = Instant::now();
        powersgd::project(&host, rank, q, &mut workspace, &mut own_p)?;
        powersgd::orthonormalise(shape, rank, &mut workspace, &mut own_p)?;
        powersgd::back_project(&host, rank, &own_p, &mut workspace, &mut own_q)?;
        powersgd::take_off(shape, rank, &own_p, &own_q, &mut expected)?;
        powersgd::reconstruct(shape, rank, &own_p, &own_q, &mut expected)?;
        // Gradient and residual, their sum written and read twice, the residual and the mean written.
        self.line_of("exchange: PowerSGD, rank 4, a whole step", 28 * values, here, start.elapsed().as_secs_f64())?;
        for address in [table, residuals, sums, factors] {
            // SAFETY: allocated above, and used no more.
            unsafe { sys::cuMemFree_v2(address) }.result()?;
        }
        Ok(())
    }
}
