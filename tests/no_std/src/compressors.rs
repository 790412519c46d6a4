//! Encodes, decodes and measures with the compressors, in every element type.

use crate::Digest;
use lgreco::Error;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Candidates, Compressor, Setting, decode};
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;

const ROWS: usize = 45;
const COLS: usize = 37;
const ELEMENTS: usize = ROWS * COLS;
const STREAM: Stream = Stream { seed: 11, step: 3, layer: 2, rank: 1 };

/// Calls `each` with the same matrix in three element types. The matrix's numbers have both signs and four binary
/// orders of magnitude.
fn with_gradients(mut each: impl FnMut(&Gradient<'_>) -> Result<(), Error>) -> Result<(), Error> {
    let stream = Stream { seed: 7, ..Stream::default() };
    let (mut single, mut half, mut brain) = ([0f32; ELEMENTS], [F16(0); ELEMENTS], [Bf16(0); ELEMENTS]);
    for (index, value) in single.iter_mut().enumerate() {
        let word = stream.word(index as u64);
        let mantissa = (word >> 8) as f32 / (1 << 23) as f32 - 1.0;
        *value = mantissa / (1 << (word & 3)) as f32;
        half[index] = F16::from_f32(*value);
        brain[index] = Bf16::from_f32(*value);
    }
    let shape = Shape::new(ROWS, COLS)?;
    each(&Gradient::new(Values::F32(&single), shape)?)?;
    each(&Gradient::new(Values::F16(&half), shape)?)?;
    each(&Gradient::new(Values::Bf16(&brain), shape)?)
}

/// Adds to `digest` the payload and the decoded values of every gradient under `setting`, and whether the payload's
/// length is as predicted.
fn round_trips(digest: &mut Digest, setting: Setting) -> Result<(), Error> {
    with_gradients(|gradient| {
        let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
        let (mut workspace, mut payload, mut values) = ([!0u64; 64 << 10], [0xffu8; 16 << 10], [f32::NAN; ELEMENTS]);
        let workspace = &mut workspace[..setting.encode_workspace_len(shape, dtype)];
        let len = setting.encode(gradient, STREAM, workspace, &mut payload)?;
        digest.u64(u64::from(len == setting.payload_len(shape, dtype)?));
        decode(&payload[..len], &mut values)?;
        digest.bytes(&payload[..len]);
        digest.f32s(&values);
        Ok(())
    })
}

pub fn dense() -> Result<u64, Error> {
    let mut digest = Digest::new();
    round_trips(&mut digest, Setting::Dense)?;
    Ok(digest.0)
}

pub fn max_norm() -> Result<u64, Error> {
    qsgd(Scale::MaxNorm)
}

pub fn min_max() -> Result<u64, Error> {
    qsgd(Scale::MinMax)
}

fn qsgd(scale: Scale) -> Result<u64, Error> {
    let mut digest = Digest::new();
    for rounding in [Rounding::Nearest, Rounding::Stochastic] {
        for (bits, bucket) in (1..=8).zip([512, 1, 3, 64, 512, 100, 4096, 17]) {
            round_trips(&mut digest, Setting::Qsgd(Qsgd { bits, bucket, scale, rounding }))?;
        }
    }
    Ok(digest.0)
}

pub fn topk() -> Result<u64, Error> {
    let mut digest = Digest::new();
    for values in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for keep in [1, 17, 700, ELEMENTS as u32] {
            round_trips(&mut digest, Setting::TopK(TopK { keep, values }))?;
        }
    }
    Ok(digest.0)
}

pub fn quantised_topk() -> Result<u64, Error> {
    let mut digest = Digest::new();
    for (keep, bits) in [(1, 2), (17, 3), (700, 4), (ELEMENTS as u32, 8)] {
        round_trips(&mut digest, Setting::QuantisedTopK(QuantisedTopK { keep, bits }))?;
    }
    Ok(digest.0)
}

pub fn powersgd() -> Result<u64, Error> {
    let mut digest = Digest::new();
    for (rank, iterations) in [(1, 1), (4, 2), (17, 5)] {
        round_trips(&mut digest, Setting::PowerSgd(PowerSgd { rank, iterations }))?;
    }
    Ok(digest.0)
}

/// The digest of measured rows of the error table.
pub fn rows() -> Result<u64, Error> {
    let base = |scale, rounding| Qsgd { bits: 4, bucket: 512, scale, rounding };
    let candidates = [
        Candidates::Qsgd { base: base(Scale::MaxNorm, Rounding::Stochastic), bits: &[1, 2, 3, 4, 5, 6, 7, 8] },
        Candidates::Qsgd { base: base(Scale::MinMax, Rounding::Nearest), bits: &[2, 4, 8] },
        Candidates::TopK { values: Dtype::F32, keeps: &[1, 5, 17, 170, 900, 1500] },
        Candidates::TopK { values: Dtype::Bf16, keeps: &[33] },
        Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 30] },
    ];
    let mut digest = Digest::new();
    for candidates in candidates {
        with_gradients(|gradient| {
            let (mut workspace, mut row) = ([!0u64; 64 << 10], [f64::NAN; 8]);
            let len = candidates.measure_workspace_len(gradient.shape(), gradient.values().dtype());
            let row = &mut row[..candidates.len()];
            candidates.measure(gradient, STREAM, &mut workspace[..len], row)?;
            row.iter().for_each(|error| digest.u64(error.to_bits()));
            Ok(())
        })?;
    }
    Ok(digest.0)
}

/// Decodes payloads that are cut short or have one changed byte. The digest covers the codes of the errors.
pub fn hostile() -> Result<u64, Error> {
    let settings = [
        Setting::Dense,
        Setting::Qsgd(Qsgd { bits: 3, bucket: 64, scale: Scale::MinMax, rounding: Rounding::Nearest }),
        Setting::TopK(TopK { keep: 9, values: Dtype::F16 }),
        Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 }),
    ];
    let values = [0.5f32, -2.0, 0.25, 1.0, 3.0, -0.125, 0.0, 8.0, 1.5, -1.5, 2.5, 0.75];
    let gradient = Gradient::new(Values::F32(&values), Shape::new(3, 4)?)?;
    let mut digest = Digest::new();
    for setting in settings {
        let (mut workspace, mut payload) = ([0u64; 16 << 10], [0u8; 128]);
        let len = setting.encode(&gradient, STREAM, &mut workspace, &mut payload)?;
        let mut outcome = |bytes: &[u8]| {
            let result = decode(bytes, &mut [0.0; 12]);
            digest.u64(result.map_or_else(|error| u64::from(error.code()), |_| 0));
        };
        for at in 0..len {
            outcome(&payload[..at]);
            let byte = payload[at];
            for wrong in [0x00, 0x7f, 0xff] {
                payload[at] = wrong;
                outcome(&payload[..len]);
            }
            payload[at] = byte;
        }
    }
    Ok(digest.0)
}
