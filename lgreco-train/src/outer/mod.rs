//! Outer steps: workers train apart, and now and then average how far each has come, compressed.
//!
//! Every worker takes `every` steps by an optimiser of its own. Its pseudo-gradient is how far that has moved it: the
//! parameters after the last outer step minus those now. A [`Controller`] compresses the pseudo-gradients, by a plan per
//! layer and with error feedback that decays, and SGD with Nesterov's momentum takes an outer step by their mean, from the
//! parameters after the last one:
//!
//! ```text
//! a = e + Δ      Δ̂ = compressed a      e = β (a − Δ̂)
//! v = μ v + mean Δ̂      θ = θ − η (mean Δ̂ + μ v)
//! ```
//!
//! Douillard et al., "DiLoCo" (2023), is this uncompressed; with decay, TopK and values in few bits it is Sarfi et al., "SparseLoCo"
//! (2025), which does without momentum. Layers may be averaged in turn, in fragments, so that less travels at a time
//! (Douillard et al., "Streaming DiLoCo", 2025). Inner optimisers keep their state.
//!
//! What the mean moves may be forgotten, `e = 0` where `mean Δ̂ ≠ 0`: workers that train for the same end want the same moves,
//! and those that others have made need not be made again. Lin et al., "Deep gradient compression" (2018), forget the momentum
//! of what a worker itself sends, for a similar reason.

mod fragment;
mod saved;

use crate::controller::{Config, Controller, Report, Tensor};
use crate::exchange::Collective;
use crate::gradient::Dtype;
use crate::{CoreError, Error};
use alloc::vec::Vec;
use fragment::{Fragment, config_of, divided};
use lgreco::error::expect_len;

/// How outer steps are taken.
///
/// ```
/// use lgreco_train::outer::Outer;
/// let sparse_loco = Outer { learning_rate: 1.0, momentum: 0.0, ..Outer::default() };
/// assert_eq!((sparse_loco.every, sparse_loco.feedback_decay), (30, 0.95));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outer {
    /// Inner steps between two outer ones of the same layer, at least 1. 30, as in SparseLoCo, unless told otherwise.
    pub every: u64,
    /// η, above 0. 0.7, DiLoCo's and MuLoCo's, unless told otherwise.
    pub learning_rate: f32,
    /// μ, from 0 to below 1. 0.6, MuLoCo's, unless told otherwise.
    pub momentum: f32,
    /// β, above 0 and at most 1: 1 is classic error feedback. 0.95, SparseLoCo's, unless told otherwise.
    pub feedback_decay: f32,
    /// Into how many parts of about equal size the layers are divided, which are averaged in turn, equally spaced; from 1 to
    /// the smaller of `every` and the number of layers. 1 unless told otherwise.
    pub fragments: usize,
    /// Whether the layers of a fragment are compressed as one, of one column and below 2^32 elements, vectors among them. TopK
    /// then keeps the largest values of all layers, each worker its own and wherever they are this time, where a plan keeps so
    /// many of each layer until the next one; one header serves all. `false` unless told otherwise.
    pub joined: bool,
    /// Whether a worker forgets what it has not sent of an element that the mean moves: others have moved it, and what is left
    /// would move it too far; it bears a higher learning rate. For TopK, whose mean leaves most elements alone; of an estimate
    /// (EF21) nothing is forgotten. `false` unless told otherwise.
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

