// Squared errors of TopK: the energy below each cut, and the rounding errors of sent values.
//
// The spread of magnitudes inside bins loses at most 2^-15 of the energy. Loops are nested so that no sum is more than
// 260 additions deep; each addition errs by 2^-23.

// A 96-bit number as f32, from three words, the lowest first.
fn float96(low: u32, middle: u32, high: u32) -> f32 {
    return (f32(high) * 0x1p32f + f32(middle)) * 0x1p32f + f32(low);
}

// The energy of the elements in a bin of level 1. This energy is exact except for the spread of the magnitudes about
// the mean. The spread is unknown: it is largest if all magnitudes are at the ends of the bin. This function assumes
// half of the largest spread. The ends of the bin are 2^-6 apart, so at most 2^-15 of the energy is lost.
fn energy(bin: u32) -> Wide {
    let count = atomicLoad(&bins[in_bins(bin)]);
    if (count == 0u || bin < 64u) {
        return Wide(0.0, 0);
    }
    // The sum of the keys' lower bits is below 2^49.
    let keys = float96(atomicLoad(&bins[in_bins(BINS + bin)]), atomicLoad(&bins[in_bins(2u * BINS + bin)]), 0u);
    let mean = keys / f32(count) * 0x1p-23f;
    let magnitude = 1.0 + f32(bin & 63u) * 0x1p-6f + mean;
    let spread = 0.5 * mean * max(0x1p-6f - mean, 0.0);
    return wide(f32(count) * (magnitude * magnitude + spread), unit_exponent(bin) + 46);
}

// Exponent of the squared unit in the last place of the bin's keys.
fn unit_exponent(bin: u32) -> i32 {
    return 2 * (i32(bin >> 6u) - 173);
}

fn sent_error(bin: u32) -> Wide {
    let low = atomicLoad(&bins[in_bins(3u * BINS + bin)]);
    let middle = atomicLoad(&bins[in_bins(4u * BINS + bin)]);
    return wide(float96(low, middle, atomicLoad(&bins[in_bins(5u * BINS + bin)])), unit_exponent(bin));
}

var<workgroup> energies: array<Wide, 256>;
var<workgroup> errors: array<Wide, 256>;

// Computes the sums above and below each bin of level 1.
@compute @workgroup_size(256)
fn prefixes(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let share = (BINS + 255u) / 256u;
    let start = min(lane * share, BINS);
    let end = min(start + share, BINS);
    var count = 0u;
    var below = Wide(0.0, 0);
    var sent = Wide(0.0, 0);
    for (var bin = start; bin < end; bin++) {
        count += atomicLoad(&bins[in_bins(bin)]);
        below = plus(below, energy(bin));
        sent = plus(sent, sent_error(bin));
    }
    counts[lane] = count;
    energies[lane] = below;
    errors[lane] = sent;
    workgroupBarrier();
    count = 0u;
    below = Wide(0.0, 0);
    sent = Wide(0.0, 0);
    for (var first = 0u; first < lane; first += 16u) {
        var part = Wide(0.0, 0);
        for (var other = first; other < min(first + 16u, lane); other++) {
            part = plus(part, energies[other]);
        }
        below = plus(below, part);
    }
    for (var first = lane + 1u; first < 256u; first += 16u) {
        var part = Wide(0.0, 0);
        for (var other = first; other < min(first + 16u, 256u); other++) {
            count += counts[other];
            part = plus(part, errors[other]);
        }
        sent = plus(sent, part);
    }
    for (var bin = start; bin < end; bin++) {
        prefix[in_prefix(BINS + bin)] = bitcast<u32>(below.m);
        prefix[in_prefix(2u * BINS + bin)] = bitcast<u32>(below.e);
        below = plus(below, energy(bin));
    }
    for (var bin = end; bin > start; bin--) {
        prefix[in_prefix(bin - 1u)] = count;
        prefix[in_prefix(3u * BINS + bin - 1u)] = bitcast<u32>(sent.m);
        prefix[in_prefix(4u * BINS + bin - 1u)] = bitcast<u32>(sent.e);
        count += atomicLoad(&bins[in_bins(bin - 1u)]);
        sent = plus(sent, sent_error(bin - 1u));
    }
}

