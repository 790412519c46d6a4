//! Encodes TopK's payloads by launches of `topk_encode.wgsl`.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::blocks::{Blocks, blocks_of, write};
use crate::cut::{self, Sample};
use crate::memory::Scratch;
use crate::tensor::Tensor;
use crate::topk::{KEEP_BYTES, Params, kernel};
use lgreco::compress::quantised_topk::Keep;
use lgreco::compress::wire::HEADER_LEN;
use wgpu::Buffer;

/// Returns the parameters that say where the parts of a payload are. The values come after the header, and the
/// positions are in separate words.
fn places(kept: Keep, elements: usize) -> Result<Params, Error> {
    let Keep { top, bits } = kept;
    let layout = top.layout(elements as u32)?;
    let [means, _] = kept.bytes().map(|bytes| bytes as usize);
    let high = layout.low_bytes as usize;
    Ok(Params {
        sent: top.values as u32,
        elements: elements as u32,
        placement: layout.coding as u32,
        low_bits: layout.low_bits,
        values_word: (HEADER_LEN / 4) as u32,
        bits: bits.into(),
        codes: ((HEADER_LEN + means) / 4) as u32,
        high_word: (high / 4) as u32,
        high_bit: (high % 4 * 8) as u32,
        ..Params::default()
    })
}

/// `Err` if the payload has more words than the shaders' 32-bit word numbers can reach.
fn check_reach(payload_len: usize) -> Result<(), Error> {
    const MOST: u64 = 4 * u32::MAX as u64;
    let bytes = payload_len as u64;
    if bytes <= MOST {
        return Ok(());
    }
    Err(Error::TooLarge { what: "a TopK payload", bytes, limit: "reach of 32-bit word numbers", largest: MOST })
}

/// A payload on the device.
pub(crate) struct Written {
    /// Header and values. For TopK in few bits, header, means and codes.
    pub(crate) sent: Tensor,
    pub(crate) positions: Tensor,
}

/// Records the encoding of everything except the header. At least one value must be kept. Word 0 of `results` becomes
/// the largest magnitude, and word 1 the bits of the k-th largest. If word 2 is not 0, the sample has missed the k-th
/// largest magnitude, and no payload is written. After such a miss, call [`encode_lost`].
///
/// The kernels read the [sample](Sample) once and all values twice. If the gathered values do not fit, the kernels read
/// all values two more times.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    kept: Keep,
    payload_len: usize,
    results: &Buffer,
) -> Result<Written, Error> {
    check_reach(payload_len)?;
    let search = Search::new(batch, tensor, kept)?;
    batch.clear(&search.counters, 4 * COUNTED as u64);
    batch.run(kernel("sample"), search.blocks.tasks(&[search.counters()]));
    batch.run(kernel("gather_values"), search.blocks.tasks(&[search.counters(), search.entries()]));
    batch.clear(&search.counters, 4 * cut::TABLES as u64);
    batch.run(kernel("refine"), search.blocks.tasks(&[search.counters(), search.entries()]));
    search.write(batch, payload_len, results)
}

/// Encodes the same tensor again, after the sample of [`encode`] has missed the k-th largest magnitude. Between the two
/// calls, no other call may use scratch buffers of the same names. The call reads all values three more times to count
/// their magnitudes, and a fourth time if the k-th largest lies outside the interval.
pub(crate) fn encode_lost(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    kept: Keep,
    payload_len: usize,
    results: &Buffer,
) -> Result<Written, Error> {
    let search = Search { settles: 1, ..Search::new(batch, tensor, kept)? };
    batch.clear(&search.counters, 4 * cut::TABLES as u64);
    for level in 0..cut::LEVELS {
        let at = |params| Params { level, ..params };
        batch.run(kernel("settle"), search.blocks.changed(&[search.counters()], at));
    }
    search.write(batch, payload_len, results)
}

/// Number of words of the counts of a tensor.
pub(crate) const COUNTED: usize = cut::TABLES + cut::COUNTERS;

/// The search for the cut of a tensor, its k-th largest magnitude.
struct Search {
    /// Size of the header and the values in bytes.
    sent_len: usize,
    blocks: Blocks,
    base: Params,
    /// 1 if the sample has missed the cut, otherwise 0.
    settles: u32,
    state: Buffer,
    counters: Buffer,
    entries: Buffer,
}

