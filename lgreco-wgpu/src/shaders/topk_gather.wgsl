// The first read of a layer's values: which values are gathered, and which are only counted.

// The magnitudes that a workgroup gathers. `settle_block` uses the same memory for counts of magnitudes.
var<workgroup> gathered: array<atomic<u32>, 2048>;
// Numbers of the workgroup's values: gathered values, values above the interval, values equal to its upper end, and
// values equal to its lower end. The last two words have the meaning of LOWEST and HIGHEST in `topk_counters.wgsl`.
var<workgroup> own_ends: array<atomic<u32>, 6>;
// One bit per exponent: 1 if a value with this exponent occurs.
var<workgroup> own_octaves: array<atomic<u32>, 8>;

// Begins a workgroup's first read. All 64 lanes must call this function.
fn begin_gathering(lane: Lane) {
    clear_shares(lane.index);
    if (lane.index < 6u) {
        atomicStore(&own_ends[lane.index], 0u);
    }
    if (lane.index < 8u) {
        atomicStore(&own_octaves[lane.index], 0u);
    }
    find_interval(lane);
}

// A lane's numbers of values above the interval, equal to its upper end, and equal to its lower end. The last two words
// have the meaning of LOWEST and HIGHEST in `topk_counters.wgsl`.
var<private> seen: array<u32, 5>;

fn gather(magnitude: u32) {
    if (magnitude > interval.bound && magnitude < interval.ceiling) {
        atomicStore(&gathered[atomicAdd(&own_ends[0], 1u)], magnitude);
    }
}

// Processes a value of the first read.
fn see(magnitude: u32) {
    gather(magnitude);
    seen[0] += u32(magnitude > interval.ceiling);
    seen[1] += u32(magnitude == interval.ceiling);
    seen[2] += u32(magnitude == interval.bound && magnitude < interval.ceiling);
    if (magnitude > 0u) {
        seen[3] = max(seen[3], ~magnitude);
        seen[4] = max(seen[4], magnitude);
        let octave = exponent_of(magnitude);
        if (params.bits != 0u && ((atomicLoad(&own_octaves[octave / 32u]) >> (octave % 32u)) & 1u) == 0u) {
            atomicOr(&own_octaves[octave / 32u], 1u << (octave % 32u));
        }
    }
}

// Index of a block's record. The record has the place in `entries` of the values that the block gathered, or NOWHERE if
// these values did not fit. The number of gathered values follows. Then come the numbers of the block's values above
// the interval, equal to its upper end, and equal to its lower end.
fn record_of(block: u32) -> u32 {
    return 4u * block;
}

// Ends a workgroup's first read. `is_first` marks the layer's first block, which writes the interval. All 64 lanes must
// call this function.
fn end_gathering(block: u32, is_first: bool, lane: u32) {
    for (var i = 0u; i < 3u; i++) {
        if (seen[i] != 0u) {
            atomicAdd(&own_ends[1u + i], seen[i]);
        }
    }
    atomicMax(&own_ends[4], seen[3]);
    atomicMax(&own_ends[5], seen[4]);
    workgroupBarrier();
    let size = atomicLoad(&own_ends[0]);
    if (lane == 0u) {
        let above = atomicLoad(&own_ends[1]);
        let upper = atomicLoad(&own_ends[2]);
        let lower = atomicLoad(&own_ends[3]);
        let used = add_counter(COUNTERS + USED, size);
        let fits = used <= params.most_entries && size <= params.most_entries - used;
        let at = record_of(block);
        entries[at] = select(NOWHERE, params.first_entry + used, fits);
        entries[at + 1u] = size;
        entries[at + 2u] = above;
        entries[at + 3u] = (upper << 16u) | lower;
        picked[0].bin = entries[at];
        add_counter(COUNTERS + ABOVE, above);
        add_to_bin_of(interval.ceiling, upper);
        add_to_bin_of(interval.bound, lower);
        raise_counter(COUNTERS + LOWEST, atomicLoad(&own_ends[4]));
        raise_counter(COUNTERS + HIGHEST, atomicLoad(&own_ends[5]));
        if (is_first) {
            set_counter(COUNTERS + INTERVAL, interval.bound);
            set_counter(COUNTERS + INTERVAL + 1u, interval.ceiling);
            set_counter(COUNTERS + INTERVAL + 2u, interval.base);
            set_counter(COUNTERS + INTERVAL + 3u, interval.shift);
        }
    }
    workgroupBarrier();
    let to = picked[0].bin;
    for (var i = lane; i < size; i += 64u) {
        let magnitude = atomicLoad(&gathered[i]);
        if (to != NOWHERE) {
            entries[to + i] = magnitude;
        }
        add_to_bin_of(magnitude, 1u);
    }
    workgroupBarrier();
    give_shares(COARSE, lane);
    if (lane < 8u && params.bits != 0u) {
        let octaves = atomicLoad(&own_octaves[lane]);
        if ((octaves & ~counted(OCTAVES + lane)) != 0u) {
            add_bits_to_counter(COUNTERS + OCTAVES + lane, octaves);
        }
    }
}

// Adds `count` values of this magnitude to its bin of the interval. Atomics rarely collide: few values are gathered,
// and values equal to an end of the interval are added in one call. Only the atomics of equal magnitudes, which are
// common in 16-bit types, collide.
fn add_to_bin_of(magnitude: u32, count: u32) {
    if (count != 0u) {
        let bin = bin_in_interval(magnitude);
        add_counter(COUNTERS + BINNED + bin, count);
        atomicAdd(&own_shares[bin / 64u], count);
    }
}
