// TopK: the k-th largest magnitudes by three levels of histograms, the energies below them, and payloads.
//
// Magnitudes are compared by `key`s, which order as they do and have an exponent for every binade, those of subnormal
// numbers too. Level 1 counts keys by their upper 15 bits, level 2 those of the bins that some k divides by the next 9,
// level 3 by the last 8: there every k-th largest magnitude is known exactly.

struct Params {
    offset: u32,
    dtype: u32,
    first: u32, // position of the piece's first value in the tensor
    count: u32, // values in the piece
    sent: u32, // type of the values in the payload
    rounds: u32, // whether that type changes values
    energies: u32, // whether sums are wanted, not only the cut
    first_keep: u32, // of this batch in `state`
    keeps: u32, // in this batch, at most 256
    blocks: u32,
    first_block: u32,
    result: u32,
    elements: u32,
    keep: u32,
    placement: u32, // 0: no positions, 1: bitmap, 2: Elias-Fano
    low_bits: u32,
    // First bit of each part of the payload, as word and bit.
    values_word: u32,
    low_word: u32,
    low_bit: u32,
    high_word: u32,
    high_bit: u32,
    high_len: u32, // bits
    window: u32, // first word, or first value, of the binding written to
    window_len: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
// Per bin: count, sum of the keys' lower 17 bits, sum of the squared rounding errors of sending it; the sums in 64 bits.
@group(0) @binding(2) var<storage, read_write> bins: array<atomic<u32>>;
// One more than the number of a bin that some k divides; 0 for the others. Level 1, then level 2.
@group(0) @binding(3) var<storage, read_write> slots: array<u32>;
// Level 2: per slot and bin count and sum of squared rounding errors. Level 3: counts.
@group(0) @binding(4) var<storage, read_write> fine: array<atomic<u32>>;
// Per bin of level 1: elements above, energy below (2 words), rounding errors above (2 words).
@group(0) @binding(5) var<storage, read_write> prefix: array<u32>;
@group(0) @binding(6) var<storage, read_write> state: array<Keep>;
// Per block of 2048 elements: those above the cut and those at it; after `scan`, of all blocks before.
@group(0) @binding(7) var<storage, read_write> blocks: array<vec2<u32>>;
@group(0) @binding(8) var<storage, read_write> payload: array<atomic<u32>>;
@group(0) @binding(9) var<storage, read_write> results: array<atomic<u32>>;
@group(0) @binding(10) var<storage, read_write> positions: array<u32>;
@group(0) @binding(11) var<storage, read_write> decoded: array<u32>;

const BINS = 17792u; // 278 exponents of 64 bins
const COARSE = 17u; // key bits below a bin of level 1
const MIDDLE = 8u; // below one of level 2
const MIDDLES = 512u;
const LASTS = 256u;
const MOST_KEEPS = 256u;
const LEVEL_3 = 393216u; // MOST_KEEPS * MIDDLES * 3

// Where the k largest end. First keep, then what is found level by level.
struct Keep {
    keep: u32,
    bin: u32,
    slot: u32,
    middle: u32,
    last_slot: u32,
    magnitude: u32, // bits of the k-th largest
    ties: u32, // how many of this magnitude are kept; on the way, k's rank in its bin
    last: u32,
}

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

// By how much sending the magnitude changes it, in units of the last place of its key.
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

fn float64(low: u32, high: u32) -> f32 {
    return f32(high) * 0x1p32f + f32(low);
}

var<workgroup> best: atomic<u32>;

@compute @workgroup_size(64)
fn histogram_1(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var largest = 0u;
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
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
    atomicMax(&best, largest);
    workgroupBarrier();
    if (lane == 0u) {
        atomicMax(&results[params.result], atomicLoad(&best));
    }
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

var<workgroup> counts: array<u32, 256>;
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

var<workgroup> shares: array<vec2<u32>, 64>;

// An invocation's share of a block: elements above the cut, elements at it.
fn count_share(start: u32, end: u32) -> vec2<u32> {
    let cut = state[0].magnitude;
    var found = vec2<u32>(0u, 0u);
    for (var i = start; i < end; i++) {
        let magnitude = value(i) & MAGNITUDE;
        found += vec2<u32>(u32(magnitude > cut), u32(magnitude == cut));
    }
    return found;
}

@compute @workgroup_size(64)
fn count_block(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let start = min(group.x * 2048u + lane * 32u, params.count);
    shares[lane] = count_share(start, min(start + 32u, params.count));
    for (var reach = 32u; reach > 0u; reach >>= 1u) {
        workgroupBarrier();
        if (lane < reach) {
            shares[lane] += shares[lane + reach];
        }
    }
    if (lane == 0u) {
        blocks[params.first_block + group.x] = shares[0];
    }
}

var<workgroup> stretches: array<vec2<u32>, 256>;

// Sums of all blocks before each; results[result] gets the sum of all.
@compute @workgroup_size(256)
fn scan(@builtin(local_invocation_index) lane: u32) {
    let share = (params.blocks + 255u) / 256u;
    let start = min(lane * share, params.blocks);
    let end = min(start + share, params.blocks);
    var sum = vec2<u32>(0u, 0u);
    for (var block = start; block < end; block++) {
        sum += blocks[block];
    }
    stretches[lane] = sum;
    workgroupBarrier();
    sum = vec2<u32>(0u, 0u);
    for (var other = 0u; other < lane; other++) {
        sum += stretches[other];
    }
    for (var block = start; block < end; block++) {
        let own = blocks[block];
        blocks[block] = sum;
        sum += own;
    }
    if (lane == 255u) {
        atomicStore(&results[params.result], sum.x);
    }
}

// Writes bits of the payload, of which those outside the window are passed over.
fn put(word: u32, bit: u32, bits: u32) {
    let lower = word - params.window;
    if (lower < params.window_len) {
        atomicOr(&payload[lower], bits << bit);
    }
    if (bit > 0u && (bits >> (32u - bit)) != 0u && lower + 1u < params.window_len) {
        atomicOr(&payload[lower + 1u], bits >> (32u - bit));
    }
}

// Word and bit of the `index`-th field of `width` bits after a start.
fn field(word: u32, bit: u32, index: u32, width: u32) -> vec2<u32> {
    let offset = mul_wide(index, width);
    let within = (offset.x & 31u) + bit;
    return vec2<u32>(word + (offset.y << 27u) + (offset.x >> 5u) + (within >> 5u), within & 31u);
}

// Writes the elements above the cut and the first of those at it.
@compute @workgroup_size(64)
fn write_kept(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let start = min(group.x * 2048u + lane * 32u, params.count);
    let end = min(start + 32u, params.count);
    shares[lane] = count_share(start, end);
    workgroupBarrier();
    var before = blocks[params.first_block + group.x];
    for (var other = 0u; other < lane; other++) {
        before += shares[other];
    }
    let cut = state[0].magnitude;
    let ties = state[0].ties;
    for (var i = start; i < end; i++) {
        let bits = value(i);
        let magnitude = bits & MAGNITUDE;
        if (magnitude > cut || (magnitude == cut && before.y < ties)) {
            write_one(before.x + min(before.y, ties), params.first + i, bits);
        }
        before += vec2<u32>(u32(magnitude > cut), u32(magnitude == cut));
    }
}

fn write_one(index: u32, position: u32, bits: u32) {
    if (params.sent == 0u) {
        put(params.values_word + index, 0u, bits);
    } else {
        var sent = narrow_bf16(bits);
        if (params.sent == 1u) {
            sent = narrow_f16(bits);
        }
        put(params.values_word + (index >> 1u), 16u * (index & 1u), sent);
    }
    if (params.placement == 0u) {
        return;
    }
    var high = field(params.high_word, params.high_bit, position, 1u);
    if (params.placement == 2u) {
        if (params.low_bits > 0u) {
            let low = field(params.low_word, params.low_bit, index, params.low_bits);
            put(low.x, low.y, position & ((1u << params.low_bits) - 1u));
        }
        high = field(high_after(index).x, high_after(index).y, position >> params.low_bits, 1u);
    }
    put(high.x, high.y, 1u);
}

fn high_after(index: u32) -> vec2<u32> {
    return field(params.high_word, params.high_bit, index, 1u);
}

// 32 bits of the payload; those past its end are 0.
fn bits_at(word: u32, bit: u32) -> u32 {
    let low = atomicLoad(&payload[word]) >> bit;
    if (bit == 0u || word + 1u >= arrayLength(&payload)) {
        return low;
    }
    return low | (atomicLoad(&payload[word + 1u]) << (32u - bit));
}

// The `index`-th 32 bits of the part whose ones are positions.
fn ones(index: u32) -> u32 {
    if (index * 32u >= params.high_len) {
        return 0u;
    }
    let left = params.high_len - index * 32u;
    let mask = select(0xffffffffu, (1u << (left & 31u)) - 1u, left < 32u);
    return bits_at(params.high_word + index, params.high_bit) & mask;
}

// Blocks are 512 words of ones.
@compute @workgroup_size(64)
fn count_ones(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var found = 0u;
    for (var j = 0u; j < 8u; j++) {
        found += countOneBits(ones((params.first_block + group.x) * 512u + lane * 8u + j));
    }
    shares[lane] = vec2<u32>(found, 0u);
    for (var reach = 32u; reach > 0u; reach >>= 1u) {
        workgroupBarrier();
        if (lane < reach) {
            shares[lane] += shares[lane + reach];
        }
    }
    if (lane == 0u) {
        blocks[params.first_block + group.x] = shares[0];
    }
}

// results[result] becomes 1 when a position is not what an encoder writes.
@compute @workgroup_size(64)
fn read_positions(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = params.first_block + group.x;
    var found = 0u;
    for (var j = 0u; j < 8u; j++) {
        found += countOneBits(ones(block * 512u + lane * 8u + j));
    }
    shares[lane] = vec2<u32>(found, 0u);
    workgroupBarrier();
    var index = blocks[block].x;
    for (var other = 0u; other < lane; other++) {
        index += shares[other].x;
    }
    for (var j = 0u; j < 8u; j++) {
        let word = block * 512u + lane * 8u + j;
        var rest = ones(word);
        while (rest != 0u) {
            let one = word * 32u + countTrailingZeros(rest);
            rest &= rest - 1u;
            if (index >= params.keep) {
                atomicMax(&results[params.result], 1u);
                return;
            }
            if (params.placement == 1u) {
                positions[index] = one;
            } else {
                let high = one - index;
                if (high > (params.elements - 1u) >> params.low_bits) {
                    atomicMax(&results[params.result], 1u);
                    return;
                }
                var low = 0u;
                if (params.low_bits > 0u) {
                    let at = field(params.low_word, params.low_bit, index, params.low_bits);
                    low = bits_at(at.x, at.y) & ((1u << params.low_bits) - 1u);
                }
                positions[index] = (high << params.low_bits) | low;
            }
            index += 1u;
        }
    }
}

// Puts the kept values in their places. results[result] becomes 1 when positions do not ascend or a value is not finite.
@compute @workgroup_size(64)
fn scatter(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (params.first_block + group.x) * 64u + lane;
    if (index >= params.keep) {
        return;
    }
    var position = index;
    if (params.placement != 0u) {
        position = positions[index];
        if (position >= params.elements || (index > 0u && position <= positions[index - 1u])) {
            atomicMax(&results[params.result], 1u);
            return;
        }
    }
    var bits = 0u;
    if (params.sent == 0u) {
        bits = bits_at(params.values_word + index, 0u);
    } else {
        let half = bits_at(params.values_word + (index >> 1u), 16u * (index & 1u)) & 0xffffu;
        bits = select(half << 16u, widen_f16(half), params.sent == 1u);
    }
    if ((bits & MAGNITUDE) >= INFINITY) {
        atomicMax(&results[params.result], 1u);
        return;
    }
    if (position - params.window < params.window_len) {
        decoded[position - params.window] = bits;
    }
}
