//! From a window of gradients to one setting per layer: what the measuring rank does for all.

use super::codes::Choice;
use super::window::Typed;
use super::{Accordion, Cause, Config, Decision, Fit, FitKind, Objective, Policy, Tensor, TimeModel, Uncompressed};
use super::{accordion, window::Window};
use crate::backend::Backend;
use crate::compress::{Compressor, Setting};
use crate::feedback::{Rule, contraction, contraction_workspace_len, require_contraction};
use crate::gradient::{Element, Gradient, Shape, with_elements};
use crate::num::{Sum, sqrt};
use crate::plan::{self, Plan, baseline, budget::Budget};
use crate::rng::Stream;
use crate::search::{Layer, Measured, Metric};
use crate::table::Table;
use crate::{CoreError, Error, table};
use alloc::vec;
use alloc::vec::Vec;

/// What the measuring rank knows.
pub(super) struct Question<'a> {
    pub config: &'a Config,
    pub tensors: &'a [Tensor],
    /// The step to decide for.
    pub step: u64,
    /// Its gradients, at least one step of them.
    pub window: &'a Window,
    /// Norms of the gradients at the last decision; empty at the first.
    pub norms: &'a [f64],
    /// Whether the learning rate fell.
    pub fell: bool,
    pub time: &'a TimeModel,
    /// The bucket of each layer.
    pub bucket_of: &'a [usize],
    pub backend: &'a mut dyn Backend,
}

pub(super) struct Answer {
    pub decision: Decision,
    pub choices: Vec<Choice>,
    /// Norms of the window's gradients.
    pub norms: Vec<f64>,
}

