//! How settings are chosen: the policy, the budget, and the objective of plans.

#[cfg(feature = "json")]
use super::Tensor;
use super::{Accordion, Legacy};
use crate::compress::Setting;
#[cfg(feature = "json")]
use crate::file::{Error, PlanFile};
use crate::plan::Solver;
use alloc::vec::Vec;

/// How settings are chosen.
///
/// ```
/// use lgreco_train::controller::{Config, Policy};
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::Qsgd));
/// assert!(matches!(config.policy, Policy::LGreco { accordion: None, .. }));
/// config.policy = Policy::KMeans { clusters: 7 };
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Policy {
    /// No compression.
    Uncompressed,
    /// The search's default setting for every layer.
    Uniform,
    /// One setting per layer, decided by the caller.
    Fixed(Vec<Setting>),
    /// CGX: clusters layers by size and error, and chooses one option per cluster within the budget.
    KMeans {
        /// Number of clusters. CGX has one cluster per bit width, and the L-GreCo paper has 6 clusters for PowerSGD ranks.
        clusters: usize,
    },
    /// Accordion's detector chooses one of two parameters per layer. There is no budget.
    Accordion(Accordion),
    /// LEGACY's rule: a parameter per class of layer size and phase of training. There is no budget.
    Legacy(Legacy),
    /// The smallest plan within a budget of error, or the most exact plan within a budget of size.
    LGreco {
        /// The exact solver, or the paper's dynamic program.
        solver: Solver,
        /// With Accordion, the budget is the error or size of Accordion's settings. Without Accordion, the budget is the error or
        /// size of the search's default.
        accordion: Option<Accordion>,
    },
}

/// The limit of a plan. Within an error budget, plans are as small as possible. Within a size budget, plans are as exact as
/// possible.
///
/// A size is the amount that one worker sends in one step, for the layers that may be compressed. If error feedback does not work
/// with the setting that a plan has chosen for a layer, the layer is sent uncompressed
/// ([`Decision::not_contractive`](super::Decision)). With such a layer, a step may send more than the budget.
///
/// ```
/// use lgreco_train::controller::{Budget, Config};
/// use lgreco_train::search::{Method, Search};
/// // As many bytes as 1 % of every layer, with the least error.
/// let mut config = Config::new(Search::new(Method::TopK));
/// assert_eq!(config.budget, Budget::Size);
/// config.budget = Budget::Error; // the error of 1 % of every layer, in as few bytes as possible
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Budget {
    /// [`Config::alpha`](super::Config::alpha) times the error of the default settings.
    Error,
    /// [`Config::alpha`](super::Config::alpha) times the size of the default settings, in the unit of the [`Objective`]. In
    /// training, plans with the size of the default settings reach a higher accuracy than plans with the error of the default
    /// settings (docs/src/experiments/training.md).
    #[default]
    Size,
    /// A number of bits; under [`Objective::Bits`].
    Bits(u64),
    /// Seconds, below a million; under [`Objective::MeasuredSeconds`]. Before the first measurement of seconds, the default
    /// settings are used. If even the fastest settings take longer, the decision fails with
    /// [`Error::TimeInfeasible`](crate::Error::TimeInfeasible). The step then fails whenever it is repeated, even if the link has
    /// become faster, because no step measures the link in between.
    Seconds(f64),
}

