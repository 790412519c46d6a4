//! Tests of the picture of a plan.

mod common;

use common::{METHODS, Tensor, f32_bytes, file, safetensors, stdout_in};
use lgreco::file::PlanFile;
use std::path::Path;

/// All texts of the SVG that a run in `folder` draws.
fn texts(folder: &Path, args: &[&str]) -> Vec<String> {
    stdout_in(folder, &[args, &["--plot", "plan.svg"]].concat());
    let svg = std::fs::read_to_string(folder.join("plan.svg")).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect()
}

/// The picture of the README, and the command's output on the documentation page, must be up to date.
#[test]
fn the_documentation_shows_this_plan() {
    let folder = tempfile::tempdir().unwrap();
    let printed = stdout_in(folder.path(), &["plan", "--plot", "plan.svg"]);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src");
    let page = std::fs::read_to_string(docs.join("start/command-line.md")).unwrap();
    for line in printed.lines().filter(|line| !line.starts_with("time ")) {
        assert!(page.contains(line), "docs/src/start/command-line.md lacks the line: {line}");
    }
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let same = read(&folder.path().join("plan.svg")) == read(&docs.join("pictures/plan.svg"));
    assert!(same, "the picture is old: cargo run --release -- plan --plot docs/src/pictures/plan.svg");
}

#[test]
fn every_layer_is_drawn_with_its_setting() {
    let folder = tempfile::tempdir().unwrap();
    for method in METHODS {
        let args = ["plan", "--method", method, "--json", "plan.json"];
        let texts = texts(folder.path(), &args);
        let plan = PlanFile::parse(&std::fs::read(folder.path().join("plan.json")).unwrap()).unwrap();
        for layer in &plan.layers {
            assert!(texts.contains(&layer.name), "{method}: {}", layer.name);
            assert!(texts.contains(&layer.label), "{method}: {}", layer.label);
        }
        for word in ["Size", "this plan", "default setting", "Error against size"] {
            assert!(texts.iter().any(|text| text == word), "{method}: {word}");
        }
    }
}

#[test]
fn what_names_and_numbers_can_be_at_worst_is_drawn() {
    let long = "a".repeat(100);
    let tensors: Vec<Tensor<'_>> = vec![
        ("<b>&\"\u{1}", "F32", &[64, 64], vec![0; 16384]),
        (&long, "F32", &[64, 64], vec![0; 16384]),
        ("scaled", "F32", &[64, 64], f32_bytes(4096, 1)),
    ];
    for tensors in [&tensors[..2], &tensors] {
        let (folder, _) = file("g.safetensors", &safetensors(tensors));
        for (method, budget) in METHODS.into_iter().flat_map(|method| [(method, "uniform"), (method, "1e3")]) {
            let texts = texts(folder.path(), &["plan", "g.safetensors", "--method", method, "--budget", budget]);
            assert!(texts.iter().any(|text| text == "<b>&\"\\u{1}"), "{texts:?}");
            assert!(texts.iter().any(|text| text.contains("aaaa…aaaa")), "{texts:?}");
        }
    }
}

#[test]
fn a_table_without_defaults_is_drawn() {
    let table = r#"{"version":1, "metric":"mine", "budget":0, "layers":[
        {"name":"a", "elements":0, "options":[{"label":"off","size":0,"error":0}]}]}"#;
    let (folder, _) = file("table.json", table.as_bytes());
    for budget in ["0", "1"] {
        let texts = texts(folder.path(), &["solve", "table.json", "--budget", budget]);
        assert!(texts.contains(&"off".to_owned()) && !texts.contains(&"default setting".to_owned()));
    }
}
