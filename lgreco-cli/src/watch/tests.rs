//! Tests of a run made of handwritten lines.

use super::line::Line;
use super::{Run, html};
use crate::testing::labels::overlaps;

const LINE: &str = r#"{"version":1,"step":7,"outcome":"exchanged","switched":true,"bytes_in":4096,"bytes_out":512,"planning_seconds":0.002,"exchange_seconds":0.01,"non_finite_steps":0,"decision":{"step":7,"cause":"schedule","unit":"bits","size":4000,"lower_bound":4000,"error":0.25,"size_limit":4096,"default_size":4096,"uncompressed_size":32768,"pays":true,"slower":0},"layers":[{"name":"fc1","setting":"topk 8","steps":8,"bytes_in":32768,"bytes_out":8192,"relative_error":0.04,"residual_norm":1.5,"not_contractive":0},{"name":"bias","setting":"dense","uncompressed":"small","steps":8,"bytes_in":64,"bytes_out":64,"relative_error":null}],"seed":1}"#;

fn with(change: &[(&str, &str)]) -> String {
    change.iter().fold(LINE.to_owned(), |line, (old, new)| {
        assert!(line.contains(old), "{old}");
        line.replacen(old, new, 1)
    })
}

/// A run of these steps.
fn run(steps: impl IntoIterator<Item = u64>) -> Run {
    let mut run = Run::default();
    for step in steps {
        let line =
            with(&[("\"step\":7", &format!("\"step\":{step}")), ("\"steps\":8", &format!("\"steps\":{}", step + 1))]);
        run.add(line.as_bytes()).unwrap();
    }
    run
}

#[test]
fn a_line_is_read() {
    let line = Line::parse(LINE.as_bytes()).unwrap();
    assert_eq!((line.step, line.bytes_out, line.exchange_seconds, line.layers.len()), (7, 512, Some(0.01), 2));
    assert_eq!((line.layers[0].relative_error, line.layers[1].relative_error), (Some(0.04), None));
    assert_eq!(line.layers[1].uncompressed.as_deref(), Some("small"));
    assert_eq!(line.decision.unwrap().size, Some(4000));
}

#[test]
fn what_is_wrong_with_a_line_is_told() {
    for (change, told) in [
        (("\"version\":1", "\"version\":2"), "version is 2, expected 1: another lgreco wrote it"),
        (("\"step\":7,", ""), "missing field `step`"),
        (("\"step\":7", "\"step\":-7"), "column 22: invalid value: integer `-7`, expected u64"),
        (
            ("\"exchanged\"", "\"lost\""),
            "unknown variant `lost`, expected one of `exchanged`, `skipped`, `passed through`, `failed`",
        ),
        (("0.01", "-0.01"), "exchange_seconds is -0.01, expected a number >= 0"),
        (("0.04", "-1"), "layer `fc1`: relative_error is -1, expected a number >= 0"),
        (("0.04", "1e999"), "number out of range"),
        (("\"fc1\"", "17"), "invalid type: integer `17`, expected a string"),
        ((LINE, "[]"), "column 2: invalid length 0"),
        ((LINE, ""), "column 0: EOF while parsing a value"),
    ] {
        let error = Line::parse(with(&[change]).as_bytes()).unwrap_err();
        assert!(error.contains(told), "{change:?}: {error}");
    }
}

#[test]
fn any_bytes_are_a_line_or_refused() {
    for end in 0..LINE.len() {
        assert!(Line::parse(&LINE.as_bytes()[..end]).is_err(), "{end}");
        let mut bytes = LINE.as_bytes().to_vec();
        bytes[end] = b"0\"}]-,:{\xff"[end % 9];
        let mut run = Run::default();
        if run.add(&bytes).is_ok() {
            let page = html("steps", &run, Some(1));
            assert!(page.contains("</html>"));
        }
    }
}

#[test]
fn a_run_that_goes_on_from_a_checkpoint_forgets_later_steps() {
    let mut run = run((0..10).chain(4..6));
    assert_eq!(run.points.iter().map(|point| point.step).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!((run.resumed.as_slice(), run.last.as_ref().unwrap().step), (&[4][..], 5));
    run.add(with(&[("\"step\":7", "\"step\":0")]).as_bytes()).unwrap();
    assert_eq!((run.points.len(), run.resumed.len()), (1, 0));
}

#[test]
fn what_layers_send_is_told_by_step() {
    let mut run = run([6]);
    let next = [("\"bytes_in\":32768,\"bytes_out\":8192", "\"bytes_in\":36864,\"bytes_out\":8704")];
    run.add(with(&next).as_bytes()).unwrap();
    assert_eq!(run.sent, [(512.0, 4096.0), (8.0, 8.0)]);
    assert!(
        run.row().contains("512") && run.row().ends_with("1 topk, 1 dense, new\n")
            || run.settings() == "1 dense, 1 topk"
    );
}

#[test]
fn a_long_run_takes_bounded_memory_and_keeps_its_sums() {
    let run = run(0..9001);
    assert!(run.points.len() <= 2000, "{}", run.points.len());
    assert_eq!(run.points.iter().map(|point| point.steps).sum::<f64>(), 9001.0);
    let (planning, exchange) = run.seconds().unwrap();
    assert!((planning - 18.002).abs() < 1e-9 && (exchange - 90.01).abs() < 1e-9, "{planning} {exchange}");
    assert!(run.points.windows(2).all(|pair| pair[0].step < pair[1].step));
}

#[test]
fn a_page_shows_the_run_whatever_names_are() {
    let hostile = with(&[("fc1", "</td><script>alert('1')</script>\\u202e"), ("topk 8", "<b>&")]);
    let mut run = run(0..50);
    run.add(with(&[("\"step\":7", "\"step\":50"), ("\"exchanged\"", "\"skipped\"")]).as_bytes()).unwrap();
    run.add(hostile.replace("\"step\":7", "\"step\":51").as_bytes()).unwrap();
    for refresh in [None, Some(2)] {
        let page = html("<b>steps.jsonl", &run, refresh);
        let page = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
        let document = roxmltree::Document::parse(page).unwrap();
        let count = |name| document.descendants().filter(|node| node.tag_name().name() == name).count();
        assert_eq!((count("script"), count("b"), count("svg"), count("tr")), (1, 0, 8, 3));
        assert_eq!(page.contains("http-equiv=\"refresh\""), refresh.is_some());
        assert!(page.contains("\\u{202e}") && page.contains("<dd>1 step</dd>") && !page.contains('\u{202e}'));
        for svg in page.split("<svg").skip(1) {
            assert_eq!(overlaps(svg), Vec::<String>::new());
        }
    }
    assert!(html("steps", &Run::default(), Some(1)).contains("No step yet"));
}
