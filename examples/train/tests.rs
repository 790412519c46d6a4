//! Tests of the example with tiny runs.

use crate::errors::Errors;
use crate::optimiser::{Kind, Optimiser};
use crate::report::{Point, Row};
use crate::results::Results;
use crate::schemes::{EDEN, METHODS, MIXED, NAMES, RAMPED, RATIOS, Scheme};
use crate::summary::{Mean, groups, table};
use crate::task::{Data, Task};
use crate::worker::checkpoint::Checkpoint;
use crate::worker::{Failure, Worker};
use crate::{Args, drawn, errors, fitted, frontier, picture, prediction, run, schemes, train};
use clap::Parser;
use indicatif::ProgressBar;
use lgreco_cli::testing::labels::overlaps;
use lgreco_train::compress::Setting;
use lgreco_train::controller::Tensor;
use lgreco_train::exchange::threads;
use lgreco_train::gradient::Dtype;
use lgreco_train::search::{Method, Search};
use std::path::Path;

/// Shortens a task: a warm-up of 5 steps, with a decision at its end and after every 4 steps.
fn tiny(mut task: Task, steps: u32) -> Task {
    (task.steps, task.validations) = (steps, 2);
    if let Data::Digits { images, .. } = &mut task.data {
        *images = 8;
    }
    task
}

fn scheme(method: &'static str, name: &'static str) -> Scheme {
    Scheme { method, name }
}

#[test]
fn a_stopped_and_restored_run_is_the_same_run() {
    for (task, optimizer, scheme) in [
        (Task::transformer(true), Kind::Sgd, scheme("powersgd", "l-greco+accordion")),
        (Task::convnet(true), Kind::Adamw, scheme("topk", "l-greco")),
        (Task::convnet(true), Kind::Sgd, scheme("clt-k", "scalecom")),
    ] {
        let mut task = tiny(task, 16);
        task.optimizer = optimizer;
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
        // The stopped run has a plan, residuals and any other state of its method.
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
        schemes::all().iter().map(|&scheme| run(&task, scheme, 1, &bar, Some(&mut metrics)).unwrap()).collect();
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&rows).unwrap()).unwrap();
    let json = json.as_array().unwrap();
    assert_eq!(
        json.len(),
        2 + METHODS.len() * NAMES.len() + 2 * RAMPED.len() + 2 + 2 * RATIOS.len() + 9 + EDEN.len() + MIXED.len()
    );
    for (row, value) in rows.iter().zip(json) {
        let object = value.as_object().unwrap();
        let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
        keys.sort_unstable();
        let expected = [
            "bytes",
            "curve",
            "final_loss",
            "method",
            "model",
            "optimizer",
            "planning",
            "ratio",
            "scheme",
            "seconds",
            "seed",
            "steps",
        ];
        assert_eq!(keys, expected);
        assert_eq!(serde_json::from_value::<Row>(value.clone()).unwrap(), *row);
        let number = |key: &str| object[key].as_f64().unwrap();
        let word = |key: &str| object[key].as_str().unwrap();
        assert_eq!((word("model"), word("method"), word("scheme")), ("convnet", &*row.method, &*row.scheme));
        assert_eq!((number("bytes"), number("final_loss") as f32), (row.bytes as f64, row.final_loss));
        assert!(row.final_loss.is_finite() && row.final_loss > 0.0, "{value}");
        let compressed = row.scheme != "uncompressed";
        assert_eq!(number("bytes") < rows[0].bytes as f64, compressed, "{value}");
        assert!((number("ratio") - rows[0].bytes as f64 / number("bytes")).abs() < 1e-12, "{value}");
        assert_eq!((row.curve.len(), row.curve[1]), (2, Point { bytes: row.bytes, loss: row.final_loss }));
    }
    check_metrics(&metrics, &rows);
    let svg = picture::svg(&rows).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for words in rows.iter().map(|row| row.scheme.clone()).chain(METHODS.map(|method| format!("convnet, {method}"))) {
        assert!(texts.contains(&words.as_str()), "{words}");
    }
    // One line per run, and the uncompressed run in every panel.
    let lines = document.descendants().filter(|node| node.attribute("stroke-width") == Some("2")).count();
    assert_eq!(lines, rows.len() + METHODS.len() - 1);
}

