//! Plans for gradients that are there already, as the command makes them.

use crate::arguments::{Options, Value, extracted, layer_dtype, named, option, refused, refused_layer};
use crate::cores::detached;
use crate::error::raised;
use crate::memory::Gradients;
use lgreco_cli::gradients as files;
use lgreco_train::CoreError;
use lgreco_train::backend::Parallel;
use lgreco_train::file::{PlanFile, Seconds};
use lgreco_train::plan::{self, Solver, budget::Budget, dp};
use lgreco_train::search::{Layer, Search};
use lgreco_train::table::NamedError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::time::Instant;

/// What is asked of a plan.
struct Asked {
    search: Search,
    solver: Solver,
    alpha: Option<f64>,
    budget: Option<f64>,
    size: Option<Value>,
}

impl Asked {
    fn new(
        solver: &str,
        alpha: Option<Bound<'_, PyAny>>,
        budget: Option<Bound<'_, PyAny>>,
        size: Option<Bound<'_, PyAny>>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Asked> {
        let search = Options(options).search()?;
        let solver =
            named("solver", solver, &[("exact", Solver::default()), ("dp", Solver::Dp { levels: dp::LEVELS })])?;
        let alpha = alpha.map(|alpha| option("alpha", &alpha)).transpose()?;
        let error = "an error as a number (a size is given as size)";
        let budget = budget.map(|budget| extracted("budget", &budget, error)).transpose()?;
        let size: Option<Value> = size.map(|size| option("size", &size)).transpose()?;
        if let Some(Value::Word(word)) = &size {
            named("size", word, &[("uniform", ())])?;
        }
        if budget.is_some() && size.is_some() {
            return Err(refused("a plan keeps within an error (budget) or within a size, not both"));
        }
        if alpha.is_some() && (budget.is_some() || matches!(size, Some(Value::Number(_)))) {
            return Err(refused(
                "alpha multiplies what a uniform setting has: give it, or a budget or size as a number",
            ));
        }
        Ok(Asked { search, solver, alpha, budget, size })
    }

    /// Measures and plans: the JSON of a plan file.
    fn plan(&self, model: &[Layer<'_>]) -> Result<String, NamedError> {
        let start = Instant::now();
        let measured = self.search.measure(model, &mut Parallel)?;
        let measure = start.elapsed().as_secs_f64();
        let (alpha, options) = (self.alpha.unwrap_or(1.0), &measured.defaults);
        let budget = match (self.budget, &self.size) {
            (Some(error), _) => Budget::Absolute(error),
            (None, None) => Budget::Defaults { alpha, options },
            (None, Some(Value::Word(_))) => Budget::DefaultSize { alpha, options },
            (None, Some(Value::Number(bits))) => Budget::Size(*bits),
        };
        let plan = plan::solve(&measured.table.view(), budget, self.solver)?;
        let mut file = PlanFile::new(&measured.table, &plan);
        let solve = start.elapsed().as_secs_f64() - measure;
        file.seconds = Seconds { measure: Some(measure), solve: Some(solve) };
        Ok(file.to_json())
    }

    /// What has failed, by the layer's name.
    fn failed(&self, py: Python<'_>, layers: usize, failed: NamedError) -> PyErr {
        match failed {
            NamedError { error: CoreError::EmptyTable, .. } => refused(format!(
                "none of the {layers} layers is large enough to compress: matrices of at least {} elements (min_elements) are",
                self.search.min_elements
            )),
            NamedError { error, layer: Some(name), .. } => refused_layer(py, &name, error),
            NamedError { error, .. } => raised(py, error.into(), &[]),
        }
    }
}

/// Gradients in memory by layer (name, dims, dtype, address), or the path of safetensors files.
#[derive(FromPyObject)]
pub(crate) enum Model {
    Layers(Vec<(String, Vec<usize>, String, usize)>),
    Files(PathBuf),
}

/// Measures layers and plans: the JSON of a plan file. Files are read as the command reads them.
#[pyfunction]
#[pyo3(signature = (model, solver, alpha, budget, size, **options))]
pub(crate) fn make_plan(
    py: Python<'_>,
    model: Model,
    solver: &str,
    alpha: Option<Bound<'_, PyAny>>,
    budget: Option<Bound<'_, PyAny>>,
    size: Option<Bound<'_, PyAny>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<String> {
    let none = PyDict::new(py);
    let asked = Asked::new(solver, alpha, budget, size, options.unwrap_or(&none))?;
    let layers = match model {
        Model::Layers(layers) => layers,
        Model::Files(path) => {
            let read = py.detach(|| files::Gradients::read(&path)).map_err(refused)?;
            let model = read.layers();
            return detached(py, || asked.plan(&model)).map_err(|failed| asked.failed(py, model.len(), failed));
        }
    };
    let places = layers.iter().map(|(name, dims, element, address)| {
        let elements = dims.iter().try_fold(1, |product: usize, &dim| product.checked_mul(dim));
        Ok((*address, layer_dtype(py, name, element)?, elements.unwrap_or(usize::MAX / 8)))
    });
    let places = places.collect::<PyResult<Vec<_>>>()?;
    let mut gradients = Gradients::new(places.into_iter())?;
    let planned = detached(py, || {
        gradients.with(|values| {
            let model = layers.iter().zip(&*values).map(|((name, dims, ..), values)| {
                let named = |error| NamedError { error, layer: Some(name.clone()), option: None };
                Layer::new(name, dims, values.values()).map_err(named)
            });
            asked.plan(&model.collect::<Result<Vec<_>, _>>()?)
        })
    });
    planned.map_err(|failed| asked.failed(py, layers.len(), failed))
}

/// The same plan file, once it has been checked.
#[pyfunction]
pub(crate) fn check_plan(json: &str) -> PyResult<String> {
    Ok(PlanFile::parse(json.as_bytes()).map_err(refused)?.to_json())
}
