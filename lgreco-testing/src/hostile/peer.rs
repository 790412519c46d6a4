//! A worker whose peers may send anything. The worker receives damaged copies of the messages of a run without damage.

use super::Choices;
use super::runs::{Gradients, check_saves, configs, model};
use core::ops::Range;
use lgreco_train::Error;
use lgreco_train::controller::{Config, Controller};
use lgreco_train::exchange::threads::{self, ThreadCollective};
use lgreco_train::exchange::{Collective, CollectiveError};
use lgreco_train::gradient::{Bf16, Element};
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Reduce,
    Gather,
    Broadcast,
    AllToAll,
}

/// A collective, and the bytes it returned.
type Heard = (Call, Vec<u8>);

/// A step of a run without damage, as seen by one rank.
struct Step {
    /// The saved controller before the step.
    saved: Vec<u8>,
    heard: Vec<Heard>,
    /// Bits of the means.
    means: Vec<u32>,
}

/// A run without damage, as seen by one rank.
struct Run {
    config: Config,
    rank: u32,
    world: u32,
    steps: Vec<Step>,
}

/// Steps of a run: warm-up, a decision, two steps under its plan, and another decision.
const STEPS: u32 = 5;

/// Runs of two and three workers, as seen by each rank. The measuring rank is the first or the last rank.
fn runs() -> &'static [Run] {
    static RUNS: OnceLock<Vec<Run>> = OnceLock::new();
    RUNS.get_or_init(|| {
        let runs = configs().into_iter().enumerate().map(|(index, mut config)| {
            let world = 2 + (index / 4) as u32 % 2;
            config.measuring_rank = [0, world - 1][index % 2];
            let seen = threads::run(world, |worker| record(&config, worker));
            seen.into_iter().enumerate().map(move |(rank, steps)| {
                let config = config.clone();
                Run { config, rank: rank as u32, world, steps }
            })
        });
        runs.flatten().collect()
    })
}

fn record(config: &Config, worker: ThreadCollective) -> Vec<Step> {
    let mut controller =
        Controller::new(config.clone(), model(config, worker.world_size()), worker.rank(), worker.world_size())
            .expect("a sound configuration");
    let mut recorder = Recorder { inner: worker, heard: vec![] };
    let step = |step| {
        let saved = controller.save().expect("nothing has failed");
        let mut gradients = Gradients::new(recorder.rank(), step, 1.0);
        gradients.step(&mut controller, &mut recorder).expect("a sound step");
        Step { saved, heard: core::mem::take(&mut recorder.heard), means: gradients.bits() }
    };
    (0..STEPS).map(step).collect()
}

/// Records the results of another collective.
struct Recorder {
    inner: ThreadCollective,
    heard: Vec<Heard>,
}

impl Collective for Recorder {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn world_size(&self) -> u32 {
        self.inner.world_size()
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.inner.all_reduce_sum(values)?;
        self.heard.push((Call::Reduce, bytemuck::cast_slice(values).to_vec()));
        Ok(())
    }

    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.inner.all_reduce_sum_bf16(values)?;
        self.heard.push((Call::Reduce, bytemuck::cast_slice(values).to_vec()));
        Ok(())
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.inner.all_gather(buffer)?;
        self.heard.push((Call::Gather, buffer.to_vec()));
        Ok(())
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.inner.all_gather_each(lens, buffer)?;
        self.heard.push((Call::Gather, buffer.to_vec()));
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.inner.broadcast(root, bytes)?;
        self.heard.push((Call::Broadcast, bytes.to_vec()));
        Ok(())
    }

    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        self.inner.all_to_all(send, send_lens, received, received_lens)?;
        self.heard.push((Call::AllToAll, received.to_vec()));
        Ok(())
    }
}

/// Replays the messages that a rank received, with damage that the choices select. After a call that differs from the
/// recorded call, the peers send the same as this rank.
struct Peers<'a, 'b> {
    rank: u32,
    world: u32,
    heard: core::slice::Iter<'a, Heard>,
    choices: &'a mut Choices<'b>,
}

impl Peers<'_, '_> {
    /// Fills `bytes` with the recorded reply, if the call matches the recorded call. Then the choices may damage
    /// `bytes`, but not the range `own`, which belongs to this rank.
    fn hear(&mut self, call: Call, bytes: &mut [u8], own: Range<usize>) {
        let kept = bytes[own.clone()].to_vec();
        match self.heard.next() {
            Some((heard, told)) if *heard == call && told.len() == bytes.len() => bytes.copy_from_slice(told),
            _ => self.heard = [].iter(),
        }
        let kind = self.choices.byte();
        if kind % 4 == 3 {
            (0..1 + kind / 64).for_each(|_| self.choices.damage(bytes));
        }
        bytes[own].copy_from_slice(&kept);
    }

