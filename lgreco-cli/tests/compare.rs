//! Tests of `lgreco compare`.

mod common;

use common::{METHODS, failure_in, json, stdout};
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
    let comparisons = compare(&["--budget", "uniform"]);
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
fn the_hybrid_has_the_budget_of_uniform_eden_and_needs_fewer_bits() {
    let comparisons = compare(&["--budget", "uniform"]);
    let of = |method: &str| comparisons.iter().find(|c| c["method"] == method).unwrap();
    let (eden, hybrid) = (of("eden"), of("hybrid"));
    assert_eq!(eden["budget"], hybrid["budget"]);
    let exact = |c: &Value| {
        let schemes = c["schemes"].as_array().unwrap();
        schemes.iter().find(|s| s["scheme"] == "exact").unwrap()["size"].as_u64().unwrap()
    };
    assert!(exact(hybrid) < exact(eden));
}

#[test]
fn a_scheme_over_the_budget_is_shown_as_such() {
    let args = ["--method", "qsgd", "--budget", "uniform", "--alpha", "0.5"];
    let comparisons = compare(&args);
    let uniform = &comparisons[0]["schemes"][0];
    assert_eq!((uniform["scheme"].as_str(), uniform["within_budget"].as_bool()), (Some("uniform"), Some(false)));
    let report = stdout(&[&["compare"][..], &args].concat());
    let line = report.lines().find(|line| line.contains("uniform")).unwrap();
    assert!(line.contains("200.00 % (over)"), "{line}");
}

#[test]
fn without_a_limit_both_directions_are_shown() {
    let comparisons = compare(&[]);
    assert_eq!(comparisons.len(), 2 * METHODS.len());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for (pair, method) in comparisons.chunks(2).zip(METHODS) {
        let [within_error, within_size] = pair else { panic!("{pair:?}") };
        assert_eq!((text(&within_error["method"]), text(&within_size["method"])), (method.into(), method.into()));
        assert!(within_error["budget"].is_number() && within_error["size_limit"].is_null());
        assert!(within_size["budget"].is_null() && within_size["size_limit"] == within_error["default_size"]);
        let schemes = within_size["schemes"].as_array().unwrap();
        let errors: BTreeMap<&str, f64> =
            schemes.iter().map(|s| (s["scheme"].as_str().unwrap(), s["error"].as_f64().unwrap())).collect();
        let (exact, uniform) = (errors["exact"], errors["uniform"]);
        assert_eq!(Some(uniform), within_size["default_error"].as_f64());
        assert!(exact < uniform && errors["dp"] <= uniform, "{method}: {errors:?}");
        assert_eq!(errors.contains_key("k-means"), method != "hybrid");
        assert_eq!(errors.contains_key("global top-k"), method == "topk");
        for scheme in schemes {
            assert_eq!(scheme["within_budget"], true, "{scheme}");
            assert!(scheme["size"].as_u64() <= within_size["size_limit"].as_u64());
            assert!(exact <= scheme["error"].as_f64().unwrap(), "{scheme}");
        }
        let proved = schemes.iter().find(|s| s["scheme"] == "exact").unwrap();
        assert!(proved["proven"] == true && proved["lower_bound"].as_f64().unwrap() <= exact);
    }
    let report = stdout(&["compare", "--method", "qsgd", "--size", "2000000"]);
    let line = |scheme: &str| report.lines().find(|line| line.contains(scheme)).unwrap().to_owned();
    assert!(line("uniform").contains("% (over)") && line("exact").contains("optimal"), "{report}");
    assert!(!report.lines().any(|line| line.starts_with("qsgd") && line.contains(" error ")), "{report}");
}

#[test]
fn a_size_that_nothing_has_tells_the_smallest() {
    let folder = tempfile::tempdir().unwrap();
    let (code, line) = failure_in(folder.path(), &["compare", "--size", "10"]);
    assert!(code == 1 && line.contains("qsgd: infeasible: the size limit is 10 bits"), "{line}");
    let (code, line) = failure_in(folder.path(), &["plan", "--size", "10"]);
    let (_, there) = line.split_once("the smallest achievable size is ").unwrap();
    let (smallest, there) = there.split_once(" bits, with an error of ").unwrap();
    let (error, most_exact) = there.split_once("; the most exact plan has an error of ").unwrap();
    assert!(most_exact.ends_with(" bits"), "{line}");
    let plan = json(&["plan", "--size", smallest, "--json", "-"]);
    let (told, found): (f64, _) = (error.parse().unwrap(), plan["error"].as_f64().unwrap());
    assert!(code == 1 && (told - found).abs() <= 1e-12 * found, "{found}: {line}");
    // TopK's smallest size is below QSGD's.
    let comparisons = compare(&["--size", "1000000"]);
    let of = |method: &str| comparisons.iter().find(|c| c["method"] == method).unwrap();
    assert!(of("topk")["feasible"] == true && of("qsgd")["feasible"] == false, "{comparisons:?}");
    assert!(of("qsgd")["smallest_size"].as_u64() > Some(1_000_000));
}

#[test]
fn one_method_alone_takes_its_options() {
    let base = compare(&["--method", "topk"]);
    let finer = compare(&["--method", "topk", "--default", "2%", "--range", "0.5%..4%"]);
    assert_eq!(base.len(), 2);
    assert!(finer[0]["budget"].as_f64() < base[0]["budget"].as_f64());
    let dp = |c: &[Value]| {
        c[0]["schemes"].as_array().unwrap().iter().find(|s| s["scheme"] == "dp").unwrap()["size"].as_u64()
    };
    assert!(dp(&compare(&["--method", "topk", "--levels", "40"])) > dp(&base));
}

#[test]
fn an_infeasible_method_does_not_hide_the_others() {
    let args = ["--budget", "uniform", "--alpha", "0.1"];
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

#[test]
fn several_methods_are_compared_as_one() {
    let comparisons = compare(&["--methods", "eden,topk", "--default", "3"]);
    assert_eq!(comparisons.len(), 2);
    let exact = |comparisons: &[Value]| {
        let schemes = comparisons[0]["schemes"].as_array().unwrap();
        let names: Vec<_> = schemes.iter().map(|s| s["scheme"].as_str().unwrap()).collect();
        assert_eq!(names, ["uniform", "dp", "exact"]);
        (comparisons[0]["budget"].as_f64(), schemes[2]["size"].as_u64().unwrap())
    };
    let both = exact(&comparisons);
    assert_eq!(comparisons[0]["method"], "eden,topk");
    // The budget is the same as for EDEN alone. A choice between EDEN and TopK never needs more bits than EDEN alone.
    let alone = compare(&["--method", "eden"]);
    let schemes = alone[0]["schemes"].as_array().unwrap();
    let size = schemes.iter().find(|s| s["scheme"] == "exact").unwrap()["size"].as_u64().unwrap();
    assert!(both.0 == alone[0]["budget"].as_f64() && both.1 <= size, "{both:?}, {size}");
    let single = compare(&["--methods", "topk"]);
    assert_eq!(single[0]["schemes"].as_array().unwrap().len(), 5);
    let folder = tempfile::tempdir().unwrap();
    let (code, line) = failure_in(folder.path(), &["compare", "--method", "topk", "--methods", "eden,qsgd"]);
    assert!(code == 2 && line.contains("cannot be used with"), "{line}");
}
