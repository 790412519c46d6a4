//! Every file in `tests/golden/` must have the same meaning as when it was added. A `.txt` file beside each `.json` file
//! lists its contents, one fact per line, with floats as the hex digits of their bits. Python's reader wrote the `.txt`
//! files. `controller/golden.rs` tests the saved states.

use lgreco_train::compress::decode;
use lgreco_train::file::{PlanFile, TableFile};
use lgreco_train::plan::{self, Solver, budget::Budget};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
/// The number of files in each version's folder. No file is ever removed.
const FILES: [(&str, usize); 1] = [("v0.1", 23)];
const PAYLOADS: usize = 64;

fn files() -> Vec<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mut versions: Vec<PathBuf> = entries(Path::new(FOLDER));
    versions.sort();
    let counts: Vec<(String, usize)> = versions
        .iter()
        .map(|folder| (folder.file_name().unwrap().to_str().unwrap().to_string(), entries(folder).len()))
        .collect();
    assert_eq!(counts, FILES.map(|(version, count)| (version.to_string(), count)));
    versions.iter().flat_map(|folder| entries(folder)).collect()
}

/// The files `KIND-*.json`, each with the text of its `.txt` file.
fn of_kind(kind: &str) -> Vec<(PathBuf, Vec<u8>, String)> {
    let is_of_kind = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(kind) && name.ends_with(".json")
    };
    let read = |path: PathBuf| {
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        (path.clone(), fs::read(&path).unwrap(), expected)
    };
    let found: Vec<_> = files().into_iter().filter(is_of_kind).map(read).collect();
    assert!(found.len() >= 3, "{kind}: {found:?}");
    found
}

fn bits(value: f64) -> String {
    format!("{:016x}", value.to_bits())
}

fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or("-".into(), text)
}

#[track_caller]
fn assert_lines(path: &Path, found: Vec<String>, expected: &str) {
    let expected: Vec<&str> = expected.lines().collect();
    assert_eq!(found, expected, "{}", path.display());
}

#[test]
fn tables_are_read_as_they_always_were() {
    for (path, json, expected) in of_kind("table") {
        let file = TableFile::parse(&json).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let table = &file.table;
        let mut lines = vec![format!("metric {}", table.metric()), format!("budget {}", or_dash(file.budget, bits))];
        for (layer, options) in table.view().iter().enumerate() {
            lines.push(format!("layer {}", table.name(layer)));
            let uncompressed = or_dash(table.uncompressed_size(layer), |size| size.to_string());
            let default = or_dash(table.default_option(layer), |option| option.to_string());
            lines.push(format!("elements {} uncompressed {uncompressed} default {default}", table.elements(layer)));
            for (option, choice) in options.iter().enumerate() {
                let (error, label) = (bits(choice.error), table.label(layer, option));
                lines.push(format!("size {} error {error} label {label}", choice.size));
            }
        }
        assert_lines(&path, lines, &expected);
    }
}

#[test]
fn plans_are_read_as_they_always_were() {
    for (path, json, expected) in of_kind("plan") {
        let plan = PlanFile::parse(&json).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let default = or_dash(plan.default_size, |size| size.to_string());
        let seconds = |value| or_dash(value, bits);
        let mut lines = vec![
            format!("solver {}", plan.solver),
            format!("size {} lower_bound {} proven {}", plan.size, bits(plan.lower_bound), plan.proven),
            format!("error {} budget {}", bits(plan.error), or_dash(plan.budget, bits)),
            format!("uncompressed {} default {default}", plan.uncompressed_size),
            format!("measure {} solve {}", seconds(plan.seconds.measure), seconds(plan.seconds.solve)),
        ];
        for layer in &plan.layers {
            lines.push(format!("layer {}", layer.name));
            let error = bits(layer.error);
            lines.push(format!("option {} size {} error {error} label {}", layer.option, layer.size, layer.label));
            lines.extend(layer.setting.map(|setting| format!("setting {setting:?}")));
        }
        assert_lines(&path, lines, &expected);
    }
}

/// The optimum of a table does not depend on the solver's version.
#[test]
fn the_golden_plan_is_still_the_optimum_of_the_golden_table() {
    let read = |name: &str| fs::read(format!("{FOLDER}/v0.1/{name}")).unwrap();
    let table = TableFile::parse(&read("table-qsgd.json")).unwrap().table;
    let golden = PlanFile::parse(&read("plan-exact.json")).unwrap();
    let plan = plan::solve(&table.view(), Budget::from(golden.summary().limit()), Solver::default()).unwrap();
    assert!(golden.proven && plan.summary().proven());
    assert_eq!(plan.summary().size, golden.size);
    let sizes = |plan: &PlanFile| plan.layers.iter().map(|layer| layer.size).sum::<u64>();
    assert_eq!(sizes(&golden), golden.size);
}

#[derive(Deserialize)]
struct Case {
    name: String,
    dtype: String,
    values: Vec<String>,
    setting: Method,
    payload: String,
    decoded: Vec<String>,
}

#[derive(Deserialize)]
struct Method {
    method: String,
}

/// Decoded values must be equal bit for bit. Only PowerSGD's values may differ, by 1e-5 of the largest value, because
/// PowerSGD's sums may be in any order.
#[test]
fn payloads_are_read_as_they_always_were() {
    let mut methods = BTreeSet::new();
    let mut count = 0;
    for path in files().into_iter().filter(|path| path.file_name().unwrap() == "payloads.json") {
        let cases: Vec<Case> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        count += cases.len();
        for case in &cases {
            let digits = case.payload.as_bytes().chunks(2);
            let payload: Vec<u8> =
                digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
            let word = |hex: &String| f32::from_bits(u32::from_str_radix(hex, 16).unwrap());
            let expected: Vec<f32> = case.decoded.iter().map(word).collect();
            let mut decoded = vec![f32::NAN; case.values.len()];
            decode(&payload, &mut decoded).unwrap_or_else(|error| panic!("{} ({}): {error}", case.name, case.dtype));
            if case.setting.method == "powersgd" {
                let largest = expected.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
                let apart = decoded.iter().zip(&expected).map(|(a, b)| (a - b).abs());
                assert!(apart.fold(0.0, f32::max) <= 1e-5 * largest, "{}", case.name);
            } else {
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&decoded), bits(&expected), "{}", case.name);
            }
            methods.insert(case.setting.method.clone());
        }
    }
    assert!(count >= PAYLOADS, "{count} payloads");
    let all = [
        "adacomp",
        "cltk",
        "dense",
        "eden",
        "hardthreshold",
        "loco",
        "powersgd",
        "qsgd",
        "quantisedtopk",
        "sidco",
        "topk",
    ];
    assert!(methods.iter().eq(&all), "{methods:?}");
}
