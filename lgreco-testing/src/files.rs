//! Checks properties of the file readers on arbitrary bytes.

use super::settings::check_text;
use lgreco::file::{PlanFile, TableFile};
use lgreco::plan::{Plan, budget::Budget};

/// Reads `bytes` as a table, as a plan and as a setting. Whatever can be read must be written and read back unchanged.
/// It must be possible to make a plan file from a table's default plan.
pub fn check_files(bytes: &[u8]) {
    if let Ok(file) = TableFile::parse(bytes) {
        assert_eq!(TableFile::parse(file.to_json().as_bytes()).as_ref(), Ok(&file));
        let view = file.table.view();
        if let Some(options) = file.table.defaults()
            && let Ok(plan) = Plan::from_options(&view, Budget::Absolute(f64::MAX), "uniform", options.clone())
        {
            let as_large = Plan::from_options(&view, Budget::Size(plan.summary().size), "uniform", options);
            for plan in [plan, as_large.expect("it is within its own size")] {
                let plan = PlanFile::new(&file.table, &plan);
                assert_eq!(plan.default_size, Some(plan.size));
                assert_eq!(PlanFile::parse(plan.to_json().as_bytes()), Ok(plan));
            }
        }
    }
    if let Ok(text) = core::str::from_utf8(bytes) {
        check_text(text);
    }
    if let Ok(file) = PlanFile::parse(bytes) {
        assert_eq!(PlanFile::parse(file.to_json().as_bytes()), Ok(file));
    }
}
