use lgreco::compress::Setting;
use lgreco::file::*;
use lgreco::gradient::{Dtype, Shape};
use lgreco::plan::{Plan, budget::Budget};
use lgreco::table::{Choice, NamedTable};
use lgreco_testing::{files::check_files, tables::Instance};
use proptest::prelude::*;

const TABLE: &str = r#"{"version":1, "metric":"l2", "budget":12.5, "x-note":[{}],
 "layers":[{"name":"fc1.weight","elements":262144,"default":1,
            "options":[{"label":"topk 0.1%","size":16768,"error":3.25}, {"label":"topk 0.2%","size":33536,"error":3.01}]},
           {"name":"fc2 \"é\"","elements":9,
            "options":[{"label":"dense","size":288,"error":0}]}]}"#;

fn message(from: &str, to: &str) -> String {
    assert!(TABLE.contains(from));
    TableFile::parse(TABLE.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_table_file_is_read_and_written() {
    let file = TableFile::parse(TABLE.as_bytes()).unwrap();
    assert_eq!((file.table.metric(), file.budget, file.table.layers()), ("l2", Some(12.5), 2));
    assert_eq!((file.table.name(1), file.table.elements(1), file.table.label(1, 0)), ("fc2 \"é\"", 9, "dense"));
    assert_eq!((file.table.default_option(0), file.table.default_option(1)), (Some(1), None));
    assert_eq!(file.table.view().layer(0)[1], Choice { size: 33536, error: 3.01 });
    assert_eq!(TableFile::parse(file.to_json().as_bytes()), Ok(file));
}

#[test]
fn errors_name_layer_option_and_field() {
    let first = "layer 0 (`fc1.weight`)";
    assert_eq!(message("\"version\":1", "\"version\":2"), "version is 2, expected 1");
    assert_eq!(message("\"version\":1,", ""), "version is missing, expected 1");
    assert_eq!(message("\"l2\"", "7"), "metric is 7, expected a string");
    assert_eq!(message("12.5", "-12.5"), "budget is -12.5, expected a finite number >= 0");
    assert_eq!(message("12.5", "1e999"), "budget is 1e999, expected a finite number >= 0");
    assert_eq!(message("\"name\":\"fc1.weight\",", ""), "layer 0: name is missing, expected a string");
    assert_eq!(message("262144", "1.5"), format!("{first}: elements is 1.5, expected an integer from 0 to 2^64 - 1"));
    assert_eq!(message("\"default\":1", "\"default\":2"), "layer `fc1.weight`: there is no option 2 of 2");
    assert_eq!(
        message("\"default\":1", "\"default\":-1"),
        format!("{first}: default is -1, expected the index of an option")
    );
    assert_eq!(
        message("33536", "18446744073709551616"),
        format!("{first}, option 1: size is 18446744073709551616, expected an integer from 0 to 2^64 - 1")
    );
    assert_eq!(message("3.25", "1e999"), format!("{first}, option 0: error is 1e999, expected a finite number >= 0"));
    assert_eq!(message("3.25", "NaN"), "expected value at line 3 column 66");
    assert_eq!(message("3.25", "\"3\""), format!("{first}, option 0: error is \"3\", expected a finite number >= 0"));
    assert_eq!(
        message("3.25", "-3.25"),
        "layer `fc1.weight`, option 0 (`topk 0.1%`): error is -3.25, expected a finite number >= 0"
    );
    assert!(TableFile::parse(b"[1]").unwrap_err().to_string().contains("expected a map"));
    let doubled = TABLE.replace("fc2 \\\"é\\\"", "fc1.weight");
    let error = TableFile::parse(doubled.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "layer `fc1.weight`: layers 0 and 1 share this name");
    let long = message("\"l2\"", &format!("[{}]", "1,".repeat(99) + "1"));
    assert!(long.starts_with("metric is [1,1,") && long.ends_with("…, expected a string"), "{long}");
    assert_eq!(TableFile::parse(b"\xff").unwrap_err().to_string().split(':').next(), Some("not UTF-8"));
    assert_eq!(
        TableFile::parse(br#"{"version":1,"metric":"","layers":[]}"#).unwrap_err().to_string(),
        "the table has no layers: a search leaves out vectors and layers of fewer than `min_elements` elements"
    );
}

#[test]
fn keys_that_are_there_twice_are_named() {
    assert_eq!(
        message("\"metric\":\"l2\"", "\"metric\":\"l2\",\"metric\":\"l3\""),
        "key `metric` is there twice at line 1 column 36"
    );
    let option = message("\"size\":16768", "\"size\":16768,\"size\":2");
    assert!(option.starts_with("layer 0 (`fc1.weight`), option 0: key `size` is there twice"), "{option}");
    let layer = message("\"elements\":9", "\"elements\":9,\"name\":\"x\"");
    assert!(layer.starts_with("layer 1: key `name` is there twice"), "{layer}");
    for twice in [r#"{"version":1,"version":1}"#, r#"{"version":1,"solver":"a","solver":"b"}"#] {
        assert!(PlanFile::parse(twice.as_bytes()).unwrap_err().to_string().contains("is there twice"));
    }
}

#[test]
fn files_of_the_other_kind_are_told() {
    let table = TableFile::parse(TABLE.as_bytes()).unwrap();
    let plan = Plan::from_options(&table.table.view(), Budget::Absolute(1e9), "by hand", vec![0, 0]).unwrap();
    let plan = PlanFile::new(&table.table, &plan).to_json();
    let refused = TableFile::parse(plan.as_bytes()).unwrap_err().to_string();
    assert_eq!(refused, "this is a plan, expected a table");
    let refused = PlanFile::parse(TABLE.as_bytes()).unwrap_err().to_string();
    assert_eq!(refused, "this is a table, expected a plan");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    let own = "(keys of your own begin with `x-`)";
    assert_eq!(message("\"budget\"", "\"bugdet\""), format!("key `bugdet` is unknown: is `budget` meant? {own}"));
    assert_eq!(
        message("\"default\":1", "\"Default\":1"),
        format!("layer 0 (`fc1.weight`): key `Default` is unknown: is `default` meant? {own}")
    );
    assert_eq!(
        message("\"size\":288", "\"size\":288,\"sise\":1"),
        format!("layer 1 (`fc2 \"é\"`), option 0: key `sise` is unknown: is `size` meant? {own}")
    );
    for key in ["x", "X-note", "note", "", "é"] {
        assert!(message("x-note", key).starts_with(&format!("key `{key}` is unknown: is `")), "{key}");
    }
    assert!(message("x-note", &"n".repeat(99)).starts_with(&format!("key `{}…` is unknown", "n".repeat(40))));
    let theirs = TABLE.replace("\"size\"", "\"x-\":{},\"size\"").replace("\"name\"", "\"x-1\":null,\"name\"");
    assert_eq!(TableFile::parse(theirs.as_bytes()), TableFile::parse(TABLE.as_bytes()));

    let plan = r#"{"version":1, "solver":"exact", "size":1, "lower_bound":1, "proven":true, "error":0, "budget":1,
        "uncompressed_size":2, "layers":[{"name":"a", "option":0, "label":"b", "size":1, "error":0}],
        "seconds":{"solve":1}}"#;
    let refused = |from: &str, to: &str| {
        assert!(plan.contains(from));
        PlanFile::parse(plan.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
    };
    assert_eq!(refused("\"proven\"", "\"proved\""), format!("key `proved` is unknown: is `proven` meant? {own}"));
    assert_eq!(refused("\"label\"", "\"lable\""), format!("layer 0: key `lable` is unknown: is `label` meant? {own}"));
    assert_eq!(
        refused("\"solve\"", "\"solved\""),
        format!("seconds: key `solved` is unknown: is `solve` meant? {own}")
    );
    assert_eq!(refused("\"budget\":1", "\"budget\":-1"), "budget is -1, expected a number >= 0");
    assert_eq!(
        refused("\"size\":1, \"error\":0}", "\"size\":1, \"error\":-0.5}"),
        "layer 0: error is -0.5, expected a number >= 0"
    );
    assert_eq!(refused("{\"solve\":1}", "{\"measure\":-1e-9}"), "seconds: measure is -1e-9, expected a number >= 0");
    assert_eq!(
        refused("[{\"name\":\"a\", \"option\":0, \"label\":\"b\", \"size\":1, \"error\":0}]", "[]"),
        "layers is [], expected at least one layer"
    );
    let theirs = plan.replace("\"size\"", "\"x-a\":1,\"size\"").replace("\"solve\":", "\"x-b\":[],\"solve\":");
    assert_eq!(PlanFile::parse(theirs.as_bytes()), PlanFile::parse(plan.as_bytes()));
}

#[test]
fn integers_may_be_written_as_floats_up_to_2_to_the_53() {
    let parse = |from: &str, to: &str| TableFile::parse(TABLE.replacen(from, to, 1).as_bytes());
    let plain = parse("262144", "262144").unwrap();
    for (from, to) in [
        ("\"version\":1", "\"version\":1.0"),
        ("262144", "2.62144e5"),
        ("16768", "16768.0"),
        ("default\":1", "default\":1e0"),
    ] {
        assert_eq!(parse(from, to).as_ref(), Ok(&plain), "{to}");
    }
    assert_eq!(parse("16768", "9007199254740992.0").unwrap().table.view().layer(0)[0].size, 1 << 53);
    for wrong in ["9007199254740994.0", "-1.0", "0.5", "1e300", "true"] {
        assert!(parse("16768", wrong).is_err(), "{wrong}");
    }
    assert!(parse("default\":1", "default\":4294967296").is_err());
    let plan = r#"{"version":1.0, "solver":"exact", "size":1e3, "lower_bound":4, "proven":true, "error":0, "budget":1,
        "uncompressed_size":2.0, "default_size":null, "layers":[{"name":"a", "option":0.0, "label":"b", "size":1e3, "error":0}]}"#;
    let plan = PlanFile::parse(plan.as_bytes()).unwrap();
    assert_eq!((plan.size, plan.uncompressed_size, plan.default_size, plan.layers[0].option), (1000, 2, None, 0));
}

#[test]
fn null_is_as_good_as_missing_where_a_field_may_be_missing() {
    let nulls =
        TABLE.replacen("12.5", "null", 1).replacen("\"default\":1", "\"default\":null,\"uncompressed_size\":null", 1);
    let file = TableFile::parse(nulls.as_bytes()).unwrap();
    assert_eq!((file.budget, file.table.default_option(0), file.table.uncompressed_size(0)), (None, None, None));
}

#[test]
fn a_budget_that_is_not_finite_does_not_read_as_none() {
    let mut file = TableFile::parse(TABLE.as_bytes()).unwrap();
    for (budget, text) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        file.budget = Some(budget);
        let refused = TableFile::parse(file.to_json().as_bytes()).unwrap_err().to_string();
        assert_eq!(refused, format!("budget is \"{text}\", expected a finite number >= 0"));
    }
}

#[test]
fn a_lower_bound_above_the_plan_is_refused() {
    let told = |lower_bound: &str, limit: &str| {
        let json = format!(
            r#"{{"version":1, "solver":"exact", "size":4192, "lower_bound":{lower_bound}, "proven":false, "error":0.5, {limit},
            "uncompressed_size":2, "layers":[{{"name":"a", "option":0, "label":"b", "size":4192, "error":0.5}}]}}"#
        );
        PlanFile::parse(json.as_bytes()).map(|_| ()).map_err(|error| error.to_string())
    };
    let (budget, limit) = ("\"budget\":1", "\"size_limit\":5000");
    assert_eq!((told("4192", budget), told("0.5", limit)), (Ok(()), Ok(())));
    let refused = told("999999", budget);
    assert_eq!(refused, Err("lower_bound is 999999, expected a number of at most the size".into()));
    assert_eq!(told("0.6", limit), Err("lower_bound is 0.6, expected a number of at most the error".into()));
}

