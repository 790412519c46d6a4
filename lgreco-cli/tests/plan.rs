//! Tests of plan, measure and solve on valid input.

mod common;

use common::{METHODS, Tensor, f32_bytes, failure_in, file, safetensors, stdout, stdout_in};
use lgreco::compress::{Compressor, Setting};
use lgreco::file::{PlanFile, TableFile};
use lgreco::plan::check;
use lgreco_cli::gradients::Gradients;

/// The plan for these arguments. Without a limit, returns the smallest plan within the uniform setting's error.
fn plan(args: &[&str]) -> PlanFile {
    let limited = args.iter().any(|arg| ["--size", "--budget", "--paper"].contains(arg));
    let budget: &[&str] = if limited { &[] } else { &["--budget", "uniform"] };
    asked(&[args, budget].concat())
}

fn asked(args: &[&str]) -> PlanFile {
    let json = stdout(&[&["plan"], args, &["--json", "-"]].concat());
    PlanFile::parse(json.as_bytes()).unwrap()
}

/// The plan without the times, which differ between runs.
fn timeless(mut plan: PlanFile) -> PlanFile {
    plan.seconds = Default::default();
    plan
}

#[test]
fn every_method_plans_and_its_plan_passes_the_verifier() {
    for method in METHODS {
        for solver in ["exact", "dp"] {
            let table = stdout(&["measure", "--method", method, "--json", "-"]);
            let table = TableFile::parse(table.as_bytes()).unwrap().table;
            let plan = plan(&["--method", method, "--solver", solver]);
            let options: Vec<u32> = plan.layers.iter().map(|layer| layer.option).collect();
            check::verify(&table.view(), &options, &plan.summary()).unwrap();
            for (index, layer) in plan.layers.iter().enumerate() {
                assert_eq!(layer.name, table.name(index));
                assert_eq!(layer.label, table.label(index, layer.option as usize));
            }
            let uniform = plan.default_size.expect("measured tables have defaults");
            assert!(plan.size <= uniform && uniform < plan.uncompressed_size, "{method} {solver}");
            assert_eq!(plan.solver, solver);
        }
    }
}

#[test]
fn defaults_are_hybrid_as_small_as_uniform_and_paper_is_a_word() {
    let same = |a: &[&str], b: &[&str]| assert_eq!(timeless(asked(a)), timeless(asked(b)), "{a:?} {b:?}");
    same(&[], &["--method", "hybrid", "--metric", "squared-l2", "--size", "uniform", "--solver", "exact"]);
    let paper = ["--metric", "l2", "--budget", "uniform", "--solver", "dp", "--levels", "10000"];
    for method in METHODS {
        same(&["--method", method, "--paper"], &[&["--method", method][..], &paper].concat());
    }
    // If the limit is uniform, the report has the gains for both uniform limits, size and error.
    let (exact, small) = (stdout(&["plan"]), stdout(&["plan", "--budget", "uniform"]));
    let line = |report: &str, name: &str| {
        report.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{report}")).trim().to_owned()
    };
    let or = line(&exact, "or ");
    assert_eq!(or.strip_suffix(" with its error").unwrap(), line(&small, "gain "));
    let or = line(&small, "or ");
    assert_eq!(or.strip_suffix(" in its size").unwrap(), line(&exact, "gain "));
    assert!(!stdout(&["plan", "--budget", "1"]).lines().any(|line| line.starts_with("or ")));
}

