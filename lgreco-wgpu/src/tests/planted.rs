//! Faults that tests plant in shaders, and must find. A driver on the CPU takes seconds for each, so a run plants some of them.

use crate::kernels::Shader;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Faults of which a run plants one.
const PART: usize = 8;

/// Whether everything is run: `tests/run --full` sets `LGRECO_FULL`.
pub(super) fn is_full() -> bool {
    std::env::var_os("LGRECO_FULL").is_some()
}

/// All faults in a full run. Else every eighth, and at least one. A hash of the shaders' sources picks the first, so every change of a
/// shader plants others.
pub(super) fn planted<T>(faults: impl IntoIterator<Item = T>) -> Vec<T> {
    let faults = faults.into_iter().collect();
    if is_full() {
        return faults;
    }
    let mut hasher = DefaultHasher::new();
    Shader::ALL.iter().for_each(|shader| shader.source(false).hash(&mut hasher));
    part_of(faults, hasher.finish())
}

fn part_of<T>(faults: Vec<T>, seed: u64) -> Vec<T> {
    let first = seed % faults.len().clamp(1, PART) as u64;
    faults.into_iter().skip(first as usize).step_by(PART).collect()
}

#[test]
fn eight_seeds_in_a_row_leave_no_fault_out_and_every_seed_plants_one() {
    for len in 0..20 {
        for seed in [0, 7, u64::MAX - 7] {
            let parts: Vec<Vec<usize>> =
                (0..PART as u64).map(|next| part_of((0..len).collect(), seed + next)).collect();
            assert!(len == 0 || parts.iter().all(|part| !part.is_empty()), "{len} faults, seed {seed}");
            let mut all = parts.concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all, (0..len).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
