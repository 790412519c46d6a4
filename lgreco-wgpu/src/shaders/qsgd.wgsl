// QSGD: grids of buckets, codes and decoding. `qsgd_tensor.wgsl` has the entry points. The arithmetic is that of
// lgreco_compress::qsgd. An invocation processes a row of 32 consecutive elements; their codes fill whole words.

const FRACTION_BITS = 23u;
const FRACTION = 0x007fffffu;

// The grid of a bucket. `power` is an exponent field; the other fields are bits of f32.
struct Grid {
    low: u32,
    high: u32,
    power: u32,
    scaled_low: u32,
    scaled_high: u32,
    length: u32,
    inverse: u32,
}

// Maps bits to integers with the same order as the values.
fn ordered(bits: u32) -> u32 {
    return bits ^ select(SIGN, 0xffffffffu, bits >= SIGN);
}

fn from_ordered(key: u32) -> u32 {
    return key ^ select(0xffffffffu, SIGN, key >= SIGN);
}

// The extremes of the buckets of a workgroup's values, if there are few buckets. `tops` has the same form as
// `extremes`.
const FEW = 64u;
var<workgroup> tops: array<atomic<u32>, 192>;

// Clears `tops` before the tile is filled.
fn clear_tops(lane: u32) {
    for (var i = lane; i < 3u * FEW; i += 64u) {
        atomicStore(&tops[i], 0u);
    }
}

// The buckets of the tile's first and last value. The first value has index `first`.
fn buckets_of_tile(first: u32) -> vec2<u32> {
    let last = params.first + min(first + PER_GROUP, params.count) - 1u;
    return vec2<u32>(params.first + first, last) / params.bucket;
}

// Finds the extremes of the tile's buckets, after `clear_tops`. The extremes go to `tops` if there are few buckets, and
// otherwise to `extremes`. The tile's first value has index `first`.
fn find_extremes(first: u32, lane: u32) {
    let buckets = buckets_of_tile(first);
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
            if (buckets.y - buckets.x < FEW) {
                let at = 3u * (bucket - buckets.x);
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
}

// Merges the extremes in `tops` into `extremes`, once all lanes have found theirs.
fn tell_extremes(first: u32, lane: u32) {
    let buckets = buckets_of_tile(first);
    if (buckets.y - buckets.x < FEW && lane <= buckets.y - buckets.x) {
        let at = 3u * lane;
        raise(buckets.x + lane, atomicLoad(&tops[at]), atomicLoad(&tops[at + 1u]), atomicLoad(&tops[at + 2u]));
    }
}

// Raises each extreme of a bucket to at least the given value.
fn raise(bucket: u32, largest: u32, high: u32, low: u32) {
    let at = 3u * (bucket - params.first_bucket);
    atomicMax(&extremes[at], largest);
    if (params.min_max != 0u) {
        atomicMax(&extremes[at + 1u], high);
        atomicMax(&extremes[at + 2u], low);
    }
}

// The grid of a bucket with finite values. `bucket` is the bucket's index in `extremes`.
fn grid_of(bucket: u32) -> Grid {
    let at = 3u * bucket;
    return grid_from(atomicLoad(&extremes[at]), atomicLoad(&extremes[at + 1u]), atomicLoad(&extremes[at + 2u]));
}

// The grid for these extremes, which have the form of `tops` and `extremes`.
fn grid_from(largest: u32, high: u32, low: u32) -> Grid {
    var grid: Grid;
    if (params.min_max != 0u) {
        // Adding +0 turns -0 into +0.
        grid.low = add(from_ordered(~low), 0u);
        grid.high = add(from_ordered(high), 0u);
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
    return grid;
}

// The value or, if codes have a sign bit, its magnitude, times the grid's power of two.
fn scaled(bits: u32, power: u32) -> u32 {
    return multiply(select(bits, bits & MAGNITUDE, params.sign_magnitude != 0u), power << 23u);
}

// Position of a scaled value on its grid, from 0 (lower end) to 2^23 (upper end).
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

// position * (2^log_levels - 1), in units of 2^-23 levels.
fn in_levels(position: u32, log_levels: u32) -> u32 {
    return (position << log_levels) - position;
}

// Replaces the values of a row of the tile by their codes. Each word is overwritten only after its value has been read.
// `grid_at` returns a bucket's grid.
fn encode_row(first: u32, start: u32, end: u32) {
    let position = params.first + first + start;
    var bucket = position / params.bucket - params.first_bucket;
    var left = params.bucket - position % params.bucket;
    var grid = grid_at(bucket);
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
                grid = grid_at(bucket);
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

// Word i of the tile's codes. The codes of consecutive rows follow each other.
fn coded(i: u32) -> u32 {
    return tile[in_tile(i / params.bits * ROW) + i % params.bits];
}

// Writes the codes of the tile's values to `words`. The tile's first value has index `first`. All lanes must call this
// function, after the tile is filled and the grids exist.
fn write_codes(first: u32, lane: u32) {
    let start = lane * ROW;
    let end = min(start + ROW, params.count - first);
    if (start < end) {
        encode_row(first, start, end);
    }
    workgroupBarrier();
    let rows = (min(PER_GROUP, params.count - first) + ROW - 1u) / ROW;
    for (var i = lane; i < rows * params.bits; i += 64u) {
        words[first / ROW * params.bits + i] = coded(i);
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

// The bits of the value of a code. `end` and `other_end` are the ends of the bucket's grid as the payload has them: the
// largest magnitude, or the smallest and the largest value.
fn decoded(code: u32, end: u32, other_end: u32) -> u32 {
    let level = code & ((1u << params.log_levels) - 1u);
    let part = multiply(bitcast<u32>(f32(level)), params.inverse_levels);
    if (params.sign_magnitude != 0u) {
        return multiply(part, end) ^ select(0u, SIGN, level != 0u && code > level);
    }
    let low = select(end ^ SIGN, end, params.min_max != 0u);
    let high = select(end, other_end, params.min_max != 0u);
    return add(multiply(low, add(ONE, part ^ SIGN)), multiply(high, part));
}
