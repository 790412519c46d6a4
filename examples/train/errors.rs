//! Errors of random plans on the gradients of an uncompressed run, layer by layer.

use crate::optimiser::Kind;
use crate::report::Row;
use crate::schemes::{self, Scheme};
use crate::task::Task;
use crate::worker::{Failure, Worker};
use crate::{WORKERS, drawn};
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::controller::Tensor;
use lgreco_train::exchange::{Collective, threads};
use lgreco_train::feedback::{contraction, contraction_workspace_len};
use lgreco_train::gradient::{Gradient, Values};
use lgreco_train::rng::Stream;
use lgreco_train::search::{Method, Search};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The errors of one run.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// The model's name.
    pub model: String,
    /// The optimiser's name, as in [`Row::optimizer`].
    #[serde(default = "sgd")]
    pub optimizer: String,
    /// Steps of training.
    pub steps: u32,
    /// Seed of starting values and data.
    pub seed: u64,
    /// The layers that plans compress.
    pub layers: Vec<Layer>,
    /// Settings and errors by plan.
    pub plans: Vec<Plan>,
}

/// A layer with its gradients' norms and its sensitivity to noise.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// The layer's name.
    pub name: String,
    /// Number of values of the layer.
    pub elements: usize,
    /// Squared l2 norms of the layer's gradients at every decision.
    pub squared_norms: Vec<f64>,
    /// Increase of the loss by noise in the layer's values, divided by the noise's energy, at every second decision.
    pub sensitivities: Vec<f64>,
    /// Adam's second moments at every decision; none under SGD.
    #[serde(default)]
    pub moments: Vec<Moments>,
}

/// Adam's second moments of a layer at one step. Adam divides gradients by their roots.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// Squared l2 norm of one worker's gradient in this step.
    pub squared_norm: f64,
    /// The number of the layer's second moments in each octave `[2^e, 2^(e+1))`: `e` and the count. Zeros are counted
    /// under `e = -149`.
    pub octaves: Vec<(i32, u32)>,
}

fn sgd() -> String {
    Kind::Sgd.name().into()
}

impl Moments {
    fn new(gradient: &[f32], second: &[f32]) -> Moments {
        let mut octaves = BTreeMap::new();
        for &moment in second {
            *octaves.entry(f64::from(moment.max(f32::from_bits(1))).log2().floor() as i32).or_default() += 1;
        }
        Moments { squared_norm: squared_norm(gradient), octaves: octaves.into_iter().collect() }
    }

    /// The noise in Adam's step, in squared step lengths summed over the elements. The gradient has noise of `relative`
    /// squared error, spread evenly over the elements. The result is `Σ σ² / (v + σ²)`, because the second moments
    /// contain the noise too.
    pub fn noise_in_step(&self, relative: f64) -> f64 {
        let elements: f64 = self.octaves.iter().map(|&(_, count)| f64::from(count)).sum();
        let noise = self.squared_norm * relative / elements;
        let part =
            |&(octave, count): &(i32, u32)| f64::from(count) * noise / ((f64::from(octave) + 0.5).exp2() + noise);
        if noise > 0.0 { self.octaves.iter().map(part).sum() } else { 0.0 }
    }

    /// The result of `noise_in_step` if all second moments equalled the layer's mean.
    pub fn noise_by_mean(&self, relative: f64) -> f64 {
        let sum = |of: fn(f64) -> f64| {
            self.octaves.iter().map(|&(octave, count)| f64::from(count) * of(f64::from(octave) + 0.5)).sum::<f64>()
        };
        let (elements, sum) = (sum(|_| 1.0), sum(f64::exp2));
        elements * self.squared_norm * relative / sum
    }
}

impl Layer {
    /// The mean sensitivity, at least 0.
    pub fn sensitivity(&self) -> f64 {
        (self.sensitivities.iter().sum::<f64>() / self.sensitivities.len() as f64).max(0.0)
    }
}

/// A plan that is kept throughout training.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The plan's name.
    pub name: String,
    /// Total bits of the plan's payloads.
    pub size: u64,
    /// Settings by layer.
    pub settings: Vec<String>,
    /// Relative squared errors by layer, at every decision.
    pub errors: Vec<Vec<f64>>,
}

/// Trains uncompressed. At eight decisions, measures the gradients of one worker before averaging, as its controller
/// would. Each decision uses the mean gradient of up to ten steps before it. Every second decision also measures the
/// loss's sensitivity to noise in each layer.
fn measure(task: &Task, seed: u64) -> Result<Errors, Failure> {
    let scheme = Scheme { method: "none", name: "uncompressed" };
    let mut all = threads::run(WORKERS, |collective| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        pool.install(|| {
            let lead = collective.rank() == 0;
            let mut worker = Worker::new(task, seed, scheme, collective)?;
            let mut errors = Errors::new(task, seed, worker.tensors())?;
            let schedule = schemes::schedule(task);
            let mut window: Vec<Vec<f32>> = Vec::new();
            for step in 1..task.steps {
                let gradients = worker.gradients()?;
                let own = gradients.clone();
                let since = (u64::from(step) + schedule.period).saturating_sub(schedule.warmup) % schedule.period;
                if lead && since >= schedule.period - schedule.window {
                    window = match window.is_empty() {
                        true => gradients.clone(),
                        false => std::iter::zip(window, &gradients)
                            .map(|(sum, new)| std::iter::zip(sum, new).map(|(a, b)| a + b).collect())
                            .collect(),
                    };
                }
                worker.step(gradients)?;
                if since == schedule.period - 1 {
                    if lead {
                        errors.add(&window, worker.tensors())?;
                        errors.add_moments(&own, &worker.second_moments(), worker.tensors());
                        window.clear();
                    }
                    if ((u64::from(step) + 1 - schedule.warmup) / schedule.period).is_multiple_of(2) {
                        errors.probe(&mut worker)?;
                    }
                }
            }
            Ok::<_, Failure>(errors)
        })
    });
    all.swap_remove(0)
}

