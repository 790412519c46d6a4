// A sample of a layer's values, and the interval of magnitudes that it tells, in which the k-th largest is.

const SAMPLE_SHIFT = 19u;
const LAST_BIN = 4095u;
const MOST_SHIFT = 13u;

// Magnitudes from `bound` to `ceiling`, of which bins have 2^shift each, from `base` on.
struct Interval {
    bound: u32,
    ceiling: u32,
    base: u32,
    shift: u32,
}

var<private> interval: Interval;

// The position among 2048 values of the sample's value `draw`: one of each stratum.
fn drawn(draw: u32, seed: u32) -> u32 {
    return (draw << params.stratum) + (mixed(seed + draw) & ((1u << params.stratum) - 1u));
}

fn draws() -> u32 {
    return PER_GROUP >> params.stratum;
}

// Adds a magnitude to the sample, whose shares are cleared before and given after.
fn add_to_sample(magnitude: u32) {
    let bin = magnitude >> SAMPLE_SHIFT;
    let at = params.counters + bin;
    add_counter(at + SAMPLED, 1u);
    raise_counter(at + LARGEST_SAMPLED, magnitude);
    raise_counter(at + LEAST_SAMPLED, ~magnitude);
    atomicAdd(&own_shares[bin / 64u], 1u);
}

// What the sample tells. `most` of it reach the k-th largest magnitude at most, and `least` at least; `most` is 0 where all is kept.
fn find_interval(lane: Lane) {
    let lower = pick(0u, SAMPLED, 64u, params.most, lane);
    let upper = pick(0u, SAMPLED, 64u, params.least, lane);
    var bound = 0u;
    if (lower.bin != NOWHERE) {
        bound = ~counted(LEAST_SAMPLED + lower.bin);
    }
    var ceiling = MAGNITUDE;
    if (upper.bin != NOWHERE) {
        ceiling = counted(LARGEST_SAMPLED + upper.bin);
    }
    if (params.most == 0u) {
        // All but zeros are above it.
        ceiling = 0u;
    }
    bound = min(bound, ceiling);
    let shift = max(32u - countLeadingZeros(ceiling - bound), 12u) - 12u;
    var base = bound;
    if (shift > MOST_SHIFT && upper.bin != NOWHERE) {
        base = ceiling - ((LAST_BIN << MOST_SHIFT) | ((1u << MOST_SHIFT) - 1u));
    }
    interval = Interval(bound, ceiling, base, min(shift, MOST_SHIFT));
}

// The same once it is written down.
fn load_interval() {
    interval = Interval(counted(INTERVAL), counted(INTERVAL + 1u), counted(INTERVAL + 2u), counted(INTERVAL + 3u));
}

fn bin_in_interval(magnitude: u32) -> u32 {
    return min((magnitude - min(magnitude, interval.base)) >> interval.shift, LAST_BIN);
}

// Whether a bin has no more magnitudes than there are counts.
fn is_narrow(bin: u32) -> bool {
    let is_first = bin == 0u && interval.base > interval.bound;
    let is_last = bin == LAST_BIN && (interval.ceiling - interval.base) >> interval.shift > LAST_BIN;
    return !is_first && !is_last;
}
