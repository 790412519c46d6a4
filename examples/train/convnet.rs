//! A small convolutional network for 8 × 8 images of digits, in two stages.

use crate::parameters::Parameters;
use candle_core::{Result, Tensor};

/// The complete network.
pub struct Convnet {
    early: Early,
    late: Late,
}

/// Two convolutions at full resolution, then means of 2 × 2 pixels.
pub struct Early(Vec<Layer>);

/// Three convolutions at half resolution, the mean over all pixels, and a linear layer.
pub struct Late {
    convolutions: Vec<Layer>,
    output: Layer,
}

struct Layer {
    weight: Tensor,
    bias: Tensor,
}

impl Layer {
    /// `dims` has the number of outputs, then the shape of one output's inputs.
    fn new(name: &str, dims: &[usize], parameters: &mut Parameters) -> Result<Self> {
        let inputs: usize = dims[1..].iter().product();
        Ok(Layer {
            weight: parameters.uniform(format!("{name}.weight"), dims, (6.0 / inputs as f32).sqrt())?,
            bias: parameters.constant(format!("{name}.bias"), dims[0], 0.0)?,
        })
    }

    fn convolutions(channels: &[usize], first: usize, parameters: &mut Parameters) -> Result<Vec<Self>> {
        let layer = |(index, pair): (usize, &[usize])| {
            Layer::new(&format!("conv{}", first + index), &[pair[1], pair[0], 3, 3], parameters)
        };
        channels.windows(2).enumerate().map(layer).collect()
    }

    fn convolve(&self, x: &Tensor) -> Result<Tensor> {
        x.conv2d(&self.weight, 1, 1, 1, 1)?.broadcast_add(&self.bias.reshape((1, (), 1, 1))?)?.relu()
    }
}

impl Early {
    /// Adds the stage's parameters to `parameters`.
    pub fn new(parameters: &mut Parameters) -> Result<Self> {
        Layer::convolutions(&[1, 16, 32], 0, parameters).map(Early)
    }

    /// Maps images (batch × 1 × 8 × 8) to features (batch × 32 × 4 × 4).
    pub fn features(&self, images: &Tensor) -> Result<Tensor> {
        self.0.iter().try_fold(images.clone(), |x, layer| layer.convolve(&x))?.avg_pool2d(2)
    }
}

impl Late {
    /// Adds the stage's parameters to `parameters`.
    pub fn new(parameters: &mut Parameters) -> Result<Self> {
        let convolutions = Layer::convolutions(&[32, 32, 64, 64], 2, parameters)?;
        Ok(Late { convolutions, output: Layer::new("output", &[10, 64], parameters)? })
    }

    /// Maps features (batch × 32 × 4 × 4) to scores of the ten digits (batch × 10).
    pub fn scores(&self, features: &Tensor) -> Result<Tensor> {
        let x = self.convolutions.iter().try_fold(features.clone(), |x, layer| layer.convolve(&x))?;
        x.mean((2, 3))?.matmul(&self.output.weight.t()?)?.broadcast_add(&self.output.bias)
    }
}

impl Convnet {
    /// Adds the network's parameters to `parameters`.
    pub fn new(parameters: &mut Parameters) -> Result<Self> {
        Ok(Convnet { early: Early::new(parameters)?, late: Late::new(parameters)? })
    }

    /// Maps images (batch × 1 × 8 × 8) to scores of the ten digits (batch × 10).
    pub fn scores(&self, images: &Tensor) -> Result<Tensor> {
        self.late.scores(&self.early.features(images)?)
    }
}
