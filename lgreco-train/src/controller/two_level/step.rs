//! Steps: lending and closing buckets, and blocking steps.

use super::bucket::{self, Bucket};
use super::control::{Stage, fault_message};
use super::layer::Layer;
use super::messages::{Fault, Messages};
use super::{Group, Topology, TwoLevel};
#[cfg(doc)]
use crate::CoreError;
use crate::Error;
use crate::checksum::Hash;
use crate::controller::tensor::check_layer;
use crate::controller::{Bucket as Shards, Report, agreement};
use crate::exchange::{Agreement, Collective, Request};
use crate::gradient::ValuesMut;
use alloc::vec;
use alloc::vec::Vec;
use lgreco::error::expect_len;

impl TwoLevel {
    /// Lends these layers as a bucket, in any order, like [`Controller::open`](super::super::Controller::open). All ranks must
    /// exchange the same layers together. For a new set of layers, an additional all-gather of 16 bytes inside the node checks
    /// this.
    ///
    /// # Errors
    /// The errors of [`Controller::open`](super::super::Controller::open).
    pub fn open(&mut self, layers: &[usize]) -> Result<Bucket, Error> {
        self.expect_open()?;
        let agreement = match self.agreed.contains(layers) {
            true => Agreement::Reached,
            false => Agreement::Needed,
        };
        // If all shards are empty, peers exchange nothing, so they need no agreement.
        let has_shards = layers.iter().any(|&layer| self.has_shard(layer));
        let shards = match has_shards {
            true => self.controller.open(layers)?,
            false => self.controller.open_agreed(layers)?,
        };
        self.lend(layers, agreement, shards, Messages::sharing(&self.controller.spare))
    }

    fn lend(
        &mut self,
        layers: &[usize],
        agreement: Agreement,
        shards: Shards,
        mut messages: Messages,
    ) -> Result<Bucket, Error> {
        let list = self.list(layers.iter().copied());
        if let Err(error) = messages.reserve(&list, &self.topology, self.config.search.reduce_dtype) {
            self.controller.close(shards)?;
            return Err(error);
        }
        let of_layers = layers.iter().fold(Hash(self.fingerprint()), |hash, &layer| hash.add(layer as u64));
        Ok(Bucket {
            shards,
            layers: list,
            topology: self.topology,
            agreement,
            fingerprint: of_layers.0,
            stage: bucket::Stage::Open,
            own: None,
            fault: Fault::default(),
            messages,
            differs: false,
            words: vec![],
        })
    }

    /// The layers of a bucket.
    pub(super) fn list(&self, layers: impl Iterator<Item = usize>) -> Vec<Layer> {
        layers.map(|layer| Layer::new(layer, &self.layers[layer], self.topology.per_node)).collect()
    }

    /// Allocates the memory of blocking steps, before the first one.
    fn provide_once(&mut self) -> Result<(), Error> {
        self.controller.provide_once()?;
        if self.blocking.is_none() {
            let mut messages = Messages::default();
            for range in &self.controller.scheduler.groups.ranges {
                messages.reserve(&self.list(range.clone()), &self.topology, self.config.search.reduce_dtype)?;
            }
            self.blocking = Some(messages);
        }
        Ok(())
    }

    fn has_shard(&self, layer: usize) -> bool {
        self.controller.tensors().get(layer).is_some_and(|tensor| tensor.shape().elements() > 0)
    }

    /// Takes a bucket back, at any point, like [`Controller::close`](super::super::Controller::close). If the bucket was not
    /// exchanged, the residuals of its layers stay unchanged.
    ///
    /// # Errors
    /// The errors of [`Controller::close`](super::super::Controller::close).
    pub fn close(&mut self, mut bucket: Bucket) -> Result<(), Error> {
        bucket.give_up();
        if bucket.has_met() && bucket.agreement == Agreement::Needed {
            self.agreed.insert(bucket.layers().collect());
        }
        self.met &= !bucket.shards.differs;
        self.controller.close(bucket.shards)
    }

    /// Ends the step, after all of its buckets were exchanged and closed. The report counts bytes of this rank's shards: the bytes
    /// of their gradients, and the bytes of the payloads that this rank sent to each peer.
    ///
    /// # Errors
    /// [`Error::InFlight`] while a bucket has a layer; [`Error::StepOrder`] when no step is under way.
    pub fn finish_step(&mut self) -> Result<Report, Error> {
        self.expect_open()?;
        let report = self.controller.finish_step()?;
        self.stage = Stage::Idle;
        Ok(report)
    }

