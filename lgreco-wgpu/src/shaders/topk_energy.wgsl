// Squared errors of TopK: the energy below each cut, and the rounding errors of what is sent.

fn float64(low: u32, high: u32) -> f32 {
    return f32(high) * 0x1p32f + f32(low);
}

// The energy of the elements in a bin of level 1: exact but for the spread of their magnitudes about the mean, which
// lies between nothing and that of magnitudes at the ends of the bin alone, and is taken to be half of the latter. Ends
// are 2^-6 apart, so at most 2^-15 of the energy is lost.
fn energy(bin: u32) -> Wide {
    let count = atomicLoad(&bins[bin]);
    if (count == 0u || bin < 64u) {
        return Wide(0.0, 0);
    }
    let mean = float64(atomicLoad(&bins[BINS + bin]), atomicLoad(&bins[2u * BINS + bin])) / f32(count) * 0x1p-23f;
    let magnitude = 1.0 + f32(bin & 63u) * 0x1p-6f + mean;
    let spread = 0.5 * mean * max(0x1p-6f - mean, 0.0);
    return wide(f32(count) * (magnitude * magnitude + spread), unit_exponent(bin) + 46);
}

// Of the squared unit in the last place of the bin's keys.
fn unit_exponent(bin: u32) -> i32 {
    return 2 * (i32(bin >> 6u) - 173);
}

fn sent_error(bin: u32) -> Wide {
    return wide(float64(atomicLoad(&bins[3u * BINS + bin]), atomicLoad(&bins[4u * BINS + bin])), unit_exponent(bin));
}

var<workgroup> energies: array<Wide, 256>;
var<workgroup> errors: array<Wide, 256>;

// What lies above and below each bin of level 1.
@compute @workgroup_size(256)
fn prefixes(@builtin(local_invocation_index) lane: u32) {
    let share = (BINS + 255u) / 256u;
    let start = min(lane * share, BINS);
    let end = min(start + share, BINS);
    var count = 0u;
    var below = Wide(0.0, 0);
    var sent = Wide(0.0, 0);
    for (var bin = start; bin < end; bin++) {
        count += atomicLoad(&bins[bin]);
        if (params.energies != 0u) {
            below = plus(below, energy(bin));
            sent = plus(sent, sent_error(bin));
        }
    }
    counts[lane] = count;
    energies[lane] = below;
    errors[lane] = sent;
    workgroupBarrier();
    count = 0u;
    below = Wide(0.0, 0);
    sent = Wide(0.0, 0);
    for (var other = 0u; other < lane; other++) {
        below = plus(below, energies[other]);
    }
    for (var other = lane + 1u; other < 256u; other++) {
        count += counts[other];
        sent = plus(sent, errors[other]);
    }
    for (var bin = start; bin < end; bin++) {
        prefix[BINS + bin] = bitcast<u32>(below.m);
        prefix[2u * BINS + bin] = bitcast<u32>(below.e);
        if (params.energies != 0u) {
            below = plus(below, energy(bin));
        }
    }
    for (var bin = end; bin > start; bin--) {
        prefix[bin - 1u] = count;
        prefix[3u * BINS + bin - 1u] = bitcast<u32>(sent.m);
        prefix[4u * BINS + bin - 1u] = bitcast<u32>(sent.e);
        count += atomicLoad(&bins[bin - 1u]);
        if (params.energies != 0u) {
            sent = plus(sent, sent_error(bin - 1u));
        }
    }
}

// The squared error of each k: what lies below its cut, and the rounding errors of what is sent.
@compute @workgroup_size(256)
fn total(@builtin(local_invocation_index) lane: u32) {
    if (lane >= params.keeps) {
        return;
    }
    let keep = state[params.first_keep + lane];
    let bin = keep.bin;
    let unit = unit_exponent(bin);
    var dropped = Wide(bitcast<f32>(prefix[BINS + bin]), bitcast<i32>(prefix[2u * BINS + bin]));
    var sent = Wide(bitcast<f32>(prefix[3u * BINS + bin]), bitcast<i32>(prefix[4u * BINS + bin]));
    if (bin >= 64u) {
        let base = 1.0 + f32(bin & 63u) * 0x1p-6f;
        for (var middle = 0u; middle < keep.middle; middle++) {
            // The middle of the bin, which is 2^-15 wide.
            let magnitude = base + (f32(middle) + 0.5) * 0x1p-15f;
            let count = f32(atomicLoad(&fine[3u * (keep.slot * MIDDLES + middle)]));
            dropped = plus(dropped, wide(count * (magnitude * magnitude), unit + 46));
        }
        for (var middle = MIDDLES - 1u; middle > keep.middle; middle--) {
            let at = 3u * (keep.slot * MIDDLES + middle) + 1u;
            sent = plus(sent, wide(float64(atomicLoad(&fine[at]), atomicLoad(&fine[at + 1u])), unit));
        }
        for (var last = 0u; last < LASTS; last++) {
            let count = atomicLoad(&fine[LEVEL_3 + keep.last_slot * LASTS + last]);
            if (count == 0u) {
                continue;
            }
            var kept = select(0u, count, last > keep.last);
            if (last == keep.last) {
                kept = keep.ties;
            }
            let magnitude = base + f32((keep.middle << MIDDLE) | last) * 0x1p-23f;
            dropped = plus(dropped, wide(f32(count - kept) * (magnitude * magnitude), unit + 46));
            let error = f32(rounding(magnitude_of((bin << COARSE) | (keep.middle << MIDDLE) | last)));
            sent = plus(sent, wide(f32(kept) * (error * error), unit));
        }
    }
    let sum = plus(dropped, sent);
    let at = params.result + 2u * lane;
    atomicStore(&results[at], bitcast<u32>(sum.m));
    atomicStore(&results[at + 1u], bitcast<u32>(sum.e));
}
