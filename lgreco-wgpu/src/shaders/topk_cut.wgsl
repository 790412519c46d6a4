// Where the k largest of a layer end, with two reads of its values, the second of which writes them down.
//
// A sample tells an interval of magnitudes that has the k-th largest, but for a chance of less than one in 10^8
// (`topk_sample.wgsl`). The first read counts what is above the interval and what is at either end, of which there may be any number, and
// gathers what lies within (`topk_gather.wgsl`). That is counted in 4096 bins, and what is in the k-th largest's bin in 4096 parts of it.
// Each of these counts is complete when a dispatch begins, all of whose workgroups look for the rank in it themselves
// (`topk_counters.wgsl`). Of the part that has the k-th largest, its largest magnitude and its smallest are known.
//
// A part has one magnitude if bins are of two octaves together or less, and two for each time that they are of twice as many, as of small
// layers of which too little is drawn to know both ends of the interval. Where the k-th largest is between a part's largest and smallest, all
// workgroups look through what is gathered, of layers of up to 65,536 values.
//
// Whatever the sample, the cut is the same. It is lost where the k-th largest is not in the interval, or between those two in a larger layer,
// or in one of which more is gathered than there is room for. Nothing is kept then, until all values have been counted three times, by
// 11, 10 and 10 bits. What there is no room for is read again from where it lies.

// Where a layer's k largest end, and how many of those at the cut are kept.
struct Cut {
    magnitude: u32,
    ties: u32,
}

// The rank of the k-th largest within the interval; 0 if it lies above.
fn rank_within() -> u32 {
    let above = counted(ABOVE);
    return params.keep - min(above, params.keep);
}

// Whether all that is kept is above zero, the interval, because it is all of the layer.
fn is_all_above() -> bool {
    return params.most == 0u && rank_within() == 0u;
}

// Counts parts of the bin that has the k-th largest. All 64 lanes call it.
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

// A magnitude that is gathered. All are read here, where tests count them.
fn entry(at: u32) -> u32 {
    return entries[at];
}

fn add_picked(bin: u32, magnitude: u32, times: u32) {
    if (times != 0u && bin_in_interval(magnitude) == bin) {
        add_to_table(part_of_bin(bin, magnitude), magnitude, times);
    }
}

// Counts of magnitudes by the bits of a level, of a cut that is lost.
fn level_start(level: u32) -> u32 {
    return select(1024u + 1024u * level, 0u, level == 0u);
}

fn level_bins(level: u32) -> u32 {
    return select(1024u, 2048u, level == 0u);
}

// The upper bits of a lost cut that are known before a level, and k's rank among those that have them; at last the cut. All 64 lanes
// call it.
fn settled(level: u32, lane: Lane) -> Cut {
    if (level == 0u) {
        return Cut(0u, params.keep);
    }
    let last = level - 1u;
    let before = Cut(counted(SETTLED_CUT + 2u * last), counted(SETTLED_CUT + 2u * last + 1u));
    let found = pick(SETTLED + last, level_start(last), level_bins(last) / 64u, before.ties, lane);
    return Cut(before.magnitude * level_bins(last) + found.bin, found.rank);
}

// Counts a block's values from `first` on by the bits of a level, of which there are three. All 64 lanes call it.
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

// Nothing is above it.
const LOST_CUT = Cut(MAGNITUDE, 0u);

fn is_lost(cut: Cut) -> bool {
    return cut.magnitude == MAGNITUDE;
}

// The cut, once all is counted, of one that was lost too. All 64 lanes call it.
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

// Gathered magnitudes that each workgroup of a layer looks through at most: of layers of up to 65,536 values there is room for as many
// or fewer, of all others for more, unless a binding has no more.
const LOOKED_THROUGH = 32768u;

// Smallest and largest magnitude that the cut may be, from the part where it is; twice the same if that is known, or lost.
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
        // All at it are kept, which are as many or fewer.
        return vec2<u32>(least);
    }
    if (counted(USED) > params.most_entries || params.most_entries > LOOKED_THROUGH) {
        return vec2<u32>(MAGNITUDE);
    }
    return vec2<u32>(least, largest);
}

// The range in which a cut is looked for.
var<workgroup> sought: array<vec2<u32>, 1>;

// The cut, of which a rank is known among what is gathered in its range: six bits of the range a time. Ends of the interval are in no
// range with others. All 64 lanes call it.
fn look_through(between: vec2<u32>, rank: u32, lane: Lane) -> Cut {
    var cut = Cut(MAGNITUDE, rank);
    if (lane.index == 0u) {
        sought[0] = between;
    }
    // There are 31 bits.
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

// Counts what is gathered in a range, of which there is all, in bins of 2^shift magnitudes.
fn count_between(range: vec2<u32>, shift: u32, lane: u32) {
    let size = counted(USED);
    for (var i = lane; i < size; i += 64u) {
        let magnitude = entry(params.first_entry + i);
        if (magnitude >= range.x && magnitude <= range.y) {
            atomicAdd(&own_shares[(magnitude - range.x) >> shift], 1u);
        }
    }
}

// The magnitudes that are kept: from the cut on, or from the smallest that is not 0, to the largest.
fn kept_range(cut: Cut) -> vec2<u32> {
    let high = counted(HIGHEST);
    return vec2<u32>(min(select(cut.magnitude, ~counted(LOWEST), cut.magnitude == 0u), high), high);
}

// What a value adds to the number of elements above the cut, and of those at it.
fn found(bits: u32, cut: u32) -> vec2<u32> {
    let magnitude = bits & MAGNITUDE;
    return vec2<u32>(u32(magnitude > cut), u32(magnitude == cut));
}

// How many of a block's values from `first` on are above the cut and at it, by lane.
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