// The energy of the bins from .. to of level 2. Each magnitude is assumed to lie in the middle of its bin, which is
// 2^-15 wide.
fn middle_energy(slot: u32, base: f32, unit: i32, from_bin: u32, to_bin: u32) -> Wide {
    var sum = Wide(0.0, 0);
    for (var middle = from_bin; middle < to_bin; middle++) {
        let magnitude = base + (f32(middle) + 0.5) * 0x1p-15f;
        let count = f32(atomicLoad(&fine[in_fine(slot * MIDDLES + middle)]));
        sum = plus(sum, wide(count * (magnitude * magnitude), unit + 46));
    }
    return sum;
}

fn middle_error(slot: u32, unit: i32, from_bin: u32, to_bin: u32) -> Wide {
    var sum = Wide(0.0, 0);
    for (var middle = from_bin; middle < to_bin; middle++) {
        let at = in_fine(slot * MIDDLES + middle) + 1u;
        let error = float96(atomicLoad(&fine[at]), atomicLoad(&fine[at + 1u]), atomicLoad(&fine[at + 2u]));
        sum = plus(sum, wide(error, unit));
    }
    return sum;
}

// The squared error of each k: the energy below its cut, and the rounding errors of the sent values.
@compute @workgroup_size(256)
fn total(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch) || lane >= params.keeps) {
        return;
    }
    let keep = state[params.first_keep + lane];
    let bin = keep.bin;
    let unit = unit_exponent(bin);
    var dropped = Wide(bitcast<f32>(prefix[in_prefix(BINS + bin)]), bitcast<i32>(prefix[in_prefix(2u * BINS + bin)]));
    var sent = Wide(bitcast<f32>(prefix[in_prefix(3u * BINS + bin)]), bitcast<i32>(prefix[in_prefix(4u * BINS + bin)]));
    if (bin >= 64u) {
        let base = 1.0 + f32(bin & 63u) * 0x1p-6f;
        for (var first = 0u; first < keep.middle; first += 32u) {
            dropped = plus(dropped, middle_energy(keep.slot, base, unit, first, min(first + 32u, keep.middle)));
        }
        for (var first = keep.middle + 1u; first < MIDDLES; first += 32u) {
            sent = plus(sent, middle_error(keep.slot, unit, first, min(first + 32u, MIDDLES)));
        }
        for (var first = 0u; first < LASTS; first += 16u) {
            var dropped_part = Wide(0.0, 0);
            var sent_part = Wide(0.0, 0);
            for (var last = first; last < first + 16u; last++) {
                let count = atomicLoad(&fine[in_last(keep.last_slot, last)]);
                if (count == 0u) {
                    continue;
                }
                var kept = select(0u, count, last > keep.last);
                if (last == keep.last) {
                    kept = keep.ties;
                }
                let magnitude = base + f32((keep.middle << MIDDLE) | last) * 0x1p-23f;
                dropped_part = plus(dropped_part, wide(f32(count - kept) * (magnitude * magnitude), unit + 46));
                let error = f32(rounding(magnitude_of((bin << UPPER) | (keep.middle << MIDDLE) | last)));
                sent_part = plus(sent_part, wide(f32(kept) * (error * error), unit));
            }
            dropped = plus(dropped, dropped_part);
            sent = plus(sent, sent_part);
        }
    }
    let sum = plus(dropped, sent);
    let at = params.result + 2u * lane;
    atomicStore(&results[at], bitcast<u32>(sum.m));
    atomicStore(&results[at + 1u], bitcast<u32>(sum.e));
}
