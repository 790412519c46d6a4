// QSGD: grids of buckets, rows of the error table, codes and back. The numerics are those of
// lgreco_core::compress::qsgd. An invocation works on a row of 32 consecutive elements, whose codes are whole words.

struct Params {
    offset: u32,
    dtype: u32,
    first: u32, // position of the piece's first value in the tensor
    count: u32, // values in the piece
    bucket: u32,
    first_bucket: u32, // bucket whose grid comes first in `grids`
    buckets: u32,
    sign_magnitude: u32,
    min_max: u32,
    nearest: u32,
    widths: u32, // bit b - 1: whether width b is measured
    bits: u32,
    log_levels: u32,
    inverse_levels: u32, // bits of 1 / s
    step: u32,
    layer: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
    record: u32, // of `output`
    result: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
// Per bucket: largest magnitude, largest value and complement of the smallest, the latter two by `ordered`.
@group(0) @binding(2) var<storage, read_write> extremes: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> grids: array<Grid>;
@group(0) @binding(4) var<storage, read_write> words: array<u32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<atomic<u32>>;

const FRACTION_BITS = 23u;
const FRACTION = 0x007fffffu;

// All but `power`, an exponent field, are bits of f32.
struct Grid {
    low: u32,
    high: u32,
    power: u32,
    scaled_low: u32,
    scaled_high: u32,
    length: u32,
    inverse: u32,
}

// Orders as the values do.
fn ordered(bits: u32) -> u32 {
    return bits ^ select(SIGN, 0xffffffffu, bits >= SIGN);
}

fn from_ordered(key: u32) -> u32 {
    return key ^ select(0xffffffffu, SIGN, key >= SIGN);
}

// Of the buckets that a workgroup's values lie in, if they are few: what `extremes` has of them.
const FEW = 64u;
var<workgroup> tops: array<atomic<u32>, 192>;

@compute @workgroup_size(64)
fn extreme_values(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * PER_GROUP;
    let first_bucket = (params.first + first) / params.bucket;
    let last_bucket = (params.first + min(first + PER_GROUP, params.count) - 1u) / params.bucket;
    let few = last_bucket - first_bucket < FEW;
    for (var i = lane; i < 3u * FEW; i += 64u) {
        atomicStore(&tops[i], 0u);
    }
    load_tile(first, lane);
    let start = lane * ROW;
    let end = min(start + ROW, params.count - first);
    let position = params.first + first + start;
    var bucket = position / params.bucket;
    var left = params.bucket - position % params.bucket;
    var largest = 0u;
    var high = 0u;
    var low = 0u;
    for (var i = start; i < end; i++) {
        let bits = tile[in_tile(i)];
        largest = max(largest, bits & MAGNITUDE);
        high = max(high, ordered(bits));
        low = max(low, ~ordered(bits));
        left -= 1u;
        if (left == 0u || i + 1u == end) {
            if (few) {
                let at = 3u * (bucket - first_bucket);
                atomicMax(&tops[at], largest);
                atomicMax(&tops[at + 1u], high);
                atomicMax(&tops[at + 2u], low);
            } else {
                raise(bucket, largest, high, low);
            }
            bucket += 1u;
            left = params.bucket;
            largest = 0u;
            high = 0u;
            low = 0u;
        }
    }
    workgroupBarrier();
    if (few && lane <= last_bucket - first_bucket) {
        let at = 3u * lane;
        raise(first_bucket + lane, atomicLoad(&tops[at]), atomicLoad(&tops[at + 1u]), atomicLoad(&tops[at + 2u]));
    }
}

// Makes a bucket's extremes at least these.
fn raise(bucket: u32, largest: u32, high: u32, low: u32) {
    let at = 3u * (bucket - params.first_bucket);
    atomicMax(&extremes[at], largest);
    if (params.min_max != 0u) {
        atomicMax(&extremes[at + 1u], high);
        atomicMax(&extremes[at + 2u], low);
    }
}

// One invocation per bucket. results[result] becomes at least the largest magnitude.
@compute @workgroup_size(64)
fn make_grids(@builtin(global_invocation_id) id: vec3<u32>) {
    let bucket = id.x;
    if (bucket >= params.buckets) {
        return;
    }
    let largest = atomicLoad(&extremes[3u * bucket]);
    if (largest >= INFINITY) {
        atomicMax(&results[params.result], largest);
        return;
    }
    var grid: Grid;
    if (params.min_max != 0u) {
        // Sends -0 as +0.
        grid.low = add(from_ordered(~atomicLoad(&extremes[3u * bucket + 2u])), 0u);
        grid.high = add(from_ordered(atomicLoad(&extremes[3u * bucket + 1u])), 0u);
    } else {
        grid.low = select(largest | SIGN, 0u, params.sign_magnitude != 0u);
        grid.high = largest;
    }
    grid.power = u32(max(254 - i32(largest >> 23u), 1));
    grid.scaled_low = multiply(grid.low, grid.power << 23u);
    grid.scaled_high = multiply(grid.high, grid.power << 23u);
    grid.length = add(grid.scaled_high, grid.scaled_low ^ SIGN);
    if (grid.length != 0u) {
        grid.inverse = reciprocal(grid.length);
    }
    grids[bucket] = grid;
}

// What is sent of each bucket.
@compute @workgroup_size(64)
fn scales(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= params.buckets) {
        return;
    }
    if (params.min_max != 0u) {
        words[2u * id.x] = grids[id.x].low;
        words[2u * id.x + 1u] = grids[id.x].high;
    } else {
        words[id.x] = grids[id.x].high;
    }
}

