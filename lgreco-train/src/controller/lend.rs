//! Buckets lent and taken back.

use super::arena::{Arena, Kept};
use super::bucket::{Bucket, Progress};
use super::layer::Fate;
use super::layer_plan::{LayerPlan, Needs};
use super::{Controller, Tensor};
use crate::Error;
use crate::checksum::Hash;
use crate::exchange::{Agreement, Collective, Moment};
use crate::gradient::ValuesMut;
use alloc::vec::Vec;
use core::ops::Range;

impl Controller {
    /// Lends a bucket of these layers, in any order, for one exchange in the step that has begun. All ranks exchange the same
    /// layers together; with layers that have not been exchanged together before, a further all-gather of 24 bytes per rank
    /// finds out whether they do. Different buckets may be under way at the same time, on any threads, as long as all ranks
    /// start their collectives in the same order.
    ///
    /// # Errors
    /// [`Error::StepOrder`] unless a step has begun and its control requests are done; [`Error::NoSuchLayer`]; [`Error::InFlight`] for one that is in another bucket, or twice in this; [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
    ///
    /// # Complexity
    /// O(layers). Allocates where no bucket that was taken back had room that fits: messages and workspaces, which
    /// [`memory`](Controller::memory) tells, and an f32 per element of layers of 16 bits with a residual.
    /// [`Controller::step`] has one bucket at a time.
    pub fn open(&mut self, layers: &[usize]) -> Result<Bucket, Error> {
        let agreement = match self.agreed.get_mut(layers) {
            Some(last) => {
                *last = self.planner.step;
                Agreement::Reached
            }
            None => Agreement::Needed,
        };
        self.lend(layers.iter().copied(), agreement, false)
    }

    /// The same of layers of which all ranks know that they exchange them together.
    pub(super) fn open_agreed(&mut self, layers: &[usize]) -> Result<Bucket, Error> {
        self.lend(layers.iter().copied(), Agreement::Reached, false)
    }

