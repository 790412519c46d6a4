//! A bucket of two levels, from gradients to means.
//!
//! ```text
//! node:  all-gather of 16 bytes (new buckets only)
//! node:  reduce-scatter of gradients and statuses (with bf16: an all-to-all)
//!                                                      every rank has its shards' means over the node
//! peers: the compressed exchange of the shards         ... over all nodes
//! peers: all-gather of 16 bytes (failures only)        which rank has failed first
//! node:  all-gather of the means and statuses          all ranks have all means
//! ```
//!
//! A rank's failure is reported in its node's first message, or found in the exchange between nodes. All ranks of this node report
//! the failure to their peers. The last message reports the failure inside each node. So all ranks fail in the same bucket.
//!
//! Between the two messages inside the node, the means of this rank's shards are stored in the gradients, where peers exchange
//! them. So a bucket has memory for messages inside the node only while such a message is under way. `advance.rs` has the order.

use super::layer::{Layer, shards};
use super::messages::{FAULT, Fault, Messages};
use super::{Group, Topology};
#[cfg(doc)]
use crate::CoreError;
use crate::Error;
use crate::controller::Bucket as Shards;
use crate::exchange::{Agreement, Part, Request, Round};
use crate::gradient::ValuesMut;
use alloc::vec;
use alloc::vec::Vec;

/// The collective under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Open,
    /// The bucket has its gradients, and nothing has been sent.
    Submitted,
    Greeting,
    Reducing,
    /// The shards are exchanged between nodes, and the collective of the given part is under way.
    Exchanging(Option<Part>),
    Telling,
    /// Only the last message is left, for which no memory has been provided yet.
    Paused,
    Gathering,
    /// Gradients are means; zeros or NaN if some rank's gradient was not finite.
    Done,
    Failed,
}

/// Layers that are exchanged together in one step, lent by a [`TwoLevel`](super::TwoLevel). This type is used like a
/// [`Bucket`](super::super::Bucket), but each request names the group that performs it.
///
/// [`TwoLevel`](super::TwoLevel) has an example.
pub struct Bucket {
    pub(super) shards: Shards,
    pub(super) layers: Vec<Layer>,
    pub(super) topology: Topology,
    /// Whether the ranks of the node have agreed to exchange these layers together.
    pub(super) agreement: Agreement,
    /// Checksum of everything that the ranks of the node must agree on.
    pub(super) fingerprint: u64,
    pub(super) stage: Stage,
    /// This rank's own error.
    pub(super) own: Option<Error>,
    /// The first failure that this rank knows of.
    pub(super) fault: Fault,
    pub(super) messages: Messages,
    /// Whether the ranks of the node may differ in the bucket's layers.
    pub(super) differs: bool,
    /// The message with which the node's ranks compare the bucket's layers, or the message with the peers' faults.
    pub(super) words: Vec<u64>,
}

