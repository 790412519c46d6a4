//! Tests data in workgroup memory: histograms in which several bins share a slot, and tiles of values. Also plants
//! faults.

use super::{ROWS, backend, check_payload, skipped};
use crate::WgpuBackend;
use crate::kernels::Shader;
use lgreco::backend::Job;
use lgreco::compress::{Candidates, Setting, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_rows};
use lgreco_testing::powersgd::uniform;

/// Returns values with magnitudes twelve binades apart, whose bins share a slot. The magnitudes alternate in runs of
/// different lengths.
fn sharing(elements: usize) -> Vec<f32> {
    let values = uniform(elements, 21).into_iter().enumerate();
    let shared = |(i, x): (usize, f32)| {
        let binade = [0, 12, 24, 12, 0][i / 700 % 5] - 12 * i32::from(i % 3 == 0);
        x.signum() * (1.0 + x.abs() / 3.0) * 2f32.powi(-binade)
    };
    values.map(shared).collect()
}

#[test]
fn bins_that_share_a_place_lose_nothing() {
    let Some(mut backend) = backend() else { return };
    check(&mut backend);
}

fn check(backend: &mut WgpuBackend) {
    let (rows, cols) = (250, 200);
    // Equal magnitudes fill one bin of every level. Above the cut, the sum of their rounding errors exceeds 32 bits.
    let mut equal = vec![0.3; rows * cols];
    let same = equal.clone();
    equal.iter_mut().step_by(10).zip(uniform(rows * cols, 22)).for_each(|(x, small)| *x = 0.01 * small);
    for values in [sharing(rows * cols), same, equal] {
        let tensor = Tensor::new(&values, rows, cols);
        let keeps = [1, 100, 9000, 9001, 30_000, 49_999];
        for (gradient, values) in tensor.gradients().into_iter().zip([Dtype::F16, Dtype::F32, Dtype::Bf16]) {
            for keep in keeps {
                check_payload(backend, &Setting::TopK(TopK { keep, values }), &gradient, Stream::default());
            }
            let candidates = Candidates::TopK { values, keeps: &keeps };
            check_rows(backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        }
    }
}

/// Checks QSGD's payloads with buckets within a workgroup, across workgroups, and of few values.
fn check_tiles(backend: &mut WgpuBackend) {
    let tensor = Tensor::new(&uniform(61 * 83, 5), 61, 83);
    for gradient in tensor.gradients() {
        for (bits, bucket) in [(4, 512), (3, 5000), (8, 7)] {
            let setting = Setting::Qsgd(Qsgd { bits, bucket, ..Qsgd::default() });
            check_payload(backend, &setting, &gradient, Stream::default());
        }
    }
}

#[test]
#[ignore = "slow"]
fn faults_in_workgroups_memory_are_found() {
    if backend().is_none() {
        return;
    }
    let tallies: fn(&mut WgpuBackend) = check;
    for (shader, check, text, fault) in [
        (Shader::TopK, tallies, "(there >> COUNT_BITS) != bin + 1u", "false"),
        (
            Shader::TopK,
            tallies,
            "let upper = x.y + u32(before + x.x < before);\n    if (upper != 0u)",
            "let upper = x.y;\n    if (upper != 0u)",
        ),
        (Shader::TopK, tallies, "add_to_bin(tally.bin, tally.count,", "add_to_bin(tally.bin, 1u,"),
        (Shader::TopK, tallies, "sum_before(lane, sum);\n    for (var i", "vec2<u32>(0u, 0u);\n    for (var i"),
        (Shader::Qsgd, check_tiles, "raise(buckets.x + lane,", "raise(buckets.x,"),
        (Shader::Qsgd, check_tiles, "atomicMax(&tops[at], largest);", ""),
        (Shader::Qsgd, check_tiles, "* ROW) + i % params.bits", "* ROW)"),
        (Shader::Qsgd, check_tiles, "widened(word >> 16u)", "widened(word & 0xffffu)"),
    ] {
        check_finds(check, (shader, text, fault));
    }
}

/// Asserts that `check` fails on shaders with this fault.
fn check_finds(check: fn(&mut WgpuBackend), (shader, text, fault): (Shader, &'static str, &'static str)) {
    let found = std::panic::catch_unwind(|| {
        let mut backend = backend().expect("the device there was before");
        backend.gpu().kernels.edit(shader, text, fault);
        check(&mut backend);
    });
    let message = found.expect_err(&format!("not found: {text}"));
    let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(!message.contains("Device") && !message.contains("nothing to edit"), "{text}: {message}");
}

/// The fault would stay hidden if wgpu cleared workgroup memory first. The backend turns this clearing off, because on
/// Metal a single lane would do it. On llvmpipe, the memory has the content of another workgroup; with other drivers,
/// it may be zeros.
#[test]
#[ignore = "slow"]
fn a_histogram_that_is_not_cleared_is_found() {
    let Some(backend) = backend() else { return };
    let name = backend.device().adapter_info().name;
    if !name.contains("llvmpipe") {
        return skipped(&format!("{name} may clear workgroup memory by itself: histograms that are not cleared"));
    }
    check_finds(check, (Shader::TopK, "        atomicStore(&tallies[i], 0u);", ""));
}
