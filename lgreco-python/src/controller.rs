//! One rank's controller.

use crate::arguments::{Options, dtype as named_dtype, layer_dtype, refused, refused_layer};
use crate::bucket::Bucket;
use crate::cores::{detached, on_cores};
use crate::error::{LgrecoError, raised};
use crate::memory::Gradients;
use crate::report::Report;
use crate::request::Request;
use crate::task::{PlanResult, PlanTask};
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::controller::two_level::{Levels, LevelsBucket, Topology};
use lgreco_train::controller::{
    self, Budget, Config, Contents, Feedback, MemoryUse, Metrics, NonFinite, Policy, Tensor,
};
use lgreco_train::gradient::{Dtype, Shape, Values};
use lgreco_train::{CoreError, Error};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// This rank's number in a group, and the size of the group. `lgreco.torch` performs the group's collectives.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
}

/// Returns `Err` if the budget in bits is smaller than the smallest plan for the model.
fn expect_room<'a>(config: &Config, model: impl Iterator<Item = (&'a str, &'a [usize], Dtype)>) -> PyResult<()> {
    let (Budget::Bits(bits), Policy::LGreco { .. } | Policy::KMeans { .. }) = (config.budget, &config.policy) else {
        return Ok(());
    };
    let offer = config.search.offer(model).map_err(refused)?;
    let candidates: usize = offer.rows().map(|row| row.candidates.len()).sum();
    if candidates == 0 {
        return Ok(());
    }
    let measured = offer.into_measured(&vec![0.0; candidates]).map_err(refused)?;
    let least: u64 =
        measured.table.view().iter().filter_map(|layer| layer.iter().map(|option| option.size).min()).sum();
    if bits < least {
        let unit = if bits == 1 { "bit" } else { "bits" };
        return Err(refused(format!(
            "budget is {bits} {unit}, expected at least {least}, the size of the smallest plan"
        )));
    }
    Ok(())
}

/// A rank's controller: the layers' settings, their residuals, and the schedule of decisions.
#[pyclass(frozen, module = "lgreco._lgreco")]
pub(crate) struct Controller {
    /// Threads release the interpreter's lock before they wait for this lock, so no deadlock is possible.
    controller: Mutex<Levels>,
    /// The whole layers.
    tensors: Arc<[Tensor]>,
    /// The tensors that this rank exchanges: in training over nodes its shards, else the layers.
    pub(crate) exchanged: Arc<[Tensor]>,
    pub(crate) names: Arc<[String]>,
    /// This rank's number in the group that exchanges `exchanged`, and the size of that group.
    pub(crate) place: Place,
    /// The loss scale by which the residuals are multiplied, as the bits of an f64.
    scale: AtomicU64,
    /// Seed of the random numbers.
    pub(crate) seed: u64,
    /// The rule by which each setting gets its error feedback.
    pub(crate) feedback: Feedback,
    /// Element type of sums on the network.
    pub(crate) reduce_dtype: Dtype,
    /// How the controller treats gradients that are not finite.
    pub(crate) non_finite: NonFinite,
}