#[test]
fn a_byte_order_mark_is_named() {
    for error in [
        TableFile::parse(format!("\u{feff}{TABLE}").as_bytes()).unwrap_err(),
        PlanFile::parse("\u{feff}{}".as_bytes()).unwrap_err(),
    ] {
        assert_eq!(error.to_string(), "a byte order mark in front: JSON has none");
    }
}

#[test]
fn the_uncompressed_size_is_kept_and_counted() {
    let file = TABLE.replacen("\"elements\":262144", "\"elements\":262144,\"uncompressed_size\":4194304", 1);
    let file = TableFile::parse(file.as_bytes()).unwrap();
    assert_eq!((file.table.uncompressed_size(0), file.table.uncompressed_size(1)), (Some(16 * 262144), None));
    assert_eq!(TableFile::parse(file.to_json().as_bytes()).as_ref(), Ok(&file));
    let plan = Plan::from_options(&file.table.view(), Budget::Absolute(9.0), "by hand", vec![0, 0]).unwrap();
    assert_eq!(PlanFile::new(&file.table, &plan).uncompressed_size, 16 * 262144 + 32 * 9);
    assert_eq!(
        message("262144", "262144,\"uncompressed_size\":-1"),
        "layer 0 (`fc1.weight`): uncompressed_size is -1, expected an integer from 0 to 2^64 - 1"
    );
}

