//! How the layers of a bucket use its buffers.

use super::codes::Choice;
use crate::compress::Setting;
use crate::exchange::{Route, is_gathered, is_sharded};

/// How many values layers have of each of the bucket's buffers.
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
}

/// What an exchange does with a layer's buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Whether the residual that goes out with the gradient is plain; `None` without one.
    pub plain: Option<bool>,
    /// Whether means are written over the gradients as they arrive: nobody needs these then.
    pub in_place: bool,
    /// Whether this rank's contribution is written down.
    pub owns: bool,
    /// Whether a layer without a gradient has a residual that takes up what compressing this rank's share of the mean loses.
    pub repays: bool,
}

impl Facts {
    /// Of a layer with a gradient.
    pub(super) fn new(choice: &Choice, plain: Option<bool>, route: Route, measured: bool) -> Facts {
        let setting = &choice.setting;
        let spared = || *setting == Setting::Dense || is_gathered(setting, route) || is_sharded(setting, route);
        Facts {
            plain,
            in_place: !measured && !matches!(setting, Setting::AdaComp(_)) && plain.unwrap_or_else(spared),
            owns: plain == Some(false) || measured && (plain.is_some() || choice.uncompressed.is_none()),
            repays: false,
        }
    }

    pub(super) fn lens(&self, elements: usize) -> Lens {
        let len = |needed: bool| if needed { elements } else { 0 };
        let offered = len(self.plain == Some(false) || self.repays);
        Lens { mean: len(!self.in_place), offered, own: len(self.owns) }
    }
}
