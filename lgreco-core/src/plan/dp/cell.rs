//! The inner loop of the DP. Each cell holds one number, and is relaxed by one addition and one minimum.

use super::grid::Kept;
use crate::num::Wide;

/// Cells of one block. A block stays in the first-level cache while all options of a layer are applied to it.
pub(super) const LANES: usize = 256;

/// Number of options that one pass over a block relaxes.
const GROUP: usize = 4;

/// The number format of a cell. The value of a cell is `objective · 2^k + option`, so that comparing numbers also
/// compares options.
pub(super) trait Cell: bytemuck::Pod {
    /// A cell value larger than the value of any plan.
    const UNREACHABLE: Self;
    /// The value of cell 0 before the first layer.
    const ZERO: Self;

    fn option(objective: u64, option: usize, index_bits: u32) -> Self;

    /// The smaller of `self` and `previous + option`.
    fn relax(self, previous: Self, option: Self) -> Self;

    fn less(self, other: Self) -> bool;

    /// Splits the number into the objective (the number with option 0) and the option.
    fn split(self, mask: u64) -> (Self, u64);
}

/// Arithmetic on f64 cells is exact while all numbers are below 2^52.
impl Cell for f64 {
    const UNREACHABLE: f64 = f64::INFINITY;
    const ZERO: f64 = 0.0;

    fn option(objective: u64, option: usize, index_bits: u32) -> f64 {
        ((objective << index_bits) + option as u64) as f64
    }

    #[inline(always)]
    fn relax(self, previous: f64, option: f64) -> f64 {
        let candidate = previous + option;
        if candidate < self { candidate } else { self }
    }

    #[inline(always)]
    fn less(self, other: f64) -> bool {
        self < other
    }

    #[inline(always)]
    fn split(self, mask: u64) -> (f64, u64) {
        // Adding 2^52 puts the integer into the mantissa. The mantissa of infinity is 0.
        const MAGIC: f64 = (1u64 << 52) as f64;
        let bits = (self + MAGIC).to_bits();
        (f64::from_bits(bits & !mask) - MAGIC, bits & mask)
    }
}

impl Cell for Wide {
    const UNREACHABLE: Wide = Wide::new(1 << 127);
    const ZERO: Wide = Wide::new(0);

    fn option(objective: u64, option: usize, index_bits: u32) -> Wide {
        Wide::new((u128::from(objective) << index_bits) + option as u128)
    }

    #[inline(always)]
    fn relax(self, previous: Wide, option: Wide) -> Wide {
        let candidate = Wide::new(previous.value() + option.value());
        if candidate.less(self) { candidate } else { self }
    }

    #[inline(always)]
    fn less(self, other: Wide) -> bool {
        self.value() < other.value()
    }

    #[inline(always)]
    fn split(self, mask: u64) -> (Wide, u64) {
        (Wide::new(self.value() & !u128::from(mask)), self.value() as u64 & mask)
    }
}

/// An entry of the trace: the index of the chosen option among the layer's kept options.
pub(super) trait Trace: bytemuck::Pod {
    fn new(option: u64) -> Self;
    fn index(self) -> usize;
}

macro_rules! trace {
    ($($int:ty),*) => {$(
        impl Trace for $int {
            #[inline(always)]
            fn new(option: u64) -> Self {
                option as $int
            }
            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}
trace!(u8, u16, u32);

#[inline(always)]
fn relax_group<C: Cell>(best: &mut [C; LANES], previous: &[C], starts: [usize; GROUP], keys: [C; GROUP]) {
    let window = |start: usize| -> &[C; LANES] { previous[start..].first_chunk().expect("rows are padded") };
    let [a, b, c, d] = starts.map(window);
    for (lane, best) in best.iter_mut().enumerate() {
        let first = best.relax(a[lane], keys[0]).relax(b[lane], keys[1]);
        *best = first.relax(c[lane], keys[2]).relax(d[lane], keys[3]);
    }
}

/// Fills all rows and the trace. [`run`](Fill::run) returns the cell of the best plan.
pub(super) struct Fill<'a, C, T> {
    pub kept: &'a [Kept],
    pub ends: &'a [u64],
    /// Largest number of cells that a plan may use.
    pub cells: u32,
    pub index_bits: u32,
    /// Two rows of `stride` cells each, with [`LANES`] cells of padding on either side.
    pub rows: [&'a mut [C]; 2],
    /// The trace: `stride` entries per layer.
    pub trace: &'a mut [T],
}

impl<C: Cell, T: Trace> Fill<'_, C, T> {
    #[inline(always)]
    pub(super) fn run(self) -> usize {
        let Fill { kept, ends, cells, index_bits, rows: [mut previous, mut next], trace } = self;
        let stride = previous.len() - 2 * LANES;
        let mask = (1u64 << index_bits) - 1;
        let cells = cells as usize;
        previous[..3 * LANES].fill(C::UNREACHABLE);
        previous[LANES] = C::ZERO;
        next[..LANES].fill(C::UNREACHABLE);
        // `reach`: largest number of cells that the layers so far can use. `filled`: number of cells in all blocks up
        // to the one that contains cell `reach`.
        let (mut reach, mut filled, mut start) = (0, LANES, 0);
        for (&end, trace) in ends.iter().zip(trace.chunks_exact_mut(stride)) {
            let options = &kept[start..end as usize];
            start = end as usize;
            let widest = options.iter().map(|option| option.cells as usize).max().unwrap_or(0);
            reach = cells.min(reach + widest);
            let fill = (reach / LANES + 1) * LANES;
            for base in (0..fill).step_by(LANES) {
                let mut best = [C::UNREACHABLE; LANES];
                for (group, options) in options.chunks(GROUP).enumerate() {
                    // An option that reaches no cell of this block reads the padding left of the row.
                    let (mut starts, mut keys) = ([0; GROUP], [C::ZERO; GROUP]);
                    for (place, option) in options.iter().enumerate() {
                        let shift = option.cells as usize;
                        if shift < base + LANES && base < filled + shift {
                            starts[place] = base + LANES - shift;
                            keys[place] = C::option(option.objective, group * GROUP + place, index_bits);
                        }
                    }
                    if starts != [0; GROUP] {
                        relax_group(&mut best, previous, starts, keys);
                    }
                }
                let row: &mut [C; LANES] = next[base + LANES..].first_chunk_mut().expect("rows are padded");
                let trace: &mut [T; LANES] = trace[base..].first_chunk_mut().expect("traces are whole blocks");
                for lane in 0..LANES {
                    let (value, option) = best[lane].split(mask);
                    row[lane] = value;
                    trace[lane] = T::new(option);
                }
            }
            filled = fill;
            next[LANES + filled..][..LANES].fill(C::UNREACHABLE);
            core::mem::swap(&mut previous, &mut next);
        }
        let row = &previous[LANES..][..=reach];
        (1..=reach).fold(0, |best, cell| if row[cell].less(row[best]) { cell } else { best })
    }
}
