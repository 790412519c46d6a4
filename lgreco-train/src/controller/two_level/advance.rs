//! Advances a bucket of two levels from one collective to the next.

use super::bucket::{Bucket, Stage};
use super::layer::shards;
use super::messages::{FAULT, Fault, check, judge_faults};
use crate::Error;
use crate::controller::bucket::Progress;
use crate::exchange::{Agreement, Slip, judge};
use crate::gradient::ValuesMut;
use alloc::vec;

impl Bucket {
    /// Advances from one collective to the next.
    pub(super) fn advance(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        if self.own.is_none() && !matches!(self.stage, Stage::Open | Stage::Done | Stage::Failed) {
            check(&self.layers, gradients)?;
        }
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
                self.begin_exchange(gradients)?;
                self.exchange(gradients);
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
            Stage::Reducing => {
                // If the ranks of the node differ in the bucket's layers, nothing was summed.
                if !self.differs {
                    match judge(self.own, self.messages.statuses(&self.topology).into_iter()) {
                        Ok(()) => self.messages.average(&mut self.layers, gradients, &self.topology),
                        Err(error) => self.note(error),
                    }
                }
                self.messages.release();
                self.begin_exchange(gradients)?;
            }
            Stage::Exchanging(_) => {}
            Stage::Telling => {
                self.hear_peers();
                self.stage = Stage::Paused;
                return Ok(());
            }
            Stage::Paused => {
                if self.differs {
                    self.messages.without_means();
                }
                self.messages.put_means(self.fault, &self.layers, gradients, &self.topology)?;
                self.stage = Stage::Gathering;
                return Ok(());
            }
            Stage::Gathering => {
                let finished = self.finish(gradients);
                self.messages.release();
                return finished;
            }
        }
        self.exchange(gradients);
        Ok(())
    }

    /// Whether the ranks of the node have found that they exchange the same layers.
    pub(super) fn has_met(&self) -> bool {
        !self.differs && !matches!(self.stage, Stage::Open | Stage::Submitted | Stage::Greeting)
    }

    /// Ends a bucket that the caller closes in the middle of its exchange.
    pub(super) fn give_up(&mut self) {
        // If the exchange between nodes has failed on this rank only, the controller already reports the failure.
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
        // The node's ranks perform the collective even if they differ, so that all nodes start the same collectives in
        // the same order.
        match self.differs {
            true => self.messages.without_values(),
            false => self.messages.put_status(self.own_slip(), &self.topology),
        }
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

    /// Submits this rank's shards to the exchange between nodes, or reports the failure to the peers.
    fn begin_exchange(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        self.stage = Stage::Exchanging(None);
        let has_peers = !self.is_alone();
        if self.fault.code != 0 && has_peers {
            // Peers get the error code of the rank that failed.
            return self.shards.submit_failure(Error::Trainer { code: self.fault.code as u32 });
        }
        for layer in self.layers.iter().filter(|layer| !layer.present && has_peers) {
            self.shards.withhold(layer.index)?;
        }
        self.shards.submit(&mut shards(&self.layers, gradients, self.topology.local))
    }

    /// Advances the exchange between nodes.
    fn exchange(&mut self, gradients: &mut [ValuesMut<'_>]) {
        let advanced = match self.fault.code {
            0 => self.shards.next_part(&mut shards(&self.layers, gradients, self.topology.local)),
            _ if self.is_alone() => Ok(None),
            _ => self.shards.next_part(&mut []),
        };
        let is_broken = self.shards.progress == Progress::Broken;
        let found = match advanced {
            Ok(Some(part)) => {
                self.stage = Stage::Exchanging(Some(part));
                return;
            }
            Ok(None) if !is_broken => {
                self.stage = Stage::Paused;
                return;
            }
            Ok(None) => Error::Trainer { code: Error::NON_FINITE_GRADIENT },
            Err(error) if self.shards.progress == Progress::FailedAlone => {
                // The peers do not know of this error, and complete the exchange. The controller reports the error to
                // the peers before the next step.
                self.own = Some(error);
                self.fault = Fault { alone: true, ..Fault::new(error, self.topology.rank()) };
                self.stage = Stage::Paused;
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

    /// Replaces this rank's fault by the first of the most serious faults that peers report.
    fn hear_peers(&mut self) {
        let faults = || self.words.as_chunks::<FAULT>().0.iter().map(|words| Fault::read(words));
        if let Err(Error::Peer { rank, .. }) = judge(None, faults().map(Fault::slip)) {
            self.fault = faults().nth(rank as usize).unwrap_or(self.fault);
        }
    }

    /// Ends the bucket, when all ranks know whether any rank has failed.
    fn finish(&mut self, gradients: &mut [ValuesMut<'_>]) -> Result<(), Error> {
        let judged = match self.is_empty() {
            true => self.own.map_or(Ok(()), Err),
            false => judge_faults(self.own, self.messages.faults()),
        };
        let Err(error) = judged else {
            if !self.is_empty() {
                self.messages.deliver(&self.layers, gradients, &self.topology);
            }
            self.stage = Stage::Done;
            return Ok(());
        };
        let mut found = self.messages.faults().filter(|fault| fault.code != 0);
        if !self.is_empty() && found.next().is_some_and(|fault| fault.alone) {
            self.stage = Stage::Failed;
            return Err(error);
        }
        // A bucket without elements has no messages, so the next bucket or step reports its error.
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
