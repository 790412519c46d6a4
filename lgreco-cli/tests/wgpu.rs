//! Tests of `--backend wgpu`: it gives the CPU's table and plan, or says in one line why it cannot.

mod common;

use common::{failure_in, file, json, lgreco, safetensors, stdout};
use std::process::Command;

/// Whether there is a wgpu adapter. Without an adapter, prints a note, or fails if `LGRECO_REQUIRE` names wgpu.
fn adapter() -> bool {
    let devices = stdout(&["devices"]);
    let found = devices.lines().any(|line| line.starts_with("wgpu   available: "));
    if !found {
        let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == "wgpu"), "LGRECO_REQUIRE, but {devices}");
        common::skipped("no adapter; LGRECO_REQUIRE=wgpu makes that a failure");
    }
    found
}

#[test]
#[cfg_attr(not(feature = "wgpu"), ignore = "needs --features wgpu")]
fn tables_are_those_of_the_cpu() {
    if adapter() {
        common::METHODS.iter().for_each(|method| common::check_table("wgpu", method));
    }
}

#[test]
#[cfg_attr(not(feature = "wgpu"), ignore = "needs --features wgpu")]
fn plans_are_made_and_compared() {
    if !adapter() {
        return;
    }
    let size = |backend| json(&["plan", "--method", "hybrid", "--backend", backend, "--json", "-"])["size"].clone();
    let (found, expected) = (size("wgpu").as_f64().unwrap(), size("cpu").as_f64().unwrap());
    assert!((found - expected).abs() <= 1e-3 * expected, "{found} bits, {expected} on the cpu");
    for command in ["plan", "measure"] {
        let of = |backend| {
            stdout(&[command, "--method", "qsgd", "--backend", backend])
                .lines()
                .any(|line| line.starts_with("device memory"))
        };
        assert!(of("wgpu") && !of("cpu"), "{command}");
    }
    assert!(stdout(&["compare", "--method", "topk", "--backend", "wgpu"]).contains("exact"));
}

#[test]
#[cfg_attr(not(feature = "wgpu"), ignore = "needs --features wgpu")]
fn what_a_device_cannot_do_is_said_of_the_layer() {
    if !adapter() {
        return;
    }
    let tensor = |name, dims: &'static [usize]| (name, "BF16", dims, vec![0; 2 * dims.iter().product::<usize>()]);
    let tensors = [tensor("fc.weight", &[64, 64]), tensor("embedding.weight", &[5_000_000, 1])];
    let (folder, _) = file("g.safetensors", &safetensors(&tensors));
    let args = ["plan", "g.safetensors", "--method", "powersgd", "--backend", "wgpu"];
    let (code, line) = failure_in(folder.path(), &args);
    let expected = "lgreco: g.safetensors: layer `embedding.weight`: PowerSGD with a side above 4,194,304, a rank \
                    above 1024, or a P of more than 2^31 values does not run on wgpu devices";
    assert_eq!((code, line.as_str()), (1, expected));
}

#[test]
#[cfg_attr(not(feature = "wgpu"), ignore = "needs --features wgpu")]
fn without_a_driver_there_is_a_reason() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lgreco"));
        command.args(args).env("WGPU_BACKEND", "vulkan").env("VK_ICD_FILENAMES", "/nowhere.json");
        command.env("VK_DRIVER_FILES", "/nowhere.json").output().unwrap()
    };
    let output = run(&["plan", "--backend", "wgpu"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty() && stderr.contains("--backend wgpu: no GPU to be used"), "{stderr}");
    let devices = String::from_utf8(run(&["devices"]).stdout).unwrap();
    assert!(devices.contains("wgpu   not available: no adapter found"), "{devices}");
    assert!(lgreco(&["plan", "--backend", "cpu"]).status.success());
}
