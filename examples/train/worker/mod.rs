//! A worker: a replica of the model that trains on its own data and exchanges gradients with the other workers.

#[cfg(test)]
pub mod checkpoint;
mod probe;

use crate::optimiser::Optimiser;
use crate::schemes::Scheme;
use crate::task::{Model, Task};
use lgreco_train::controller::{Controller, Report, Tensor};
use lgreco_train::exchange::Collective;
use lgreco_train::gradient::{Dtype, ValuesMut};
use std::error::Error;
use std::time::Instant;

/// An error that may come from another thread.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A worker between two steps.
pub struct Worker<'a, C> {
    task: &'a Task,
    seed: u64,
    collective: C,
    model: Model,
    optimiser: Optimiser,
    controller: Controller,
    step: u32,
    /// Bytes that the worker has sent, and times.
    pub totals: Totals,
}

/// Sums over all steps so far.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Bytes that this worker sent.
    pub bytes: u64,
    /// Bytes of the worker's uncompressed gradients.
    pub uncompressed: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// Seconds of planning, including measurement. Planning time is part of `seconds`.
    pub planning: f64,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.bytes += report.bytes_out;
        self.uncompressed += report.bytes_in;
        self.planning += report.seconds.filter(|_| report.switched).map_or(0.0, |seconds| seconds.planning);
    }
}

impl<'a, C: Collective> Worker<'a, C> {
    /// A worker before the first step.
    pub fn new(task: &'a Task, seed: u64, scheme: Scheme, collective: C) -> Result<Self, Failure> {
        let model = task.model(seed)?;
        let parameters = model.parameters.all();
        let optimiser = Optimiser::new(task.optimizer, parameters.iter().map(|p| p.dims.iter().product()));
        let optimiser = if scheme.corrects() { optimiser.corrected() } else { optimiser };
        let tensors: Result<Vec<_>, _> =
            parameters.iter().map(|parameter| Tensor::new(&parameter.name, &parameter.dims, Dtype::F32)).collect();
        let tensors = tensors?;
        let controller =
            Controller::new(scheme.config(task, seed, &tensors)?, tensors, collective.rank(), collective.world_size())?;
        Ok(Worker { task, seed, collective, model, optimiser, controller, step: 0, totals: Totals::default() })
    }

    /// Trains until `end` steps are done, calling `observe` after each.
    pub fn train(
        &mut self,
        end: u32,
        mut observe: impl FnMut(&Controller, &Report) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        while self.step < end {
            let gradients = self.gradients()?;
            let report = self.step(gradients)?;
            observe(&self.controller, &report)?;
        }
        self.totals.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// This worker's own gradients of the next step.
    pub fn gradients(&self) -> Result<Vec<Vec<f32>>, Failure> {
        let (rank, world) = (self.collective.rank(), self.collective.world_size());
        let batch = self.task.training(self.seed, self.step, rank, world)?;
        Ok(self.model.parameters.gradients(&self.model.loss(&batch)?.backward()?)?)
    }

    /// Exchanges the gradients and makes the step.
    pub fn step(&mut self, mut gradients: Vec<Vec<f32>>) -> Result<Report, Failure> {
        let rate = self.task.rate(self.step);
        self.optimiser.correct(&mut gradients);
        // Waits for the slowest worker before the step, so that the wait is not counted as planning.
        self.collective.all_reduce_sum(&mut [])?;
        let mut views: Vec<ValuesMut> = gradients.iter_mut().map(|g| ValuesMut::from(&mut g[..])).collect();
        let report = self.controller.step(&mut self.collective, &mut views, rate.into())?;
        self.totals.add(&report);

        let mut values = self.model.parameters.values()?;
        self.optimiser.step(&mut values, &gradients, rate);
        self.model.parameters.set(&values)?;
        self.step += 1;
        Ok(report)
    }

    /// The model's tensors.
    pub fn tensors(&self) -> &[Tensor] {
        self.controller.tensors()
    }

    /// AdamW's second moments, tensor by tensor; none under SGD.
    pub fn second_moments(&self) -> Vec<Vec<f32>> {
        self.optimiser.second_moments()
    }

    /// The mean loss on data that no worker trains on, in nats; the workers share the evaluation.
    pub fn validate(&mut self) -> Result<f32, Failure> {
        let batches = self.task.validation()?;
        let (rank, world) = (self.collective.rank() as usize, self.collective.world_size() as usize);
        let mut sum = [0.0];
        for batch in batches.iter().skip(rank).step_by(world) {
            sum[0] += self.model.loss(batch)?.to_scalar::<f32>()?;
        }
        self.collective.all_reduce_sum(&mut sum)?;
        Ok(sum[0] / batches.len() as f32)
    }

    /// The bits of all parameters.
    pub fn parameter_bits(&self) -> Result<Vec<u32>, Failure> {
        Ok(self.model.parameters.values()?.iter().flatten().map(|x| x.to_bits()).collect())
    }
}