fn row(method: &str, seed: u64, bytes: u64, losses: &[f32]) -> Row {
    Row {
        model: "convnet".into(),
        optimizer: "sgd".into(),
        steps: 10,
        seed,
        method: method.into(),
        scheme: if method == "none" { "uncompressed" } else { "uniform" }.into(),
        final_loss: losses[losses.len() - 1],
        bytes,
        ratio: 1000.0 / bytes as f64,
        seconds: 1.0,
        planning: 0.0,
        curve: losses.iter().zip(1..).map(|(&loss, part)| Point { bytes: part * bytes, loss }).collect(),
    }
}

/// A panel without runs of its method has no axis ranges. Nor has a panel whose only run diverged at once. The range of
/// a single point is empty.
#[test]
fn a_picture_of_one_row_is_drawn() {
    for (method, bytes, losses, lines) in [
        ("none", 7, &[1.0][..], 3),
        ("qsgd", 1000, &[2.0, 1.0], 1),
        ("qsgd", 7, &[0.0], 1),
        ("qsgd", u64::MAX, &[f32::MAX], 1),
        ("qsgd", 1, &[f32::MIN_POSITIVE], 1),
        ("topk", 0, &[1.0], 0),
        ("powersgd", 7, &[f32::NAN, f32::INFINITY], 0),
    ] {
        let svg = picture::svg(&[row(method, 1, bytes, losses)]).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let ends = document.descendants().filter(|node| node.attribute("r") == Some("4")).count();
        assert_eq!(ends, lines, "{method} {losses:?}");
        assert_eq!(svg.matches("nothing to draw").count(), METHODS.len() - lines, "{method} {losses:?}");
    }
    assert!(picture::svg(&[]).unwrap().contains("svg"));
}

#[test]
fn a_frontier_has_a_place_per_scheme_and_bars_over_seeds() {
    let runs = [
        row("none", 1, 1000, &[2.0]),
        row("topk", 1, 100, &[2.2]),
        row("none", 2, 1000, &[4.0]),
        row("topk", 2, 120, &[4.2]),
        row("qsgd", 2, 300, &[4.0]),
        row("powersgd", 3, 300, &[4.0]),
        row("powersgd", 1, 300, &[f32::NAN]),
    ];
    for (count, places, bars) in [(0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 1, 1), (5, 2, 1), (7, 2, 1)] {
        let svg = frontier::svg(&groups(&runs[..count]));
        let document = roxmltree::Document::parse(&svg).unwrap();
        let with = |key, value| document.descendants().filter(|node| node.attribute(key) == Some(value)).count();
        assert_eq!((with("r", "5"), with("stroke-width", "1.5")), (places, bars), "{count}");
        assert_eq!(svg.contains("nothing to draw"), places == 0, "{count}");
        assert_eq!(overlaps(&svg), Vec::<String>::new(), "{count}");
    }
}

/// The picture of the documentation shows the recorded runs.
#[test]
fn the_recorded_frontier_is_of_the_recorded_runs() {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("train/runs");
    let svg = frontier::svg(&groups(&Results::read(&runs.join("full.json")).unwrap()));
    assert_eq!(overlaps(&svg), Vec::<String>::new());
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/pictures");
    let recorded = std::fs::read_to_string(pictures.join("frontier.svg")).unwrap();
    assert!(
        svg == recorded,
        "draw it again: --report examples/train/runs/full.json --frontier docs/src/pictures/frontier.svg"
    );
}

