//! A multi-layer perceptron that is differentiated layer by layer.

use crate::batch::Batch;
use crate::parameters::{Parameter, Parameters};
use crate::worker::Failure;
use candle_core::Var;

/// The network's parameters: weight and bias of each layer.
pub struct Mlp(pub Parameters);

impl Mlp {
    /// Makes hidden layers of these widths between 64 pixels and the scores of ten digits. All workers get the same
    /// parameters.
    pub fn new(hidden: &[usize], seed: u64) -> Result<Mlp, Failure> {
        let mut parameters = Parameters::new(seed);
        for (layer, pair) in [&[64], hidden, &[10]].concat().windows(2).enumerate() {
            parameters.matrix(format!("layer{layer}.weight"), pair[1], pair[0])?;
            parameters.constant(format!("layer{layer}.bias"), pair[1], 0.0)?;
        }
        Ok(Mlp(parameters))
    }

    /// Calls `ready` with each layer and its parameters' gradients as soon as they are computed, last layer first.
    pub fn backward(
        &self,
        batch: &Batch,
        mut ready: impl FnMut(usize, Vec<Vec<f32>>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // Each layer has a separate autograd graph, whose input is the previous layer's output.
        let layers: Vec<&[Parameter]> = self.0.all().chunks(2).collect();
        let mut outputs = vec![batch.inputs.flatten_from(1)?];
        let mut inputs = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let input = Var::from_tensor(&outputs[index].detach())?;
            let sums = input.matmul(&layer[0].var.t()?)?.broadcast_add(&layer[1].var)?;
            outputs.push(if index + 1 < layers.len() { sums.relu()? } else { sums });
            inputs.push(input);
        }
        let mut objective = batch.loss(&outputs[layers.len()])?;
        for (index, layer) in layers.iter().enumerate().rev() {
            let store = objective.backward()?;
            let gradient = |var: &Var| store.get(var).ok_or("the loss does not depend on a layer");
            let values = |parameter: &Parameter| Ok(gradient(&parameter.var)?.flatten_all()?.to_vec1()?);
            ready(index, layer.iter().map(values).collect::<Result<_, Failure>>()?)?;
            // The inner product of a layer's output and the loss's gradient for this output replaces the loss. By the
            // chain rule, both have the same gradients for the layer's inputs and parameters.
            objective = (&outputs[index] * gradient(&inputs[index])?.detach())?.sum_all()?;
        }
        Ok(())
    }

    /// The gradients of all parameters, after the complete backward pass.
    pub fn gradients(&self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        let mut gradients = Vec::new();
        self.backward(batch, |_, of_layer| {
            gradients.splice(..0, of_layer);
            Ok(())
        })?;
        Ok(gradients)
    }
}
