// EDEN's blocks: the division of a tensor into blocks, their signs and norms, and the Walsh-Hadamard transform. All
// sums have the same order as in lgreco-compress/src/eden. A workgroup of 256 processes a block; each invocation holds
// 16 values.

const BLOCK = 4096u;
const HALF = 2048u;
const LANES = 64u; // number of partial sums

// Half of a block, spread so that 16 consecutive values, and every 16th value, are in different banks.
var<workgroup> room: array<u32, 2176>;
var<workgroup> signs: array<u32, 128>;
var<workgroup> norms: array<Norm, 1>;
// Partial sums in f64.
var<workgroup> parts_m: array<vec2<u32>, 64>;
var<workgroup> parts_e: array<i32, 64>;

// The bits of an invocation's values.
var<private> own: array<u32, 16>;
// Whether sums are computed in integers, with `float.wgsl`.
var<private> exact: bool;

// The norm of a block, and two factors that together scale it to 1, as bits of f32. The first factor is a power of two.
// The second is the inverse norm of the values times that power, or 0 if the norm is 0 or infinite.
struct Norm {
    length: Double,
    power: u32,
    inverse: u32,
}

// The index of the first value of block `number` in the piece, and the block's length.
fn block_of(number: u32) -> vec2<u32> {
    let whole = params.count / BLOCK;
    if (number < whole) {
        return vec2<u32>(number * BLOCK, BLOCK);
    }
    var at = whole * BLOCK;
    for (var before = whole; before < number; before++) {
        at += 1u << firstLeadingBit(params.count - at);
    }
    return vec2<u32>(at, 1u << firstLeadingBit(params.count - at));
}

fn place(i: u32) -> u32 {
    return i + i / 16u;
}

// Draws the signs of a chunk, the 4096 values that contain a block. A barrier must follow.
fn draw_signs(chunk: u32, lane: u32) {
    if (lane < 32u) {
        var words = random(chunk * 32u + lane);
        for (var k = 0u; k < 4u; k++) {
            signs[lane * 4u + k] = words[k];
        }
    }
}

// The sign bit of value i of the chunk.
fn sign_of(i: u32) -> u32 {
    return (signs[i % 128u] >> (i / 128u)) << 31u;
}

fn part(i: u32) -> Double {
    return Double(parts_m[i], parts_e[i]);
}

fn put_part(i: u32, sum: Double) {
    parts_m[i] = sum.m;
    parts_e[i] = sum.e;
}

// Adds up the partial sums of `lanes` lanes: halves their number until four are left. `total` adds these four.
fn add_parts(lanes: u32, lane: u32) {
    for (var reach = lanes / 2u; reach >= 4u; reach >>= 1u) {
        workgroupBarrier();
        if (lane < reach) {
            put_part(lane, double_sum(part(lane), part(lane + reach)));
        }
    }
    workgroupBarrier();
}

fn total() -> Double {
    return double_sum(double_sum(part(0u), part(1u)), double_sum(part(2u), part(3u)));
}

// Adds up the f32 partial sums of 64 lanes: halves their number until eight are left. Then `add_parts` adds the eight
// sums in f64.
fn add_singles(sum: u32, lane: u32) {
    workgroupBarrier();
    if (lane < LANES) {
        parts_m[lane].x = sum;
    }
    for (var reach = LANES / 2u; reach >= 8u; reach >>= 1u) {
        workgroupBarrier();
        if (lane < reach) {
            parts_m[lane].x = add(parts_m[lane].x, parts_m[lane + reach].x);
        }
    }
    if (lane < 8u) {
        put_part(lane, double_of(parts_m[lane].x));
    }
    add_parts(8u, lane);
}

// Finds the norm of the block of `len` values that begins at index `first`. If a value is not finite, sets
// results[result] to the maximum of itself and the bits of the largest magnitude.
fn find_norm(first: u32, len: u32, lane: u32) {
    var sum = NO_DOUBLE;
    var largest = 0u;
    if (lane < LANES) {
        for (var i = lane; i < len; i += LANES) {
            let magnitude = value(first + i) & MAGNITUDE;
            largest = max(largest, magnitude);
            if (magnitude < INFINITY) {
                sum = double_sum(sum, double_square(magnitude));
            }
        }
        // A value that is not finite makes the norm infinite.
        if (largest >= INFINITY) {
            atomicMax(&results[params.result], largest);
            sum = Double(vec2<u32>(0u, 0x00100000u), 600);
        }
        put_part(lane, sum);
    }
    add_parts(LANES, lane);
    if (lane == 0u) {
        norms[0] = norm_of(total());
    }
    workgroupBarrier();
}

