//! Messages of a pipeline cut: every codec there and back, shared indices, and the parser.

use crate::Digest;
use lgreco_core::Error;
use lgreco_core::cut::{Codec, Direction, HEADER_LEN, Header, Message, Mode, Scope, Tile};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;

const SAMPLES: usize = 5;
const FEATURES: usize = 66;

/// Numbers of both signs over four binary orders of magnitude.
fn batch(seed: u64) -> [f32; SAMPLES * FEATURES] {
    let stream = Stream { seed, ..Stream::default() };
    core::array::from_fn(|index| {
        let word = stream.word(index as u64);
        ((word >> 8) as f32 / (1 << 23) as f32 - 1.0) / (1 << (word & 3)) as f32
    })
}

/// A message under `codec` and what it decodes to; returns the message.
fn message(digest: &mut Digest, codec: Codec, indices: &[u8]) -> Result<([u8; 2048], usize), Error> {
    let header = Header {
        direction: if indices.is_empty() { Direction::Forward } else { Direction::Backward },
        mode: Mode::Train,
        memory: 0,
        values: Dtype::F32,
        codec,
        cut: 3,
        shape: Shape::new(SAMPLES, FEATURES)?,
        generation: 1,
        sequence: 2,
        ticket: 2,
        step: 0,
        checksum: 0,
    };
    let (mut bytes, mut workspace, mut values) = ([0xff; 2048], [!0; 64], [f32::NAN; SAMPLES * FEATURES]);
    let len = HEADER_LEN + codec.body_len(SAMPLES, FEATURES)?;
    header.write(&mut bytes)?;
    codec.encode(&batch(len as u64), FEATURES, indices, &mut workspace, &mut bytes[HEADER_LEN..len])?;
    let parsed = Message::parse(&bytes[..len])?;
    digest.u64(u64::from(parsed.header == header));
    codec.decode(parsed.body, FEATURES, indices, &mut values)?;
    digest.bytes(&bytes[..len]);
    digest.f32s(&values);
    Ok((bytes, len))
}

pub fn messages() -> Result<u64, Error> {
    let mut digest = Digest::new();
    for values in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        message(&mut digest, Codec::Dense { values }, &[])?;
        let top = Codec::TopK { keep: 7, values };
        let (bytes, len) = message(&mut digest, top, &[])?;
        let mut indices = [0; 512];
        let indices = &mut indices[..top.indices_len(SAMPLES, FEATURES)?];
        top.indices(&bytes[HEADER_LEN..len], FEATURES, indices)?;
        message(&mut digest, Codec::SharedIndex { keep: 7, values }, indices)?;
    }
    for bits in 2..=8 {
        for tile in [Tile::Batch, Tile::Elements(32)] {
            message(&mut digest, Codec::MinMax { bits, tile }, &[])?;
        }
        for scale in [Dtype::F32, Dtype::Bf16] {
            for scope in [Scope::Sample, Scope::Channel { channels: 6 }] {
                message(&mut digest, Codec::Symmetric { bits, scope, scale }, &[])?;
            }
        }
    }
    Ok(digest.0)
}