// The value on the grid's scale, or its magnitude.
fn scaled(bits: u32, power: u32) -> u32 {
    return multiply(select(bits, bits & MAGNITUDE, params.sign_magnitude != 0u), power << 23u);
}

// Where a scaled value lies between the ends of its grid: 0 to 2^23.
fn position_on(grid: Grid, scaled: u32) -> u32 {
    var from_low = scaled;
    if (params.sign_magnitude == 0u) {
        from_low = add(scaled, grid.scaled_low ^ SIGN);
    }
    let part = multiply(from_low, grid.inverse) & MAGNITUDE;
    if (part >= ONE) {
        return 1u << FRACTION_BITS;
    }
    let shift = 127u - (part >> 23u);
    if (shift > 24u) {
        return 0u;
    }
    return shift_rounded((part & 0x007fffffu) | 0x00800000u, shift);
}

// position * s, in units of 2^-23 levels.
fn in_levels(position: u32, log_levels: u32) -> u32 {
    return (position << log_levels) - position;
}

fn levels(log_levels: u32) -> f32 {
    return f32((1u << log_levels) - 1u);
}

// The squared error of each width, summed over the values of a workgroup.
@compute @workgroup_size(64)
fn row(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var sums: array<Wide, 8>;
    let first = group.x * PER_GROUP;
    load_tile(first, lane);
    let start = lane * ROW;
    let end = min(start + ROW, params.count - first);
    if (start < end) {
        let position = params.first + first + start;
        var bucket = position / params.bucket - params.first_bucket;
        var left = params.bucket - position % params.bucket;
        var i = start;
        while (i < end) {
            let stop = i + min(left, end - i);
            var in_bucket = errors(grids[bucket], i, stop);
            for (var w = 0u; w < 8u; w++) {
                sums[w] = plus(sums[w], wide(in_bucket[w], 254 - 2 * i32(grids[bucket].power)));
            }
            i = stop;
            bucket += 1u;
            left = params.bucket;
        }
    }
    for (var w = 0u; w < 8u; w++) {
        put_sum(w * 64u + lane, sums[w]);
    }
    add_lanes(lane);
    if (lane == 0u) {
        for (var w = 0u; w < 8u; w++) {
            let at = (params.record + group.x) * 16u + w;
            output[at] = bitcast<u32>(mantissas[w * 64u]);
            output[at + 8u] = bitcast<u32>(exponents[w * 64u]);
        }
    }
}

// Squared errors of values start .. stop of the tile and of one bucket, in scaled units.
fn errors(grid: Grid, start: u32, stop: u32) -> array<f32, 8> {
    var sums: array<f32, 8>;
    let holds_zero = (grid.low == 0u || grid.low >= SIGN) && grid.high < SIGN;
    let low = bitcast<f32>(grid.scaled_low);
    let length = bitcast<f32>(grid.length);
    for (var i = start; i < stop; i++) {
        let scaled = scaled(tile[in_tile(i)], grid.power);
        let position = position_on(grid, scaled);
        for (var w = 0u; w < 8u; w++) {
            if ((params.widths & (1u << w)) == 0u) {
                continue;
            }
            let log_levels = w + 1u - params.sign_magnitude;
            let at = in_levels(position, log_levels);
            if (params.nearest == 0u && holds_zero) {
                let fraction = f32(at & FRACTION) * 0x1p-23f;
                sums[w] += fraction * (1.0 - fraction);
                continue;
            }
            let x = bitcast<f32>(scaled);
            let high = bitcast<f32>(grid.scaled_high);
            let step = 1.0 / levels(log_levels);
            if (params.nearest != 0u) {
                let part = f32((at + 0x00400000u) >> FRACTION_BITS) * step;
                let residual = low * (1.0 - part) + high * part - x;
                sums[w] += residual * residual;
            } else {
                let fraction = f32(at & FRACTION) * 0x1p-23f;
                let level = f32(at >> FRACTION_BITS);
                let part = level * step;
                let next = (level + 1.0) * step;
                let below = low * (1.0 - part) + high * part - x;
                let above = low * (1.0 - next) + high * next - x;
                sums[w] += (1.0 - fraction) * (below * below) + fraction * (above * above);
            }
        }
    }
    if (params.nearest == 0u && holds_zero) {
        for (var w = 0u; w < 8u; w++) {
            let step = length / levels(max(w + 1u - params.sign_magnitude, 1u));
            sums[w] *= step * step;
        }
    }
    return sums;
}

