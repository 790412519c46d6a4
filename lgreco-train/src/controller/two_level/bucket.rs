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
//! A rank's failure is reported in its node's first message, or found in the exchange between nodes. All ranks of its node report
//! it to their peers. The last message reports it inside each node. So all ranks fail in the same bucket.

use super::layer::Layer;
use super::messages::{FAULT, Fault, Messages, judge_faults};
use super::{Group, Topology};
use crate::Error;
use crate::controller::Bucket as Shards;
use crate::controller::bucket::Progress;
use crate::exchange::{Agreement, Part, Request, Round, Slip, judge};
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
    /// The shards are exchanged between nodes. The collective of this part is under way.
    Exchanging(Option<Part>),
    Telling,
    Gathering,
    /// Gradients are means; zeros or NaN if some rank's gradient was not finite.
    Done,
    Failed,
}

/// Layers that are exchanged together in one step, lent by a [`TwoLevel`](super::TwoLevel). It is used like a
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
    /// there are fewer collectives between nodes, and an additional one that reports which rank has failed. In that case, only
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

    /// Whether the collective under way is the bucket's last.
    pub fn is_last(&self) -> bool {
        matches!(self.stage, Stage::Gathering | Stage::Done | Stage::Failed)
    }

    /// Declares that a layer has no gradient on this rank in this step. The values that are submitted for it count as zeros. If no
    /// rank of the node has a gradient, the residual stays unchanged, as with [`Bucket::withhold`](super::super::Bucket::withhold).
    ///
    /// # Errors
    /// [`Error::StepOrder`] after [`submit`](Bucket::submit); [`Error::NotInBucket`].
    pub fn withhold(&mut self, layer: usize) -> Result<(), Error> {
        self.expect_open()?;
        let found = self.layers.iter_mut().find(|found| found.index == layer);
        found.ok_or(Error::NotInBucket { layer })?.present = false;
        Ok(())
    }

    /// Takes the gradients of this step, one per layer. If a gradient is invalid, this rank's messages report that to all ranks,
    /// and [`next`](Bucket::next) fails on all of them.
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
    /// means that the gradients have become means, and that residuals are updated. `gradients` must be the ones given to
    /// [`submit`](Bucket::submit).
    ///
    /// All ranks of a group must start the collectives of different buckets in the same order. Peers ask for the same number of
    /// collectives. The ranks of a node may ask for different numbers before the bucket's last collective. There are two ways to
    /// keep the order. Either each bucket has its own process groups. Or the last collectives wait until all buckets have reached
    /// theirs, and then start in the same order on all ranks. [`is_last`](Bucket::is_last) recognises the last one, and
    /// [`request`](Bucket::request) returns it again.
    ///
    /// If some rank's gradient is not finite, all gradients of the bucket become zeros or NaN on every rank, according to
    /// [`NonFinite`](super::super::NonFinite). Residuals stay unchanged.
    ///
    /// # Errors
    /// On all ranks alike: the errors of [`Bucket::next`](super::super::Bucket::next), where [`Error::Peer`] has a rank's number
    /// among all ranks. Gradients are then undefined. With [`undo`](super::super::Config::undo), residuals are unchanged. Without
    /// it, some shards may have the residuals from after the step. [`Error::StepOrder`] before [`submit`](Bucket::submit), or after
    /// an error.
    ///
    /// # Complexity
    /// The time of the exchange of this rank's shards, and two passes over the gradients.
    pub fn next<'b>(&'b mut self, gradients: &'b mut [ValuesMut<'_>]) -> Result<Option<(Group, Request<'b>)>, Error> {
        self.advance(gradients)?;
        if matches!(self.stage, Stage::Exchanging(_)) {
            let nodes = self.topology.nodes;
            let bytes = self.request()?.map_or(0.0, |(_, request)| request.wire_bytes(nodes));
            self.shards.note_wire(bytes);
        }
        self.request()
    }

    /// Returns the request of the last call of [`next`](Bucket::next) again.
    ///
    /// # Errors
    /// Only the errors of [`next`](Bucket::next).
    pub fn request(&mut self) -> Result<Option<(Group, Request<'_>)>, Error> {
        let words = bytemuck::cast_slice_mut(&mut self.words);
        Ok(Some(match self.stage {
            Stage::Greeting => (Group::Node, Request::AllGather { buffer: words }),
            Stage::Telling => (Group::Peers, Request::AllGather { buffer: words }),
            Stage::Reducing => (Group::Node, self.messages.reduction.request()),
            Stage::Exchanging(Some(Part::Dense { place })) => {
                let mut shards = self.messages.shards(&self.layers, &self.topology);
                let ValuesMut::F32(values) = shards.swap_remove(place as usize) else { return Ok(None) };
                (Group::Peers, Request::AllReduceSum { values })
            }
            Stage::Exchanging(Some(part)) => (Group::Peers, self.shards.request(part)?),
            Stage::Gathering => {
                let len = self.messages.bytes.iter().sum::<u64>() as usize / 8;
                let is_even = self.messages.is_even();
                let Messages { bytes, means, .. } = &mut self.messages;
                let buffer = bytemuck::cast_slice_mut(&mut means[..len]);
                let request = match is_even {
                    true => Request::AllGather { buffer },
                    false => Request::AllGatherEach { lens: bytes, buffer },
                };
                (Group::Node, request)
            }
            Stage::Open | Stage::Submitted | Stage::Exchanging(None) | Stage::Done | Stage::Failed => return Ok(None),
        }))
    }

    /// Whether the bucket has no elements on any rank.
    fn is_empty(&self) -> bool {
        self.layers.iter().all(|layer| layer.shape.elements() == 0)
    }

    /// Whether this rank and its peers have nothing to exchange.
    fn is_alone(&self) -> bool {
        self.layers.iter().all(|layer| layer.len(self.topology.local) == 0)
    }

    /// Advances from one collective to the next.
    fn advance(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        match self.stage {
            Stage::Open => {
                return Err(Error::StepOrder {
                    what: "the bucket has no gradients yet",
                    expected: "`submit` before `next`",
                });
            }
            Stage::Failed => {
                return Err(Error::StepOrder { what: "the bucket has failed", expected: "`close` and another bucket" });
            }
            Stage::Done => return Ok(()),
            // An empty bucket is not exchanged, so no other rank waits.
            Stage::Submitted if self.is_empty() => {
                self.begin_exchange()?;
                self.exchange();
                return self.finish(gradients);
            }
            Stage::Submitted => {
                match self.agreement {
                    Agreement::Needed => self.begin_greeting(),
                    Agreement::Reached => self.begin_reducing(),
                }
                return Ok(());
            }
            Stage::Greeting => {
                let slips = self.words.as_chunks::<FAULT>().0.iter().map(|words| Slip::read(bytemuck::bytes_of(words)));
                self.differs = slips.clone().any(|slip| slip.fingerprint != self.fingerprint);
                if self.differs
                    && let Err(error) = judge(self.own, slips)
                {
                    self.note(error);
                }
                self.begin_reducing();
                return Ok(());
            }
            // The ranks of the node differ, so nothing was summed.
            Stage::Reducing if self.differs => self.begin_exchange()?,
            Stage::Reducing => {
                match judge(self.own, self.messages.reduction.statuses(&self.topology).into_iter()) {
                    Ok(()) => self.messages.average(&mut self.layers, &self.topology),
                    Err(error) => self.note(error),
                }
                self.begin_exchange()?;
            }
            Stage::Exchanging(_) => {}
            Stage::Telling => {
                self.hear_peers();
                self.begin_gathering();
                return Ok(());
            }
            Stage::Gathering => return self.finish(gradients),
        }
        self.exchange();
        Ok(())
    }

    /// Whether the ranks of the node have found that they exchange the same layers.
    pub(super) fn has_met(&self) -> bool {
        !self.differs && !matches!(self.stage, Stage::Open | Stage::Submitted | Stage::Greeting)
    }

    /// Ends a bucket that the caller closes in the middle of its exchange.
    pub(super) fn give_up(&mut self) {
        // If the exchange between nodes has failed on this rank only, the controller already reports that.
        if self.stage == Stage::Submitted {
            self.shards.failure = self.shards.failure.or(self.own);
        }
        let is_over = matches!(self.stage, Stage::Open | Stage::Submitted | Stage::Done | Stage::Failed);
        if is_over || self.shards.progress == Progress::FailedAlone {
            return;
        }
        let found = (self.fault.code != 0).then(|| Error::of_peer(self.fault.rank, self.fault.code));
        self.shards.give_up(self.own.or(found));
    }

    fn own_slip(&self) -> Slip {
        Slip { code: self.own.map_or(0, |error| error.code().into()), fingerprint: self.fingerprint }
    }

    fn begin_greeting(&mut self) {
        self.words = vec![0; FAULT * self.topology.per_node as usize];
        let slip = self.own_slip();
        let own = &mut self.words[FAULT * self.topology.local as usize..][..FAULT];
        slip.write(bytemuck::cast_slice_mut(own));
        self.stage = Stage::Greeting;
    }

    fn begin_reducing(&mut self) {
        // The collective is performed nevertheless, so that all nodes start the same collectives in the same order.
        if self.differs {
            self.messages.reduction.without_values();
            self.stage = Stage::Reducing;
            return;
        }
        if self.own.is_some() {
            self.messages.reduction.clear();
        }
        self.messages.reduction.put_status(self.own_slip(), &self.topology);
        self.stage = Stage::Reducing;
    }

    /// Records an error that the ranks of the node have found.
    fn note(&mut self, error: Error) {
        let rank = self.topology.rank();
        let error = self.topology.of_node(error);
        self.fault = match error {
            Error::Peer { rank, code } => Fault { code: code.into(), rank, alone: false },
            error => Fault::new(error, rank),
        };
        if let Error::PeerPlan { .. } = error {
            self.own = Some(error);
        }
    }

    /// Submits this rank's shards to the exchange between nodes, or tells the peers of the failure.
    fn begin_exchange(&mut self) -> Result<(), Error> {
        self.stage = Stage::Exchanging(None);
        let has_peers = !self.is_alone();
        if self.fault.code != 0 && has_peers {
            // Peers get the code of the rank that failed.
            return self.shards.submit_failure(Error::Trainer { code: self.fault.code as u32 });
        }
        for layer in self.layers.iter().filter(|layer| !layer.present && has_peers) {
            self.shards.withhold(layer.index)?;
        }
        self.shards.submit(&mut self.messages.shards(&self.layers, &self.topology))
    }

    /// Advances the exchange between nodes.
    fn exchange(&mut self) {
        let mut shards = self.messages.shards(&self.layers, &self.topology);
        let advanced = match self.fault.code {
            0 => self.shards.next_part(&mut shards),
            _ if shards.iter().all(|shard| shard.values().is_empty()) => Ok(None),
            _ => self.shards.next_part(&mut []),
        };
        let is_broken = self.shards.progress == Progress::Broken;
        let found = match advanced {
            Ok(Some(part)) => {
                self.stage = Stage::Exchanging(Some(part));
                return;
            }
            Ok(None) if !is_broken => {
                self.begin_gathering();
                return;
            }
            Ok(None) => Error::Trainer { code: Error::NON_FINITE_GRADIENT },
            Err(error) if self.shards.progress == Progress::FailedAlone => {
                // Peers have ended the exchange. The controller reports the error to them before the next step.
                self.own = Some(error);
                self.fault = Fault { alone: true, ..Fault::new(error, self.topology.rank()) };
                self.begin_gathering();
                return;
            }
            Err(error) => error,
        };
        let known = match (self.fault.code, found) {
            (0, Error::Peer { .. }) => Fault::default(),
            (0, error) => {
                let error = self.topology.of_peers(error);
                if !is_broken {
                    self.own = Some(error);
                }
                Fault::new(error, self.topology.rank())
            }
            _ => self.fault,
        };
        self.fault = Fault::new(found, self.topology.rank());
        self.words = known.words().repeat(self.topology.nodes as usize);
        self.stage = Stage::Telling;
    }

    /// Adopts the failure that the first failing peer reports.
    fn hear_peers(&mut self) {
        let faults = || self.words.as_chunks::<FAULT>().0.iter().map(|words| Fault::read(words));
        if let Err(Error::Peer { rank, .. }) = judge(None, faults().map(Fault::slip)) {
            self.fault = faults().nth(rank as usize).unwrap_or(self.fault);
        }
    }

    fn begin_gathering(&mut self) {
        if self.differs {
            self.messages.without_means();
        }
        self.messages.put_fault(self.fault, &self.topology);
        self.stage = Stage::Gathering;
    }

    /// Ends the bucket. All ranks know now whether any has failed.
    fn finish(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        let judged = match self.is_empty() {
            true => self.own.map_or(Ok(()), Err),
            false => judge_faults(self.own, self.messages.faults()),
        };
        let Err(error) = judged else {
            self.messages.deliver(&self.layers, gradients, &self.topology)?;
            self.stage = Stage::Done;
            return Ok(());
        };
        let mut found = self.messages.faults().filter(|fault| fault.code != 0);
        if !self.is_empty() && found.next().is_some_and(|fault| fault.alone) {
            self.stage = Stage::Failed;
            return Err(error);
        }
        // A bucket without elements has no messages. The next bucket or step reports its error.
        self.shards.revoke(error, self.is_empty());
        if self.shards.progress != Progress::Broken {
            self.stage = Stage::Failed;
            return Err(error);
        }
        self.shards.fill_broken(gradients);
        self.stage = Stage::Done;
        Ok(())
    }
}
