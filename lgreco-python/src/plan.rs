//! Plans for existing gradients, made in the same way as by the command `lgreco plan`.

use crate::arguments::{Options, Value, extracted, layer_dtype, named, option, refused, refused_layer};
use crate::cores::detached;
use crate::error::raised;
use crate::memory::Gradients;
use lgreco_cli::{Facts, Solved, constrained, gradients as files, page};
use lgreco_train::CoreError;
use lgreco_train::backend::Parallel;
use lgreco_train::file::{PlanFile, Seconds};
use lgreco_train::plan::{Solver, budget::Budget, dp};
use lgreco_train::search::{Layer, Metric, Search};
use lgreco_train::table::{NamedError, NamedTable};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::time::Instant;

/// An error budget: a number, or the word `uniform`.
#[derive(FromPyObject)]
enum ErrorBudget {
    Number(f64),
    Word(String),
}

/// The options of a plan.
struct Asked {
    search: Search,
    solver: Solver,
    alpha: Option<f64>,
    /// Error budget. `None` to minimise the error within a size.
    budget: Option<ErrorBudget>,
    /// Size limit in bits. `None` for the size of the uniform setting.
    size: Option<u64>,
    groups: Vec<Vec<String>>,
    fixed: Vec<String>,
}

/// The error of a failed plan.
enum Failed {
    Model(NamedError),
    Constraint(String),
}

impl<E: Into<NamedError>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed::Model(error.into())
    }
}

impl Asked {
    fn new(solver: &str, options: &Bound<'_, PyDict>) -> PyResult<Asked> {
        let take = |name: &str| {
            let value = options.get_item(name)?;
            if value.is_some() {
                options.del_item(name)?;
            }
            Ok::<_, PyErr>(value.filter(|value| !value.is_none()))
        };
        let alpha = take("alpha")?.map(|alpha| option("alpha", &alpha)).transpose()?;
        let error = "\"uniform\" or an error as a number (a size is given as size)";
        let mut budget = take("budget")?.map(|budget| extracted("budget", &budget, error)).transpose()?;
        let size: Option<Value> = take("size")?.map(|size| option("size", &size)).transpose()?;
        let names = "lists of the names of layers";
        let groups = take("groups")?.map(|groups| extracted("groups", &groups, names)).transpose()?.unwrap_or_default();
        let settings = "a setting by the name of each layer";
        let fixed: Vec<(String, String)> =
            take("fixed")?.map(|fixed| extracted("fixed", &fixed, settings)).transpose()?.unwrap_or_default();
        let mut search = Options(options).search()?;
        let dynamic = Solver::Dp { levels: dp::LEVELS };
        let paper = solver == "paper";
        let solver = named("solver", solver, &[("exact", Solver::default()), ("dp", dynamic), ("paper", dynamic)])?;
        if paper {
            if options.get_item("metric")?.is_none_or(|metric| metric.is_none()) {
                search.metric = Metric::L2;
            }
            if size.is_none() {
                budget.get_or_insert_with(|| ErrorBudget::Word("uniform".into()));
            }
        }
        if let Some(ErrorBudget::Word(word)) = &budget {
            named("budget", word, &[("uniform", ())])?;
        }
        if let Some(Value::Word(word)) = &size {
            named("size", word, &[("uniform", ())])?;
        }
        if budget.is_some() && size.is_some() {
            return Err(refused("a plan keeps within an error (budget) or within a size, not both"));
        }
        let numbers = matches!(budget, Some(ErrorBudget::Number(_))) || matches!(size, Some(Value::Number(_)));
        if alpha.is_some() && numbers {
            return Err(refused(
                "alpha multiplies what a uniform setting has: give it, or a budget or size as a number",
            ));
        }
        let size = size.and_then(|size| match size {
            Value::Number(bits) => Some(bits),
            Value::Word(_) => None,
        });
        let fixed = fixed.into_iter().map(|(layer, setting)| format!("{layer}={setting}")).collect();
        Ok(Asked { search, solver, alpha, budget, size, groups, fixed })
    }

