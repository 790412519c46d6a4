// EDEN's payloads: encoding and decoding.

// Writes the codes of a block to words that are 0. Each invocation holds 16 consecutive codes.
fn write_codes(block: Block, lane: u32) {
    let bit = (block.first + lane * 16u) * params.bits;
    var word = bit / 32u;
    var held = bit % 32u;
    var pending = 0u;
    for (var k = 0u; k < 16u && index_of(LOW, k, lane) < block.len; k++) {
        pending |= own[k] << held;
        held += params.bits;
        if (held >= 32u) {
            atomicOr(&words[word], pending);
            word += 1u;
            held -= 32u;
            pending = select(0u, own[k] >> (params.bits - held), held > 0u);
        }
    }
    if (pending != 0u) {
        atomicOr(&words[word], pending);
    }
}

// The code of value i in `words`.
fn code_of(i: u32) -> u32 {
    let bit = i * params.bits;
    let shift = bit % 32u;
    var code = atomicLoad(&words[bit / 32u]) >> shift;
    if (shift + params.bits > 32u) {
        code |= atomicLoad(&words[bit / 32u + 1u]) << (32u - shift);
    }
    return code & ((1u << params.bits) - 1u);
}

// Writes scales and codes to words that are 0. If a value is not finite, sets results[result] to the maximum of itself
// and the bits of the largest magnitude. If the block would not decode to finite values, calls `tell_overflow`.
@compute @workgroup_size(256)
fn encode_rotated(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let block = begin_block(lane);
    find_norm(block.first, block.len, lane);
    if (norms[0].inverse != 0u) {
        exact = true;
        rotate(block, lane);
        find_scale(params.bits, block.len, lane);
        let scale = scales[0];
        if (lane == 0u) {
            sent_scales[group.x] = scale;
        }
        var codes: array<u32, 16>;
        for (var k = 0u; k < 16u && index_of(HIGH, k, lane) < block.len; k++) {
            let sign = own[k] >> 31u;
            codes[k] = (nearest(params.bits, own[k] & MAGNITUDE) - first_level(params.bits)) | (sign << (params.bits - 1u));
        }
        // Decoded values may be larger than the encoded values, and may overflow.
        if (norms[0].power != ONE) {
            decode_again(params.bits, block.len, lane);
            var is_finite = scale < INFINITY;
            for (var k = 0u; k < 16u && is_finite && index_of(HIGH, k, lane) < block.len; k++) {
                let decoded = decoded_value(block, index_of(HIGH, k, lane), own[k], scale);
                is_finite = (decoded & MAGNITUDE) < INFINITY;
            }
            if (!is_finite) {
                tell_overflow(block);
            }
        }
        own = codes;
        exchange(HIGH, LOW, block.len, lane);
        write_codes(block, lane);
    }
}

// Writes the bits of the decoded values of a block. The word results[result] becomes nonzero if the scale is negative,
// or if the scale or a value is not finite.
@compute @workgroup_size(256)
fn decode_rotated(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let block = begin_block(lane);
    for (var k = 0u; k < 16u && index_of(MIDDLE, k, lane) < block.len; k++) {
        let code = code_of(block.first + index_of(MIDDLE, k, lane));
        let level = code & ((1u << (params.bits - 1u)) - 1u);
        own[k] = grids[first_level(params.bits) + level] | ((code >> (params.bits - 1u)) << 31u);
    }
    exact = true;
    transform(block.len, lane);
    let scale = sent_scales[group.x];
    var is_good = scale < INFINITY;
    for (var k = 0u; k < 16u && is_good && index_of(HIGH, k, lane) < block.len; k++) {
        let i = index_of(HIGH, k, lane);
        let decoded = select(decoded_value(block, i, own[k], scale), 0u, scale == 0u);
        is_good = (decoded & MAGNITUDE) < INFINITY;
        output[block.first + i] = decoded;
    }
    if (!is_good) {
        atomicMax(&results[params.result], 1u);
    }
}
