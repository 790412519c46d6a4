//! Tests of pages about plans and runs.

mod common;

use common::{METHODS, Tensor, f32_bytes, failure_in, file, safetensors, stdout_in};
use lgreco::file::PlanFile;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The page as XML, without its first line.
fn page(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.strip_prefix("<!DOCTYPE html>\n").unwrap().to_owned()
}

/// Asserts that a page loads no other files.
fn check_alone(page: &str) {
    let document = roxmltree::Document::parse(page).unwrap();
    for node in document.descendants().filter(|node| node.is_element()) {
        for attribute in node.attributes() {
            let fetches = ["src", "href", "srcset", "data", "action", "poster"].contains(&attribute.name());
            let runs = attribute.name().starts_with("on");
            assert!(!fetches && !runs, "<{}> has {}", node.tag_name().name(), attribute.name());
        }
        assert!(!["link", "iframe", "img", "object", "embed", "base"].contains(&node.tag_name().name()));
    }
    assert!(page.contains("default-src 'none'") && !page.contains("url(") && !page.contains("@import"));
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("width=device-width"));
}

/// The texts of the cells of a page's table, row by row.
fn cells(page: &str) -> Vec<Vec<String>> {
    let document = roxmltree::Document::parse(page).unwrap();
    let rows = document.descendants().filter(|node| node.tag_name().name() == "tr");
    let text = |node: roxmltree::Node<'_, '_>| {
        node.descendants().filter(roxmltree::Node::is_text).filter_map(|node| node.text()).collect::<String>()
    };
    rows.map(|row| row.children().filter(|node| node.is_element()).map(text).collect()).collect()
}

#[test]
fn a_plan_has_a_page_with_its_layers_and_the_frontier() {
    let folder = tempfile::tempdir().unwrap();
    for method in METHODS {
        stdout_in(folder.path(), &["plan", "--method", method, "--json", "plan.json", "--html", "report.html"]);
        let plan = PlanFile::parse(&std::fs::read(folder.path().join("plan.json")).unwrap()).unwrap();
        let page = page(&folder.path().join("report.html"));
        check_alone(&page);
        let cells = cells(&page);
        assert_eq!(cells[0], ["#", "layer", "shape", "setting", "bytes", "share", "relative error"]);
        assert_eq!(cells.len(), plan.layers.len() + 1);
        for (row, layer) in cells[1..].iter().zip(&plan.layers) {
            assert_eq!((&row[1], &row[3]), (&layer.name, &layer.label), "{method}");
            assert_eq!(row[4].replace(',', ""), layer.size.div_ceil(8).to_string(), "{method}");
            assert!(row[2].contains('×') && row[5].ends_with(" %") && row[6].ends_with(" %"), "{row:?}");
        }
        for words in ["Size and error", "this plan", "everywhere", "proven optimal"] {
            assert!(page.contains(words), "{method}: {words}");
        }
    }
}

#[test]
fn names_are_text_and_nothing_else() {
    let hostile = "</td><script>alert(\"1\")</script><img src=x onerror='x()'>&amp;";
    let tensors: Vec<Tensor<'_>> =
        vec![(hostile, "F32", &[64, 64], f32_bytes(4096, 1)), ("zeros", "F32", &[64, 64], vec![0; 16384])];
    let (folder, _) = file("<g>.safetensors", &safetensors(&tensors));
    for method in METHODS {
        stdout_in(folder.path(), &["plan", "<g>.safetensors", "--method", method, "--html", "report.html"]);
        let page = page(&folder.path().join("report.html"));
        check_alone(&page);
        assert!(cells(&page).iter().any(|row| row.get(1).is_some_and(|name| name == hostile)), "{page}");
    }
}

#[test]
fn a_table_of_anybody_has_a_page_too() {
    let table = r#"{"version":1, "metric":"mine", "budget":0, "layers":[
        {"name":"a", "elements":0, "options":[{"label":"off","size":0,"error":0}]}]}"#;
    let (folder, _) = file("table.json", table.as_bytes());
    stdout_in(folder.path(), &["solve", "table.json", "--html", "report.html"]);
    let page = page(&folder.path().join("report.html"));
    check_alone(&page);
    assert_eq!(
        cells(&page),
        [["#", "layer", "setting", "bytes", "share", "error"], ["1", "a", "off", "0", "0 %", "0"]]
    );
}

#[test]
fn pages_do_not_overwrite_what_is_read_or_written() {
    let (folder, _) = file("table.json", b"{}");
    for (args, told) in [
        (&["solve", "table.json", "--html", "table.json"][..], "--html table.json would overwrite the input"),
        (&["plan", "--json", "a", "--html", "a"], "--html a would overwrite --json"),
        (&["watch", "table.json", "--html", "table.json"], "--html table.json would overwrite the input"),
        (&["plan", "--html", "-"], "a page is not written to standard output: name a file"),
        (&["watch", "none.jsonl"], "none.jsonl: No such file"),
    ] {
        let (code, line) = failure_in(folder.path(), args);
        assert!(code == 2 && line.contains(told), "{args:?}: {code} {line}");
    }
}

