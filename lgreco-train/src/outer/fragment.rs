//! A fragment: layers that are averaged in the same outer steps.

use super::Outer;
use crate::controller::{Budget, Config, Controller, Field, Outcome, Policy, Report, Tensor, values};
use crate::exchange::{Collective, Place};
use crate::gradient::{Dtype, ValuesMut};
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

pub(super) struct Fragment {
    pub layers: Range<usize>,
    pub controller: Controller,
    /// Parameters after the last outer step, layer by layer.
    pub starts: Vec<Vec<f32>>,
    pub velocities: Vec<Vec<f32>>,
    /// Memory for pseudo-gradients, layer after layer.
    moved: Vec<f32>,
    /// Whether the controller has all layers as one joined layer.
    joined: bool,
    /// Checksum of the parameters and velocities of the loaded state, which must be the same on all ranks.
    loaded: Field,
}

impl Fragment {
    /// Creates a fragment with parameters of zero. [`begin`](Fragment::begin) sets the parameters.
    pub(super) fn new(
        layers: Range<usize>,
        config: Config,
        tensors: Vec<Tensor>,
        joined: bool,
        Place { rank, world }: Place,
    ) -> Result<Self, Error> {
        let zeros = || tensors.iter().map(|tensor| values(tensor.shape().elements())).collect::<Result<Vec<_>, _>>();
        let (starts, velocities) = (zeros()?, zeros()?);
        let moved = values(starts.iter().map(Vec::len).sum())?;
        let tensors = if joined { vec![one_of(&tensors)?] } else { tensors };
        let of_model = |error| in_model(error, layers.start, joined, starts.iter().map(Vec::len));
        let mut controller = Controller::new(config, tensors, rank, world).map_err(of_model)?;
        controller.planning().compress_warmup().map_err(of_model)?;
        let loaded = checksum(&[], &[]);
        Ok(Fragment { layers, controller, starts, velocities, moved, joined, loaded })
    }

    /// Sets the parameters from which the next outer step starts.
    pub(super) fn begin(&mut self, parameters: &[&mut [f32]]) {
        self.starts.iter_mut().zip(parameters).for_each(|(start, values)| start.copy_from_slice(values));
    }

    /// Continues with the parameters and velocities of a saved state.
    pub(super) fn load(&mut self, starts: Vec<Vec<f32>>, velocities: Vec<Vec<f32>>) {
        self.loaded = checksum(&starts, &velocities);
        (self.starts, self.velocities) = (starts, velocities);
    }

    pub(super) fn lens(&self) -> impl Iterator<Item = usize> + Clone {
        self.starts.iter().map(Vec::len)
    }

    /// The controller's error, with the layer's index in the model.
    pub(super) fn in_model(&self, error: Error) -> Error {
        in_model(error, self.layers.start, self.joined, self.lens())
    }

    /// Takes an outer step after `steps` inner steps. Afterwards, `parameters` are the start of the next outer step.
    pub(super) fn average<C: Collective + ?Sized>(
        &mut self,
        outer: &Outer,
        steps: u64,
        collective: &mut C,
        parameters: &mut [&mut [f32]],
    ) -> Result<Report, Error> {
        self.controller.beside = vec![Field::whole("inner steps", steps), self.loaded];
        let lens = self.starts.iter().map(Vec::len);
        for ((moved, start), now) in parts(&mut self.moved, lens.clone()).zip(&self.starts).zip(&*parameters) {
            moved.iter_mut().zip(start).zip(&**now).for_each(|((moved, start), now)| *moved = start - now);
        }
        let mut views = match self.joined {
            true => vec![ValuesMut::F32(&mut self.moved)],
            false => parts(&mut self.moved, lens.clone()).map(ValuesMut::F32).collect(),
        };
        let stepped = self.controller.step(collective, &mut views, outer.learning_rate.into());
        let report = stepped.map_err(|error| self.in_model(error))?;
        if report.outcome != Outcome::Exchanged {
            return Ok(report);
        }
        if outer.forget_moved {
            let mut means = &self.moved[..];
            let lens = self.starts.iter().map(Vec::len);
            let lens = if self.joined { vec![means.len()] } else { lens.collect() };
            let layers = lens.into_iter().map(|len| means.split_off(..len).unwrap_or_default());
            self.controller.residuals().forget_moved(&layers.collect::<Vec<_>>())?;
        }
        if outer.feedback_decay < 1.0 {
            self.controller.residuals().rescale(outer.feedback_decay)?;
        }
        let mut means = &self.moved[..];
        for ((start, velocity), now) in self.starts.iter_mut().zip(&mut self.velocities).zip(parameters) {
            let mean = means.split_off(..start.len()).unwrap_or_default();
            for ((x, v), mean) in start.iter_mut().zip(velocity).zip(mean) {
                *v = outer.momentum * *v + mean;
                *x -= outer.learning_rate * (mean + outer.momentum * *v);
            }
            now.copy_from_slice(start);
        }
        Ok(report)
    }
}

/// The checksum of a state's parameters and velocities.
fn checksum(starts: &[Vec<f32>], velocities: &[Vec<f32>]) -> Field {
    let words = starts.iter().chain(velocities).flatten().map(|value| u64::from(value.to_bits()));
    Field::checksum("parameters and velocities of the loaded state", words)
}