#[test]
fn methods_of_other_papers_are_planned_too() {
    let (eden, qsgd) = (asked(&[]), asked(&["--methods", "qsgd,topk,powersgd"]));
    assert!(eden.proven && eden.size < qsgd.size, "a quarter fewer bits");
    let short = |label: &str| label.split(' ').next().unwrap().to_owned();
    let kinds = |plan: &PlanFile| plan.layers.iter().map(|layer| short(&layer.label)).collect::<Vec<_>>();
    for method in ["eden", "clt-k", "sidco", "hard-threshold", "adacomp", "loco"] {
        let found = plan(&["--method", method]);
        assert!(found.proven && found.size <= found.default_size.unwrap(), "{method}");
        assert!(kinds(&found).iter().all(|kind| kind == method || kind == "dense"), "{method}: {:?}", kinds(&found));
        assert!(kinds(&found).iter().any(|kind| kind == method), "{method}");
    }
    let free = plan(&["--methods", "loco,topk,sidco"]);
    let loco = plan(&["--method", "loco"]);
    assert_eq!((free.proven, free.budget, free.default_size), (true, loco.budget, loco.default_size));
    assert!(free.size < loco.size && kinds(&free).iter().any(|kind| kind != "loco"), "{:?}", kinds(&free));
    for (args, told) in [
        (
            &["--methods", "qsgd,qsgd"][..],
            "--methods qsgd,qsgd: unknown list of methods, expected each method once, and hybrid only alone",
        ),
        (&["--json", ""], "a value is required for '--json <FILE>'"),
        (&["--method", "qsgd", "--widths", "3"], "unknown method for widths, expected topk"),
        (&["--methods", "qsgd,hybrid"], "unknown list of methods, expected each method once"),
        (&["--methods", "qsgd,topk", "--method", "loco"], "cannot be used with"),
        (&["--method", "loco", "--default", "0.5"], "default is 0.5, expected a whole number of elements, 1 to 2^24"),
        (&["--method", "hard-threshold", "--default", "0"], "expected a magnitude above 0"),
    ] {
        let (code, line) = failure_in(std::path::Path::new("."), &[&["plan"], args].concat());
        assert!(code == 2 && line.contains(told), "{line}");
    }
}

#[test]
fn one_of_anything_is_no_plural() {
    let tensors = [("a", "F32", &[64, 64][..], f32_bytes(4096, 1)), ("b", "F32", &[1], f32_bytes(1, 1))];
    let (folder, _) = file("g.safetensors", &safetensors(&tensors));
    let report = stdout_in(folder.path(), &["plan", "g.safetensors"]);
    assert!(report.contains("1 tensor, 1 element, 32 bits; with it the model is"), "{report}");
    let table = stdout_in(folder.path(), &["measure", "g.safetensors"]);
    assert!(table.contains("1 layer, 121 options") && table.contains("1 tensor, 1 element, 32 bits"), "{table}");
    let (_, line) = failure_in(folder.path(), &["plan", "g.safetensors", "--size", "1"]);
    assert!(line.contains("the size limit is 1 bit, "), "{line}");
}

/// A plan file returns the chosen settings for the sample's layers, even in another order. Payloads under these
/// settings have the sizes in the file.
#[test]
fn plans_have_settings_for_the_model() {
    let gradients = Gradients::sample();
    let layers = gradients.layers();
    let model = || {
        let layers = layers.iter().rev();
        layers.map(|layer| (layer.name(), layer.gradient().shape(), layer.gradient().values().dtype()))
    };
    for method in METHODS {
        let plan = plan(&["--method", method]);
        let settings = plan.settings(model()).unwrap();
        let mut compressed = 0;
        for ((name, shape, dtype), setting) in model().zip(settings) {
            match plan.layers.iter().find(|layer| layer.name == name) {
                Some(layer) => {
                    assert_eq!(8 * setting.payload_len(shape, dtype).unwrap() as u64, layer.size, "{method} {name}");
                    compressed += 1;
                }
                None => assert_eq!(setting, Setting::Dense, "{method} {name}"),
            }
        }
        assert_eq!(compressed, plan.layers.len());
    }
}

#[test]
fn exact_is_proven_on_the_sample_and_never_above_dp() {
    for method in METHODS {
        let (exact, dp) = (plan(&["--method", method]), plan(&["--method", method, "--solver", "dp"]));
        assert!(exact.proven && exact.lower_bound <= exact.size as f64, "{method}");
        assert!(exact.size <= dp.size, "{method}");
    }
}

/// Finds the smallest error within the uniform setting's size. Also finds the smallest error within the size of the
/// plan that is limited by the uniform setting's error.
#[test]
fn a_size_is_a_limit_as_an_error_is() {
    for method in METHODS {
        let table = stdout(&["measure", "--method", method, "--json", "-"]);
        let table = TableFile::parse(table.as_bytes()).unwrap().table;
        let smallest = plan(&["--method", method]);
        let uniform = smallest.default_size.unwrap();
        for solver in ["exact", "dp"] {
            let plan = plan(&["--method", method, "--solver", solver, "--size", "uniform"]);
            let options: Vec<u32> = plan.layers.iter().map(|layer| layer.option).collect();
            check::verify(&table.view(), &options, &plan.summary()).unwrap();
            assert_eq!((plan.size_limit, plan.budget), (Some(uniform), None));
            assert!(plan.size <= uniform && plan.error <= smallest.budget.unwrap(), "{method} {solver}");
            assert!(solver == "dp" || plan.proven, "{method}");
        }
        let as_small = plan(&["--method", method, "--size", &smallest.size.to_string()]);
        assert!(as_small.proven && as_small.size <= smallest.size && as_small.error <= smallest.error, "{method}");
        let smaller = plan(&["--method", method, "--size", &(smallest.size - 1).to_string()]);
        assert!(smaller.error > smallest.budget.unwrap(), "{method}: the smallest plan is not the smallest");
    }
    let half = plan(&["--size", "uniform", "--alpha", "0.75"]);
    assert_eq!(half.size_limit, half.default_size.map(|size| size / 4 * 3));
}

