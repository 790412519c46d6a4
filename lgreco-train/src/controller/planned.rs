//! Training with a plan that was made beforehand.

use super::{Policy, Tensor};
use crate::file::{Error, PlanFile};

impl Policy {
    /// [`Policy::Fixed`] with the settings of a plan file, such as the command writes one: each layer of `model` is found
    /// by its name, in whatever order, and a layer that the plan does not have is sent uncompressed.
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
    ///     assert_eq!(sent.unwrap(), 4 * 64 + plan.size / 8); // the bias as it is, and what the plan has promised
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`PlanFile::settings`]: a layer of the plan that the model has not, or that does not fit its shape there,
    /// or has no setting.
    pub fn from_plan(plan: &PlanFile, model: &[Tensor]) -> Result<Policy, Error> {
        let layers = model.iter().map(|tensor| (tensor.name(), tensor.shape(), tensor.dtype()));
        plan.settings(layers).map(Policy::Fixed)
    }
}