impl Bucket {
    /// The layers, in the order of their gradients.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = usize> {
        self.layers.iter().map(|layer| layer.index)
    }

    /// The collectives that [`next`](Bucket::next) will ask for, in order, with their groups and sizes. If the exchange fails,
    /// there are fewer collectives between nodes, and an additional one that reports which rank has failed. After a failure, only
    /// [`is_last`](Bucket::is_last) shows which collective is the last.
    ///
    /// # Errors
    /// The errors of [`Bucket::rounds`](super::super::Bucket::rounds).
    pub fn rounds(&self) -> Result<Vec<(Group, Round)>, Error> {
        let mut all = vec![];
        if self.is_empty() {
            return Ok(all);
        }
        if self.agreement == Agreement::Needed {
            all.push((Group::Node, Round::AllGather { bytes: 8 * FAULT }));
        }
        let Messages { reduction, bytes, .. } = &self.messages;
        all.push((Group::Node, reduction.round(&self.topology)));
        if !self.is_alone() {
            all.extend(self.shards.rounds()?.map(|round| (Group::Peers, round)));
        }
        all.push(match self.messages.is_even() {
            true => (Group::Node, Round::AllGather { bytes: bytes[0] as usize }),
            false => {
                let bytes = bytes.iter().sum::<u64>() as usize;
                (Group::Node, Round::AllGatherEach { bytes, exact: true })
            }
        });
        Ok(all)
    }

    /// Whether the collective under way, or the next one, is the bucket's last.
    pub fn is_last(&self) -> bool {
        self.is_paused() || matches!(self.stage, Stage::Gathering | Stage::Done | Stage::Failed)
    }

    /// Whether [`next_but_last`](Bucket::next_but_last) has reached the bucket's last collective.
    pub fn is_paused(&self) -> bool {
        self.stage == Stage::Paused
    }

    /// Declares that a layer has no gradient on this rank in this step. The values that are submitted for this layer are treated as
    /// zeros. If no rank of the node has a gradient, the residual stays unchanged, as with
    /// [`Bucket::withhold`](super::super::Bucket::withhold).
    ///
    /// # Errors
    /// [`Error::StepOrder`] after [`submit`](Bucket::submit); [`Error::NotInBucket`].
    pub fn withhold(&mut self, layer: usize) -> Result<(), Error> {
        self.expect_open()?;
        let found = self.layers.iter_mut().find(|found| found.index == layer);
        found.ok_or(Error::NotInBucket { layer })?.present = false;
        Ok(())
    }

    /// Takes the gradients of this step, one per layer. If a gradient is invalid, this rank's messages report the error to all
    /// ranks, and [`next`](Bucket::next) fails on all ranks.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when the bucket has gradients already.
    ///
    /// # Complexity
    /// A pass over the gradients.
    pub fn submit(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        self.expect_open()?;
        self.own = self.shards.failure.or(self.own);
        if self.own.is_none() {
            self.own = self.messages.fill(&self.layers, gradients, &self.topology).err();
        }
        self.stage = Stage::Submitted;
        Ok(())
    }

    /// Declares, in place of [`submit`](Bucket::submit), that this rank has no gradients because its trainer failed.
    /// [`next`](Bucket::next) then takes no gradients, and fails on every rank. On this rank, the error is `failure`. If the bucket
    /// has no elements on any rank, it fails on this rank only, and the next bucket or step reports the failure to all ranks.
    ///
    /// # Errors
    /// [`Error::StepOrder`] when the bucket has gradients already.
    pub fn submit_failure(&mut self, failure: Error) -> Result<(), Error> {
        self.expect_open()?;
        self.own = self.shards.failure.or(self.own).or(Some(failure));
        self.stage = Stage::Submitted;
        Ok(())
    }

    fn expect_open(&self) -> Result<(), Error> {
        match self.stage {
            Stage::Open => Ok(()),
            _ => Err(Error::StepOrder {
                what: "the bucket has its gradients already",
                expected: "a bucket before `submit`",
            }),
        }
    }

    /// Computes until the next collective, and returns its request and its group. The previous collective must be complete. `None`
    /// means that the gradients have become means, and that residuals are updated. `gradients` must be the gradients that
    /// [`submit`](Bucket::submit) got.
    ///
    /// All ranks of a group must start the collectives of different buckets in the same order. Peers ask for the same number of
    /// collectives. The ranks of a node may ask for different numbers of collectives before the bucket's last collective. With
    /// separate process groups for each bucket, the order is always the same. Another way is to start no bucket's last collective
    /// before all buckets have reached theirs. All ranks then start the last collectives in the same order; see
    /// [`next_but_last`](Bucket::next_but_last).
    ///
    /// If some rank's gradient is not finite, all gradients of the bucket become zeros or NaN on every rank, according to
    /// [`NonFinite`](super::super::NonFinite). Residuals stay unchanged.
    ///
    /// # Errors
    /// On all ranks alike: the errors of [`Bucket::next`](super::super::Bucket::next), where [`Error::Peer`] has a rank's number
    /// among all ranks. Gradients are then undefined. With [`undo`](super::super::Config::undo), residuals are unchanged. Without
    /// `undo`, some shards may have the residuals from after the step. [`Error::StepOrder`] before [`submit`](Bucket::submit), or
    /// after an error.
    ///
    /// On this rank alone: [`Error::LayerMismatch`] and [`CoreError::Length`] when `gradients` are not the submitted gradients;
    /// [`CoreError::OutOfMemory`] when there is no memory for the last collective, unless the step is
    /// [blocking](super::TwoLevel::step). After these errors, the bucket is unchanged, and the call may be repeated.
    ///
    /// # Complexity
    /// The time of the exchange of this rank's shards, and two passes over the gradients.
    pub fn next<'b>(&'b mut self, gradients: &'b mut [ValuesMut<'_>]) -> Result<Option<(Group, Request<'b>)>, Error> {
        self.advance(gradients)?;
        if self.is_paused() {
            self.advance(gradients)?;
        }
        self.noted_request(gradients)
    }

    /// Like [`next`](Bucket::next), but also returns `None` before the bucket's last collective. In this case,
    /// [`is_paused`](Bucket::is_paused) is true, and `next` returns the last collective. Before `next` is called, the bucket holds
    /// no memory for its last collective, so many buckets can wait at this point.
    ///
    /// # Errors
    /// The errors of [`next`](Bucket::next).
    pub fn next_but_last<'b>(
        &'b mut self,
        gradients: &'b mut [ValuesMut<'_>],
    ) -> Result<Option<(Group, Request<'b>)>, Error> {
        if !self.is_paused() {
            self.advance(gradients)?;
        }
        self.noted_request(gradients)
    }

    /// The collective under way. Counts the collective's bytes if the peers perform it.
    fn noted_request<'b>(
        &'b mut self,
        gradients: &'b mut [ValuesMut<'_>],
    ) -> Result<Option<(Group, Request<'b>)>, Error> {
        if matches!(self.stage, Stage::Exchanging(_)) {
            let nodes = self.topology.nodes;
            let bytes = self.request(gradients)?.map_or(0.0, |(_, request)| request.wire_bytes(nodes));
            self.shards.note_wire(bytes);
        }
        self.request(gradients)
    }

    fn request<'b>(&'b mut self, gradients: &'b mut [ValuesMut<'_>]) -> Result<Option<(Group, Request<'b>)>, Error> {
        let words = bytemuck::cast_slice_mut(&mut self.words);
        Ok(Some(match self.stage {
            Stage::Greeting => (Group::Node, Request::AllGather { buffer: words }),
            Stage::Telling => (Group::Peers, Request::AllGather { buffer: words }),
            Stage::Reducing => (Group::Node, self.messages.reduce()),
            Stage::Exchanging(Some(Part::Dense { place })) => {
                let mut shards = shards(&self.layers, gradients, self.topology.local);
                let ValuesMut::F32(values) = shards.swap_remove(place as usize) else { return Ok(None) };
                (Group::Peers, Request::AllReduceSum { values })
            }
            Stage::Exchanging(Some(part)) => (Group::Peers, self.shards.request(part)?),
            Stage::Gathering => (Group::Node, self.messages.gather()),
            _ => return Ok(None),
        }))
    }

    /// Whether the bucket has no elements on any rank.
    pub(super) fn is_empty(&self) -> bool {
        self.layers.iter().all(|layer| layer.shape.elements() == 0)
    }

    /// Whether this rank and its peers have nothing to exchange.
    pub(super) fn is_alone(&self) -> bool {
        self.layers.iter().all(|layer| layer.len(self.topology.local) == 0)
    }
}
