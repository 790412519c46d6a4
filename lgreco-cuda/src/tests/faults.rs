//! Tests that the kernels have no data races and no memory errors, and that the checks find planted races and errors.

use super::simt::{Edit, Flavour, Simt, flavour};
use super::{ROWS, backend, unavailable};
use crate::CudaBackend;
use crate::kernels::Module;
use lgreco::backend::{Backend, Job, JobError};
use lgreco::compress::{Candidates, qsgd::Qsgd};
use lgreco::gradient::Gradient;
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_dense, check_qsgd, check_rows};
use lgreco_testing::powersgd::uniform;
use std::process::{Command, Output};

#[test]
fn no_kernel_has_a_data_race() {
    // For the race check, the order of threads does not matter, because the check only asks whether a barrier lies
    // between two accesses.
    let Some(mut backend) = backend(Flavour::Races, 0) else { return };
    check_dense(&mut backend);
    check_qsgd(&mut backend, ROWS);
}

/// Runs tests of this program in another process, under the sanitizers' library. `None` if there is no such library.
fn under_sanitizers(arguments: &[&str]) -> Option<Output> {
    let library = Command::new("g++").arg("-print-file-name=libasan.so").output();
    let path = library.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    // If g++ does not find the library, g++ prints the name without a folder.
    let Some(path) = path.filter(|path| path.contains('/')) else {
        unavailable("no g++ with an address sanitizer");
        return None;
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).env("LGRECO_SIMT", "sanitized").env("LD_PRELOAD", path);
    Some(command.env("ASAN_OPTIONS", "detect_leaks=0").output().unwrap())
}

/// The tests that run under the sanitizers.
const SANITIZED: [&str; 29] = [
    "tests::conformance",
    "tests::exchange::payloads",
    "tests::exchange_sums::many",
    "tests::exchange_topk::payloads",
    "tests::window::means",
    "tests::topk::payloads_do",
    "tests::exchange::faults",
    "tests::exchange_faults::faults",
    "tests::exchange_topk::damaged",
    "tests::exchange_eden::damaged",
    "tests::exchange_eden::payloads",
    "tests::exchange_damage::damaged",
    "tests::exchange_shards::what",
    "tests::bucket::means",
    "tests::bucket::so_they",
    "tests::bucket::other",
    "tests::bucket::a_",
    "tests::space::failures",
    "tests::space::means",
    "tests::space::powersgds",
    "tests::space::so_they",
    "tests::orders::what_is_gathered",
    "tests::sample::what_may",
    "tests::memory",
    "tests::few_bits",
    "tests::qsgd::layers",
    "tests::eden::every_width",
    "tests::eden::damaged",
    "tests::orthonormal::more",
];

#[test]
#[ignore = "slow"]
fn the_suites_pass_under_the_sanitizers() {
    let Some(output) = under_sanitizers(&SANITIZED) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let passed: Vec<&str> =
        text.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok")).collect();
    for suite in SANITIZED {
        assert!(passed.iter().any(|test| test.contains(suite)), "no test of {suite} has run: {text}");
    }
}

/// Returns a backend with an edited kernel.
fn edited(flavour: Flavour, module: Module, from: &'static str, to: &'static str) -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(flavour, 0, Some(Edit { module, from, to }))?)))
}

fn tensor() -> Tensor {
    Tensor::new(&uniform(61 * 47, 1), 61, 47)
}

fn job<'a>(gradient: Gradient<'a>) -> Job<'a> {
    // With buckets of 1024 values, several warps share a bucket.
    let candidates = Candidates::Qsgd { base: Qsgd { bucket: 1024, ..Qsgd::default() }, bits: &[2, 4] };
    Job { gradient, candidates, stream: Stream::default() }
}

fn rows(backend: &mut CudaBackend) -> Result<[f64; 2], JobError> {
    let tensor = tensor();
    let mut rows = [0.0; 2];
    backend.measure(&[job(tensor.gradients()[0])], &mut [], &mut rows).map(|()| rows)
}

#[test]
fn a_missing_barrier_is_found() {
    for (module, barrier, next) in [
        (Module::Qsgd, "    __syncthreads();\n    sum = 0.0;", "    sum = 0.0;"),
        (Module::Qsgd, "    __syncthreads();\n    if (threadIdx.x == 0) {", "    if (threadIdx.x == 0) {"),
    ] {
        let Some(mut backend) = edited(Flavour::Races, module, barrier, next) else { return };
        assert!(rows(&mut backend).is_err());
        let said = backend.failure().expect("a failure").to_string();
        assert!(said.contains("race (") && said.contains("shared memory"), "{said}");
    }
}

#[test]
fn an_atomic_left_out_is_found() {
    let (from, to) = ("atomicMax(&extremes[bucket].largest, own.largest);", "extremes[bucket].largest = own.largest;");
    let Some(mut backend) = edited(Flavour::Races, Module::Qsgd, from, to) else { return };
    assert!(rows(&mut backend).is_err());
    let said = backend.failure().expect("a failure").to_string();
    assert!(said.contains("race (write-write"), "{said}");
}

#[test]
fn a_wrong_stride_is_found() {
    let edit = ("quads[j * (STRIP / 4)]", "quads[j * (STRIP / 8)]");
    let Some(mut backend) = edited(flavour(), Module::Qsgd, edit.0, edit.1) else { return };
    let tensor = tensor();
    let check = || check_rows(&mut backend, &[job(tensor.gradients()[0])], ROWS);
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).expect_err("rows that differ");
    let said = found.downcast::<String>().expect("words");
    assert!(said.contains("job 0, candidate 0"), "{said}");
}

#[test]
#[ignore = "slow"]
fn a_write_out_of_bounds_is_found() {
    let Some(output) = under_sanitizers(&["--ignored", "--exact", "tests::faults::out_of_bounds"]) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("heap-buffer-overflow") && said.contains("fused_row"), "{said}");
}

/// A kernel writes out of bounds. This test runs only in the process that another test starts.
#[test]
#[ignore = "writes where it must not"]
fn out_of_bounds() {
    if flavour() != Flavour::Sanitized {
        return;
    }
    let (from, to) = ("* 8 + threadIdx.x] = sum;", "* 8 + threadIdx.x + 8] = sum;");
    if let Some(mut backend) = edited(flavour(), Module::Qsgd, from, to) {
        rows(&mut backend).ok();
    }
}
