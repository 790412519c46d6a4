//! What operations pass over, and the bytes that a value takes there.

use super::calls::RANKS;
use super::operations::{Pass, bins, moved, often, pass, sample};

/// Bytes of a code of 4 bits with its share of a bucket's scale; of one of 8 bits; of one of an interval, which has two ends.
pub(super) const CODE: f64 = 0.5 + 4.0 / 512.0;
pub(super) const BYTE: f64 = 1.0 + 4.0 / 512.0;
pub(super) const OF_INTERVAL: f64 = 0.5 + 8.0 / 512.0;
/// Bytes of a value's share of what is gathered where 1 % are kept: entries of 8 bytes for 1.5 %. They are written once, and read by
/// three launches.
pub(super) const GATHERED: f64 = 0.015 * 8.0;
/// And of the payload: values and positions, and words of these that are zeroed first.
pub(super) const KEPT: f64 = 0.06;
/// Without these words: 4 bytes of a value and 10 bits of a position.
pub(super) const SENT: f64 = 0.0525;
/// The same of codes of 4 bits, of which all words are zeroed.
pub(super) const FEW_KEPT: f64 = 2.0 * FEW_SENT;
pub(super) const FEW_SENT: f64 = 0.0175;
/// Bytes of a bin of TopK's rows: counts and sums are added to, read and emptied.
const BIN: f64 = 3.0 * 12.0;
/// Bytes of the bins of TopK's payloads, of each layer: read and cleared.
pub(super) const FEW_BINS: f64 = 2.0 * 32768.0;
pub(super) const OF_RANKS: f64 = RANKS as f64;

/// A kernel that reads f32, and the same of 16 bits.
pub(super) const SAMPLE: [&str; 2] = ["selection/sample", "selection/sample,16-bit"];
pub(super) const OFFER: [&str; 2] = ["selection/offer", "selection/offer,16-bit"];

/// Of a step's payloads under TopK in an exchange, which take so many bytes, of gradients of so many, by threads of so many values. Of
/// residuals of what is kept two sectors take part.
pub(super) const fn top_payloads(kept: f64, bytes: f64, of_thread: f64) -> [Pass; 3] {
    let is_narrow = (bytes < 4.0) as usize;
    [
        sample(SAMPLE[is_narrow], 64.0),
        pass(OFFER[is_narrow], 8.0 + bytes + GATHERED, of_thread),
        moved(3.0 * GATHERED + kept + 0.01 * 64.0, FEW_BINS),
    ]
}

/// Of a payload under TopK alone, which is made in the workspace and copied.
pub(super) const fn top_payload(kept: f64, bytes: f64) -> [Pass; 3] {
    let is_narrow = (bytes < 4.0) as usize;
    [
        sample(SAMPLE[is_narrow], 32.0),
        pass(OFFER[is_narrow], bytes + GATHERED, 128.0),
        moved(3.0 * GATHERED + 3.0 * kept, FEW_BINS),
    ]
}

/// Of the means of all ranks' payloads under QSGD, of codes of so many bytes. Scales are read before.
pub(super) const fn code_means(kernel: &'static str, code: f64, bytes: f64, of_thread: f64) -> [Pass; 2] {
    [moved(OF_RANKS * 4.0 / 512.0, 0.0), pass(kernel, bytes + OF_RANKS * code, of_thread)]
}

/// And under TopK, of which a rank sends so many bytes. Positions are read twice before, and values once; where windows begin is
/// written and read.
pub(super) const fn kept_means(kernel: &'static str, sent: f64, bytes: f64, of_thread: f64) -> [Pass; 2] {
    [moved(OF_RANKS * (0.0125 + sent + 8.0 / 1024.0), 0.0), pass(kernel, bytes + OF_RANKS * sent, of_thread)]
}

/// The bins of TopK's rows, of each layer by one block.
pub(super) const BINS: Pass = bins("topk/choose", BIN);

/// Of a row of TopK in few bits: that in full, what 1 % keeps written down, and the cut among that, its bins and errors for each of
/// three densities, of which all go over it.
pub(super) const FEW_BITS_ROW: [Pass; 6] = [
    pass("topk/count_exact", 4.0, 128.0),
    BINS,
    sample(SAMPLE[0], 32.0),
    pass(OFFER[0], 4.0 + GATHERED, 128.0),
    moved(3.0 * GATHERED + KEPT + 3.0 * 0.01 * 4.0 * 3.0, 4.0 * FEW_BINS),
    often(3.0 * 0.01, "selection/measure_kept", 3.0 * 0.01 * 4.0, 16.0),
];

/// Of a row of PowerSGD's ranks up to 64, of values of so many bytes: ten products by four columns at a time, for which the matrix
/// is read once for sixteen, and what remains at each rank.
pub(super) const fn low_ranks(kernels: [&'static str; 3], bytes: f64) -> [Pass; 3] {
    [
        often(5.0 * 16.0, kernels[0], 5.0 * 4.0 * bytes, 256.0),
        often(5.0 * 16.0, kernels[1], 5.0 * 4.0 * bytes, 256.0),
        pass(kernels[2], bytes, 64.0),
    ]
}
pub(super) const LOW_RANKS: [&str; 3] = ["powersgd/project", "powersgd/back_project", "powersgd/residuals,rank_64"];
pub(super) const NARROW_LOW_RANKS: [&str; 3] =
    ["powersgd/project,16-bit", "powersgd/back_project,16-bit", "powersgd/residuals,rank_64,16-bit"];

/// Of a step of an exchange of PowerSGD's factors of rank 4.
pub(super) const FACTORS: [Pass; 4] = [
    pass("exchange_sums/project", 12.0, 256.0),
    pass("exchange_sums/back_project", 4.0, 256.0),
    pass("exchange_sums/take_off,rank_4", 8.0, 8.0),
    pass("exchange_sums/means,rank_4", 4.0, 8.0),
];
pub(super) const NARROW_FACTORS: [Pass; 4] = [
    pass("exchange_sums/project,16-bit", 10.0, 256.0),
    pass("exchange_sums/back_project", 4.0, 256.0),
    pass("exchange_sums/take_off,rank_4", 8.0, 8.0),
    pass("exchange_sums/means,rank_4,16-bit", 2.0, 8.0),
];
/// And of what is not compressed.
pub(super) const SUMS: [Pass; 2] = [pass("exchange_sums/prepare", 16.0, 16.0), pass("exchange_sums/means", 8.0, 16.0)];
pub(super) const NARROW_SUMS: [Pass; 2] =
    [pass("exchange_sums/prepare,16-bit", 12.0, 16.0), pass("exchange_sums/means,16-bit", 4.0, 16.0)];