/// The unit of sizes. The size that plans minimise, or keep within a size [`Budget`].
///
/// ```
/// use lgreco_train::controller::{Config, Objective};
/// use lgreco_train::search::{Method, Search};
/// let mut config = Config::new(Search::new(Method::Hybrid));
/// config.objective = Objective::MeasuredSeconds;
/// config.clock = Some(|| std::time::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Objective {
    /// Bits on the wire.
    #[default]
    Bits,
    /// Seconds, which the controller measures by [`Config::clock`](super::Config::clock). The time for sending comes from the steps
    /// since the last decision. The time for compressing comes from the same steps, and from a short trial of each method. The
    /// controller uses the times of the slowest rank. A layer is sent uncompressed if compression saves no time, and is compressed
    /// again once compression saves time. An uncompressed layer starts to be compressed only if compression saves about a tenth of
    /// the layer's seconds. The controller notices a changed link at one of the next two decisions.
    /// [`Decision::timing`](super::Decision) and the decision as text report the measurements.
    ///
    /// The controller separates the time per byte from the constant time by steps of different sizes. These are the uncompressed
    /// steps of the warm-up, and the steps of the first plan. The first decision does not know yet how much of the traffic overlaps
    /// with the backward pass. The second decision knows this overlap. In the last step of a decision's window, ranks time an
    /// all-gather several times, to notice a changed link. This probe gathers 1 MiB in total, or the model's size if that is less. From the
    /// second decision on, a probe is smaller if the full size would take more than a hundredth of the time of all exchanges until
    /// the next decision. The smallest probe is a single all-gather of half a MiB.
    ///
    /// For buckets that a device [exchanges](super::External::note_exchanged), the caller
    /// [measures](super::External::meter_elsewhere) the seconds.
    ///
    /// Under [`Budget::Error`], plans are as fast as the error allows. Under [`Budget::Size`], plans are as exact as possible
    /// within the seconds of the default settings.
    MeasuredSeconds,
}

#[cfg(feature = "json")]
impl Policy {
    /// [`Policy::Fixed`] with the settings of a plan file, which the `lgreco` command writes. Layers are matched by name. A layer
    /// of `model` that the plan lacks is sent uncompressed.
    ///
    /// ```
    /// use lgreco_train::backend::Portable;
    /// use lgreco_train::controller::{Config, Controller, Policy, Tensor};
    /// use lgreco_train::exchange::{Collective, threads};
    /// use lgreco_train::file::PlanFile;
    /// use lgreco_train::gradient::{Dtype, Values, ValuesMut};
    /// use lgreco_train::plan::{self, Solver, budget::Budget};
    /// use lgreco_train::search::{Layer, Method, Search};
    ///
    /// // Before training: a plan for gradients that were stored, in a file.
    /// let stored: Vec<f32> = (0..4096).map(|i| (i as f32).sin().powi(5)).collect();
    /// let search = Search::new(Method::TopK);
    /// let layers = [Layer::new("fc1.weight", &[64, 64], Values::F32(&stored))?];
    /// let measured = search.measure(&layers, &mut Portable)?;
    /// let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
    /// let plan = plan::solve(&measured.table.view(), budget, Solver::default())?;
    /// let json = PlanFile::new(&measured.table, &plan).to_json();
    ///
    /// // On every worker: the settings come from the file.
    /// let plan = PlanFile::parse(json.as_bytes())?;
    /// let sent = threads::run(2, |mut worker| -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    ///     let bias = Tensor::new("fc1.bias", &[64], Dtype::F32)?;
    ///     let model = vec![bias, Tensor::new("fc1.weight", &[64, 64], Dtype::F32)?];
    ///     let mut config = Config::new(search.clone());
    ///     config.policy = Policy::from_plan(&plan, &model)?;
    ///     config.schedule.warmup = 2;
    ///     let mut controller = Controller::new(config, model, worker.rank(), worker.world_size())?;
    ///     let mut sent = 0;
    ///     for step in 0..5 {
    ///         let value = |i: usize| (i as f32 + worker.rank() as f32 + step as f32).sin();
    ///         let (mut bias, mut weight) = ([0.5f32; 64], (0..4096).map(value).collect::<Vec<f32>>());
    ///         let gradients = &mut [ValuesMut::F32(&mut bias), ValuesMut::F32(&mut weight)];
    ///         sent = controller.step(&mut worker, gradients, 0.1)?.bytes_out;
    ///     }
    ///     Ok(sent)
    /// });
    /// for sent in sent {
    ///     assert_eq!(sent.unwrap(), 4 * 64 + plan.size / 8); // the bias uncompressed, and the plan's size
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`PlanFile::settings`]: the model lacks a layer of the plan or has it in another shape, or the layer has no
    /// setting.
    pub fn from_plan(plan: &PlanFile, model: &[Tensor]) -> Result<Policy, Error> {
        let layers = model.iter().map(|tensor| (tensor.name(), tensor.shape(), tensor.dtype()));
        plan.settings(layers).map(Policy::Fixed)
    }
}
