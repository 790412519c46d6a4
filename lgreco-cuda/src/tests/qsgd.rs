//! Tests QSGD's kernels: buckets that a block holds, data races, and planted bugs.

use super::simt::{Edit, Flavour, Simt, flavour};
use super::{ROWS, backend};
use crate::device::Part;
use crate::kernels::Module;
use crate::{CudaBackend, DeviceGradient, DeviceJob, Error};
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::{Candidates, Setting};
use lgreco::gradient::{Dtype, Gradient, with_elements};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_encode, check_rows};
use lgreco_testing::powersgd::uniform;
use std::panic::{AssertUnwindSafe, catch_unwind};

const WIDTHS: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];

/// Returns settings with every bucket size that a block can hold, and with every kind of grid and rounding.
fn fused_settings() -> impl Iterator<Item = Qsgd> {
    let sizes = (6..=12).map(|log| 1 << log);
    let kinds = [Scale::MaxNorm, Scale::MinMax].map(|scale| (scale, Rounding::Stochastic));
    let kinds = kinds.into_iter().chain([(Scale::MinMax, Rounding::Nearest), (Scale::MaxNorm, Rounding::Nearest)]);
    sizes.flat_map(move |bucket| kinds.clone().map(move |(scale, rounding)| Qsgd { bits: 3, bucket, scale, rounding }))
}

/// Returns a tensor whose magnitudes differ from bucket to bucket. In one range, all values have the same sign, so that
/// the intervals of some buckets exclude zero.
fn tensor(elements: usize) -> Tensor {
    let mut values = uniform(elements, 4);
    for (i, value) in values.iter_mut().enumerate() {
        *value *= 2f32.powi((i / 50 % 20) as i32 - 10);
        if i > elements / 2 {
            *value = value.abs() + 1e-3;
        }
    }
    Tensor::new(&values, elements, 1)
}

/// Returns the memory of a gradient. The simulated device's memory is the CPU's.
pub(super) fn part(gradient: &Gradient<'_>) -> Part {
    let bytes: &[u8] = with_elements!(gradient.values(), values => bytemuck::cast_slice(values));
    Part { address: bytes.as_ptr().expose_provenance() as u64, bytes: bytes.len() as u64 }
}

/// For bucket sizes that no kernel supports, the backend refuses gradients in device memory, and the core compresses
/// gradients in host memory.
#[test]
fn other_buckets_are_refused_or_left_to_the_core() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    let (tensor, stream) = (tensor(700), Stream::default());
    let gradient = tensor.gradients()[0];
    let on_device = DeviceGradient::of_part(part(&gradient), gradient.values().dtype(), gradient.shape());
    for bucket in [1, 32, 100, 8192] {
        let base = Qsgd { bucket, ..Qsgd::default() };
        let (setting, candidates) = (Setting::Qsgd(base), Candidates::Qsgd { base, bits: &[3] });
        assert!(!CudaBackend::takes(&setting, gradient.shape()));
        let job = DeviceJob { gradient: on_device, candidates, stream };
        let refused = backend.measure_device(&[job], &mut [0.0]).unwrap_err();
        assert!(refused.job == Some(0) && matches!(refused.error, Error::Method(_)), "{bucket}: {refused}");
        let refused = backend.encode_device(&setting, &on_device, stream, &mut vec![0; 10_000]).unwrap_err();
        assert!(matches!(refused, Error::Method(_)), "{bucket}: {refused}");
        let found = backend.rows_bytes(&[job]).unwrap_err();
        assert!(matches!(found.error, Error::Method(_)), "{bucket}: {found}");
        check_encode(&mut backend, &setting, &gradient, stream);
        check_rows(&mut backend, &[Job { gradient, candidates, stream }], 0.0);
    }
}

/// Tests layers that share launches, layers that do not, and a layer with a value that is not finite.
#[test]
fn layers_in_device_memory_share_launches() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    check_layers(&mut backend);
}

fn check_layers(backend: &mut CudaBackend) {
    let tensors: Vec<Tensor> = (1..30).map(|i| tensor(if i % 9 == 0 { 0 } else { i * 173 })).collect();
    let mut gradients: Vec<_> = tensors.iter().enumerate().map(|(i, tensor)| tensor.gradients()[i % 3]).collect();
    let candidates = |layer: usize| match layer {
        5 => Candidates::TopK { values: Dtype::F32, keeps: &[7, 70] },
        11 => Candidates::Qsgd { base: Qsgd::default(), bits: &[1, 3] },
        12 => Candidates::Qsgd { base: Qsgd { bucket: 128, ..Qsgd::default() }, bits: &[2, 4] },
        13 | 14 => Candidates::Qsgd { base: Qsgd::default(), bits: &[] },
        _ => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] },
    };
    let mut spoiled = uniform(900, 1);
    spoiled[77] = f32::INFINITY;
    let spoiled = Tensor::new(&spoiled, 900, 1);
    let stream = Stream::default();
    for round in 0..2 {
        if round == 1 {
            gradients[20] = spoiled.gradients()[0];
        }
        let jobs: Vec<Job<'_>> = (0..gradients.len())
            .map(|layer| Job { gradient: gradients[layer], candidates: candidates(layer), stream })
            .collect();
        let on_device: Vec<DeviceJob<'_>> = (0..gradients.len())
            .map(|layer| {
                let gradient = &gradients[layer];
                let dtype = gradient.values().dtype();
                let gradient = DeviceGradient::of_part(part(gradient), dtype, gradient.shape());
                DeviceJob { gradient, candidates: candidates(layer), stream }
            })
            .collect();
        let total = jobs.iter().map(|job| job.candidates.len()).sum();
        let (mut found, mut expected) = (vec![f64::NAN; total], vec![f64::NAN; total]);
        let outcome = backend.measure_device(&on_device, &mut found);
        let reference = Portable.measure(&jobs, &mut vec![0; Portable.workspace_len(&jobs)], &mut expected);
        match (outcome, reference) {
            (Ok(()), Ok(())) => {
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 10.0 * ROWS * b;
                assert!(round == 0 && found.iter().zip(&expected).all(near), "{found:?}, not {expected:?}");
            }
            (Err(found), Err(expected)) => {
                assert!(round == 1 && found.job == Some(20) && expected.job == Some(20), "{found}, not {expected}");
                assert_eq!(found.error, Error::Core(expected.error));
            }
            outcomes => panic!("{outcomes:?}"),
        }
    }
}

