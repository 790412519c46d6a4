// The k-th largest magnitudes, for all k of a row together. Level 1 counts keys by their upper 15 bits. In bins that
// contain a k-th largest value, level 2 counts keys by the next 9 bits. In bins of level 2 that contain a k-th largest
// value, level 3 counts keys by the last 8 bits. After level 3, every k-th largest value is known exactly.

// Adds x to a number of 96 bits, whose words lie BINS apart. x.y must be less than 2^32 - 1.
fn add_bin(at: u32, x: vec2<u32>) {
    let before = atomicAdd(&bins[at], x.x);
    let upper = x.y + u32(before + x.x < before);
    if (upper == 0u) {
        return;
    }
    let upper_before = atomicAdd(&bins[at + BINS], upper);
    if (upper_before + upper < upper_before) {
        atomicAdd(&bins[at + 2u * BINS], 1u);
    }
}

// Adds x to three adjacent words.
fn add_fine(at: u32, x: vec2<u32>) {
    let before = atomicAdd(&fine[at], x.x);
    let upper = x.y + u32(before + x.x < before);
    if (upper == 0u) {
        return;
    }
    let upper_before = atomicAdd(&fine[at + 1u], upper);
    if (upper_before + upper < upper_before) {
        atomicAdd(&fine[at + 2u], 1u);
    }
}

// Adds values to a bin of level 1: the count, the sum of their keys' lower bits, and the sum of squared rounding
// errors.
fn add_to_bin(bin: u32, count: u32, keys: u32, errors: vec2<u32>) {
    atomicAdd(&bins[in_bins(bin)], count);
    add_bin(in_bins(BINS + bin), vec2<u32>(keys, 0u));
    if (any(errors != vec2<u32>(0u, 0u))) {
        add_bin(in_bins(3u * BINS + bin), errors);
    }
}

// Adds values to a bin of level 2: the count, and the sum of squared rounding errors.
fn add_to_middle(bin: u32, count: u32, errors: vec2<u32>) {
    atomicAdd(&fine[in_fine(bin)], count);
    if (any(errors != vec2<u32>(0u, 0u))) {
        add_fine(in_fine(bin) + 1u, errors);
    }
}

fn squared_error(magnitude: u32) -> vec2<u32> {
    let error = rounding(magnitude);
    return mul_wide(error, error);
}

@compute @workgroup_size(256)
fn histogram_1(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    clear_tallies(lane.index);
    var largest = 0u;
    for (var i = group.x * 256u + lane.index; i < params.count; i += groups.x * 256u) {
        let magnitude = value(i) & MAGNITUDE;
        largest = max(largest, magnitude);
        if (magnitude >= INFINITY) {
            continue;
        }
        let key = key(magnitude);
        let keys = key & ((1u << UPPER) - 1u);
        let errors = squared_error(magnitude);
        let place = tally(key >> UPPER);
        if (place == PLACES) {
            add_to_bin(key >> UPPER, 1u, keys, errors);
        } else {
            tally_key(place, keys);
            tally_error(place, errors);
        }
    }
    workgroupBarrier();
    for (var place = lane.index; place < PLACES; place += 256u) {
        let tally = tally_at(place);
        if (tally.count != 0u) {
            add_to_bin(tally.bin, tally.count, tally.keys, tally.errors);
        }
    }
    largest = largest_of(lane, 256u, largest);
    if (lane.index == 0u) {
        atomicMax(&results[params.result], largest);
    }
}

var<workgroup> counts: array<u32, 256>;

// `counts` consists of runs of equal entries. Returns the number of the run that contains the lane's entry, counted
// from 0.
fn number(lane: u32) -> u32 {
    var number = 0u;
    for (var other = 1u; other <= lane; other++) {
        number += u32(counts[other] != counts[other - 1u]);
    }
    return number;
}

// Whether a lane is the first of its run of equal entries in `counts`. The first lane acts for all lanes of the run.
fn is_first(lane: u32) -> bool {
    return lane == 0u || counts[lane] != counts[lane - 1u];
}

