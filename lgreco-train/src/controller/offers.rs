//! The table that is planned over: what the search has measured, and what the objective adds.

use super::Tensor;
use super::codes::Choice;
use crate::compress::Setting;
use crate::gradient::Dtype;
use crate::plan::{Limit, Plan, baseline};
use crate::search::Measured;
use crate::table::Table;
use crate::{CoreError, Error, table};
use alloc::vec;
use alloc::vec::Vec;

/// In a second.
pub(super) const PICOSECONDS: f64 = 1e12;

/// The options of the layers that may be compressed.
pub(super) struct Offers {
    pub choices: Vec<table::Choice>,
    pub ends: Vec<usize>,
    /// Behind each choice.
    pub settings: Vec<Setting>,
    /// Which of the model's layers each layer of the table is.
    pub layers: Vec<usize>,
    /// The option of each layer whose error or size is its part of the budget.
    pub reference: Vec<u32>,
    /// Size of each layer uncompressed.
    dense: Vec<u64>,
    /// Whether a layer's last option is the uncompressed one and was not offered by the search.
    pub added: Vec<bool>,
}

impl Offers {
    pub(super) fn new(
        measured: &Measured,
        tensors: &[Tensor],
        reduce_dtype: Dtype,
        with_dense: bool,
    ) -> Result<Self, Error> {
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

    pub(super) fn start(&self, place: usize) -> usize {
        if place == 0 { 0 } else { self.ends[place - 1] }
    }

    pub(super) fn uncompressed(&self) -> u64 {
        self.dense.iter().sum()
    }

    /// Takes these settings, one per layer of the model, as the reference.
    pub(super) fn refer_to(&mut self, choices: &[Choice]) -> Result<(), Error> {
        for (place, &layer) in self.layers.iter().enumerate() {
            let offered = &self.settings[self.start(place)..self.ends[place]];
            let option = offered.iter().position(|&setting| setting == choices[layer].setting);
            let missing = Error::Core(CoreError::NoSuchOption { layer, option: offered.len(), options: offered.len() });
            self.reference[place] = option.ok_or(missing)? as u32;
        }
        Ok(())
    }

    /// The model's layers that are offered something, with each of their settings.
    pub(super) fn options(&self) -> impl Iterator<Item = (usize, &Setting)> + Clone {
        let settings = |place: usize| self.settings[self.start(place)..self.ends[place]].iter();
        self.layers.iter().enumerate().flat_map(move |(place, &layer)| settings(place).map(move |it| (layer, it)))
    }

    /// Replaces bits by picoseconds: `seconds` of a layer of the model under a setting, whose payload has so many bits.
    pub(super) fn cost_seconds(&mut self, seconds: impl Fn(usize, &Setting, u64) -> f64) -> Result<(), Error> {
        for (place, &layer) in self.layers.iter().enumerate() {
            let cost = |setting: &Setting, bits: u64| -> Result<u64, Error> {
                let value = seconds(layer, setting, bits);
                let expected = "a finite number >= 0, below a million";
                let wrong = CoreError::Parameter { what: "seconds that a layer takes", value, expected };
                if (0.0..1e6).contains(&value) { Ok((value * PICOSECONDS) as u64) } else { Err(wrong.into()) }
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

/// The plan of CGX.
pub(super) fn k_means(table: &Table<'_>, limit: Limit, measured: &Measured, clusters: usize) -> Result<Plan, Error> {
    let elements: Vec<u64> = (0..table.layers()).map(|layer| measured.table.elements(layer)).collect();
    let metric: Vec<f64> = measured.table.view().chosen(&measured.defaults)?.map(|choice| choice.error).collect();
    let mut options = vec![0; table.layers()];
    let mut workspace = vec![0; baseline::kmeans_workspace_len(table, clusters)];
    baseline::kmeans(table, limit, &elements, &metric, clusters, &mut workspace, &mut options)?;
    Ok(Plan::from_options(table, limit.into(), "k-means", options)?)
}
