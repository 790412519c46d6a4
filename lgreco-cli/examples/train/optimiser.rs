//! SGD with momentum on plain vectors, so that its state can be stopped and restored.

/// What the optimiser remembers, tensor by tensor.
#[derive(Clone)]
pub struct Optimiser {
    velocity: Vec<Vec<f32>>,
}

const MOMENTUM: f32 = 0.9;

impl Optimiser {
    /// For tensors with these numbers of elements.
    pub fn new(lens: impl Iterator<Item = usize>) -> Optimiser {
        Optimiser { velocity: lens.map(|len| vec![0.0; len]).collect() }
    }

    /// One step down `gradients`: `v = 0.9 v + g`, `x −= rate · v`.
    pub fn step(&mut self, values: &mut [Vec<f32>], gradients: &[Vec<f32>], rate: f32) {
        for ((values, gradients), velocity) in values.iter_mut().zip(gradients).zip(&mut self.velocity) {
            for ((x, &g), v) in values.iter_mut().zip(gradients).zip(velocity) {
                *v = MOMENTUM * *v + g;
                *x -= rate * *v;
            }
        }
    }
}
