//! Faults that tests plant in shaders, and must find. A driver on the processor takes seconds for each, so a run plants some of them.

use crate::kernels::Shader;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Every third of the faults, and at least one if there is any; which is the first depends on the shaders' sources. All of them with
/// `LGRECO_FAULTS=all` in the environment.
pub(super) fn planted<T>(faults: impl IntoIterator<Item = T>) -> Vec<T> {
    let faults = faults.into_iter().collect();
    if std::env::var("LGRECO_FAULTS").is_ok_and(|which| which == "all") {
        return faults;
    }
    let mut hasher = DefaultHasher::new();
    Shader::ALL.iter().for_each(|shader| shader.source(false).hash(&mut hasher));
    every_third(faults, hasher.finish())
}

fn every_third<T>(faults: Vec<T>, seed: u64) -> Vec<T> {
    let first = seed % faults.len().clamp(1, 3) as u64;
    faults.into_iter().skip(first as usize).step_by(3).collect()
}

#[test]
fn three_seeds_in_a_row_leave_no_fault_out_and_every_seed_plants_one() {
    for len in 0..10 {
        for seed in [0, 7, u64::MAX - 2] {
            let parts = [0, 1, 2].map(|next| every_third((0..len).collect(), seed + next));
            assert!(len == 0 || parts.iter().all(|part| !part.is_empty()), "{len} faults, seed {seed}");
            let mut all = parts.concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all, (0..len).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