/// The line of JSON of a step.
fn step(step: u64) -> String {
    let layer = |name: &str, setting: &str| {
        let (whole, sent) = (4096 * (step + 1), 512 * (step + 1));
        format!(
            r#"{{"name":"{name}","setting":"{setting}","steps":{},"bytes_in":{whole},"bytes_out":{sent},"relative_error":0.04}}"#,
            step + 1
        )
    };
    format!(
        r#"{{"version":1,"step":{step},"outcome":"exchanged","switched":false,"bytes_in":8192,"bytes_out":1024,"exchange_seconds":0.01,"layers":[{},{}]}}"#,
        layer("fc1", "eden 3"),
        layer("fc2", "topk 8")
    ) + "\n"
}

#[test]
fn a_finished_run_is_shown_once() {
    let lines: String = (0..20).map(step).collect();
    let (folder, _) = file("steps.jsonl", (lines + "{\"version\":1,").as_bytes());
    let text = stdout_in(folder.path(), &["watch", "steps.jsonl", "--once", "--html", "run.html"]);
    let last = text.lines().last().unwrap();
    assert_eq!(last.split_whitespace().take(3).collect::<Vec<_>>(), ["19", "1,024", "8.00×"], "{text}");
    assert!(text.contains("line 21 is not finished") && last.ends_with("1 eden, 1 topk"), "{text}");
    let page = page(&folder.path().join("run.html"));
    check_alone(&page);
    assert!(!page.contains("http-equiv=\"refresh\""));
    assert_eq!(cells(&page)[1][..4], ["1", "fc1", "eden 3", "512"]);
}

#[test]
fn a_line_at_fault_is_named() {
    let (folder, _) = file("steps.jsonl", format!("{}{{\"step\":1}}\n", step(0)).as_bytes());
    let output = common::lgreco_in(folder.path(), &["watch", "steps.jsonl", "--once"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(told.starts_with("lgreco: steps.jsonl: line 2: column 10: missing field `version`"), "{told}");
    let (folder, _) = file("steps.jsonl", b"");
    let output = common::lgreco_in(folder.path(), &["watch", "steps.jsonl", "--once"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && told.contains("steps.jsonl: there is no step in it"), "{told}");
}

/// A running program, which is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The program may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watching(folder: &Path, stdin: Stdio, args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lgreco"));
    command.current_dir(folder).args(args).stdin(stdin).stdout(Stdio::piped());
    Running(command.spawn().expect("lgreco starts"))
}

/// Waits until the page contains this text.
fn wait_for(path: &Path, words: &str) {
    let start = Instant::now();
    while !std::fs::read_to_string(path).is_ok_and(|page| page.contains(words)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{words}: {:?}", std::fs::read_to_string(path));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_growing_file_is_followed() {
    let (folder, path) = file("steps.jsonl", step(0).as_bytes());
    let page = folder.path().join("run.html");
    let _running =
        watching(folder.path(), Stdio::null(), &["watch", "steps.jsonl", "--every", "0.05", "--html", "run.html"]);
    wait_for(&page, "<dd>0, followed</dd>");
    assert!(std::fs::read_to_string(&page).unwrap().contains("http-equiv=\"refresh\" content=\"1\""));
    let mut steps = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    // An incomplete line is not shown yet.
    let line = step(1);
    let (first, second) = line.split_at(line.len() / 2);
    steps.write_all(first.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    steps.write_all(second.as_bytes()).unwrap();
    wait_for(&page, "<dd>1, followed</dd>");
    // Replaces the file by the file of another run.
    std::fs::write(&path, step(0)).unwrap();
    wait_for(&page, "<dd>0, followed</dd>");
}

/// The newest line is shown although no other line follows, and the pipe stays open.
#[test]
fn the_newest_line_of_a_pipe_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["watch", "-", "--every", "0.3", "--html", "run.html"];
    let mut running = watching(folder.path(), Stdio::piped(), &args);
    let mut input = running.0.stdin.take().unwrap();
    let output = running.0.stdout.take().unwrap();
    let rows = std::thread::spawn(move || {
        let lines = std::io::BufReader::new(output).lines().map(|line| line.unwrap());
        lines.filter(|line| line.trim_start().starts_with('7')).count()
    });
    for at in 0..8 {
        input.write_all(step(at).as_bytes()).unwrap();
    }
    wait_for(&folder.path().join("run.html"), "<dd>7, followed</dd>");
    drop(input);
    assert!(running.0.wait().unwrap().success());
    assert_eq!(rows.join().unwrap(), 1);
}

#[test]
fn standard_input_is_followed_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = watching(folder.path(), Stdio::piped(), &["watch", "-", "--html", "run.html"]);
    let mut input = running.0.stdin.take().unwrap();
    input.write_all((step(0) + &step(1)).as_bytes()).unwrap();
    wait_for(&folder.path().join("run.html"), "followed</dd>");
    drop(input);
    assert!(running.0.wait().unwrap().success());
    wait_for(&folder.path().join("run.html"), "<dd>1</dd>");
}
