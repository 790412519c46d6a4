//! Tiny runs of what the example does.

use crate::report::Row;
use crate::schemes::{METHODS, NAMES, Scheme};
use crate::task::Task;
use crate::worker::checkpoint::Checkpoint;
use crate::worker::{Failure, Worker};
use crate::{picture, run, schemes};
use indicatif::ProgressBar;
use lgreco_train::exchange::threads;

/// With a warm-up of 5 steps, and a decision at its end and after every 4 steps.
fn tiny(mut task: Task, steps: u32) -> Task {
    (task.steps, task.validations) = (steps, 2);
    task
}

fn scheme(method: &'static str, name: &'static str) -> Scheme {
    Scheme { method, name }
}

#[test]
fn a_stopped_and_restored_run_is_the_same_run() {
    for (task, scheme) in [
        (Task::transformer(true), scheme("powersgd", "l-greco+accordion")),
        (Task::convnet(true), scheme("topk", "l-greco")),
        (Task::convnet(true), scheme("clt-k", "scalecom")),
    ] {
        let task = tiny(task, 16);
        let train = |from: Option<Vec<Checkpoint>>, until: u32| {
            threads::run(2, |collective| {
                let rank = lgreco_train::exchange::Collective::rank(&collective) as usize;
                let mut worker = Worker::new(&task, 7, scheme, collective)?;
                if let Some(checkpoints) = &from {
                    worker.restore(&checkpoints[rank])?;
                }
                let mut decided = Vec::new();
                worker.train(until, |_, report| {
                    decided.extend(report.switched.then_some(report.step));
                    Ok(())
                })?;
                let loss = worker.validate()?.to_bits();
                Ok::<_, Failure>((decided, (loss, worker.totals.bytes, worker.parameter_bits()?), worker.save()?))
            })
            .into_iter()
            .collect::<Result<Vec<_>, Failure>>()
            .unwrap()
        };
        let whole = train(None, 16);
        let half = train(None, 8);
        // What is stopped has a plan, residuals and whatever else a method remembers.
        assert!(half.iter().all(|(decided, ..)| *decided == [5]), "{scheme:?}: {:?}", half[0].0);
        let resumed = train(Some(half.into_iter().map(|(.., checkpoint)| checkpoint).collect()), 16);
        for ((decided, whole, _), (decided_later, resumed, _)) in whole.iter().zip(&resumed) {
            assert_eq!(decided[..], [&[5], &decided_later[..]].concat(), "{scheme:?}");
            assert!(whole == resumed, "{scheme:?}");
        }
    }
}

#[test]
fn every_scheme_runs_and_the_json_says_what_it_sent() {
    let task = tiny(Task::convnet(true), 10);
    let bar = ProgressBar::hidden();
    let mut metrics = Vec::new();
    let rows: Vec<Row> =
        schemes::all().iter().map(|&scheme| run(&task, scheme, &bar, Some(&mut metrics)).unwrap()).collect();
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&rows).unwrap()).unwrap();
    let json = json.as_array().unwrap();
    assert_eq!(json.len(), 2 + METHODS.len() * NAMES.len() + 1);
    for (row, value) in rows.iter().zip(json) {
        let object = value.as_object().unwrap();
        let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["bytes", "final_loss", "method", "model", "ratio", "scheme", "seconds"]);
        let number = |key: &str| object[key].as_f64().unwrap();
        let word = |key: &str| object[key].as_str().unwrap();
        assert_eq!((word("model"), word("method"), word("scheme")), ("convnet", row.method, row.scheme));
        assert_eq!((number("bytes"), number("final_loss") as f32), (row.bytes as f64, row.final_loss));
        assert!(row.final_loss.is_finite() && row.final_loss > 0.0, "{value}");
        let compressed = row.scheme != "uncompressed";
        assert_eq!(number("bytes") < rows[0].bytes as f64, compressed, "{value}");
        assert!((number("ratio") - rows[0].bytes as f64 / number("bytes")).abs() < 1e-12, "{value}");
        assert_eq!((row.curve.len(), row.curve[1]), (2, (row.bytes, row.final_loss)));
    }
    check_metrics(&metrics, &rows);
    let svg = picture::svg(&rows).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for words in rows.iter().map(|row| row.scheme.to_owned()).chain(METHODS.map(|method| format!("convnet, {method}")))
    {
        assert!(texts.contains(&words.as_str()), "{words}");
    }
    // One line per run, but the uncompressed one in every panel.
    let lines = document.descendants().filter(|node| node.attribute("stroke-width") == Some("2")).count();
    assert_eq!(lines, rows.len() + METHODS.len() - 1);
}

/// A panel of a method that has no run has no ends for its axes, nor has a run that diverged at once.
#[test]
fn a_picture_of_one_row_is_drawn() {
    let row = |method, curve: &[(u64, f32)]| Row {
        model: "convnet",
        method,
        scheme: "uniform",
        final_loss: curve[curve.len() - 1].1,
        bytes: 1,
        ratio: 1.0,
        seconds: 1.0,
        steps: 1,
        planning: 0.0,
        curve: curve.to_vec(),
    };
    for (method, curve, lines) in [
        ("none", &[(7, 1.0)][..], 3),
        ("qsgd", &[(1000, 2.0), (2000, 1.0)], 1),
        ("qsgd", &[(7, 0.0)], 1),
        ("topk", &[(0, 1.0)], 0),
        ("powersgd", &[(7, f32::NAN), (8, f32::INFINITY)], 0),
    ] {
        let svg = picture::svg(&[row(method, curve)]).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let ends = document.descendants().filter(|node| node.attribute("r") == Some("4")).count();
        assert_eq!(ends, lines, "{method} {curve:?}");
        assert_eq!(svg.matches("nothing to draw").count(), METHODS.len() - lines, "{method} {curve:?}");
    }
}

/// A line per step, which add up to what a run's row says.
fn check_metrics(metrics: &[u8], rows: &[Row]) {
    let mut lines = std::str::from_utf8(metrics).unwrap().lines();
    for row in rows {
        let mut bytes = 0;
        for step in 0..row.steps {
            let line: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
            let run = ["model", "method", "scheme"].map(|key| line[key].as_str().unwrap().to_owned());
            assert_eq!(run, [row.model, row.method, row.scheme]);
            assert_eq!(line["step"], step, "{run:?}");
            assert_eq!(line["layers"][0]["name"], "conv0.weight");
            assert!(line["layers"][0]["bucket_seconds"].as_f64() > Some(0.0));
            bytes += line["bytes_out"].as_u64().unwrap();
        }
        assert_eq!(bytes, row.bytes, "{} {}", row.method, row.scheme);
    }
    assert_eq!(lines.next(), None);
}

/// Up to the second decision both solvers see the same gradients.
#[test]
fn exact_plans_are_no_larger_than_those_of_the_dynamic_program() {
    for method in METHODS {
        let task = tiny(Task::convnet(true), 10);
        let sent = |name| {
            let sent = threads::run(2, |collective| {
                let mut worker = Worker::new(&task, 7, scheme(method, name), collective)?;
                worker.train(task.warmup() + 1, |_, _| Ok(()))?;
                Ok::<_, Failure>(worker.totals.bytes)
            });
            sent.into_iter().collect::<Result<Vec<_>, Failure>>().unwrap()[0]
        };
        let (uniform, dp, exact) = (sent("uniform"), sent("l-greco-dp"), sent("l-greco"));
        assert!(exact <= dp && dp <= uniform, "{method}: {exact}, {dp}, {uniform}");
    }
}