#[test]
fn the_report_of_a_size_tells_what_it_bounds() {
    let report = stdout(&["plan", "--size", "uniform"]);
    for word in ["less error than uniform", "size limit", "the default setting's size", "lower bound", "proven optimal"]
    {
        assert!(report.contains(word), "{word}: {report}");
    }
    assert!(!report.contains("error budget"), "{report}");
    let report = stdout(&["plan", "--size", "2000000"]);
    assert!(report.contains("of it used; from --size") && report.contains("over this size"), "{report}");
    let folder = tempfile::tempdir().unwrap();
    stdout_in(folder.path(), &["plan", "--size", "uniform", "--plot", "plan.svg"]);
    let picture = std::fs::read_to_string(folder.path().join("plan.svg")).unwrap();
    assert!(picture.contains("less error than eden 3 everywhere") && picture.contains("size limit"));
}

#[test]
fn measuring_then_solving_is_planning() {
    let folder = tempfile::tempdir().unwrap();
    for method in METHODS {
        stdout_in(folder.path(), &["measure", "--method", method, "--json", "table.json"]);
        let solved = stdout_in(folder.path(), &["solve", "table.json", "--json", "-"]);
        let solved = timeless(PlanFile::parse(solved.as_bytes()).unwrap());
        assert_eq!(solved, timeless(asked(&["--method", method])), "{method}");
    }
}

#[test]
fn the_same_input_gives_the_same_plan_on_any_number_of_threads() {
    for method in METHODS {
        let on = |threads: &str| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lgreco"));
            command.args(["measure", "--method", method, "--json", "-"]).env("RAYON_NUM_THREADS", threads);
            command.output().unwrap().stdout
        };
        assert_eq!(on("1"), on("3"), "{method}");
        assert_eq!(timeless(plan(&["--method", method])), timeless(plan(&["--method", method])), "{method}");
    }
}

#[test]
fn json_on_standard_output_is_alone_there_and_elsewhere_leaves_the_report() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["plan", "measure", "compare"] {
        let json = stdout(&[command, "--json", "-"]);
        serde_json::from_str::<serde_json::Value>(&json).unwrap();
        let report = stdout_in(folder.path(), &[command, "--json", "out.json"]);
        assert!(serde_json::from_str::<serde_json::Value>(&report).is_err());
        let written = std::fs::read_to_string(folder.path().join("out.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&written).unwrap();
    }
}

#[test]
fn the_report_names_every_layer_and_the_proof() {
    let report = stdout(&["plan"]);
    let plan = asked(&[]);
    for layer in &plan.layers {
        let line = report.lines().find(|line| line.trim_start().starts_with(&layer.name)).expect(&layer.name);
        assert!(line.contains(&layer.label), "{line}");
    }
    for word in ["uniform", "this plan", "gain", "size limit", "proven optimal", "uncompressed", "measuring"] {
        assert!(report.contains(word), "{word}: {report}");
    }
    assert!(stdout(&["plan", "--method", "hybrid"]).contains("biased"));
}

#[test]
fn every_option_has_an_effect() {
    let plan = |args: &[&str]| match args.contains(&"--method") {
        true => plan(args),
        false => plan(&[args, &["--method", "qsgd"]].concat()),
    };
    let base = timeless(plan(&[]));
    let labels = |plan: &PlanFile| plan.layers.iter().map(|layer| layer.label.clone()).collect::<Vec<_>>();
    assert!(base.budget < timeless(plan(&["--alpha", "2"])).budget);
    assert_eq!(plan(&["--budget", "3.5", "--range", "1..8"]).budget, Some(3.5));
    assert_eq!(timeless(plan(&["--budget", "uniform", "--alpha", "1"])), base);
    assert_ne!(plan(&["--metric", "l2"]).budget, base.budget);
    assert_ne!(plan(&["--default", "5"]).default_size, base.default_size);
    assert!(labels(&plan(&["--range", "4..8:4"])).iter().all(|label| label == "qsgd 4" || label == "qsgd 8"));
    assert!(plan(&["--min-elements", "20000"]).layers.len() < base.layers.len());
    let coarse = plan(&["--solver", "dp", "--levels", "40"]);
    assert!(plan(&["--solver", "dp"]).size < coarse.size);
    let topk = plan(&["--method", "topk", "--default", "2%", "--range", "1%..3%"]);
    assert!(labels(&topk).iter().all(|label| ["topk 1%", "topk 2%", "topk 3%"].contains(&label.as_str())));
    assert_eq!(timeless(plan(&["--method", "topk", "--default", "0.02", "--range", "0.01..0.03"])), timeless(topk));
}

#[test]
fn half_precision_and_unaligned_files_are_planned() {
    let half: Vec<u8> = (0..4096u32).flat_map(|i| (0x2c00 + (i * 37 % 0x0fff) as u16).to_le_bytes()).collect();
    let tensors: [Tensor<'_>; 4] = [
        ("a.weight", "F16", &[64, 64], half.clone()),
        ("b.weight", "BF16", &[64, 64], half),
        ("odd", "F16", &[1], vec![0, 0x3c]),
        ("c.weight", "F32", &[32, 8, 8], f32_bytes(2048, 1)),
    ];
    let (folder, _) = file("mixed.safetensors", &safetensors(&tensors));
    let json = stdout_in(folder.path(), &["plan", "mixed.safetensors", "--json", "-"]);
    let plan = PlanFile::parse(json.as_bytes()).unwrap();
    let names: Vec<_> = plan.layers.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["a.weight", "b.weight", "c.weight"]);
    assert_eq!(plan.uncompressed_size, 2 * 4096 * 16 + 2048 * 32);
}

