//! Schemes side by side.

mod common;

use common::{METHODS, failure_in, stdout};
use serde_json::Value;
use std::collections::BTreeMap;

fn compare(args: &[&str]) -> Vec<Value> {
    let json = stdout(&[&["compare"], args, &["--json", "-"]].concat());
    let Value::Array(comparisons) = serde_json::from_str::<Value>(&json).unwrap()["comparisons"].take() else {
        panic!("{json}");
    };
    comparisons
}

#[test]
fn every_method_is_compared_and_the_proved_optimum_is_smallest() {
    let comparisons = compare(&[]);
    let methods: Vec<_> = comparisons.iter().map(|c| c["method"].as_str().unwrap()).collect();
    assert_eq!(methods, METHODS);
    for comparison in &comparisons {
        let schemes = comparison["schemes"].as_array().unwrap();
        let sizes: BTreeMap<&str, u64> =
            schemes.iter().map(|s| (s["scheme"].as_str().unwrap(), s["size"].as_u64().unwrap())).collect();
        assert_eq!(sizes["uniform"], comparison["default_size"].as_u64().unwrap());
        assert_eq!(sizes.contains_key("k-means"), comparison["method"] != "hybrid");
        assert_eq!(sizes.contains_key("global top-k"), comparison["method"] == "topk");
        let exact = schemes.iter().find(|s| s["scheme"] == "exact").unwrap();
        assert_eq!(exact["proven"], true);
        for scheme in schemes {
            assert_eq!(scheme["within_budget"], true, "{scheme}");
            assert!(exact["size"].as_u64() <= scheme["size"].as_u64(), "{scheme}");
        }
        assert!(sizes["dp"] <= sizes["uniform"]);
    }
}

#[test]
fn the_hybrid_has_the_budget_of_uniform_qsgd_and_needs_fewer_bits() {
    let comparisons = compare(&[]);
    let of = |method: &str| comparisons.iter().find(|c| c["method"] == method).unwrap();
    let (qsgd, hybrid) = (of("qsgd"), of("hybrid"));
    assert_eq!(qsgd["budget"], hybrid["budget"]);
    let exact = |c: &Value| {
        let schemes = c["schemes"].as_array().unwrap();
        schemes.iter().find(|s| s["scheme"] == "exact").unwrap()["size"].as_u64().unwrap()
    };
    assert!(exact(hybrid) < exact(qsgd));
}

#[test]
fn a_scheme_over_the_budget_is_shown_as_such() {
    let args = ["--method", "qsgd", "--alpha", "0.5"];
    let comparisons = compare(&args);
    let uniform = &comparisons[0]["schemes"][0];
    assert_eq!((uniform["scheme"].as_str(), uniform["within_budget"].as_bool()), (Some("uniform"), Some(false)));
    let report = stdout(&[&["compare"][..], &args].concat());
    let line = report.lines().find(|line| line.contains("uniform")).unwrap();
    assert!(line.contains("200.00 % (over)"), "{line}");
}

#[test]
fn one_method_alone_takes_its_options() {
    let base = compare(&["--method", "topk"]);
    let finer = compare(&["--method", "topk", "--default", "2%", "--range", "0.5%..4%"]);
    assert_eq!(base.len(), 1);
    assert!(finer[0]["budget"].as_f64() < base[0]["budget"].as_f64());
    let dp = |c: &[Value]| {
        c[0]["schemes"].as_array().unwrap().iter().find(|s| s["scheme"] == "dp").unwrap()["size"].as_u64()
    };
    assert!(dp(&compare(&["--method", "topk", "--levels", "40"])) > dp(&base));
}

#[test]
fn an_infeasible_method_does_not_hide_the_others() {
    let args = ["--alpha", "0.1"];
    let comparisons = compare(&args);
    assert_eq!(comparisons.len(), METHODS.len());
    let (feasible, infeasible): (Vec<_>, Vec<_>) = comparisons.iter().partition(|c| c["feasible"] == true);
    assert!(!feasible.is_empty() && !infeasible.is_empty());
    assert!(feasible.iter().all(|c| c["smallest_error"].is_null() && c["schemes"].as_array().unwrap().len() > 2));
    let report = stdout(&[&["compare"][..], &args].concat());
    for comparison in infeasible {
        let (method, smallest) = (comparison["method"].as_str().unwrap(), comparison["smallest_error"].to_string());
        assert!(comparison["smallest_error"].as_f64() > comparison["budget"].as_f64());
        assert_eq!(comparison["schemes"].as_array().unwrap().len(), 1);
        let words = ["infeasible", "smallest error", &smallest];
        let line = report.lines().find(|line| line.starts_with(method) && line.contains("infeasible")).unwrap();
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        stdout(&["plan", "--method", method, "--budget", &smallest]);
    }
}

#[test]
fn with_nothing_feasible_there_is_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let (code, line) = failure_in(folder.path(), &["compare", "--alpha", "0"]);
    assert!(code == 1 && line.contains("qsgd: infeasible") && line.contains("topk: infeasible"), "{line}");
}
