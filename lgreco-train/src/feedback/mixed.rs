//! EF-mixed: which entries are sent.

use super::Memory;
use crate::Error;
use crate::gradient::{Element, Gradient, with_elements};
use crate::select::{kth_largest_magnitude, magnitude_bits};

/// Zeroes in `compensated` (`m + g`) what is not among the `keep` entries that EF-mixed sends.
///
/// The workspace is half a word per element, and that of a selection.
pub(super) fn restrict<W: AsRef<[u64]> + AsMut<[u64]>>(
    memory: &Memory<W>,
    keep: u32,
    gradient: &Gradient<'_>,
    workspace: &mut [u64],
    compensated: &mut [f32],
) -> Result<(), Error> {
    let (remembered, workspace) = workspace.split_at_mut(compensated.len().div_ceil(2));
    let remembered = &mut bytemuck::cast_slice_mut::<u64, f32>(remembered)[..compensated.len()];
    memory.values(remembered)?;
    with_elements!(gradient.values(), g => restrict_values(keep, g, remembered, workspace, compensated))
}

/// Zeroes in `compensated` what is not among ⌈keep/2⌉ entries by abs g, ⌊keep/2⌋ by abs m (`remembered`, which is
/// overwritten), and for each entry that is among both, the largest of the others. The workspace is that of a selection.
pub(crate) fn restrict_values<T: Element>(
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

/// Marks a chosen entry among the values of the others, which `+ 0.0` keeps from being −0.
const CHOSEN: f32 = -0.0;

/// The `k` largest magnitudes of a sequence, asked about element by element.
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
