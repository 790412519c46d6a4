// Finds the cut of a layer, its k-th largest magnitude, with two reads of its values. The second read writes the kept
// values.
//
// A sample gives an interval of magnitudes that contains the k-th largest (`topk_sample.wgsl`). The interval misses the
// k-th largest with a chance below 1 in 10^8. The first read counts the values above the interval, and the values equal
// to an end of the interval, which may be many. This read also gathers the values inside the interval
// (`topk_gather.wgsl`). Gathered values are counted in 4096 bins. The bin with the k-th largest is divided into 4096
// parts, and the values of this bin are counted per part. After each of these two counts, a new dispatch begins, in
// which all workgroups search the counts for the rank (`topk_counters.wgsl`). The tables also have the largest and the
// smallest magnitude of each part.
//
// If all bins together span at most two octaves, a part has one magnitude. The number of magnitudes in a part doubles
// with each doubling of the span. Wide bins occur in small layers, whose samples are too small to give both ends of the
// interval. If the k-th largest lies between a part's largest and smallest, all workgroups look through the gathered
// values. Workgroups do so only for layers of up to 65,536 values.
//
// The cut does not depend on the sample. A sample misses the cut in two cases. In the first case, the k-th largest is
// not in the interval. In the second case, the k-th largest lies inside a part, but the workgroups cannot look through
// the gathered values. The reason is a layer of more than 65,536 values, or gathered values that had no room in
// `entries`. After a miss, all values are counted three times, by 11, 10 and 10 bits, before any value is kept. Values
// that had no room in `entries` are read again from the tensor.

// A layer's cut, and the number of kept values at the cut.
struct Cut {
    magnitude: u32,
    ties: u32,
}

// The rank of the k-th largest within the interval; 0 if the k-th largest lies above the interval.
fn rank_within() -> u32 {
    let above = counted(ABOVE);
    return params.keep - min(above, params.keep);
}

// Whether the whole layer is kept, and all its values are above the interval. The interval is then zero.
fn is_all_above() -> bool {
    return params.most == 0u && rank_within() == 0u;
}

// Counts the values in each part of the bin that contains the k-th largest. All 64 lanes must call this function.
fn count_picked(block: u32, first: u32, is_first: bool, lane: Lane) {
    clear_shares(lane.index);
    if (lane.index < 6u) {
        atomicStore(&own_ends[lane.index], 0u);
    }
    load_interval();
    let found = pick(COARSE, COUNTERS + BINNED, 64u, rank_within(), lane);
    if (is_first && lane.index == 0u) {
        set_counter(COUNTERS + BIN, found.bin);
        set_counter(COUNTERS + BIN_RANK, found.rank);
    }
    let counts = found.bin != NOWHERE;
    let at = record_of(block);
    var place_of_entries = NOWHERE;
    var size = 0u;
    if (counts) {
        place_of_entries = entries[at];
        size = entries[at + 1u];
    }
    let end = select(first, min(first + PER_GROUP, params.count), counts && place_of_entries == NOWHERE);
    for (var i = first + lane.index; i < end; i += 64u) {
        gather(value(i) & MAGNITUDE);
    }
    workgroupBarrier();
    for (var i = lane.index; i < size; i += 64u) {
        var magnitude: u32;
        if (place_of_entries == NOWHERE) {
            magnitude = atomicLoad(&gathered[i]);
        } else {
            magnitude = entry(place_of_entries + i);
        }
        add_picked(found.bin, magnitude, 1u);
    }
    if (counts && lane.index == 0u) {
        add_picked(found.bin, interval.ceiling, entries[at + 3u] >> 16u);
        add_picked(found.bin, interval.bound, entries[at + 3u] & 0xffffu);
    }
    workgroupBarrier();
    give_shares(FINE, lane.index);
}

// A gathered magnitude. All reads of gathered magnitudes go through this function, so that tests can count the reads.
fn entry(at: u32) -> u32 {
    return entries[at];
}