#[test]
fn means_are_of_differences_between_runs_of_one_seed() {
    let mean = Mean::of(&[1.0, 2.0, 3.0]).unwrap();
    assert!(mean.mean == 2.0 && (mean.confidence.unwrap() - 4.303 / 3.0f64.sqrt()).abs() < 1e-12);
    assert_eq!(Mean::of(&[5.0]), Some(Mean { mean: 5.0, confidence: None }));
    assert_eq!(Mean::of(&[]), None);

    let (first, second) = ([row("none", 1, 1000, &[2.0]), row("topk", 1, 100, &[2.25])], row("none", 2, 1000, &[4.0]));
    let mut rows = vec![first[1].clone(), row("topk", 2, 120, &[5.0]), second, first[0].clone()];
    rows.push(Row { optimizer: "adamw".into(), ..row("topk", 1, 100, &[9.0]) });
    let groups = groups(&rows);
    let names: Vec<(&str, usize)> = groups.iter().map(|group| (&*group.optimizer, group.lines.len())).collect();
    assert_eq!(names, [("sgd", 2), ("adamw", 1)]);
    let line = &groups[0].lines[0];
    assert_eq!((&*line.method, line.seeds, line.loss.mean, line.bytes), ("topk", 2, 3.625, 11.0));
    let increase = line.increase.unwrap();
    assert!((increase.mean - 18.75).abs() < 1e-9, "{increase:?}"); // of 12.5 % and 25 %
    assert!((increase.confidence.unwrap() - 12.706 * 6.25).abs() < 1e-9, "{increase:?}");
    assert_eq!(groups[1].lines[0].increase, None);
    let text = table(&groups);
    assert!(text.contains("| topk | uniform | 2 | 9.17× | 11 | 3.6250 | +18.75 ± 79.41 % |"), "{text}");
    assert!(text.contains("| topk | uniform | 1 | 10.00× | 10 | 9.0000 | – |"), "{text}");
}

#[test]
fn runs_that_are_in_the_file_are_not_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.json");
    let train = |more: &[&str]| {
        let arguments = ["train", "--task", "convnet", "--steps", "10", "--json", path.to_str().unwrap()];
        train(&Args::parse_from(arguments.iter().chain(more)))
    };
    let made = train(&["--scheme", "uncompressed,topk/uniform"]).unwrap();
    let key = |row: &Row| (row.method.clone(), row.scheme.clone(), row.seed, row.optimizer.clone());
    let keys: Vec<_> = made.iter().map(key).collect();
    let run =
        |method: &str, scheme: &str, seed, optimizer: &str| (method.into(), scheme.into(), seed, optimizer.into());
    assert_eq!(keys, [run("none", "uncompressed", 1, "sgd"), run("topk", "uniform", 1, "sgd")]);
    assert_eq!(Results::read(&path).unwrap(), made);

    // A value that training never gives shows that a row was read from the file.
    let mut written = made.clone();
    written[1].final_loss = f32::NAN;
    std::fs::write(&path, serde_json::to_string(&written).unwrap()).unwrap();
    let both = train(&["--scheme", "topk/uniform", "--seed", "1,2"]).unwrap();
    assert_eq!(both.iter().map(key).collect::<Vec<_>>(), [keys[1].clone(), run("topk", "uniform", 2, "sgd")]);
    assert!(both[0].final_loss.is_nan() && both[1].final_loss.is_finite());
    let adamw = train(&["--scheme", "uncompressed", "--optimizer", "adamw"]).unwrap();
    assert_eq!(adamw.iter().map(key).collect::<Vec<_>>(), [run("none", "uncompressed", 1, "adamw")]);
    assert_ne!(adamw[0].final_loss, made[0].final_loss);
    let eight = train(&["--scheme", "uncompressed", "--workers", "8", "--constant-rate"]).unwrap();
    let conditions = "sgd, workers: 8, constant rate";
    assert_eq!(eight.iter().map(key).collect::<Vec<_>>(), [run("none", "uncompressed", 1, conditions)]);
    assert_ne!(eight[0].final_loss, made[0].final_loss);
    // AdamW has no momentum to correct, so nothing runs.
    assert_eq!(train(&["--scheme", "uniform+correction", "--optimizer", "adamw"]).unwrap(), []);
    assert_eq!(Results::read(&path).unwrap().len(), 5);

    std::fs::write(&path, "[{}]").unwrap();
    let error = train(&[]).unwrap_err().to_string();
    assert!(error.contains("runs.json") && error.contains("model"), "{error}");
    assert!(Results::read(&folder.path().join("none.json")).unwrap_err().to_string().contains("none.json"));
}

#[test]
fn schemes_are_chosen_by_name() {
    let chosen =
        |name| schemes::all().into_iter().filter(move |scheme| schemes::named(name).unwrap().is(scheme)).count();
    assert_eq!(
        ["topk", "uniform", "topk/uniform", "hybrid"].map(chosen),
        [NAMES.len() + 2 + RATIOS.len() + 3, METHODS.len(), 1, 3 + RATIOS.len()]
    );
    let error = schemes::named("topk/hybrid").unwrap_err();
    assert!(error.contains("clt-k/scalecom"), "{error}");
}

