//! From gradients to a measured model.

use super::backend::Opened;
use super::timed;
use crate::args::{BackendArg, Candidates, MethodArg, RangeArg, Source};
use crate::failure::Failure;
use crate::gradients::Gradients;
use crate::report::{Facts, LeftAlone};
use lgreco_core::Error;
use lgreco_core::gradient::{Element, Values};
use lgreco_core::search::{Layer, Measured, Method, Range, Search};
use std::path::Path;

/// Gradients and where they came from.
pub struct Model {
    pub gradients: Gradients,
    /// The file's path, or what stands for it.
    pub name: String,
    /// Seconds of reading.
    pub read: f64,
}

impl Model {
    pub fn load(path: Option<&Path>) -> Result<Model, Failure> {
        let Some(path) = path else {
            let (gradients, read) = timed("reading the sample".into(), Gradients::sample);
            return Ok(Model { gradients, name: "the built-in sample".into(), read });
        };
        let (gradients, read) = timed(format!("reading {}", path.display()), || Gradients::read(path));
        Ok(Model { gradients: gradients?, name: path.display().to_string(), read })
    }

    /// Measures the model's layers and returns their table, facts about them, and the seconds it took.
    ///
    /// Tensors that stay uncompressed must be finite too: a gradient with NaN anywhere is not one to plan for.
    pub fn measure(&self, search: &Search, on: BackendArg) -> Result<(Measured, Facts, f64), Failure> {
        let layers = self.gradients.layers();
        let doing = format!("measuring {} tensors of {}", layers.len(), self.name);
        let mut opened = Opened::new(on)?;
        let (measured, seconds) = timed(doing, || search.measure(&layers, opened.backend()));
        let mut measured = measured.map_err(|failed| match failed.error {
            Error::EmptyTable => self.wrong(format_args!(
                "no layer to compress: all {} tensors have one dimension or fewer than {} elements",
                layers.len(),
                search.min_elements
            )),
            Error::Device { .. } => {
                let layer = failed.layer.map_or_else(String::new, |name| format!("layer `{name}`: "));
                let told = opened.failure().unwrap_or_else(|| failed.error.to_string());
                Failure::no_result(format_args!("{}: {layer}{told}", self.name))
            }
            error => Failure::from_core(&error, format_args!("{}: {failed}", self.name)),
        })?;
        for &index in &measured.uncompressed {
            if let Some(error) = first_non_finite(&layers[index]) {
                return Err(self.wrong(format_args!("layer `{}`: {error}", layers[index].name())));
            }
        }
        let facts = facts(&layers, &measured, opened.device_memory());
        for (layer, &bits) in facts.sizes.iter().enumerate() {
            measured.table.set_uncompressed_size(layer, bits);
        }
        Ok((measured, facts, seconds))
    }

    fn wrong(&self, what: std::fmt::Arguments<'_>) -> Failure {
        Failure::bad_input(format_args!("{}: {what}", self.name))
    }
}

/// What `source` asks to be searched.
pub fn search(source: &Source) -> Result<Search, Failure> {
    build_search(source.method, &source.candidates, source.default, source.range)
}

pub fn build_search(
    method: MethodArg,
    candidates: &Candidates,
    default: Option<f64>,
    range: Option<RangeArg>,
) -> Result<Search, Failure> {
    let method = Method::from(method);
    let mut search = Search::new(method);
    search.metric = candidates.metric.into();
    search.min_elements = candidates.min_elements;
    let of_method = |error: Error| Failure::bad_input(format_args!("--method {}: {error}", method.name()));
    if let Some(default) = default {
        search = search.with_default(default).map_err(of_method)?;
    }
    if let Some(RangeArg { first, last, step }) = range {
        let step = step.unwrap_or(if method == Method::TopK { first } else { 1.0 });
        search = search.with_range(Range { first, last, step }).map_err(of_method)?;
    }
    Ok(search)
}

fn facts(layers: &[Layer<'_>], measured: &Measured, device_memory: Option<u64>) -> Facts {
    let taken = || measured.layers.iter().map(|&index| &layers[index]);
    let left = || measured.uncompressed.iter().map(|&index| &layers[index]);
    Facts {
        shapes: taken().map(|layer| layer.dims().to_vec()).collect(),
        norms: taken().map(norm).collect(),
        sizes: taken().map(size).collect(),
        left_alone: LeftAlone {
            layers: left().count(),
            elements: left().map(|layer| layer.gradient().shape().elements() as u64).sum(),
            size: left().map(size).sum(),
        },
        device_memory,
    }
}

/// Bits of the gradient as it is.
fn size(layer: &Layer<'_>) -> u64 {
    let values = layer.gradient().values();
    8 * values.len() as u64 * values.dtype().bytes() as u64
}

fn norm(layer: &Layer<'_>) -> f64 {
    fn squared<T: Element>(values: &[T]) -> f64 {
        values.iter().map(|v| f64::from(v.to_f32()).powi(2)).sum()
    }
    match layer.gradient().values() {
        Values::F32(v) => squared(v),
        Values::F16(v) => squared(v),
        Values::Bf16(v) => squared(v),
    }
    .sqrt()
}

fn first_non_finite(layer: &Layer<'_>) -> Option<Error> {
    fn first<T: Element>(values: &[T]) -> Option<Error> {
        let index = values.iter().position(|v| !v.to_f32().is_finite())?;
        Some(Error::NonFinite { index, value: values[index].to_f32() })
    }
    match layer.gradient().values() {
        Values::F32(v) => first(v),
        Values::F16(v) => first(v),
        Values::Bf16(v) => first(v),
    }
}