fn add_picked(bin: u32, magnitude: u32, times: u32) {
    if (times != 0u && bin_in_interval(magnitude) == bin) {
        add_to_table(part_of_bin(bin, magnitude), magnitude, times);
    }
}

// Index of the first count of a level, after the sample has missed the cut.
fn level_start(level: u32) -> u32 {
    return select(1024u + 1024u * level, 0u, level == 0u);
}

fn level_bins(level: u32) -> u32 {
    return select(1024u, 2048u, level == 0u);
}

// After a missed cut: the upper bits of the cut that are known before a level, and k's rank among the values with these
// bits. After the last level, these bits are the cut. All 64 lanes must call this function.
fn settled(level: u32, lane: Lane) -> Cut {
    if (level == 0u) {
        return Cut(0u, params.keep);
    }
    let last = level - 1u;
    let before = Cut(counted(SETTLED_CUT + 2u * last), counted(SETTLED_CUT + 2u * last + 1u));
    let found = pick(SETTLED + last, level_start(last), level_bins(last) / 64u, before.ties, lane);
    return Cut(before.magnitude * level_bins(last) + found.bin, found.rank);
}

// Counts a block's values by the bits of one of the three levels. Skips values whose upper bits differ from the cut's.
// The block's first value has index `first`. All 64 lanes must call this function.
fn settle_block(level: u32, first: u32, is_first: bool, lane: Lane) {
    clear_shares(lane.index);
    for (var bin = lane.index; bin < 2048u; bin += 64u) {
        atomicStore(&gathered[bin], 0u);
    }
    let cut = settled(level, lane);
    workgroupBarrier();
    let end = min(first + PER_GROUP, params.count);
    for (var i = first + lane.index; i < end; i += 64u) {
        let bits = (value(i) & MAGNITUDE) >> (20u - 10u * level);
        if (bits / level_bins(level) == cut.magnitude) {
            atomicAdd(&gathered[bits % level_bins(level)], 1u);
        }
    }
    workgroupBarrier();
    for (var bin = lane.index; bin < level_bins(level); bin += 64u) {
        let count = atomicLoad(&gathered[bin]);
        if (count != 0u) {
            add_counter(level_start(level) + bin, count);
            atomicAdd(&own_shares[bin * 64u / level_bins(level)], count);
        }
    }
    workgroupBarrier();
    give_shares(SETTLED + level, lane.index);
    if (is_first && lane.index == 0u) {
        set_counter(COUNTERS + SETTLED_CUT + 2u * level, cut.magnitude);
        set_counter(COUNTERS + SETTLED_CUT + 2u * level + 1u, cut.ties);
    }
}

// Stands for a cut that the sample has missed. No magnitude is above LOST_CUT.
const LOST_CUT = Cut(MAGNITUDE, 0u);

fn is_lost(cut: Cut) -> bool {
    return cut.magnitude == MAGNITUDE;
}

// The cut, once all counts are complete. If `was_lost`, the sample has missed the cut, and all values have been
// counted. All 64 lanes must call this function.
fn find_cut(was_lost: bool, lane: Lane) -> Cut {
    load_interval();
    if (was_lost) {
        return settled(3u, lane);
    }
    let found = pick(FINE, BIN_COUNTS, 64u, counted(BIN_RANK), lane);
    let cut = look_through(possible_range(found), found.rank, lane);
    if (is_lost(cut)) {
        return LOST_CUT;
    }
    return cut;
}

// Largest number of gathered magnitudes that each workgroup of a layer looks through. Layers of up to 65,536 values
// have room for at most this many magnitudes. All other layers have more room, unless a binding is too small.
const LOOKED_THROUGH = 32768u;

