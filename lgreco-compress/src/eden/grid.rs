//! Finds the nearest grid point of a value, and the grid point of a code.
//!
//! A grid is symmetric. The top bit of a code is the sign. The other bits are the number of the level, counted from
//! zero outwards. Thresholds lie halfway between levels. A magnitude on a threshold takes the upper level.

use super::levels::*;

/// The positive grid points of 1 to 8 bits, each list in ascending order. Compressors on other devices, such as GPUs,
/// use these lists.
///
/// ```
/// use lgreco_compress::eden::LEVELS;
/// assert_eq!((LEVELS[0], LEVELS[7].len()), (&[0.7978846][..], 128));
/// ```
pub const LEVELS: [&[f32]; 8] =
    [&LEVELS_1, &LEVELS_2, &LEVELS_3, &LEVELS_4, &LEVELS_5, &LEVELS_6, &LEVELS_7, &LEVELS_8];

/// Up to this number of levels, comparing with every threshold is faster than a table.
const FEW: usize = 8;

/// The levels of a grid, and its thresholds.
struct Grid<const N: usize> {
    levels: [f32; N],
    /// Threshold `k` is between levels `k` and `k + 1`. The last entry is infinite.
    thresholds: [f32; N],
    cells: [Cell; CELLS],
}

/// Number of table cells. Cells have equal width and at most one threshold. The last cell also holds all larger
/// magnitudes.
const CELLS: usize = 512;
/// Number of cells per unit of magnitude.
const CELLS_PER_UNIT: f32 = 64.0;
/// Adding this constant to a number from 0 to 511 rounds the number to an integer in the low bits.
const ROUND: f32 = 8_388_608.0;

#[derive(Clone, Copy)]
struct Cell {
    /// Number of thresholds below the cell.
    below: u32,
    /// The next threshold, in or above the cell.
    next: f32,
}

impl<const N: usize> Grid<N> {
    const fn new(levels: [f32; N]) -> Self {
        let mut thresholds = [f32::INFINITY; N];
        let mut k = 0;
        while k + 1 < N {
            thresholds[k] = ((levels[k] as f64 + levels[k + 1] as f64) / 2.0) as f32;
            k += 1;
        }
        let mut cells = [Cell { below: 0, next: f32::INFINITY }; CELLS];
        let (mut c, mut below) = (0, 0);
        while c < CELLS {
            // A magnitude halfway between two cells may be rounded to either.
            let start = (c as f32 - 0.5) / CELLS_PER_UNIT;
            while thresholds[below] < start {
                below += 1;
            }
            cells[c] = Cell { below: below as u32, next: thresholds[below] };
            c += 1;
        }
        Grid { levels, thresholds, cells }
    }

    /// Number and value of the level that is nearest to a magnitude.
    #[inline(always)]
    fn nearest(&self, magnitude: f32) -> (u32, f32) {
        if N <= FEW {
            let (mut index, mut level) = (0, self.levels[0]);
            for k in 1..N {
                let above = magnitude >= self.thresholds[k - 1];
                index += above as u32;
                level = if above { self.levels[k] } else { level };
            }
            (index, level)
        } else {
            let scaled = magnitude * CELLS_PER_UNIT;
            let last = (CELLS - 1) as f32;
            let scaled = if scaled < last { scaled } else { last };
            let cell = self.cells[(scaled + ROUND).to_bits() as usize % CELLS];
            let index = cell.below + (magnitude >= cell.next) as u32;
            (index, self.levels[index as usize % N])
        }
    }

    /// The level with this number.
    #[inline(always)]
    fn level(&self, index: u32) -> f32 {
        if N <= FEW {
            // Each bit of the index selects half of the remaining levels.
            let mut choice = self.levels;
            let (mut left, mut bit) = (N, 1);
            while left > 1 {
                left /= 2;
                for k in 0..left {
                    choice[k] = if index & bit == 0 { choice[2 * k] } else { choice[2 * k + 1] };
                }
                bit *= 2;
            }
            choice[0]
        } else {
            self.levels[index as usize % N]
        }
    }
}

