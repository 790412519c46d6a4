//! SGD with momentum and AdamW on plain vectors, so that their state can be saved and loaded.

use clap::ValueEnum;

/// The optimiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// SGD with momentum 0.9.
    Sgd,
    /// AdamW with moments 0.9 and 0.999 and a weight decay of 0.01.
    Adamw,
}

impl Kind {
    /// The name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sgd => "sgd",
            Kind::Adamw => "adamw",
        }
    }
}

/// The optimiser's state, tensor by tensor.
#[derive(Clone)]
pub struct Optimiser {
    kind: Kind,
    /// Whether SGD's velocities are exchanged, in place of gradients.
    corrected: bool,
    steps: i32,
    /// SGD's velocity, AdamW's first moment.
    first: Vec<Vec<f32>>,
    /// AdamW's second moment.
    second: Vec<Vec<f32>>,
}

const MOMENTUM: f32 = 0.9;
const SQUARES: f32 = 0.999;
const EPSILON: f32 = 1e-8;
const DECAY: f32 = 0.01;

impl Optimiser {
    /// Makes the state for tensors with these numbers of elements.
    pub fn new(kind: Kind, lens: impl Iterator<Item = usize>) -> Optimiser {
        let first: Vec<Vec<f32>> = lens.map(|len| vec![0.0; len]).collect();
        let second = if kind == Kind::Adamw { first.clone() } else { vec![] };
        Optimiser { kind, corrected: false, steps: 0, second, first }
    }

    /// SGD with momentum correction (Lin et al., "Deep Gradient Compression", ICLR 2018). Each worker has its own
    /// velocity. [`Optimiser::correct`] replaces gradients by the velocity, and [`Optimiser::step`] uses no momentum.
    pub fn corrected(self) -> Optimiser {
        Optimiser { corrected: true, ..self }
    }

    /// Adds this worker's gradients to its velocity, and replaces the gradients by the velocity. Without momentum
    /// correction, gradients stay unchanged.
    pub fn correct(&mut self, gradients: &mut [Vec<f32>]) {
        if self.corrected {
            for (gradients, velocity) in gradients.iter_mut().zip(&mut self.first) {
                for (g, v) in gradients.iter_mut().zip(velocity) {
                    *v = MOMENTUM * *v + *g;
                    *g = *v;
                }
            }
        }
    }

    /// AdamW's bias-corrected second moments, tensor by tensor; none under SGD.
    pub fn second_moments(&self) -> Vec<Vec<f32>> {
        let unbiased = 1.0 / (1.0 - SQUARES.powi(self.steps.max(1)));
        self.second.iter().map(|moments| moments.iter().map(|moment| unbiased * moment).collect()).collect()
    }

    /// Makes one step down `gradients`. SGD: `v = 0.9 v + g`, `x −= rate · v`.
    pub fn step(&mut self, values: &mut [Vec<f32>], gradients: &[Vec<f32>], rate: f32) {
        self.steps += 1;
        if self.kind == Kind::Adamw {
            return self.adamw(values, gradients, rate);
        }
        for ((values, gradients), velocity) in values.iter_mut().zip(gradients).zip(&mut self.first) {
            for ((x, &g), v) in values.iter_mut().zip(gradients).zip(velocity) {
                if self.corrected {
                    *x -= rate * g;
                } else {
                    *v = MOMENTUM * *v + g;
                    *x -= rate * *v;
                }
            }
        }
    }

    /// AdamW by Loshchilov and Hutter, ICLR 2019. The weight decay follows the schedule of the learning rate.
    fn adamw(&mut self, values: &mut [Vec<f32>], gradients: &[Vec<f32>], rate: f32) {
        let [mean, square] = [MOMENTUM, SQUARES].map(|beta| 1.0 / (1.0 - beta.powi(self.steps)));
        for (((values, gradients), m), v) in values.iter_mut().zip(gradients).zip(&mut self.first).zip(&mut self.second)
        {
            for (((x, &g), m), v) in values.iter_mut().zip(gradients).zip(m).zip(v) {
                *m = MOMENTUM * *m + (1.0 - MOMENTUM) * g;
                *v = SQUARES * *v + (1.0 - SQUARES) * g * g;
                *x -= rate * (mean * *m / ((square * *v).sqrt() + EPSILON) + DECAY * *x);
            }
        }
    }
}