// The smallest and the largest possible magnitude of the cut, from its part. The two are equal if the cut is already
// known, or if the sample has missed the cut.
fn possible_range(found: Picked) -> vec2<u32> {
    if (is_all_above()) {
        return vec2<u32>(0u);
    }
    if (counted(BIN) == NOWHERE) {
        return vec2<u32>(MAGNITUDE);
    }
    let at = found.bin;
    let largest = counter(at + BIN_LARGEST);
    let least = ~counter(at + BIN_LEAST);
    if (largest == least || found.rank == 1u) {
        return vec2<u32>(largest);
    }
    if (found.rank == counter(at + BIN_COUNTS)) {
        // All values of this magnitude are kept, because the rank covers the whole part.
        return vec2<u32>(least);
    }
    if (counted(USED) > params.most_entries || params.most_entries > LOOKED_THROUGH) {
        return vec2<u32>(MAGNITUDE);
    }
    return vec2<u32>(least, largest);
}

// The range in which the cut is searched.
var<workgroup> sought: array<vec2<u32>, 1>;

// Finds the cut: the value with this rank among the gathered values in the range `between`. Each round narrows the
// range by six bits. The ends of the interval never share a range with other magnitudes. All 64 lanes must call this
// function.
fn look_through(between: vec2<u32>, rank: u32, lane: Lane) -> Cut {
    var cut = Cut(MAGNITUDE, rank);
    if (lane.index == 0u) {
        sought[0] = between;
    }
    // Magnitudes have 31 bits.
    for (var round = 0u; round < 7u; round++) {
        let range = workgroupUniformLoad(&sought[0]);
        cut.magnitude = range.x;
        if (range.x == range.y) {
            break;
        }
        let shift = max(32u - countLeadingZeros(range.y - range.x), 6u) - 6u;
        clear_shares(lane.index);
        workgroupBarrier();
        count_between(range, shift, lane.index);
        workgroupBarrier();
        let number = number_of(lane);
        let found = pick_lane(number, atomicLoad(&own_shares[number]), cut.ties, lane);
        cut.ties = found.rank;
        if (lane.index == 0u) {
            let least = range.x + (found.bin << shift);
            sought[0] = vec2<u32>(least, min(least + (1u << shift) - 1u, range.y));
        }
    }
    return cut;
}

// Counts the gathered values in a range in bins of 2^shift magnitudes. All values of the range must have been gathered.
fn count_between(range: vec2<u32>, shift: u32, lane: u32) {
    let size = counted(USED);
    for (var i = lane; i < size; i += 64u) {
        let magnitude = entry(params.first_entry + i);
        if (magnitude >= range.x && magnitude <= range.y) {
            atomicAdd(&own_shares[(magnitude - range.x) >> shift], 1u);
        }
    }
}

// The range of kept magnitudes: from the cut, or from the smallest nonzero magnitude, to the largest.
fn kept_range(cut: Cut) -> vec2<u32> {
    let high = counted(HIGHEST);
    return vec2<u32>(min(select(cut.magnitude, ~counted(LOWEST), cut.magnitude == 0u), high), high);
}

// Two numbers for counting: 1 if a value is above the cut, and 1 if the value equals the cut.
fn found(bits: u32, cut: u32) -> vec2<u32> {
    let magnitude = bits & MAGNITUDE;
    return vec2<u32>(u32(magnitude > cut), u32(magnitude == cut));
}

// A lane's share of the number of a block's values above the cut, and of the number equal to the cut. The block's first
// value has index `first`.
fn count_found(block: u32, first: u32, cut: u32, lane: u32) -> vec2<u32> {
    var sum = vec2<u32>(0u, 0u);
    if (cut == MAGNITUDE) {
        return sum;
    }
    let at = record_of(block);
    let place_of_entries = entries[at];
    if (place_of_entries == NOWHERE || cut < interval.bound || cut > interval.ceiling) {
        let end = min(first + PER_GROUP, params.count);
        for (var i = first + lane; i < end; i += 64u) {
            sum += found(value(i), cut);
        }
        return sum;
    }
    let size = entries[at + 1u];
    for (var i = lane; i < size; i += 64u) {
        sum += found(entry(place_of_entries + i), cut);
    }
    if (lane == 0u) {
        let ends = entries[at + 3u];
        sum += vec2<u32>(entries[at + 2u], 0u);
        sum += (ends >> 16u) * found(interval.ceiling, cut) + (ends & 0xffffu) * found(interval.bound, cut);
    }
    return sum;
}
