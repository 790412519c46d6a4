//! Ends of a pipeline cut that continue from a damaged state.

use super::{Choices, repair};
use crate::pipeline::{Pair, codecs, position_memories, sample_memories};
use lgreco_pipeline::{CutSetting, Link, LinkMemory};
use lgreco_train::gradient::Values;
use std::sync::OnceLock;

const BATCH: u32 = 2;
const FEATURES: u32 = 4;

/// Settings with every codec, and for each codec with every memory that fits it. Each setting comes with its two ends,
/// saved after two steps.
fn stopped() -> &'static [(CutSetting, [Vec<u8>; 2])] {
    static STOPPED: OnceLock<Vec<(CutSetting, [Vec<u8>; 2])>> = OnceLock::new();
    STOPPED.get_or_init(|| {
        let mut memories = vec![LinkMemory::None];
        memories.extend(position_memories());
        memories.extend(sample_memories(3));
        let mut stopped = vec![];
        for codec in codecs(FEATURES) {
            for &memory in &memories {
                let backward = if matches!(memory, LinkMemory::Samples { .. }) { LinkMemory::None } else { memory };
                let mut setting = CutSetting::new(5, BATCH, FEATURES);
                (setting.forward, setting.backward) = (Link { codec, memory }, Link { codec, memory: backward });
                let Ok(mut pair) = Pair::new(setting) else { continue };
                for step in 0..2u32 {
                    let values: Vec<f32> = (0..8).map(|i| ((i * 7 + step * 3) % 11) as f32 - 5.0).collect();
                    let ids = [Some(u64::from(step)), Some(7)];
                    pair.step(&values, &ids).expect("a sound step");
                }
                stopped.push((setting, pair.save().expect("between steps")));
            }
        }
        stopped
    })
}

/// Damages one end or both, and takes two steps. Received values must be finite, and an error must change nothing.
/// Returns the number of round trips that succeed.
pub fn check(choices: &mut Choices<'_>) -> usize {
    let of = choices.below(stopped().len());
    let (setting, mut saved) = stopped()[of].clone();
    for _ in 0..1 + choices.byte() % 3 {
        let end = usize::from(choices.byte() % 2);
        choices.damage_any(&mut saved[end]);
    }
    let saved = saved.map(repair);
    let Ok(mut pair) = Pair::restore(setting, &saved) else { return 0 };
    assert!(pair.save().as_ref() == Ok(&saved), "an end changes by being restored");
    let mut taken = 0;
    for step in 2..4u32 {
        let scale = *choices.of(&[1.0, 0.0, 1e-30, 3e37]);
        let values: Vec<f32> = (0..8).map(|i| (((i * 5 + step) % 11) as f32 - 5.0) * scale).collect();
        let ids = [Some(u64::from(choices.byte() % 4)), Some(7)];
        let Ok((sent, message)) = pair.send(Values::F32(&values), &ids) else { continue };
        if let Ok(values) = pair.deliver(&message) {
            assert!(values.iter().all(|x| x.is_finite()), "activations that are not finite");
            if let Ok(reply) = pair.reply(sent.ticket, Values::F32(&values))
                && let Ok((_, gradients)) = pair.deliver_back(&reply)
            {
                assert!(gradients.iter().all(|x| x.is_finite()), "gradients that are not finite");
                taken += 1;
            }
        }
        let _ = (pair.above.commit_step(), pair.below.commit_step());
    }
    let _ = pair.save();
    taken
}
