//! Outer steps: workers train independently, and average the compressed changes of their parameters from time to time.
//!
//! Every worker takes `every` steps with its own optimiser. The worker's pseudo-gradient is the difference of the parameters after
//! the last outer step and the present parameters. A [`Controller`] compresses the pseudo-gradients, with a setting per layer and
//! with error feedback that decays. An outer step applies the mean of the pseudo-gradients to the parameters after the last outer
//! step, by SGD with Nesterov's momentum:
//!
//! ```text
//! a = e + Δ      Δ̂ = compressed a      e = β (a − Δ̂)
//! v = μ v + mean Δ̂      θ = θ − η (mean Δ̂ + μ v)
//! ```
//!
//! Outer steps without compression are "DiLoCo" (Douillard et al., 2023). Outer steps with decay, TopK and values in few bits, and
//! without momentum, are "SparseLoCo" (Sarfi et al., 2025). Layers can be averaged in turn, in fragments, so that fewer bytes are
//! sent at a time ("Streaming DiLoCo", Douillard et al., 2025). Inner optimisers keep their state.
//!
//! Residuals can be set to zero where the mean moves parameters: `e = 0` where `mean Δ̂ ≠ 0`. Workers with the same objective
//! compute similar changes. A change that other workers have already made need not be repeated. "Deep gradient compression" (Lin et
//! al., 2018) sets the momentum of sent elements to zero, for a similar reason.

mod fragment;
mod saved;

use crate::controller::{Config, Controller, Field, Report, Tensor, compare, fields};
use crate::exchange::{Collective, Place};
use crate::gradient::Dtype;
use crate::{CoreError, Error};
use alloc::vec::Vec;
use core::num::NonZero;
use core::ops::Range;
use fragment::{Fragment, config_of, divided};
use lgreco::error::expect_len;

/// Options of outer steps.
///
/// ```
/// use lgreco_train::outer::Outer;
/// let sparse_loco = Outer { learning_rate: 1.0, momentum: 0.0, ..Outer::default() };
/// assert_eq!((sparse_loco.every, sparse_loco.feedback_decay), (30, 0.95));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outer {
    /// Inner steps between two outer steps of the same layer, at least 1; 30 by default, as in SparseLoCo.
    pub every: u64,
    /// The learning rate η, above 0; 0.7 by default, as in DiLoCo and MuLoCo.
    pub learning_rate: f32,
    /// The momentum μ, from 0 to below 1; 0.6 by default, as in MuLoCo.
    pub momentum: f32,
    /// The decay β of residuals, above 0 and at most 1; 0.95 by default, as in SparseLoCo. With 1, error feedback is classic.
    pub feedback_decay: f32,
    /// Number of parts of about equal size into which the layers are divided. The parts are averaged in turn, at equal intervals.
    /// From 1 to the smaller of `every` and the number of layers; 1 by default.
    pub fragments: usize,
    /// Whether the layers of a fragment, also vectors, are compressed as one layer of one column. The joined layer must have fewer
    /// than 2^32 elements. In a joined layer, TopK keeps each worker's largest values, in whichever layers they are in this step.
    /// Without joining, a plan keeps a fixed number of values in each layer until the next plan. A joined fragment has only one
    /// payload header. `false` by default.
    pub joined: bool,
    /// Whether a worker's residual of an element is set to zero if the mean moves the element. Other workers have already moved
    /// such an element, so the residual would move it too far. Forgetting allows a higher learning rate. This option is meant for
    /// TopK, because TopK's mean does not move most elements. `false` by default.
    pub forget_moved: bool,
}

impl Default for Outer {
    fn default() -> Self {
        Outer {
            every: 30,
            learning_rate: 0.7,
            momentum: 0.6,
            feedback_decay: 0.95,
            fragments: 1,
            joined: false,
            forget_moved: false,
        }
    }
}

impl Outer {
    /// The options as values that must be the same on all ranks.
    fn fields(&self) -> [Field; 7] {
        let Outer { every, learning_rate, momentum, feedback_decay, fragments, joined, forget_moved } = *self;
        let flag = |name, is_set: bool| Field::named(name, &["no", "yes"], is_set.into());
        [
            Field::whole("steps between outer steps", every),
            Field::real("outer learning rate", learning_rate.into()),
            Field::real("outer momentum", momentum.into()),
            Field::real("decay of error feedback", feedback_decay.into()),
            Field::whole("fragments", fragments as u64),
            flag("joined", joined),
            flag("forget_moved", forget_moved),
        ]
    }

