//! Stopping a worker and going on later.

use super::{Failure, Totals, Worker};
use crate::optimiser::Optimiser;
use lgreco_train::exchange::Collective;

/// All that a stopped worker needs to go on.
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

    /// Goes on where a worker of the same rank stopped.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Failure> {
        let Checkpoint { step, totals, parameters, optimiser, controller } = checkpoint;
        self.controller.load(&[controller], &[controller])?;
        self.model.parameters.set(parameters)?;
        (self.step, self.totals, self.optimiser) = (*step, *totals, optimiser.clone());
        Ok(())
    }
}
