//! Plans for gradients that are there already, as the command makes them.

use crate::arguments::{Options, Value, dtype, named, refused};
use crate::cores::detached;
use crate::memory::Gradients;
use lgreco_train::backend::Parallel;
use lgreco_train::file::{PlanFile, Seconds};
use lgreco_train::plan::{self, Solver, budget::Budget, dp};
use lgreco_train::search::Layer;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Instant;

/// Measures layers (name, dims, dtype, address) and plans: the JSON of a plan file.
#[pyfunction]
#[pyo3(signature = (layers, solver, alpha, budget, size, **options))]
pub(crate) fn make_plan(
    py: Python<'_>,
    layers: Vec<(String, Vec<usize>, String, usize)>,
    solver: &str,
    alpha: Option<f64>,
    budget: Option<f64>,
    size: Option<Value>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<String> {
    let none = PyDict::new(py);
    let search = Options(options.unwrap_or(&none)).search()?;
    let solver = named("solver", solver, &[("exact", Solver::default()), ("dp", Solver::Dp { levels: dp::LEVELS })])?;
    if let Some(Value::Word(word)) = &size {
        named("size", word, &[("uniform", ())])?;
    }
    if budget.is_some() && size.is_some() {
        return Err(refused("a plan keeps within an error (budget) or within a size, not both"));
    }
    if alpha.is_some() && (budget.is_some() || matches!(size, Some(Value::Number(_)))) {
        return Err(refused("alpha multiplies what a uniform setting has: give it, or a budget or size as a number"));
    }
    let places = layers.iter().map(|(_, dims, element, address)| {
        let elements = dims.iter().try_fold(1, |product: usize, &dim| product.checked_mul(dim));
        Ok((*address, dtype(element)?, elements.unwrap_or(usize::MAX / 8)))
    });
    let places = places.collect::<PyResult<Vec<_>>>()?;
    let mut gradients = Gradients::new(places.into_iter())?;
    detached(py, || {
        gradients.with(|values| {
            let model = layers.iter().zip(&*values).map(|((name, dims, ..), values)| {
                Layer::new(name, dims, values.values()).map_err(|error| refused(format!("{name}: {error}")))
            });
            let model = model.collect::<PyResult<Vec<_>>>()?;
            let start = Instant::now();
            let measured = search.measure(&model, &mut Parallel).map_err(refused)?;
            let measure = start.elapsed().as_secs_f64();
            let (alpha, options) = (alpha.unwrap_or(1.0), &measured.defaults);
            let budget = match (budget, size) {
                (Some(error), _) => Budget::Absolute(error),
                (None, None) => Budget::Defaults { alpha, options },
                (None, Some(Value::Word(_))) => Budget::DefaultSize { alpha, options },
                (None, Some(Value::Number(bits))) => Budget::Size(bits),
            };
            let plan = plan::solve(&measured.table.view(), budget, solver).map_err(refused)?;
            let mut file = PlanFile::new(&measured.table, &plan);
            let solve = start.elapsed().as_secs_f64() - measure;
            file.seconds = Seconds { measure: Some(measure), solve: Some(solve) };
            Ok(file.to_json())
        })
    })
}

/// The same plan file, once it has been checked.
#[pyfunction]
pub(crate) fn check_plan(json: &str) -> PyResult<String> {
    Ok(PlanFile::parse(json.as_bytes()).map_err(refused)?.to_json())
}
