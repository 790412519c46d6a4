//! Tests that `lgreco watch` reads the lines that a controller writes.

use lgreco_testing::controller::{alone, step_alone};
use lgreco_train::controller::metrics_line;
use lgreco_train::search::Method;
use std::ffi::OsString;

#[test]
fn lines_of_a_controller_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (mut controller, mut worker) = alone(Method::TopK).unwrap();
    let mut lines = String::new();
    for _ in 0..4 {
        let report = step_alone(&mut controller, &mut worker).unwrap();
        lines += &(metrics_line(&controller, &report) + "\n");
    }
    std::fs::write(path("steps.jsonl"), lines).unwrap();
    let arguments = ["lgreco", "watch", "--once", "--html"].map(OsString::from).into_iter();
    let files = [path("run.html"), path("steps.jsonl")].map(OsString::from);
    assert_eq!(lgreco_cli::run(arguments.chain(files)), 0);
    let page = std::fs::read_to_string(path("run.html")).unwrap();
    for words in [controller.metrics(0).name, "<dd>3</dd>", "last decision", &controller.metrics(0).setting.to_string()]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
}
