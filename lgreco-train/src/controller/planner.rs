//! Chooses one setting per layer according to the policy. Most policies also use the gradients of a window.

use super::costs::{Costs, Trial};
use super::decision::{Decided, LayerSetting};
use super::observed::Means;
use super::{Accordion, Budget, Cause, Config, Decision, Policy, Tensor, Uncompressed, accordion};
use crate::backend::Backend;
use crate::compress::{Compressor, Setting};
use crate::feedback::{require_contraction, suits};
use crate::gradient::Dtype;
use crate::plan::{self, Limit, Plan, baseline};
use crate::search::Measured;
use crate::table::{self, Table};
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

/// Picoseconds per second. A table's sizes in seconds are stored as whole numbers of picoseconds.
const PICOSECONDS: f64 = 1e12;

/// The inputs of one decision, besides the gradients.
pub(super) struct Planner<'a> {
    pub config: &'a Config,
    pub tensors: &'a [Tensor],
    /// The step at which the decision takes effect.
    pub step: u64,
    /// Norms of the gradients at the last decision; empty at the first decision.
    pub norms: &'a [f64],
    /// Whether the learning rate fell.
    pub fell: bool,
}

impl Planner<'_> {
    /// Makes a decision. Measures and plans if the policy requires it. `costs` are given if the objective is [measured
    /// seconds](super::Objective). With `costs`, this function also times trials and writes them to `trials`, unless the caller has
    /// timed them.
    pub(super) fn decide(
        &self,
        means: &mut Means<'_, '_>,
        backend: &mut dyn Backend,
        mut costs: Option<Costs>,
        trials: &mut Vec<Trial>,
    ) -> Result<Decided, Error> {
        let norms = means.norms.clone();
        let mut decision = Decision::without_plan(self.step, Cause::Schedule);
        let mut relative = vec![None; self.tensors.len()];
        let mut choices = match &self.config.policy {
            Policy::Uncompressed => vec![LayerSetting::dense(Uncompressed::Chosen); self.tensors.len()],
            Policy::Uniform => uniform(self.config, self.tensors, None)?,
            Policy::Fixed(settings) => settings.iter().map(|&setting| LayerSetting::chosen(setting)).collect(),
            Policy::Accordion(accordion) => {
                let levels = self.levels(accordion, &norms);
                uniform(self.config, self.tensors, Some(&levels))?
            }
            Policy::Legacy(legacy) => {
                let elements = self.tensors.iter().map(|tensor| tensor.shape.elements() as u64);
                let levels: Vec<f64> = elements.map(|elements| legacy.level(self.step, elements)).collect();
                uniform(self.config, self.tensors, Some(&levels))?
            }
            Policy::KMeans { .. } | Policy::LGreco { .. } => {
                self.plan(backend, means, &norms, &mut decision, &mut relative, costs.as_mut().zip(Some(trials)))?
            }
        };
        self.require_contractions(means, &relative, &mut choices)?;
        let slower = choices.iter().filter(|choice| choice.uncompressed == Some(Uncompressed::Slower));
        decision.slower = slower.count() as u32;
        decision.not_contractive = refused(&choices);
        if let (Some(costs), Some(_)) = (costs, decision.plan) {
            let default = uniform(self.config, self.tensors, None)?;
            let settings = |choices: &[LayerSetting]| choices.iter().map(|choice| choice.setting).collect::<Vec<_>>();
            decision.timing = Some(costs.timing(self.tensors, [&settings(&choices), &settings(&default)])?);
        }
        Ok(Decided { decision, choices, norms })
    }

    /// Accordion's parameter for each layer.
    fn levels(&self, accordion: &Accordion, norms: &[f64]) -> Vec<f64> {
        let before = self.norms.iter().copied().map(Some).chain(core::iter::repeat(None));
        let critical = |(&now, before)| self.fell || accordion::critical(accordion, before, now);
        norms.iter().zip(before).map(critical).map(|low| if low { accordion.low } else { accordion.high }).collect()
    }

    /// Measures and plans. Writes the relative squared error of each chosen setting to `relative`.
    fn plan(
        &self,
        backend: &mut dyn Backend,
        means: &mut Means<'_, '_>,
        norms: &[f64],
        decision: &mut Decision,
        relative: &mut [Option<f64>],
        measured_costs: Option<(&mut Costs, &mut Vec<Trial>)>,
    ) -> Result<Vec<LayerSetting>, Error> {
        let mut choices = uniform(self.config, self.tensors, None)?;
        if !self.tensors.iter().any(|tensor| self.config.search.takes(&tensor.dims)) {
            return Ok(choices);
        }
        let measured = means.measure(&self.config.search, backend)?;
        let timed = measured_costs.is_some();
        let mut offers = Offers::new(&measured, self.tensors, self.config.search.reduce_dtype, timed)?;
        if let Some(accordion) = self.config.accordion() {
            let levels = self.levels(&accordion, norms);
            let settings = uniform(self.config, self.tensors, Some(&levels))?;
            offers.refer_to(&settings)?;
        }
        if let Some((costs, trials)) = measured_costs {
            costs.lens = offers.varying_lens();
            if let Some(clock) = self.config.clock.filter(|_| costs.tries) {
                *trials = costs.try_out(offers.options(), self.tensors, means, clock, backend)?;
            }
            offers.cost_seconds(|layer, setting, bits| {
                costs.seconds_with_margin(layer, setting, &self.tensors[layer], bits)
            })?;
        }
        let table = Table::new(&offers.choices, &offers.ends)?;
        let Some(budget) = self.budget(&offers.reference, timed) else { return Ok(choices) };
        let limit = budget.limit(&table)?;
        let in_its_unit = |error| match error {
            Error::Core(CoreError::SizeInfeasible { limit, smallest, .. }) if timed => {
                let [limit, smallest] = [limit, smallest].map(|time| time as f64 / PICOSECONDS);
                Error::TimeInfeasible { limit, smallest }
            }
            error => error,
        };
        let plan = match self.config.policy {
            Policy::KMeans { clusters } => k_means(&table, limit, &measured, clusters),
            Policy::LGreco { solver, .. } => {
                plan::solve_against(&table, limit.into(), budget.reference(), solver).map_err(Error::Core)
            }
            _ => return Ok(choices),
        };
        let plan = plan.map_err(in_its_unit)?;
        decision.plan = Some(*plan.summary());
        decision.default_size = table.chosen(&offers.reference)?.map(|choice| choice.size).sum();
        decision.uncompressed_size = offers.dense.iter().sum();
        for (place, (&layer, &option)) in offers.layers.iter().zip(plan.options()).enumerate() {
            let at = offers.start(place) + option as usize;
            let error = offers.choices[at].error;
            let squared = self.config.search.squared_error(&offers.settings[at], error);
            relative[layer] = Some(if norms[layer] > 0.0 { squared / (norms[layer] * norms[layer]) } else { 0.0 });
            choices[layer] = match offers.settings[at] {
                Setting::Dense if offers.added[place] => LayerSetting::dense(Uncompressed::Slower),
                // If the layer's default is also uncompressed, the reason of the default is kept.
                Setting::Dense if choices[layer].setting == Setting::Dense => choices[layer],
                setting => LayerSetting::chosen(setting),
            };
        }
        Ok(choices)
    }

    /// The plan's budget; `None` for a budget in seconds if the table's sizes are bits.
    fn budget<'a>(&self, reference: &'a [u32], timed: bool) -> Option<plan::budget::Budget<'a>> {
        use plan::budget::Budget as Planned;
        let (alpha, options) = (self.config.alpha, reference);
        Some(match self.config.budget {
            Budget::Error => Planned::Defaults { alpha, options },
            Budget::Size => Planned::DefaultSize { alpha, options },
            Budget::Bits(bits) => Planned::Size(bits),
            Budget::Seconds(seconds) if timed => Planned::Size((seconds * PICOSECONDS) as u64),
            Budget::Seconds(_) => return None,
        })
    }

    /// Replaces settings under which error feedback would amplify errors.
    fn require_contractions(
        &self,
        means: &mut Means<'_, '_>,
        relative: &[Option<f64>],
        choices: &mut [LayerSetting],
    ) -> Result<(), Error> {
        for (layer, choice) in choices.iter_mut().enumerate() {
            if choice.setting.traits().bounded || self.config.feedback.of(&choice.setting).is_none() {
                continue;
            }
            let relative = match relative[layer] {
                Some(relative) => relative,
                None => means.contraction(&choice.setting, layer, self.config.search.seed)?,
            };
            if require_contraction(relative).is_err() {
                *choice = LayerSetting::dense(Uncompressed::NotContractive);
            }
        }
        Ok(())
    }
}