fn norm_of(square: Double) -> Norm {
    if (square.m.y == 0u || square.e >= 600) {
        return Norm(NO_DOUBLE, ONE, 0u);
    }
    let length = double_root(square);
    var log_power = 0;
    if (length.e > 100 || (length.e == 100 && (length.m.x | (length.m.y ^ 0x00100000u)) != 0u)) {
        log_power = -60;
    } else if (length.e < -100) {
        log_power = 100;
    }
    let one = Double(vec2<u32>(0u, 0x00100000u), 0);
    let inverse = single(double_quotient(one, Double(length.m, length.e + log_power)));
    return Norm(length, u32(127 + log_power) << 23u, inverse);
}

// Orders in which invocations hold the values of a block. The indices of an invocation's 16 values differ in bits 4 to
// 7 (MIDDLE), 0 to 3 (LOW) or 8 to 11 (HIGH).
const MIDDLE = 0u;
const LOW = 1u;
const HIGH = 2u;

// The index in the block of an invocation's value k. The index grows with k.
fn index_of(order: u32, k: u32, lane: u32) -> u32 {
    if (order == MIDDLE) {
        return lane / 16u * 256u + lane % 16u + 16u * k;
    }
    return select(lane + 256u * k, lane * 16u + k, order == LOW);
}

// Moves the values of a block among invocations, from the order `before` to the order `after`.
fn exchange(before: u32, after: u32, len: u32, lane: u32) {
    var taken: array<u32, 16>;
    for (var half = 0u; half < 2u; half++) {
        workgroupBarrier();
        for (var k = 0u; k < 16u && index_of(before, k, lane) < len; k++) {
            let i = index_of(before, k, lane);
            if (i / HALF == half) {
                room[place(i % HALF)] = own[k];
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < 16u && index_of(after, k, lane) < len; k++) {
            let i = index_of(after, k, lane);
            if (i / HALF == half) {
                taken[k] = room[place(i % HALF)];
            }
        }
    }
    own = taken;
}

fn sum_or_exact(a: u32, b: u32) -> u32 {
    if (exact) {
        return add(a, b);
    }
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}

// Four levels of the transform, on the 16 values of an invocation.
fn butterflies(descending: bool) {
    for (var level = 0u; level < 4u; level++) {
        let bit = select(level, 3u - level, descending);
        for (var pair = 0u; pair < 8u; pair++) {
            let k = ((pair >> bit) << bit) + pair;
            let a = own[k];
            let b = own[k + (1u << bit)];
            own[k] = sum_or_exact(a, b);
            own[k + (1u << bit)] = sum_or_exact(a, b ^ SIGN);
        }
    }
}

// Transforms a block of fewer than 4096 values in `room`, level by level.
fn transform_in_room(len: u32, lane: u32) {
    for (var level = 0u; len >> level > 1u; level++) {
        workgroupBarrier();
        // In blocks of 256 values or more, the first eight levels are in descending order.
        let bit = select(level, 7u - level, len >= 256u && level < 8u);
        for (var pair = lane; pair < len / 2u; pair += 256u) {
            let i = ((pair >> bit) << bit) + pair;
            let a = room[place(i)];
            let b = room[place(i + (1u << bit))];
            room[place(i)] = sum_or_exact(a, b);
            room[place(i + (1u << bit))] = sum_or_exact(a, b ^ SIGN);
        }
    }
    workgroupBarrier();
}

// Transforms the block in `own`. The values are in the order `MIDDLE` before the call, and in the order `HIGH`
// afterwards.
fn transform(len: u32, lane: u32) {
    if (len == BLOCK) {
        butterflies(true);
    }
    for (var order = MIDDLE; order < HIGH; order++) {
        exchange(order, order + 1u, len, lane);
        if (len == BLOCK) {
            butterflies(order == MIDDLE);
        }
    }
    // Shorter blocks are transformed level by level.
    let len_in_room = select(0u, len, len < BLOCK);
    workgroupBarrier();
    for (var k = 0u; k < 16u && index_of(HIGH, k, lane) < len_in_room; k++) {
        room[place(index_of(HIGH, k, lane))] = own[k];
    }
    transform_in_room(len_in_room, lane);
    for (var k = 0u; k < 16u && index_of(HIGH, k, lane) < len_in_room; k++) {
        own[k] = room[place(index_of(HIGH, k, lane))];
    }
}
