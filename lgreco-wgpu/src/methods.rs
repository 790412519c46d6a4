//! Names of methods, for those that have no kernels.

use lgreco::compress::{Candidates, Setting};

pub(crate) fn of_setting(setting: &Setting) -> &'static str {
    setting.name()
}

pub(crate) fn of_candidates(candidates: &Candidates<'_>) -> &'static str {
    candidates.setting(0).map_or("this method", |setting| of_setting(&setting))
}