// Finds the bin that contains each k-th largest value, and assigns a slot to each such bin. There is one invocation per
// k, in ascending order of k.
@compute @workgroup_size(256)
fn choose_1(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let at = params.first_keep + lane;
    var low = 0u;
    if (lane < params.keeps) {
        let keep = state[at].keep;
        var high = BINS - 1u;
        while (low < high) {
            let middle = (low + high) / 2u;
            if (prefix[in_prefix(middle)] < keep) {
                high = middle;
            } else {
                low = middle + 1u;
            }
        }
        counts[lane] = low;
    }
    workgroupBarrier();
    if (lane < params.keeps) {
        let slot = number(lane);
        if (is_first(lane)) {
            slots[in_slots(low)] = slot + 1u;
        }
        state[at].bin = low;
        state[at].slot = slot;
        state[at].ties = state[at].keep - prefix[in_prefix(low)];
    }
}

@compute @workgroup_size(256)
fn histogram_2(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    clear_tallies(lane);
    for (var i = group.x * 256u + lane; i < params.count; i += groups.x * 256u) {
        let magnitude = value(i) & MAGNITUDE;
        let key = key(magnitude);
        let slot = slots[in_slots(min(key >> UPPER, BINS - 1u))];
        if (slot == 0u) {
            continue;
        }
        let bin = (slot - 1u) * MIDDLES + ((key >> MIDDLE) & (MIDDLES - 1u));
        let errors = squared_error(magnitude);
        let place = tally(bin);
        if (place == PLACES) {
            add_to_middle(bin, 1u, errors);
        } else {
            tally_error(place, errors);
        }
    }
    workgroupBarrier();
    for (var place = lane; place < PLACES; place += 256u) {
        let tally = tally_at(place);
        if (tally.count != 0u) {
            add_to_middle(tally.bin, tally.count, tally.errors);
        }
    }
}

@compute @workgroup_size(256)
fn choose_2(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let at = params.first_keep + lane;
    var rank = 0u;
    var middle = MIDDLES - 1u;
    if (lane < params.keeps) {
        let slot = state[at].slot;
        rank = state[at].ties;
        while (middle > 0u) {
            let count = atomicLoad(&fine[in_fine(slot * MIDDLES + middle)]);
            if (rank <= count) {
                break;
            }
            rank -= count;
            middle -= 1u;
        }
        counts[lane] = slot * MIDDLES + middle;
    }
    workgroupBarrier();
    if (lane < params.keeps) {
        let last_slot = number(lane);
        if (is_first(lane)) {
            slots[in_slots(BINS + counts[lane])] = last_slot + 1u;
        }
        state[at].middle = middle;
        state[at].last_slot = last_slot;
        state[at].ties = rank;
    }
}

@compute @workgroup_size(256)
fn histogram_3(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    clear_tallies(lane);
    for (var i = group.x * 256u + lane; i < params.count; i += groups.x * 256u) {
        let key = key(value(i) & MAGNITUDE);
        let slot = slots[in_slots(min(key >> UPPER, BINS - 1u))];
        if (slot == 0u) {
            continue;
        }
        let last_slot = slots[in_slots(BINS + (slot - 1u) * MIDDLES + ((key >> MIDDLE) & (MIDDLES - 1u)))];
        if (last_slot == 0u) {
            continue;
        }
        let bin = (last_slot - 1u) * LASTS + (key & (LASTS - 1u));
        if (tally(bin) == PLACES) {
            atomicAdd(&fine[in_last(0u, bin)], 1u);
        }
    }
    workgroupBarrier();
    for (var place = lane; place < PLACES; place += 256u) {
        let tally = tally_at(place);
        if (tally.count != 0u) {
            atomicAdd(&fine[in_last(0u, tally.bin)], tally.count);
        }
    }
}

@compute @workgroup_size(256)
fn choose_3(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch) || lane >= params.keeps) {
        return;
    }
    let at = params.first_keep + lane;
    var rank = state[at].ties;
    var last = LASTS - 1u;
    while (last > 0u) {
        let count = atomicLoad(&fine[in_last(state[at].last_slot, last)]);
        if (rank <= count) {
            break;
        }
        rank -= count;
        last -= 1u;
    }
    state[at].ties = rank;
    state[at].last = last;
    state[at].magnitude = magnitude_of((state[at].bin << UPPER) | (state[at].middle << MIDDLE) | last);
}
