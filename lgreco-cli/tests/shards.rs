//! Tests of a model in several files.

mod common;

use common::{METHODS, Tensor, f32_bytes, failure_in, safetensors, stdout_in};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

fn tensors() -> Vec<Tensor<'static>> {
    ["a.weight", "b.weight", "c.bias", "d.weight"]
        .into_iter()
        .zip(1..)
        .map(|(name, seed)| {
            let dims: &[usize] = if name.ends_with("bias") { &[5] } else { &[64, 48] };
            (name, "F32", dims, f32_bytes(dims.iter().product(), seed))
        })
        .collect()
}

fn write(folder: &Path, name: &str, tensors: &[Tensor<'_>]) {
    std::fs::write(folder.join(name), safetensors(tensors)).unwrap();
}

fn index(folder: &Path, name: &str, layers: &[(&str, &str)]) {
    let layers: serde_json::Map<String, Value> =
        layers.iter().map(|(layer, file)| ((*layer).into(), (*file).into())).collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": layers});
    std::fs::write(folder.join(name), index.to_string()).unwrap();
}

const INDEX: &str = "model.safetensors.index.json";
const LAYERS: [(&str, &str); 4] = [
    ("d.weight", "2.safetensors"),
    ("a.weight", "1.safetensors"),
    ("b.weight", "1.safetensors"),
    ("c.bias", "2.safetensors"),
];

/// A folder with the model in two files in `m`, and in the single file `whole.safetensors`.
fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let shards = folder.path().join("m");
    std::fs::create_dir(&shards).unwrap();
    let tensors = tensors();
    write(folder.path(), "whole.safetensors", &tensors);
    write(&shards, "1.safetensors", &tensors[..2]);
    write(&shards, "2.safetensors", &tensors[2..]);
    folder
}

#[test]
fn files_of_a_model_are_measured_as_one() {
    let folder = model();
    let shards = folder.path().join("m");
    for method in METHODS {
        let table = |path| stdout_in(folder.path(), &["measure", path, "--method", method, "--json", "-"]);
        let whole = table("whole.safetensors");
        assert_eq!(table("m"), whole, "{method}: a folder");
        index(&shards, INDEX, &LAYERS);
        write(&shards, "other.safetensors", &[("x", "F64", &[1], vec![0; 8])]);
        write(&shards, "._1.safetensors", &[]);
        assert_eq!(table("m"), whole, "{method}: a folder with an index");
        assert_eq!(table("m/model.safetensors.index.json"), whole, "{method}: an index");
        std::fs::remove_file(shards.join(INDEX)).unwrap();
        std::fs::remove_file(shards.join("other.safetensors")).unwrap();
    }
    assert!(stdout_in(&shards, &["plan", "."]).contains("d.weight"));
}

