//! Settings that begin mild.

use crate::{CoreError, Error};
use crate::search::Search;

/// A ramp-up of compression, as DGC's of sparsity (Lin et al., ICLR 2018): at first the search's default is another one,
/// milder, and every decision brings it nearer to its own, by a like factor in like times. Budgets follow, because they are
/// those of the default; under a budget of bits or seconds, which does not, a ramp-up is refused.
///
/// Early steps are worth more: at the bytes of a constant size, one that falls from twice to half of it cost a transformer less
/// final loss, under TopK by a quarter and under PowerSGD by a sixth (BENCHMARKS.md).
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
    /// Steps from there to the search's own default, at least 1.
    pub steps: u64,
}

impl RampUp {
    /// The search `since` steps after those without compression.
    pub(super) fn of(&self, search: &Search, since: u64) -> Result<Search, Error> {
        let done = (since as f64 / self.steps as f64).min(1.0);
        Ok(search.ramped(self.first, done)?)
    }

    /// `Err` unless it is one of `search`, under a policy and a budget that go by the default.
    pub(super) fn check(&self, search: &Search, policy_goes: bool, budget_goes: bool) -> Result<(), Error> {
        let require = CoreError::require;
        let (what, first) = ("first default", self.first);
        require(policy_goes, what, first, "none under a policy that does not go by the default")?;
        require(budget_goes, what, first, "none under a budget that does not go by the default")?;
        require(self.steps > 0, "steps of the ramp-up", 0.0, "at least 1")?;
        self.of(search, 0).map(drop)
    }
}
