// The k-th largest magnitudes, all k of a row together. Level 1 counts keys by their upper 15 bits, level 2 those of
// the bins that some k divides by the next 9, level 3 by the last 8: there every k-th largest is known exactly.

// Adds to a 64-bit number whose upper word is `apart` words behind the lower.
fn add_bin(at: u32, apart: u32, x: vec2<u32>) {
    let before = atomicAdd(&bins[at], x.x);
    let upper = x.y + u32(before + x.x < before);
    if (upper != 0u) {
        atomicAdd(&bins[at + apart], upper);
    }
}

fn add_fine(at: u32, x: vec2<u32>) {
    let before = atomicAdd(&fine[at], x.x);
    let upper = x.y + u32(before + x.x < before);
    if (upper != 0u) {
        atomicAdd(&fine[at + 1u], upper);
    }
}

@compute @workgroup_size(64)
fn histogram_1(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    var largest = 0u;
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane.index;
        if (i >= params.count) {
            continue;
        }
        let magnitude = value(i) & MAGNITUDE;
        largest = max(largest, magnitude);
        if (magnitude >= INFINITY) {
            continue;
        }
        let key = key(magnitude);
        let bin = key >> COARSE;
        atomicAdd(&bins[bin], 1u);
        if (params.energies != 0u) {
            add_bin(BINS + bin, BINS, vec2<u32>(key & ((1u << COARSE) - 1u), 0u));
            let error = rounding(magnitude);
            if (error != 0u) {
                add_bin(3u * BINS + bin, BINS, mul_wide(error, error));
            }
        }
    }
    largest = largest_of(lane, 64u, largest);
    if (lane.index == 0u) {
        atomicMax(&results[params.result], largest);
    }
}

var<workgroup> counts: array<u32, 256>;

// Numbers equal neighbours of `counts` alike, from 0 on.
fn number(lane: u32) -> u32 {
    var number = 0u;
    for (var other = 1u; other <= lane; other++) {
        number += u32(counts[other] != counts[other - 1u]);
    }
    return number;
}

// The bin of each k, and a slot for each such bin. One invocation per k; k ascends.
@compute @workgroup_size(256)
fn choose_1(@builtin(local_invocation_index) lane: u32) {
    let at = params.first_keep + min(lane, params.keeps - 1u);
    let keep = state[at].keep;
    var low = 0u;
    var high = BINS - 1u;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (prefix[middle] < keep) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    counts[lane] = low;
    workgroupBarrier();
    if (lane < params.keeps) {
        let slot = number(lane);
        slots[low] = slot + 1u;
        state[at].bin = low;
        state[at].slot = slot;
        state[at].ties = keep - prefix[low];
    }
}

@compute @workgroup_size(64)
fn histogram_2(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
        if (i >= params.count) {
            continue;
        }
        let magnitude = value(i) & MAGNITUDE;
        let key = key(magnitude);
        let slot = slots[min(key >> COARSE, BINS - 1u)];
        if (slot == 0u) {
            continue;
        }
        let at = 3u * ((slot - 1u) * MIDDLES + ((key >> MIDDLE) & (MIDDLES - 1u)));
        atomicAdd(&fine[at], 1u);
        let error = rounding(magnitude);
        if (params.energies != 0u && error != 0u) {
            add_fine(at + 1u, mul_wide(error, error));
        }
    }
}

@compute @workgroup_size(256)
fn choose_2(@builtin(local_invocation_index) lane: u32) {
    let at = params.first_keep + min(lane, params.keeps - 1u);
    let slot = state[at].slot;
    var rank = state[at].ties;
    var middle = MIDDLES - 1u;
    while (middle > 0u) {
        let count = atomicLoad(&fine[3u * (slot * MIDDLES + middle)]);
        if (rank <= count) {
            break;
        }
        rank -= count;
        middle -= 1u;
    }
    counts[lane] = slot * MIDDLES + middle;
    workgroupBarrier();
    if (lane < params.keeps) {
        let last_slot = number(lane);
        slots[BINS + slot * MIDDLES + middle] = last_slot + 1u;
        state[at].middle = middle;
        state[at].last_slot = last_slot;
        state[at].ties = rank;
    }
}

@compute @workgroup_size(64)
fn histogram_3(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
        if (i >= params.count) {
            continue;
        }
        let key = key(value(i) & MAGNITUDE);
        let slot = slots[min(key >> COARSE, BINS - 1u)];
        if (slot == 0u) {
            continue;
        }
        let last_slot = slots[BINS + (slot - 1u) * MIDDLES + ((key >> MIDDLE) & (MIDDLES - 1u))];
        if (last_slot != 0u) {
            atomicAdd(&fine[LEVEL_3 + (last_slot - 1u) * LASTS + (key & (LASTS - 1u))], 1u);
        }
    }
}

@compute @workgroup_size(256)
fn choose_3(@builtin(local_invocation_index) lane: u32) {
    if (lane >= params.keeps) {
        return;
    }
    let at = params.first_keep + lane;
    var rank = state[at].ties;
    var last = LASTS - 1u;
    while (last > 0u) {
        let count = atomicLoad(&fine[LEVEL_3 + state[at].last_slot * LASTS + last]);
        if (rank <= count) {
            break;
        }
        rank -= count;
        last -= 1u;
    }
    state[at].ties = rank;
    state[at].last = last;
    state[at].magnitude = magnitude_of((state[at].bin << COARSE) | (state[at].middle << MIDDLE) | last);
}
