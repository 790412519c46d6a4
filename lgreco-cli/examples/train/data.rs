//! The data sets: a novel, character by character, and images of digits.

use candle_core::{Device, Result, Tensor};
use lgreco_core::rng::Stream;

/// Inputs and what the model should say about them.
pub struct Batch {
    /// Text: characters, batch × context. Digits: pixels, batch × 1 × 8 × 8.
    pub inputs: Tensor,
    /// Classes, one per prediction: the next characters, or the digits.
    pub targets: Tensor,
}

/// Numbers below a bound for a batch; other random bits than those of compression, noise and starting values.
fn draw(seed: u64, step: u32, rank: u32) -> impl Fn(usize, usize) -> usize {
    let stream = Stream { seed: seed ^ u64::from_le_bytes(*b"batches "), step, layer: 0, rank };
    move |index, below| (stream.word(index as u64) as u64 * below as u64 >> 32) as usize
}

/// *Around the World in Eighty Days*; the last tenth is for validation.
pub struct Text {
    /// Characters as numbers below `vocabulary`.
    tokens: Vec<u32>,
    /// Number of different characters.
    pub vocabulary: usize,
}

impl Text {
    /// The text that ships with the project.
    pub fn load() -> Text {
        let bytes = include_bytes!("../data/eighty_days.txt");
        let mut alphabet = bytes.to_vec();
        alphabet.sort_unstable();
        alphabet.dedup();
        let mut number = [0; 256];
        alphabet.iter().enumerate().for_each(|(index, &byte)| number[byte as usize] = index as u32);
        Text { tokens: bytes.iter().map(|&byte| number[byte as usize]).collect(), vocabulary: alphabet.len() }
    }

    fn training_len(&self) -> usize {
        self.tokens.len() * 9 / 10
    }

    fn batch(&self, starts: &[usize], context: usize) -> Result<Batch> {
        let windows = |shift: usize| -> Vec<u32> {
            starts.iter().flat_map(|&start| &self.tokens[start + shift..][..context]).copied().collect()
        };
        Ok(Batch {
            inputs: Tensor::from_vec(windows(0), (starts.len(), context), &Device::Cpu)?,
            targets: Tensor::from_vec(windows(1), starts.len() * context, &Device::Cpu)?,
        })
    }

    /// Random windows of worker `rank`'s own stretch of the text.
    pub fn training(&self, size: usize, context: usize, seed: u64, step: u32, rank: u32, world: u32) -> Result<Batch> {
        let shard = self.training_len() / world as usize;
        let draw = draw(seed, step, rank);
        let starts: Vec<usize> =
            (0..size).map(|i| shard * rank as usize + draw(i, shard - context)).collect();
        self.batch(&starts, context)
    }

    /// `count` batches of windows spread evenly over the text that is never trained on.
    pub fn validation(&self, count: usize, size: usize, context: usize) -> Result<Vec<Batch>> {
        let first = self.training_len();
        let room = self.tokens.len() - first - context - 1;
        let start = |index: usize| first + room * index / (count * size);
        (0..count)
            .map(|batch| {
                let starts: Vec<usize> = (0..size).map(|i| start(batch * size + i)).collect();
                self.batch(&starts, context)
            })
            .collect()
    }
}

const PIXELS: usize = 64;
const NOISE: f32 = 1.5;

fn noise(seed: u64, step: u32, rank: u32) -> Stream {
    Stream { seed: seed ^ u64::from_le_bytes(*b"noise   "), step, layer: 0, rank }
}

/// UCI's digits under noise, without which a network soon makes no more mistakes to compare; every fifth image is for
/// validation.
pub struct Digits {
    images: &'static [[u8; PIXELS + 1]],
}

impl Digits {
    /// The images that ship with the project.
    pub fn load() -> Digits {
        Digits { images: include_bytes!("../data/digits.bin").as_chunks().0 }
    }

    /// With noise uniform in ± [`NOISE`], paper and ink being −1 and 1.
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

    /// Random images of worker `rank`'s own share.
    pub fn training(&self, size: usize, seed: u64, step: u32, rank: u32, world: u32) -> Result<Batch> {
        let images: Vec<_> =
            self.images.iter().enumerate().filter(|(i, _)| i % 5 != 0).map(|(_, image)| image).collect();
        let shard = images.len() / world as usize;
        let draw = draw(seed, step, rank);
        let chosen: Vec<_> = (0..size).map(|i| images[shard * rank as usize + draw(i, shard)]).collect();
        Digits::batch(chosen.into_iter(), noise(seed, step, rank))
    }

    /// All images that are never trained on, each `count` times under the same noise in every run.
    pub fn validation(&self, count: u32) -> Result<Vec<Batch>> {
        (0..count).map(|index| Digits::batch(self.images.iter().step_by(5), noise(0, index, u32::MAX))).collect()
    }
}
