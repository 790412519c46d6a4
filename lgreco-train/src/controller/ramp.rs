//! Settings that begin mild.

use super::{Budget, Config, Policy};
use crate::{CoreError, Error};
use alloc::sync::Arc;

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

impl Config {
    /// What it is at this step.
    pub(super) fn at(self: &Arc<Self>, step: u64) -> Result<Arc<Self>, Error> {
        let Some(RampUp { first, steps }) = self.ramp_up else { return Ok(self.clone()) };
        let since = step.saturating_sub(self.schedule.warmup);
        let done = (since as f64 / steps as f64).min(1.0);
        Ok(Arc::new(Config { search: self.search.ramped(first, done)?, ..Config::clone(self) }))
    }

    /// Whether the default is another one still.
    pub(super) fn ramps(&self, step: u64) -> bool {
        self.ramp_up.is_some_and(|ramp| step < self.schedule.warmup.saturating_add(ramp.steps))
    }

    pub(super) fn check_ramp_up(&self) -> Result<(), Error> {
        let Some(RampUp { first, steps }) = self.ramp_up else { return Ok(()) };
        let wrong = |what, value, expected| Err(Error::Core(CoreError::Parameter { what, value, expected }));
        match self.policy {
            Policy::Uniform | Policy::KMeans { .. } | Policy::LGreco { accordion: None, .. } => {}
            _ => return wrong("first default", first, "none under a policy that does not go by the default"),
        }
        if matches!(self.budget, Budget::Bits(_) | Budget::Seconds(_)) {
            return wrong("first default", first, "none under a budget that does not go by the default");
        }
        if steps == 0 {
            return wrong("steps of the ramp-up", 0.0, "at least 1");
        }
        self.search.ramped(first, 0.0)?;
        Ok(())
    }
}
