//! *Around the World in Eighty Days*, character by character.

use crate::batch::{Batch, draw};
use candle_core::{Device, Result, Tensor};

/// The novel as numbers; the last tenth is for validation.
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

    /// Random windows of worker `rank`'s part of the text.
    pub fn training(&self, size: usize, context: usize, seed: u64, step: u32, rank: u32, world: u32) -> Result<Batch> {
        let shard = self.training_len() / world as usize;
        let draw = draw(seed, step, rank);
        let starts: Vec<usize> = (0..size).map(|i| shard * rank as usize + draw(i, shard - context)).collect();
        self.batch(&starts, context)
    }

    /// `count` batches of windows that are spread evenly over the validation text.
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
