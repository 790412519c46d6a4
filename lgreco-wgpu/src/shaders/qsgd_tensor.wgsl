// QSGD for tensors that are processed in pieces: grids of buckets, rows of the error table, encoding and decoding.

struct Params {
    offset: u32,
    dtype: u32,
    first: u32, // position of the piece's first value in the tensor
    count: u32, // number of values in the piece
    bucket: u32,
    first_bucket: u32, // difference between a bucket's number in the tensor and its index in `grids`; wraps around
    first_grid: u32, // index in `grids` of the first of the `buckets` buckets
    buckets: u32,
    sign_magnitude: u32,
    min_max: u32,
    nearest: u32,
    widths: u32, // bit b - 1: whether width b is measured
    bits: u32,
    log_levels: u32,
    inverse_levels: u32, // bits of 1 / (2^log_levels - 1)
    step: u32,
    layer: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
    record: u32, // number of the first record in `output`
    result: u32,
}

// Three words per bucket: the largest magnitude, the largest value, and the complement of the smallest value. The last
// two words have the form that `ordered` returns.
@group(0) @binding(2) var<storage, read_write> extremes: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> grids: array<Grid>;
@group(0) @binding(4) var<storage, read_write> words: array<u32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<atomic<u32>>;

fn grid_at(bucket: u32) -> Grid {
    return grids[bucket];
}

@compute @workgroup_size(64)
fn extreme_values(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    clear_tops(lane);
    load_tile(group.x * PER_GROUP, lane);
    find_extremes(group.x * PER_GROUP, lane);
    workgroupBarrier();
    tell_extremes(group.x * PER_GROUP, lane);
}

// Makes the grids, one invocation per bucket. For a bucket with values that are not finite, sets results[result] to the
// maximum of itself and the bits of the largest magnitude instead.
@compute @workgroup_size(64)
fn make_grids(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch) || group.x * 64u + lane >= params.buckets) {
        return;
    }
    let bucket = params.first_grid + group.x * 64u + lane;
    let largest = atomicLoad(&extremes[3u * bucket]);
    if (largest >= INFINITY) {
        atomicMax(&results[params.result], largest);
        return;
    }
    grids[bucket] = grid_of(bucket);
}

// Writes the scales of each bucket for the payload.
@compute @workgroup_size(64)
fn scales(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch) || group.x * 64u + lane >= params.buckets) {
        return;
    }
    let own = group.x * 64u + lane;
    let bucket = params.first_grid + own;
    if (params.min_max != 0u) {
        words[2u * own] = grids[bucket].low;
        words[2u * own + 1u] = grids[bucket].high;
    } else {
        words[own] = grids[bucket].high;
    }
}

fn levels(log_levels: u32) -> f32 {
    return f32((1u << log_levels) - 1u);
}

// Computes the squared error at each width, summed over the values of a workgroup.
@compute @workgroup_size(64)
fn row(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
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

// The squared error at each width, summed over the values start .. stop of the tile, in scaled units. All values of
// this range are in one bucket.
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

@compute @workgroup_size(64)
fn encode(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let first = group.x * PER_GROUP;
    load_tile(first, lane);
    write_codes(first, lane);
}

// Decodes the codes in `words`, and writes the bits of the values. `extremes` holds the ends of the grids, which come
// from the payload.
@compute @workgroup_size(64)
fn decode(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let end = min((group.x + 1u) * PER_GROUP, params.count);
    for (var i = group.x * PER_GROUP + lane; i < end; i += 64u) {
        let bucket = (params.first + i) / params.bucket - params.first_bucket;
        let ends = select(1u, 2u, params.min_max != 0u);
        let end = atomicLoad(&extremes[ends * bucket]);
        output[i] = decoded(code_of(i), end, atomicLoad(&extremes[ends * bucket + ends - 1u]));
    }
}
