//! Measures how much noise in one layer increases the loss.

use super::{Failure, Worker};
use lgreco_train::exchange::Collective;
use lgreco_train::rng::Stream;

/// The noise's energy divided by that of the layer's values.
const ENERGY: f64 = 0.01;

impl<C: Collective> Worker<'_, C> {
    /// The increase of the loss on held-out data by gaussian noise in a tensor's values, divided by the noise's energy.
    /// The noise is added once and subtracted once, so that the loss's slope cancels. Half of the curvature along the
    /// noise remains. Nothing is trained. All workers must measure the same tensor at the same time.
    pub fn sensitivity(&mut self, tensor: usize) -> Result<f64, Failure> {
        let values = self.model.parameters.values()?;
        let energy = |values: &[f32]| values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        let seed = self.seed ^ u64::from_le_bytes(*b"probes  ");
        let noise = gaussian(Stream { seed, step: self.step, layer: tensor as u32, rank: 0 }, values[tensor].len());
        let noise_energy = ENERGY * energy(&values[tensor]);
        let scale = (noise_energy / energy(&noise)).sqrt() as f32;
        let mut increase = -self.glimpse()?;
        for scale in [scale, -scale] {
            let mut noisy = values.clone();
            noisy[tensor].iter_mut().zip(&noise).for_each(|(x, noise)| *x += scale * noise);
            self.model.parameters.set(&noisy)?;
            increase += self.glimpse()? / 2.0;
        }
        self.model.parameters.set(&values)?;
        Ok(increase / noise_energy)
    }

    /// The loss on a part of the held-out data: one batch per worker.
    fn glimpse(&mut self) -> Result<f64, Failure> {
        let batches = self.task.validation()?;
        let (rank, world) = (self.collective.rank() as usize, self.collective.world_size() as usize);
        let mut sum = [self.model.loss(&batches[rank % batches.len()])?.to_scalar::<f32>()?];
        self.collective.all_reduce_sum(&mut sum)?;
        Ok(f64::from(sum[0]) / world as f64)
    }
}

/// Gaussian numbers of variance 1 (Box and Muller).
fn gaussian(stream: Stream, len: usize) -> Vec<f32> {
    let unit = |index: u64| (f64::from(stream.word(index)) + 0.5) / 2f64.powi(32);
    let number =
        |index: u64| (-2.0 * unit(2 * index).ln()).sqrt() * (std::f64::consts::TAU * unit(2 * index + 1)).cos();
    (0..len as u64).map(|index| number(index) as f32).collect()
}