#[test]
fn errors_name_file_and_layer() {
    let folder = model();
    let shards = folder.path().join("m");
    let refused = |words: &[&str]| {
        let (code, line) = failure_in(folder.path(), &["plan", "m"]);
        assert_eq!(code, 2, "{line}");
        for word in words {
            assert!(line.contains(word), "{word}: {line}");
        }
    };
    // An error about a layer names the layer's file.
    let mut bad = tensors();
    bad[3].3[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    write(&shards, "2.safetensors", &bad[2..]);
    refused(&["m/2.safetensors: layer `d.weight`: element 100 is NaN"]);
    write(&shards, "2.safetensors", &[("d.weight", "F64", &[1], vec![0; 8])]);
    refused(&["m/2.safetensors: layer `d.weight`: element type is F64"]);
    std::fs::write(shards.join("2.safetensors"), &safetensors(&tensors()[2..])[..1000]).unwrap();
    refused(&["m/2.safetensors: ", "truncated"]);
    write(&shards, "2.safetensors", &tensors()[1..]);
    refused(&["m/2.safetensors: layer `b.weight` is in m/1.safetensors too"]);

    write(&shards, "2.safetensors", &tensors()[2..]);
    let listed = |layers: &[(&str, &str)]| index(&shards, INDEX, layers);
    listed(&[&LAYERS[..], &[("e.weight", "3.safetensors")]].concat());
    refused(&["m/3.safetensors: ", "listed in m/model.safetensors.index.json"]);
    listed(&[&LAYERS[..], &[("e.weight", "2.safetensors")]].concat());
    refused(&["m/2.safetensors: the file has no layer `e.weight`, which m/model.safetensors.index.json has in it"]);
    listed(&LAYERS[1..]);
    refused(&["m/2.safetensors: layer `d.weight` is not in the index m/model.safetensors.index.json"]);
    listed(&[("d.weight", "1.safetensors"), LAYERS[1], LAYERS[2], LAYERS[3]]);
    refused(&["m/2.safetensors: layer `d.weight` is here", "has it in m/1.safetensors"]);
    for outside in ["../whole.safetensors", "/etc/passwd", ""] {
        listed(&[("a.weight", outside)]);
        refused(&["m/model.safetensors.index.json: layer `a.weight`: the file is ", outside, "without `..`"]);
    }
    listed(&[]);
    refused(&["m/model.safetensors.index.json: the index lists no layers"]);
    for (text, words) in [
        (r#"{"weight_map":{"a":"1","a":"2"}}"#, "layer `a` is in the index twice"),
        (r#"{"weights":{}}"#, "not an index (missing field `weight_map`"),
        ("", "not an index (EOF"),
    ] {
        std::fs::write(shards.join(INDEX), text).unwrap();
        refused(&["m/model.safetensors.index.json: ", words]);
    }
    listed(&LAYERS);
    index(&shards, "other.safetensors.index.json", &LAYERS);
    refused(&["m: two indices, m/model.safetensors.index.json and m/other.safetensors.index.json"]);
    let empty = tempfile::tempdir().unwrap();
    let (code, line) = failure_in(empty.path(), &["plan", "."]);
    assert_eq!((code, line.as_str()), (2, "lgreco: .: the folder holds no .safetensors file"));
}

#[test]
#[cfg(unix)]
fn no_file_of_a_model_is_written_over() {
    let folder = model();
    for command in ["plan", "measure", "compare"] {
        let (code, line) = failure_in(folder.path(), &[command, "m", "--json", "m/2.safetensors"]);
        assert!(code == 2 && line.contains("--json m/2.safetensors would overwrite the input"), "{line}");
    }
    index(&folder.path().join("m"), INDEX, &LAYERS);
    let kept = std::fs::read(folder.path().join("m").join(INDEX)).unwrap();
    let path = format!("m/{INDEX}");
    std::os::unix::fs::symlink(&path, folder.path().join("picture.svg")).unwrap();
    let results = [
        ("plan", "--json", &*path),
        ("plan", "--plot", "picture.svg"),
        ("measure", "--json", &path),
        ("compare", "--json", &path),
    ];
    for model in ["m", &path] {
        for (command, flag, result) in results {
            let (code, line) = failure_in(folder.path(), &[command, model, flag, result]);
            assert!(code == 2 && line.contains(&format!("{flag} {result} would overwrite the input")), "{line}");
        }
    }
    assert_eq!(std::fs::read(folder.path().join(&path)).unwrap(), kept);
}

/// The model is several times larger than the memory that the command may use. The command needs memory only for its
/// largest layers.
#[test]
#[cfg(target_os = "linux")]
fn memory_is_bounded_by_the_largest_layers() {
    use std::process::Command;
    const LAYERS: usize = 48;
    let folder = tempfile::tempdir().unwrap();
    let (rows, columns) = (2048, 4096); // 16 MiB of bf16
    let bytes = 2 * rows * columns;
    let layer = |i: usize| {
        // Most tensors have one dimension, so the command measures only a few.
        let dims = if i.is_multiple_of(8) { format!("[{rows},{columns}]") } else { format!("[{}]", rows * columns) };
        format!(r#""w{i}":{{"dtype":"BF16","shape":{dims},"data_offsets":[{},{}]}}"#, i * bytes, (i + 1) * bytes)
    };
    let header = format!("{{{}}}", (0..LAYERS).map(layer).collect::<Vec<_>>().join(","));
    let path = folder.path().join("sparse.safetensors");
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((8 + header.len() + LAYERS * bytes) as u64).unwrap(); // zeros that take no space on the disk
    let limited = |kilobytes: usize| {
        let mut command = Command::new("sh");
        let script = format!("ulimit -v {kilobytes} && exec \"$0\" plan sparse.safetensors --json -");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_lgreco")]).current_dir(folder.path());
        command.env("RAYON_NUM_THREADS", "2").env("MALLOC_ARENA_MAX", "1").output().unwrap()
    };
    let whole = LAYERS * bytes / 1024; // 768 MiB
    let output = limited(whole / 4);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["layers"].as_array().unwrap().len(), LAYERS / 8);
    // With too little memory, the command reports an error and does not crash.
    let output = limited(60 * 1024);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("memory"), "{told}");
}
