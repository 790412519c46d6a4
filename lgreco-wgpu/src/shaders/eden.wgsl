// EDEN's blocks: coordinates, scales, and decoding. `eden_rows.wgsl` and `eden_payloads.wgsl` have the entry points. A
// workgroup processes a block. Bits of payloads are computed in integers, in the order of lgreco-compress/src/eden.

struct Params {
    offset: u32,
    dtype: u32,
    first: u32, // position of the piece's first value in the tensor, a multiple of 4096
    count: u32, // values in the piece
    least_squares: u32,
    widths: u32, // for rows, bit b - 1: whether width b is measured
    bits: u32, // for payloads: bits of a code
    step: u32, // always 0 for the stream of the signs, as are `layer` and `rank`
    layer: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
    record: u32, // first record of `output` for rows
    result: u32,
}

// For payloads: the scales of all blocks, and the codes.
@group(0) @binding(3) var<storage, read_write> sent_scales: array<u32>;
@group(0) @binding(4) var<storage, read_write> words: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<atomic<u32>>;

// The scale with which a block is decoded, as bits of f32.
var<workgroup> scales: array<u32, 1>;

// A workgroup's block: the index of its first value in the piece, the index of this value in its chunk of 4096, and its
// length.
struct Block {
    first: u32,
    at: u32,
    len: u32,
}

// Returns the workgroup's block, and draws the block's signs. The caller must follow the call by a barrier.
fn begin_block(lane: u32) -> Block {
    let found = block_of(group.x);
    let block = Block(found.x, found.x % BLOCK, found.y);
    draw_signs((params.first + block.first) / BLOCK, lane);
    return block;
}

// Fills `own` with the coordinates of a block, in the order `HIGH`.
fn rotate(block: Block, lane: u32) {
    let norm = norms[0];
    for (var k = 0u; k < 16u && index_of(MIDDLE, k, lane) < block.len; k++) {
        let i = index_of(MIDDLE, k, lane);
        let x = value(block.first + i);
        var z = bitcast<u32>(bitcast<f32>(x) * bitcast<f32>(norm.inverse));
        if (exact) {
            z = multiply(multiply(x, norm.power), norm.inverse);
        }
        own[k] = z ^ sign_of(block.at + i);
    }
    transform(block.len, lane);
}

// Adds up magnitude times level over the coordinates in `own`. With `squared`, adds up the squared levels instead of
// the products. `total` returns the result.
fn sum_of_levels(bits: u32, squared: bool, len: u32, lane: u32) {
    var sum = 0u;
    for (var start = 0u; start < len; start += HALF) {
        workgroupBarrier();
        for (var k = start / 256u; k < 16u && index_of(HIGH, k, lane) < min(len, start + HALF); k++) {
            let magnitude = own[k] & MAGNITUDE;
            let level = grids[nearest(bits, magnitude)];
            room[place(index_of(HIGH, k, lane) - start)] = multiply(select(magnitude, level, squared), level);
        }
        workgroupBarrier();
        if (lane < LANES) {
            for (var i = lane; i < min(len - start, HALF); i += LANES) {
                sum = add(sum, room[place(i)]);
            }
        }
    }
    add_singles(sum, lane);
}

// 1 / sqrt(len), rounded; len is a power of two.
fn inverse_root(len: u32) -> u32 {
    let log = firstLeadingBit(len);
    return select(ONE, 0x3f3504f3u, (log & 1u) != 0u) - (log / 2u << 23u);
}

// Writes the scale of a block, whose coordinates are in `own`, to `scales`.
fn find_scale(bits: u32, len: u32, lane: u32) {
    sum_of_levels(bits, false, len, lane);
    var relative = NO_DOUBLE;
    if (lane == 0u) {
        relative = total();
    }
    for (var squares = 0u; squares < params.least_squares; squares++) {
        sum_of_levels(bits, true, len, lane);
    }
    if (lane == 0u) {
        let log = i32(firstLeadingBit(len));
        if (params.least_squares != 0u) {
            relative = double_quotient(relative, total());
        } else {
            relative = double_quotient(Double(vec2<u32>(0u, 0x00100000u), log), relative);
        }
        let root = double_of(inverse_root(len));
        let root_mean_square = double_quotient(norms[0].length, Double(root.m, root.e + log));
        scales[0] = single(double_product(root_mean_square, relative));
    }
    workgroupBarrier();
}

// Replaces the coordinates in `own` by the block's decoded values, without scale and signs.
fn decode_again(bits: u32, len: u32, lane: u32) {
    for (var k = 0u; k < 16u && index_of(HIGH, k, lane) < len; k++) {
        own[k] = grids[nearest(bits, own[k] & MAGNITUDE)] | (own[k] & SIGN);
    }
    exchange(HIGH, MIDDLE, len, lane);
    transform(len, lane);
}

// The decoded value i of a block, from the transform's output.
fn decoded_value(block: Block, i: u32, transformed: u32, scale: u32) -> u32 {
    return multiply(multiply(transformed, inverse_root(block.len)), scale) ^ sign_of(block.at + i);
}

// Reports that a block does not decode to finite values: sets results[result + 1] to the maximum of itself and ~i. In
// this word, i is the index of the block's first value in the tensor.
fn tell_overflow(block: Block) {
    atomicMax(&results[params.result + 1u], ~(params.first + block.first));
}
