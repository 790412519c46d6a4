//! LEGACY's rule: parameters by the size of a layer and the phase of training.

use crate::search::Search;
use crate::{CoreError, Error};
use alloc::vec::Vec;
use lgreco::error::expect_len;

/// LEGACY's rule ("LEGACY: A Lightweight Dynamic Gradient Compression Strategy", ICLR 2026): one parameter of the search's first
/// method per class of layer size and phase of training. The rule does not use gradients. The authors compress small layers and
/// early phases less.
///
/// The authors' published code has several policies. This policy depends on the size of layers and the epoch. A layer belongs to
/// the first class whose bound exceeds its number of elements. All phases have the same length. As in the authors' code, the user
/// chooses bounds, phases and parameters. There are two deviations. A phase takes effect at the first decision of the
/// [`Schedule`](super::Schedule) in that phase. Layers have error feedback as under any other policy.
///
/// ```
/// use lgreco_train::controller::{Config, Legacy, Policy};
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::TopK));
/// // Layers of fewer than 10,000 elements are sent at 10 %, then 5 %, larger ones at 1 %, then 0.1 %.
/// let levels = vec![vec![0.1, 0.01], vec![0.05, 0.001]];
/// config.policy = Policy::Legacy(Legacy { sizes: vec![10_000], levels, steps: 90_000 });
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Legacy {
    /// Ascending bounds between classes: a layer with at least as many elements as a bound belongs to a later class.
    pub sizes: Vec<u64>,
    /// One row per phase, at least one, with a parameter per class. The number of classes is one more than the number of bounds.
    pub levels: Vec<Vec<f64>>,
    /// Number of training steps, at least 1, divided equally among the phases. The last phase continues after these steps.
    pub steps: u64,
}

impl Legacy {
    /// The parameter of a layer at a step.
    pub(super) fn level(&self, step: u64, elements: u64) -> f64 {
        let phases = self.levels.len();
        let phase = (step as u128 * phases as u128 / self.steps as u128).min(phases as u128 - 1) as usize;
        self.levels[phase][self.sizes.partition_point(|&bound| bound <= elements)]
    }

    pub(super) fn check(&self, search: &Search) -> Result<(), Error> {
        CoreError::require(self.steps > 0, "LEGACY's steps of training", 0.0, "at least 1")?;
        CoreError::require(!self.levels.is_empty(), "LEGACY's phases", 0.0, "at least 1")?;
        for pair in self.sizes.windows(2) {
            let (ascends, expected) = (pair[0] < pair[1], "more than the bound before it");
            CoreError::require(ascends, "LEGACY's bound of sizes", pair[1] as f64, expected)?;
        }
        for levels in &self.levels {
            expect_len("LEGACY's levels of a phase", self.sizes.len() + 1, levels.len())?;
            levels.iter().try_for_each(|&level| search.clone().with_default(level).map(drop))?;
        }
        Ok(())
    }

    /// The rule as numbers, for the comparison between ranks.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let levels = self.levels.iter().flatten().map(|level| level.to_bits());
        [self.steps, self.sizes.len() as u64].into_iter().chain(self.sizes.iter().copied()).chain(levels)
    }
}