/// JSON that is nested too deeply for the stack is refused.
#[test]
fn deep_nesting_is_an_error() {
    for open in ["[", "{\"a\":", "{\"version\":"] {
        assert!(TableFile::parse(open.repeat(100_000).as_bytes()).is_err());
        assert!(PlanFile::parse(open.repeat(100_000).as_bytes()).is_err());
    }
}

fn named(instance: &Instance) -> TableFile {
    let mut builder = NamedTable::builder("l2");
    for (layer, options) in instance.table().iter().enumerate() {
        let labelled = options.iter().enumerate().map(|(option, &choice)| (format!("option {option}"), choice));
        builder.layer(format!("layer {layer}"), 7, Some(instance.defaults[layer]), labelled);
    }
    TableFile { table: builder.build().unwrap(), budget: Some(instance.budget) }
}

proptest! {
    #[test]
    fn files_read_back_to_the_same_bits(seed in any::<u64>()) {
        let file = named(&Instance::from_seed(seed, 6, 6));
        check_files(file.to_json().as_bytes());
        prop_assert_eq!(TableFile::parse(file.to_json().as_bytes()), Ok(file));
    }

    #[test]
    fn any_bytes_are_read_without_panic(at in 0usize..TABLE.len(), len in 0usize..9, with in any::<Vec<u8>>()) {
        let mut bytes = TABLE.as_bytes().to_vec();
        bytes.splice(at..(at + len).min(TABLE.len()), with.iter().copied());
        check_files(&bytes);
        check_files(&with);
    }
}

