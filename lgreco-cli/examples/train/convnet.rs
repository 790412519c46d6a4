//! A small convolutional network for 8 × 8 images of digits.

use crate::parameters::Parameters;
use candle_core::{Result, Tensor};

/// Five convolutions, the first two at full size, the others at half of it, their mean, and a linear layer.
pub struct Convnet {
    convolutions: Vec<Layer>,
    output: Layer,
}

struct Layer {
    weight: Tensor,
    bias: Tensor,
}

impl Layer {
    /// `dims`: outputs, then what each output is made of.
    fn new(name: &str, dims: &[usize], parameters: &mut Parameters) -> Result<Self> {
        let inputs: usize = dims[1..].iter().product();
        Ok(Layer {
            weight: parameters.uniform(format!("{name}.weight"), dims, (6.0 / inputs as f32).sqrt())?,
            bias: parameters.constant(format!("{name}.bias"), dims[0], 0.0)?,
        })
    }
}

impl Convnet {
    /// Adds its parameters to `parameters`.
    pub fn new(parameters: &mut Parameters) -> Result<Self> {
        let channels = [1, 16, 32, 32, 64, 64];
        let convolution = |i: usize| Layer::new(&format!("conv{i}"), &[channels[i + 1], channels[i], 3, 3], parameters);
        Ok(Convnet {
            convolutions: (0..5).map(convolution).collect::<Result<_>>()?,
            output: Layer::new("output", &[10, 64], parameters)?,
        })
    }

    /// Scores of the ten digits for each of `images` (batch × 1 × 8 × 8): batch × 10.
    pub fn scores(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = images.clone();
        for (index, Layer { weight, bias }) in self.convolutions.iter().enumerate() {
            x = x.conv2d(weight, 1, 1, 1, 1)?.broadcast_add(&bias.reshape((1, (), 1, 1))?)?.relu()?;
            if index == 1 {
                x = x.avg_pool2d(2)?;
            }
        }
        x.mean((2, 3))?.matmul(&self.output.weight.t()?)?.broadcast_add(&self.output.bias)
    }
}