/// Returns the errors for all runs with random plans. Measures errors that the file lacks in uncompressed runs, and
/// adds them to the file.
pub fn read_or_measure(path: &Path, tasks: &[Task], rows: &[Row]) -> Result<Vec<Errors>, Failure> {
    let mut all: Vec<Errors> = match path.exists() {
        true => {
            serde_json::from_slice(&std::fs::read(path)?).map_err(|error| format!("{}: {error}", path.display()))?
        }
        false => vec![],
    };
    for row in rows.iter().filter(|row| row.method == drawn::METHOD) {
        let task = tasks
            .iter()
            .find(|task| (task.name, task.steps) == (&*row.model, row.steps) && task.conditions() == row.optimizer);
        if let Some(task) = task.filter(|_| !all.iter().any(|errors| errors.is_of(row))) {
            all.push(measure(task, row.seed)?);
            std::fs::write(path, serde_json::to_string(&all)? + "\n")?;
        }
    }
    all.retain(|errors| rows.iter().any(|row| errors.is_of(row)));
    Ok(all)
}

impl Errors {
    fn is_of(&self, row: &Row) -> bool {
        (&self.model, &self.optimizer, self.steps, self.seed) == (&row.model, &row.optimizer, row.steps, row.seed)
    }

    /// Finds a plan by name.
    pub fn plan(&self, name: &str) -> Option<&Plan> {
        self.plans.iter().find(|plan| plan.name == name)
    }

    fn new(task: &Task, seed: u64, tensors: &[Tensor]) -> Result<Errors, Failure> {
        let search = Search::new(Method::Hybrid);
        let taken = || tensors.iter().filter(|tensor| search.takes(tensor.dims()));
        let plan = |&name: &&str| -> Result<Plan, Failure> {
            let settings = drawn::plan(name, tensors, &search)?;
            let size = std::iter::zip(&settings, tensors)
                .map(|(setting, tensor)| Ok(8 * setting.payload_len(tensor.shape(), tensor.dtype())? as u64))
                .sum::<Result<u64, Failure>>()?;
            let settings: Vec<_> = std::iter::zip(settings, tensors)
                .filter(|(_, tensor)| search.takes(tensor.dims()))
                .map(|(setting, _)| setting.to_string())
                .collect();
            let errors = vec![vec![]; settings.len()];
            Ok(Plan { name: name.into(), size, settings, errors })
        };
        Ok(Errors {
            model: task.name.into(),
            optimizer: task.optimizer.name().into(),
            steps: task.steps,
            seed,
            layers: taken()
                .map(|tensor| Layer {
                    name: tensor.name().into(),
                    elements: tensor.shape().elements(),
                    squared_norms: vec![],
                    sensitivities: vec![],
                    moments: vec![],
                })
                .collect(),
            plans: drawn::NAMES.iter().map(plan).collect::<Result<_, Failure>>()?,
        })
    }

    /// Adds the layers' present sensitivities.
    fn probe(&mut self, worker: &mut Worker<impl Collective>) -> Result<(), Failure> {
        let search = Search::new(Method::Hybrid);
        let taken: Vec<bool> = worker.tensors().iter().map(|tensor| search.takes(tensor.dims())).collect();
        let taken = taken.into_iter().enumerate().filter_map(|(index, taken)| taken.then_some(index));
        for (layer, index) in self.layers.iter_mut().zip(taken) {
            layer.sensitivities.push(worker.sensitivity(index)?);
        }
        Ok(())
    }

    /// Adds the gradients' norms and the plans' errors at a decision.
    fn add(&mut self, gradients: &[Vec<f32>], tensors: &[Tensor]) -> Result<(), Failure> {
        let search = Search::new(Method::Hybrid);
        let taken = std::iter::zip(tensors, gradients).enumerate();
        let taken = taken.filter(|(_, (tensor, _))| search.takes(tensor.dims()));
        for (place, (index, (tensor, values))) in taken.enumerate() {
            self.layers[place].squared_norms.push(squared_norm(values));
            let gradient = Gradient::new(Values::F32(values), tensor.shape())?;
            let stream = Stream { layer: index as u32, ..Stream::default() };
            for plan in &mut self.plans {
                let setting: Setting = plan.settings[place].parse()?;
                let mut workspace = vec![0; contraction_workspace_len(&setting, tensor.shape(), tensor.dtype())];
                plan.errors[place].push(contraction(&setting, &gradient, stream, &mut workspace)?);
            }
        }
        Ok(())
    }

    /// Adds AdamW's second moments, if AdamW is the optimiser.
    fn add_moments(&mut self, gradients: &[Vec<f32>], second: &[Vec<f32>], tensors: &[Tensor]) {
        let search = Search::new(Method::Hybrid);
        let taken = std::iter::zip(tensors, std::iter::zip(gradients, second));
        let taken = taken.filter(|(tensor, _)| search.takes(tensor.dims()));
        for (layer, (_, (gradient, second))) in self.layers.iter_mut().zip(taken) {
            layer.moments.push(Moments::new(gradient, second));
        }
    }
}

fn squared_norm(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}