/// Averages models that are trained apart, every so many steps, over compressed pseudo-gradients.
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
    /// Begins with rank 0's `parameters`, which all ranks get, one f32 slice per tensor. `config` is that of a controller whose
    /// steps are outer steps. There are few of them, so the first ones, before a plan is made, have the default settings instead
    /// of none ([`Planning::compress_warmup`](crate::controller::Planning::compress_warmup)). A fixed policy has settings for all
    /// layers or, if these are joined, for all fragments. A budget in bits or seconds is for all fragments, too: each has a share
    /// by its elements.
    ///
    /// # Errors
    /// [`CoreError::Parameter`] for a value of `outer` that is not allowed, and for tensors that are not f32.
    /// [`CoreError::TooManyElements`] if the joined layers have 2^32 elements or more. [`CoreError::Length`] and
    /// [`Error::LayerMismatch`] if the parameters are not those of the tensors. The errors of [`Controller::new`] and of the
    /// broadcast.
    ///
    /// # Complexity
    /// Three f32 per parameter, besides the controller's residuals.
    pub fn new<C: Collective + ?Sized>(
        outer: Outer,
        config: Config,
        tensors: Vec<Tensor>,
        parameters: &mut [&mut [f32]],
        collective: &mut C,
    ) -> Result<Self, Error> {
        outer.check(tensors.len())?;
        if let Some(tensor) = tensors.iter().find(|tensor| tensor.dtype() != Dtype::F32) {
            let (what, value) = ("bytes of a parameter", tensor.dtype().bytes() as f64);
            return Err(CoreError::Parameter { what, value, expected: "4: outer steps are taken in f32" }.into());
        }
        let lens: Vec<usize> = tensors.iter().map(|tensor| tensor.shape().elements()).collect();
        check_lens(lens.iter().copied(), parameters)?;
        for values in parameters.iter_mut() {
            collective.broadcast(0, bytemuck::cast_slice_mut(values))?;
        }
        let parts = divided(&lens, outer.fragments);
        let mut tensors = tensors.into_iter();
        let mut fragments = Vec::with_capacity(parts.len());
        for (index, part) in parts.into_iter().enumerate() {
            let settings = match outer.joined {
                true => (index..index + 1, outer.fragments),
                false => (part.clone(), lens.len()),
            };
            let config = config_of(&config, &lens, part.clone(), settings);
            let tensors = tensors.by_ref().take(part.len()).collect();
            let parameters = &parameters[part.clone()];
            fragments.push(Fragment::new(part, config, tensors, outer.joined, parameters, collective)?);
        }
        Ok(OuterStep { outer, steps: 0, fragments })
    }

    /// To be called after every inner step, on all ranks: takes the outer step of the fragment whose turn it is, if it is
    /// one's. `None` otherwise, and where the configuration lets steps pass whose gradients are not finite, the report says
    /// that it has been skipped.
    ///
    /// # Errors
    /// [`Error::LayerMismatch`] for other parameters than before; those of [`Controller::step`], on all ranks alike:
    /// [`Error::NonFiniteGradient`] when a parameter is not finite, say. Parameters and residuals are then as they were, and the
    /// turn is over.
    ///
    /// # Complexity
    /// A step of a controller, and three passes over the fragment's parameters.
    pub fn step<C: Collective + ?Sized>(
        &mut self,
        collective: &mut C,
        parameters: &mut [&mut [f32]],
    ) -> Result<Option<Report>, Error> {
        let lens = self.fragments.iter().flat_map(Fragment::lens);
        check_lens(lens, parameters)?;
        self.steps += 1;
        let (steps, every, count) = (self.steps, self.outer.every, self.outer.fragments as u64);
        let is_next = |index: u64| (steps + index * every / count).is_multiple_of(every);
        let turn = (0..).zip(&mut self.fragments).find(|(index, _)| is_next(*index));
        let Some((_, fragment)) = turn else { return Ok(None) };
        let part = fragment.layers.clone();
        fragment.average(&self.outer, collective, &mut parameters[part]).map(Some)
    }

    /// Inner steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The layers of each fragment, and the controller of their outer steps, for settings, decisions and metrics; that of joined
    /// layers has one layer.
    pub fn fragments(&self) -> impl ExactSizeIterator<Item = (core::ops::Range<usize>, &Controller)> {
        self.fragments.iter().map(|fragment| (fragment.layers.clone(), &fragment.controller))
    }
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