#[test]
fn settings_are_read_from_both_kinds_of_files() {
    let with = |setting: &str| TABLE.replacen("\"size\":16768", &format!("\"setting\":{setting},\"size\":16768"), 1);
    let mut file = TableFile::parse(with("\"topk 262 bf16\"").as_bytes()).unwrap();
    assert_eq!((file.table.setting(0, 0), file.table.setting(0, 1)), ("topk 262 bf16".parse().ok(), None));
    assert_eq!(TableFile::parse(file.to_json().as_bytes()).as_ref(), Ok(&file));
    assert_eq!(TableFile::parse(with("null").as_bytes()), TableFile::parse(TABLE.as_bytes()));
    let refused = |setting| TableFile::parse(with(setting).as_bytes()).unwrap_err().to_string();
    let place = "layer 0 (`fc1.weight`), option 0: ";
    assert_eq!(refused("\"topk 2 bf17\""), format!("{place}setting: `bf17` is unknown: is `bf16` meant?"));
    assert_eq!(refused("\"qsgd 9\""), format!("{place}bits is 9, expected 1 to 8"));
    assert_eq!(refused("7"), format!("{place}setting is 7, expected a setting as text"));

    file.table.set_setting(1, 0, Setting::Dense);
    let plan = Plan::from_options(&file.table.view(), Budget::Absolute(9.0), "by hand", vec![0, 0]).unwrap();
    let plan = PlanFile::new(&file.table, &plan);
    assert_eq!([0, 1].map(|layer| plan.layers[layer].setting), [file.table.setting(0, 0), Some(Setting::Dense)]);
    let json = plan.to_json();
    assert_eq!(PlanFile::parse(json.as_bytes()), Ok(plan));
    let misspelt = json.replace("topk 262 bf16", "topk 262 bf16 bf16");
    assert_eq!(
        PlanFile::parse(misspelt.as_bytes()).unwrap_err().to_string(),
        "layer 0: setting: found `bf16`, expected each parameter once"
    );
}

