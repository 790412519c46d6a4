//! The fuzz targets by name, so that plain tests can replay their seeds.

use lgreco_cli::gradients::Gradients;
use lgreco_core::backend::Portable;
use lgreco_core::plan::{self, Solver, budget::Budget, exact::Limits};
use lgreco_core::search::{Method, Search};
use lgreco_core::testing;

/// A check that any bytes must pass.
pub type Check = fn(&[u8]);

/// Every target in `fuzz/fuzz_targets` and its check.
pub const TARGETS: [(&str, Check); 22] = [
    ("adacomp", testing::adacomp::check_bytes),
    ("adapt", testing::adapt::check_bytes),
    ("arguments", lgreco_cli::testing::arguments::check_arguments),
    ("c_api", c_api),
    ("c_structs", |bytes| _ = lgreco::sequences::structs::check(bytes)),
    ("cut", testing::cut::check_program),
    ("cut_bytes", testing::cut::check_bytes),
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
    ("safetensors", safetensors),
    ("sidco", testing::sidco::check_bytes),
    ("topk", testing::fuzz::topk),
];

/// Calls of the C API in any order, with NULLs, destroyed handles and wrong numbers.
///
/// # Panics
/// When the contract does not hold.
pub fn c_api(bytes: &[u8]) {
    lgreco::sequences::check(bytes);
}

/// Reads `bytes` as a safetensors file. What can be read has gradients as long as their shapes say, under names that
/// differ; of small models the table is measured and planned, and the plan verified, or an error says why not.
///
/// # Panics
/// When a property does not hold.
pub fn safetensors(bytes: &[u8]) {
    let Ok(gradients) = Gradients::parse(bytes.to_vec()) else { return };
    let layers = gradients.layers();
    let mut names: Vec<&str> = layers.iter().map(|layer| layer.name()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two layers have one name");
    for layer in &layers {
        assert_eq!(layer.dims().iter().product::<usize>(), layer.gradient().shape().elements());
        assert_eq!(layer.gradient().values().len(), layer.gradient().shape().elements());
    }
    if bytes.len() > 1 << 14 {
        return;
    }
    for method in Method::ALL {
        let mut search = Search::new(method);
        search.min_elements = 2;
        let Ok(measured) = search.measure(&layers, &mut Portable) else { continue };
        let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
        let solver = Solver::Exact(Limits { states: 1 << 8 });
        let plan = plan::solve(&measured.table.view(), budget, solver).expect("the default plan is within its budget");
        assert_eq!(plan.options().len(), measured.layers.len());
    }
}