    /// Whether fragment `index` is averaged after `steps` inner steps.
    fn is_turn(&self, index: usize, steps: u64) -> bool {
        let (every, delay) = (u128::from(self.every), index as u128 * u128::from(self.every) / self.fragments as u128);
        (u128::from(steps) + delay).is_multiple_of(every)
    }

    fn check(&self, layers: usize) -> Result<(), Error> {
        let Outer { every, learning_rate, momentum, feedback_decay, fragments, joined: _, forget_moved: _ } = *self;
        let most = layers.max(1).min(usize::try_from(every).unwrap_or(usize::MAX));
        let wrong = [
            ("steps between outer steps", every as f64, every > 0, "at least 1"),
            (
                "outer learning rate",
                learning_rate.into(),
                learning_rate > 0.0 && learning_rate.is_finite(),
                "above 0 and finite",
            ),
            ("outer momentum", momentum.into(), (0.0..1.0).contains(&momentum), "from 0 to below 1"),
            (
                "decay of error feedback",
                feedback_decay.into(),
                feedback_decay > 0.0 && feedback_decay <= 1.0,
                "above 0 and at most 1",
            ),
            ("fragments", fragments as f64, (1..=most).contains(&fragments), "1 to the number of layers and of steps"),
        ];
        match wrong.into_iter().find(|(_, _, holds, _)| !holds) {
            Some((what, value, _, expected)) => Err(CoreError::Parameter { what, value, expected }.into()),
            None => Ok(()),
        }
    }
}

/// Averages models that are trained independently, in outer steps with compressed pseudo-gradients.
///
/// ```
/// use lgreco_train::controller::{Config, Tensor};
/// use lgreco_train::exchange::{Collective, threads};
/// use lgreco_train::gradient::Dtype;
/// use lgreco_train::outer::{Outer, OuterStep};
/// use lgreco_train::search::{Method, Search};
///
/// let models = threads::run(2, |mut worker| {
///     let outer = Outer { every: 4, learning_rate: 1.0, momentum: 0.0, ..Outer::default() };
///     let config = Config::new(Search::new(Method::TopK));
///     let mut weight = vec![1.0f32; 64];
///     let tensors = vec![Tensor::new("weight", &[8, 8], Dtype::F32)?];
///     let mut step = OuterStep::new(outer, config, tensors, &mut [&mut weight], &mut worker)?;
///     for _ in 0..4 {
///         // Training: the second worker moves three times as far.
///         weight.iter_mut().for_each(|w| *w -= (1 + 2 * worker.rank()) as f32 / 64.0);
///         step.step(&mut worker, &mut [&mut weight])?;
///     }
///     Ok::<_, lgreco_train::Error>(weight[0])
/// });
/// assert_eq!(models, [Ok(0.875), Ok(0.875)]);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct OuterStep {
    outer: Outer,
    steps: u64,
    fragments: Vec<Fragment>,
}

impl OuterStep {
    /// Begins with rank 0's `parameters`, one f32 slice per tensor, which are broadcast to all ranks. Before the
    /// broadcast, all ranks compare their options and layers.
    ///
    /// `config` configures the fragments' controllers, whose steps are the outer steps. Because there are few outer steps, even the
    /// outer steps before the first plan are compressed, under the default settings
    /// ([`Planning::compress_warmup`](crate::controller::Planning::compress_warmup)). A fixed policy has settings for all layers
    /// or, if layers are joined, for all fragments. A budget in bits or seconds is for all fragments together. Each fragment gets a
    /// share of such a budget in proportion to its elements.
    ///
    /// # Errors
    /// If one rank fails, all ranks fail. The rank at fault returns the error itself, and the other ranks return [`Error::Peer`]
    /// with the error's code.
    ///
    /// [`CoreError::Parameter`] for a value of `outer` that is not allowed, and for tensors that are not f32.
    /// [`CoreError::TooManyElements`] if the joined layers have 2^32 elements or more. [`CoreError::Length`] and
    /// [`Error::LayerMismatch`] if the parameters do not fit the tensors. [`Error::PeerOption`] with the first option that differs
    /// between ranks, or with the layers if they differ. [`Error::NoMessage`]. The errors of [`Controller::new`] and of the network.
    ///
    /// # Complexity
    /// Memory for three f32 per parameter, and for the controller's residuals.
    pub fn new<C: Collective + ?Sized>(
        outer: Outer,
        mut config: Config,
        tensors: Vec<Tensor>,
        parameters: &mut [&mut [f32]],
        collective: &mut C,
    ) -> Result<Self, Error> {
        let world = collective.world_size();
        // Unless `workers` is set, the metric of errors is for the number of workers in the group.
        config.search.workers = config.search.workers.or(NonZero::new(world));
        let made = Place::of(collective).and_then(|place| make(&outer, &config, &tensors, parameters, place));
        let options = || outer.fields().into_iter().chain(fields(&config, &tensors, world)).collect();
        compare(collective, made.as_ref().map(|_| options()).map_err(|error| *error))?;
        let mut fragments = made?;
        for values in parameters.iter_mut() {
            collective.broadcast(0, bytemuck::cast_slice_mut(values))?;
        }
        fragments.iter_mut().for_each(|fragment| fragment.begin(&parameters[fragment.layers.clone()]));
        Ok(OuterStep { outer, steps: 0, fragments })
    }

