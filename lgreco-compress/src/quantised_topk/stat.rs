//! Computes the error of replacing numbers by their mean, for any run of sorted magnitudes.

/// Statistics of a set of numbers: count, mean, and sum of squared distances from the mean.
#[derive(Clone, Copy, Default)]
pub(super) struct Stat {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Stat {
    /// Statistics of magnitudes given by their bits.
    fn of(magnitudes: &[u32]) -> Stat {
        let values = magnitudes.iter().map(|&bits| f32::from_bits(bits) as f64);
        let count = magnitudes.len() as f64;
        let mean = values.clone().sum::<f64>() / count.max(1.0);
        Stat { count, mean, squares: values.map(|x| (x - mean) * (x - mean)).sum() }
    }

    /// Statistics of both sets together (Chan, Golub and LeVeque, 1979).
    pub(super) fn merged(self, other: Stat) -> Stat {
        if self.count == 0.0 || other.count == 0.0 {
            return if self.count == 0.0 { other } else { self };
        }
        let (count, apart) = (self.count + other.count, other.mean - self.mean);
        let share = other.count / count;
        let squares = self.squares + other.squares + apart * apart * self.count * share;
        Stat { count, mean: self.mean + apart * share, squares }
    }

    /// Squared error of replacing every number by the mean, rounded down to f32.
    pub(super) fn squared_error(&self) -> f64 {
        let near = self.mean as f32;
        let sent = if near as f64 > self.mean { near.next_down() } else { near } as f64;
        self.squares + self.count * (self.mean - sent) * (self.mean - sent)
    }
}

/// Number of magnitudes in a block whose statistics are stored.
const BLOCK: usize = 64;

/// Ascending magnitudes, with the statistics of each whole block.
pub(super) struct Runs<'a> {
    sorted: &'a [u32],
    /// Mean and sum of squares of each block.
    blocks: &'a [[f64; 2]],
}

impl<'a> Runs<'a> {
    /// Words of memory for the statistics of `magnitudes` magnitudes.
    pub(super) const fn room(magnitudes: usize) -> usize {
        2 * (magnitudes / BLOCK)
    }

    pub(super) fn new(sorted: &'a [u32], room: &'a mut [u64]) -> Self {
        let blocks: &mut [[f64; 2]] = bytemuck::cast_slice_mut(&mut room[..Self::room(sorted.len())]);
        for (block, place) in sorted.chunks_exact(BLOCK).zip(blocks.iter_mut()) {
            let Stat { mean, squares, .. } = Stat::of(block);
            *place = [mean, squares];
        }
        Runs { sorted, blocks }
    }

    /// Statistics of the magnitudes from `start` up to `end`.
    pub(super) fn stat(&self, start: usize, end: usize) -> Stat {
        let (first, last) = (start.div_ceil(BLOCK), end / BLOCK);
        if first >= last {
            return Stat::of(&self.sorted[start..end]);
        }
        let whole = self.blocks[first..last].iter().map(|&[mean, squares]| Stat { count: BLOCK as f64, mean, squares });
        let stat = whole.fold(Stat::of(&self.sorted[start..first * BLOCK]), Stat::merged);
        stat.merged(Stat::of(&self.sorted[last * BLOCK..end]))
    }

    pub(super) fn sorted(&self) -> &'a [u32] {
        self.sorted
    }
}
