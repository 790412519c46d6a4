//! EF-mixed, a variant of error feedback: chooses the entries of each sample that are sent.
//!
//! This definition is ours: of the paper that names the method (arXiv 2401.07788), the definition was not available.

use crate::Error;
use crate::gradient::Element;
use lgreco::compress::select::{kth_largest_magnitude, magnitude_bits};

/// Sets all entries of `compensated` (`m + g`) to zero, except `keep` chosen ones. The function chooses the ⌈keep/2⌉
/// entries with the largest abs g and the ⌊keep/2⌋ entries with the largest abs m. If these two sets share entries, the
/// function fills up to `keep` entries with the largest abs (m + g) among the remaining entries. `remembered` holds m
/// and is overwritten. `workspace` has the length that a selection needs.
pub(super) fn restrict<T: Element>(
    keep: u32,
    gradient: &[T],
    remembered: &mut [f32],
    workspace: &mut [u64],
    compensated: &mut [f32],
) -> Result<(), Error> {
    let others = remembered;
    let mut chosen = 0;
    let mut by_memory = Top::new(others, keep / 2, workspace)?;
    let mut by_gradient = Top::new(gradient, keep.div_ceil(2), workspace)?;
    for ((other, &p), &g) in others.iter_mut().zip(compensated.iter()).zip(gradient) {
        let either = by_memory.takes(*other) | by_gradient.takes(g);
        chosen += either as u32;
        *other = if either { CHOSEN } else { p + 0.0 };
    }
    let mut refill = Top::new(others, keep - chosen, workspace)?;
    for (p, &other) in compensated.iter_mut().zip(&*others) {
        let refilled = refill.takes(other);
        if !refilled && other.to_bits() != CHOSEN.to_bits() {
            *p = 0.0;
        }
    }
    Ok(())
}

/// Marks chosen entries in the memory. The mark is unique: 0.0 is added to the values of all other entries, so none of
/// these values is −0.
const CHOSEN: f32 = -0.0;

/// Tests for each element of a sequence, in order, whether the element is one of the `k` largest magnitudes. Of equal
/// magnitudes, the first ones are taken.
struct Top {
    magnitude: u32,
    ties: u32,
}

impl Top {
    fn new<T: Element>(values: &[T], k: u32, workspace: &mut [u64]) -> Result<Top, Error> {
        if k == 0 {
            return Ok(Top { magnitude: u32::MAX, ties: 0 });
        }
        let cut = kth_largest_magnitude(values, k, workspace)?;
        Ok(Top { magnitude: cut.magnitude, ties: cut.ties })
    }

    fn takes<T: Element>(&mut self, x: T) -> bool {
        let bits = magnitude_bits(x);
        let tied = bits == self.magnitude && self.ties > 0;
        self.ties -= tied as u32;
        bits > self.magnitude || tied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lgreco::compress::select::workspace_len;
    use lgreco_testing::topk::order;
    use std::{vec, vec::Vec};

    /// The entries that EF-mixed chooses, computed by full sorts.
    fn support(g: &[f32], m: &[f32], keep: usize) -> Vec<usize> {
        let p: Vec<f32> = g.iter().zip(m).map(|(g, m)| g + m).collect();
        let mut support: Vec<usize> = order(g)[..keep.div_ceil(2)].to_vec();
        support.extend(&order(m)[..keep / 2]);
        support.sort();
        support.dedup();
        let mut others = order(&p);
        others.retain(|i| !support.contains(i));
        others.truncate(keep - support.len());
        support.extend(others);
        support
    }

    /// Compares `restrict` with `support` over several steps. After each step, the memory is the compression error.
    fn check(gradients: &[Vec<f32>], keep: u32) {
        let n = gradients[0].len();
        let mut memory = vec![0.0; n];
        for g in gradients {
            let expected = support(g, &memory, keep as usize);
            let whole: Vec<f32> = g.iter().zip(&memory).map(|(g, m)| g + m).collect();
            let (mut sent, mut remembered) = (whole.clone(), memory.clone());
            restrict(keep, g, &mut remembered, &mut vec![!0; workspace_len(n)], &mut sent).unwrap();
            for (i, &sent) in sent.iter().enumerate() {
                assert_eq!(sent, if expected.contains(&i) { whole[i] } else { 0.0 }, "element {i} of {expected:?}");
                memory[i] = whole[i] - sent;
            }
        }
    }

    #[test]
    fn half_by_gradient_and_half_by_memory() {
        let noise = |step: u32| {
            let stream = crate::rng::Stream { seed: 3, step, ..Default::default() };
            (0..2000).map(|i| ((stream.word(i) >> 8) as f32 / 8_388_608.0 - 1.0).powi(3)).collect()
        };
        let gradients: Vec<Vec<f32>> = (0..12).map(noise).collect();
        for keep in [1, 2, 7, 100, 2000] {
            check(&gradients, keep);
        }
    }

    #[test]
    fn ties() {
        let stream = crate::rng::Stream { seed: 5, ..Default::default() };
        for keep in 1..=30u32 {
            let level = |i: u64| (stream.word(u64::from(keep) << 32 | i) % 7) as f32 - 3.0;
            let gradients: Vec<Vec<f32>> =
                (0..u64::from(1 + keep % 5)).map(|step| (0..30).map(|i| level(30 * step + i)).collect()).collect();
            check(&gradients, keep);
        }
    }
}