    /// Gives up the present step, like [`Controller::abandon_step`](super::super::Controller::abandon_step).
    ///
    /// # Errors
    /// [`Error::InFlight`] while a bucket has a layer; [`Error::StepOrder`] when no step is under way.
    pub fn abandon_step(&mut self) -> Result<(), Error> {
        if self.stage == Stage::Idle {
            return Err(Error::StepOrder { what: "no step is under way", expected: "`begin_step` before this call" });
        }
        if !self.controller.control.is_idle() {
            self.controller.abandon_step()?;
        }
        self.stage = Stage::Idle;
        Ok(())
    }

    fn expect_open(&self) -> Result<(), Error> {
        match self.stage {
            Stage::Open => Ok(()),
            Stage::Idle => {
                Err(Error::StepOrder { what: "no step is under way", expected: "`begin_step` before this call" })
            }
            _ => Err(Error::StepOrder {
                what: "ranks have not agreed on the step",
                expected: "all requests of `control` before this call",
            }),
        }
    }

    /// Takes a whole step with blocking collectives: replaces `gradients`, one per layer, by their means over all ranks. `node` is
    /// the group of the node's ranks, `peers` the group of this rank's peers. All ranks must call this method with the same
    /// `learning_rate`.
    ///
    /// Buckets have up to [`Config::bucket_bytes`](super::super::Config::bucket_bytes) of whole gradients. A gradient that is not
    /// finite affects its bucket only, as with [`Bucket::next`].
    ///
    /// Allocates only at the first step and at decisions, apart from lists of a bucket's layers.
    ///
    /// # Errors
    /// If one rank fails, all ranks fail. The rank at fault returns the error itself, and the other ranks return [`Error::Peer`]
    /// with the error's code.
    ///
    /// These errors come before anything has changed, so the step may be repeated: [`CoreError::Length`] and
    /// [`Error::LayerMismatch`] when gradients do not fit the layers; [`CoreError::OutOfMemory`]; the errors of
    /// [`control`](TwoLevel::control); [`Error::OtherPlace`] when the groups do not match [`topology`](TwoLevel::topology);
    /// [`Error::StepOrder`] while another step is under way, which is then [abandoned](TwoLevel::abandon_step);
    /// [`Error::InFlight`] if a bucket has a layer of that step, which is then still under way.
    ///
    /// After errors of [`Bucket::next`] the step is over. After [`Error::Collective`], the step is
    /// [abandoned](TwoLevel::abandon_step).
    pub fn step<N: Collective + ?Sized, P: Collective + ?Sized>(
        &mut self,
        node: &mut N,
        peers: &mut P,
        gradients: &mut [ValuesMut<'_>],
        learning_rate: f64,
    ) -> Result<Report, Error> {
        let checked = self.provide_once().and_then(|()| self.check(gradients));
        self.run(node, peers, checked.map(|()| gradients), learning_rate)
    }

    /// `Err` unless gradients have the lengths and element types of the layers.
    fn check(&self, gradients: &[ValuesMut<'_>]) -> Result<(), Error> {
        expect_len("gradients, one per layer", self.layers.len(), gradients.len())?;
        let mut layers = self.layers.iter().zip(gradients).enumerate();
        layers.try_for_each(|(layer, (tensor, gradient))| {
            check_layer(layer, tensor.shape(), tensor.dtype(), gradient.values())
        })
    }

    /// Declares, in place of [`step`](TwoLevel::step), that this rank's trainer failed. Messages report the failure to all ranks,
    /// and all ranks fail. Returns `failure`, or an error that prevented the report. Nothing changes, and the step may be taken
    /// again.
    pub fn step_failed<N: Collective + ?Sized, P: Collective + ?Sized>(
        &mut self,
        node: &mut N,
        peers: &mut P,
        failure: Error,
    ) -> Error {
        let rate = self.rate;
        self.run(node, peers, Err(failure), rate).err().unwrap_or(failure)
    }

    fn run<N: Collective + ?Sized, P: Collective + ?Sized>(
        &mut self,
        node: &mut N,
        peers: &mut P,
        gradients: Result<&mut [ValuesMut<'_>], Error>,
        learning_rate: f64,
    ) -> Result<Report, Error> {
        let (found, own) = (Topology::of(node, peers), self.topology);
        if found != own {
            let (rank, world) = (found.rank(), found.world_size());
            let error = Error::OtherPlace { rank, world, own_rank: own.rank(), own_world: own.world_size() };
            return Err(self.refuse(node, peers, error));
        }
        if let Err(error) = self.expect_idle() {
            if let Err(in_flight) = self.abandon_step() {
                return Err(self.refuse(node, peers, in_flight));
            }
            return self.run(node, peers, Err(error), learning_rate);
        }
        let mut perform = |group: Group, request: Request<'_>| match group {
            Group::Node => request.perform(&mut *node),
            Group::Peers => request.perform(&mut *peers),
        };
        self.begin_blocking(learning_rate, gradients.as_ref().err().copied());
        let agreed = loop {
            match self.control() {
                Ok(Some((group, request))) => match perform(group, request) {
                    Ok(()) => {}
                    Err(error) => break Err(Error::from(error)),
                },
                Ok(None) => break Ok(()),
                Err(error) => return Err(error),
            }
        };
        if let Err(error) = agreed {
            self.abandon_step()?;
            return Err(error);
        }
        let exchanged = gradients.and_then(|gradients| self.exchange(gradients, &mut perform));
        if let Err(error @ Error::Collective { .. }) = exchanged {
            self.abandon_step()?;
            return Err(error);
        }
        let report = self.finish_step()?;
        exchanged.map(|()| report)
    }

    /// Performs the collectives that come before a blocking step, although this rank cannot begin the step in its present state.
    /// The messages report `failure` to all ranks. Returns `failure`, or an error that prevented the report.
    fn refuse<N: Collective + ?Sized, P: Collective + ?Sized>(
        &mut self,
        node: &mut N,
        peers: &mut P,
        failure: Error,
    ) -> Error {
        // In the next step, the other ranks compare their options again, so this rank must do so, too.
        self.met = false;
        // The groups may have other sizes or another rank number than the controller's topology.
        let place = Topology::of(node, peers);
        let per_node = agreement::believed(place.per_node, self.topology.per_node);
        let nodes = agreement::believed(place.nodes, self.topology.nodes);
        let mut tell = || -> Result<(), Error> {
            let (mut of_node, mut of_peers) =
                (agreement::failed(per_node, failure)?, agreement::failed(nodes, failure)?);
            let mut begun = agreement::repeated(per_node, fault_message(Fault::new(failure, place.rank())))?;
            node.all_gather(bytemuck::cast_slice_mut(&mut of_node))?;
            peers.all_gather(bytemuck::cast_slice_mut(&mut of_peers))?;
            Ok(node.all_gather(bytemuck::cast_slice_mut(&mut begun))?)
        };
        tell().err().unwrap_or(failure)
    }

    /// Exchanges all layers, bucket by bucket.
    fn exchange(
        &mut self,
        gradients: &mut [ValuesMut<'_>],
        perform: &mut impl FnMut(Group, Request<'_>) -> Result<(), crate::exchange::CollectiveError>,
    ) -> Result<(), Error> {
        for group in 0..self.controller.scheduler.groups.ranges.len() {
            let range = self.controller.scheduler.groups.ranges[group].clone();
            let layers: Vec<usize> = range.clone().collect();
            // All ranks have the same groups of layers, so they need no agreement.
            let shards = self.controller.open_group(range.clone())?;
            let messages = self.blocking.take().unwrap_or_default();
            let mut bucket = self.lend(&layers, Agreement::Reached, shards, messages)?;
            let exchanged = bucket.run(&mut gradients[range], perform);
            self.blocking = Some(core::mem::take(&mut bucket.messages));
            self.close(bucket)?;
            exchanged?;
        }
        Ok(())
    }
}

impl Bucket {
    fn run(
        &mut self,
        gradients: &mut [ValuesMut<'_>],
        perform: &mut impl FnMut(Group, Request<'_>) -> Result<(), crate::exchange::CollectiveError>,
    ) -> Result<(), Error> {
        self.submit(gradients)?;
        while let Some((group, request)) = self.next(gradients)? {
            perform(group, request)?;
        }
        Ok(())
    }
}
