// TopK: parameters, tables, and the keys by which magnitudes are compared. `topk_select.wgsl` finds the k-th largest.
// `topk_energy.wgsl` finds the error of dropped values. `topk_encode.wgsl` and `topk_decode.wgsl` encode and decode
// payloads. In this file, bins are the histogram bins of the selection; `few_bits.wgsl` has the bins of values in few
// bits.

struct Params {
    offset: u32,
    dtype: u32,
    first: u32, // first value of the piece in the tensor, or of the stretch in the payload
    count: u32, // values in the piece, or in the stretch
    sent: u32, // type of the values in the payload
    rounds: u32, // whether that type changes values
    table: u32, // the layer's number among those that share buffers for tables
    slots: u32, // slots of each of these layers, at most MOST_KEEPS
    first_keep: u32, // the batch's first k in `state`
    // Parameters of the search for a single cut: see `topk_cut.wgsl`.
    keep: u32,
    stratum: u32,
    most: u32,
    least: u32,
    block_sums: u32,
    block_counts: u32,
    first_entry: u32,
    most_entries: u32,
    settles: u32, // whether the sample has missed the cut
    level: u32, // level of the search after a missed cut
    keeps: u32, // values of k in this batch, at most `slots`
    first_block: u32,
    result: u32,
    elements: u32,
    placement: u32, // 0: no positions, 1: bitmap, 2: Elias-Fano
    low_bits: u32,
    // First bit of each part of the payload, as word and bit. Positions have separate words.
    values_word: u32, // first word of values, or in few bits of means
    bits: u32, // bits of a code; 0 for values in full
    codes: u32,
    code_bit: u32, // first bit of the stretch's first code in its word
    bins: u32, // in few bits: the layer's place among all layers' bins
    first_sum: u32, // in few bits: the place of the sums of this batch's first k
    low_word: u32,
    low_bit: u32,
    high_word: u32,
    high_bit: u32,
    window: u32, // first word, or first value, of the written binding
    window_len: u32,
    positions_window: u32, // first word of the written binding for positions
    positions_len: u32,
}

// Per bin: the count; the sum of the keys' lower 17 bits, in 64 bits; and the sum of squared rounding errors, in 96
// bits. A rounding error comes from sending the value; its square is below 2^48.
@group(0) @binding(2) var<storage, read_write> bins: array<atomic<u32>>;
// Per bin: the number of the bin's slot plus 1 if the bin contains a k-th largest value for some k; otherwise 0. The
// bins of level 1 come first, then those of level 2.
@group(0) @binding(3) var<storage, read_write> slots: array<u32>;
// Level 2: per slot and bin the count and the sum of squared rounding errors. Level 3: counts.
@group(0) @binding(4) var<storage, read_write> fine: array<atomic<u32>>;
// Per bin of level 1: number of elements in higher bins, energy of lower bins (2 words), rounding errors of higher bins
// (2 words).
@group(0) @binding(5) var<storage, read_write> prefix: array<u32>;
@group(0) @binding(6) var<storage, read_write> state: array<Keep>;
// Numbers of elements above the cut, and of elements equal to the cut. The sums over groups of 256 blocks of a layer
// come first, then the numbers of each block of 2048 values.
@group(0) @binding(7) var<storage, read_write> blocks: array<atomic<u32>>;
@group(0) @binding(8) var<storage, read_write> payload: array<atomic<u32>>;
@group(0) @binding(9) var<storage, read_write> results: array<atomic<u32>>;
// The last position before the stretch, then the stretch's positions.
@group(0) @binding(10) var<storage, read_write> positions: array<u32>;
@group(0) @binding(11) var<storage, read_write> decoded: array<u32>;
// Four bindings have the parts of a stretch of a payload. `kept_part` has the values as sent or, in few bits, means and
// then codes. `low_part` has the lower bits of positions. `high_part` has blocks of 2048 bits, whose 1 bits are
// positions. `starts` has the number of 1 bits before each block.
@group(0) @binding(12) var<storage, read> kept_part: array<u32>;
@group(0) @binding(13) var<storage, read> low_part: array<u32>;
@group(0) @binding(14) var<storage, read> high_part: array<u32>;
@group(0) @binding(15) var<storage, read> starts: array<u32>;

// Counters of the search for a cut.
@group(0) @binding(19) var<storage, read_write> counters: array<atomic<u32>>;
// The record of each block, then the gathered magnitudes.
@group(0) @binding(20) var<storage, read_write> entries: array<u32>;
// The positions of the payload that is being written.
@group(0) @binding(21) var<storage, read_write> position_words: array<atomic<u32>>;

const BINS = 17792u; // 278 exponents of 64 bins
const UPPER = 17u; // key bits below a bin of level 1
const MIDDLE = 8u; // key bits below a bin of level 2
const MIDDLES = 512u;
const LASTS = 256u;
const MOST_KEEPS = 224u; // with this limit `fine` fits a binding of 2 MiB

// Index of a bin in the layer's own tables.
fn in_bins(bin: u32) -> u32 {
    return params.table * 6u * BINS + bin;
}

fn in_prefix(bin: u32) -> u32 {
    return params.table * 5u * BINS + bin;
}

fn in_slots(bin: u32) -> u32 {
    return params.table * (BINS + params.slots * MIDDLES) + bin;
}

// Index of a bin of level 2.
fn in_fine(bin: u32) -> u32 {
    return params.table * params.slots * (4u * MIDDLES + LASTS) + 4u * bin;
}

// Index of a bin of level 3.
fn in_last(slot: u32, bin: u32) -> u32 {
    return in_fine(params.slots * MIDDLES) + slot * LASTS + bin;
}

// The cut for one k. `keep` is k; the search finds the other fields level by level.
struct Keep {
    keep: u32,
    bin: u32,
    slot: u32,
    middle: u32,
    last_slot: u32,
    magnitude: u32, // bits of the k-th largest
    ties: u32, // number of kept values of this magnitude; during the search, the rank of k in its bin
    last: u32,
}

// Maps a magnitude to a key; keys have the same order as magnitudes. In keys, every binade has its own exponent, also
// among subnormal numbers.
fn key(magnitude: u32) -> u32 {
    if (magnitude == 0u) {
        return 0u;
    }
    let x = unpack(magnitude);
    return ((x.y + 23u) << 23u) | (x.x & 0x007fffffu);
}

fn magnitude_of(key: u32) -> u32 {
    let exponent = key >> 23u;
    if (exponent >= 24u) {
        return key - (23u << 23u);
    }
    if (key == 0u) {
        return 0u;
    }
    return ((key & 0x007fffffu) | 0x00800000u) >> (24u - exponent);
}

// The error of rounding a magnitude to the sent type, in units of the last place of the magnitude's key.
fn rounding(magnitude: u32) -> u32 {
    if (params.rounds == 0u || magnitude == 0u) {
        return 0u;
    }
    let x = unpack(magnitude);
    let exponent = i32(x.y);
    var dropped = 16;
    if (params.sent == 1u) {
        dropped = clamp(126 - exponent, 13, 25);
    } else if (exponent < 1) {
        dropped = min(17 - exponent, 25);
    }
    let unit = 1u << u32(dropped);
    let part = x.x & (unit - 1u);
    return select(part, unit - part, (shift_rounded(x.x, u32(dropped)) << u32(dropped)) > x.x);
}
