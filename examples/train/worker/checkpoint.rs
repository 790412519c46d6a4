//! Saving and loading a worker's state.

use super::{Failure, Totals, Worker};
use crate::optimiser::Optimiser;
use lgreco_train::exchange::Collective;

/// The complete state of a stopped worker.
pub struct Checkpoint {
    step: u32,
    totals: Totals,
    parameters: Vec<Vec<f32>>,
    optimiser: Optimiser,
    controller: Vec<u8>,
}

impl<C: Collective> Worker<'_, C> {
    /// The worker's state.
    pub fn save(&self) -> Result<Checkpoint, Failure> {
        Ok(Checkpoint {
            step: self.step,
            totals: self.totals,
            parameters: self.model.parameters.values()?,
            optimiser: self.optimiser.clone(),
            controller: self.controller.save()?,
        })
    }

    /// Continues from the state of a worker of the same rank.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Failure> {
        let Checkpoint { step, totals, parameters, optimiser, controller } = checkpoint;
        self.controller.load(&[controller], &[controller])?;
        self.model.parameters.set(parameters)?;
        (self.step, self.totals, self.optimiser) = (*step, *totals, optimiser.clone());
        Ok(())
    }
}
