//! Buckets lent and taken back.

use super::Controller;
use super::arena::{Arena, Kept};
use super::bucket::{self, Bucket, Progress};
use super::codes::Choice;
use super::layer::{Fate, LayerState};
use super::lens::{Facts, Lens};
use super::planner::Planner;
use crate::Error;
use crate::checksum::Hash;
use crate::exchange::{Agreement, Collective, Moment, Spec};
use crate::feedback::{Memory, Residual};
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
    /// O(layers). Allocates where no bucket that was taken back had as much room: what the settings need, and an f32 per
    /// element of layers whose residual is not plain f32, whose errors are measured, or whose gradients are still needed
    /// when the means come (PowerSGD, CLT-k and scatter-reduce without a residual), up to three where several of these hold.
    /// [`Controller::step`] has one bucket at a time.
    pub fn open(&mut self, layers: &[usize]) -> Result<Bucket, Error> {
        let agreement = match self.agreed.get_mut(layers) {
            Some(last) => {
                *last = self.planner.step;
                Agreement::Reached
            }
            None => Agreement::Needed,
        };
        self.lend(layers.iter().copied(), agreement)
    }

    /// Lends the layers of a group, of which all ranks know that they exchange them together.
    pub(super) fn open_group(&mut self, layers: Range<usize>) -> Result<Bucket, Error> {
        self.lend(layers, Agreement::Reached)
    }

    fn lend(
        &mut self,
        layers: impl ExactSizeIterator<Item = usize> + Clone,
        agreement: Agreement,
    ) -> Result<Bucket, Error> {
        self.control.expect_open()?;
        self.lendings += 1;
        let ticket = Hash(self.planner.identity).add(self.lendings).0.max(1);
        let mut arena = self.arenas.pop().unwrap_or_default();
        arena.kept.clear();
        if arena.kept.try_reserve(layers.len()).is_err() {
            return Err(Error::out_of_memory(layers.len()));
        }
        for index in layers {
            if let Err(error) = self.expect_lendable(index) {
                self.take_back(arena);
                return Err(error);
            }
            let tensor = &self.planner.tensors[index];
            arena.kept.push(Kept {
                index,
                shape: tensor.shape,
                dtype: tensor.dtype,
                shards: tensor.shards.clone(),
                state: self.states[index].lend(ticket),
                window: self.planner.lend_mean(index),
                withheld: false,
            });
        }
        let config = &self.planner.config;
        let moment = Moment {
            rank: self.rank,
            world_size: self.world,
            route: config.route,
            reduce_dtype: config.search.reduce_dtype,
            seed: config.search.seed,
            step: self.planner.step as u32,
            terms: self.control.terms,
        };
        let every = config.metrics_every;
        let mut bucket = Bucket {
            arena,
            moment,
            agreement,
            measured: every > 0 && self.planner.step.is_multiple_of(every),
            measurable: every > 0,
            window_steps: self.planner.window_step(),
            non_finite: config.non_finite,
            failure: None,
            late: None,
            not_finite: false,
            differs: false,
            bytes: 0,
            began: None,
            clock: config.clock.filter(|_| self.planner.meter.is_some()),
            computing: 0.0,
            wire: 0.0,
            flight: None,
            ticket,
            progress: Progress::Open,
        };
        if let Err(error) = bucket.reserve() {
            self.take_back(bucket.arena);
            return Err(error);
        }
        // A bucket without elements has nobody to tell.
        if bucket.arena.kept.iter().any(|kept| kept.shape.elements() > 0) {
            bucket.failure = self.late.take();
        }
        bucket.began = self.now();
        Ok(bucket)
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
        self.taken.told |= (exchanged || alone) && bucket.arena.kept.iter().any(|kept| kept.shape.elements() > 0);
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

    /// Makes room for the last step's buckets under new settings: all buffers are here, for nothing is on its way.
    pub(super) fn make_room(&mut self, choices: &[Choice]) -> Result<(), Error> {
        let (layers, lens, words) = self.room_for(&self.states, choices)?;
        self.arenas.iter_mut().try_for_each(|arena| arena.reserve(layers, lens, words))
    }

    /// Layers, values and words of the largest of these buckets, where `states` have got these settings.
    pub(super) fn room_for(&self, states: &[LayerState], choices: &[Choice]) -> Result<(usize, Lens, usize), Error> {
        let Planner { config, tensors, groups, .. } = &self.planner;
        let measured = config.metrics_every > 0;
        let (mut layers, mut most, mut words) = (0, Lens::default(), 0);
        let last = self.agreed.values().max();
        let theirs = self.agreed.iter().filter(|(_, step)| Some(*step) == last).map(|(bucket, _)| bucket.clone());
        let ours = groups.ranges.iter().filter(|_| last.is_none()).cloned().map(Vec::from_iter);
        for bucket in ours.chain(theirs) {
            let of = |&index: &usize| Spec { index: index as u32, ..tensors[index].spec(choices[index].setting) };
            words = words.max(bucket::words(bucket.iter().map(of), config.route, self.world)?);
            let lens = bucket.iter().map(|&index| {
                // What is left of a residual goes out once.
                let left = || states[index].memory.as_ref().map(Memory::is_plain);
                let plain = config.feedback.of(&choices[index].setting).map(Residual::is_plain).or_else(left);
                let facts = Facts::new(&choices[index], plain, config.route, measured);
                facts.lens(tensors[index].shape.elements())
            });
            most = most.max(lens.fold(Lens::default(), Lens::add));
            layers = layers.max(bucket.len());
        }
        Ok((layers, most, words))
    }

    fn take_back(&mut self, mut arena: Arena) {
        for Kept { index, state, window, .. } in arena.kept.drain(..) {
            self.states[index] = state;
            self.planner.take_mean_back(index, window);
        }
        self.arenas.push(arena);
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
