// Decodes TopK's payloads, one stretch of values at a time: reads positions, and then puts values in their places.

// The lower bits of the position of value `index`; 0 for values past the end.
fn low_bits_of(index: u32) -> u32 {
    if (params.low_bits == 0u) {
        return 0u;
    }
    let at = field(0u, params.low_bit, index, params.low_bits);
    var bits = low_part[at.x] >> at.y;
    if (at.y > 0u && at.x + 1u < arrayLength(&low_part)) {
        bits |= low_part[at.x + 1u] << (32u - at.y);
    }
    return bits & ((1u << params.low_bits) - 1u);
}

// Reads the positions of a block, one workgroup per block. results[result] becomes 1 if a position is beyond the
// tensor.
@compute @workgroup_size(64)
fn read_positions(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    let word = group.x * 64u + place(lane);
    var rest = 0u;
    if (word < arrayLength(&high_part)) {
        rest = high_part[word];
    }
    var index = starts[group.x] + sum_before(lane, vec2<u32>(countOneBits(rest), 0u)).x;
    while (rest != 0u) {
        var position = (params.first_block * 64u + word) * 32u + countTrailingZeros(rest);
        rest &= rest - 1u;
        if (params.placement == 2u) {
            let steps = position - (params.first + index);
            position = (steps << params.low_bits) | low_bits_of(index);
            if (steps > (params.elements - 1u) >> params.low_bits) {
                position = params.elements;
            }
        }
        if (position >= params.elements) {
            atomicMax(&results[params.result], 1u);
        }
        index += 1u;
        positions[index] = position;
    }
}

// Puts values in their places. results[result] becomes 1 if positions do not ascend or a value is not finite.
@compute @workgroup_size(64)
fn scatter(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    for (var j = 0u; j < 32u; j++) {
        let index = group.x * 2048u + j * 64u + lane;
        if (index >= params.count) {
            break;
        }
        var position = params.first + index;
        if (params.placement != 0u) {
            let ascends = position == 0u || positions[index] < positions[index + 1u];
            position = positions[index + 1u];
            if (!ascends) {
                atomicMax(&results[params.result], 1u);
            }
        }
        let bits = kept_value(index);
        if ((bits & MAGNITUDE) >= INFINITY) {
            atomicMax(&results[params.result], 1u);
        }
        if (position - params.window < params.window_len) {
            decoded[position - params.window] = bits;
        }
    }
}

fn kept_value(index: u32) -> u32 {
    if (params.bits != 0u) {
        let at = field(params.codes, params.code_bit, index, params.bits);
        var code = kept_part[at.x] >> at.y;
        if (at.y + params.bits > 32u) {
            code |= kept_part[at.x + 1u] << (32u - at.y);
        }
        let sign = 1u << (params.bits - 1u);
        return kept_part[code & (sign - 1u)] | select(0u, SIGN, (code & sign) != 0u);
    }
    if (params.sent == 0u) {
        return kept_part[index];
    }
    let half = (kept_part[index >> 1u] >> (16u * (index & 1u))) & 0xffffu;
    return select(half << 16u, widen_f16(half), params.sent == 1u);
}
