//! Launches the kernels of TopK.
//!
//! TopK's errors are energies (sums of squares), which are computed from exact integer sums of magnitudes per bin.
//! Because the magnitudes inside a bin differ, an energy is wrong by at most 2^-15 of its value.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::error::{BufferJobError, of_job};
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::packing::packs;
use crate::params::params;
use crate::sums;
use crate::tensor::{Piece, Row, Tensor};
use lgreco::gradient::Dtype;
use wgpu::Buffer;

params! {
    /// The struct `Params` in `topk.wgsl`, with the same layout.
    offset, dtype, first, count, sent, rounds, table, slots, first_keep, keep, stratum, most, least, block_sums, block_counts, first_entry, most_entries, settles, level, keeps, first_block, result, elements, placement, low_bits, values_word, bits, codes, code_bit, bins, first_sum, low_word, low_bit,
    high_word, high_bit, window, window_len, positions_window, positions_len,
}

/// Number of words of a bin of level 1.
const WORDS: u64 = 6;
/// Number of words for the sums over the bins above and below a bin of level 1.
const PREFIX: u64 = 5;
/// Number of bins of level 1.
pub(crate) const BINS: u64 = 17792;
/// Largest number of slots.
pub(crate) const SLOTS: u64 = 224;
/// Number of bins of level 2 per slot.
pub(crate) const MIDDLES: u64 = 512;
/// Number of bins of level 3 per slot.
pub(crate) const LASTS: u64 = 256;

/// Limit on the total size, in bytes, of the tables of all layers that are processed together.
const TABLES: u64 = 256 << 20;

/// Size of a `Keep` in words.
const KEEP: usize = 8;
/// Size of a `Keep` in bytes.
pub(crate) const KEEP_BYTES: u64 = 4 * KEEP as u64;

pub(crate) const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::TopK, entry }
}

/// Largest number of values that a workgroup counts in its own memory: see `tally.wgsl`.
const MOST_TALLIED: usize = 1 << 14;
/// Number of values that keep a workgroup busy.
const ENOUGH: usize = 1 << 12;
/// Number of workgroups that keep a device busy.
const ENOUGH_GROUPS: usize = 256;

/// Number of workgroups that count a piece's values. The number is small, so that a workgroup counts many values before
/// it adds its counts to the device's tables.
pub(crate) fn tally_groups(piece: &Piece) -> usize {
    piece.count.div_ceil(MOST_TALLIED).max(piece.count.div_ceil(ENOUGH).min(ENOUGH_GROUPS))
}

/// Whether values of type `from` may change if they are sent as type `to`.
fn rounds(from: Dtype, to: Dtype) -> bool {
    to != Dtype::F32 && from != to
}

/// A tensor, and the values of k to measure for this tensor. There is at least one k, and the values of k are in
/// ascending order. The largest magnitude and the errors are written to the result words from `result` on.
#[derive(Clone, Copy)]
pub(crate) struct Sought<'a> {
    pub(crate) tensor: &'a Tensor,
    pub(crate) sent: Dtype,
    pub(crate) keeps: &'a [u32],
    pub(crate) result: usize,
}

impl Sought<'_> {
    fn slots(&self) -> u64 {
        (self.keeps.len() as u64).min(SLOTS)
    }

    /// Returns the common parameters for a tensor whose first k has the number `first_keep` in `state`.
    fn base(&self, first_keep: usize) -> Params {
        Params {
            dtype: self.tensor.dtype as u32,
            sent: self.sent as u32,
            rounds: rounds(self.tensor.dtype, self.sent) as u32,
            first_keep: first_keep as u32,
            result: self.result as u32,
            ..Params::default()
        }
    }
}

/// Size of each table of the selection, in bytes.
struct Sizes {
    bins: u64,
    slots: u64,
    fine: u64,
    prefix: u64,
    state: u64,
}

