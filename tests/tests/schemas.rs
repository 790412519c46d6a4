//! The JSON Schemas in `schemas/` and the readers and writers of `lgreco_train::file` agree.

use jsonschema::Validator;
use lgreco_cli::gradients::Gradients;
use lgreco_testing::documents::document;
use lgreco_train::backend::Portable;
use lgreco_train::file::{PlanFile, Seconds, TableFile};
use lgreco_train::plan::{self, Solver, budget::Budget};
use lgreco_train::search::{Method, Search};
use serde_json::{Value, json};

fn schema(name: &str) -> Validator {
    let path = format!("{}/../schemas/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

#[track_caller]
fn assert_valid(schema: &Validator, json: &str) {
    let value: Value = serde_json::from_str(json).unwrap();
    let errors: Vec<String> =
        schema.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn files_of_every_method_are_valid() {
    let (table_schema, plan_schema) = (schema("table"), schema("plan"));
    let gradients = Gradients::sample();
    for method in Method::ALL {
        let measured = Search::new(method).measure(&gradients.layers(), &mut Portable).unwrap();
        let file = TableFile { table: measured.table, budget: None };
        assert_valid(&table_schema, &file.to_json());
        let budgeted = TableFile { budget: Some(12.5), ..file.clone() };
        assert_valid(&table_schema, &budgeted.to_json());

        let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
        let plan = plan::solve(&file.table.view(), budget, Solver::default()).unwrap();
        let mut plan = PlanFile::new(&file.table, &plan);
        assert_valid(&plan_schema, &plan.to_json());
        plan.seconds = Seconds { measure: Some(0.25), solve: Some(1e-6) };
        assert_valid(&plan_schema, &plan.to_json());
    }
}

#[test]
fn what_the_table_schema_refuses_the_reader_refuses() {
    let schema = schema("table");
    let good = json!({"version": 1, "metric": "l2", "budget": 12.5, "x-note": "keys of one's own are ignored", "layers": [
        {"name": "fc1.weight", "elements": 262144, "default": 1,
         "options": [{"label": "a", "setting": "topk 262", "size": 16768, "error": 3.25}, {"label": "b", "size": 33536, "error": 3}]}]});
    assert!(schema.is_valid(&good));
    assert!(TableFile::parse(good.to_string().as_bytes()).is_ok());
    let changes: [(&str, Value); 17] = [
        ("/version", json!(2)),
        ("/version", json!("1")),
        ("/metric", json!(7)),
        ("/budget", json!(-1)),
        ("/budget", json!("12.5")),
        ("/layers", json!([])),
        ("/layers", json!({})),
        ("/layers/0/name", json!(null)),
        ("/layers/0/elements", json!(-3)),
        ("/layers/0/elements", json!(0.5)),
        ("/layers/0/default", json!(-1)),
        ("/layers/0/options", json!([])),
        ("/layers/0/options/0/label", json!(1)),
        ("/layers/0/options/0/setting", json!(262)),
        ("/layers/0/options/0/size", json!(-1)),
        ("/layers/0/options/0/size", json!(1.5)),
        ("/layers/0/options/1/error", json!(-0.25)),
    ];
    for (place, wrong) in changes {
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap() = wrong.clone();
        assert!(!schema.is_valid(&bad), "{place} {wrong} passes the schema");
        assert!(TableFile::parse(bad.to_string().as_bytes()).is_err(), "{place} {wrong} passes the reader");
    }
    for place in ["", "/layers/0", "/layers/0/options/0"] {
        let with = |key: &str| {
            let mut other = good.clone();
            other.pointer_mut(place).unwrap()[key] = json!(1);
            (schema.is_valid(&other), TableFile::parse(other.to_string().as_bytes()).is_ok())
        };
        assert_eq!((with("note"), with("x-b")), ((false, false), (true, true)), "{place}");
    }
    for (place, key) in
        [("", "version"), ("", "metric"), ("", "layers"), ("/layers/0", "name"), ("/layers/0", "options")]
    {
        let mut bad = good.clone();
        bad.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(key);
        assert!(!schema.is_valid(&bad), "without {key} it passes the schema");
        assert!(TableFile::parse(bad.to_string().as_bytes()).is_err(), "without {key} it passes the reader");
    }
}

/// Integers may be written as 3.0, and optional fields may be null.
#[test]
fn what_the_schemas_take_the_readers_take() {
    let table = r#"{"version": 1.0, "metric": "l2", "budget": null, "layers": [
        {"name": "fc1.weight", "elements": 2.5e3, "uncompressed_size": 4e4, "default": 0.0,
         "options": [{"label": "a", "size": 16768.0, "error": 3}]},
        {"name": "fc2.weight", "elements": 7, "uncompressed_size": null, "default": null,
         "options": [{"label": "a", "setting": null, "size": 1, "error": 0}]}]}"#;
    assert_valid(&schema("table"), table);
    assert_valid(&schema("table"), &TableFile::parse(table.as_bytes()).unwrap().to_json());
    let plan = r#"{"version": 1.0, "solver": "exact", "size": 1e3, "lower_bound": 4.5, "proven": false, "error": 0,
        "budget": 1, "uncompressed_size": 2.0, "default_size": null, "seconds": {"measure": null, "solve": null},
        "layers": [{"name": "a", "option": 0.0, "label": "b", "setting": null, "size": 1e3, "error": 0}]}"#;
    assert_valid(&schema("plan"), plan);
    assert_valid(&schema("plan"), &PlanFile::parse(plan.as_bytes()).unwrap().to_json());
    for place in ["", "/layers/0", "/seconds"] {
        let with = |key: &str| {
            let mut other: Value = serde_json::from_str(plan).unwrap();
            other.pointer_mut(place).unwrap()[key] = json!(1);
            (schema("plan").is_valid(&other), PlanFile::parse(other.to_string().as_bytes()).is_ok())
        };
        assert_eq!((with("note"), with("x-b")), ((false, false), (true, true)), "{place}");
    }
}

/// Tests files with changed tokens. If a reader accepts a file, the schema accepts both the file and its rewritten
/// form.
#[test]
fn what_the_readers_take_the_schemas_take() {
    let (tables, plans) = (schema("table"), schema("plan"));
    let (mut state, mut read) = (1u64, [0, 0]);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..4 + 3 * (next() % 2)).map(|_| next()).collect();
        let json = document(&bytes);
        // A file may contain numbers beyond f64 in fields that the reader skips. `Value` cannot hold them.
        let Ok(value) = serde_json::from_str::<Value>(&json) else { continue };
        if let Ok(file) = TableFile::parse(json.as_bytes()) {
            assert!(tables.is_valid(&value), "the reader takes a table that the schema refuses: {json}");
            assert_valid(&tables, &file.to_json());
            read[0] += 1;
        }
        if let Ok(file) = PlanFile::parse(json.as_bytes()) {
            assert!(plans.is_valid(&value), "the reader takes a plan that the schema refuses: {json}");
            assert_valid(&plans, &file.to_json());
            read[1] += 1;
        }
    }
    assert!(read.iter().all(|&count| count > 50), "only {read:?} were read");
}