/// Joins all layers into one layer of one column.
fn one_of(tensors: &[Tensor]) -> Result<Tensor, Error> {
    let elements = tensors.iter().map(|tensor| tensor.shape().elements()).sum();
    Tensor::new("joined", &[elements, 1], Dtype::F32)
}

/// Consecutive parts of `values` with these lengths.
fn parts(mut values: &mut [f32], lens: impl Iterator<Item = usize>) -> impl Iterator<Item = &mut [f32]> {
    lens.map(move |len| values.split_off_mut(..len).unwrap_or_default())
}

/// Changes the layer of a controller's error from its index in the fragment to its index in the model. `first` is the
/// model's index of the fragment's first layer, and `lens` are the lengths of the fragment's layers.
///
/// An error of a joined layer names the layer and the element at fault. If the error has no element, it names no layer.
fn in_model(error: Error, first: usize, joined: bool, lens: impl Iterator<Item = usize>) -> Error {
    if !joined {
        return error.layers_after(first);
    }
    match error {
        Error::NonFiniteGradient { index, value, .. } => {
            let (layer, index) = place(index, lens);
            Error::NonFiniteGradient { layer: first + layer, index, value }
        }
        Error::OfLayer { error: CoreError::ElementOverflow { index, value }, .. } => {
            let (layer, index) = place(index, lens);
            Error::OfLayer { layer: first + layer, error: CoreError::ElementOverflow { index, value } }
        }
        Error::OfLayer { error, .. } => Error::Core(error),
        error => error,
    }
}

/// Finds the layer that has element `index` of the joined layer, and the element's index in that layer.
fn place(index: usize, lens: impl Iterator<Item = usize>) -> (usize, usize) {
    let mut first = 0;
    for (layer, len) in lens.enumerate() {
        if index - first < len {
            return (layer, index - first);
        }
        first += len;
    }
    (0, index)
}

/// The configuration for a controller of the layers `part`. `settings` is the range of this part in the settings of a
/// fixed policy, and the number of all these settings.
pub(super) fn config_of(
    config: &Config,
    lens: &[usize],
    part: Range<usize>,
    settings: (Range<usize>, usize),
) -> Config {
    let elements = |lens: &[usize]| lens.iter().map(|&len| len as u128).sum::<u128>();
    let (own, all) = (elements(&lens[part]), elements(lens).max(1));
    let mut config = config.clone();
    config.budget = match config.budget {
        Budget::Bits(bits) => Budget::Bits((u128::from(bits) * own / all) as u64),
        Budget::Seconds(seconds) => Budget::Seconds(seconds * own as f64 / all as f64),
        relative => relative,
    };
    let (own, count) = settings;
    if let Policy::Fixed(settings) = &mut config.policy
        && settings.len() == count
    {
        *settings = settings[own].to_vec();
    }
    config
}

/// Divides layers into consecutive parts with about the same number of elements. Each part has at least one layer,
/// unless the model has none.
pub(super) fn divided(lens: &[usize], parts: usize) -> Vec<Range<usize>> {
    let total: usize = lens.iter().sum();
    let mut divided = Vec::with_capacity(parts);
    let (mut first, mut before) = (0, 0);
    for (layer, len) in lens.iter().enumerate() {
        let (left, open) = (lens.len() - layer, parts - divided.len());
        // The present part ends before this layer if the part has its share of elements, or if later parts would
        // otherwise get no layer.
        if layer > first && open > 1 && (before * parts >= total * (divided.len() + 1) || left < open) {
            divided.push(first..layer);
            first = layer;
        }
        before += len;
    }
    divided.push(first..lens.len());
    divided
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Setting, topk::TopK};
    use crate::gradient::Dtype;
    use crate::search::{Method, Search};
    use std::vec;

    #[test]
    fn budgets_in_bits_are_for_all_fragments() {
        let lens = [300, 100];
        let top = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
        let mut told = Config::new(Search::new(Method::TopK));
        told.policy = Policy::Fixed(vec![top; 2]);
        told.budget = Budget::Bits(1001);
        let [first, second] = [0..1, 1..2].map(|part| config_of(&told, &lens, part.clone(), (part, 2)));
        assert_eq!((first.budget, second.budget), (Budget::Bits(750), Budget::Bits(250)));
        assert_eq!(first.policy, Policy::Fixed(vec![top]));
        told.budget = Budget::Size;
        assert_eq!(config_of(&told, &lens, 0..1, (0..1, 2)).budget, Budget::Size);
    }

    #[test]
    fn layers_are_divided_evenly() {
        assert_eq!(divided(&[5, 5, 5, 5], 2), [0..2, 2..4]);
        assert_eq!(divided(&[100, 1, 1, 1], 3), [0..1, 1..2, 2..4]);
        assert_eq!(divided(&[1, 1, 1, 100], 4), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(divided(&[1, 1, 1, 100], 2), [0..3, 3..4]);
        assert_eq!(divided(&[0, 0, 0], 3), [0..1, 1..2, 2..3]);
        assert_eq!(divided(&[], 1), vec![core::ops::Range::default()]);
    }
}
