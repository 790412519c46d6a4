//! The fuzz targets by name, so that plain tests can replay their seeds.

use lgreco_train::testing;

/// A check that any bytes must pass.
pub type Check = fn(&[u8]);

/// Every target in `fuzz/fuzz_targets` and its check.
pub const TARGETS: [(&str, Check); 23] = [
    ("adacomp", testing::adacomp::check_bytes),
    ("adapt", testing::controller::check_bytes),
    ("adapt_state", testing::controller::check_state),
    ("arguments", lgreco_cli::testing::check_arguments),
    ("c_api", |bytes| _ = lgreco::sequences::check(bytes)),
    ("c_structs", |bytes| _ = lgreco::sequences::structs::check(bytes)),
    ("cut", testing::pipeline::check_program),
    ("cut_bytes", testing::pipeline::check_bytes),
    ("dense", testing::fuzz::dense),
    ("feedback", testing::feedback::check_saved_bytes),
    ("files", testing::files::check_files),
    ("hard_threshold", testing::hard_threshold::check_bytes),
    ("loco", testing::loco::check_bytes),
    ("payload", testing::fuzz::payload),
    ("peer", testing::hostile::check_peer),
    ("plan_json", testing::documents::check_documents),
    ("planner", testing::fuzz::planner),
    ("powersgd", testing::fuzz::powersgd),
    ("qsgd", testing::qsgd::check_round_trip),
    ("resume", testing::hostile::check_resume),
    ("safetensors", lgreco_cli::testing::safetensors),
    ("sidco", testing::sidco::check_bytes),
    ("topk", testing::fuzz::topk),
];
