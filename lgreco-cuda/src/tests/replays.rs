//! Graphs of a bucket's steps, through the stand-in for the driver: replays do as steps that are enqueued one by one.
#![allow(unsafe_code)]

use super::driver::run;
use super::enqueued::{beside_a_trainer, capture, device, qsgd, replay};
use super::nvrtc;
use crate::{CudaBackend, DeviceBucket, DeviceLayer, ExchangeConfig};
use cudarc::driver::sys::{self, CUstream};
use lgreco_core::compress::quantised_topk::QuantisedTopK;
use lgreco_core::compress::{Setting, powersgd::PowerSgd, topk::TopK};
use lgreco_core::gradient::{Bf16, Dtype, Element, F16, Shape};
use lgreco_core::testing::powersgd::uniform;

#[test]
fn graphs_of_buckets_replay_as_their_steps_do() {
    if nvrtc::compiler().is_some() {
        run("replays", "buckets", &[], None);
    }
}

/// Bytes of as many values of the type.
fn gradients(elements: usize, dtype: Dtype) -> Vec<u8> {
    let values = uniform(elements, 5);
    match dtype {
        Dtype::F32 => bytemuck::cast_slice(&values).to_vec(),
        Dtype::F16 => values.iter().flat_map(|&x| bytemuck::bytes_of(&F16::from_f32(x)).to_vec()).collect(),
        Dtype::Bf16 => values.iter().flat_map(|&x| bytemuck::bytes_of(&Bf16::from_f32(x)).to_vec()).collect(),
    }
}

/// The bytes at an address of the stand-in's, whose memory is the processor's.
fn bytes_at(address: u64, count: usize) -> &'static mut [u8] {
    // SAFETY: `device` gave as many, and nothing that is enqueued uses them when this is called.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address as usize), count) }
}

/// Three steps of a bucket of one rank, enqueued one by one or as a graph: means and residuals after each.
fn steps(
    (cuda, stream): (&mut CudaBackend, CUstream),
    layers: &[DeviceLayer<'_>],
    config: ExchangeConfig,
    captured: bool,
) -> Vec<(Vec<u8>, Vec<f32>)> {
    let elements: usize = layers.iter().map(|layer| layer.shape.elements()).sum();
    let offered = gradients(elements, config.dtype);
    let (memory, kept) = (device(DeviceBucket::bytes(layers, config).unwrap() as usize), device(offered.len()));
    let values = device(offered.len());
    bytes_at(kept, offered.len()).copy_from_slice(&offered);
    // SAFETY: the memory is large enough, stays, and is used here alone.
    let mut bucket = unsafe { DeviceBucket::new(cuda, layers, config, memory) }.unwrap();
    // Means take the gradients' places, so that each step has these brought anew. What one rank sends itself is where it comes from.
    let step = |cuda: &mut CudaBackend, bucket: &mut DeviceBucket| unsafe {
        // SAFETY: as above.
        sys::cuMemcpyDtoDAsync_v2(values, kept, offered.len(), stream).result().unwrap();
        bucket.submit(cuda, values).unwrap();
        while bucket.next(cuda).unwrap().is_some() {}
    };
    cuda.synchronise().unwrap();
    if captured {
        assert_eq!(capture(stream, true), 0);
        step(cuda, &mut bucket);
        assert_eq!(capture(stream, false), 0);
    }
    let mut seen = Vec::new();
    for number in 1..=3 {
        if captured {
            assert!(replay(stream) > 2);
        } else {
            step(cuda, &mut bucket);
        }
        let outcome = bucket.outcome(cuda).unwrap();
        assert_eq!((outcome.step, outcome.failed), (number, 0), "{outcome:?}");
        let mut residuals = vec![0.0; elements];
        bucket.residuals(cuda, &mut residuals).unwrap();
        seen.push((bytes_at(values, offered.len()).to_vec(), residuals));
    }
    seen
}

#[test]
#[ignore = "needs the fake driver"]
fn buckets() {
    let (mut cuda, stream) = beside_a_trainer();
    let shape = Shape::new(61, 47).unwrap();
    let top = |values| Setting::TopK(TopK { keep: 90, values });
    let few = Setting::QuantisedTopK(QuantisedTopK { keep: 80, bits: 3 });
    let power = Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 });
    let all = [shape.elements() as u64];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for (settings, shards) in [
            (&[qsgd(4), Setting::Dense, power, top(Dtype::F32), few, top(Dtype::Bf16)][..], &[][..]),
            (&[qsgd(3), Setting::Dense, top(Dtype::F16), few], &all),
        ] {
            let layer = |(index, &setting)| DeviceLayer { index, shape, setting, shards };
            let layers: Vec<DeviceLayer<'_>> = (0..).zip(settings).map(layer).collect();
            for reduce_dtype in [Dtype::F32, Dtype::Bf16] {
                let config = ExchangeConfig { world: 1, dtype, reduce_dtype, ..ExchangeConfig::default() };
                let [one_by_one, replayed] =
                    [false, true].map(|captured| steps((&mut cuda, stream), &layers, config, captured));
                assert!(one_by_one == replayed, "{dtype:?}, {shards:?}, sums as {reduce_dtype:?}");
                assert!(
                    replayed[0] != replayed[1] && replayed[1] != replayed[2],
                    "each step has random words of its own"
                );
            }
        }
    }
}
