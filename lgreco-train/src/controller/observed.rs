//! Measuring a window's means for a plan. A backend measures means in this process, and an [`Observed`] measures means on a device.

use super::Tensor;
use super::buffers::workspace;
use super::window::Typed;
use crate::backend::{Backend, Job, JobError};
use crate::compress::Setting;
use crate::feedback::{contraction, contraction_workspace_len};
use crate::gradient::{Element, Gradient, with_elements};
use crate::num::{Sum, sqrt};
use crate::rng::Stream;
use crate::search::{Measured, OfferedRow, Search};
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

/// Measures the gradients of a window that a device [has](super::External::note_observed). The owner of the device implements this
/// trait for [`PlanTask::run_with`](super::PlanTask::run_with). All measurements are made on the mean of a layer's gradients in the
/// window. The mean has the layer's own element type, as [`External::observe`](super::External::observe) would compute it.
///
/// ```
/// use lgreco_train::backend::{Backend, Job, JobError, Portable};
/// use lgreco_train::controller::Observed;
/// use lgreco_train::gradient::Gradient;
/// use lgreco_train::search::OfferedRow;
/// /// Means of f32 layers, and their squared norms.
/// struct OnDevice<'a>(&'a [Gradient<'a>], &'a [f64]);
///
/// impl Observed for OnDevice<'_> {
///     fn squared_norms(&mut self, layers: &[usize], norms: &mut [f64]) -> Result<(), lgreco_train::CoreError> {
///         layers.iter().zip(norms).for_each(|(&layer, norm)| *norm = self.1[layer]);
///         Ok(())
///     }
///
///     fn measure(&mut self, rows: &[OfferedRow<'_>], squared_errors: &mut [f64]) -> Result<(), JobError> {
///         let mut jobs = Vec::new();
///         for row in rows {
///             jobs.push(Job { gradient: self.0[row.layer], candidates: row.candidates, stream: row.stream });
///         }
///         Portable.measure(&jobs, &mut vec![0; Portable.workspace_len(&jobs)], squared_errors)
///     }
/// }
/// ```
pub trait Observed {
    /// The squared l2 norms of these layers' means.
    ///
    /// # Errors
    /// Errors of the device. After an error, the decision fails on all ranks.
    fn squared_norms(&mut self, layers: &[usize], norms: &mut [f64]) -> Result<(), CoreError>;

    /// The squared errors of all candidates of these rows, one after another, as [`Backend::measure`] returns them.
    ///
    /// # Errors
    /// The errors of [`Backend::measure`]. After an error, the decision fails on all ranks.
    fn measure(&mut self, rows: &[OfferedRow<'_>], squared_errors: &mut [f64]) -> Result<(), JobError>;
}

/// A window's means.
pub(super) struct Means<'a, 'b> {
    tensors: &'a [Tensor],
    /// The layers' means in their element types; `None` for a mean on a device.
    here: Vec<Option<Typed<'a>>>,
    observed: Option<&'b mut dyn Observed>,
    pub(super) norms: Vec<f64>,
}

const ELSEWHERE: Error = Error::StepOrder {
    what: "a device has gradients of the window",
    expected: "`PlanTask::run_with` with an `Observed` that measures them",
};

impl<'a, 'b> Means<'a, 'b> {
    /// # Errors
    /// [`Error::StepOrder`] when means of the window are on a device, and no `observed` is given to measure them there; the errors
    /// of measuring norms.
    pub(super) fn new(
        means: &'a [Vec<f32>],
        tensors: &'a [Tensor],
        elsewhere: &[bool],
        mut observed: Option<&'b mut dyn Observed>,
    ) -> Result<Means<'a, 'b>, Error> {
        let here = means.iter().zip(tensors).zip(elsewhere);
        let here: Vec<_> =
            here.map(|((mean, tensor), &elsewhere)| (!elsewhere).then(|| Typed::new(mean, tensor.dtype))).collect();
        let mut norms: Vec<f64> = here.iter().map(|mean| mean.as_ref().map_or(0.0, norm)).collect();
        let layers: Vec<usize> = (0..tensors.len()).filter(|&layer| here[layer].is_none()).collect();
        if !layers.is_empty() {
            let mut squares = vec![0.0; layers.len()];
            observed.as_mut().ok_or(ELSEWHERE)?.squared_norms(&layers, &mut squares)?;
            layers.iter().zip(squares).for_each(|(&layer, square)| norms[layer] = sqrt(square));
        }
        Ok(Means { tensors, here, observed, norms })
    }

    /// The mean of a layer, unless a device has it.
    pub(super) fn here(&self, layer: usize) -> Option<&Typed<'a>> {
        self.here[layer].as_ref()
    }

    /// Measures the error table of all settings that the search offers.
    pub(super) fn measure(&mut self, search: &Search, backend: &mut dyn Backend) -> Result<Measured, Error> {
        let layers = self.tensors.iter().map(|tensor| (&*tensor.name, &*tensor.dims, tensor.dtype));
        let offer = search.offer(layers).map_err(|named| named.error)?;
        let (mut jobs, mut rows, mut is_here) = (Vec::new(), Vec::new(), Vec::new());
        for row in offer.rows() {
            is_here.push((self.here[row.layer].is_some(), row.candidates.len()));
            match &self.here[row.layer] {
                Some(mean) => {
                    let gradient = Gradient::new(mean.values(), self.tensors[row.layer].shape)?;
                    jobs.push(Job { gradient, candidates: row.candidates, stream: row.stream });
                }
                None => rows.push(row),
            }
        }
        let count = |here: bool| is_here.iter().filter(|row| row.0 == here).map(|row| row.1).sum();
        let [mut of_here, mut of_elsewhere]: [Vec<f64>; 2] = [true, false].map(|here| vec![0.0; count(here)]);
        if !jobs.is_empty() {
            let mut workspace = workspace(backend.workspace_len(&jobs))?;
            backend.measure(&jobs, &mut workspace, &mut of_here).map_err(|failed| failed.error)?;
        }
        if !rows.is_empty() {
            let observed = self.observed.as_mut().ok_or(ELSEWHERE)?;
            observed.measure(&rows, &mut of_elsewhere).map_err(|failed| failed.error)?;
        }
        let (mut of_here, mut of_elsewhere) = (of_here.into_iter(), of_elsewhere.into_iter());
        let mut errors = Vec::new();
        for (here, candidates) in is_here {
            errors.extend(if here { &mut of_here } else { &mut of_elsewhere }.take(candidates));
        }
        offer.into_measured(&errors).map_err(|named| named.error.into())
    }

    /// The relative squared error of a layer under a setting.
    pub(super) fn contraction(&mut self, setting: &Setting, layer: usize, seed: u64) -> Result<f64, Error> {
        let Tensor { shape, dtype, .. } = self.tensors[layer];
        let stream = Stream { seed, layer: layer as u32, ..Stream::default() };
        if let Some(mean) = &self.here[layer] {
            let gradient = Gradient::new(mean.values(), shape)?;
            let mut workspace = workspace(contraction_workspace_len(setting, shape, dtype))?;
            return contraction(setting, &gradient, stream, &mut workspace);
        }
        let (norm, mut squared) = (self.norms[layer], [0.0; 2]);
        let observed = self.observed.as_mut().ok_or(ELSEWHERE)?;
        if let Some(candidates) = setting.row() {
            let places = candidates.len();
            let row = OfferedRow { layer, candidates, stream };
            observed.measure(&[row], &mut squared[..places]).map_err(|failed| failed.error)?;
        }
        Ok(if norm > 0.0 { squared[0] / (norm * norm) } else { 0.0 })
    }
}

/// The l2 norm of a mean.
fn norm(values: &Typed<'_>) -> f64 {
    fn square(x: f32) -> f64 {
        x as f64 * x as f64
    }
    let sum: Sum = with_elements!(values.values(), v => v.iter().map(|x| square(x.to_f32())).collect());
    sqrt(sum.value())
}

#[cfg(test)]
mod tests {
    use crate::compress::Setting;
    use crate::compress::method::{Method, Methods, OwnSetting, Parameters};
    use crate::controller::{Config, Controller, Policy, Tensor};
    use crate::exchange::threads;
    use crate::gradient::{Dtype, Gradient, Shape, Values, ValuesMut};
    use crate::rng::Stream;
    use crate::search::{Layer, Search};
    use crate::{CoreError, Error, backend::Portable, search};
    use alloc::vec;

