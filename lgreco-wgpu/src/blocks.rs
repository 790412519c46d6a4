//! Blocks of 2048 values of tensors under TopK. Kernels count the kept values of each block. From these counts, kernels
//! know where to write the kept values of a block. Payloads of TopK and rows of TopK in few bits use these blocks.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::cut;
use crate::memory::Scratch;
use crate::tensor::{Piece, Tensor};
use crate::topk::{Params, kernel};
use wgpu::Buffer;

/// Size in bytes of `Bins` in `few_bits.wgsl`, which has the statistics of one layer's bins.
pub(crate) const BINS: u64 = 4 * (2 + 8 * 128);

/// Blocks of tensors, with counts of their kept values.
pub(crate) struct Blocks {
    pieces: Vec<(Piece, Params)>,
    pub(crate) counts: Buffer,
    /// The statistics of each tensor's bins, for TopK in few bits.
    pub(crate) bins: Buffer,
}

impl Blocks {
    /// Divides tensors into blocks, and sets all counts to zero. Each tensor comes with its kernel parameters.
    pub(crate) fn new(batch: &mut Batch<'_>, tensors: &[(&Tensor, Params)]) -> Result<Blocks, Error> {
        let blocks: Vec<usize> = tensors.iter().map(|(tensor, _)| blocks_of(batch, tensor)).collect();
        let sums: usize = blocks.iter().map(|&blocks| cut::sums(blocks)).sum();
        let (mut pieces, mut block_sums, mut total) = (Vec::new(), 0, 0);
        for ((&(tensor, base), &blocks), bins) in tensors.iter().zip(&blocks).zip(0..) {
            let base = Params { bins, block_sums: block_sums as u32, block_counts: sums as u32, ..base };
            block_sums += cut::sums(blocks);
            for piece in tensor.all(batch) {
                let (offset, first, count) = (piece.skip, piece.first as u32, piece.count as u32);
                let params = Params { offset, first, count, first_block: total as u32, ..base };
                total += piece.groups();
                pieces.push((piece, params));
            }
        }
        let counts = batch.scratch(Scratch::Blocks, blocks.iter().map(|&blocks| bytes_of(blocks)).sum())?;
        batch.clear(&counts, 4 * sums as u64);
        let bins = batch.scratch(Scratch::FewBits, BINS * tensors.len() as u64)?;
        batch.clear(&bins, BINS * tensors.len() as u64);
        Ok(Blocks { pieces, counts, bins })
    }

    /// Returns a task for each piece, with parameters changed by `change`.
    pub(crate) fn changed(&self, bindings: &[(u32, Part)], change: impl Fn(Params) -> Params) -> Vec<Task<Params>> {
        let task = |(piece, params): &(Piece, Params)| {
            let bindings = [&[(1, piece.part.clone())], bindings].concat();
            Task::new(change(*params), &bindings, piece.groups())
        };
        self.pieces.iter().map(task).collect()
    }

    pub(crate) fn tasks(&self, bindings: &[(u32, Part)]) -> Vec<Task<Params>> {
        self.changed(bindings, |params| params)
    }
}

/// Number of blocks of a tensor for [`count`].
pub(crate) fn blocks_of(batch: &Batch<'_>, tensor: &Tensor) -> usize {
    tensor.all(batch).iter().map(Piece::groups).sum()
}

/// Bytes of the counts of a tensor with `blocks` blocks.
pub(crate) fn bytes_of(blocks: usize) -> u64 {
    4 * (cut::sums(blocks) + 2 * blocks) as u64
}

/// Records the counting of kept values in each tensor. `first_keep` of a tensor's parameters selects its cut in
/// `state`. If `bits` is not 0, the kernel also finds the range of the kept magnitudes.
pub(crate) fn count(batch: &mut Batch<'_>, state: &Buffer, tensors: &[(&Tensor, Params)]) -> Result<Blocks, Error> {
    let blocks = Blocks::new(batch, tensors)?;
    let bindings = [(6, state.into()), (7, (&blocks.counts).into()), (18, (&blocks.bins).into())];
    batch.run(kernel("count_block"), blocks.tasks(&bindings));
    Ok(blocks)
}

/// Records the writing of kept values and positions. The parameters say where each tensor's values and positions are
/// written. The target memory must be zero before the call. `within` sets the parameters for the range of words that
/// the bindings cover.
pub(crate) fn write(
    batch: &mut Batch<'_>,
    blocks: &Blocks,
    state: &Buffer,
    [sent, positions]: [&Part; 2],
    within: impl Fn(Params) -> Params,
) {
    let (counts, bins) = ((7, (&blocks.counts).into()), (18, (&blocks.bins).into()));
    let bindings = [(6, state.into()), counts, (8, sent.clone()), bins, (21, positions.clone())];
    batch.run(kernel("write_kept"), blocks.changed(&bindings, within));
}