#[test]
fn a_table_of_any_metric_is_solved_to_its_own_budget() {
    let table = r#"{"version":1, "metric":"loss difference", "budget":3.0, "layers":[
        {"name":"a", "elements":100, "options":[{"label":"fine","size":100,"error":0}, {"label":"coarse","size":10,"error":2}]},
        {"name":"b", "elements":100, "options":[{"label":"fine","size":50,"error":0}, {"label":"coarse","size":9,"error":2}]}]}"#;
    let (folder, _) = file("table.json", table.as_bytes());
    let solve = |more: &[&str]| {
        let json = stdout_in(folder.path(), &[&["solve", "table.json", "--json", "-"], more].concat());
        PlanFile::parse(json.as_bytes()).unwrap()
    };
    let report = |more: &[&str]| stdout_in(folder.path(), &[&["solve", "table.json"], more].concat());
    assert!(report(&[]).contains("of it used; the table file's own") && report(&[]).contains("60 bits\n"));
    assert!(report(&["--budget", "4"]).contains("of it used; from --budget"));
    let own = solve(&[]);
    assert_eq!((own.size, own.error, own.budget, own.proven), (60, 2.0, Some(3.0), true));
    assert_eq!(own.default_size, None);
    assert_eq!(solve(&["--budget", "4"]).size, 19);
    assert_eq!(solve(&["--budget", "1.5"]).size, 150);
    assert!(stdout_in(folder.path(), &["solve", "table.json"]).contains("coarse"));
}