    /// Takes an outer step of one fragment, if an outer step is due after this inner step. Returns the report of the outer step, or
    /// `None`. Call this method after every inner step, on all ranks. If parameters are not finite, and the configuration does not
    /// treat this as an error, the report's outcome shows it, and the parameters stay unchanged. If no outer step is due,
    /// `parameters` are not used.
    ///
    /// # Errors
    /// If one rank fails, all ranks fail. The rank at fault returns the error itself, and the other ranks return [`Error::Peer`]
    /// with the error's code. On failure, parameters and residuals are unchanged, the inner step counts, and the fragment waits for
    /// its next turn.
    ///
    /// [`CoreError::Length`] and [`Error::LayerMismatch`] for parameters of other lengths than before; [`Error::PeerOption`] when
    /// ranks have taken different numbers of inner steps, or have loaded states that differ; [`Error::NoMessage`]; the errors of [`Controller::step`],
    /// such as [`Error::NonFiniteGradient`] when a parameter is not finite.
    ///
    /// # Complexity
    /// A step of a controller, and three passes over the fragment's parameters.
    pub fn step<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        parameters: &mut [&mut [f32]],
    ) -> Result<Option<Report>, Error> {
        // A failed step counts, too. Otherwise, this rank's next turn would come later than the turn of the other ranks.
        self.steps += 1;
        let turn = (0..self.fragments.len()).find(|&index| self.outer.is_turn(index, self.steps));
        let Some(turn) = turn else { return Ok(None) };
        let fits = check_lens(self.fragments.iter().flat_map(Fragment::lens), parameters);
        let fragment = &mut self.fragments[turn];
        if let Err(error) = fits {
            return Err(fragment.controller.step_failed(collective, error));
        }
        let part = fragment.layers.clone();
        fragment.average(&self.outer, self.steps, collective, &mut parameters[part]).map(Some)
    }

    /// Number of inner steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The layers of each fragment, and the controller of its outer steps, for settings, decisions and metrics. If layers are
    /// joined, the controller has one layer.
    pub fn fragments(&self) -> impl ExactSizeIterator<Item = (Range<usize>, &Controller)> {
        self.fragments.iter().map(|fragment| (fragment.layers.clone(), &fragment.controller))
    }
}

/// The fragments of this rank, without their parameters. Needs no collective.
fn make(
    outer: &Outer,
    config: &Config,
    tensors: &[Tensor],
    parameters: &[&mut [f32]],
    place: Place,
) -> Result<Vec<Fragment>, Error> {
    outer.check(tensors.len())?;
    if let Some(tensor) = tensors.iter().find(|tensor| tensor.dtype() != Dtype::F32) {
        let (what, value) = ("bytes of a parameter", tensor.dtype().bytes() as f64);
        return Err(CoreError::Parameter { what, value, expected: "4: outer steps are taken in f32" }.into());
    }
    let lens: Vec<usize> = tensors.iter().map(|tensor| tensor.shape().elements()).collect();
    check_lens(lens.iter().copied(), parameters)?;
    let fragment = |(index, part): (usize, Range<usize>)| {
        let settings = match outer.joined {
            true => (index..index + 1, outer.fragments),
            false => (part.clone(), lens.len()),
        };
        let config = config_of(config, &lens, part.clone(), settings);
        Fragment::new(part.clone(), config, tensors[part].to_vec(), outer.joined, place)
    };
    divided(&lens, outer.fragments).into_iter().enumerate().map(fragment).collect()
}

fn check_lens(lens: impl Iterator<Item = usize> + Clone, parameters: &[&mut [f32]]) -> Result<(), Error> {
    expect_len("parameters, one per tensor", lens.clone().count(), parameters.len())?;
    for (layer, (expected, values)) in lens.zip(parameters).enumerate() {
        if values.len() != expected {
            return Err(Error::LayerMismatch { layer, what: "number of elements", expected, found: values.len() });
        }
    }
    Ok(())
}
