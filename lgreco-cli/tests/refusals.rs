//! Tests of refused input and usage: exit code, and one line that names file, layer and problem.

mod common;

use common::{Tensor, f32_bytes, failure_in, file, lgreco, safetensors, stdout_in};

fn weight(name: &str) -> Tensor<'_> {
    (name, "F32", &[64, 64], f32_bytes(4096, 3))
}

fn refused(bytes: &[u8], words: &[&str]) {
    let (folder, _) = file("g.safetensors", bytes);
    for command in ["plan", "measure", "compare"] {
        let (code, line) = failure_in(folder.path(), &[command, "g.safetensors"]);
        assert_eq!(code, 2, "{line}");
        assert!(line.starts_with("lgreco: g.safetensors: "), "{line}");
        for word in words {
            assert!(line.contains(word), "{word}: {line}");
        }
    }
}

#[test]
fn files_that_are_no_gradients() {
    let good = safetensors(&[weight("fc.weight")]);
    refused(b"", &["empty"]);
    refused(&good[..5], &["not a safetensors file"]);
    refused(&good[..good.len() - 1], &["truncated"]);
    refused(b"PK\x03\x04 this is something else entirely", &["not a"]);
    refused(&safetensors(&[]), &["no tensors"]);
    let folder = tempfile::tempdir().unwrap();
    for path in ["missing.safetensors", "."] {
        let (code, line) = failure_in(folder.path(), &["plan", path]);
        assert_eq!(code, 2);
        assert!(line.starts_with(&format!("lgreco: {path}: ")), "{line}");
    }
}

#[test]
fn tensors_that_are_no_gradients() {
    let double = ("fc.weight", "F64", &[32, 32][..], vec![0; 8192]);
    refused(&safetensors(&[double]), &["layer `fc.weight`", "F64"]);
    let steps = ("steps", "I64", &[1][..], vec![0; 8]);
    refused(&safetensors(&[weight("fc.weight"), steps]), &["layer `steps`", "I64"]);
    let bias = ("fc.bias", "F32", &[4096][..], f32_bytes(4096, 1));
    refused(&safetensors(&[bias]), &["no layer to compress"]);
    refused(&safetensors(&[("w", "F32", &[0, 64][..], Vec::new())]), &["no layer to compress"]);
}

#[test]
fn numbers_that_are_not_finite() {
    for (value, written) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let mut bad = weight("b.weight");
        bad.3[4 * 77..4 * 78].copy_from_slice(&value.to_le_bytes());
        refused(&safetensors(&[weight("a.weight"), bad]), &["layer `b.weight`", "element 77", written]);
        let bias = ("a.bias", "F32", &[2][..], [1f32.to_le_bytes(), value.to_le_bytes()].concat());
        refused(&safetensors(&[weight("a.weight"), bias]), &["layer `a.bias`", "element 1", written]);
    }
}

#[test]
fn control_characters_in_names_stay_on_the_line() {
    let mut bad = weight("a\nb\u{1b}[31m");
    bad.3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    refused(&safetensors(&[bad]), &["a\\nb\\u{1b}[31m"]);
}

