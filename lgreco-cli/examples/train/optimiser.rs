//! SGD with momentum and AdamW, on plain vectors, so that their state can be stopped and restored.

/// How gradients become steps.
#[derive(Clone, Copy)]
pub enum Rule {
    /// `v = 0.9 v + g`, `x −= rate · v`.
    Momentum,
    /// AdamW with decay rates 0.9 and 0.99 and weight decay 0.01 (matrices alike with vectors).
    AdamW,
}

/// What the optimiser remembers, tensor by tensor.
#[derive(Clone)]
pub struct Optimiser {
    rule: Rule,
    steps: i32,
    first: Vec<Vec<f32>>,
    second: Vec<Vec<f32>>,
}

impl Optimiser {
    /// For tensors with these numbers of elements.
    pub fn new(rule: Rule, lens: impl Iterator<Item = usize>) -> Optimiser {
        let zeros: Vec<Vec<f32>> = lens.map(|len| vec![0.0; len]).collect();
        Optimiser { rule, steps: 0, first: zeros.clone(), second: zeros }
    }

    /// One step down `gradients`.
    pub fn step(&mut self, values: &mut [Vec<f32>], gradients: &[Vec<f32>], rate: f32) {
        self.steps += 1;
        let corrections = (1.0 - 0.9f32.powi(self.steps), 1.0 - 0.99f32.powi(self.steps));
        for (tensor, (values, gradients)) in values.iter_mut().zip(gradients).enumerate() {
            let memory = self.first[tensor].iter_mut().zip(&mut self.second[tensor]);
            for ((x, &g), (m, v)) in values.iter_mut().zip(gradients).zip(memory) {
                match self.rule {
                    Rule::Momentum => {
                        *m = 0.9 * *m + g;
                        *x -= rate * *m;
                    }
                    Rule::AdamW => {
                        *m += 0.1 * (g - *m);
                        *v += 0.01 * (g * g - *v);
                        *x -= rate * (0.01 * *x + *m / corrections.0 / ((*v / corrections.1).sqrt() + 1e-8));
                    }
                }
            }
        }
    }
}