impl Sizes {
    fn of(sought: &[Sought<'_>]) -> Sizes {
        let layers = sought.len() as u64;
        let slots = slots_of(sought);
        let keeps: usize = sought.iter().map(|sought| sought.keeps.len()).sum();
        Sizes {
            bins: 4 * WORDS * BINS * layers,
            slots: 4 * (BINS + slots * MIDDLES) * layers,
            fine: 4 * slots * (4 * MIDDLES + LASTS) * layers,
            prefix: 4 * PREFIX * BINS * layers,
            state: (4 * KEEP * keeps) as u64,
        }
    }

    fn all(&self) -> [u64; 5] {
        [self.bins, self.slots, self.fine, self.prefix, self.state]
    }
}

/// Returns the number of slots of each layer. A slot has finer counts for one bin that contains a k-th largest value.
fn slots_of(sought: &[Sought<'_>]) -> u64 {
    sought.iter().map(Sought::slots).max().unwrap_or(0)
}

/// Whether these layers may be processed together, because their tables fit.
pub(crate) fn fit(batch: &Batch<'_>, sought: &[Sought<'_>]) -> bool {
    let sizes = Sizes::of(sought).all();
    sizes.iter().all(|&bytes| bytes <= batch.gpu.window) && sizes.iter().sum::<u64>() <= TABLES
}

/// Records the commands that find the cut of each k and measure the squared errors, for all tensors together. Returns
/// the buffer `state` of `topk.wgsl`. The buffer has one `Keep` per k, one tensor after another.
pub(crate) fn select(batch: &mut Batch<'_>, sought: &[Sought<'_>], results: &Buffer) -> Result<Buffer, Error> {
    let sizes = Sizes::of(sought);
    let bins = &batch.scratch(Scratch::Bins, sizes.bins)?;
    let slots = &batch.scratch(Scratch::Slots, sizes.slots)?;
    let fine = &batch.scratch(Scratch::Fine, sizes.fine)?;
    let prefix = &batch.scratch(Scratch::Prefix, sizes.prefix)?;
    let state = &batch.scratch(Scratch::State, sizes.state)?;
    let keeps = sought.iter().flat_map(|sought| sought.keeps);
    let words: Vec<u32> = keeps.flat_map(|&keep| [keep, 0, 0, 0, 0, 0, 0, 0]).collect();
    let uploaded = batch.upload(bytemuck::cast_slice(&words))?;
    batch.copy(&uploaded.buffer, 0, state, 0, sizes.state);
    batch.clear(bins, sizes.bins);

    let mut first_keep = 0;
    let each = slots_of(sought) as u32;
    let layers = sought.iter().zip(0..).map(|(sought, table)| {
        first_keep += sought.keeps.len();
        let base = sought.base(first_keep - sought.keeps.len());
        Layer { sought, base: Params { table, slots: each, ..base } }
    });
    let layers: Vec<Layer<'_>> = layers.collect();
    let bindings = [(2, bins.into()), (9, results.into())];
    let tasks = layers.iter().flat_map(|layer| layer.of_pieces(batch, &bindings)).collect();
    batch.run(kernel("histogram_1"), tasks);
    let bindings = [(2, bins.into()), (5, prefix.into())];
    batch.run(kernel("prefixes"), layers.iter().map(|layer| Task::new(layer.base, &bindings, 1)).collect());
    let most = sought.iter().map(|sought| sought.keeps.len()).max().unwrap_or(0);
    for first in (0..most).step_by(SLOTS as usize) {
        let layers: Vec<Layer<'_>> = layers.iter().filter_map(|layer| layer.keeps_from(first)).collect();
        let of_each = |bindings: &[(u32, Part)]| {
            layers.iter().map(|layer| Task::new(layer.base, bindings, 1)).collect::<Vec<_>>()
        };
        batch.clear(slots, sizes.slots);
        batch.clear(fine, sizes.fine);
        batch.run(kernel("choose_1"), of_each(&[(3, slots.into()), (5, prefix.into()), (6, state.into())]));
        for (histogram, choose) in [("histogram_2", "choose_2"), ("histogram_3", "choose_3")] {
            let bindings = [(3, slots.into()), (4, fine.into())];
            let tasks = layers.iter().flat_map(|layer| layer.of_pieces(batch, &bindings)).collect();
            batch.run(kernel(histogram), tasks);
            let mut bindings = vec![(4, fine.into()), (6, state.into())];
            if choose == "choose_2" {
                bindings.push((3, slots.into()));
            }
            batch.run(kernel(choose), of_each(&bindings));
        }
        let bindings = [(4, fine.into()), (5, prefix.into()), (6, state.into()), (9, results.into())];
        batch.run(kernel("total"), of_each(&bindings));
    }
    Ok(state.clone())
}

