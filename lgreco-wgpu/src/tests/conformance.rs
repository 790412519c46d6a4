//! Runs the core's conformance suite, with the adapter's limits and with small limits.

use super::is_full;
use super::poison::pairs;
use super::{ROWS, backend, cut, skipped, with};
use crate::WgpuBackend;
use lgreco::backend::{Backend, Job};
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting, eden::Eden, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::backend::{
    check_batches, check_dense, check_eden, check_powersgd, check_qsgd, check_quantised_topk, check_topk, tensors,
};
use lgreco_testing::hostile::{Products, check_decoding};
use lgreco_testing::settings::SETTINGS;
use std::path::Path;
use wgpu::Features;

/// `LGRECO_ADAPTER` names the adapter that must have been selected, by a part of its name. The check matters on
/// machines with several drivers.
#[test]
fn the_adapter_is_the_one_that_was_asked_for() {
    let (Ok(asked), Some(backend)) = (std::env::var("LGRECO_ADAPTER"), backend()) else { return };
    let found = backend.device().adapter_info().name;
    assert!(found.contains(&asked), "{found}, not {asked}");
}

#[test]
fn dense() {
    let Some(mut backend) = backend() else { return };
    check_dense(&mut backend);
}

#[test]
fn qsgd() {
    let Some(mut backend) = backend() else { return };
    check_qsgd(&mut backend, ROWS);
}

#[test]
fn topk() {
    let Some(mut backend) = backend() else { return };
    check_topk(&mut backend, ROWS);
}

#[test]
fn quantised_topk() {
    let Some(mut backend) = backend() else { return };
    check_quantised_topk(&mut backend, ROWS);
}

#[test]
fn powersgd() {
    let Some(mut backend) = backend() else { return };
    check_powersgd(&mut backend, ROWS);
}

#[test]
fn eden() {
    let Some(mut backend) = backend() else { return };
    check_eden(&mut backend, ROWS);
}

#[test]
fn batches() {
    let Some(mut backend) = backend() else { return };
    check_batches(&mut backend, ROWS, true);
}

/// The limits are below WebGPU's defaults, so that tensors, payloads and factors exceed bindings and dispatches. The
/// device has no optional features. Each method has a shorter test of such limits, mostly in `splitting`.
#[test]
#[ignore = "slow"]
fn small_limits() {
    let Some(mut backend) = cut() else { return };
    check_qsgd(&mut backend, ROWS);
    check_topk(&mut backend, ROWS);
    check_quantised_topk(&mut backend, ROWS);
    check_powersgd(&mut backend, ROWS);
    check_eden(&mut backend, ROWS);
    check_batches(&mut backend, ROWS, true);
}

/// Returns the bits of rows, payloads and decoded values of a gradient.
fn everything(backend: &mut WgpuBackend, gradient: Gradient<'_>) -> Vec<u64> {
    let stream = Stream { seed: 5, ..Stream::default() };
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let elements = shape.elements() as u32;
    let job = |candidates| Job { gradient, candidates, stream };
    let keeps = [1, elements / 100, elements / 10, elements / 2].map(|keep| keep.max(1));
    let mut bits = Vec::new();
    for candidates in [
        Candidates::Qsgd { base: Qsgd::default(), bits: &[1, 2, 4, 8] },
        Candidates::TopK { values: Dtype::Bf16, keeps: &keeps },
        Candidates::QuantisedTopK { keeps: &keeps, bits: &[1, 3, 8] },
        Candidates::PowerSgd { iterations: 2, ranks: &[1, 3, 20] },
        Candidates::Eden { base: Eden::default(), bits: &[1, 3, 8] },
    ] {
        let mut row = vec![f64::NAN; candidates.len()];
        bits.extend(match backend.measure(&[job(candidates)], &mut [], &mut row) {
            Ok(()) => row.into_iter().map(f64::to_bits).collect(),
            Err(_) => vec![u64::MAX],
        });
    }
    for setting in [
        Setting::Qsgd(Qsgd::default()),
        Setting::TopK(TopK { keep: keeps[1], values: Dtype::F32 }),
        Setting::TopK(TopK { keep: keeps[3], values: Dtype::F16 }),
        Setting::QuantisedTopK(QuantisedTopK { keep: keeps[3], bits: 5 }),
        Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 }),
        Setting::Eden(Eden::default()),
    ] {
        let mut payload = vec![0; setting.payload_len(shape, dtype).unwrap()];
        if backend.encode(&setting, &gradient, stream, &mut [], &mut payload).is_err() {
            bits.push(u64::MAX);
            continue;
        }
        let mut values = vec![f32::NAN; elements as usize];
        backend.decode(&payload, &mut values).unwrap();
        bits.extend(payload.into_iter().map(u64::from));
        bits.extend(values.into_iter().map(|value| u64::from(value.to_bits())));
    }
    bits
}

