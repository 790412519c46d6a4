//! Inspecting a controller: layers, settings, decisions, metrics and residuals.

use super::{Controller, Decision, Metrics, Tensor, metrics};
use crate::Error;
use crate::compress::Setting;
use lgreco::error::expect_len;

impl Controller {
    /// The layers, as they were given to [`new`](Controller::new).
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// assert_eq!(controller.tensors()[1].name(), "bias");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn tensors(&self) -> &[Tensor] {
        &self.scheduler.tensors
    }

    /// Number of steps taken, including skipped ones. This number is also the index of the next step.
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
        self.scheduler.step
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
    /// If the model has no layer `layer`.
    pub fn setting(&self, layer: usize) -> Setting {
        self.states[layer].plan.choice.setting
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
        self.scheduler.decision.as_ref()
    }

    /// Number of steps in which some rank's gradient was not finite.
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

    /// Metrics of layer `layer` on this rank.
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
    /// If the model has no layer `layer`.
    ///
    /// # Complexity
    /// A pass over the layer's residual.
    pub fn metrics(&self, layer: usize) -> Metrics<'_> {
        metrics::of(&self.scheduler.tensors[layer], &self.states[layer])
    }

    /// Writes layer `layer`'s residual on this rank to `values`, row-major, or zeros if the layer has none.
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
    /// [`CoreError::Length`](crate::CoreError::Length) unless `values` has one value per element; [`Error::InFlight`] while a
    /// bucket has the layer.
    ///
    /// # Panics
    /// If the model has no layer `layer`.
    pub fn residual(&self, layer: usize, values: &mut [f32]) -> Result<(), Error> {
        if self.states[layer].lent != 0 {
            return Err(Error::InFlight { layer });
        }
        match &self.states[layer].memory {
            Some(memory) => memory.values(values),
            None => {
                expect_len("residual values", self.scheduler.tensors[layer].shape.elements(), values.len())?;
                values.fill(0.0);
                Ok(())
            }
        }
    }
}
