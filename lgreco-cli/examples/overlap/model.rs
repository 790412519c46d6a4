//! A multi-layer perceptron that is differentiated layer by layer.

use crate::batch::Batch;
use crate::optimiser::Optimiser;
use crate::parameters::Parameters;
use crate::worker::{Failure, Gradients};
use candle_core::{Tensor, Var};

type Result<T, E = candle_core::Error> = std::result::Result<T, E>;

/// Its layers, first to last.
pub struct Mlp(Vec<Layer>);

struct Layer {
    parameters: Parameters,
    optimiser: Optimiser,
    weight: Tensor,
    bias: Tensor,
}

impl Mlp {
    /// From 64 pixels through these widths to the scores of ten digits; the same on all workers.
    pub fn new(hidden: &[usize], seed: u64) -> Result<Mlp> {
        let widths = [&[64], hidden, &[10]].concat();
        let layer = |(index, pair): (usize, &[usize])| {
            let mut parameters = Parameters::new(seed + index as u64);
            let weight = parameters.matrix(format!("layer{index}.weight"), pair[1], pair[0])?;
            let bias = parameters.constant(format!("layer{index}.bias"), pair[1], 0.0)?;
            let optimiser = Optimiser::new([pair[1] * pair[0], pair[1]].into_iter());
            Ok(Layer { parameters, optimiser, weight, bias })
        };
        widths.windows(2).enumerate().map(layer).collect::<Result<_>>().map(Mlp)
    }

    /// The parameters of each layer: a weight and a bias.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &Parameters> {
        self.0.iter().map(|layer| &layer.parameters)
    }

    /// Calls `ready` with each layer's gradients as soon as there are some, last layer first.
    pub fn backward(
        &self,
        batch: &Batch,
        mut ready: impl FnMut(usize, Gradients) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // Each layer has a graph of its own, which begins with what the layer before has put out.
        let mut outputs = vec![batch.inputs.flatten_from(1)?];
        let mut inputs = Vec::new();
        for (index, layer) in self.0.iter().enumerate() {
            let input = Var::from_tensor(&outputs[index].detach())?;
            let sums = input.matmul(&layer.weight.t()?)?.broadcast_add(&layer.bias)?;
            outputs.push(if index + 1 < self.0.len() { sums.relu()? } else { sums });
            inputs.push(input);
        }
        let mut objective = batch.loss(&outputs[self.0.len()])?;
        for (index, layer) in self.0.iter().enumerate().rev() {
            let store = objective.backward()?;
            ready(index, layer.parameters.gradients(&store)?)?;
            // The chain rule: ⟨output, the loss's gradient by it⟩ has the loss's gradients by what made the output.
            let by_input = store.get(&inputs[index]).ok_or("the loss does not depend on a layer's input")?;
            objective = (&outputs[index] * by_input.detach())?.sum_all()?;
        }
        Ok(())
    }

    /// One step down `gradients`, layer by layer.
    pub fn update(&mut self, gradients: &[Gradients], rate: f32) -> Result<()> {
        for (layer, gradients) in self.0.iter_mut().zip(gradients) {
            let mut values = layer.parameters.values()?;
            layer.optimiser.step(&mut values, gradients, rate);
            layer.parameters.set(&values)?;
        }
        Ok(())
    }

    /// The bits of all parameters.
    pub fn parameter_bits(&self) -> Result<Vec<u32>> {
        let layers: Vec<_> = self.layers().map(Parameters::values).collect::<Result<_>>()?;
        Ok(layers.iter().flatten().flatten().map(|x| x.to_bits()).collect())
    }
}
