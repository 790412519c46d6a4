//! Lending buckets, and taking them back.

use super::arena::{Arena, Needs};
use super::bucket::{Bucket, Progress};
use super::layer::BucketStatus;
use super::lent_layer::LentLayer;
use super::spare::Spare;
use super::{Controller, Tensor};
use crate::Error;
use crate::checksum::Hash;
use crate::exchange::{Agreement, Collective, Flight, Moment};
use crate::gradient::ValuesMut;
use alloc::vec::Vec;
use core::ops::Range;

impl Controller {
    /// Lends a bucket of these layers, in any order, for one exchange in the step that has begun. All ranks must exchange the same
    /// layers together. When layers are exchanged together for the first time, an additional all-gather of 24 bytes per rank checks
    /// that all ranks do so. Ranks remember about a thousand checked sets of layers, and check a forgotten set again. Different
    /// buckets may be exchanged at the same time, on any threads. All ranks must start their collectives in the same order.
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step has begun and its control requests are done; [`Error::NoSuchLayer`]; [`Error::InFlight`]
    /// for a layer that is in another bucket, or twice in this bucket; [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
    ///
    /// # Complexity
    /// O(layers). Reuses the memory of a closed bucket if it fits. Otherwise, the call allocates messages and workspaces, with the
    /// sizes that [`MemoryUse::of`](super::MemoryUse::of) predicts, and an f32 per element of 16-bit layers with a residual.
    pub fn open(&mut self, layers: &[usize]) -> Result<Bucket, Error> {
        let agreement = match self.agreed.contains(layers) {
            true => Agreement::Reached,
            false => Agreement::Needed,
        };
        self.lend(layers.iter().copied(), agreement, false)
    }

    /// Lends layers as one bucket. The caller ensures that all ranks exchange the same layers together, so no agreement is needed.
    pub(super) fn open_agreed(&mut self, layers: &[usize]) -> Result<Bucket, Error> {
        self.lend(layers.iter().copied(), Agreement::Reached, false)
    }

    /// Lends the layers of a group. All ranks have the same groups, so no agreement is needed.
    pub(super) fn open_group(&mut self, layers: Range<usize>) -> Result<Bucket, Error> {
        self.lend(layers, Agreement::Reached, true)
    }

    fn lend(
        &mut self,
        layers: impl ExactSizeIterator<Item = usize> + Clone,
        agreement: Agreement,
        alone: bool,
    ) -> Result<Bucket, Error> {
        self.control.expect_open()?;
        let config = &self.scheduler.config;
        let moment = self.moment();
        let (every, step) = (config.metrics_every, self.scheduler.step);
        let (non_finite, clock) = (config.non_finite, config.clock.filter(|_| self.scheduler.meter.is_some()));
        let measured = every > 0 && step.is_multiple_of(every);
        self.lendings += 1;
        let ticket = Hash(self.scheduler.identity).add(self.lendings).0.max(1);
        let mut lent = self.arenas.list(layers.len())?;
        let moved = self.lend_layers(layers, ticket, measured, &mut lent);
        let specs = lent.iter().map(|layer| layer.state.plan.spec(&layer.shards));
        let found = moved.and_then(|()| Needs::of(specs, lent.iter().map(|layer| layer.step), &moment));
        let found = found.and_then(|needs| Ok((self.arenas.take(lent.len(), &needs, alone)?, needs)));
        let (mut arena, needs) = match found {
            Ok(found) => found,
            Err(error) => {
                self.take_layers_back(lent);
                return Err(error);
            }
        };
        arena.layers = lent;
        let mut bucket = Bucket {
            arena,
            moment,
            agreement,
            measured,
            needs,
            spare: if alone { Spare::default() } else { self.spare.clone() },
            window_step: self.scheduler.window_step(),
            non_finite,
            failure: None,
            late: None,
            alone: false,
            not_finite: false,
            differs: false,
            unread: false,
            bytes: 0,
            began: None,
            clock,
            computing: 0.0,
            wire: 0.0,
            flight: None,
            asked: false,
            ticket,
            progress: Progress::Open,
        };
        // A bucket without elements may send no message that could report the error.
        if has_elements(&bucket) {
            bucket.failure = self.late.take();
        }
        bucket.began = self.now();
        Ok(bucket)
    }

    /// The rank, step number and options for exchanges in the present step.
    pub(super) fn moment(&self) -> Moment {
        let config = &self.scheduler.config;
        Moment {
            rank: self.rank,
            world_size: self.world,
            route: config.route,
            reduce_dtype: config.search.reduce_dtype,
            seed: config.search.seed,
            step: self.scheduler.step as u32,
            terms: self.control.terms,
        }
    }

    /// Moves layers with their states to `lent`.
    fn lend_layers(
        &mut self,
        layers: impl Iterator<Item = usize>,
        ticket: u64,
        measured: bool,
        lent: &mut Vec<LentLayer>,
    ) -> Result<(), Error> {
        for index in layers {
            self.expect_lendable(index)?;
            let state = self.states[index].lend(ticket);
            lent.push(LentLayer {
                step: state.in_step(measured, false),
                shards: self.scheduler.tensors[index].shards.clone(),
                state,
                window: self.scheduler.lend_mean(index),
                norms: [0.0; 2],
            });
        }
        Ok(())
    }

