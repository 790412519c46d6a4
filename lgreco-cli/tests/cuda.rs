//! Tests of `--backend cuda`: it gives the CPU's table, or says in one line why it cannot. If `LGRECO_GPU` is `cuda`,
//! there must be a device. The step `on-device` of `tests/run` imitates a device.

mod common;

use common::{json, lgreco, stdout};
use std::process::Command;

/// Whether there is a CUDA device. Without a device, prints a note, or fails if `LGRECO_GPU` demands a device.
/// (`LGRECO_REQUIRE=cuda` is for the kernels' own tests, which need no device.)
fn device() -> bool {
    let devices = stdout(&["devices"]);
    let found = devices.lines().any(|line| line.starts_with("cuda   available: "));
    if !found {
        assert!(std::env::var("LGRECO_GPU").as_deref() != Ok("cuda"), "LGRECO_GPU is cuda, but {devices}");
        common::skipped("no CUDA device; the step on-device of tests/run imitates one");
    }
    found
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "needs --features cuda")]
fn tables_are_those_of_the_cpu() {
    if device() {
        common::METHODS.iter().for_each(|method| common::check_table("cuda", method));
        let size =
            |backend| json(&["plan", "--method", "hybrid", "--backend", backend, "--json", "-"])["size"].as_f64();
        let (found, expected) = (size("cuda").unwrap(), size("cpu").unwrap());
        assert!((found - expected).abs() <= 1e-3 * expected, "{found} bits, {expected} on the cpu");
    }
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "needs --features cuda")]
fn without_a_device_there_is_a_reason() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lgreco"));
        command.args(args).env("CUDA_VISIBLE_DEVICES", "-1").output().unwrap()
    };
    let output = run(&["plan", "--backend", "cuda"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty() && stderr.contains("--backend cuda: no "), "{stderr}");
    let devices = String::from_utf8(run(&["devices"]).stdout).unwrap();
    assert!(devices.contains("cuda   not available: no "), "{devices}");
    assert!(lgreco(&["plan", "--backend", "cpu"]).status.success());
}
