//! How long the buffers of a bucket are.

use crate::compress::Setting;
use crate::exchange::{Route, is_gathered, is_sharded};

/// How many values a layer has of each of the bucket's buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lens {
    pub mean: usize,
    pub offered: usize,
    pub own: usize,
}

impl Lens {
    pub(super) fn add(self, other: Lens) -> Lens {
        let Lens { mean, offered, own } = self;
        Lens { mean: mean + other.mean, offered: offered + other.offered, own: own + other.own }
    }

    pub(super) fn max(self, other: Lens) -> Lens {
        let Lens { mean, offered, own } = self;
        Lens { mean: mean.max(other.mean), offered: offered.max(other.offered), own: own.max(other.own) }
    }

    pub(super) fn times(self, elements: usize) -> Lens {
        let Lens { mean, offered, own } = self;
        Lens { mean: mean * elements, offered: offered * elements, own: own * elements }
    }

    /// For one element of a layer that has this setting, and a residual (plain or not) or none.
    pub(super) fn with(
        setting: &Setting,
        memory: Option<bool>,
        uncompressed: bool,
        route: Route,
        measured: bool,
    ) -> Lens {
        let kept = memory == Some(false);
        Lens {
            mean: usize::from(!written_over(setting, memory, route, measured)),
            offered: usize::from(kept),
            own: usize::from(kept || measured && (memory.is_some() || !uncompressed)),
        }
    }
}

/// Whether means are written over the gradients as they arrive, with this setting, and a residual (plain or not) or none.
pub(super) fn written_over(setting: &Setting, memory: Option<bool>, route: Route, measured: bool) -> bool {
    let spared = || *setting == Setting::Dense || is_gathered(setting, route) || is_sharded(setting, route);
    !measured && !matches!(setting, Setting::AdaComp(_)) && memory.unwrap_or_else(spared)
}