impl Controller {
    /// Returns the result of `work` on the controller, which no other thread uses at the same time. In training over
    /// nodes, the controller's layers are this rank's shards.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut controller::Controller) -> T + Send,
    ) -> T {
        self.with_levels(py, |levels| work(levels.controller_mut()))
    }

    /// Like [`Controller::with`], but in training over nodes, `work` also gets the exchange inside the nodes.
    fn with_levels<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Levels) -> T + Send) -> T {
        let (mut work, mut done) = (Some(work), None);
        self.lock(py, &mut |levels| done = work.take().map(|work| work(levels)));
        done.expect("work is called")
    }

    /// Like [`Controller::with_levels`], for work that may fail.
    fn step<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Levels) -> Result<T, Error> + Send) -> PyResult<T> {
        self.with_levels(py, work).map_err(|error| self.raised(py, error))
    }

    /// Runs `work` on the locked controller. Not generic, so that it is compiled only once, because the size of wheels
    /// is limited.
    fn lock(&self, py: Python<'_>, work: &mut (dyn FnMut(&mut Levels) + Send)) {
        // A panic of another call does not prevent this call: the controller checks its own state, as after any error.
        py.detach(|| work(&mut self.controller.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Like [`Controller::with`], for work that raises errors.
    pub(crate) fn attempt<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut controller::Controller) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.with(py, work).map_err(|error| self.raised(py, error))
    }

    /// Like [`Controller::attempt`], on all cores.
    fn on_cores<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut controller::Controller) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.attempt(py, |controller| on_cores(|| work(controller)))
    }

    /// Opens a bucket with the layers that `open` lends. The gradients of the bucket belong to `tensors`.
    fn lend(
        &self,
        bucket: &mut Bucket,
        tensors: &Arc<[Tensor]>,
        open: impl FnOnce() -> PyResult<LevelsBucket>,
    ) -> PyResult<()> {
        if bucket.bucket.is_some() {
            return Err(LgrecoError::new_err("the bucket is open: it has the layers of another exchange"));
        }
        let (tensors, names) = (tensors.clone(), self.names.clone());
        *bucket = Bucket { bucket: Some(open()?), tensors, names, gradients: Gradients::default(), is_joined: false };
        Ok(())
    }

    pub(crate) fn raised(&self, py: Python<'_>, error: Error) -> PyErr {
        raised(py, error, &self.names)
    }

    pub(crate) fn check(&self, layer: usize) -> PyResult<usize> {
        let layers = self.tensors.len();
        let wrong = || LgrecoError::new_err(format!("there is no layer {layer}: the model has {layers}"));
        (layer < layers).then_some(layer).ok_or_else(wrong)
    }
}

/// Parses settings from text, one per layer.
pub(crate) fn parsed(settings: &[String]) -> PyResult<Vec<Setting>> {
    settings.iter().map(|text| text.parse().map_err(refused)).collect()
}

/// Number of bytes that a layer sends under a setting.
#[pyfunction]
pub(crate) fn payload_len(setting: &str, dims: Vec<usize>, dtype: &str) -> PyResult<usize> {
    let setting: Setting = setting.parse().map_err(refused)?;
    let shape = Shape::from_dims(&dims).map_err(refused)?;
    setting.payload_len(shape, named_dtype(dtype)?).map_err(refused)
}

