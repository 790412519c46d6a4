//! Gradients in bf16: the f32 gradients are rounded to bf16, and the rounded values replace the f32 values in device
//! memory.

use super::*;
use lgreco::gradient::{Bf16, Element, Gradient, Values};

impl Bench {
    /// Switches all gradients to bf16. Exchanges then send and add bf16 values, too.
    pub(super) fn narrow(&mut self) -> Outcome<()> {
        self.narrow = self.values.iter().map(|&x| Bf16::from_f32(x)).collect();
        self.values = self.narrow.iter().map(|x| x.to_f32()).collect();
        self.dtype = Dtype::Bf16;
        self.clock.upload(self.gradient.at(), &self.narrow)
    }

    /// Returns the label of a printed line. For bf16 gradients, the label includes the type.
    pub(super) fn named(&self, name: &str) -> String {
        if self.dtype == Dtype::F32 { name.into() } else { format!("{name}, bf16") }
    }

    /// Returns the first values of the gradient, in the gradient's type on the device.
    pub(super) fn host(&self, shape: Shape) -> Outcome<Gradient<'_>> {
        let count = shape.elements();
        let values = match self.dtype {
            Dtype::F32 => Values::F32(&self.values[..count]),
            _ => Values::Bf16(&self.narrow[..count]),
        };
        Ok(Gradient::new(values, shape)?)
    }

    /// Rounds a mean to the gradient's type.
    pub(super) fn rounded(&self, mean: f32) -> f32 {
        if self.dtype == Dtype::F32 { mean } else { Bf16::from_f32(mean).to_f32() }
    }

    /// Reads `count` values of the gradient's type from the device.
    pub(super) fn read(&self, address: u64, count: usize) -> Outcome<Vec<f32>> {
        if self.dtype == Dtype::F32 {
            let mut values = vec![0.0; count];
            self.clock.download(address, &mut values)?;
            return Ok(values);
        }
        let mut values = vec![Bf16::from_f32(0.0); count];
        self.clock.download(address, &mut values)?;
        Ok(values.iter().map(|x| x.to_f32()).collect())
    }
}
