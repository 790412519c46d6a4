//! Error feedback of more than 2^31 values, as `beyond` has them: what is remembered of the last ones.
#![allow(unsafe_code)]

use super::beyond::{ALL, FEW, FIRST, decoded_tail, filled, sparse};
use super::exchange::{bits, narrowed};
use super::simt::Sparse;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceGradient, DeviceResidual};
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use lgreco_testing::powersgd::uniform;
use lgreco_train::feedback::Storage;

/// What the last values of a residual become: rounded by the random words of their places.
fn stored(storage: Storage, values: &[f32], stream: Stream) -> Vec<f32> {
    let stream = Stream { seed: stream.seed ^ u64::from_le_bytes(*b"feedback"), ..stream };
    let word = |i: usize| stream.word((ALL - values.len() + i) as u64);
    let group = |(number, group): (usize, &[f32])| -> Vec<f32> {
        let largest = group.iter().fold(0, |largest, x| largest.max(x.abs().to_bits()));
        // The least power of two of which 127 are no less.
        let exponent = ((largest + 0x1_ffff) >> 23).max(7) - 6;
        let [scale, inverse] = [exponent, 254 - exponent].map(|exponent| f32::from_bits(exponent << 23));
        let code = |(i, x): (usize, &f32)| {
            let dither = (2 * (word(512 * number + i) >> 17) + 1) as f32 / 65536.0 - 0.5;
            (x * inverse + dither).round_ties_even() * scale + 0.0
        };
        group.iter().enumerate().map(code).collect()
    };
    match storage {
        Storage::F32 => values.to_vec(),
        Storage::Bf16 => {
            let rounded = |(i, x): (usize, &f32)| (x.to_bits() + (word(i) >> 16)) & 0xffff_0000;
            values.iter().enumerate().map(rounded).map(f32::from_bits).collect()
        }
        Storage::Int8 => values.chunks(512).enumerate().flat_map(group).collect(),
    }
}

/// What the device remembers of the last values.
fn remembered(residual: &mut Sparse, storage: Storage) -> Vec<f32> {
    match storage {
        Storage::F32 => residual.values::<f32>()[ALL - FEW..].to_vec(),
        Storage::Bf16 => {
            residual.values::<u16>()[ALL - FEW..].iter().map(|&x| f32::from_bits(u32::from(x) << 16)).collect()
        }
        Storage::Int8 => {
            let (codes, exponents) = residual.values::<u8>().split_at(ALL);
            let scales = exponents[exponents.len() - FEW / 512..].iter().map(|&x| f32::from_bits(u32::from(x) << 23));
            let of_group =
                |(codes, scale): (&[u8], f32)| codes.iter().map(|&code| f32::from(code as i8) * scale).collect();
            codes[ALL - FEW..].chunks(512).zip(scales).flat_map(|group| -> Vec<f32> { of_group(group) }).collect()
        }
    }
}

/// Two steps: what is left of the first is read, and joins the second gradient.
fn check_feedback(backend: &mut CudaBackend, dtype: Dtype, storage: Storage) -> Result<(), String> {
    let (tail, setting) = (narrowed(&uniform(FEW, 6), dtype).1, Setting::Qsgd(FIRST));
    let mut values = filled(ALL, dtype, &tail);
    let gradient = DeviceGradient::of_part(values.part(), dtype, Shape::new(ALL, 1).unwrap());
    let mut residual = Sparse::new(storage.bytes(ALL));
    let kept = DeviceResidual { address: residual.part().address, storage };
    let mut offered = tail.clone();
    for step in 0..2 {
        let stream = Stream { seed: 7, step, layer: 3, rank: 1 };
        let mut found = vec![0; FIRST.payload_len(gradient.shape(), dtype).unwrap()];
        // SAFETY: gradient and residual are as large as the shape says.
        unsafe { backend.encode_with_feedback(&setting, &gradient, kept, 1.0, stream, &mut found) }.unwrap();
        let decoded = decoded_tail(&found, FIRST, FEW);
        if decoded.iter().all(|&x| x == 0.0) {
            return Err(format!("{dtype:?}, {storage:?}: nothing is sent"));
        }
        let left: Vec<f32> = offered.iter().zip(decoded).map(|(x, decoded)| x - decoded).collect();
        let stays = stored(storage, &left, stream);
        if bits(&remembered(&mut residual, storage)) != bits(&stays) {
            return Err(format!("{dtype:?}, {storage:?}, step {step}"));
        }
        offered = stays.iter().zip(&tail).map(|(stays, x)| stays + x).collect();
    }
    let start = values.part().bytes as usize - FEW * dtype.bytes();
    assert!(values.values::<u8>()[start..] == narrowed(&tail, dtype).0);
    Ok(())
}

#[test]
fn feedback() {
    let Some(mut backend) = sparse(None) else { return };
    for (dtype, storage) in [(Dtype::F32, Storage::F32), (Dtype::F16, Storage::Bf16), (Dtype::Bf16, Storage::Int8)] {
        check_feedback(&mut backend, dtype, storage).unwrap();
    }
}

/// Places that are counted in 31 bits.
#[test]
fn faults_are_found() {
    for (from, to, dtype, storage) in [
        (
            "widen(static_cast<const u16*>(memory)[i], 2)",
            "widen(static_cast<const u16*>(memory)[i % (1u << 31)], 2)",
            Dtype::F32,
            Storage::Bf16,
        ),
        ("memory[i + k] = u16((", "memory[(i + k) % (1u << 31)] = u16((", Dtype::F16, Storage::Bf16),
        ("philox(u32(i / 4)", "philox(u32(i % (1u << 31) / 4)", Dtype::F32, Storage::Int8),
        ("memory[at + k] = u8(code);", "memory[(at + k) % (1u << 31)] = u8(code);", Dtype::Bf16, Storage::Int8),
        (
            "float own = value(values, p.dtype, i);",
            "float own = value(values, p.dtype, i % (1u << 31));",
            Dtype::F16,
            Storage::F32,
        ),
    ] {
        let Some(mut backend) = sparse(Some((Module::Feedback, from, to))) else { return };
        assert!(check_feedback(&mut backend, dtype, storage).is_err(), "{from}");
    }
}
