//! Names of methods, for those that have no kernels.

use lgreco::compress::{Candidates, Setting};

pub(crate) fn of_setting(setting: &Setting) -> &'static str {
    match setting {
        Setting::Dense => "dense",
        Setting::Qsgd(_) => "QSGD",
        Setting::TopK(_) => "TopK",
        Setting::QuantisedTopK(_) => "TopK in few bits",
        Setting::PowerSgd(_) => "PowerSGD",
        Setting::CltK(_) => "CLT-k",
        Setting::HardThreshold(_) => "hard threshold",
        Setting::AdaComp(_) => "AdaComp",
        Setting::LoCo(_) => "LoCo",
        Setting::Sidco(_) => "SIDCo",
        Setting::Own(_) => "an outside method",
    }
}

pub(crate) fn of_candidates(candidates: &Candidates<'_>) -> &'static str {
    candidates.setting(0).map_or("this method", |setting| of_setting(&setting))
}
