//! Controllers that continue training from a damaged state.

use super::runs::{Gradients, check_saves, configs, model};
use super::{Choices, repair};
use lgreco_train::controller::{Config, Controller};
use lgreco_train::exchange::Route;
use lgreco_train::exchange::threads::{self, ThreadCollective};
use std::sync::OnceLock;

/// A stopped run.
struct Stopped {
    config: Config,
    /// Saved states by rank.
    saved: Vec<Vec<u8>>,
}

/// Steps before a run is stopped: two of warm-up, a decision, and a step under its plan.
const STEPS: u32 = 4;

fn stopped() -> &'static [Stopped] {
    static STOPPED: OnceLock<Vec<Stopped>> = OnceLock::new();
    STOPPED.get_or_init(|| {
        // With shards, ranks get different means, and an overflow in a shard is an error only on the shard's rank. So
        // configurations with shards are left out.
        let whole = configs().into_iter().filter(|config| config.route != Route::Sharded);
        let runs = whole.flat_map(|config| [1, 2].map(|world| (config.clone(), world)));
        runs.map(|(config, world)| {
            let saved = threads::run(world, |mut worker| {
                let mut controller = Controller::new(
                    config.clone(),
                    model(&config, worker.world_size()),
                    worker.rank(),
                    worker.world_size(),
                )
                .expect("a sound configuration");
                for step in 0..STEPS {
                    let mut gradients = Gradients::new(worker.rank(), step, 1.0);
                    gradients.step(&mut controller, &mut worker).expect("a sound step");
                }
                controller.save().expect("nothing has failed")
            });
            Stopped { config, saved }
        })
        .collect()
    })
}

/// The result of a step: the bits of the means, or `None` on an error.
type Taken = Option<Vec<u32>>;

/// Damages the states of a stopped run, either of one rank or of all ranks in the same way, and takes two or three
/// steps. Returns the number of steps that succeed.
pub fn check(choices: &mut Choices<'_>) -> usize {
    let Stopped { config, saved } = choices.of(stopped());
    let mut saved = saved.clone();
    let (alike, of) = (choices.byte() % 2 == 1, choices.below(saved.len()));
    for _ in 0..1 + choices.byte() % 4 {
        choices.damage_any(&mut saved[of]);
    }
    saved[of] = repair(core::mem::take(&mut saved[of]));
    if alike {
        let damaged = saved[of].clone();
        saved.fill(damaged);
    }
    let scales: Vec<f32> = (0..2 + choices.byte() % 2).map(|_| *choices.of(&[1.0, 0.0, 1e-30, 1e30, 3e38])).collect();
    let rank = |mut worker: ThreadCollective| go_on(config, &saved[worker.rank() as usize], &scales, &mut worker);
    let taken = match ThreadCollective::group(saved.len() as u32).pop() {
        Some(alone) if saved.len() == 1 => [rank(alone)].into(),
        _ => threads::run(saved.len() as u32, rank),
    };
    taken.iter().for_each(|other| assert!(*other == taken[0], "ranks differ: {taken:?}"));
    taken[0].iter().flatten().count()
}

fn go_on(config: &Config, saved: &[u8], scales: &[f32], worker: &mut ThreadCollective) -> Vec<Taken> {
    let mut controller =
        Controller::new(config.clone(), model(config, worker.world_size()), worker.rank(), worker.world_size())
            .expect("a sound configuration");
    if controller.load(&[saved], &[saved]).is_err() {
        let fresh =
            Controller::new(config.clone(), model(config, worker.world_size()), worker.rank(), worker.world_size())
                .expect("a sound configuration");
        assert!(fresh.save() == controller.save(), "a refusal changed the controller");
        if worker.world_size() == 1 {
            return [].into();
        }
    }
    let steps = (STEPS..).zip(scales).map(|(step, &scale)| {
        let mut gradients = Gradients::new(worker.rank(), step, scale);
        let result = gradients.step(&mut controller, worker);
        result.ok().map(|_| gradients.bits())
    });
    let steps = steps.collect();
    check_saves(&controller, config, worker);
    steps
}
