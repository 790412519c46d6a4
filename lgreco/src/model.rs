//! The shortest way from gradients to a plan and its codecs.

use crate::backend::Backend;
use crate::codec::Codec;
use crate::compress::{Compressor, Setting};
use crate::gradient::{Gradient, Shape, Values};
use crate::plan::{self, Plan, Solver, Summary, budget::Budget, dp};
use crate::search::{Layer, Measured, Method, Metric, Search};
use crate::table::{Choice, NamedError, NamedTable};
use crate::{Error, Result};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZero;

/// A model's gradients, with the names and dimensions of their tensors.
///
/// ```
/// let (weight, bias): (Vec<f32>, _) = ((0..4096).map(|i| (i as f32).sin()).collect(), [0.5; 64]);
/// let model = lgreco::Model::new([("weight", &[64, 64][..], &weight[..]), ("bias", &[64], &bias)])?;
/// assert_eq!(model.layers().count(), 2);
/// # Ok::<(), lgreco::table::NamedError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model<'a> {
    layers: Vec<(&'a str, Vec<usize>, Gradient<'a>)>,
}

impl<'a> Model<'a> {
    /// Takes the layers in the model's order: name, dimensions, and values in row-major order. Values are slices of `f32`,
    /// [`F16`](crate::gradient::F16) or [`Bf16`](crate::gradient::Bf16), or [`Values`].
    ///
    /// # Errors
    /// [`Length`](crate::Error::Length), with the layer's name, when the number of values is not the product of the
    /// dimensions. [`TooManyElements`](crate::Error::TooManyElements) from 2^32 elements on.
    pub fn new<D: AsRef<[usize]>, V: Into<Values<'a>>>(
        layers: impl IntoIterator<Item = (&'a str, D, V)>,
    ) -> Result<Model<'a>, NamedError> {
        let mut model = Model { layers: Vec::new() };
        for (name, dims, values) in layers {
            let gradient = Shape::from_dims(dims.as_ref()).and_then(|shape| Gradient::new(values.into(), shape));
            let gradient = gradient.map_err(|error| NamedError { error, layer: Some(name.into()), option: None })?;
            model.layers.push((name, dims.as_ref().into(), gradient));
        }
        Ok(model)
    }

    /// The layers in the model's order.
    pub fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        self.layers.iter().map(|(name, dims, gradient)| Layer::of_gradient(name, dims, *gradient))
    }

    /// The gradient of a layer.
    ///
    /// # Panics
    /// When the model has no such layer.
    pub fn gradient(&self, layer: usize) -> Gradient<'a> {
        self.layers[layer].2
    }
}

/// Begins a plan for a model. By default, the planner chooses among EDEN, TopK and PowerSGD, and minimises the error
/// within the size of uniform 3-bit EDEN.
///
/// ```
/// use lgreco::{Model, rng::Stream};
/// let wave = |scale: f32| (0..65536).map(|i| scale * (i as f32).sin()).collect::<Vec<f32>>();
/// let (fc1, fc2) = (wave(1.0), wave(0.01));
/// let model = Model::new([("fc1", [256, 256], &fc1[..]), ("fc2", [256, 256], &fc2)])?;
/// let plan = lgreco::plan(&model).within_uniform("topk 1%").solve()?;
/// println!("{plan}");
/// assert!(plan.summary().proven() && plan.summary().size <= plan.uniform().size);
/// for (codec, layer) in plan.codecs().iter().zip(model.layers()) {
///     let payload = codec.encode(&layer.gradient(), Stream::default())?;
///     let decoded = codec.decode(&payload)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan<'m, 'a>(model: &'m Model<'a>) -> Planning<'m, 'a> {
    Planning { model, search: Ok(Search::new(Method::Hybrid)), goal: Goal::Error, solver: Solver::default() }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    /// The smallest size within the uniform setting's error.
    Size,
    /// The smallest error within the uniform setting's size.
    Error,
}

/// A plan in preparation, begun by [`plan()`].
#[derive(Clone, Debug)]
#[must_use = "solve makes the plan"]
pub struct Planning<'m, 'a> {
    model: &'m Model<'a>,
    search: Result<Search>,
    goal: Goal,
    solver: Solver,
}

impl Planning<'_, '_> {
    /// Minimises the plan's size. The plan's error is at most the error of a uniform plan with this setting.
    ///
    /// The setting is a method with its parameter, such as `qsgd 4`, `topk 1%` or `powersgd 4`. The search includes
    /// this method, with its usual range around the parameter.
    pub fn within_uniform(mut self, setting: &str) -> Self {
        self.search = self.search.and_then(|search| search.with_reference(setting));
        self.goal = Goal::Size;
        self
    }

    /// Minimises the plan's error. The plan's size is at most the size of a uniform plan with this setting. `setting`
    /// has the same form as for [`within_uniform`](Planning::within_uniform).
    pub fn as_small_as_uniform(mut self, setting: &str) -> Self {
        self.search = self.search.and_then(|search| search.with_reference(setting));
        self.goal = Goal::Error;
        self
    }