#[pymethods]
impl Controller {
    /// Makes the controller of one rank of a group. Layers are (name, dims, dtype, ends of the ranks' shards).
    /// `loss_scaling` says whether losses are scaled. `place` is this rank's position in training by two levels: number
    /// of nodes, node, ranks per node, local rank.
    #[new]
    #[pyo3(signature = (layers, rank, world_size, loss_scaling, place=None, /, **options))]
    fn new(
        py: Python<'_>,
        layers: Vec<(String, Vec<usize>, String, Vec<u64>)>,
        rank: u32,
        world_size: u32,
        loss_scaling: bool,
        place: Option<[u32; 4]>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Controller> {
        let none = PyDict::new(py);
        let options = Options(options.unwrap_or(&none));
        let names: Arc<[String]> = layers.iter().map(|(name, ..)| name.clone()).collect();
        let tensors = layers.iter().map(|(name, dims, element, ends)| {
            Tensor::new(name, dims, layer_dtype(py, name, element)?)
                .map(|tensor| tensor.with_shards(ends))
                .map_err(|error| refused_layer(py, name, error))
        });
        let tensors: Vec<Tensor> = tensors.collect::<PyResult<_>>()?;
        let config = options.config(loss_scaling, &tensors, &names)?;
        let nodes = place.map(|[nodes, node, per_node, local]| Topology { nodes, node, per_node, local });
        let place = match nodes {
            Some(Topology { nodes, node, .. }) => Place { rank: node, world_size: nodes },
            None => Place { rank, world_size },
        };
        let (seed, feedback) = (config.search.seed, config.feedback);
        let (reduce_dtype, non_finite) = (config.search.reduce_dtype, config.non_finite);
        let of_budget = config.clone();
        let made = detached(py, || Levels::new(config, tensors.clone(), [rank, world_size], nodes));
        let controller = made.map_err(|error| raised(py, error, &names))?;
        let tensors: Arc<[Tensor]> = tensors.into();
        let exchanged = match nodes {
            Some(_) => controller.controller().tensors().into(),
            None => tensors.clone(),
        };
        // A budget in bits limits the bits of one rank's shards.
        expect_room(&of_budget, exchanged.iter().map(|tensor| (tensor.name(), tensor.dims(), tensor.dtype())))?;
        let (controller, scale) = (Mutex::new(controller), AtomicU64::new(1f64.to_bits()));
        Ok(Controller { controller, tensors, exchanged, names, place, scale, seed, feedback, reduce_dtype, non_finite })
    }

    /// Begins a step. An invalid learning rate is an error, after which the caller begins the step with a valid one and
    /// reports the error with the first bucket.
    fn begin_step(&self, py: Python<'_>, learning_rate: f64) -> PyResult<()> {
        if !(learning_rate.is_finite() && learning_rate >= 0.0) {
            let (what, value, expected) = ("learning rate", learning_rate, "a finite number >= 0");
            return Err(self.raised(py, CoreError::Parameter { what, value, expected }.into()));
        }
        self.step(py, |levels| levels.begin_step(learning_rate))
    }

    /// Returns the next collective of the ranks' agreement before the step's buckets. In most steps the first call
    /// returns None.
    fn control(&self, py: Python<'_>) -> PyResult<Option<Request>> {
        self.step(py, |levels| on_cores(|| levels.control().map(|request| request.map(Request::within))))
    }

    /// Lends these layers to a bucket that is not open.
    fn open(&self, py: Python<'_>, layers: Vec<usize>, bucket: &mut Bucket) -> PyResult<()> {
        self.lend(bucket, &self.tensors, || self.step(py, |levels| levels.open(&layers)))
    }

    /// Lends this rank's shards of these layers to a bucket that is not open.
    fn open_shards(&self, py: Python<'_>, layers: Vec<usize>, bucket: &mut Bucket) -> PyResult<()> {
        self.lend(bucket, &self.exchanged, || self.step(py, |levels| levels.open_shards(&layers)))
    }

    /// In training over nodes, the number of elements of each local rank's shard of a layer. Without nodes, only the
    /// number of elements of the layer.
    fn shard_lens(&self, py: Python<'_>, layer: usize) -> PyResult<Vec<usize>> {
        let layer = self.check(layer)?;
        Ok(self.with_levels(py, |levels| match levels {
            Levels::One(_) => vec![self.tensors[layer].shape().elements()],
            Levels::Two(training) => training.shards(layer).into_iter().flatten().map(|shard| shard.len()).collect(),
        }))
    }

    /// Takes the layers back from a bucket.
    fn close(&self, py: Python<'_>, bucket: &mut Bucket) -> PyResult<()> {
        let bucket = bucket.bucket.take().ok_or_else(|| LgrecoError::new_err("the bucket has been closed"))?;
        self.step(py, |levels| levels.close(bucket))
    }

    /// Ends the step.
    fn finish_step(&self, py: Python<'_>) -> PyResult<Report> {
        self.step(py, |levels| levels.finish_step()).map(Report::from)
    }

    /// Whether this rank must observe the gradients of the step under way.
    fn watches(&self, py: Python<'_>) -> bool {
        self.with(py, |controller| controller.external().watches())
    }

    /// Observes the gradients at these host addresses, of layers that are exchanged outside the controller.
    fn observe(&self, py: Python<'_>, layers: Vec<usize>, addresses: Vec<usize>) -> PyResult<()> {
        if layers.len() != addresses.len() {
            return Err(LgrecoError::new_err("one address per layer"));
        }
        layers.iter().try_for_each(|&layer| self.check(layer).map(drop))?;
        let tensors = &self.exchanged;
        let places = layers.iter().zip(addresses);
        let places =
            places.map(|(&layer, address)| (address, tensors[layer].dtype(), tensors[layer].shape().elements()));
        let mut gradients = Gradients::new(places)?;
        self.on_cores(py, |controller| {
            gradients.with(|values| {
                let mut layers = layers.iter().zip(values);
                layers.try_for_each(|(&layer, values)| controller.external().observe(layer, values.values()))
            })
        })
    }

    /// Number of the step under way within its window, from 1 on. Returns 0 if the step's gradients need not be
    /// observed.
    fn window_step(&self, py: Python<'_>) -> u64 {
        self.with(py, |controller| controller.external().window_step())
    }

    /// Whether gradients for the next decision are kept outside the controller.
    fn observes_elsewhere(&self, py: Python<'_>) -> bool {
        self.with(py, |controller| controller.external().observes_elsewhere())
    }

    /// Records that gradients of these layers for the next decision are kept outside the controller.
    fn note_observed(&self, py: Python<'_>, layers: Vec<usize>) -> PyResult<()> {
        self.attempt(py, |controller| layers.iter().try_for_each(|&layer| controller.external().note_observed(layer)))
    }

    /// Discards the observed gradients and starts the window again, because the last step failed outside the
    /// controller.
    fn forget_observed(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt(py, |controller| controller.external().forget_observed())
    }

    /// Records that these layers are exchanged outside the controller in the step under way.
    fn note_exchanged(&self, py: Python<'_>, layers: Vec<usize>) -> PyResult<()> {
        self.attempt(py, |controller| controller.external().note_exchanged(&layers))
    }

    /// From the next step on, takes exchange times from `record_exchange` (if `elsewhere`) or from the controller's
    /// clock.
    fn meter_elsewhere(&self, py: Python<'_>, elsewhere: bool) -> PyResult<()> {
        self.attempt(py, |controller| controller.external().meter_elsewhere(elsewhere))
    }

    /// Number of bytes that a probe gathers in the step under way. None if this step needs no probe.
    fn probe_bytes(&self, py: Python<'_>) -> Option<usize> {
        self.with(py, |controller| controller.external().probe_bytes())
    }

    /// Records bytes and seconds of the last step's exchange.
    fn record_exchange(&self, py: Python<'_>, wire_bytes: f64, seconds: f64, computing: f64) -> PyResult<()> {
        self.attempt(py, |controller| controller.external().record_exchange(wire_bytes, seconds, computing))
    }

    /// Records the shortest times of two all-gathers: `nothing` of almost no bytes, and `all` of the probe.
    fn record_probe(&self, py: Python<'_>, nothing: f64, all: f64) -> PyResult<()> {
        self.attempt(py, |controller| controller.external().record_probe([nothing, all]))
    }

    /// The settings for trials: for each kind of method, one setting per layer.
    fn trials(&self, py: Python<'_>, layers: Vec<usize>) -> PyResult<Vec<Vec<String>>> {
        let trials = self.attempt(py, |controller| controller.external().trials(&layers))?;
        Ok(trials.iter().map(|settings| settings.iter().map(Setting::to_string).collect()).collect())
    }

    /// Records the seconds of a trial of these settings.
    fn record_trial(&self, py: Python<'_>, layers: Vec<usize>, settings: Vec<String>, seconds: f64) -> PyResult<()> {
        let settings = parsed(&settings)?;
        self.attempt(py, |controller| controller.external().record_trial(&layers, &settings, seconds))
    }

    /// Records a layer's relative squared error in the last step, for an exchange outside the controller.
    fn record_error(&self, py: Python<'_>, layer: usize, relative_error: f64) -> PyResult<()> {
        self.attempt(py, |controller| controller.external().record_error(layer, relative_error))
    }

    /// Bytes of memory by purpose, if at most `at_once` buckets of `bucket_bytes` each are in flight.
    fn memory(&self, py: Python<'_>, bucket_bytes: usize, at_once: usize) -> PyResult<[(&'static str, u64); 5]> {
        let MemoryUse { residuals, undo, factors, exchange, window } =
            self.step(py, |levels| levels.memory(Some(bucket_bytes), at_once))?;
        Ok([("residuals", residuals), ("undo", undo), ("factors", factors), ("exchange", exchange), ("window", window)])
    }