/// The setting of every layer at the search's default parameter, or at `levels`, one parameter per layer.
pub(super) fn uniform(config: &Config, tensors: &[Tensor], levels: Option<&[f64]>) -> Result<Vec<LayerSetting>, Error> {
    let of = |(layer, tensor): (usize, &Tensor)| {
        let Tensor { dims, dtype, .. } = tensor;
        let setting = match levels {
            None => config.search.uniform(dims, *dtype)?,
            Some(levels) => config.search.clone().with_default(levels[layer])?.uniform(dims, *dtype)?,
        };
        Ok(match setting {
            Setting::Dense if !config.search.takes(dims) => LayerSetting::dense(Uncompressed::Small),
            Setting::Dense => LayerSetting::dense(Uncompressed::NoSaving),
            setting => LayerSetting::chosen(setting),
        })
    };
    tensors.iter().enumerate().map(of).collect()
}

/// Checks a setting that was chosen without a gradient. Leaves the layer uncompressed if error feedback does not work with the
/// setting.
pub(super) fn suited(config: &Config, tensor: &Tensor, choice: LayerSetting) -> LayerSetting {
    let has_residual = config.feedback.of(&choice.setting).is_some();
    match has_residual && suits(&choice.setting, tensor.shape).is_err() {
        true => LayerSetting::dense(Uncompressed::NotContractive),
        false => choice,
    }
}

