//! Tests of groups, fixed settings and the frontier on the command line.

mod common;

use common::{failure_in, file, json, stdout, stdout_in};
use lgreco::file::PlanFile;
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn a_star_stands_for_the_same_text_in_all_names_of_a_group() {
    let layer = |name: &str, error: u32| {
        format!(
            r#"{{"name":"{name}","elements":10,"options":[{{"label":"a=1","size":8,"error":0}},
            {{"label":"b","size":4,"error":{error}}}]}}"#
        )
    };
    let layers = [layer("0.q", 1), layer("0.k", 9), layer("1.q", 1), layer("1.k", 1), layer("head", 1)].join(",");
    let folder = file("table.json", format!(r#"{{"version":1,"metric":"l2","layers":[{layers}]}}"#).as_bytes()).0;
    assert_eq!(labels(&folder, &["--budget", "4"]), ["b", "a=1", "b", "b", "b"]);
    assert_eq!(labels(&folder, &["--budget", "4", "--group", "*.q,*.k"]), ["a=1", "a=1", "b", "b", "b"]);
    assert_eq!(labels(&folder, &["--budget", "9", "--fix", "*.q=a=1"]), ["a=1", "a=1", "a=1", "b", "b"]);
    let (code, line) = failure_in(folder.path(), &["solve", "table.json", "--group", "*.q,*.v", "--budget", "4"]);
    assert_eq!((code, &*line), (2, "lgreco: table.json: --group: layer `*.v`: the table has no such layer"));
    let (code, line) = failure_in(folder.path(), &["solve", "table.json", "--group", "*.q,1*k", "--budget", "4"]);
    assert_eq!((code, &*line), (2, "lgreco: table.json: --group: `*.q,1*k`: where * is `.`, a layer is missing"));
    let (code, line) = failure_in(folder.path(), &["solve", "table.json", "--group", "*.q,*.q", "--budget", "4"]);
    assert_eq!((code, &*line), (2, "lgreco: table.json: --group: layer `0.q` is there twice"));
}

/// A table with three layers. If `tied` is set, two of the layers are a group.
fn table(tied: bool) -> TempDir {
    let group = if tied { r#""group":"tied","# } else { "" };
    let options = r#""options":[{"label":"qsgd 8","setting":"qsgd 8","size":80,"error":0},
        {"label":"half","setting":"qsgd 4","size":40,"error":1},{"label":"qsgd 2","size":20,"error":3}]"#;
    let layer = |name: &str, group: &str| format!(r#"{{"name":"{name}","elements":10,"default":1,{group}{options}}}"#);
    let layers = [layer("embed", group), layer("head", group), layer("fc", "")].join(",");
    file("table.json", format!(r#"{{"version":1,"metric":"l2","layers":[{layers}]}}"#).as_bytes()).0
}

fn labels(folder: &TempDir, more: &[&str]) -> Vec<String> {
    let plan = stdout_in(folder.path(), &[&["solve", "table.json", "--json", "-"], more].concat());
    let plan = PlanFile::parse(plan.as_bytes()).unwrap();
    assert!(plan.proven);
    plan.layers.into_iter().map(|layer| layer.label).collect()
}

#[test]
fn groups_and_fixed_settings_are_kept() {
    for budget in ["5.5", "6.5", "7.5"] {
        let in_file = labels(&table(true), &["--budget", budget]);
        let asked = labels(&table(false), &["--budget", budget, "--group", "embed,head"]);
        assert_eq!((&in_file, &in_file[0]), (&asked, &in_file[1]), "{budget}");
        assert_ne!(in_file, labels(&table(false), &["--budget", budget, "--group", "head,fc"]), "{budget}");
    }
    // `--fix` names the option by its setting, not by its label. The group of the table and the group of `--group`
    // share a layer, so they become one group. The budget includes the fixed layer.
    let all = labels(&table(true), &["--budget", "9", "--group", "head,fc", "--fix", "fc=qsgd 4"]);
    assert_eq!(all, ["half", "half", "half"]);
    let fixed = labels(&table(false), &["--budget", "4", "--fix", "fc=qsgd 2", "--fix", "head=qsgd 8"]);
    assert_eq!(fixed, ["half", "qsgd 8", "qsgd 2"]);
    let all = labels(&table(false), &["--budget", "9", "--fix", "*=qsgd 2"]);
    assert_eq!(all, ["qsgd 2"; 3]);
    let (code, line) = failure_in(table(true).path(), &["solve", "table.json", "--budget", "2", "--fix", "fc=qsgd 2"]);
    let told = "infeasible: the error budget is 2, the smallest achievable error is 3, with a size of 180 bits; the smallest \
                plan has 60 bits, with an error of 9 (within the groups and fixed options)";
    assert!(code == 1 && line.ends_with(told), "{line}");
}

#[test]
fn plans_of_gradients_keep_them_too() {
    let least = ["plan", "--method", "qsgd", "--budget", "uniform", "--json", "-"];
    let free: Value = json(&least);
    let names: Vec<&str> =
        free["layers"].as_array().unwrap().iter().map(|layer| layer["name"].as_str().unwrap()).collect();
    let (group, fix) = (names[..3].join(","), format!("{}=qsgd 8", names[4]));
    let plan = json(&[&least[..], &["--group", &group, "--fix", &fix]].concat());
    let label = |plan: &Value, layer: usize| plan["layers"][layer]["label"].as_str().unwrap().to_owned();
    assert!((1..3).all(|layer| label(&plan, layer) == label(&plan, 0)) && plan["proven"] == true);
    assert!((1..3).any(|layer| label(&free, layer) != label(&free, 0)), "the group asks for nothing");
    assert!(label(&plan, 4) == "qsgd 8" && label(&free, 4) != "qsgd 8");
    assert!(plan["size"].as_u64() > free["size"].as_u64() && plan["budget"] == free["budget"]);
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("p.svg");
    stdout(&["plan", "--group", &group, "--plot", svg.to_str().unwrap()]);
    assert!(svg.exists());
}

#[test]
fn constraints_that_cannot_be_met_name_the_layer() {
    let folder = table(true);
    for (args, told) in [
        (&["--group", "embed,nose"][..], "table.json: --group: layer `nose`: the table has no such layer"),
        (&["--fix", "nose=half"], "table.json: --fix: layer `nose`: the table has no such layer"),
        (
            &["--fix", "fc=qsgd 3"],
            "table.json: --fix: layer `fc`: no option is `qsgd 3`; it has `qsgd 8`, `half`, `qsgd 2`",
        ),
        (&["--fix", "fc=half", "--fix", "fc=qsgd 2"], "table.json: --fix: layer `fc` is there twice"),
        (
            &["--fix", "embed=half", "--fix", "head=qsgd 2"],
            "table.json: layer `head`: none of its options is shared by all layers of its group, the first of which is layer \
             0, counted from 0; compare their labels and fixed options",
        ),
    ] {
        for more in [&[][..], &["--frontier"]] {
            let (code, line) = failure_in(folder.path(), &[&["solve", "table.json"], args, more].concat());
            assert_eq!((code, line), (2, format!("lgreco: {told}")));
        }
    }
    for (args, words) in [
        (&["--group", "embed"][..], &["--group", "two layers or more"][..]),
        (&["--fix", "embed"], &["--fix", "LAYER=SETTING"]),
        (&["--frontier=1"], &["--frontier", "from 2 to 10000"]),
        (&["--frontier", "--budget", "3"], &["--frontier", "--budget", "cannot be used with"]),
        (&["--frontier", "--plot", "x.svg"], &["--frontier", "--plot", "cannot be used with"]),
        (&["--frontier", "--solver", "dp"], &["--frontier", "--solver exact"]),
    ] {
        let (code, line) = failure_in(folder.path(), &[&["solve", "table.json"], args].concat());
        assert!(code == 2 && words.iter().all(|word| line.contains(word)), "{line}");
    }
}

#[test]
fn the_frontier_is_printed_and_written() {
    let folder = table(true);
    let text = stdout_in(folder.path(), &["solve", "table.json", "--frontier", "--fix", "fc=half", "--json", "-"]);
    let value: Value = serde_json::from_str(&text).unwrap();
    let points = value["points"].as_array().unwrap();
    let found = points.iter().map(|point| (point["size"].as_u64().unwrap(), point["error"].as_f64().unwrap()));
    assert_eq!(found.collect::<Vec<_>>(), [(80, 7.0), (120, 3.0), (200, 1.0)]);
    assert_eq!(points[1]["options"], serde_json::json!([1, 1, 1]));
    assert_eq!(points[0]["labels"], serde_json::json!(["qsgd 2", "qsgd 2", "half"]));
    assert_eq!(value["layers"], serde_json::json!(["embed", "head", "fc"]));
    assert_eq!((&points[1]["size_lower_bound"], points[1]["error_lower_bound"].as_f64()), (&120.into(), Some(3.0)));
    assert!(value["complete"] == true && points.iter().all(|point| point["proven"] == true));

    let report = stdout_in(folder.path(), &["solve", "table.json", "--frontier=2"]);
    assert!(report.contains("2 points, their sizes spread by equal factors: there are more"), "{report}");
    assert_eq!(report.matches("proven").count(), 2, "{report}");
    let report = stdout_in(folder.path(), &["solve", "table.json", "--frontier", "--json", "out.json"]);
    assert!(report.contains("the whole frontier") && report.contains("1.00× smaller"), "{report}");
    let written = std::fs::read(folder.path().join("out.json")).unwrap();
    let count = serde_json::from_slice::<Value>(&written).unwrap()["points"].as_array().unwrap().len();
    assert!(report.contains(&format!("{count} points: ")) && count > 3, "{report}");
}

#[test]
fn settings_of_outside_compressors_are_kept_as_text() {
    let table = |first: &str| {
        let options = format!(
            r#"[{{"label":"a","setting":"{first}","size":80,"error":0}},{{"label":"b","setting":"mine 3","size":40,"error":1}},
            {{"label":"c","setting":"other 2 0.25","size":30,"error":2}},{{"label":"d","setting":"other 1 7","size":20,"error":4}}]"#
        );
        let layer = |name: &str| format!(r#"{{"name":"{name}","elements":10,"default":1,"options":{options}}}"#);
        let layers = [layer("fc1"), layer("fc2")].join(",");
        file("table.json", format!(r#"{{"version":1,"metric":"l2","layers":[{layers}]}}"#).as_bytes()).0
    };
    let settings = |args: &[&str]| -> Vec<String> {
        let text = stdout_in(table("qsgd 8").path(), &[&["solve", "table.json", "--json", "-"], args].concat());
        let plan: Value = serde_json::from_str(&text).unwrap();
        plan["layers"].as_array().unwrap().iter().map(|layer| layer["setting"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(settings(&["--budget", "2"]), ["mine 3", "mine 3"]);
    assert_eq!(settings(&["--budget", "4", "--fix", "fc1=qsgd 8"]), ["qsgd 8", "other 1 7"]);
    assert_eq!(settings(&["--budget", "8", "--fix", "fc1=other 2 0.25"]), ["other 2 0.25", "other 1 7"]);
    let report = stdout_in(table("qsgd 8").path(), &["solve", "table.json", "--frontier"]);
    assert!(report.contains("the whole frontier"), "{report}");
    for (wrong, told) in [("qsgd 99", "bits"), ("Mine 3", "Mine"), ("mine 3 4", "expected"), ("dense 1", "expected")] {
        let (code, line) = failure_in(table(wrong).path(), &["solve", "table.json"]);
        assert!(code == 2 && line.contains("layer 0 (`fc1`), option ") && line.contains(told), "{line}");
    }
}
