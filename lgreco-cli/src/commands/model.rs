//! Measures a model's gradients.

use super::backend::Opened;
use super::timed;
use crate::args::{BackendArg, Candidates, RangeArg, Source};
use crate::facts::{Facts, norm};
use crate::failure::Failure;
use crate::gradients::Stored;
use crate::units::counted;
use lgreco::Error;
use lgreco::backend::Backend;
use lgreco::compress::{Unit, check_finite};
use lgreco::search::{Layer, Measured, Method, Offer, Range, Search, Width};
use lgreco::table::NamedError;
use rayon::prelude::*;
use std::num::NonZero;
use std::path::Path;
use std::time::Instant;

/// Gradients and their origin.
pub struct Model {
    gradients: Stored,
    /// The path, or a name for gradients without one.
    pub name: String,
}

/// Result of one search.
pub struct Outcome {
    pub measured: Measured,
    pub facts: Facts,
    /// Seconds spent on measuring, without reading the gradients.
    pub seconds: f64,
}

/// A search that is in progress over the batches of a model.
struct Pass<'a> {
    offer: Offer<'a>,
    /// Squared errors of the first `rows` rows, which have been measured.
    errors: Vec<f64>,
    rows: usize,
    seconds: f64,
}

impl Model {
    pub fn open(path: Option<&Path>) -> Result<Model, Failure> {
        let Some(path) = path else {
            return Ok(Model { gradients: Stored::sample(), name: "the built-in sample".into() });
        };
        Ok(Model { gradients: Stored::open(path)?, name: path.display().to_string() })
    }

    /// The model's files, which results must not overwrite.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.gradients.files()
    }

    /// Measures the model's layers with each of `searches`, and reads the gradients only once. Returns the outcomes and the
    /// seconds of reading.
    ///
    /// Tensors that stay uncompressed must be finite too, because NaN anywhere makes the whole gradient useless for
    /// planning.
    pub fn measure(&self, searches: &[Search], on: BackendArg) -> Result<(Vec<Outcome>, f64), Failure> {
        let mut opened = Opened::new(on)?;
        let layers = self.gradients.layers().len();
        let (outcomes, _) = timed(format!("measuring {} of {}", counted(layers as u64, "tensor"), self.name), || {
            self.measured(searches, &mut opened)
        });
        outcomes
    }

    /// Runs [`measure`](Model::measure) for a single search.
    pub fn measure_one(&self, search: Search, on: BackendArg) -> Result<(Outcome, f64), Failure> {
        let (mut outcomes, reading) = self.measure(&[search], on)?;
        Ok((outcomes.remove(0), reading))
    }

    fn measured(&self, searches: &[Search], opened: &mut Opened) -> Result<(Vec<Outcome>, f64), Failure> {
        let gradients = &self.gradients;
        let pass = |search: &Search| {
            let offer = search.offer(gradients.layers()).map_err(|failed| self.failed(search, failed, None))?;
            if offer.rows().next().is_none() {
                let nothing = NamedError { error: Error::EmptyTable, layer: None, option: None };
                return Err(self.failed(search, nothing, None));
            }
            Ok(Pass { offer, errors: Vec::new(), rows: 0, seconds: 0.0 })
        };
        let mut passes = searches.iter().map(pass).collect::<Result<Vec<_>, Failure>>()?;
        let (mut buffer, mut workspace) = (Vec::new(), Vec::new());
        let (mut norms, mut reading) = (Vec::with_capacity(gradients.layers().len()), 0.0);
        for batch in gradients.batches() {
            let start = Instant::now();
            let layers = gradients.read(batch.clone(), &mut buffer)?;
            reading += start.elapsed().as_secs_f64();
            norms.par_extend(layers.par_iter().map(norm));
            // The norm of finite gradients is finite in f64.
            if let Some(bad) = norms[batch.start..].iter().position(|norm| !norm.is_finite())
                && let Err(error) = check_finite(&layers[bad].gradient())
            {
                let file = gradients.file_of(batch.start + bad).map_or(self.name.clone(), |f| f.display().to_string());
                return Err(Failure::bad_input(format_args!("{file}: layer `{}`: {error}", layers[bad].name())));
            }
            for (pass, search) in passes.iter_mut().zip(searches) {
                pass.measure(&layers, batch.start, opened.backend(), &mut workspace).map_err(|failed| {
                    let told = opened.failure();
                    self.failed(search, failed, told)
                })?;
            }
        }
        let layers: Vec<_> = gradients.layers().map(|(_, dims, dtype)| (dims, dtype)).collect();
        let outcome = |(Pass { offer, errors, seconds, .. }, search): (Pass<'_>, &Search)| {
            let mut measured = offer.into_measured(&errors).map_err(|failed| self.failed(search, failed, None))?;
            let facts = Facts::new(&layers, &norms, &measured, opened.device_memory());
            for (layer, &bits) in facts.sizes.iter().enumerate() {
                measured.table.set_uncompressed_size(layer, bits);
            }
            Ok(Outcome { measured, facts, seconds })
        };
        let outcomes = passes.into_iter().zip(searches).map(outcome).collect::<Result<_, Failure>>()?;
        Ok((outcomes, reading))
    }

    /// Converts an error for the user. `told` is the device's message, if the device has one.
    fn failed(&self, search: &Search, failed: NamedError, told: Option<String>) -> Failure {
        match failed.error {
            Error::EmptyTable => Failure::bad_input(format_args!(
                "{}: no layer to compress: all {} tensors have one dimension or fewer than {} elements",
                self.name,
                self.gradients.layers().len(),
                search.min_elements
            )),
            Error::Device { .. } => {
                let layer = failed.layer.as_ref().map_or_else(String::new, |name| format!("layer `{name}`: "));
                let told = told.unwrap_or_else(|| failed.error.to_string());
                Failure::no_result(format_args!("{}: {layer}{told}", self.name))
            }
            error => Failure::from_core(&error, format_args!("{}: {failed}", self.name)),
        }
    }
}