#[test]
fn tables_that_are_wrong() {
    let layer = |options: &str| {
        format!(
            r#"{{"version":1,"metric":"l2","layers":[{{"name":"fc1","elements":4,"default":0,"options":{options}}}]}}"#
        )
    };
    for (json, words) in [
        (String::new(), &[][..]),
        ("[1,2".into(), &[]),
        (r#"{"version":2,"metric":"l2","layers":[]}"#.into(), &["version"]),
        (r#"{"version":1,"metric":"l2","layers":[]}"#.into(), &["no layers"]),
        (r#"{"version":1,"metric":"l2","bugdet":1,"layers":[]}"#.into(), &["`bugdet`", "`budget`", "x-"]),
        (layer("[]"), &["fc1"]),
        (layer(r#"[{"label":"x","size":-8,"error":1}]"#), &["fc1", "option 0", "size"]),
        (layer(r#"[{"label":"x","size":8,"error":-1}]"#), &["fc1", "option 0", "error"]),
        (layer(r#"[{"label":"x","size":8}]"#), &["fc1", "option 0", "error"]),
        (layer(r#"[{"label":"x","size":8,"error":1}]"#).replace(r#""default":0"#, r#""default":7"#), &["fc1"]),
        (layer(r#"[{"label":"x","size":8,"error":1}]"#).replace(r#""default":0,"#, ""), &["no budget"]),
    ] {
        let (folder, _) = file("table.json", json.as_bytes());
        let (code, line) = failure_in(folder.path(), &["solve", "table.json"]);
        assert_eq!(code, 2, "{line}");
        for word in [&["lgreco: table.json: "], words].concat() {
            assert!(line.contains(word), "{word}: {line}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    stdout_in(folder.path(), &["plan", "--json", "plan.json"]);
    let (code, line) = failure_in(folder.path(), &["solve", "plan.json"]);
    assert!(code == 2 && line == "lgreco: plan.json: this is a plan, expected a table", "{line}");
    let (code, line) = failure_in(folder.path(), &["solve", "missing.json"]);
    assert!(code == 2 && line.contains("missing.json"), "{line}");
}

#[test]
fn an_infeasible_budget_is_told_with_the_smallest_error() {
    let folder = tempfile::tempdir().unwrap();
    let (code, line) = failure_in(folder.path(), &["plan", "--budget", "0"]);
    assert_eq!(code, 1);
    assert!(line.contains("infeasible") && line.contains("smallest achievable error is "), "{line}");
    let (_, there) = line.split_once("smallest achievable error is ").unwrap();
    let (smallest, there) = there.split_once(", with a size of ").unwrap();
    let (size, smallest_plan) = there.split_once("; the smallest plan has ").unwrap();
    assert!(smallest_plan.contains(" bits, with an error of "), "{line}");
    let within = stdout_in(folder.path(), &["plan", "--budget", smallest]);
    assert!(within.replace(',', "").contains(size), "{size}: {within}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_standard_output_is_a_failure() {
    for args in
        [&["--help"][..], &["plan", "--help"], &["--version"], &["devices"], &["plan"], &["plan", "--json", "-"]]
    {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lgreco"));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command.args(args).env("XDG_RUNTIME_DIR", std::env::temp_dir()).stdout(full).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {told}");
        assert!(told.starts_with("lgreco: standard output: ") && told.lines().count() == 1, "{args:?}: {told}");
    }
}

#[test]
fn results_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--json", "--plot"] {
        let (code, line) = failure_in(folder.path(), &["plan", flag, "no/such/folder/file"]);
        assert_eq!(code, 1);
        assert!(line.contains("no/such/folder/file"), "{line}");
    }
}

#[test]
#[cfg(unix)]
fn nothing_is_written_over_the_input_or_another_result() {
    let gradients = safetensors(&[weight("fc.weight")]);
    let (folder, path) = file("g.safetensors", &gradients);
    std::os::unix::fs::symlink("g.safetensors", folder.path().join("link")).unwrap();
    for (args, flag) in [
        (&["plan", "g.safetensors", "--json", "./g.safetensors"][..], "--json"),
        (&["plan", "g.safetensors", "--plot", "link"], "--plot"),
        (&["plan", "g.safetensors", "--json", "out", "--plot", "./out"], "--plot"),
        (&["measure", "link", "--json", "g.safetensors"], "--json"),
        (&["compare", "g.safetensors", "--json", "g.safetensors"], "--json"),
        (&["solve", "g.safetensors", "--json", "g.safetensors"], "--json"),
    ] {
        let (code, line) = failure_in(folder.path(), args);
        assert!(code == 2 && line.contains(flag) && line.contains("overwrite"), "{line}");
        assert_eq!(std::fs::read(&path).unwrap(), gradients);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_multiplies_or_is_uniform_needs_defaults_even_where_the_table_has_a_budget() {
    let table = r#"{"version":1,"metric":"l2","budget":1,"layers":[{"name":"a","elements":4,"options":
        [{"label":"x","size":8,"error":1}]}]}"#;
    let (folder, _) = file("table.json", table.as_bytes());
    for (flag, value) in [("--alpha", "2"), ("--budget", "uniform"), ("--size", "uniform")] {
        let (code, line) = failure_in(folder.path(), &["solve", "table.json", flag, value]);
        assert!(code == 2 && line.contains(flag) && line.contains("default in every layer"), "{line}");
    }
}

#[test]
fn the_help_says_by_which_code_a_backend_is_missed() {
    let help = stdout_in(tempfile::tempdir().unwrap().path(), &["--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, codes) = help.split_once("Exit codes: ").unwrap();
    let (no_result, bad_input) = codes.split_once("; 2 bad usage").unwrap();
    assert!(no_result.contains("the backend's driver or device is missing"), "{codes}");
    assert!(bad_input.contains("a backend that is not part of this build"), "{codes}");
}

#[test]
fn requests_that_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    for (args, word) in [
        (&["plan", "--default", "9"][..], "bits"),
        (&["plan", "--default", "2.5"], "bits"),
        (&["plan", "--method", "topk", "--default", "150%"], "density"),
        (&["plan", "--method", "powersgd", "--default", "0"], "rank"),
        (&["plan", "--range", "8..2"], "range"),
        (&["plan", "--range", "2..8:0"], "step"),
        (&["plan", "--levels", "10"], "--solver dp"),
        (&["plan", "--budget", "3", "--alpha", "2"], "--alpha"),
        (&["plan", "--size", "99999", "--alpha", "2"], "--alpha"),
    ] {
        let (code, line) = failure_in(folder.path(), args);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains(word), "{word}: {line}");
    }
    for (args, words) in [
        (&["optimise"][..], &["optimise"][..]),
        (&["plan", "--method", "zip"], &["--method", "zip", "topk"]),
        #[cfg(not(feature = "cuda"))]
        (&["plan", "--backend", "cuda"], &["--backend", "cuda", "in lgreco's sources", "--features cuda"]),
        #[cfg(not(feature = "wgpu"))]
        (&["plan", "--backend", "wgpu"], &["--backend", "wgpu", "in lgreco's sources", "--features wgpu"]),
        (&["plan", "--budget", "nan"], &["--budget", "nan"]),
        (&["plan", "--alpha", "-1"], &["--alpha", "-1"]),
        (&["plan", "--budget", "-3.5"], &["--budget", "-3.5"]),
        (&["plan", "--budget", "-inf"], &["--budget", "-inf", "expected `uniform` or a finite number >= 0"]),
        (&["plan", "--budget", "1e999"], &["--budget", "1e999", "finite"]),
        (&["plan", "--budget", ""], &["--budget", "expected `uniform` or a finite"]),
        (&["compare", "--alpha", "-nan"], &["--alpha", "-nan", "expected a finite number >= 0"]),
        (&["plan", "--default", "-inf"], &["--default", "-inf", "expected a finite number such as"]),
        (&["plan", "--range", "-2..8:-inf"], &["--range", "-2..8:-inf", "expected a finite number"]),
        (&["plan", "--min-elements", "-1"], &["--min-elements", "-1", "expected an integer from 0"]),
        (&["plan", "--min-elements", "1.5"], &["--min-elements", "1.5", "expected an integer from 0"]),
        (&["plan", "--levels", "-inf"], &["--levels", "-inf", "expected an integer from 1 to 10000000"]),
        (&["plan", "--solver", "dp", "--levels", "0"], &["--levels", "0"]),
        (&["plan", "--solver", "dp", "--levels", "4000000000"], &["--levels", "4000000000", "10000000"]),
        (&["compare", "--levels", "10000001"], &["--levels"]),
        (&["plan", "--range", "2-8"], &["--range", "2-8"]),
        (&["plan", "--plot", "-"], &["--plot", "standard output"]),
        (&["plan", "--plot", "x.png"], &["--plot", "x.png", "drawn as SVG alone", ".svg"]),
        (&["solve", "table.json", "--plot", "x.pdf"], &["--plot", "x.pdf", "drawn as SVG alone", ".svg"]),
        (&["plan", "--method", "a\nb\u{1b}"], &["--method"]),
        (&["compare", "--default", "4"], &["--method"]),
        (&["solve"], &["TABLE"]),
        (&["plan", "--size", "8", "--budget", "1"], &["--size", "--budget", "cannot be used with"]),
        (&["solve", "table.json", "--budget", "1", "--size", "8"], &["--size", "--budget", "cannot be used with"]),
        (&["compare", "--size", "uniform", "--budget", "uniform"], &["--size", "--budget", "cannot be used with"]),
    ] {
        let (code, line) = failure_in(folder.path(), args);
        assert!(code == 2 && line.starts_with("lgreco: ") && !line.contains("error:"), "{line}");
        assert!(words.iter().all(|word| line.contains(word)) && !line.contains('\u{1b}'), "{line}");
    }
    let without_command = lgreco(&[]);
    assert_eq!(without_command.status.code(), Some(2));
    assert!(without_command.stdout.is_empty() && String::from_utf8_lossy(&without_command.stderr).contains("Usage"));
}
