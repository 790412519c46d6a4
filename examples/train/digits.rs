//! UCI's images of handwritten digits.

use crate::batch::{Batch, draw};
use candle_core::{Device, Result, Tensor};
use lgreco_train::rng::Stream;

const PIXELS: usize = 64;
const NOISE: f32 = 1.0;

fn noise(seed: u64, step: u32, rank: u32) -> Stream {
    Stream { seed: seed ^ u64::from_le_bytes(*b"noise   "), step, layer: 0, rank }
}

/// The images, used with noise. Without noise, a network soon makes no mistakes and schemes cannot be compared. Every fifth
/// image is for validation.
pub struct Digits {
    images: &'static [[u8; PIXELS + 1]],
}

impl Digits {
    /// The images that ship with the project.
    pub fn load() -> Digits {
        Digits { images: include_bytes!("../data/digits.bin").as_chunks().0 }
    }

    /// Makes a batch with noise uniform in ± [`NOISE`]; paper is −1 and ink is 1.
    fn batch<'a>(images: impl ExactSizeIterator<Item = &'a [u8; PIXELS + 1]> + Clone, noise: Stream) -> Result<Batch> {
        let count = images.len();
        let pixels = images.clone().flat_map(|image| &image[..PIXELS]).zip(0..).map(|(&ink, index)| {
            let unit = noise.word(index) as f32 / u32::MAX as f32;
            ink as f32 / 8.0 - 1.0 + NOISE * (2.0 * unit - 1.0)
        });
        let labels: Vec<u32> = images.clone().map(|image| image[PIXELS] as u32).collect();
        Ok(Batch {
            inputs: Tensor::from_vec(pixels.collect(), (count, 1, 8, 8), &Device::Cpu)?,
            targets: Tensor::from_vec(labels, count, &Device::Cpu)?,
        })
    }

    /// Random images from the share of worker `rank`.
    pub fn training(&self, size: usize, seed: u64, step: u32, rank: u32, world: u32) -> Result<Batch> {
        let images: Vec<_> =
            self.images.iter().enumerate().filter(|(i, _)| i % 5 != 0).map(|(_, image)| image).collect();
        let shard = images.len() / world as usize;
        let draw = draw(seed, step, rank);
        let chosen: Vec<_> = (0..size).map(|i| images[shard * rank as usize + draw(i, shard)]).collect();
        Digits::batch(chosen.into_iter(), noise(seed, step, rank))
    }

    /// Images with their indices. An image comes at most once per epoch, and has the same noise in every epoch.
    #[allow(dead_code, reason = "used by the example `cut`")]
    pub fn recurring(&self, size: usize, seed: u64, step: u32) -> Result<(Batch, Vec<Option<u64>>)> {
        let mut ours: Vec<usize> = (0..self.images.len()).filter(|i| i % 5 != 0).collect();
        let steps = ours.len() / size;
        let (epoch, place) = (step / steps as u32, step as usize % steps);
        let draw = draw(seed, epoch, 0);
        ours.sort_by_cached_key(|&i| draw(i, u32::MAX as usize));
        let chosen = &ours[place * size..][..size];
        let single = |&i: &usize| Digits::batch([&self.images[i]].into_iter(), noise(seed, i as u32, 1));
        let images = chosen.iter().map(single).collect::<Result<Vec<_>>>()?;
        let batch = Batch {
            inputs: Tensor::cat(&images.iter().map(|image| &image.inputs).collect::<Vec<_>>(), 0)?,
            targets: Tensor::cat(&images.iter().map(|image| &image.targets).collect::<Vec<_>>(), 0)?,
        };
        Ok((batch, chosen.iter().map(|&i| Some(i as u64)).collect()))
    }

    /// `count` batches of all validation images. The noise is the same in every run, but differs between the batches.
    pub fn validation(&self, count: u32) -> Result<Vec<Batch>> {
        (0..count).map(|index| Digits::batch(self.images.iter().step_by(5), noise(0, index, u32::MAX))).collect()
    }
}
