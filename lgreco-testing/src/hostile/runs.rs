//! Small runs without damage, whose states and messages other modules damage.

use crate::controller::{SETTINGS, sharded};
use lgreco_train::controller::{Accordion, Config, Controller, Feedback, Policy, Report, Tensor};
use lgreco_train::exchange::{Collective, Route};
use lgreco_train::feedback::{Residual, Storage};
use lgreco_train::gradient::{Bf16, Dtype, Element, ValuesMut};
use lgreco_train::plan::{Solver, dp, exact::Limits};
use lgreco_train::rng::Stream;
use lgreco_train::search::{Method, Search};
use lgreco_train::{CoreError, Error};

/// Names, shapes and element types.
const LAYERS: [(&str, &[usize], Dtype); 3] =
    [("weight", &[6, 4], Dtype::F32), ("half", &[4, 3], Dtype::Bf16), ("bias", &[5], Dtype::F32)];

/// The layers, with shards if the configuration needs them.
pub(super) fn model(config: &Config, world: u32) -> Vec<Tensor> {
    let layers = LAYERS.map(|(name, dims, dtype)| Tensor::new(name, dims, dtype).expect("a small tensor")).into();
    if config.route == Route::Sharded { sharded(layers, world) } else { layers }
}

/// Configurations that differ in the contents of states and messages: every setting, every policy, every format of a
/// residual, all routes, one bucket and several.
pub(super) fn configs() -> Vec<Config> {
    let accordion = Accordion::new(8.0, 4.0);
    // The solver needs few states for three layers. Clearing memory for the default number of states would take most of
    // a run's time.
    let exact = |accordion| Policy::LGreco { solver: Solver::Exact(Limits { states: 1 << 8 }), accordion };
    let mut runs: Vec<(Method, Policy)> =
        SETTINGS.iter().map(|&setting| (Method::Qsgd, Policy::Fixed(vec![setting; LAYERS.len()]))).collect();
    runs.extend(Method::COMPARED.map(|method| (method, exact(None))));
    runs.extend([
        (Method::Hybrid, exact(Some(Accordion::new(6.0, 3.0)))),
        (Method::Hybrid, Policy::LGreco { solver: Solver::Dp { levels: dp::LEVELS / 100 }, accordion: None }),
        (Method::Qsgd, Policy::Accordion(accordion)),
        (Method::PowerSgd, Policy::KMeans { clusters: 2 }),
        (Method::TopK, Policy::Uniform),
        (Method::Qsgd, Policy::Uncompressed),
    ]);
    let residuals = [
        Residual::CLASSIC,
        Residual { gain: 0.5, reset_every: 3, storage: Storage::Bf16 },
        Residual { gain: 0.2, reset_every: 0, storage: Storage::Int8 },
    ];
    let config = |(index, (method, policy)): (usize, (Method, Policy))| {
        let mut search = Search::new(method);
        (search.min_elements, search.seed) = (2, 3);
        let mut config = Config::new(search);
        config.policy = policy;
        (config.schedule.warmup, config.schedule.period, config.schedule.window) = (2, 2, 2);
        config.feedback = Feedback::always(residuals[index % 3]);
        config.route = [Route::AllGather, Route::ScatterReduce, Route::Sharded][index / 2 % 3];
        config.bucket_bytes = [1 << 20, 100][index % 2];
        config.metrics_every = index as u64 % 3;
        if index % 5 >= 3 {
            config.search.reduce_dtype = Dtype::Bf16;
        }
        config
    };
    runs.into_iter().enumerate().map(config).collect()
}

/// The gradients of a rank at a step.
pub(super) struct Gradients([Vec<f32>; 2], Vec<Bf16>);

impl Gradients {
    pub(super) fn new(rank: u32, step: u32, scale: f32) -> Gradients {
        let layer = |layer: u32, len: u64| {
            let stream = Stream { seed: 3, step, layer, rank };
            (0..len).map(|i| ((stream.word(i) >> 20) as f32 / 2048.0 - 1.0) * scale).collect::<Vec<f32>>()
        };
        Gradients([layer(0, 24), layer(2, 5)], layer(1, 12).iter().map(|&x| Bf16::from_f32(x)).collect())
    }

    /// Takes a step. The learning rate depends on the step's number and is halved every three steps.
    pub(super) fn step<C: Collective>(
        &mut self,
        controller: &mut Controller,
        collective: &mut C,
    ) -> Result<Report, Error> {
        let rate = 1.0 / (1 << (controller.steps() / 3 % 32)) as f64;
        let Gradients([weight, bias], half) = self;
        let gradients = &mut [ValuesMut::F32(weight), ValuesMut::Bf16(half), ValuesMut::F32(bias)];
        controller.step(collective, gradients, rate)
    }

    pub(super) fn values(&self) -> Vec<f32> {
        let Gradients([weight, bias], half) = self;
        weight.iter().copied().chain(half.iter().map(|x| x.to_f32())).chain(bias.iter().copied()).collect()
    }

    /// Returns the bits of the means. Asserts that the means are finite.
    pub(super) fn bits(&self) -> Vec<u32> {
        let values = self.values();
        assert!(values.iter().all(|x| x.is_finite()), "means that are not finite come back as good: {values:?}");
        values.iter().map(|x| x.to_bits()).collect()
    }
}

/// Upper limit of counts in a saved state.
const COUNT_LIMIT: u64 = 1 << 63;

/// Asserts that another controller can load the state of this controller, and then saves the same bytes.
pub(super) fn check_saves<C: Collective>(controller: &Controller, config: &Config, collective: &C) {
    let saved = match controller.save() {
        Ok(saved) => saved,
        Err(error) => {
            return assert!(matches!(error, Error::OfLayer { error: CoreError::Overflow { .. }, .. }), "{error}");
        }
    };
    let mut twin = Controller::new(
        config.clone(),
        model(config, collective.world_size()),
        collective.rank(),
        collective.world_size(),
    )
    .expect("a sound configuration");
    match twin.load(&[&saved], &[&saved]) {
        Ok(_) => {}
        // A count was at its limit in the loaded state, and has grown since then.
        Err(Error::Core(CoreError::SavedState { found: COUNT_LIMIT..0x8000_0000_0000_1000, .. })) => return,
        Err(error) => panic!("what was just saved is refused: {error}"),
    }
    assert!(twin.save().as_ref() == Ok(&saved), "a state changes by being restored");
}