static GRID_1: Grid<1> = Grid::new(LEVELS_1);
static GRID_2: Grid<2> = Grid::new(LEVELS_2);
static GRID_3: Grid<4> = Grid::new(LEVELS_3);
static GRID_4: Grid<8> = Grid::new(LEVELS_4);
static GRID_5: Grid<16> = Grid::new(LEVELS_5);
static GRID_6: Grid<32> = Grid::new(LEVELS_6);
static GRID_7: Grid<64> = Grid::new(LEVELS_7);
static GRID_8: Grid<128> = Grid::new(LEVELS_8);

/// Calls a method of the grid with `$bits` bits.
macro_rules! of_grid {
    ($bits:expr, $method:ident($argument:expr)) => {
        match $bits {
            1 => GRID_1.$method($argument),
            2 => GRID_2.$method($argument),
            3 => GRID_3.$method($argument),
            4 => GRID_4.$method($argument),
            5 => GRID_5.$method($argument),
            6 => GRID_6.$method($argument),
            7 => GRID_7.$method($argument),
            _ => GRID_8.$method($argument),
        }
    };
}

/// Number and value of the level that is nearest to `magnitude`, which is at least 0.
#[inline(always)]
pub(super) fn nearest<const BITS: usize>(magnitude: f32) -> (u32, f32) {
    of_grid!(BITS, nearest(magnitude))
}

/// The grid point of a code of `BITS` bits.
#[inline(always)]
pub(super) fn point<const BITS: usize>(code: u8) -> f32 {
    let (sign, index) = (code as u32 >> (BITS - 1), code as u32 & ((1 << (BITS - 1)) - 1));
    f32::from_bits(of_grid!(BITS, level(index)).to_bits() | sign << 31)
}

