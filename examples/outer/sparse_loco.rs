//! SparseLoCo's payload, for comparison: the largest values of every chunk, in two bits with a statistical codebook.
//!
//! Source: Sarfi et al., "Communication-Efficient LLM Pre-Training with SparseLoCo" (2025), and its code. Matrices are
//! divided into tiles of 64 × 64, or of the largest divisors of their sides up to 64. Vectors are divided into chunks of
//! 4096. Each chunk keeps 64 values; smaller chunks keep proportionally fewer. The mean of a tensor's kept values is
//! subtracted. The values are rounded to four codes, in units of 6/4 of their standard deviation. Each code decodes to
//! the mean of the values that were rounded to it. Positions take 12 bits.

use lgreco_train::exchange::Collective;
use lgreco_train::outer::Outer;

/// Largest side of a tile.
const SIDE: usize = 64;
const CHUNK: usize = SIDE * SIDE;
const KEPT: usize = 64;
/// Bits of a value and its position in the chunk.
const BITS: usize = 2 + 12;
/// Bits of a tensor's codebook, in f32.
const CODEBOOK: usize = 4 * 32;

/// One worker's error feedback and outer step. SparseLoCo is published with a learning rate of 1, a decay of 0.95 and no
/// momentum.
pub struct SparseLoCo {
    outer: Outer,
    dims: Vec<Vec<usize>>,
    residuals: Vec<Vec<f32>>,
    velocities: Vec<Vec<f32>>,
}

/// The largest divisor of `side` that is at most `most`.
fn divisor(side: usize, most: usize) -> usize {
    (1..=most.min(side)).rev().find(|&divisor| side.is_multiple_of(divisor)).unwrap_or(1)
}

/// The chunks of a tensor, as indices of their elements.
fn chunks(dims: &[usize]) -> Vec<Vec<usize>> {
    let elements: usize = dims.iter().product();
    let &[first, ref rest @ ..] = dims else { return vec![] };
    if rest.is_empty() || elements == first {
        return (0..elements).collect::<Vec<_>>().chunks(CHUNK).map(<[usize]>::to_vec).collect();
    }
    let (rows, cols) = (first, elements / first);
    let (high, wide) = (divisor(rows, SIDE), divisor(cols, SIDE));
    let corners = (0..rows).step_by(high).flat_map(|row| (0..cols).step_by(wide).map(move |col| (row, col)));
    let tile = |(row, col)| (row..row + high).flat_map(move |row| (col..col + wide).map(move |col| row * cols + col));
    corners.map(|corner| tile(corner).collect()).collect()
}

/// Compresses values, and returns the decoded payload and its number of bits.
fn compressed(dims: &[usize], values: &[f32]) -> (Vec<f32>, usize) {
    let mut kept: Vec<usize> = vec![];
    for mut chunk in chunks(dims) {
        let count = (chunk.len() * KEPT).div_ceil(CHUNK);
        chunk.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
        kept.extend(&chunk[..count]);
    }
    let count = kept.len().max(1) as f32;
    let mean = kept.iter().map(|&i| values[i]).sum::<f32>() / count;
    let variance = kept.iter().map(|&i| (values[i] - mean) * (values[i] - mean)).sum::<f32>() / count;
    let scale = 6.0 * variance.sqrt() / 4.0;
    let code = |i: usize| match scale > 0.0 {
        true => (((values[i] - mean) / scale).round() + 2.0).clamp(0.0, 3.0) as usize,
        false => 2,
    };
    let mut codebook = [(0.0, 0.0); 4];
    for &i in &kept {
        let (sum, count) = &mut codebook[code(i)];
        (*sum, *count) = (*sum + values[i], *count + 1.0);
    }
    let mut decoded = vec![0.0; values.len()];
    for &i in &kept {
        let (sum, count) = codebook[code(i)];
        decoded[i] = sum / count;
    }
    (decoded, BITS * kept.len() + CODEBOOK)
}

impl SparseLoCo {
    /// Makes a worker's state before the first round.
    pub fn new(outer: Outer, dims: Vec<Vec<usize>>) -> SparseLoCo {
        let zeros: Vec<Vec<f32>> = dims.iter().map(|dims| vec![0.0; dims.iter().product()]).collect();
        SparseLoCo { outer, dims, residuals: zeros.clone(), velocities: zeros }
    }

    /// Makes an outer step from `starts`, which become the parameters for the next inner steps of all workers. Returns
    /// the bytes that this worker sends.
    pub fn step<C: Collective>(
        &mut self,
        collective: &mut C,
        starts: &mut [Vec<f32>],
        now: &[Vec<f32>],
    ) -> Result<u64, lgreco_train::Error> {
        let (world, mut bytes) = (collective.world_size() as f32, 0);
        let Outer { learning_rate, momentum, feedback_decay, .. } = self.outer;
        let memories = self.residuals.iter_mut().zip(&mut self.velocities);
        for (((dims, (residual, velocity)), start), now) in self.dims.iter().zip(memories).zip(starts).zip(now) {
            for ((e, start), now) in residual.iter_mut().zip(&*start).zip(now) {
                *e = feedback_decay * *e + (start - now);
            }
            let (mut mean, bits) = compressed(dims, residual);
            bytes += bits.div_ceil(8) as u64;
            residual.iter_mut().zip(&mean).for_each(|(e, sent)| *e -= sent);
            collective.all_reduce_sum(&mut mean)?;
            for ((x, v), sum) in start.iter_mut().zip(velocity).zip(mean) {
                *v = momentum * *v + sum / world;
                *x -= learning_rate * (sum / world + momentum * *v);
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_tiles_that_cover_the_tensor_once() {
        for (dims, lens) in [
            (vec![128, 64], vec![4096, 4096]),
            (vec![96, 96], vec![48 * 48; 4]),
            (vec![5000], vec![4096, 904]),
            (vec![7, 1], vec![7]),
            (vec![3, 2, 2], vec![12]),
        ] {
            let chunks = chunks(&dims);
            assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), lens);
            let mut all = chunks.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..dims.iter().product()));
        }
    }

    #[test]
    fn the_published_size_and_codes() {
        let values: Vec<f32> = (0..4096).map(|i| if i % 64 == 5 { (i / 64) as f32 - 31.5 } else { 0.001 }).collect();
        let (decoded, bits) = compressed(&[64, 64], &values);
        assert_eq!(bits, 64 * 14 + 128);
        // Values from -31.5 to 31.5 have a standard deviation of 18.5. Codes change at 13.9 and -13.9. Values between
        // -13.9 and 13.9 have the mean 0.
        let count = |value: f32| decoded.iter().filter(|&&x| x == value).count();
        assert_eq!([-23.0, 0.0, 23.0].map(count), [18, 4096 - 36, 18]);
    }

    #[test]
    fn equal_values_come_back_as_they_were() {
        let (decoded, _) = compressed(&[640], &[0.5; 640]);
        assert_eq!(decoded.iter().filter(|&&x| x == 0.5).count(), 10);
    }
}
