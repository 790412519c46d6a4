//! Measures exchanges of one layer or of a model in which ranks add up values: uncompressed layers, or PowerSGD's
//! factors.

use super::*;
use lgreco::compress::powersgd;
use lgreco_cuda::{ExchangeConfig, ExchangeProgram};

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

impl Bench {
    /// Measures whole steps of a single rank. The sums over ranks therefore equal this rank's values.
    pub(super) fn sums(&mut self, model: &str, name: &str, setting: SettingOf, shapes: &[Shape]) -> Outcome<()> {
        let layers: Vec<(Shape, Setting)> = shapes.iter().map(|&shape| (shape, setting(shape))).collect();
        let config = ExchangeConfig { dtype: self.dtype, reduce_dtype: self.dtype, ..ExchangeConfig::default() };
        let program = ExchangeProgram::new(&layers, config)?;
        let (of_rows, of_cols, size) = (program.sum_values(), program.factor_values(), self.dtype.bytes());
        let table = Memory::new(program.memory_bytes() as usize)?;
        let residuals = Memory::new(program.residual_bytes() as usize)?;
        let (sums, factors) = (Memory::new(size * of_rows)?, Memory::new(size * of_cols)?);
        // SAFETY: the memory has the size that the program requires, and nothing else uses it.
        let exchange = unsafe { self.backend.begin_exchange(program, table.at(), residuals.at()) }?;
        let here = self.clock.seconds(CALLS, || {
            // SAFETY: the addresses are valid for the gradients, both sums and the means.
            unsafe {
                self.backend.project_exchange(&exchange, self.gradient.at(), sums.at())?;
                self.backend.back_project_exchange(&exchange, sums.at(), factors.at())?;
                self.backend.average_exchange(&exchange, sums.at(), factors.at(), self.other.at())?;
            }
            Ok(())
        })?;
        let outcome = self.backend.exchange_outcome(&exchange)?;
        assert!((outcome.failed, outcome.fault) == (0, None), "{outcome:?}");
        // Only the first layer is checked. The first layer's factors are at the start of the sums.
        let &(shape, setting) = layers.first().ok_or("no layer")?;
        let values = shape.elements();
        let means = self.read(self.other.at(), values)?;
        let (of_p, of_q) = (self.read(sums.at(), of_rows)?, self.read(factors.at(), of_cols)?);
        let cpu = match setting {
            Setting::PowerSgd(_) => self.check_factors(shape, [&of_p, &of_q], &means)?,
            _ => {
                // Steps in bf16 leave rounding errors in the residuals; later steps send these errors.
                let is_sent = |(mean, value): (&f32, &f32)| (mean - value).abs() <= SENT * value.abs();
                assert!(means.iter().zip(&self.values).all(is_sent), "{name}: the exchange's means");
                0.0
            }
        };
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let line = format!("exchange: {name}, a whole step");
        // Counts the bytes per value. The step reads the gradient and the residual, and writes the mean and the
        // residual. For uncompressed layers, the step also writes and reads the sum over the ranks. Under PowerSGD, the
        // step first writes the sum of gradient and residual in place of the residual. Under PowerSGD, the step then
        // reads the sum of gradient and residual twice, and writes the new residual.
        let of_value = if matches!(setting, Setting::Dense) { 8 + 4 * size } else { 20 + 2 * size };
        self.line_of_exchange(model, &line, (of_value * total, here, cpu));
        Ok(())
    }

    /// Asserts that the means are the product of the factors. Returns the seconds that the CPU takes for a PowerSGD
    /// step of this shape.
    fn check_factors(&self, shape: Shape, [p, q]: [&[f32]; 2], means: &[f32]) -> Outcome<f64> {
        let rank = powersgd::effective_rank(shape, 4) as u32;
        let (p, q) = (&p[..shape.rows() * rank as usize], &q[..shape.cols() * rank as usize]);
        let mut expected = vec![0.0; shape.elements()];
        let mut workspace = vec![0; powersgd::steps_workspace_len(shape, rank)];
        let (mut own_p, mut own_q) = (p.to_vec(), q.to_vec());
        powersgd::orthonormalise(shape, rank, &mut workspace, &mut own_p)?;
        powersgd::reconstruct(shape, rank, &own_p, q, &mut expected)?;
        let apart = norm(means.iter().zip(&expected).map(|(found, expected)| found - expected));
        // The device adds products in another order, and rounds means to the gradient's type.
        let within = if self.dtype == Dtype::F32 { NORM } else { f64::from(SENT) };
        assert!(apart <= within * norm(expected.iter().copied()), "the exchange's means of factors");
        let host = self.host(shape)?;
        let start = Instant::now();
        powersgd::project(&host, rank, q, &mut workspace, &mut own_p)?;
        powersgd::orthonormalise(shape, rank, &mut workspace, &mut own_p)?;
        powersgd::back_project(&host, rank, &own_p, &mut workspace, &mut own_q)?;
        powersgd::take_off(shape, rank, &own_p, &own_q, &mut expected)?;
        powersgd::reconstruct(shape, rank, &own_p, &own_q, &mut expected)?;
        Ok(start.elapsed().as_secs_f64())
    }
}
