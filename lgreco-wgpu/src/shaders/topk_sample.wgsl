// A sample of a layer's values, and the interval of magnitudes that it gives for the k-th largest.

const SAMPLE_SHIFT = 19u;
const LAST_BIN = 4095u;
const BETWEEN = 4094u;

// Bits of a magnitude that span four powers of two.
const FOUR_OCTAVES = 1u << 25u;

// An interval of magnitudes from `bound` to `ceiling`. Each end of the interval has its own bin. The bins between the
// ends have 2^shift magnitudes each, from `base` on. The first of the bins between also has all smaller magnitudes, and
// the last has all larger magnitudes.
struct Interval {
    bound: u32,
    ceiling: u32,
    base: u32,
    shift: u32,
}

var<private> interval: Interval;

// The position, among 2048 values, of draw number `draw`: one value per stratum.
fn drawn(draw: u32, seed: u32) -> u32 {
    return (draw << params.stratum) + (mixed(seed + draw) & ((1u << params.stratum) - 1u));
}

fn draws() -> u32 {
    return PER_GROUP >> params.stratum;
}

// Adds a magnitude to the sample. Before the first call, the caller clears the workgroup's shares. After the last call,
// the caller adds these shares to the layer's.
fn add_to_sample(magnitude: u32) {
    add_to_table(magnitude >> SAMPLE_SHIFT, magnitude, 1u);
    raise_counter(COUNTERS + HIGHEST_SAMPLED, magnitude);
    if (magnitude > 0u) {
        raise_counter(COUNTERS + LOWEST_SAMPLED, ~magnitude);
    }
}

// Finds the sample's interval. At least `least` and at most `most` of the sample reach the k-th largest magnitude;
// `most` is 0 if all values are kept.
fn find_interval(lane: Lane) {
    let lower = pick(SAMPLE, BIN_COUNTS, 64u, params.most, lane);
    let upper = pick(SAMPLE, BIN_COUNTS, 64u, params.least, lane);
    var bound = 0u;
    if (lower.bin != NOWHERE) {
        bound = ~counter(BIN_LEAST + lower.bin);
    }
    var ceiling = MAGNITUDE;
    if (upper.bin != NOWHERE) {
        ceiling = counter(BIN_LARGEST + upper.bin);
    }
    if (params.most == 0u) {
        // All nonzero values are above the interval.
        ceiling = 0u;
    }
    bound = min(bound, ceiling);
    // An unknown end of the interval is set at a distance from the sampled values, unless these are all zeros.
    let highest = counted(HIGHEST_SAMPLED);
    var base = bound;
    if (bound == 0u && highest != 0u) {
        let lowest = ~counted(LOWEST_SAMPLED);
        base = min(lowest - min(lowest, 2u * FOUR_OCTAVES), ceiling);
    }
    var top = ceiling;
    if (upper.bin == NOWHERE && highest != 0u) {
        top = min(highest + FOUR_OCTAVES, ceiling);
    }
    let shift = max(32u - countLeadingZeros(max(top, base) - base), 12u) - 12u;
    interval = Interval(bound, ceiling, base, shift + u32((max(top, base) - base) >> shift >= BETWEEN));
}

// Loads the interval after it has been written.
fn load_interval() {
    interval = Interval(counted(INTERVAL), counted(INTERVAL + 1u), counted(INTERVAL + 2u), counted(INTERVAL + 3u));
}

fn from_base(magnitude: u32) -> u32 {
    return magnitude - min(magnitude, interval.base);
}

fn bin_in_interval(magnitude: u32) -> u32 {
    if (magnitude == interval.ceiling) {
        return LAST_BIN;
    }
    return select(1u + min(from_base(magnitude) >> interval.shift, BETWEEN - 1u), 0u, magnitude == interval.bound);
}

// The number of the part, within a bin of the interval, that contains a magnitude. A bin of at least 4096 magnitudes
// has 4096 parts.
fn part_of_bin(bin: u32, magnitude: u32) -> u32 {
    if (bin == 0u || bin == LAST_BIN) {
        return 0u;
    }
    let within = from_base(magnitude) - ((bin - 1u) << interval.shift);
    return min(within >> (max(interval.shift, 12u) - 12u), LAST_BIN);
}
