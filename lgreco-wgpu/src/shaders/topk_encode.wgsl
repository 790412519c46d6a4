// TopK's payloads: blocks of elements are counted, the counts added up, and what is kept written to its places.

// What a value adds to the number of elements above the cut, and of those at it.
fn found(bits: u32, cut: u32) -> vec2<u32> {
    let magnitude = bits & MAGNITUDE;
    return vec2<u32>(u32(magnitude > cut), u32(magnitude == cut));
}

@compute @workgroup_size(64)
fn count_block(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let cut = state[0].magnitude;
    let end = min((group.x + 1u) * PER_GROUP, params.count);
    var sum = vec2<u32>(0u, 0u);
    for (var i = group.x * PER_GROUP + lane.index; i < end; i += 64u) {
        sum += found(value(i), cut);
    }
    sum = sum_of(lane, 64u, sum);
    if (lane.index == 0u) {
        blocks[params.first_block + group.x] = sum;
    }
}

// Sums of all blocks before each.
@compute @workgroup_size(256)
fn scan(lane: Lane) {
    let place = place(lane);
    let share = (params.blocks + 255u) / 256u;
    let start = min(place * share, params.blocks);
    let end = min(start + share, params.blocks);
    var sum = vec2<u32>(0u, 0u);
    for (var block = start; block < end; block++) {
        sum += blocks[block];
    }
    sum = sum_before(lane, sum);
    for (var block = start; block < end; block++) {
        let own = blocks[block];
        blocks[block] = sum;
        sum += own;
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

// Writes the elements above the cut and the first of those at it.
@compute @workgroup_size(64)
fn write_kept(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let first = group.x * PER_GROUP;
    load_tile(first, lane.index);
    let cut = state[0].magnitude;
    let ties = state[0].ties;
    let start = place(lane) * ROW;
    let end = min(start + ROW, params.count - first);
    var sum = vec2<u32>(0u, 0u);
    for (var i = start; i < end; i++) {
        sum += found(tile[in_tile(i)], cut);
    }
    var before = blocks[params.first_block + group.x] + sum_before(lane, sum);
    for (var i = start; i < end; i++) {
        let bits = tile[in_tile(i)];
        let own = found(bits, cut);
        if (own.x != 0u || (own.y != 0u && before.y < ties)) {
            write_one(before.x + min(before.y, ties), params.first + first + i, bits);
        }
        before += own;
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
