//! Tests that codecs and messages do not allocate. The test encodes and decodes with every codec, uses shared indices,
//! and parses messages.

use lgreco_pipeline::gradient::{Dtype, Shape};
use lgreco_pipeline::{Codec, Direction, Error, HEADER_LEN, Header, Message, Mode, Scope, Tile};
use lgreco_train::rng::Stream;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator, and allocations are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the promises that `System.alloc` requires.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises that `System.dealloc` requires.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SAMPLES: usize = 5;
const FEATURES: usize = 66;

/// FNV-1a, 64 bits.
struct Digest(u64);

impl Digest {
    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Numbers of both signs over four binary orders of magnitude.
fn batch(seed: u64) -> [f32; SAMPLES * FEATURES] {
    let stream = Stream { seed, ..Stream::default() };
    core::array::from_fn(|index| {
        let word = stream.word(index as u64);
        ((word >> 8) as f32 / (1 << 23) as f32 - 1.0) / (1 << (word & 3)) as f32
    })
}

/// Encodes a batch with `codec` as a message, and decodes the message. Adds the message and the decoded values to the
/// digest. Returns the message and its length.
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
    digest.bytes(&u64::from(parsed.header == header).to_le_bytes());
    codec.decode(parsed.body, FEATURES, indices, &mut values)?;
    digest.bytes(&bytes[..len]);
    values.iter().for_each(|value| digest.bytes(&value.to_bits().to_le_bytes()));
    Ok((bytes, len))
}

fn messages() -> Result<u64, Error> {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
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

fn rotated() -> Result<u64, Error> {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    (1..=8).try_for_each(|bits| message(&mut digest, Codec::Eden { bits }, &[]).map(drop))?;
    Ok(digest.0)
}

/// The digests are the same on all little-endian machines, with all features.
#[test]
fn messages_are_the_same_bits_everywhere_and_allocate_nothing() {
    let before = ALLOCATIONS.get();
    let digests = [messages(), rotated()];
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(digests, [Ok(0x6840_0bc0_ca5d_5ac4), Ok(0x1d56_1373_8e84_b608)]);
}