/// Upper bound of all levels of all grids.
pub(super) const LARGEST: f32 = 4.7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::with_width;
    use std::f64::consts::PI;
    use std::vec::Vec;

    fn density(x: f64) -> f64 {
        (-x * x / 2.0).exp() / (2.0 * PI).sqrt()
    }

    /// The probability of a value between `a` and `b`, by Simpson's rule. The normal density above 12 is neglected.
    fn probability(a: f64, b: f64) -> f64 {
        let (b, panels) = if b > 12.0 { (12.0, 5000) } else { (b, 100) };
        let step = (b - a) / (2 * panels) as f64;
        let weight = |i: usize| if i == 0 || i == 2 * panels { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
        (0..=2 * panels).map(|i| weight(i) * density(a + i as f64 * step)).sum::<f64>() * step / 3.0
    }

    /// Finds the x for which a value from N(0, 1) lies between 0 and x with the probability `wanted`.
    fn quantile(wanted: f64) -> f64 {
        let (mut low, mut high) = (0.0, 12.0);
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            if probability(0.0, middle) < wanted { low = middle } else { high = middle }
        }
        low
    }

    fn thresholds(levels: &[f64]) -> Vec<f64> {
        let between = levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        [0.0].into_iter().chain(between).chain([f64::INFINITY]).collect()
    }

    /// Computes levels that are the means of their cells, by Newton's method with a tridiagonal matrix.
    fn derived(n: usize) -> Vec<f64> {
        // In a fine grid, the density of levels is proportional to the cube root of the values' density. So for values
        // from N(0, 1), levels have the density of N(0, 3).
        let mut levels: Vec<f64> = (0..n).map(|k| 3f64.sqrt() * quantile((k as f64 + 0.5) / (2 * n) as f64)).collect();
        for _ in 0..20 {
            let ends = thresholds(&levels);
            let (mut diagonal, mut upper, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
            for k in 0..n {
                let (a, b) = (ends[k], ends[k + 1]);
                let within = probability(a, b);
                let mean = (density(a) - density(b)) / within;
                let with_a = if k == 0 { 0.0 } else { density(a) * (mean - a) / within / 2.0 };
                let with_b = if k + 1 == n { 0.0 } else { density(b) * (b - mean) / within / 2.0 };
                let factor = if k == 0 { 0.0 } else { -with_a / diagonal[k - 1] };
                let above = if k == 0 { (0.0, 0.0) } else { (upper[k - 1], wrong[k - 1]) };
                diagonal.push(1.0 - with_a - with_b - factor * above.0);
                upper.push(-with_b);
                wrong.push(levels[k] - mean - factor * above.1);
            }
            let mut step = 0.0;
            for k in (0..n).rev() {
                step = (wrong[k] - upper[k] * step) / diagonal[k];
                levels[k] -= step;
            }
        }
        levels
    }

    fn levels_of<const BITS: usize>() -> Vec<f64> {
        (0..1u8 << (BITS - 1)).map(|index| point::<BITS>(index).into()).collect()
    }

    fn check_levels<const BITS: usize>(relative_error: f64) {
        let (levels, expected) = (levels_of::<BITS>(), derived(1 << (BITS - 1)));
        for (level, expected) in levels.iter().zip(&expected) {
            assert!((level - expected).abs() < 1e-6, "{BITS} bits: {level}, {expected}");
        }
        assert!(levels.iter().all(|&level| level < LARGEST.into()));
        let ends = thresholds(&levels);
        let cells = levels.iter().zip(ends.windows(2));
        let kept: f64 = cells.map(|(q, ends)| 2.0 * q * q * probability(ends[0], ends[1])).sum();
        assert!((1.0 - kept - relative_error).abs() < 1e-3 * relative_error, "{BITS} bits: {}", 1.0 - kept);
    }

    #[test]
    fn levels_are_those_of_lloyd_and_max() {
        check_levels::<1>(0.3634);
        check_levels::<2>(0.1175);
        check_levels::<3>(0.03454);
        check_levels::<4>(0.009497);
        check_levels::<5>(0.002505);
        check_levels::<6>(0.0006442);
        check_levels::<7>(0.0001635);
        check_levels::<8>(0.00004119);
    }

    fn check_nearest<const BITS: usize>() {
        let levels = levels_of::<BITS>();
        let ends: Vec<f32> = thresholds(&levels).iter().map(|&x| x as f32).collect();
        let around = ends[..ends.len() - 1].iter().flat_map(|&x| [x.next_down().max(0.0), x, x.next_up()]);
        let cells = (0..2 * CELLS).map(|i| i as f32 / (2.0 * CELLS_PER_UNIT));
        let cells = cells.flat_map(|x| [x.next_down().max(0.0), x, x.next_up()]);
        for magnitude in around.chain(cells).chain([0.0, 1e-40, 63.9, 1e9]) {
            let (index, level) = nearest::<BITS>(magnitude);
            let expected = ends[1..].iter().filter(|&&end| magnitude >= end).count();
            assert_eq!(index as usize, expected, "{BITS} bits, {magnitude}");
            assert_eq!(level as f64, levels[expected]);
        }
        for index in 0..1u8 << (BITS - 1) {
            assert_eq!(point::<BITS>(index | 1 << (BITS - 1)), -point::<BITS>(index));
        }
    }

    #[test]
    fn the_nearest_level_is_found() {
        for bits in 1..=8 {
            with_width!(bits, check_nearest());
        }
    }

    /// A cell with two thresholds would need a second comparison.
    #[test]
    fn a_cell_has_at_most_one_threshold() {
        let spacing = |levels: &[f32]| levels.windows(2).map(|pair| pair[1] - pair[0]).fold(f32::INFINITY, f32::min);
        for levels in [&LEVELS_5[..], &LEVELS_6, &LEVELS_7, &LEVELS_8] {
            assert!(spacing(levels) > 1.0 / CELLS_PER_UNIT);
        }
    }
}