/// Compares with the paper's formulas in f64, with steps small enough for f32's rounding.
#[test]
fn adamw_takes_the_steps_of_its_paper() {
    let mut optimiser = Optimiser::new(Kind::Adamw, [2].into_iter());
    let mut values = vec![vec![0.5f32, -2.0]];
    let mut expected = [(0.5, 0.0, 0.0), (-2.0, 0.0, 0.0)];
    for (step, gradient) in [[1.0f32, -0.25], [0.5, 3.0], [-2.0, 0.0]].into_iter().enumerate() {
        optimiser.step(&mut values, &[gradient.to_vec()], 0.1);
        for ((x, m, v), g) in expected.iter_mut().zip(gradient.map(f64::from)) {
            (*m, *v) = (0.9 * *m + 0.1 * g, 0.999 * *v + 0.001 * g * g);
            let [m, v] = [(*m, 0.9f64), (*v, 0.999)].map(|(x, beta)| x / (1.0 - beta.powi(step as i32 + 1)));
            *x -= 0.1 * (m / (v.sqrt() + 1e-8) + 0.01 * *x);
        }
        for (value, (x, ..)) in values[0].iter().zip(expected) {
            assert!((f64::from(*value) - x).abs() < 1e-4, "{step}: {value}, {x}");
        }
    }
}

/// Without compression, the mean of the workers' velocities is the velocity of the mean, except for rounding.
#[test]
fn momentum_correction_of_uncompressed_gradients_is_momentum() {
    let gradients = |rank: usize, step: usize| vec![vec![(rank as f32 - 0.5) * step as f32, 1.0 - step as f32 * 0.25]];
    let mut plain = Optimiser::new(Kind::Sgd, [2].into_iter());
    let mut corrected = [(); 2].map(|()| Optimiser::new(Kind::Sgd, [2].into_iter()).corrected());
    let [mut expected, mut found] = [(); 2].map(|()| vec![vec![0.5f32, -2.0]]);
    let mean = |parts: [Vec<Vec<f32>>; 2]| {
        vec![vec![(parts[0][0][0] + parts[1][0][0]) / 2.0, (parts[0][0][1] + parts[1][0][1]) / 2.0]]
    };
    for step in 0..4 {
        let own = [0, 1].map(|rank| gradients(rank, step));
        plain.step(&mut expected, &mean(own.clone()), 0.1);
        let mut exchanged = own.clone();
        exchanged.iter_mut().zip(&mut corrected).for_each(|(own, optimiser)| optimiser.correct(own));
        assert_eq!(exchanged == own, step == 0, "{step}");
        corrected[0].step(&mut found, &mean(exchanged), 0.1);
        let off = expected[0].iter().zip(&found[0]).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6, "{step}: {expected:?} {found:?}");
    }
}

/// Checks that each run has one line per step, and that the bytes in its lines add up to the bytes in the run's row.
fn check_metrics(metrics: &[u8], rows: &[Row]) {
    let mut lines = std::str::from_utf8(metrics).unwrap().lines();
    for row in rows {
        let mut bytes = 0;
        for step in 0..row.steps {
            let line: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
            let run = ["model", "method", "scheme"].map(|key| line[key].as_str().unwrap().to_owned());
            assert_eq!(run, [&*row.model, &row.method, &row.scheme]);
            assert_eq!(line["step"], step, "{run:?}");
            assert_eq!(line["layers"][0]["name"], "conv0.weight");
            assert!(line["layers"][0]["bucket_seconds"].as_f64() > Some(0.0));
            bytes += line["bytes_out"].as_u64().unwrap();
        }
        assert_eq!(bytes, row.bytes, "{} {}", row.method, row.scheme);
    }
    assert_eq!(lines.next(), None);
}

