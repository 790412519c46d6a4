// TopK's payloads read: ones are counted in blocks, which gives every value's index, then its position.

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

// How many ones share `share`, of 8 words, has.
fn ones_of(share: u32) -> u32 {
    var found = 0u;
    for (var j = 0u; j < 8u; j++) {
        found += countOneBits(ones(share * 8u + j));
    }
    return found;
}

// Blocks are 64 shares.
@compute @workgroup_size(64)
fn count_ones(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let block = params.first_block + group.x;
    let found = sum_of(lane, 64u, vec2<u32>(ones_of(block * 64u + lane.index), 0u));
    if (lane.index == 0u) {
        blocks[block] = found;
    }
}

// results[result] becomes 1 when a position is not what an encoder writes.
@compute @workgroup_size(64)
fn read_positions(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let block = params.first_block + group.x;
    let share = block * 64u + place(lane);
    var index = blocks[block].x + sum_before(lane, vec2<u32>(ones_of(share), 0u)).x;
    for (var j = 0u; j < 8u; j++) {
        let word = share * 8u + j;
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

// Puts the kept values in their places. results[result] becomes 1 when positions do not ascend or a value is not
// finite.
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