    fn reduce<T: Element>(&mut self, values: &mut [T]) -> Result<(), CollectiveError> {
        let world = self.world as f32;
        values.iter_mut().for_each(|value| *value = T::from_f32(value.to_f32() * world));
        let failed = values.iter().position(|value| value.to_f32().is_nan());
        self.hear(Call::Reduce, bytemuck::cast_slice_mut(values), 0..0);
        // The sum stays NaN where this rank's own value is NaN.
        failed.into_iter().for_each(|index| values[index] = T::from_f32(f32::NAN));
        Ok(())
    }
}

impl Collective for Peers<'_, '_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.reduce(values)
    }

    fn all_reduce_sum_bf16(&mut self, values: &mut [Bf16]) -> Result<(), CollectiveError> {
        self.reduce(values)
    }

    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let lens = vec![buffer.len() as u64 / u64::from(self.world); self.world as usize];
        self.all_gather_each(&lens, buffer)
    }

    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let start = |rank: usize| lens[..rank].iter().sum::<u64>() as usize;
        assert_eq!(start(lens.len()), buffer.len(), "room for other lengths than announced");
        let kept = start(self.rank as usize)..start(self.rank as usize + 1);
        let own = buffer[kept.clone()].to_vec();
        for rank in 0..lens.len() {
            let part = &mut buffer[start(rank)..start(rank + 1)];
            part.iter_mut().zip(own.iter().cycle()).for_each(|(to, &byte)| *to = byte);
        }
        self.hear(Call::Gather, buffer, kept);
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let own = if root == self.rank { 0..bytes.len() } else { 0..0 };
        self.hear(Call::Broadcast, bytes, own);
        Ok(())
    }

    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        let sum = |lens: &[u64]| lens.iter().sum::<u64>() as usize;
        assert_eq!((sum(send_lens), sum(received_lens)), (send.len(), received.len()));
        // Fills `received` with copies of this rank's message to itself. If messages have different lengths, a peer's
        // message may begin in the middle of a copy.
        let before = sum(&send_lens[..self.rank as usize]);
        let own = &send[before..][..send_lens[self.rank as usize] as usize];
        received.iter_mut().zip(own.iter().cycle()).for_each(|(to, &byte)| *to = byte);
        self.hear(Call::AllToAll, received, 0..0);
        Ok(())
    }
}

/// The code of [`Error::NonFiniteGradient`].
const NON_FINITE_GRADIENT: u32 = 101;

/// Results of the two steps under attack.
pub type Given = [Result<(), Error>; 2];

/// Takes two steps of a worker whose peers send damaged messages, and returns the results of these steps.
pub fn check(mut choices: Choices<'_>) -> Given {
    let run = &runs()[choices.below(runs().len())];
    let first = usize::from(choices.byte()) % run.steps.len();
    let Run { config, rank, world, steps } = run;
    let mut peers = Peers { rank: *rank, world: *world, heard: [].iter(), choices: &mut choices };
    let mut controller = Controller::new(config.clone(), model(config, *world), peers.rank(), peers.world_size())
        .expect("a sound configuration");
    let load = |controller: &mut Controller, saved: &[u8]| controller.load(&[saved], &[saved]).map(drop);
    load(&mut controller, &steps[first].saved).expect("a sound state");

    let mut given = [Ok(()); 2];
    // Takes two steps under attack, and a third step in which the peers agree with this rank.
    for step in 0..3 {
        if let Some(sound) = steps.get(first + step) {
            peers.heard = sound.heard.iter();
        }
        if step == 2 {
            (peers.heard, *peers.choices) = ([].iter(), Choices::new(&[]));
        }
        let mut gradients = Gradients::new(*rank, (first + step) as u32, 1.0);
        let (before, taken) = (controller.save(), controller.steps());
        let result = gradients.step(&mut controller, &mut peers);
        if let Some(given) = given.get_mut(step) {
            *given = result.as_ref().map(drop).map_err(|error| *error);
        }
        match result {
            Ok(_) => drop(gradients.bits()),
            Err(Error::NonFiniteGradient { .. } | Error::Peer { code: NON_FINITE_GRADIENT, .. }) => {}
            Err(error) if controller.steps() == taken && before.is_ok() => {
                assert!(controller.save() == before, "a step that may be repeated has changed something: {error}");
            }
            Err(_) => {}
        }
    }
    check_saves(&controller, config, &peers);
    // The choices are used up, so nothing more is damaged.
    let sound = &steps[first];
    load(&mut controller, &sound.saved).expect("a sound state");
    peers.heard = sound.heard.iter();
    let mut gradients = Gradients::new(*rank, first as u32, 1.0);
    gradients.step(&mut controller, &mut peers).expect("a sound step");
    assert!(gradients.bits() == sound.means, "a sound step from a sound state gives other means");
    given
}