#[test]
fn every_bucket_that_a_block_holds_is_as_in_the_core() {
    let Some(mut backend) = backend(flavour(), 1) else { return };
    let tensor = tensor(29_001);
    let stream = Stream { seed: 5, step: 1, layer: 2, rank: 3 };
    for (number, base) in fused_settings().enumerate() {
        let gradient = tensor.gradients()[number % 3];
        check_encode(&mut backend, &Setting::Qsgd(Qsgd { bits: WIDTHS[number % 8], ..base }), &gradient, stream);
        let candidates = Candidates::Qsgd { base, bits: WIDTHS };
        check_rows(&mut backend, &[Job { gradient, candidates, stream }], ROWS);
    }
}

/// The kernels must find values that are not finite at any position of a bucket, and in an incomplete bucket.
#[test]
fn values_that_are_not_finite_are_found() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    for (at, value) in [(0, f32::NAN), (511, f32::INFINITY), (4096, f32::NEG_INFINITY), (5122, f32::NAN)] {
        let mut values = uniform(5123, 1);
        values[at] = value;
        let tensor = Tensor::new(&values, 5123, 1);
        let gradient = tensor.gradients()[0];
        for bucket in [64, 512, 4096] {
            let base = Qsgd { bucket, ..Qsgd::default() };
            check_encode(&mut backend, &Setting::Qsgd(base), &gradient, Stream::default());
            let candidates = Candidates::Qsgd { base, bits: WIDTHS };
            check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        }
    }
}

fn check(backend: &mut CudaBackend, bucket: u32) {
    let tensor = tensor(29_001);
    let gradient = tensor.gradients()[0];
    let base = Qsgd { bucket, ..Qsgd::default() };
    check_encode(backend, &Setting::Qsgd(base), &gradient, Stream::default());
    let candidates = Candidates::Qsgd { base, bits: &[2, 4] };
    check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
}

#[test]
fn no_kernel_has_a_data_race() {
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    for bucket in [64, 128, 256, 512, 1024, 4096] {
        check(&mut backend, bucket);
    }
    check_layers(&mut backend);
}

/// Returns the message with which [`check`] fails for an edited kernel.
fn said(flavour: Flavour, bucket: u32, from: &'static str, to: &'static str) -> Option<String> {
    let edit = Edit { module: Module::Qsgd, from, to };
    let mut backend = CudaBackend::on(Box::new(Simt::new(flavour, 0, Some(edit))?));
    let found = catch_unwind(AssertUnwindSafe(|| check(&mut backend, bucket)));
    let words = found.expect_err("a difference").downcast::<String>().expect("words");
    Some(backend.failure().map_or(*words, ToString::to_string))
}

#[test]
#[ignore = "slow"]
fn missing_barriers_are_found() {
    for (bucket, from, to) in [
        (256, "    meet(p);\n    u32 slot", "    u32 slot"),
        (256, "    meet(p);\n}", "}"),
        (512, "    __syncthreads();\n    sum = 0.0;", "    sum = 0.0;"),
    ] {
        let Some(said) = said(Flavour::Races, bucket, from, to) else { return };
        assert!(said.contains("race (") && said.contains("shared memory"), "{from}: {said}");
    }
    // If several warps share a bucket, a warp barrier is not enough.
    let Some(said) = said(Flavour::Races, 1024, "if (p.bucket > TILE) {", "if (false) {") else { return };
    assert!(said.contains("race (") && said.contains("shared memory"), "{said}");
}

#[test]
#[ignore = "slow"]
fn wrong_numbers_are_found() {
    for (bucket, from, to) in [
        (64, "min(p.bucket / 4, 32u)", "32"),
        (256, "held.extremes[slot] = Extremes{0, 0, 0};", ""),
        (4096, "(first & (p.bucket - 1)) == 0", "true"),
        (256, "span * SPAN >> Held::log_bucket(p)", "span * SPAN >> 9"),
        // The next edits change the kernels for the usual case. The edits affect the maximum over lanes, values at the
        // layer's end, the codes of four values and of the last eight values, and sums over lanes.
        (512, "Extremes{warp_max(largest), 0, 0}", "Extremes{largest, 0, 0}"),
        (512, "i < count ? value(all, dtype, i)", "i + 100 < count ? value(all, dtype, i)"),
        (512, "low | high << (4 * p.bits)", "low | high << (3 * p.bits)"),
        (512, "is_odd ? first - 4 + STRIP : first", "is_odd ? first - 4 : first"),
        (512, "(here * bits + 7) / 8", "here * bits / 8"),
        (512, "upper ? values[k] : values[k + places]", "values[k]"),
    ] {
        let Some(said) = said(Flavour::Plain, bucket, from, to) else { return };
        let differs = ["that differs", ", expected "].iter().any(|words| said.contains(words));
        assert!(differs, "{from}: {said}");
    }
}