impl Pass<'_> {
    /// Measures the error-table rows of `layers`. `first` is the first layer's index in the model.
    fn measure(
        &mut self,
        layers: &[Layer<'_>],
        first: usize,
        backend: &mut dyn Backend,
        workspace: &mut Vec<u64>,
    ) -> Result<(), NamedError> {
        let start = Instant::now();
        let rows = self.offer.rows().skip(self.rows).take_while(|row| row.layer < first + layers.len());
        let rows: Vec<_> = rows.collect();
        let gradient = |layer: usize| layers[layer - first].gradient();
        let done = self.offer.measure(&rows, gradient, backend, workspace, &mut self.errors);
        self.rows += rows.len();
        self.seconds += start.elapsed().as_secs_f64();
        done
    }
}

/// Builds the search that the command line describes.
pub fn search(source: &Source) -> Result<Search, Failure> {
    let methods = if source.methods.is_empty() { &[source.method][..] } else { &source.methods };
    build_search(methods, &source.candidates, source.default, source.range, &source.widths)
}

/// The names of methods, such as `qsgd,topk`.
pub fn names(methods: &[Method]) -> String {
    methods.iter().map(|method| method.name()).collect::<Vec<_>>().join(",")
}

pub fn build_search(
    methods: &[Method],
    candidates: &Candidates,
    default: Option<f64>,
    range: Option<RangeArg>,
    widths: &[Width],
) -> Result<Search, Failure> {
    let names = names(methods);
    let flag = if methods.len() > 1 { "--methods" } else { "--method" };
    let of_method = |error: Error| Failure::bad_input(format_args!("{flag} {names}: {error}"));
    let mut search = Search::of(methods).map_err(of_method)?;
    search.metric = candidates.metric.unwrap_or(search.metric);
    search.min_elements = candidates.min_elements;
    search.workers = NonZero::new(candidates.workers);
    if let Some(default) = default {
        search = search.with_default(default).map_err(of_method)?;
    }
    if let Some(RangeArg { first, last, step }) = range {
        let step = step.unwrap_or(if methods[0].planned().unit == Unit::Whole { 1.0 } else { first });
        search = search.with_range(Range { first, last, step }).map_err(of_method)?;
    }
    if !widths.is_empty() {
        search = search.with_widths(widths).map_err(of_method)?;
    }
    Ok(search)
}
