//! The fuzz targets by name, so that plain tests can replay their seeds.

/// A check that any bytes must pass.
pub type Check = fn(&[u8]);

/// Every target in `fuzz/fuzz_targets` and its check.
pub const TARGETS: [(&str, Check); 24] = [
    ("adacomp", lgreco_testing::adacomp::check_bytes),
    ("adapt", lgreco_testing::controller::check_bytes),
    ("adapt_state", lgreco_testing::controller::check_state),
    ("arguments", lgreco_cli::testing::check_arguments),
    ("c_api", |bytes| _ = lgreco_c::sequences::check(bytes)),
    ("c_structs", |bytes| _ = lgreco_c::sequences::structs::check(bytes)),
    ("cut", lgreco_testing::pipeline::check_program),
    ("cut_bytes", lgreco_testing::pipeline::check_bytes),
    ("dense", lgreco_testing::fuzz::dense),
    ("eden", lgreco_testing::eden::check_round_trip),
    ("feedback", lgreco_testing::feedback::check_saved_bytes),
    ("files", lgreco_testing::files::check_files),
    ("hard_threshold", lgreco_testing::hard_threshold::check_bytes),
    ("loco", lgreco_testing::loco::check_bytes),
    ("payload", lgreco_testing::fuzz::payload),
    ("peer", lgreco_testing::hostile::check_peer),
    ("plan_json", lgreco_testing::documents::check_documents),
    ("planner", lgreco_testing::fuzz::planner),
    ("powersgd", lgreco_testing::fuzz::powersgd),
    ("qsgd", lgreco_testing::qsgd::check_round_trip),
    ("resume", lgreco_testing::hostile::check_resume),
    ("safetensors", lgreco_cli::testing::safetensors),
    ("sidco", lgreco_testing::sidco::check_bytes),
    ("topk", lgreco_testing::fuzz::topk),
];
