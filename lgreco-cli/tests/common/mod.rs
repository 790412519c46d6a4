//! Runs the command, and makes files for it.
#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Runs `lgreco` with `args` in the current folder.
pub fn lgreco(args: &[&str]) -> Output {
    lgreco_in(Path::new("."), args)
}

/// Runs `lgreco` with `args` in `folder`.
pub fn lgreco_in(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lgreco"));
    // Graphics drivers write to standard error if this variable is missing.
    command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    command.current_dir(folder).args(args).output().expect("lgreco starts")
}

/// Standard output of a run that must succeed and write nothing to standard error.
pub fn stdout(args: &[&str]) -> String {
    succeeded(lgreco(args), args)
}

/// Standard output of a run in `folder` that must succeed and write nothing to standard error.
pub fn stdout_in(folder: &Path, args: &[&str]) -> String {
    succeeded(lgreco_in(folder, args), args)
}

fn succeeded(output: Output, args: &[&str]) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{args:?}: {:?} {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Exit code and standard error of a run in `folder`. The run must fail, write one line to standard error, and write
/// nothing to standard output.
pub fn failure_in(folder: &Path, args: &[&str]) -> (i32, String) {
    let output = lgreco_in(folder, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    (output.status.code().expect("no signal"), stderr.trim_end().to_owned())
}

/// A tensor for [`safetensors`]: name, element type, dimensions, bytes.
pub type Tensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, dims, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).into(), serde_json::json!({"dtype": dtype, "shape": dims, "data_offsets": offsets}));
        data.extend_from_slice(bytes);
    }
    let header = serde_json::Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Little-endian bytes of f32 values that differ from layer to layer.
pub fn f32_bytes(elements: usize, seed: u32) -> Vec<u8> {
    let value = |i: usize| {
        let hash = (i as u32).wrapping_add(seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        let unit = (hash ^ hash >> 15).wrapping_mul(0xc2b2_ae35) as f32 / u32::MAX as f32 - 0.5;
        unit * unit * unit * (1.0 + seed as f32)
    };
    (0..elements).flat_map(|i| value(i).to_le_bytes()).collect()
}

/// A file with these bytes in a fresh folder.
pub fn file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// The names of methods.
pub const METHODS: [&str; 5] = ["qsgd", "eden", "topk", "powersgd", "hybrid"];

/// The JSON that a run prints.
pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// Asserts that a backend's table of the sample equals the CPU's table. Errors may differ by a relative 1e-4.
pub fn check_table(backend: &str, method: &str) {
    let table = |backend| json(&["measure", "--method", method, "--backend", backend, "--json", "-"]);
    let (mut found, mut expected) = (table(backend), table("cpu"));
    let errors = |table: &mut Value| -> Vec<f64> {
        let layers = table["layers"].as_array_mut().unwrap().iter_mut();
        let options = layers.flat_map(|layer| layer["options"].as_array_mut().unwrap());
        options.map(|option| option["error"].take().as_f64().unwrap()).collect()
    };
    let (errors, right) = (errors(&mut found), errors(&mut expected));
    assert_eq!(found, expected, "{method}: all but the errors");
    assert!(errors.iter().zip(&right).all(|(a, b)| (a - b).abs() <= 1e-4 * b), "{method}");
}

/// Reports a skipped check. Does not use `eprintln!`, because libtest captures its output.
pub fn skipped(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("standard error");
}