    /// Whether the next step begins with a decision.
    fn is_plan_due(&self, py: Python<'_>) -> PyResult<bool> {
        self.attempt(py, |controller| Ok(controller.planning().is_due()))
    }

    /// Undoes the last step's changes to the residuals.
    fn roll_back(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt(py, |controller| controller.residuals().roll_back())
    }

    /// Abandons the step under way.
    fn abandon_step(&self, py: Python<'_>) -> PyResult<()> {
        self.step(py, |levels| levels.abandon_step())
    }

    /// Multiplies all residuals by `factor`.
    fn rescale_residuals(&self, py: Python<'_>, factor: f32) -> PyResult<()> {
        self.on_cores(py, |controller| controller.residuals().rescale(factor))
    }

    /// The loss scale by which the residuals are multiplied.
    #[getter]
    fn scale(&self) -> f64 {
        f64::from_bits(self.scale.load(Ordering::Relaxed))
    }

    /// Sets the loss scale without changing the residuals.
    fn note_scale(&self, scale: f64) {
        self.scale.store(scale.to_bits(), Ordering::Relaxed);
    }

    /// Rescales all residuals to a new loss scale. An interrupt takes effect before or after this call, not within it.
    fn follow_scale(&self, py: Python<'_>, scale: f64) -> PyResult<()> {
        self.rescale_residuals(py, (scale / self.scale()) as f32)?;
        self.note_scale(scale);
        Ok(())
    }