    /// Replaces the whole search: methods, ranges, metric, outside methods. After this call, the uniform setting is the
    /// default of the search's first method.
    pub fn search(mut self, search: Search) -> Self {
        self.search = Ok(search);
        self
    }

    /// Sets the number of workers whose payloads are averaged, at least 1. The noise of unbiased methods averages out
    /// between the workers.
    pub fn workers(mut self, workers: u32) -> Self {
        self.search = self.search.and_then(|mut search| {
            Error::require(workers > 0, "workers", 0.0, "at least 1")?;
            search.workers = NonZero::new(workers);
            Ok(search)
        });
        self
    }

    /// Plans like the L-GreCo paper: with l2 errors, within the uniform setting's error, and by the paper's dynamic
    /// program with 10,000 cells. Such a plan is usually not proved optimal.
    pub fn paper(mut self) -> Self {
        if let Ok(search) = &mut self.search {
            search.metric = Metric::L2;
        }
        (self.goal, self.solver) = (Goal::Size, Solver::Dp { levels: dp::LEVELS });
        self
    }

    /// Measures the model on the CPU and makes the plan.
    ///
    /// # Errors
    /// The errors of [`Search::measure`] and [`plan::solve`](crate::plan::solve()).
    /// [`SettingWord`](crate::Error::SettingWord) or another error when the text of the uniform setting is wrong.
    ///
    /// # Complexity
    /// About a pass over the gradients per method; see [`Search::measure`].
    pub fn solve(self) -> Result<ModelPlan, NamedError> {
        #[cfg(feature = "rayon")]
        return self.solve_on(&mut crate::backend::Parallel);
        #[cfg(not(feature = "rayon"))]
        self.solve_on(&mut crate::backend::Portable)
    }

    /// Works as [`solve`](Planning::solve), but measures on a given backend, such as a GPU's.
    ///
    /// # Errors
    /// The errors of [`solve`](Planning::solve) and of the backend.
    pub fn solve_on(self, backend: &mut dyn Backend) -> Result<ModelPlan, NamedError> {
        let search = self.search?;
        let layers: Vec<Layer<'_>> = self.model.layers().collect();
        let measured = search.measure(&layers, backend)?;
        let (table, options) = (measured.table.view(), &measured.defaults[..]);
        let budget = match self.goal {
            Goal::Size => Budget::Defaults { alpha: 1.0, options },
            Goal::Error => Budget::DefaultSize { alpha: 1.0, options },
        };
        let plan = plan::solve(&table, budget, self.solver).map_err(|error| measured.table.name_error(error))?;
        let (mut codecs, mut sizes) = (Vec::with_capacity(layers.len()), Vec::with_capacity(layers.len()));
        for (index, layer) in layers.iter().enumerate() {
            let (shape, dtype) = (layer.gradient().shape(), layer.gradient().values().dtype());
            let at = measured.layers.iter().position(|&of| of == index);
            let setting = match at {
                Some(at) => measured.setting(at, plan.options()[at] as usize)?,
                None => Setting::Dense,
            };
            let payload_len = setting.payload_len(shape, dtype)?;
            codecs.push(Codec { setting, shape, dtype, index: index as u32, payload_len });
            sizes.push(at.map_or(8 * payload_len as u64, |at| table.layer(at)[plan.options()[at] as usize].size));
        }
        let names = layers.iter().map(|layer| layer.name().to_string()).collect();
        let uniform = table.chosen(options)?;
        let uniform = Choice {
            size: uniform.clone().map(|choice| choice.size).sum(),
            error: uniform.map(|choice| choice.error).sum(),
        };
        Ok(ModelPlan { measured, plan, uniform, codecs, sizes, names })
    }
}

/// A plan for a whole model, with a [`Codec`] per layer. The `Display` text of a plan has one line per layer and a
/// summary.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    measured: Measured,
    plan: Plan,
    uniform: Choice,
    codecs: Vec<Codec>,
    /// Size of each layer's payload in bits, as measured.
    sizes: Vec<u64>,
    names: Vec<String>,
}

impl ModelPlan {
    /// One codec per layer of the model. Codecs of small layers and of layers with one dimension do not compress.
    pub fn codecs(&self) -> &[Codec] {
        &self.codecs
    }

    /// Size, error and proof for the layers of the table.
    pub fn summary(&self) -> &Summary {
        self.plan.summary()
    }

    /// Size and error of the uniform setting, on the same layers.
    pub fn uniform(&self) -> Choice {
        self.uniform
    }

    /// The measured table, with size and error of all candidates.
    pub fn table(&self) -> &NamedTable {
        &self.measured.table
    }

    /// The plan, as options of the table.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl fmt::Display for ModelPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        for ((name, codec), size) in self.names.iter().zip(&self.codecs).zip(&self.sizes) {
            writeln!(f, "{name:width$}  {}, {} bytes", codec.setting, size / 8)?;
        }
        let (found, uniform) = (self.summary(), self.uniform());
        let proof = if found.proven() { "proved optimal" } else { "not proved optimal" };
        write!(
            f,
            "{} bits with an error of {:.4e} ({proof}); the uniform setting: {} bits, {:.4e}",
            found.size, found.error, uniform.size, uniform.error
        )
    }
}