/// Schemes that change during training send at most as many bytes as constant schemes, and only slightly fewer.
/// LEGACY's second phase takes effect at the first decision in it, which is late in such a short run.
#[test]
fn schemes_at_equal_bytes_send_as_much_as_uniform_settings() {
    let task = tiny(Task::convnet(true), 60);
    let bar = ProgressBar::hidden();
    for method in RAMPED {
        let sent = |name| run::<Vec<u8>>(&task, scheme(method, name), 1, &bar, None).unwrap().bytes as f64;
        let uniform = sent("uniform");
        for name in ["uniform+ramp", "legacy", "l-greco-bytes", "l-greco-bytes+ramp"] {
            let part = sent(name) / uniform;
            assert!((0.9..1.06).contains(&part), "{method} {name}: {part}");
        }
    }
    // With bf16 sums, a run sends half the bytes, in the warm-up too.
    let sent = |name| run::<Vec<u8>>(&task, scheme("powersgd", name), 1, &bar, None).unwrap().bytes as f64;
    let [uniform, halved, planned] = ["uniform", "uniform+bf16", "l-greco-bytes+bf16"].map(sent);
    assert!((0.5..0.505).contains(&(halved / uniform)) && (0.5..0.95).contains(&(planned / uniform)));
}

/// Both solvers see the same gradients until the second decision.
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

#[test]
fn drawn_plans_are_the_same_every_time_and_of_one_method_or_of_all() {
    let task = Task::transformer(true);
    let parameters = task.model(1).unwrap().parameters;
    let tensors: Vec<Tensor> =
        parameters.all().iter().map(|p| Tensor::new(&p.name, &p.dims, Dtype::F32).unwrap()).collect();
    let search = Search::new(Method::Hybrid);
    let plans: Vec<Vec<Setting>> = drawn::NAMES.map(|name| drawn::plan(name, &tensors, &search).unwrap()).into();
    for (index, plan) in plans.iter().enumerate() {
        assert_eq!(*plan, drawn::plan(drawn::NAMES[index], &tensors, &search).unwrap());
        assert!(plans.iter().skip(index + 1).all(|other| other != plan));
        let counts = [
            plan.iter().filter(|setting| matches!(setting, Setting::Qsgd(_))).count(),
            plan.iter().filter(|setting| matches!(setting, Setting::TopK(_))).count(),
            plan.iter().filter(|setting| matches!(setting, Setting::PowerSgd(_))).count(),
        ];
        let methods = counts.iter().filter(|&&count| count > 0).count();
        assert!(if index % 6 < 3 { methods == 1 && counts[index % 6] > 0 } else { methods > 1 }, "{index}: {counts:?}");
        assert!(tensors.iter().zip(plan).all(|(t, setting)| search.takes(t.dims()) || *setting == Setting::Dense));
    }
}

#[test]
fn predictions_are_told_by_rank() {
    use crate::prediction::spearman;
    let losses = [0.1, 0.5, 2.0, 9.0];
    assert_eq!(spearman(&[1.0, 2.0, 3.0, 4.0], &losses), 1.0);
    assert_eq!(spearman(&[4.0, 3.0, 2.0, 1.0], &losses), -1.0);
    // Ranks 1, 2, 3, 4 and 2, 1, 4, 3: 1 − 6 · 4 / (4 · 15).
    assert!((spearman(&[2.0, 1.0, 4.0, 3.0], &losses) - 0.6).abs() < 1e-12);
    // Ranks 1, 2.5, 2.5, 4: covariance 4.5 over √(5 · 4.5).
    assert!((spearman(&[1.0, 2.0, 2.0, 3.0], &losses) - 0.9f64.sqrt()).abs() < 1e-12);
}

/// If each loss is a weighted sum of the errors of biased and of unbiased methods, a metric with the same weight
/// predicts the losses exactly. A metric with a very different weight predicts the losses less well.
#[test]
fn a_weight_is_fitted_on_half_of_the_plans_for_the_other_half() {
    let parts: Vec<[f64; 2]> = (0..24).map(|plan| [f64::from(plan * 7 % 24), f64::from(plan * plan % 24)]).collect();
    let losses: Vec<f64> = parts.iter().map(|[biased, unbiased]| biased + 0.5 * unbiased).collect();
    let [fitted, given] = fitted::halves(&parts, &losses, 0.5);
    assert!(fitted > 0.97 && (given - 1.0).abs() < 1e-9, "{fitted}, {given}");
    let [again, given] = fitted::halves(&parts, &losses, 8.0);
    assert!(again == fitted && given < 0.9, "{again}, {given}");
}