    /// Sets residuals to 0 at elements whose mean is not 0. `addresses` has the address of each layer's f32 means.
    fn forget_moved(&self, py: Python<'_>, addresses: Vec<usize>) -> PyResult<()> {
        let tensors = &self.tensors;
        if addresses.len() != tensors.len() {
            return Err(LgrecoError::new_err("one address per layer"));
        }
        let places = tensors.iter().zip(addresses);
        let mut means =
            Gradients::new(places.map(|(tensor, address)| (address, Dtype::F32, tensor.shape().elements())))?;
        self.on_cores(py, |controller| {
            means.with(|means| {
                let means: Vec<&[f32]> = means
                    .iter()
                    .filter_map(|mean| match mean.values() {
                        Values::F32(mean) => Some(mean),
                        _ => None,
                    })
                    .collect();
                controller.residuals().forget_moved(&means)
            })
        })
    }

    /// Compresses with the default settings before the first decision.
    fn compress_warmup(&self, py: Python<'_>) -> PyResult<()> {
        self.on_cores(py, |controller| controller.planning().compress_warmup())
    }

    /// Gives new settings to a controller with fixed settings, one per layer.
    fn set_settings(&self, py: Python<'_>, settings: Vec<String>) -> PyResult<()> {
        let settings = parsed(&settings)?;
        self.step(py, |levels| levels.set_settings(settings))
    }

    /// Asks for a decision before the next scheduled one. Returns the step at which the decision is due.
    fn replan(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.attempt(py, |controller| controller.planning().replan())
    }

    /// Takes the work of the next decision, if all gradients for this work are complete.
    fn take_plan_task(&self, py: Python<'_>) -> Option<PlanTask> {
        self.with(py, |controller| controller.planning().take_task()).map(|task| PlanTask(Some(task)))
    }

    /// Takes the result of a task. Returns whether the controller still needed the result.
    fn hand_in(&self, py: Python<'_>, result: &mut PlanResult) -> PyResult<bool> {
        let result = result.0.take().ok_or_else(|| LgrecoError::new_err("the result has been handed in"))?;
        Ok(self.with(py, |controller| controller.planning().hand_in(result)))
    }

    /// Number of steps taken.
    #[getter]
    pub(crate) fn steps(&self, py: Python<'_>) -> u64 {
        self.with(py, |controller| controller.steps())
    }

    /// Settings as text, one per layer.
    fn settings(&self, py: Python<'_>) -> Vec<String> {
        let layers = 0..self.tensors.len();
        self.with(py, |controller| layers.map(|layer| controller.setting(layer).to_string()).collect())
    }

