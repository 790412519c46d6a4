//! What can be asked of a controller between steps, and the time samples it is told.

use super::{Controller, Decision, Metrics, Planner, Tensor, TimeModel, metrics};
use crate::Error;
use crate::compress::Setting;
use crate::error::expect_len;
use alloc::vec;
use alloc::vec::Vec;

impl Controller {
    /// The layers, as they were given.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// assert_eq!(controller.tensors()[1].name(), "bias");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn tensors(&self) -> &[Tensor] {
        &self.planner.tensors
    }

    /// Steps taken, skipped ones included; the number of the next step.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// step_alone(&mut controller, &mut worker)?;
    /// assert_eq!(controller.steps(), 1);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn steps(&self) -> u64 {
        self.planner.step
    }

    /// The setting of layer `layer` at the last step.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::Qsgd)?;
    /// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// assert_eq!([0, 1].map(|layer| controller.setting(layer).to_string()), ["qsgd 4", "dense"]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn setting(&self, layer: usize) -> Setting {
        self.states[layer].choice.setting
    }

    /// The last decision; `None` before the first.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let plan = controller.decision().and_then(|decision| decision.plan);
    /// assert!(plan.is_some_and(|plan| plan.proven()));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn decision(&self) -> Option<&Decision> {
        self.planner.decision()
    }

    /// Steps in which some rank's gradient was not finite.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # use lgreco_train::gradient::ValuesMut;
    /// let (mut weight, mut bias) = (vec![f32::NAN; 4096], vec![0.0; 64]);
    /// let gradients = &mut [&mut weight[..], &mut bias[..]].map(ValuesMut::from);
    /// assert!(controller.step(&mut worker, gradients, 0.1).is_err());
    /// assert_eq!(controller.non_finite_steps(), 1);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn non_finite_steps(&self) -> u64 {
        self.non_finite
    }

    /// What is known about layer `layer` on this rank.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let metrics = controller.metrics(0);
    /// assert_eq!((metrics.name, metrics.steps, metrics.bytes_in), ("weight", 4, 4 * 4 * 4096));
    /// assert!(metrics.bytes_out < metrics.bytes_in && metrics.residual_norm > Some(0.0));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Panics
    /// When there is no such layer.
    ///
    /// # Complexity
    /// A pass over the layer's residual.
    pub fn metrics(&self, layer: usize) -> Metrics<'_> {
        metrics::of(&self.planner.tensors[layer], &self.states[layer])
    }

    /// Writes layer `layer`'s residual on this rank to `values`, row-major; zeros without one.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let mut residual = vec![0.0; 4096];
    /// controller.residual(0, &mut residual)?;
    /// assert!(residual.iter().filter(|&&x| x != 0.0).count() > 4000); // TopK at 1 %
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Length`](crate::CoreError::Length) when `values` has not one place per element; [`Error::InFlight`] while
    /// a bucket has the layer.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn residual(&self, layer: usize, values: &mut [f32]) -> Result<(), Error> {
        if self.states[layer].lent != 0 {
            return Err(Error::InFlight { layer });
        }
        match &self.states[layer].memory {
            Some(memory) => memory.values(values),
            None => {
                expect_len("residual values", self.planner.tensors[layer].shape.elements(), values.len())?;
                values.fill(0.0);
                Ok(())
            }
        }
    }

    /// Number of buckets; the same at all times.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// assert_eq!(controller.buckets(), 1); // of up to 4 MiB
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn buckets(&self) -> usize {
        self.planner.groups.ranges.len()
    }

    /// Bytes that this worker sends per bucket under the present settings: what a sample of synchronisation time
    /// belongs to.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// assert_eq!(controller.bucket_bytes(), [16 + 4 * 4096 + 16 + 4 * 64]); // with the payloads' headers
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn bucket_bytes(&self) -> Vec<u64> {
        let Planner { groups, tensors, .. } = &self.planner;
        let mut bytes = vec![0; groups.ranges.len()];
        for ((state, tensor), &bucket) in self.states.iter().zip(&**tensors).zip(&groups.of) {
            let reduce_dtype = self.planner.config.search.reduce_dtype;
            let sent = state.choice.setting.exchanged_len(tensor.shape, tensor.dtype, reduce_dtype);
            bytes[bucket] += sent.map_or(0, |sent| sent as u64);
        }
        bytes
    }

    /// Adds a sample to the [`TimeModel`]: `bytes` by bucket, such as [`bucket_bytes`](Controller::bucket_bytes), were
    /// exchanged in `seconds`. The measuring rank's samples decide. The collective calls of a step are where the
    /// time goes: let the embedder's [`Collective`](crate::exchange::Collective) add theirs up.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// controller.record_sync(&controller.bucket_bytes(), 0.003)?;
    /// assert_eq!(controller.time_model().samples(), 1);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`TimeModel::record`].
    pub fn record_sync(&mut self, bytes: &[u64], seconds: f64) -> Result<(), Error> {
        self.planner.record_sync(bytes, seconds)
    }

    /// The samples so far.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// assert_eq!(controller.time_model().buckets(), controller.buckets());
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn time_model(&self) -> &TimeModel {
        &self.planner.time
    }
}
