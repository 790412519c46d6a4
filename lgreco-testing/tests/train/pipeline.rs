mod codecs;
mod failures;
mod links;
mod refusals;
mod saved;
mod steps;

use lgreco_pipeline::*;
use lgreco_testing::noise;
use lgreco_testing::pipeline::*;
use lgreco_train::gradient::{Dtype, Values};
use lgreco_train::rng::Stream;

/// A setting without memory, with the same codec in both directions.
fn plain(batch: u32, features: u32, codec: Codec) -> CutSetting {
    let link = Link { codec, memory: LinkMemory::None };
    CutSetting { cut: 0, batch, features, in_flight: 4, forward: link, backward: link }
}

/// A setting that remembers samples. Gradients are uncompressed.
fn samples(batch: u32, features: u32, codec: Codec, capacity: u32, storage: RowStorage) -> CutSetting {
    let forward = Link { codec, memory: LinkMemory::Samples { capacity, storage } };
    CutSetting { forward, ..plain(batch, features, Codec::Dense { values: Dtype::F32 }) }
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    noise::bell_shaped(Stream { seed, ..Stream::default() }, n)
}

/// Ids of consecutive samples.
fn ids(range: core::ops::Range<u64>) -> Vec<Option<u64>> {
    range.map(Some).collect()
}

fn top(keep: u32) -> Codec {
    Codec::TopK { keep, values: Dtype::F32 }
}