    /// An outside method that asks for more memory than any machine has.
    #[derive(Debug)]
    struct Greedy;

    impl Method for Greedy {
        fn id(&self) -> u8 {
            0x99
        }
        fn name(&self) -> &'static str {
            "greedy"
        }
        fn body_len(&self, _: &Parameters, _: Shape, _: Dtype) -> Result<usize, CoreError> {
            Ok(4)
        }
        fn workspace_len(&self, _: &Parameters, _: Shape, _: Dtype) -> usize {
            usize::MAX
        }
        fn encode(
            &self,
            _: &Parameters,
            _: &Gradient<'_>,
            _: Stream,
            _: &mut [u64],
            _: &mut [u8],
        ) -> Result<usize, CoreError> {
            Ok(4)
        }
        fn decode(&self, _: &Parameters, _: Shape, _: &[u8], values: &mut [f32]) -> Result<(), CoreError> {
            values.fill(0.0);
            Ok(())
        }
    }

    static KNOWN: &[&dyn Method] = &[&Greedy];

    #[test]
    fn measuring_that_needs_too_much_memory_is_an_error_on_every_rank() {
        let setting = Setting::Own(OwnSetting::new(&Greedy, [0; 4]).unwrap());
        let mut search = Search::new(search::Method::Qsgd);
        (search.methods, search.beside) = (Methods::new(KNOWN).unwrap(), vec![setting]);
        let values = [1.0; 4096];
        let layers = [Layer::new("w", &[64, 64], Values::F32(&values)).unwrap()];
        let failed = search.measure(&layers, &mut Portable).unwrap_err();
        assert!(matches!(failed.error, CoreError::OutOfMemory { .. }), "{failed}");
        #[cfg(feature = "rayon")]
        {
            let failed = search.measure(&layers, &mut crate::backend::Parallel).unwrap_err();
            assert!(matches!(failed.error, CoreError::OutOfMemory { .. }), "{failed}");
        }

        let run = threads::run(2, |mut worker| {
            let mut config = Config::new(search.clone());
            (config.schedule.warmup, config.policy) = (2, Policy::Fixed(vec![setting]));
            let layers = vec![Tensor::new("w", &[64, 64], Dtype::F32)?];
            let mut controller = Controller::new(config, layers, worker.rank(), worker.world_size())?;
            let mut values = values;
            (0..3).try_for_each(|_| controller.step(&mut worker, &mut [ValuesMut::F32(&mut values)], 0.1).map(drop))
        });
        assert!(matches!(run[0], Err(Error::Core(CoreError::OutOfMemory { .. }))), "{run:?}");
        assert_eq!(run[1], Err(Error::Peer { rank: 0, code: 7 }));
    }
}
