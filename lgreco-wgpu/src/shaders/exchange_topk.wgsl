// TopK's payloads of one rank after the other, of all layers: positions, then values added in their places.

fn in_image(word: u32) -> u32 {
    return words[moment.sender * moment.image + word];
}

// The 32 bits from a bit of a word on.
fn bits_from(word: u32, bit: u32) -> u32 {
    let bits = in_image(word) >> bit;
    return select(bits, bits | (in_image(word + 1u) << (32u - bit)), bit > 0u);
}

// The lower bits of the position of value `index`.
fn low_bits_of(index: u32) -> u32 {
    if (params.low_bits == 0u) {
        return 0u;
    }
    let at = field(params.low_word, params.low_bit, index, params.low_bits);
    return bits_from(at.x, at.y) & ((1u << params.low_bits) - 1u);
}

// The word of ones that are positions, without what comes behind the last bit.
fn ones(word: u32) -> u32 {
    if (word * 32u >= params.high_len) {
        return 0u;
    }
    let bits = bits_from(params.high_word + word, params.high_bit);
    let left = params.high_len - word * 32u;
    return select(bits, bits & ((1u << left) - 1u), left < 32u);
}

fn fault_of_sender() {
    atomicMax(&faults[FAULTS * moment.layers + moment.sender], ~params.number);
}

// A workgroup reads a block of 2048 bits.
@compute @workgroup_size(64)
fn read_positions(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    begin(layer_of[group.x]);
    let block = group.x - params.first_block;
    let word = block * 64u + place(lane);
    var rest = ones(word);
    var index = in_image(params.starts + block) + sum_before(lane, vec2<u32>(countOneBits(rest), 0u)).x;
    while (rest != 0u) {
        var position = word * 32u + countTrailingZeros(rest);
        rest &= rest - 1u;
        if (params.placement == 2u) {
            let steps = position - index;
            position = (steps << params.low_bits) | low_bits_of(index);
            if (steps > (params.count - 1u) >> params.low_bits) {
                position = params.count;
            }
        }
        if (position >= params.count) {
            fault_of_sender();
        }
        positions[params.positions + index] = position;
        index += 1u;
    }
}

fn kept_value(index: u32) -> u32 {
    if (params.bits != 0u) {
        let at = field(params.codes, 0u, index, params.bits);
        let code = bits_from(at.x, at.y);
        let sign = 1u << (params.bits - 1u);
        return in_image(params.values_word + (code & (sign - 1u))) | select(0u, SIGN, (code & sign) != 0u);
    }
    if (params.sent == 0u) {
        return in_image(params.values_word + index);
    }
    let half = (in_image(params.values_word + (index >> 1u)) >> (16u * (index & 1u))) & 0xffffu;
    return select(half << 16u, widen_f16(half), params.sent == 1u);
}

// Adds 2048 kept values to the totals and takes this rank's own off what it has offered.
@compute @workgroup_size(64)
fn add_kept(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    begin(layer_of[group.x]);
    let first = (group.x - params.first_kept) * PER_GROUP;
    let end = min(first + PER_GROUP, params.keep);
    for (var index = first + lane; index < end; index += 64u) {
        var position = index;
        if (params.placement != 0u) {
            position = positions[params.positions + index];
            if (index > 0u && positions[params.positions + index - 1u] >= position) {
                fault_of_sender();
            }
        }
        let bits = kept_value(index);
        if (!is_finite(bits)) {
            fault_of_sender();
        }
        if (position >= params.count) {
            continue;
        }
        let at = params.start + position;
        totals[at] = sum(totals[at], bits);
        if (moment.sender == moment.rank) {
            take_off(position, bits);
        }
    }
}
