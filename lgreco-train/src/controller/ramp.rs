//! Milder compression in the first steps.

use crate::search::Search;
use crate::{CoreError, Error};

/// A ramp-up of compression, like DGC's ramp-up of sparsity (Lin et al., ICLR 2018). The search's default begins at a milder value.
/// Every decision brings this value geometrically closer to the configured default. Budgets that are computed from the default
/// change with the default. Budgets in bits or seconds do not change, so the controller refuses a ramp-up under these budgets.
///
/// A byte that is sent in an early step improves training more than a byte in a late step. At the same total number of bytes, an
/// experiment compared a constant size with a size that falls from twice the constant to half. Compression raised the loss of a
/// transformer. With the falling size, the increase of the loss was a quarter smaller under TopK, and a sixth smaller under
/// PowerSGD (docs/src/experiments/error-feedback.md).
///
/// ```
/// use lgreco_train::controller::{Config, RampUp};
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::TopK).with_default(0.001)?);
/// config.schedule.period = 500;
/// config.ramp_up = Some(RampUp { first: 0.25, steps: 2000 }); // 25 %, 6.3 %, 1.6 %, 0.4 %, then 0.1 %
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RampUp {
    /// The default (bits, density or rank) at the end of the [schedule](super::Schedule)'s uncompressed steps.
    pub first: f64,
    /// Number of steps, after the uncompressed steps, until the search's own default is reached; at least 1.
    pub steps: u64,
}

impl RampUp {
    /// The search with the default that applies `since` steps after the warm-up.
    pub(super) fn of(&self, search: &Search, since: u64) -> Result<Search, Error> {
        let done = (since as f64 / self.steps as f64).min(1.0);
        Ok(search.ramped(self.first, done)?)
    }

    /// `Err` unless `first` is valid in `search`, and policy and budget depend on the default.
    pub(super) fn check(&self, search: &Search, policy_goes: bool, budget_goes: bool) -> Result<(), Error> {
        let require = CoreError::require;
        let (what, first) = ("first default", self.first);
        require(policy_goes, what, first, "no ramp-up under a policy that does not use the default")?;
        require(budget_goes, what, first, "no ramp-up under a budget that does not come from the default")?;
        require(self.steps > 0, "steps of the ramp-up", 0.0, "at least 1")?;
        self.of(search, 0).map(drop)
    }
}