// A lane's words of codes take the places of values in the tile that it has seen, and from there all go out side by side.
@compute @workgroup_size(64)
fn encode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * PER_GROUP;
    load_tile(first, lane);
    let start = lane * ROW;
    let end = min(start + ROW, params.count - first);
    if (start < end) {
        encode_row(first, start, end);
    }
    workgroupBarrier();
    let rows = (min(PER_GROUP, params.count - first) + ROW - 1u) / ROW;
    for (var i = lane; i < rows * params.bits; i += 64u) {
        words[group.x * 64u * params.bits + i] = tile[in_tile(i / params.bits * ROW) + i % params.bits];
    }
}

fn encode_row(first: u32, start: u32, end: u32) {
    let position = params.first + first + start;
    var bucket = position / params.bucket - params.first_bucket;
    var left = params.bucket - position % params.bucket;
    var grid = grids[bucket];
    var draws: vec4<u32>;
    var pending = 0u;
    var held = 0u;
    var word = in_tile(start);
    for (var i = start; i < start + ROW; i++) {
        var code = 0u;
        if (i < end) {
            if (left == 0u) {
                bucket += 1u;
                left = params.bucket;
                grid = grids[bucket];
            }
            left -= 1u;
            var addend = 0x00400000u;
            if (params.nearest == 0u) {
                if ((i & 3u) == 0u) {
                    draws = random((params.first + first + i) >> 2u);
                }
                addend = draws.x >> 9u;
                draws = draws.yzwx;
            }
            let bits = tile[in_tile(i)];
            code = (in_levels(position_on(grid, scaled(bits, grid.power)), params.log_levels) + addend) >> FRACTION_BITS;
            if (params.sign_magnitude != 0u) {
                code |= (bits >> 31u) << params.log_levels;
            }
        }
        pending |= code << held;
        held += params.bits;
        if (held >= 32u) {
            tile[word] = pending;
            word += 1u;
            held -= 32u;
            pending = select(0u, code >> (params.bits - held), held > 0u);
        }
    }
}

// The bits of the values that the codes in `words` stand for.
@compute @workgroup_size(64)
fn decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let end = min((group.x + 1u) * PER_GROUP, params.count);
    for (var i = group.x * PER_GROUP + lane; i < end; i += 64u) {
        let bucket = (params.first + i) / params.bucket - params.first_bucket;
        output[i] = decoded(code_of(i), bucket);
    }
}

// The code of value i in `words`.
fn code_of(i: u32) -> u32 {
    let bit = (i % ROW) * params.bits;
    let word = i / ROW * params.bits + (bit >> 5u);
    let shift = bit & 31u;
    var code = words[word] >> shift;
    if (shift + params.bits > 32u) {
        code |= words[word + 1u] << (32u - shift);
    }
    return code & ((1u << params.bits) - 1u);
}

// `extremes` holds the ends of the grids as they were sent.
fn decoded(code: u32, bucket: u32) -> u32 {
    let level = code & ((1u << params.log_levels) - 1u);
    let part = multiply(bitcast<u32>(f32(level)), params.inverse_levels);
    if (params.sign_magnitude != 0u) {
        let magnitude = multiply(part, atomicLoad(&extremes[bucket]));
        return magnitude ^ select(0u, SIGN, level != 0u && code > level);
    }
    var low: u32;
    var high: u32;
    if (params.min_max != 0u) {
        low = atomicLoad(&extremes[2u * bucket]);
        high = atomicLoad(&extremes[2u * bucket + 1u]);
    } else {
        high = atomicLoad(&extremes[bucket]);
        low = high ^ SIGN;
    }
    return add(multiply(low, add(ONE, part ^ SIGN)), multiply(high, part));
}