impl Search {
    fn new(batch: &mut Batch<'_>, tensor: &Tensor, kept: Keep) -> Result<Search, Error> {
        let blocks = blocks_of(batch, tensor);
        let records = cut::RECORD * blocks;
        let most = (batch.gpu.largest_binding() / 4) as usize;
        let most_entries = cut::entries(tensor.elements).min(most.saturating_sub(records));
        let Sample { stratum, most, least } = Sample::new(kept.top.keep, tensor.elements as u32);
        let base = Params {
            dtype: tensor.dtype as u32,
            keep: kept.top.keep,
            stratum,
            most,
            least,
            first_entry: records as u32,
            most_entries: most_entries as u32,
            ..places(kept, tensor.elements)?
        };
        Ok(Search {
            sent_len: HEADER_LEN + kept.bytes().iter().sum::<u64>() as usize,
            blocks: Blocks::new(batch, &[(tensor, base)])?,
            base,
            settles: 0,
            state: batch.scratch(Scratch::State, KEEP_BYTES)?,
            counters: batch.scratch(Scratch::Counters, 4 * COUNTED as u64)?,
            entries: batch.scratch(Scratch::Entries, 4 * (records + most_entries) as u64)?,
        })
    }

    fn counters(&self) -> (u32, Part) {
        (19, (&self.counters).into())
    }

    fn entries(&self) -> (u32, Part) {
        (20, (&self.entries).into())
    }

    /// Records the counting and writing of kept values. The search for the cut must have been recorded.
    fn write(&self, batch: &mut Batch<'_>, payload_len: usize, results: &Buffer) -> Result<Written, Error> {
        let Blocks { counts, bins, .. } = &self.blocks;
        let of_bins = (18, Part::from(bins));
        let bindings = [(6, (&self.state).into()), (7, counts.into()), (9, results.into()), of_bins.clone()];
        let bindings = [&bindings[..], &[self.counters(), self.entries()]].concat();
        let settles = |params| Params { settles: self.settles, ..params };
        batch.run(kernel("count_kept"), self.blocks.changed(&bindings, settles));
        let sent = Tensor::room(batch, self.sent_len.div_ceil(4))?;
        let positions = Tensor::room(batch, (payload_len - self.sent_len).div_ceil(4).max(1))?;
        let (of_sent, of_positions): (Vec<Part>, Vec<Part>) = (sent.parts().collect(), positions.parts().collect());
        of_sent.iter().chain(&of_positions).for_each(|part| batch.clear(&part.buffer, part.size));
        // Each pass writes one window of values, and also the positions that lie in the first window of positions.
        let mut window = 0;
        for part in &of_sent {
            let (window_len, positions_len) = (words_of(part), words_of(&of_positions[0]));
            let within = |params| Params { window, window_len, positions_len, ..params };
            write(batch, &self.blocks, &self.state, [part, &of_positions[0]], within);
            window = window.wrapping_add(window_len);
        }
        let mut positions_window = words_of(&of_positions[0]);
        for part in &of_positions[1..] {
            let positions_len = words_of(part);
            let within = |params| Params { positions_window, positions_len, ..params };
            write(batch, &self.blocks, &self.state, [&of_sent[0], part], within);
            positions_window += positions_len;
        }
        // The means are at the start of the payload, but are known only after all values have been written.
        if self.base.bits > 0 {
            let params = Params { window_len: words_of(&of_sent[0]), ..self.base };
            batch.run(kernel("make_means"), vec![Task::new(params, &[(8, of_sent[0].clone()), of_bins], 1)]);
        }
        Ok(Written { sent, positions })
    }
}

fn words_of(part: &Part) -> u32 {
    (part.size / 4) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use lgreco::compress::Compressor;
    use lgreco::compress::topk::TopK;
    use lgreco::gradient::{Dtype, Shape};

    #[test]
    fn payloads_that_words_of_32_bits_cannot_number_are_refused() {
        let len = |keep| {
            let shape = Shape::new(u32::MAX as usize, 1).unwrap();
            TopK { keep, values: Dtype::F32 }.payload_len(shape, Dtype::F32).unwrap()
        };
        // The first payload has a bitmap, and its values end at the last word number. The last payload has all values
        // and no positions.
        let last = u32::MAX - 4 - (1 << 27);
        assert_eq!(len(last), 4 * u32::MAX as usize);
        assert_eq!(check_reach(len(last)), Ok(()));
        let (what, limit, largest) = ("a TopK payload", "reach of 32-bit word numbers", 4 * u64::from(u32::MAX));
        for keep in [last + 1, 4_209_067_949, u32::MAX] {
            let bytes = len(keep) as u64;
            assert_eq!(check_reach(bytes as usize), Err(Error::TooLarge { what, bytes, limit, largest }));
        }
    }
}