#[test]
fn settings_are_found_by_name() {
    let layer = |name: &str, setting: &str| {
        format!(r#"{{"name":"{name}", "option":0, "label":"its label", {setting} "size":1, "error":0}}"#)
    };
    let plan = |layers: &[String]| {
        let json = format!(
            r#"{{"version":1, "solver":"exact", "size":1, "lower_bound":1, "proven":true, "error":0, "budget":1,
            "uncompressed_size":2, "layers":[{}]}}"#,
            layers.join(",")
        );
        PlanFile::parse(json.as_bytes()).unwrap()
    };
    let (shape, dtype) = (Shape::new(10, 10).unwrap(), Dtype::F32);
    let model = ["bias", "head", "body"].map(|name| (name, shape, dtype));
    let (top, low_rank) = (r#""setting":"topk 100","#, r#""setting":"powersgd 2 iterations 5","#);

    let settings = plan(&[layer("body", top), layer("head", low_rank)]).settings(model).unwrap();
    assert_eq!(
        settings.iter().map(Setting::to_string).collect::<Vec<_>>(),
        ["dense", "powersgd 2 iterations 5", "topk 100"]
    );

    let message = |layers: &[String]| plan(layers).settings(model).unwrap_err().to_string();
    assert_eq!(
        message(&[layer("body", top), layer("haed", low_rank), layer("a", top)]),
        "layer `haed`: unknown layer, expected one of the model's"
    );
    assert_eq!(message(&[layer("body", top), layer("body", top)]), "layer `body`: layers 0 and 1 share this name");
    let too_many = message(&[layer("body", r#""setting":"topk 101","#)]);
    assert_eq!(
        too_many,
        "layer `body`: kept elements is 101, expected between 1 and the number of elements (0 if there are none)"
    );
    assert_eq!(message(&[layer("body", "")]), "layer `body`: the plan has no setting for its option `its label`");
    let twice = plan(&[layer("body", top)]).settings([model[0], model[2], model[2]]).unwrap_err();
    assert_eq!(twice.to_string(), "layer `body`: layers 1 and 2 share this name");
}

#[test]
fn groups_and_fixed_options_are_read_and_written() {
    let tied = TABLE.replace("\"elements\":9,", "\"elements\":9,\"group\":\"tied \\\"é\\\"\",\"fixed\":0,");
    let file = TableFile::parse(tied.as_bytes()).unwrap();
    assert_eq!((file.table.group(1), file.table.fixed_option(1)), (Some("tied \"é\""), Some(0)));
    assert_eq!((file.table.group(0), file.table.fixed_option(0)), (None, None));
    assert_eq!(TableFile::parse(file.to_json().as_bytes()), Ok(file));
    let none = TABLE.replace("\"elements\":9,", "\"elements\":9,\"group\":null,\"fixed\":null,");
    assert_eq!(TableFile::parse(none.as_bytes()), TableFile::parse(TABLE.as_bytes()));

    let refused = |with: &str| message("\"elements\":9", &format!("\"elements\":9,{with}"));
    assert_eq!(refused("\"fixed\":1"), "layer `fc2 \"é\"`: there is no option 1 of 1");
    let place = "layer 1 (`fc2 \"é\"`)";
    assert_eq!(refused("\"fixed\":\"dense\""), format!("{place}: fixed is \"dense\", expected the index of an option"));
    assert_eq!(refused("\"group\":7"), format!("{place}: group is 7, expected the name of a group"));
    let both = TABLE.replace("\"elements\":", "\"group\":\"g\",\"elements\":");
    assert_eq!(
        TableFile::parse(both.as_bytes()).unwrap_err().to_string(),
        "layer `fc2 \"é\"`: none of its options is shared by all layers of its group, the first of which is layer 0, counted from 0; \
         compare their labels and fixed options"
    );
}