    /// Measures and plans. Returns the JSON of a plan file, and the data for a page about the plan.
    fn plan(&self, name: &str, model: &[Layer<'_>]) -> Result<(String, PlanPage), Failed> {
        let start = Instant::now();
        let measured = self.search.measure(model, &mut Parallel)?;
        let measure = start.elapsed().as_secs_f64();
        let (alpha, options) = (self.alpha.unwrap_or(1.0), &measured.defaults);
        let budget = match (&self.budget, self.size) {
            (Some(ErrorBudget::Number(error)), _) => Budget::Absolute(*error),
            (Some(ErrorBudget::Word(_)), _) => Budget::Defaults { alpha, options },
            (None, Some(bits)) => Budget::Size(bits),
            (None, None) => Budget::DefaultSize { alpha, options },
        };
        let merged = constrained(&measured.table, &self.groups, &self.fixed);
        let merged = merged.map_err(|failure| Failed::Constraint(failure.message))?;
        let named = |error| measured.table.name_error(error);
        let plan = merged.solve(budget, Some(options), self.solver).map_err(named)?;
        let mut file = PlanFile::new(&measured.table, &plan);
        let solve = start.elapsed().as_secs_f64() - measure;
        file.seconds = Seconds { measure: Some(measure), solve: Some(solve) };
        let page = PlanPage {
            title: format!("{name} · {}, {}", self.search.method().name(), self.search.metric.name()),
            solved: Solved { plan, other: None, origin: String::new(), seconds: solve },
            measure,
            facts: Facts::of_model(model, &measured),
            groups: self.groups.clone(),
            fixed: self.fixed.clone(),
            table: measured.table,
        };
        Ok((file.to_json(), page))
    }

    /// The exception for a failure, with the layer's name.
    fn failed(&self, py: Python<'_>, layers: usize, failed: Failed) -> PyErr {
        let failed = match failed {
            Failed::Model(failed) => failed,
            Failed::Constraint(text) => return refused(text),
        };
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

/// The data for a page about a plan that the plan file lacks.
#[pyclass(frozen, module = "lgreco._lgreco")]
pub(crate) struct PlanPage {
    title: String,
    table: NamedTable,
    solved: Solved,
    measure: f64,
    facts: Facts,
    groups: Vec<Vec<String>>,
    fixed: Vec<String>,
}

#[pymethods]
impl PlanPage {
    /// Returns the page. Solves for the frontier.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        let page = detached(py, || {
            let merged = constrained(&self.table, &self.groups, &self.fixed)?;
            let times = [("measuring", self.measure), ("solving", self.solved.seconds)];
            page::of_plan(&self.title, &self.table, &merged, &self.solved, Some(&self.facts), &times)
        });
        page.map_err(|failure| refused(failure.message))
    }
}

/// Makes a page about a plan from the plan file alone.
#[pyfunction]
pub(crate) fn plan_page(json: &str) -> PyResult<String> {
    Ok(page::of_file("plan", &PlanFile::parse(json.as_bytes()).map_err(refused)?))
}

/// Gradients in memory by layer (name, dims, dtype, address), or the path of safetensors files.
#[derive(FromPyObject)]
pub(crate) enum Model {
    Layers(Vec<(String, Vec<usize>, String, usize)>),
    Files(PathBuf),
}

/// Measures layers and makes a plan. Returns the JSON of the plan file, and a page. Reads gradient files as the command
/// does.
#[pyfunction]
#[pyo3(signature = (model, solver, **options))]
pub(crate) fn make_plan(
    py: Python<'_>,
    model: Model,
    solver: &str,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<(String, PlanPage)> {
    let none = PyDict::new(py);
    let asked = Asked::new(solver, options.unwrap_or(&none))?;
    let layers = match model {
        Model::Layers(layers) => layers,
        Model::Files(path) => {
            let read = py.detach(|| files::Gradients::read(&path)).map_err(refused)?;
            let model = read.layers();
            let name = path.file_name().map_or_else(|| "plan".into(), |name| name.to_string_lossy());
            return detached(py, || asked.plan(&name, &model)).map_err(|failed| asked.failed(py, model.len(), failed));
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
            asked.plan("plan", &model.collect::<Result<Vec<_>, _>>()?)
        })
    });
    planned.map_err(|failed| asked.failed(py, layers.len(), failed))
}

/// Checks a plan file and returns it.
#[pyfunction]
pub(crate) fn check_plan(json: &str) -> PyResult<String> {
    Ok(PlanFile::parse(json.as_bytes()).map_err(refused)?.to_json())
}