    /// The last decision; None before the first.
    fn decision<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(decision) = self.with(py, |controller| controller.decision().copied()) else { return Ok(None) };
        let all = PyDict::new(py);
        all.set_item("step", decision.step)?;
        all.set_item("default_size", decision.default_size)?;
        all.set_item("uncompressed_size", decision.uncompressed_size)?;
        all.set_item("slower", decision.slower)?;
        all.set_item("not_contractive", decision.not_contractive)?;
        all.set_item("why", decision.to_string())?;
        if let Some(timing) = decision.timing {
            all.set_item("measured_seconds", timing.measured)?;
            all.set_item("computing_seconds", timing.computing)?;
            all.set_item("plan_seconds", timing.plan)?;
            all.set_item("plan_computing_seconds", timing.plan_computing)?;
            all.set_item("default_seconds", timing.default)?;
            all.set_item("uncompressed_seconds", timing.uncompressed)?;
            all.set_item("seconds_per_byte", timing.seconds_per_byte)?;
            all.set_item("compressed_layers", timing.compressed)?;
        }
        if let Some(plan) = decision.plan {
            all.set_item("size", plan.size)?;
            all.set_item("error", plan.error)?;
            all.set_item("proven", plan.proven())?;
        }
        Ok(Some(all))
    }

    /// A step's report with the last decision and the metrics of all layers, as one line of JSON.
    fn metrics_line(&self, py: Python<'_>, report: &Report) -> String {
        let report = report.of_controller;
        self.with(py, |controller| controller::metrics_line(controller, &report))
    }

    /// The present settings in one line.
    fn summary(&self, py: Python<'_>) -> String {
        self.with_levels(py, |levels| levels.summary())
    }

    /// Setting, counts and norms of a layer.
    fn metrics<'py>(&self, py: Python<'py>, layer: usize) -> PyResult<Bound<'py, PyDict>> {
        let layer = self.check(layer)?;
        let (setting, uncompressed, counts, norms) = self.with(py, |controller| {
            let Metrics { setting, uncompressed, steps, bytes_in, bytes_out, relative_error, residual_norm, .. } =
                controller.metrics(layer);
            (setting, uncompressed, (steps, bytes_in, bytes_out), (relative_error, residual_norm))
        });
        let all = PyDict::new(py);
        all.set_item("setting", setting.to_string())?;
        all.set_item("uncompressed", uncompressed.map(|reason| reason.name()))?;
        all.set_item("steps", counts.0)?;
        all.set_item("bytes_in", counts.1)?;
        all.set_item("bytes_out", counts.2)?;
        all.set_item("relative_error", norms.0)?;
        all.set_item("residual_norm", norms.1)?;
        Ok(all)
    }

    /// A layer's residual as the bytes of f32 values.
    fn residual<'py>(&self, py: Python<'py>, layer: usize) -> PyResult<Bound<'py, PyBytes>> {
        let layer = self.check(layer)?;
        let values = self.attempt(py, |controller| {
            let mut values = vec![0f32; controller.tensors()[layer].shape().elements()];
            controller.residual(layer, &mut values).map(|()| values)
        })?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Returns this rank's state as (name, bytes) per layer. The first entry has no name and no layer: the state of the
    /// run.
    fn save<'py>(&self, py: Python<'py>, window: bool) -> PyResult<Vec<(Option<String>, Bound<'py, PyBytes>)>> {
        let contents = if window { Contents::Everything } else { Contents::WithoutWindow };
        let parts = self.step(py, |levels| {
            let layers = (0..self.tensors.len()).map(Some);
            let parts = core::iter::once(None).chain(layers).map(|layer| {
                let name = layer.map(|layer| self.tensors[layer].name().to_string());
                Ok((name, levels.save_part(layer, contents)?))
            });
            parts.collect::<Result<Vec<_>, lgreco_train::Error>>()
        })?;
        Ok(parts.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect())
    }

    /// Continues from `plan`, the parts of one rank's state, with the residuals of the states in `residuals`. Returns
    /// (missing, extra, misshaped) layers, the step, and the step of the oldest residual.
    fn load(
        &self,
        py: Python<'_>,
        plan: Vec<Vec<u8>>,
        residuals: Vec<Vec<u8>>,
    ) -> PyResult<([Vec<String>; 3], u64, u64)> {
        let loaded = self.step(py, |levels| {
            let (plan, residuals): (Vec<&[u8]>, Vec<&[u8]>) =
                (plan.iter().map(Vec::as_slice).collect(), residuals.iter().map(Vec::as_slice).collect());
            on_cores(|| levels.load(&plan, &residuals))
        })?;
        Ok(([loaded.missing, loaded.extra, loaded.misshaped], loaded.step, loaded.oldest_residual))
    }
}