    /// The layer of this index; `Err` if the model has no such layer.
    pub(super) fn expect_layer(&self, layer: usize) -> Result<&Tensor, Error> {
        let missing = Error::NoSuchLayer { layer, layers: self.states.len() };
        self.scheduler.tensors.get(layer).ok_or(missing)
    }

    /// `Err` unless the present step can still exchange this layer.
    pub(super) fn expect_lendable(&self, index: usize) -> Result<(), Error> {
        self.expect_layer(index)?;
        match &self.states[index] {
            state if state.lent != 0 => Err(Error::InFlight { layer: index }),
            state if state.status == BucketStatus::Exchanged => Err(Error::StepOrder {
                what: "a layer of the bucket has been exchanged in this step already",
                expected: "each layer once per step",
            }),
            _ => Ok(()),
        }
    }

    /// Takes a bucket back, at any point of its exchange. The residuals of a bucket that was not exchanged are unchanged. If the
    /// bucket was in the middle of its exchange, the step [fails](super::Outcome::Failed) on this rank, because other ranks may
    /// have the means. The next step reports this failure to all ranks, unless all ranks exchange the layers again or
    /// [abandon](Controller::abandon_step) the step.
    ///
    /// # Errors
    /// [`Error::StepOrder`] for a bucket of another controller, or one from before a saved state was loaded.
    pub fn close(&mut self, mut bucket: Bucket) -> Result<(), Error> {
        let lent = |layer: usize| self.states.get(layer).is_some_and(|state| state.lent == bucket.ticket);
        if !bucket.layers().all(lent) {
            return Err(Error::StepOrder {
                what: "the bucket is not lent by this controller",
                expected: "a bucket of the present step",
            });
        }
        if bucket.is_unfinished() {
            bucket.give_up(bucket.flight.as_ref().and_then(Flight::failure));
        }
        let exchanged = bucket.progress == Progress::Exchanged;
        let alone = bucket.alone;
        if bucket.agreement == Agreement::Needed && bucket.flight.as_ref().is_some_and(Flight::has_met) {
            self.agreed.insert(bucket.layers().collect());
        }
        self.totals.told |= (exchanged || alone) && has_elements(&bucket);
        // If the exchange has shown that ranks differ, all ranks compare their options before the next step.
        self.control.met &= !bucket.differs;
        self.totals.unread |= bucket.unread;
        self.totals.bytes_out += bucket.bytes;
        self.totals.wire += bucket.wire;
        self.totals.computing += bucket.computing;
        self.totals.broken |= bucket.progress == Progress::Broken;
        self.totals.not_finite |= bucket.not_finite;
        // A bucket that has failed without messages has no elements, so no gradient is missing from the window.
        let is_empty = bucket.progress == Progress::FailedAlone && !bucket.asked;
        self.totals.incomplete |= bucket.window_step > 0 && !exchanged && !is_empty;
        self.late = self.late.or(bucket.late).or(bucket.untold());
        let seconds = bucket.began.zip(self.now()).map(|(start, end)| end - start);
        let given_up = bucket.progress == Progress::GivenUp;
        let failed = matches!(bucket.progress, Progress::Failed | Progress::FailedAlone) && !is_empty;
        let mut arena = bucket.arena;
        for LentLayer { state, .. } in &mut arena.layers {
            state.status = match state.status {
                _ if exchanged => BucketStatus::Exchanged,
                _ if failed => BucketStatus::Failed,
                _ if given_up => BucketStatus::GivenUp,
                status => status,
            };
            if let Some(seconds) = seconds {
                *state.bucket_seconds.get_or_insert(0.0) += seconds;
            }
        }
        self.take_back(arena);
        Ok(())
    }

    fn take_back(&mut self, mut arena: Arena) {
        self.take_layers_back(core::mem::take(&mut arena.layers));
        self.arenas.put(arena);
    }

    fn take_layers_back(&mut self, mut lent: Vec<LentLayer>) {
        for LentLayer { state, window, .. } in lent.drain(..) {
            let index = state.plan.index;
            self.states[index] = state;
            self.scheduler.take_mean_back(index, window);
        }
        self.arenas.put_list(lent);
    }
}

/// Whether the bucket has values. A bucket without values exchanges no messages once ranks have agreed on its layers.
fn has_elements(bucket: &Bucket) -> bool {
    bucket.arena.layers.iter().any(|layer| layer.state.plan.shape.elements() > 0)
}

impl Bucket {
    /// Exchanges gradients by blocking collectives.
    pub(super) fn exchange<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        gradients: &mut [ValuesMut<'_>],
    ) -> Result<(), Error> {
        self.submit(gradients)?;
        while let Some(request) = self.next(gradients)? {
            request.perform(collective)?;
        }
        Ok(())
    }
}