/// Number of settings that were refused because error feedback would amplify errors.
pub(super) fn refused(choices: &[LayerSetting]) -> u32 {
    choices.iter().filter(|choice| choice.uncompressed == Some(Uncompressed::NotContractive)).count() as u32
}

/// The table that the solver gets: the measured options of the layers that may be compressed.
struct Offers {
    choices: Vec<table::Choice>,
    /// For each layer, the index in `choices` at which its choices end.
    ends: Vec<usize>,
    /// The setting of each choice.
    settings: Vec<Setting>,
    /// For each layer of the table, its index in the model.
    layers: Vec<usize>,
    /// For each layer, the option whose error or size is the layer's part of the budget.
    reference: Vec<u32>,
    /// The uncompressed size of each layer.
    dense: Vec<u64>,
    /// For each layer, whether an uncompressed option was added at the end because the search offers none.
    added: Vec<bool>,
}

impl Offers {
    /// The options that the search has measured. `with_dense` adds the uncompressed setting to layers that lack it.
    fn new(measured: &Measured, tensors: &[Tensor], reduce_dtype: Dtype, with_dense: bool) -> Result<Self, Error> {
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
            let size = 8 * Setting::Dense.exchanged_len(shape, dtype, reduce_dtype)? as u64;
            let row = table.layer(place);
            offers.choices.extend_from_slice(row);
            let settings = (0..row.len()).map(|option| measured.setting(place, option));
            let settings = settings.collect::<Result<Vec<Setting>, _>>()?;
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

    /// Makes these settings, one per layer of the model, the reference for the budget.
    fn refer_to(&mut self, choices: &[LayerSetting]) -> Result<(), Error> {
        for (place, &layer) in self.layers.iter().enumerate() {
            let offered = &self.settings[self.start(place)..self.ends[place]];
            let option = offered.iter().position(|&setting| setting == choices[layer].setting);
            let missing = CoreError::NoSuchOption { layer, option: offered.len(), options: offered.len() };
            self.reference[place] = option.ok_or(missing)? as u32;
        }
        Ok(())
    }

    /// Every offered setting with the index of its layer in the model.
    fn options(&self) -> impl Iterator<Item = (usize, &Setting)> + Clone {
        let settings = |place: usize| self.settings[self.start(place)..self.ends[place]].iter();
        self.layers.iter().enumerate().flat_map(move |(place, &layer)| settings(place).map(move |it| (layer, it)))
    }

    /// Layers and settings whose payload length depends on the values, with the measured bits.
    fn varying_lens(&self) -> Vec<(usize, Setting, u64)> {
        let options = self.options().zip(&self.choices);
        let len = |((layer, setting), choice): ((usize, &Setting), &table::Choice)| (layer, *setting, choice.size);
        options.filter(|((_, setting), _)| !setting.has_fixed_len()).map(len).collect()
    }

    /// Replaces bits by picoseconds. `seconds` returns the seconds for a layer of the model, a setting, and the bits of its
    /// payload.
    fn cost_seconds(&mut self, seconds: impl Fn(usize, &Setting, u64) -> f64) -> Result<(), Error> {
        for (place, &layer) in self.layers.iter().enumerate() {
            let cost = |setting: &Setting, bits: u64| -> Result<u64, Error> {
                let value = seconds(layer, setting, bits);
                let expected = "a finite number >= 0, below a million";
                CoreError::require((0.0..1e6).contains(&value), "seconds that a layer takes", value, expected)?;
                Ok((value * PICOSECONDS) as u64)
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

/// The plan of CGX: layers in clusters of similar size and error, one option per cluster.
fn k_means(table: &Table<'_>, limit: Limit, measured: &Measured, clusters: usize) -> Result<Plan, Error> {
    let elements: Vec<u64> = (0..table.layers()).map(|layer| measured.table.elements(layer)).collect();
    let metric: Vec<f64> = measured.table.view().chosen(&measured.defaults)?.map(|choice| choice.error).collect();
    let mut options = vec![0; table.layers()];
    let mut workspace = vec![0; baseline::kmeans_workspace_len(table, clusters)];
    baseline::kmeans(table, limit, &elements, &metric, clusters, &mut workspace, &mut options)?;
    Ok(Plan::from_options(table, limit.into(), "k-means", options)?)
}