impl Question<'_> {
    /// Decides.
    ///
    /// # Errors
    /// Those of the search, the planner and the objective.
    pub(super) fn answer(mut self) -> Result<Answer, Error> {
        let means = self.window.typed(self.tensors);
        let norms: Vec<f64> = means.iter().map(norm).collect();
        let mut decision = Decision::without_plan(self.step, Cause::Schedule);
        let mut relative = vec![None; self.tensors.len()];
        let mut choices = match &self.config.policy {
            Policy::Uncompressed => vec![Choice::dense(Uncompressed::Chosen); self.tensors.len()],
            Policy::Uniform => uniform(self.config, self.tensors, None)?,
            Policy::Fixed(settings) => settings.iter().map(|&setting| chosen(setting)).collect(),
            Policy::Accordion(accordion) => {
                let levels = self.levels(accordion, &norms);
                uniform(self.config, self.tensors, Some(&levels))?
            }
            Policy::KMeans { .. } | Policy::LGreco { .. } => self.plan(&means, &norms, &mut decision, &mut relative)?,
        };
        self.require_contractions(&means, &relative, &mut choices)?;
        let slower = choices.iter().filter(|choice| choice.uncompressed == Some(Uncompressed::Slower));
        decision.slower = slower.count() as u32;
        decision.not_contractive = refused(&choices);
        Ok(Answer { decision, choices, norms })
    }

    /// Accordion's parameter for each layer.
    fn levels(&self, accordion: &Accordion, norms: &[f64]) -> Vec<f64> {
        let before = self.norms.iter().copied().map(Some).chain(core::iter::repeat(None));
        let critical = |(&now, before)| self.fell || accordion::critical(accordion, before, now);
        norms.iter().zip(before).map(critical).map(|low| if low { accordion.low } else { accordion.high }).collect()
    }

    /// Measures and plans. Writes the relative squared error of what was chosen to `relative`.
    fn plan(
        &mut self,
        means: &[Typed<'_>],
        norms: &[f64],
        decision: &mut Decision,
        relative: &mut [Option<f64>],
    ) -> Result<Vec<Choice>, Error> {
        let mut choices = uniform(self.config, self.tensors, None)?;
        if !self.tensors.iter().any(|tensor| self.config.search.takes(&tensor.dims)) {
            return Ok(choices);
        }
        let layers = self.tensors.iter().zip(means);
        let layers = layers.map(|(tensor, mean)| Layer::new(&tensor.name, &tensor.dims, mean.values()));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let measured = self.config.search.measure(&layers, self.backend).map_err(|named| named.error)?;
        let fit = match self.config.objective {
            Objective::Bits => None,
            Objective::Seconds(_) => Some(self.time.fit()),
        };
        decision.fit = fit.as_ref().map(|fit| fit.kind);
        let fit = fit.filter(|fit| fit.kind != FitKind::None);
        let mut offers = Offers::new(&measured, self.tensors, fit.is_some())?;
        if let Some(accordion) = self.config.accordion() {
            let levels = self.levels(&accordion, norms);
            let settings = uniform(self.config, self.tensors, Some(&levels))?;
            offers.refer_to(&settings)?;
        }
        if let (Objective::Seconds(compute), Some(fit)) = (&self.config.objective, fit) {
            offers.cost_seconds(self.tensors, self.bucket_of, &fit, &**compute)?;
        }
        let table = Table::new(&offers.choices, &offers.ends)?;
        let budget = Budget::Defaults { alpha: self.config.alpha, options: &offers.reference };
        let plan = match self.config.policy {
            Policy::KMeans { clusters } => k_means(&table, budget, &measured, clusters)?,
            Policy::LGreco { solver, .. } => plan::solve(&table, budget, solver)?,
            _ => return Ok(choices),
        };
        decision.plan = Some(*plan.summary());
        decision.default_size = table.chosen(&offers.reference)?.map(|choice| choice.size).sum();
        decision.uncompressed_size = offers.uncompressed();
        for (place, (&layer, &option)) in offers.layers.iter().zip(plan.options()).enumerate() {
            let at = offers.start(place) + option as usize;
            let error = offers.choices[at].error;
            let squared = if self.config.search.metric == Metric::L2 { error * error } else { error };
            relative[layer] = Some(if norms[layer] > 0.0 { squared / (norms[layer] * norms[layer]) } else { 0.0 });
            choices[layer] = match offers.settings[at] {
                Setting::Dense if offers.added[place] => Choice::dense(Uncompressed::Slower),
                // The default saves nothing either.
                Setting::Dense if choices[layer].setting == Setting::Dense => choices[layer],
                setting => chosen(setting),
            };
        }
        Ok(choices)
    }

    /// Replaces settings with which feedback would amplify errors.
    fn require_contractions(
        &self,
        means: &[Typed<'_>],
        relative: &[Option<f64>],
        choices: &mut [Choice],
    ) -> Result<(), Error> {
        for (layer, choice) in choices.iter_mut().enumerate() {
            // The memory of a hard threshold stays below λ, contraction or not.
            let bounded = matches!(choice.setting, Setting::HardThreshold(_));
            if bounded || self.config.feedback.of(&choice.setting).is_none() {
                continue;
            }
            let Tensor { shape, dtype, .. } = self.tensors[layer];
            let relative = match relative[layer] {
                Some(relative) => relative,
                None => {
                    let gradient = Gradient::new(means[layer].values(), shape)?;
                    let mut workspace = vec![0; contraction_workspace_len(&choice.setting, shape, dtype)];
                    let stream = Stream { seed: self.config.search.seed, layer: layer as u32, ..Stream::default() };
                    contraction(&choice.setting, &gradient, stream, &mut workspace)?
                }
            };
            if require_contraction(relative).is_err() {
                *choice = Choice::dense(Uncompressed::NotContractive);
            }
        }
        Ok(())
    }
}

/// The options of the layers that may be compressed.
struct Offers {
    choices: Vec<table::Choice>,
    ends: Vec<usize>,
    /// Behind each choice.
    settings: Vec<Setting>,
    /// Which of the model's layers each layer of the table is.
    layers: Vec<usize>,
    /// The option of each layer whose error is its part of the budget.
    reference: Vec<u32>,
    /// Size of each layer uncompressed.
    dense: Vec<u64>,
    /// Whether a layer's last option is the uncompressed one and was not offered by the search.
    added: Vec<bool>,
}

impl Offers {
    fn new(measured: &Measured, tensors: &[Tensor], with_dense: bool) -> Result<Self, Error> {
        let table = measured.table.view();
        let mut offers = Offers {
            choices: vec![],
            ends: vec![],
            settings: vec![],
            layers: measured.layers.clone(),
            reference: measured.defaults.clone(),
            dense: vec![],
            added: vec![],
        };
        for (place, &layer) in measured.layers.iter().enumerate() {
            let Tensor { shape, dtype, .. } = tensors[layer];
            let size = 8 * Setting::Dense.payload_len(shape, dtype)? as u64;
            let row = table.layer(place);
            offers.choices.extend_from_slice(row);
            let settings: Vec<Setting> = (0..row.len()).map(|option| measured.setting(place, option)).collect();
            let add = with_dense && !settings.contains(&Setting::Dense);
            offers.settings.extend(settings);
            if add {
                offers.choices.push(table::Choice { size, error: 0.0 });
                offers.settings.push(Setting::Dense);
            }
            offers.ends.push(offers.choices.len());
            offers.dense.push(size);
            offers.added.push(add);
        }
        Ok(offers)
    }

    fn start(&self, place: usize) -> usize {
        if place == 0 { 0 } else { self.ends[place - 1] }
    }

    fn uncompressed(&self) -> u64 {
        self.dense.iter().sum()
    }

    /// Takes these settings, one per layer of the model, as the reference.
    fn refer_to(&mut self, choices: &[Choice]) -> Result<(), Error> {
        for (place, &layer) in self.layers.iter().enumerate() {
            let offered = &self.settings[self.start(place)..self.ends[place]];
            let option = offered.iter().position(|&setting| setting == choices[layer].setting);
            let missing = Error::Core(CoreError::NoSuchOption { layer, option: offered.len(), options: offered.len() });
            self.reference[place] = option.ok_or(missing)? as u32;
        }
        Ok(())
    }

    /// Replaces bits by picoseconds.
    fn cost_seconds(
        &mut self,
        tensors: &[Tensor],
        bucket_of: &[usize],
        fit: &Fit,
        compute: &dyn Fn(&Setting, Shape) -> f64,
    ) -> Result<(), Error> {
        for (place, &layer) in self.layers.iter().enumerate() {
            let (per_byte, shape) = (fit.seconds_per_byte[bucket_of[layer]], tensors[layer].shape);
            let cost = |setting: &Setting, bits: u64| -> Result<u64, Error> {
                let value = (bits / 8) as f64 * per_byte + compute(setting, shape);
                let expected = "a finite number >= 0, below a million";
                let wrong = Error::Core(CoreError::Parameter { what: "seconds that a layer takes", value, expected });
                if (0.0..1e6).contains(&value) { Ok((value * 1e12) as u64) } else { Err(wrong) }
            };
            let range = self.start(place)..self.ends[place];
            for (choice, setting) in self.choices[range.clone()].iter_mut().zip(&self.settings[range]) {
                choice.size = cost(setting, choice.size)?;
            }
            self.dense[place] = cost(&Setting::Dense, self.dense[place])?;
        }
        Ok(())
    }
}

fn k_means(table: &Table<'_>, budget: Budget<'_>, measured: &Measured, clusters: usize) -> Result<Plan, Error> {
    let elements: Vec<u64> = (0..table.layers()).map(|layer| measured.table.elements(layer)).collect();
    let metric: Vec<f64> = measured.table.view().chosen(&measured.defaults)?.map(|choice| choice.error).collect();
    let mut options = vec![0; table.layers()];
    let mut workspace = vec![0; baseline::kmeans_workspace_len(table, clusters)];
    let limit = budget.limit(table)?;
    baseline::kmeans(table, limit, &elements, &metric, clusters, &mut workspace, &mut options)?;
    Ok(Plan::from_options(table, Budget::Absolute(limit), "k-means", options)?)
}

/// The same parameter everywhere, the search's default, or one per layer.
pub(super) fn uniform(config: &Config, tensors: &[Tensor], levels: Option<&[f64]>) -> Result<Vec<Choice>, Error> {
    let of = |(layer, tensor): (usize, &Tensor)| {
        let Tensor { dims, dtype, .. } = tensor;
        let setting = match levels {
            None => config.search.uniform(dims, *dtype)?,
            Some(levels) => config.search.clone().with_default(levels[layer])?.uniform(dims, *dtype)?,
        };
        Ok(match setting {
            Setting::Dense if !config.search.takes(dims) => Choice::dense(Uncompressed::Small),
            Setting::Dense => Choice::dense(Uncompressed::NoSaving),
            setting => chosen(setting),
        })
    };
    tensors.iter().enumerate().map(of).collect()
}

/// A choice made without a gradient; uncompressed where its setting does not suit its feedback.
pub(super) fn suited(config: &Config, tensor: &Tensor, choice: Choice) -> Choice {
    let residual = config.feedback.of(&choice.setting);
    match residual.is_some_and(|residual| Rule::Residual(residual).suits(&choice.setting, tensor.shape).is_err()) {
        true => Choice::dense(Uncompressed::NotContractive),
        false => choice,
    }
}

/// How many settings were refused because feedback would amplify errors.
pub(super) fn refused(choices: &[Choice]) -> u32 {
    choices.iter().filter(|choice| choice.uncompressed == Some(Uncompressed::NotContractive)).count() as u32
}

fn chosen(setting: Setting) -> Choice {
    Choice { setting, uncompressed: (setting == Setting::Dense).then_some(Uncompressed::Chosen) }
}

/// L2 norm.
fn norm(values: &Typed<'_>) -> f64 {
    fn square(x: f32) -> f64 {
        x as f64 * x as f64
    }
    let sum: Sum = with_elements!(values.values(), v => v.iter().map(|x| square(x.to_f32())).collect());
    sqrt(sum.value())
}
