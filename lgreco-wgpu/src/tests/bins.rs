//! Bins of TopK in few bits, of magnitudes that the suite of all spaces has not, and of single payloads with a fault.

use super::buffers::buffer;
use super::exchange::USAGE;
use super::{backend, cut};
use crate::batch::{Batch, Part};
use crate::kernels::Shader;
use crate::{BufferBucket, BufferGradient, BufferLayer, WgpuBackend};
use lgreco_core::backend::Backend;
use lgreco_core::compress::quantised_topk::QuantisedTopK;
use lgreco_core::compress::{Compressor, Setting, decode};
use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use lgreco_train::exchange::{Agreement, Flight, Moment, Request, Route, Slip};

/// Magnitudes that are zeros, equal, next to each other, next to nothing, far apart, the largest, and sorted; of both signs.
fn values() -> Vec<Vec<f32>> {
    let of = |len: usize, bits: &dyn Fn(u32, u32) -> u32| -> Vec<f32> {
        let word = |i: usize| Stream::default().word(i as u64);
        (0..len).map(|i| f32::from_bits(bits(i as u32, word(i)) | word(i + len) & 0x8000_0000)).collect()
    };
    let largest = f32::MAX.to_bits();
    vec![
        of(100, &|_, _| 0),
        of(2100, &|_, _| 0x4048_f5c3),
        of(70, &|i, _| if i == 33 { 7 } else { 0 }),
        of(5000, &|_, word| 0x3fff_ffff + word % 3),
        of(3000, &|_, word| word % 200),
        of(3000, &|_, word| word % 0x0180_0000),
        of(9000, &|_, word| word % largest),
        of(9000, &|_, word| largest - word % 1000),
        of(300, &|i, _| if i % 2 == 0 { largest } else { 1 }),
        of(1, &|_, _| 0x3f80_0001),
        // The largest come last.
        of(5000, &|i, _| 0x3000_0000 + (i << 16)),
    ]
}

/// All of them under some settings.
fn cases() -> Vec<(Vec<f32>, Setting)> {
    let mut cases = Vec::new();
    for values in values() {
        let len = values.len() as u32;
        for keep in [1, len.div_ceil(3), len.max(2) - 1, len] {
            for bits in [1, 2, 5, 8] {
                cases.push((values.clone(), Setting::QuantisedTopK(QuantisedTopK { keep, bits })));
            }
        }
    }
    cases
}

/// The payload, and what it decodes to.
fn of_core(setting: &Setting, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let gradient = Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap();
    let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), Dtype::F32)];
    let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
    setting.encode(&gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
    let mut decoded = vec![0.0; values.len()];
    decode(&payload, &mut decoded).unwrap();
    (payload, decoded)
}

#[test]
fn bins_of_any_magnitudes_are_the_cores() {
    let Some(mut backend) = backend() else { return };
    let held = |(values, setting): (Vec<f32>, Setting)| {
        let held = buffer(&backend, 4 * values.len() as u64, USAGE);
        backend.queue().write_buffer(&held, 0, bytemuck::cast_slice(&values));
        (values, setting, held)
    };
    let layers: Vec<_> = cases().into_iter().map(held).collect();
    let on_device: Vec<BufferLayer<'_>> = (0..)
        .zip(&layers)
        .map(|(index, (values, setting, buffer))| {
            let shape = Shape::new(values.len(), 1).unwrap();
            let gradient = BufferGradient { buffer, offset: 0, dtype: Dtype::F32, shape };
            BufferLayer { index, setting: *setting, gradient }
        })
        .collect();
    let mut bucket = BufferBucket::new(&mut backend, &on_device, false, 1).unwrap();
    let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
    let moment = Moment { rank: 0, world_size: 1, route, reduce_dtype, seed: 7, step: 0, terms: 0 };
    let mut space = bucket.on(&mut backend);
    let mut flight = Flight::begin(&mut space, moment, Agreement::Reached, None).unwrap();
    let Some(Request::AllGather { buffer: message }) = flight.next(&mut space).unwrap() else { panic!("no message") };
    let mut rest = message[Slip::LEN..].to_vec();
    assert!(flight.next(&mut space).unwrap().is_none());
    bucket.finish(&mut backend).unwrap();
    for (number, (values, setting, held)) in layers.iter().enumerate() {
        let (payload, decoded) = of_core(setting, values);
        let found = rest.split_off(payload.len());
        let found = std::mem::replace(&mut rest, found);
        assert!(found == payload, "layer {number}, {setting:?}: another payload");
        let part = Part { buffer: held.clone(), offset: 0, size: held.size() };
        let mean = Batch::new(backend.gpu()).unwrap().read(&[part]).unwrap();
        // A sum of one is never -0.
        assert!(bytemuck::pod_collect_to_vec::<u8, f32>(&mean) == decoded, "layer {number}, {setting:?}: another mean");
    }
    assert!(rest.is_empty());
}

/// Asserts that single payloads are the core's.
fn check_payloads(backend: &mut WgpuBackend) {
    let empty = (vec![], Setting::QuantisedTopK(QuantisedTopK { keep: 0, bits: 5 }));
    for (values, setting) in cases().into_iter().chain([empty]) {
        let gradient = Gradient::new(Values::F32(&values), Shape::new(values.len(), 1).unwrap()).unwrap();
        let mut payload = vec![0xee; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        backend.encode(&setting, &gradient, Stream::default(), &mut [], &mut payload).unwrap();
        assert!(payload == of_core(&setting, &values).0, "{setting:?} of {}: another payload", values.len());
    }
}

#[test]
fn payloads_of_any_magnitudes_are_the_cores() {
    [backend(), cut()].iter_mut().flatten().for_each(check_payloads);
}

#[test]
fn faults_in_payloads_are_found() {
    if backend().is_none() {
        return;
    }
    for (text, fault) in [
        ("find_exponents_from(group.x * PER_GROUP,", "find_exponents_from(0u,"),
        ("add_to_bins_from(group.x * PER_GROUP,", "add_to_bins_from(0u,"),
        ("widen_range(kept.lowest, kept.highest);", "widen_range(0u, kept.highest);"),
        ("mean_of_bin(bin, state[0].magnitude, state[0].ties)", "mean_of_bin(bin, state[0].magnitude, 0u)"),
        ("put(params.values_word + bin, 0u,", "put(params.values_word + bin + params.window, 0u,"),
        ("field(params.codes, 0u, index, params.bits)", "field(params.codes, 0u, index, params.bits - 1u)"),
    ] {
        // In several workgroups, and in several pieces and windows.
        let found = [backend(), cut()].into_iter().flatten().find_map(|mut backend| {
            backend.gpu().kernels.edits.push((Shader::TopK, text, fault));
            let check = std::panic::AssertUnwindSafe(|| check_payloads(&mut backend));
            std::panic::catch_unwind(check).err()
        });
        let message = found.unwrap_or_else(|| panic!("not found: {text}"));
        let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(message.contains("another payload"), "{text}: {message}");
    }
}