    /// Lends the layers of a group, of which all ranks know that they exchange them together.
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
        let config = &self.planner.config;
        let moment = self.moment();
        let (every, step) = (config.metrics_every, self.planner.step);
        let (non_finite, clock) = (config.non_finite, config.clock.filter(|_| self.planner.meter.is_some()));
        let measured = every > 0 && step.is_multiple_of(every);
        self.lendings += 1;
        let ticket = Hash(self.planner.identity).add(self.lendings).0.max(1);
        let mut kept = self.arenas.list(layers.len())?;
        let lent = self.lend_layers(layers, ticket, measured, &mut kept);
        let plans = kept.iter().map(|kept| (kept.plan, &*kept.shards));
        let found = lent.and_then(|()| Needs::of(plans, &moment));
        let found = found.and_then(|needs| Ok((self.arenas.take(kept.len(), &needs, alone)?, needs)));
        let (mut arena, needs) = match found {
            Ok(found) => found,
            Err(error) => {
                self.take_layers_back(kept);
                return Err(error);
            }
        };
        arena.kept = kept;
        let mut bucket = Bucket {
            arena,
            moment,
            agreement,
            measured,
            needs,
            keeps_scratch: alone,
            window_steps: self.planner.window_step(),
            non_finite,
            failure: None,
            late: None,
            not_finite: false,
            differs: false,
            bytes: 0,
            began: None,
            clock,
            computing: 0.0,
            wire: 0.0,
            flight: None,
            ticket,
            progress: Progress::Open,
        };
        // A bucket without elements has nobody to tell.
        if bucket.arena.kept.iter().any(|kept| kept.plan.shape.elements() > 0) {
            bucket.failure = self.late.take();
        }
        bucket.began = self.now();
        Ok(bucket)
    }

    /// Where the step under way is in the run.
    pub(super) fn moment(&self) -> Moment {
        let config = &self.planner.config;
        Moment {
            rank: self.rank,
            world_size: self.world,
            route: config.route,
            reduce_dtype: config.search.reduce_dtype,
            seed: config.search.seed,
            step: self.planner.step as u32,
            terms: self.control.terms,
        }
    }

    /// Lends layers, with all that is kept of them.
    fn lend_layers(
        &mut self,
        layers: impl Iterator<Item = usize>,
        ticket: u64,
        measured: bool,
        kept: &mut Vec<Kept>,
    ) -> Result<(), Error> {
        for index in layers {
            self.expect_lendable(index)?;
            self.states[index].reserve()?;
            let tensor = &self.planner.tensors[index];
            let (form, shards) = ((tensor.shape, tensor.dtype), tensor.shards.clone());
            let state = self.states[index].lend(ticket);
            kept.push(Kept {
                plan: LayerPlan::of(index, form, &state, [measured, false], self.planner.config.route),
                shards,
                state,
                window: self.planner.lend_mean(index),
                norms: [0.0; 2],
            });
        }
        Ok(())
    }

    /// A layer of the model, which must have as many.
    pub(super) fn expect_layer(&self, layer: usize) -> Result<&Tensor, Error> {
        let missing = Error::NoSuchLayer { layer, layers: self.states.len() };
        self.planner.tensors.get(layer).ok_or(missing)
    }

    /// Whether the step under way can still exchange a layer.
    pub(super) fn expect_lendable(&self, index: usize) -> Result<(), Error> {
        self.expect_layer(index)?;
        match &self.states[index] {
            state if state.lent != 0 => Err(Error::InFlight { layer: index }),
            state if state.fate == Fate::Exchanged => Err(Error::StepOrder {
                what: "a layer of the bucket has been exchanged in this step",
                expected: "layers that have not",
            }),
            _ => Ok(()),
        }
    }

    /// Takes a bucket back, wherever it is. One that has not been exchanged leaves the residuals of its layers as they were.
    ///
    /// # Errors
    /// [`Error::StepOrder`] for a bucket that this controller has not lent, or not since a saved state was loaded.
    pub fn close(&mut self, bucket: Bucket) -> Result<(), Error> {
        let lent = |layer: usize| self.states.get(layer).is_some_and(|state| state.lent == bucket.ticket);
        if !bucket.layers().all(lent) {
            return Err(Error::StepOrder { what: "the bucket is not lent", expected: "one of this step" });
        }
        // A rank that failed alone has agreed with the others before.
        let exchanged = bucket.progress == Progress::Exchanged;
        let alone = bucket.progress == Progress::FailedAlone;
        if (exchanged || alone) && bucket.agreement == Agreement::Needed {
            self.agreed.insert(bucket.layers().collect(), self.planner.step);
        }
        self.taken.told |= (exchanged || alone) && bucket.arena.kept.iter().any(|kept| kept.plan.shape.elements() > 0);
        // All ranks have found it, and compare their options before the next step.
        self.control.met &= !bucket.differs;
        self.taken.bytes_out += bucket.bytes;
        self.taken.wire += bucket.wire;
        self.taken.computing += bucket.computing;
        self.taken.broken |= bucket.progress == Progress::Broken;
        self.taken.not_finite |= bucket.not_finite;
        self.taken.incomplete |= bucket.window_steps > 0 && !exchanged;
        self.late = self.late.or(bucket.late).or(bucket.untold());
        let seconds = bucket.began.zip(self.now()).map(|(start, end)| end - start);
        let failed = alone || bucket.progress == Progress::Failed;
        let mut arena = bucket.arena;
        for kept in &mut arena.kept {
            kept.state.fate = match kept.state.fate {
                _ if exchanged => Fate::Exchanged,
                _ if failed => Fate::Failed,
                fate => fate,
            };
            if let Some(seconds) = seconds {
                *kept.state.bucket_seconds.get_or_insert(0.0) += seconds;
            }
        }
        self.take_back(arena);
        Ok(())
    }

    fn take_back(&mut self, mut arena: Arena) {
        self.take_layers_back(core::mem::take(&mut arena.kept));
        self.arenas.put(arena);
    }

    fn take_layers_back(&mut self, mut kept: Vec<Kept>) {
        for Kept { plan, state, window, .. } in kept.drain(..) {
            self.states[plan.index] = state;
            self.planner.take_mean_back(plan.index, window);
        }
        self.arenas.put_list(kept);
    }
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
