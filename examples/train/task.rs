//! Tasks: a model, its data, its optimiser, and the number of steps.

use crate::batch::Batch;
use crate::convnet::Convnet;
use crate::digits::Digits;
use crate::optimiser::Kind;
use crate::parameters::Parameters;
use crate::text::Text;
use crate::transformer::{Size, Transformer};
use candle_core::{Result, Tensor};

/// A model, its data, and a way of training; the same for all compression schemes.
pub struct Task {
    /// The model's name.
    pub name: &'static str,
    /// Steps of training.
    pub steps: u32,
    /// Number of validations during training.
    pub validations: u32,
    /// TopK's density in the uniform setting, whose error is the budget.
    pub density: f64,
    /// PowerSGD's rank in the uniform setting, whose error is the budget.
    pub rank: f64,
    /// The optimiser.
    pub optimizer: Kind,
    /// Number of workers that share a step's data.
    pub workers: u32,
    /// Whether the learning rate stays constant after its warm-up.
    pub constant: bool,
    /// The learning rate after its warm-up, under SGD and under AdamW.
    peaks: [f32; 2],
    /// The training data.
    pub data: Data,
}

/// Data of a task.
pub enum Data {
    /// `windows` is the number of windows per step, of all workers together.
    Text { text: Text, size: Size, windows: usize },
    /// `images` is the number of images per step, of all workers together.
    Digits { digits: Digits, images: usize },
}

/// A network with its parameters.
pub struct Model {
    /// All parameters of the network.
    pub parameters: Parameters,
    network: Network,
}

enum Network {
    Transformer(Transformer),
    Convnet(Convnet),
}

/// The tasks' names.
pub const NAMES: [&str; 2] = ["transformer", "convnet"];

/// Allowed numbers of steps: enough for the warm-up and a decision.
pub const STEPS: std::ops::Range<i64> = 10..i32::MAX as i64;

/// All tasks.
pub fn all(quick: bool) -> Vec<Task> {
    vec![Task::transformer(quick), Task::convnet(quick)]
}

impl Task {
    /// A transformer that predicts the next character of a novel.
    pub fn transformer(quick: bool) -> Task {
        let text = Text::load();
        let size = Size { vocabulary: text.vocabulary, context: 64, width: 96, heads: 4, depth: 2 };
        let (steps, validations) = if quick { (120, 3) } else { (800, 10) };
        let data = Data::Text { text, size, windows: 8 };
        Task::new(NAMES[0], (steps, validations), (0.1, 4.0), [0.3, 0.008], data)
    }

    /// A convolutional network that recognises digits.
    pub fn convnet(quick: bool) -> Task {
        let (steps, validations) = if quick { (150, 3) } else { (1200, 10) };
        let data = Data::Digits { digits: Digits::load(), images: 32 };
        Task::new(NAMES[1], (steps, validations), (0.2, 8.0), [0.02, 0.008], data)
    }

    fn new(
        name: &'static str,
        (steps, validations): (u32, u32),
        (density, rank): (f64, f64),
        peaks: [f32; 2],
        data: Data,
    ) -> Task {
        let (optimizer, workers, constant) = (Kind::Sgd, crate::WORKERS, false);
        Task { name, steps, validations, density, rank, optimizer, workers, constant, peaks, data }
    }

    /// The training conditions as text: the optimiser, and everything unusual.
    pub fn conditions(&self) -> String {
        let mut text = self.optimizer.name().to_owned();
        if self.workers != crate::WORKERS {
            text += &format!(", workers: {}", self.workers);
        }
        if self.constant {
            text += ", constant rate";
        }
        text
    }

    /// Number of steps over which the learning rate rises. During these steps, nothing is compressed.
    pub fn warmup(&self) -> u32 {
        (self.steps / 40).max(5)
    }

    /// The learning rate of a step: a linear rise, then a linear fall to zero, or a constant rate.
    pub fn rate(&self, step: u32) -> f32 {
        let (step, steps, warmup) = (step as f32, self.steps as f32, self.warmup() as f32);
        let fall = if self.constant { 1.0 } else { (steps - step) / (steps - warmup) };
        self.peaks[self.optimizer as usize] * ((step + 1.0) / warmup).min(fall)
    }

    /// The model before training, the same on all workers.
    pub fn model(&self, seed: u64) -> Result<Model> {
        let mut parameters = Parameters::new(seed);
        let network = match &self.data {
            Data::Text { size, .. } => Network::Transformer(Transformer::new(*size, &mut parameters)?),
            Data::Digits { .. } => Network::Convnet(Convnet::new(&mut parameters)?),
        };
        Ok(Model { parameters, network })
    }

    /// The training data of worker `rank` of `world` in a step; no two workers share data.
    pub fn training(&self, seed: u64, step: u32, rank: u32, world: u32) -> Result<Batch> {
        match &self.data {
            Data::Text { text, size, windows } => {
                text.training(windows / world as usize, size.context, seed, step, rank, world)
            }
            Data::Digits { digits, images } => digits.training(images / world as usize, seed, step, rank, world),
        }
    }

    /// The validation data, on which no worker trains.
    pub fn validation(&self) -> Result<Vec<Batch>> {
        match &self.data {
            Data::Text { text, size, .. } => text.validation(8, 16, size.context),
            Data::Digits { digits, .. } => digits.validation(2),
        }
    }
}

impl Model {
    /// Mean cross-entropy in nats per prediction.
    pub fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let scores = match &self.network {
            Network::Transformer(transformer) => transformer.scores(&batch.inputs)?,
            Network::Convnet(convnet) => convnet.scores(&batch.inputs)?,
        };
        batch.loss(&scores)
    }
}