#[test]
fn all_settings_that_it_takes_are_encoded() {
    let Some(mut backend) = backend() else { return };
    let values: Vec<f32> = (0..96).map(|i| (i as f32).sin()).collect();
    let gradient = Gradient::new(Values::F32(&values), Shape::new(8, 12).unwrap()).unwrap();
    for setting in SETTINGS.iter().filter(|setting| **setting != Setting::Dense) {
        let mut payload = vec![0; setting.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        let encoded = backend.encode(setting, &gradient, Stream::default(), &mut [], &mut payload);
        assert_eq!(encoded.is_ok(), WgpuBackend::takes(setting), "{setting}: {encoded:?}");
    }
}

#[test]
fn subgroups_change_no_bit() {
    let (Some(mut with), Some(mut without)) = (backend(), with(Features::empty())) else {
        return;
    };
    if !with.device().features().contains(Features::SUBGROUP) {
        return skipped("the adapter has no subgroups");
    }
    for (number, tensor) in tensors().into_iter().enumerate() {
        // Full runs test each tensor in all types. Other runs test each tensor in one type.
        let gradients = tensor.gradients().into_iter().enumerate();
        for (_, gradient) in gradients.filter(|(of, _)| is_full() || *of == number % 3) {
            let (found, expected) = (everything(&mut with, gradient), everything(&mut without, gradient));
            assert!(found == expected, "{:?}", gradient.shape());
        }
    }
}

/// Runs with subgroups and without.
#[test]
fn shaders_read_no_workgroup_memory_before_they_write_it() {
    // Tensors of one workgroup, of several workgroups, and with magnitudes far apart.
    let some = |number: &usize| is_full() || [3, 8, 11, 12].contains(number);
    for [mut filled, mut plain] in pairs() {
        for (_, tensor) in tensors().into_iter().enumerate().filter(|(number, _)| some(number)) {
            let gradient = tensor.gradients()[0];
            let (found, expected) = (everything(&mut filled, gradient), everything(&mut plain, gradient));
            assert!(found == expected, "{:?}, {:?}", filled.device().features(), gradient.shape());
        }
    }
}

#[test]
fn damaged_payloads_are_decoded_or_refused_as_by_the_core() {
    let Some(mut backend) = backend() else { return };
    let check = |step| {
        let stream = Stream { seed: 19, step, ..Stream::default() };
        let bytes: Vec<u8> = (0..40).map(|i| (stream.word(i) >> 24) as u8).collect();
        check_decoding(&bytes, &mut backend, Products::Rounded)
    };
    let good = (0..1000).map(check).filter(|&good| good).count();
    assert!((100..900).contains(&good), "{good} of 1000 payloads were decoded");
    let decoded = backend.gpu().decoded;
    assert!(decoded > 100, "only {decoded} of them by the shaders");
}

/// Decodes the seeds of this backend's fuzz test, which include inputs that failed in the past.
#[test]
fn seeds_of_fuzzing_are_decoded_or_refused_as_by_the_core() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/gpu/seeds/gpu_wgpu");
    if !seeds.try_exists().unwrap() {
        let reason = format!("{} is not there: packages do not hold it", seeds.display());
        return skipped(&reason);
    }
    let Some(mut backend) = backend() else { return };
    let mut checked = 0;
    for entry in seeds.read_dir().unwrap() {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display()); // printed if the check fails
        check_decoding(&std::fs::read(&path).unwrap(), &mut backend, Products::Rounded);
        checked += 1;
    }
    assert!(checked >= 20, "{checked} seeds in {}", seeds.display());
    assert!(backend.gpu().decoded > 0, "the device has decoded none of them");
}