/// Solves a table with defaults and the same table without defaults. Both tables have a budget, which `--size`
/// replaces.
#[test]
fn a_table_of_any_metric_is_solved_within_a_size() {
    let table = |default: &str| {
        let layers = [("a", 100, 10, 2), ("b", 50, 9, 3)].map(|(name, fine, coarse, error)| {
            format!(
                r#"{{"name":"{name}", "elements":100, {default} "options":[{{"label":"fine","size":{fine},"error":0}},
                {{"label":"coarse","size":{coarse},"error":{error}}}]}}"#
            )
        });
        format!(r#"{{"version":1, "metric":"loss difference", "budget":3.0, "layers":[{}]}}"#, layers.join(","))
    };
    let folder = tempfile::tempdir().unwrap();
    for (name, default) in [("with.json", r#""default":1,"#), ("without.json", "")] {
        std::fs::write(folder.path().join(name), table(default)).unwrap();
        let solve = |more: &[&str]| {
            let json = stdout_in(folder.path(), &[&["solve", name, "--json", "-"], more].concat());
            PlanFile::parse(json.as_bytes()).unwrap()
        };
        for (size, found, error) in [(150, 150, 0.0), (149, 60, 2.0), (60, 60, 2.0), (59, 19, 5.0)] {
            let plan = solve(&["--size", &size.to_string()]);
            assert_eq!((plan.size, plan.error, plan.proven), (found, error, true), "{name} {size}");
            assert_eq!((plan.budget, plan.size_limit), (None, Some(size)), "{name}");
        }
        assert!(stdout_in(folder.path(), &["solve", name, "--size", "60"]).contains("of it used; from --size"));
        let (code, line) = failure_in(folder.path(), &["solve", name, "--size", "18"]);
        assert!(code == 1 && line.contains("the smallest achievable size is 19 bits, with an error of 5; "), "{line}");
    }
    let uniform = |more: &[&str]| {
        let json = ["solve", "with.json", "--json", "-", "--size", "uniform"];
        PlanFile::parse(stdout_in(folder.path(), &[&json, more].concat()).as_bytes()).unwrap()
    };
    let plan = uniform(&[]);
    assert_eq!((plan.size, plan.error, plan.size_limit, plan.default_size), (19, 5.0, Some(19), Some(19)));
    assert_eq!((uniform(&["--alpha", "4"]).size, uniform(&["--alpha", "8"]).size), (60, 150));
    let report = stdout_in(folder.path(), &["solve", "with.json", "--size", "uniform"]);
    assert!(report.contains("of it used; the default setting's size"), "{report}");
    let (code, line) = failure_in(folder.path(), &["solve", "without.json", "--size", "uniform"]);
    assert!(code == 2 && line.contains("without.json: --size uniform needs a default in every layer"), "{line}");
}

#[test]
fn the_report_tells_where_the_budget_is_from() {
    assert!(stdout(&["plan"]).contains("used; the default setting's size"));
    assert!(stdout(&["plan", "--alpha", "0.5"]).contains("used; 0.5 times the default setting's size"));
    assert!(stdout(&["plan", "--budget", "uniform"]).contains("used; the default setting's error"));
}

#[test]
fn a_table_is_read_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    stdout_in(folder.path(), &["measure", "--json", "table.json"]);
    let from_file = stdout_in(folder.path(), &["solve", "table.json", "--json", "-"]);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lgreco"));
    let table = std::fs::File::open(folder.path().join("table.json")).unwrap();
    let output = command.args(["solve", "-", "--json", "-"]).stdin(table).output().unwrap();
    let read = |json: &[u8]| timeless(PlanFile::parse(json).unwrap());
    assert_eq!(read(&output.stdout), read(from_file.as_bytes()));
}

#[test]
#[cfg(unix)]
fn results_take_the_place_of_older_ones_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("old.json"), "x".repeat(1 << 20)).unwrap();
    std::os::unix::fs::symlink("old.json", path("link.json")).unwrap();
    stdout_in(folder.path(), &["plan", "--json", "link.json", "--plot", "new.svg"]);
    PlanFile::parse(&std::fs::read(path("old.json")).unwrap()).unwrap();
    assert!(std::fs::symlink_metadata(path("link.json")).unwrap().is_symlink());
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["link.json", "new.svg", "old.json"]);
    stdout_in(folder.path(), &["plan", "--json", "/dev/null", "--plot", "/dev/null"]);
}

#[test]
fn devices_lists_what_is_missing_too() {
    let devices = stdout(&["devices"]);
    let line = |name: &str| devices.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("cpu").contains(" available: "));
    for (name, built_in) in [("wgpu", cfg!(feature = "wgpu")), ("cuda", cfg!(feature = "cuda"))] {
        assert!(line(name).contains("available: "), "{devices}");
        let told =
            format!("in lgreco's sources, `cargo run --release --features {name} -- devices` makes one that has it");
        assert_eq!(line(name).contains(&told), !built_in, "{devices}");
    }
}

/// `cargo run` compiles all default members. With wgpu among them, the first build would take three times as long.
#[test]
fn the_first_build_leaves_gpus_out() {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--edges", "normal", "--prefix", "none"]);
    let output = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    // Each line has a package's name, version and folder.
    let has = |name: &str| tree.lines().any(|line| line.starts_with(name));
    assert!(has("lgreco-cli ") && !["cudarc ", "lgreco-cuda ", "wgpu", "lgreco-wgpu "].into_iter().any(has), "{tree}");
}