/// The values of k of a tensor, and the kernels' parameters.
struct Layer<'a> {
    sought: &'a Sought<'a>,
    base: Params,
}

impl Layer<'_> {
    /// Returns one task for each piece of the tensor.
    fn of_pieces(&self, batch: &Batch<'_>, bindings: &[(u32, Part)]) -> impl Iterator<Item = Task<Params>> {
        self.sought.tensor.all(batch).into_iter().map(move |piece| {
            let params = Params { offset: piece.skip, count: piece.count as u32, ..self.base };
            let bindings = [&[(1, piece.part.clone())], bindings].concat();
            Task::new(params, &bindings, tally_groups(&piece))
        })
    }

    /// Returns the layer with its values of k from `first` on, at most one per slot. `None` if there is no further k.
    fn keeps_from(&self, first: usize) -> Option<Layer<'_>> {
        let keeps = self.sought.keeps.get(first..).filter(|keeps| !keeps.is_empty())?;
        let base = Params {
            first_keep: self.base.first_keep + first as u32,
            keeps: (keeps.len() as u32).min(SLOTS as u32),
            result: (self.sought.result + 1 + 2 * first) as u32,
            ..self.base
        };
        Some(Layer { sought: self.sought, base })
    }
}

/// Number of result words of [`measure`]: one for the largest magnitude, and then a mantissa and an exponent per
/// candidate.
pub(crate) const fn result_words(keeps: usize) -> usize {
    1 + 2 * keeps
}

/// Returns the indices of the candidates in ascending order of k.
pub(crate) fn order(keeps: &[u32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keeps.len()).collect();
    order.sort_by_key(|&i| keeps[i]);
    order
}

/// Returns `keeps` in ascending order.
pub(crate) fn ascending(keeps: &[u32]) -> Vec<u32> {
    order(keeps).into_iter().map(|i| keeps[i]).collect()
}

/// Records the commands that measure the error of each k in each row. Each k is from 1 to the number of elements.
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    rows: &[Row<'_, (Dtype, &[u32])>],
    results: &Buffer,
) -> Result<(), BufferJobError> {
    let keeps: Vec<Vec<u32>> = rows.iter().map(|row| ascending(row.sought.1)).collect();
    let sought = rows.iter().zip(&keeps).map(|(row, keeps)| {
        let sought = Sought { tensor: row.tensor, sent: row.sought.0, keeps, result: row.result };
        (row.job, sought)
    });
    let sought: Vec<(usize, Sought<'_>)> = sought.collect();
    let fits =
        |sought: &[(usize, Sought<'_>)]| fit(batch, &sought.iter().map(|&(_, sought)| sought).collect::<Vec<_>>());
    for pack in packs(&sought, fits) {
        let (jobs, sought): (Vec<usize>, Vec<Sought<'_>>) = pack.iter().copied().unzip();
        select(batch, &sought, results).map_err(of_job(jobs[0]))?;
    }
    Ok(())
}

/// Reads the squared errors from the words that [`measure`] wrote.
pub(crate) fn errors(keeps: &[u32], words: &[u32], row: &mut [f64]) {
    for (slot, pair) in order(keeps).into_iter().zip(words[1..].as_chunks::<2>().0) {
        row[slot] = sums::value(pair[0], pair[1]);
    }
}
