//! Error-feedback memories that continue from a damaged state.

use super::{Choices, repair};
use crate::controller::SETTINGS;
use crate::feedback::{Worker, gradient, rules};
use lgreco_train::compress::Setting;
use lgreco_train::feedback::{Residual, SavedState};
use lgreco_train::gradient::Shape;
use lgreco_train::rng::Stream;

/// Pairs of a rule and a setting.
fn pairs() -> impl Iterator<Item = (Residual, Setting)> {
    SETTINGS.into_iter().flat_map(|setting| rules().into_iter().map(move |rule| (rule, setting)))
}

fn shape() -> Shape {
    Shape::new(6, 4).expect("a small matrix")
}

fn values(step: u32, scale: f32) -> Vec<f32> {
    let stream = Stream { seed: 5, step, ..Stream::default() };
    (0..24).map(|i| ((stream.word(i) >> 20) as f32 / 2048.0 - 1.0) * scale).collect()
}

/// Takes two steps, damages the saved memory, and takes three more. Delivered values must be finite, and an error must
/// change nothing. The memory must save to the bytes that it was restored from. Returns the number of steps that
/// succeed.
pub fn check(choices: &mut Choices<'_>) -> usize {
    let of = choices.below(pairs().count());
    let Some((rule, setting)) = pairs().nth(of) else { return 0 };
    let Ok(mut worker) = Worker::new(rule, setting, shape(), Stream::default()) else { return 0 };
    for step in 0..2 {
        let _ = worker.step(&gradient(&values(step, 1.0), shape()));
    }
    let mut saved = worker.save();
    for _ in 0..1 + choices.byte() % 3 {
        choices.damage_any(&mut saved);
    }
    let saved = repair(saved);
    let Ok(state) = SavedState::parse(&saved) else { return 0 };
    let words = vec![!0; state.residual().state_len(state.shape())];
    let memory = state.restore(words).expect("checked bytes");
    let setting = if choices.byte() % 4 == 3 { *choices.of(&SETTINGS) } else { setting };
    let mut worker = Worker { memory, setting, stream: Stream::default() };
    assert_eq!(worker.save(), saved);
    let mut taken = 0;
    for step in 2..5 {
        let scale = *choices.of(&[1.0, 0.0, 1e-30, 3e38]);
        let values: Vec<f32> = values(step, scale).into_iter().cycle().take(state.shape().elements()).collect();
        if let Ok(sent) = worker.step(&gradient(&values, state.shape())) {
            assert!(sent.decoded.iter().all(|x| x.is_finite()), "{rule:?}, {setting}: not finite is sent as good");
            taken += 1;
        }
        assert!(worker.values().iter().all(|x| x.is_finite()), "{rule:?}, {setting}: not finite is remembered");
    }
    taken
}
