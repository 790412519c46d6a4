//! What the device has written down of what is wrong.

use super::plan::{Plan, Source};
use lgreco_core::internal::payload::STRETCH;

/// Words of faults in front of all layers', per layer, and the one of a lost cut.
const HEAD: usize = 8;
const FAULTS: usize = 7;
const CUT_IS_LOST: usize = 6;

/// Rows of a product of factors that the host makes at a time.
const ROWS: usize = 32;

/// What was wrong with a value of this rank, or with what it got, and with which layer, in the bucket's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferFault {
    /// The gradient's element, or the residual's and its sum, is infinite or NaN.
    NonFinite {
        /// The layer.
        layer: usize,
        /// The element.
        index: usize,
    },
    /// A factor of PowerSGD that this rank was to send has left f32.
    Factor {
        /// The layer.
        layer: usize,
    },
    /// What was to be sent of the element, or its mean, is beyond the type that it has there.
    ElementOverflow {
        /// The layer.
        layer: usize,
        /// The element.
        index: usize,
    },
    /// The sum over the workers, or the product of PowerSGD's mean factors, has left f32.
    Overflow {
        /// The layer.
        layer: usize,
        /// The element.
        index: usize,
    },
    /// No encoder wrote the payload of a rank.
    Payload {
        /// The layer.
        layer: usize,
        /// The rank that sent it.
        rank: u32,
    },
    /// What was to be remembered of the element has left f32, of which other ranks do not know. The mean is sound; this rank's residuals
    /// are as before the step, and it forgets what the step would have left.
    Remembered {
        /// The layer.
        layer: usize,
        /// The element.
        index: usize,
    },
}

impl BufferFault {
    /// The layer.
    pub fn layer(&self) -> usize {
        match *self {
            BufferFault::NonFinite { layer, .. }
            | BufferFault::Factor { layer }
            | BufferFault::ElementOverflow { layer, .. }
            | BufferFault::Overflow { layer, .. }
            | BufferFault::Payload { layer, .. }
            | BufferFault::Remembered { layer, .. } => layer,
        }
    }
}

/// What the device has written down of a bucket.
pub(super) struct Faults<'a> {
    words: Vec<u32>,
    plan: &'a Plan,
}

impl Faults<'_> {
    /// Bytes of them: of all, per layer, and per rank.
    pub(super) fn bytes(plan: &Plan, world: usize) -> u64 {
        4 * (HEAD + FAULTS * plan.members.len() + world) as u64
    }

    /// Those that these bytes begin with.
    pub(super) fn new<'a>(plan: &'a Plan, world: usize, read: &[u8]) -> Faults<'a> {
        Faults { words: bytemuck::pod_collect_to_vec(&read[..Faults::bytes(plan, world) as usize]), plan }
    }

    /// Whether the cut of a layer under TopK is lost.
    pub(super) fn has_lost_cut(&self) -> bool {
        self.words[CUT_IS_LOST] > 0
    }

    /// What is wrong with this rank's own part, as far as it has been sent: uncompressed layers come first, then those under
    /// PowerSGD.
    pub(super) fn of_own(&self) -> Option<BufferFault> {
        let kinds = |layer| {
            let non_finite = self.first(layer, 0).map(|index| BufferFault::NonFinite { layer, index });
            let factor = || self.first(layer, 5).map(|_| BufferFault::Factor { layer });
            let sent = || self.first(layer, 4).map(|index| BufferFault::ElementOverflow { layer, index });
            non_finite.or_else(factor).or_else(sent)
        };
        self.layers(Source::SENT).find_map(kinds)
    }

    /// What is wrong with the means, or else with what is left.
    pub(super) fn of_end(&self) -> Option<BufferFault> {
        let of_means = |layer| self.of_peers(layer).or_else(|| self.of_mean(layer));
        let of_rest = |layer| self.first(layer, 3).map(|index| BufferFault::Remembered { layer, index });
        let found = self.layers(Source::MADE).find_map(of_means);
        found.or_else(|| (0..self.plan.members.len()).find_map(of_rest))
    }

    /// All layers, source by source.
    fn layers(&self, sources: [Source; 3]) -> impl Iterator<Item = usize> {
        let of = move |source| (0..).zip(&self.plan.members).filter(move |(_, member)| member.source() == source);
        sources.into_iter().flat_map(of).map(|(layer, _)| layer)
    }

    /// The first element at fault.
    fn first(&self, layer: usize, kind: usize) -> Option<usize> {
        let word = self.words[HEAD + FAULTS * layer + kind];
        (word > 0).then_some(!word as usize)
    }

    /// The first rank whose payload of the layer no encoder wrote. Payloads of layers behind may be no better.
    fn of_peers(&self, layer: usize) -> Option<BufferFault> {
        let of_ranks = &self.words[HEAD + FAULTS * self.plan.members.len()..];
        let found = (0..).zip(of_ranks).find(|&(_, &word)| word == !(layer as u32));
        found.map(|(rank, _)| BufferFault::Payload { layer, rank })
    }

    /// What is wrong with a layer's mean, which the host makes, and looks at, a stretch at a time.
    fn of_mean(&self, layer: usize) -> Option<BufferFault> {
        let member = &self.plan.members[layer];
        let stretch = match member.source() {
            Source::Factors => ROWS * member.shape().cols().max(1),
            _ => STRETCH,
        };
        match (self.first(layer, 1), self.first(layer, 2)) {
            (Some(index), other) if other.is_none_or(|other| index / stretch <= other / stretch) => {
                Some(BufferFault::Overflow { layer, index })
            }
            (_, other) => other.map(|index| BufferFault::ElementOverflow { layer, index }),
        }
    }
}
