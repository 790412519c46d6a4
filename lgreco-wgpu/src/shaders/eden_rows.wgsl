// Measures EDEN's rows of the error table: the squared error at each width.

// Blocks of fewer than `FEW` values are measured by decoding.
const FEW = 256u;

// A mask of the widths that are measured by decoding.
var<workgroup> undecided: array<atomic<u32>, 1>;
// Adds up eight sums over 256 invocations each, in `room`. The total of sum w is then at 256 w.
fn add_in_room(lane: u32) {
    for (var reach = 128u; reach > 0u; reach >>= 1u) {
        workgroupBarrier();
        for (var i = lane; i < 8u * reach; i += 256u) {
            let at = i / reach * 256u + i % reach;
            room[at] = bitcast<u32>(bitcast<f32>(room[at]) + bitcast<f32>(room[at + reach]));
        }
    }
    workgroupBarrier();
}

// Adds up the sums of each width. Invocation w gets the total of sum w; invocations from 8 on get copies.
fn sums_of_all(sums: array<f32, 8>, lane: u32) -> f32 {
    workgroupBarrier();
    for (var w = 0u; w < 8u; w++) {
        room[w * 256u + lane] = bitcast<u32>(sums[w]);
    }
    add_in_room(lane);
    return bitcast<f32>(room[lane % 8u * 256u]);
}

// Invocation w gets the squared error at width w + 1, from sums over the coordinates in `own`. Other invocations get 0.
// If the error must be measured by decoding the block, invocation w gets 0, and sets the width's bit in `undecided`.
// With coordinates z, levels q, scale s and t = z - q, the error of the coordinates is the sum of (t + (1 - s) q)^2.
// This formula avoids the subtraction of nearly equal sums.
fn rounding_error(len: u32, lane: u32) -> Wide {
    var squares: array<f32, 8>;
    var products: array<f32, 8>;
    for (var k = 0u; k < 16u && index_of(HIGH, k, lane) < len; k++) {
        let magnitude = own[k] & MAGNITUDE;
        for (var w = 0u; w < 8u; w++) {
            if (((params.widths >> w) & 1u) != 0u) {
                let level = bitcast<f32>(grids[nearest(w + 1u, magnitude)]);
                let residual = bitcast<f32>(magnitude) - level;
                squares[w] += residual * residual;
                products[w] += residual * level;
            }
        }
    }
    let of_squares = sums_of_all(squares, lane);
    let of_products = sums_of_all(products, lane);
    if (lane >= 8u || ((params.widths >> lane) & 1u) == 0u) {
        return Wide(0.0, 0);
    }
    let all = f32(len);
    let points = all - 2.0 * of_products - of_squares;
    // `away` is 1 - s.
    let unbiased = -(of_products + of_squares) / (points + of_products);
    let away = select(unbiased, -of_products / points, params.least_squares != 0u);
    let error = of_squares + 2.0 * away * of_products + away * away * points;
    if (len < FEW || norms[0].power != ONE || error <= of_squares / 8.0 || error <= all * 1e-6) {
        atomicOr(&undecided[0], 1u << lane);
        return Wide(0.0, 0);
    }
    let length = norms[0].length;
    let m = bitcast<f32>((length.m.y << 3u) | (length.m.x >> 29u) | ONE);
    return wide(m * m * error, 2 * length.e - i32(firstLeadingBit(len)));
}

// Decodes the block whose coordinates are in `own`. Returns the squared error at one width, summed over this
// invocation's values.
fn decoding_error(bits: u32, block: Block, lane: u32) -> Wide {
    find_scale(bits, block.len, lane);
    let scale = scales[0];
    decode_again(bits, block.len, lane);
    var sum = Wide(0.0, 0);
    var is_finite = scale < INFINITY;
    for (var k = 0u; k < 16u && is_finite && index_of(HIGH, k, lane) < block.len; k++) {
        let i = index_of(HIGH, k, lane);
        let decoded = decoded_value(block, i, own[k], scale);
        is_finite = (decoded & MAGNITUDE) < INFINITY;
        if (is_finite) {
            sum = plus(sum, square(add(value(block.first + i), decoded ^ SIGN) & MAGNITUDE));
        }
    }
    if (!is_finite) {
        tell_overflow(block);
    }
    return sum;
}

// Adds up `sum` over all invocations. Every invocation gets the total.
fn sum_of_lanes(sum: Wide, lane: u32) -> Wide {
    workgroupBarrier();
    room[lane] = bitcast<u32>(sum.m);
    room[lane + 256u] = bitcast<u32>(sum.e);
    for (var reach = 128u; reach > 0u; reach >>= 1u) {
        workgroupBarrier();
        if (lane < reach) {
            let both = plus(in_room(lane), in_room(lane + reach));
            room[lane] = bitcast<u32>(both.m);
            room[lane + 256u] = bitcast<u32>(both.e);
        }
    }
    workgroupBarrier();
    return in_room(0u);
}

fn in_room(i: u32) -> Wide {
    return Wide(bitcast<f32>(room[i]), bitcast<i32>(room[i + 256u]));
}

// Writes the squared errors of a block to a record. If a value is not finite, sets results[result] to the maximum of
// itself and the bits of the largest magnitude. If the block does not decode to finite values, calls `tell_overflow`.
@compute @workgroup_size(256)
fn rotated_row(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let block = begin_block(lane);
    if (lane == 0u) {
        atomicStore(&undecided[0], 0u);
    }
    find_norm(block.first, block.len, lane);
    // The squared error at width lane + 1.
    var sum = Wide(0.0, 0);
    if (norms[0].inverse != 0u) {
        exact = false;
        rotate(block, lane);
        sum = rounding_error(block.len, lane);
        workgroupBarrier();
        for (var bits = 1u; bits <= 8u; bits++) {
            if (((atomicLoad(&undecided[0]) >> (bits - 1u)) & 1u) == 0u) {
                continue;
            }
            exact = true;
            rotate(block, lane);
            let of_width = sum_of_lanes(decoding_error(bits, block, lane), lane);
            if (lane + 1u == bits) {
                sum = of_width;
            }
        }
    }
    if (lane < 8u) {
        let at = (params.record + group.x) * 16u + lane;
        output[at] = bitcast<u32>(sum.m);
        output[at + 8u] = bitcast<u32>(sum.e);
    }
}
