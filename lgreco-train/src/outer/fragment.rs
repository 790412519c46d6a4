//! Layers that are averaged together.

use super::Outer;
use crate::Error;
use crate::controller::{Budget, Config, Controller, Outcome, Policy, Report, Tensor};
use crate::exchange::Collective;
use crate::gradient::ValuesMut;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

pub(super) struct Fragment {
    layers: Range<usize>,
    pub controller: Controller,
    /// Parameters after the last outer step, layer by layer.
    pub starts: Vec<Vec<f32>>,
    pub velocities: Vec<Vec<f32>>,
    /// Room for pseudo-gradients.
    moved: Vec<Vec<f32>>,
}

impl Fragment {
    pub(super) fn new<C: Collective + ?Sized>(
        layers: Range<usize>,
        config: Config,
        tensors: Vec<Tensor>,
        parameters: &[&mut [f32]],
        collective: &C,
    ) -> Result<Self, Error> {
        let starts: Vec<Vec<f32>> = parameters.iter().map(|values| values.to_vec()).collect();
        let zeros: Vec<Vec<f32>> = starts.iter().map(|values| vec![0.0; values.len()]).collect();
        let mut controller = Controller::new(config, tensors, collective)?;
        controller.compress_warmup()?;
        Ok(Fragment { layers, controller, starts, velocities: zeros.clone(), moved: zeros })
    }

    pub(super) fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    pub(super) fn controller(&self) -> &Controller {
        &self.controller
    }

    pub(super) fn lens(&self) -> impl Iterator<Item = usize> {
        self.starts.iter().map(Vec::len)
    }

    /// Takes an outer step, after which `parameters` are what the next one starts from.
    pub(super) fn average<C: Collective + ?Sized>(
        &mut self,
        outer: &Outer,
        collective: &mut C,
        parameters: &mut [&mut [f32]],
    ) -> Result<Report, Error> {
        for ((moved, start), now) in self.moved.iter_mut().zip(&self.starts).zip(&*parameters) {
            moved.iter_mut().zip(start).zip(&**now).for_each(|((moved, start), now)| *moved = start - now);
        }
        let mut views: Vec<ValuesMut<'_>> = self.moved.iter_mut().map(|moved| ValuesMut::F32(moved)).collect();
        let report = self.controller.step(collective, &mut views, outer.learning_rate.into())?;
        if report.outcome != Outcome::Exchanged {
            return Ok(report);
        }
        if outer.feedback_decay < 1.0 {
            self.controller.rescale_residuals(outer.feedback_decay)?;
        }
        let layers = self.starts.iter_mut().zip(&mut self.velocities).zip(&self.moved).zip(parameters);
        for (((start, velocity), mean), now) in layers {
            for ((x, v), mean) in start.iter_mut().zip(velocity).zip(mean) {
                *v = outer.momentum * *v + mean;
                *x -= outer.learning_rate * (mean + outer.momentum * *v);
            }
            now.copy_from_slice(start);
        }
        Ok(report)
    }
}

/// What the controller of a part of the layers is told.
pub(super) fn config_of(config: &Config, lens: &[usize], part: Range<usize>) -> Config {
    let elements = |lens: &[usize]| lens.iter().map(|&len| len as u128).sum::<u128>();
    let (own, all) = (elements(&lens[part.clone()]), elements(lens).max(1));
    let mut config = config.clone();
    config.budget = match config.budget {
        Budget::Bits(bits) => Budget::Bits((u128::from(bits) * own / all) as u64),
        Budget::Seconds(seconds) => Budget::Seconds(seconds * own as f64 / all as f64),
        relative => relative,
    };
    if let Policy::Fixed(settings) = &mut config.policy
        && settings.len() == lens.len()
    {
        *settings = settings[part].to_vec();
    }
    config
}

/// Consecutive layers, about as many elements in each part, none empty.
pub(super) fn divided(lens: &[usize], parts: usize) -> Vec<Range<usize>> {
    let total: usize = lens.iter().sum();
    let mut divided = Vec::with_capacity(parts);
    let (mut first, mut before) = (0, 0);
    for (layer, len) in lens.iter().enumerate() {
        let (left, open) = (lens.len() - layer, parts - divided.len());
        // What is begun ends before this layer if it has its share, or the others would have none.
        if layer > first && open > 1 && (before * parts >= total * (divided.len() + 1) || left < open) {
            divided.push(first..layer);
            first = layer;
        }
        before += len;
    }
    divided.push(first..lens.len());
    divided
}
