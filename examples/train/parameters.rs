//! A model's parameters: named variables with reproducible starting values.

use candle_core::backprop::GradStore;
use candle_core::{Device, Result, Tensor, Var};
use lgreco_train::rng::Stream;

/// A trainable tensor.
pub struct Parameter {
    /// The tensor's name, unique in the model.
    pub name: String,
    /// The tensor's dimensions.
    pub dims: Vec<usize>,
    /// The tensor's values.
    pub var: Var,
}

/// All parameters of a model, in the order of their creation.
pub struct Parameters {
    seed: u64,
    all: Vec<Parameter>,
}

impl Parameters {
    /// An empty list; starting values will be drawn from `seed`.
    pub fn new(seed: u64) -> Parameters {
        Parameters { seed: seed ^ u64::from_le_bytes(*b"initial "), all: Vec::new() }
    }

    /// Adds a parameter with values uniform in ± `bound`, the same on every worker.
    pub fn uniform(&mut self, name: impl Into<String>, dims: &[usize], bound: f32) -> Result<Tensor> {
        let stream = Stream { seed: self.seed, step: 0, layer: self.all.len() as u32, rank: 0 };
        let unit = |i: usize| stream.word(i as u64) as f32 / u32::MAX as f32;
        let values: Vec<f32> = (0..dims.iter().product()).map(|i| bound * (2.0 * unit(i) - 1.0)).collect();
        self.add(name.into(), dims, values)
    }

    /// Adds a matrix for inputs of `cols` features, scaled so that outputs have about the inputs' variance.
    pub fn matrix(&mut self, name: impl Into<String>, rows: usize, cols: usize) -> Result<Tensor> {
        self.uniform(name, &[rows, cols], (3.0 / cols as f32).sqrt())
    }

    /// Adds a vector whose elements all have one value.
    pub fn constant(&mut self, name: impl Into<String>, len: usize, value: f32) -> Result<Tensor> {
        self.add(name.into(), &[len], vec![value; len])
    }

    fn add(&mut self, name: String, dims: &[usize], values: Vec<f32>) -> Result<Tensor> {
        let var = Var::from_vec(values, dims, &Device::Cpu)?;
        let tensor = var.as_tensor().clone();
        self.all.push(Parameter { name, dims: dims.to_vec(), var });
        Ok(tensor)
    }

    /// All parameters, in the order of their creation.
    pub fn all(&self) -> &[Parameter] {
        &self.all
    }

    /// The values, tensor by tensor.
    pub fn values(&self) -> Result<Vec<Vec<f32>>> {
        self.all.iter().map(|parameter| parameter.var.flatten_all()?.to_vec1()).collect()
    }

    /// Replaces the values.
    pub fn set(&self, values: &[Vec<f32>]) -> Result<()> {
        for (parameter, values) in self.all.iter().zip(values) {
            parameter.var.set(&Tensor::from_slice(values, &parameter.dims[..], &Device::Cpu)?)?;
        }
        Ok(())
    }

    /// The parameters' gradients, tensor by tensor.
    pub fn gradients(&self, store: &GradStore) -> Result<Vec<Vec<f32>>> {
        let gradient = |parameter: &Parameter| match store.get(&parameter.var) {
            Some(gradient) => gradient.flatten_all()?.to_vec1(),
            None => candle_core::bail!("`{}` does not contribute to the loss", parameter.name),
        };
        self.all.iter().map(gradient).collect()
    }
}