#[test]
fn probing_leaves_the_model_as_it_was_and_tells_all_workers_the_same() {
    let task = tiny(Task::convnet(true), 10);
    let told = threads::run(2, |collective| {
        let mut worker = Worker::new(&task, 7, scheme("none", "uncompressed"), collective)?;
        worker.train(4, |_, _| Ok(()))?;
        let (before, loss) = (worker.parameter_bits()?, worker.validate()?);
        let told = [worker.sensitivity(0)?, worker.sensitivity(0)?, worker.sensitivity(2)?];
        assert!(worker.parameter_bits()? == before && worker.validate()? == loss);
        Ok::<_, Failure>(told)
    });
    let told = told.into_iter().collect::<Result<Vec<_>, Failure>>().unwrap();
    assert!(told[0] == told[1] && told[0][0] == told[0][1] && told[0][0] != told[0][2], "{told:?}");
    assert!(told[0].iter().all(|sensitivity| sensitivity.is_finite() && *sensitivity != 0.0), "{told:?}");
}

#[test]
fn errors_of_drawn_plans_are_measured_once_and_every_metric_has_a_line() {
    for (optimizer, lines) in [(Kind::Sgd, 15), (Kind::Adamw, 17)] {
        errors_and_metrics_under(optimizer, lines);
    }
}

fn errors_and_metrics_under(optimizer: Kind, expected: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("errors.json");
    let mut task = tiny(Task::convnet(true), 14);
    task.optimizer = optimizer;
    let bar = ProgressBar::hidden();
    let schemes = [scheme("none", "uncompressed"), scheme("drawn", "1"), scheme("drawn", "2"), scheme("drawn", "24")];
    let rows: Vec<Row> = schemes.iter().map(|&scheme| run::<Vec<u8>>(&task, scheme, 1, &bar, None).unwrap()).collect();
    let tasks = [task];
    let measured = errors::read_or_measure(&path, &tasks, &rows).unwrap();
    let again = errors::read_or_measure(&path, &[], &rows).unwrap();
    assert!(measured.len() == 1 && measured == again);
    let Errors { layers, plans, .. } = &measured[0];
    // Decisions at steps 5, 9 and 13.
    assert!(layers.len() == 4 && layers.iter().all(|layer| layer.squared_norms.len() == 3));
    // Sensitivities are measured at the first and the third decision; noise increases the loss for some layer.
    assert!(layers.iter().all(|layer| layer.sensitivities.len() == 2));
    assert!(layers.iter().any(|layer| layer.sensitivity() > 0.0), "{layers:?}");
    let moments = if optimizer == Kind::Adamw { 3 } else { 0 };
    assert!(layers.iter().all(|layer| layer.moments.len() == moments));
    for layer in layers {
        for moments in &layer.moments {
            let noise = [0.0, 0.1, 1.0].map(|relative| moments.noise_in_step(relative));
            let counted: u32 = moments.octaves.iter().map(|(_, count)| count).sum();
            assert!(counted as usize == layer.elements && noise[0] == 0.0);
            assert!(noise[0] < noise[1] && noise[1] < noise[2] && noise[2] < layer.elements as f64, "{noise:?}");
        }
    }
    for plan in plans {
        for (setting, relative) in plan.settings.iter().zip(&plan.errors) {
            let most = if setting.starts_with("qsgd") { f64::INFINITY } else { 1.0 };
            assert!(
                relative.len() == 3 && relative.iter().all(|&r| (0.0..=most).contains(&r)),
                "{setting}: {relative:?}"
            );
        }
    }
    let table = prediction::table(&rows, &measured).unwrap();
    assert!(table.starts_with("convnet: 3 plans cost "), "{table}");
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).collect();
    assert!(lines.len() == expected && lines[1].starts_with("| the size alone | "), "{table}");
    let correlations = lines[1..].iter().map(|line| line.rsplit(" | ").next().unwrap().trim_end_matches(" |"));
    assert!(correlations.clone().all(|number| (-1.0..=1.0).contains(&number.parse::<f64>().unwrap())), "{table}");
}
