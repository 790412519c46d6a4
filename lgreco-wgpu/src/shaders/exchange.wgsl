// A bucket of layers that are exchanged together, of which a dispatch works on all. Layers lie one after the other in flat
// memory, each from a multiple of 2048 values on, so that a workgroup's values belong to one.
//
// `exchange_select.wgsl` makes TopK's payloads, `exchange_topk.wgsl` adds them up; `exchange_factors.wgsl` has PowerSGD's factors,
// `exchange_end.wgsl` the end of a step.

// Of a layer; the fields up to `seed_high` are what the functions for single tensors ask for.
struct Params {
    offset: u32,
    dtype: u32, // of the gradient and its mean
    first: u32,
    count: u32,
    bucket: u32,
    first_bucket: u32, // wraps, so that buckets have their numbers among those of all layers that are not whole
    whole: u32, // whether a workgroup has all values of a bucket, and encodes them when it offers them
    sign_magnitude: u32,
    min_max: u32,
    nearest: u32,
    bits: u32, // of a code; 0 of TopK in full
    log_levels: u32,
    inverse_levels: u32,
    step: u32,
    layer: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
    method: u32,
    number: u32, // in the bucket of layers
    start: u32, // its first value in flat memory
    sums: u32, // and among what is summed on the wire
    // Words of a rank's image: scales and codes of QSGD; of TopK values, or in few bits means and then codes, and how many ones
    // there are before each block of 2048 bits of its positions.
    scales: u32,
    codes: u32,
    values_word: u32,
    starts: u32,
    // What the k largest are found by: see `topk_cut.wgsl`.
    tables: u32,
    counters: u32,
    stratum: u32,
    most: u32,
    least: u32,
    block_sums: u32,
    block_counts: u32,
    first_entry: u32,
    most_entries: u32,
    bins: u32, // among those of all layers in few bits
    keep: u32,
    sent: u32,
    largest: u32, // bits of the magnitude from which on values become infinite when they are sent
    placement: u32,
    low_bits: u32,
    low_word: u32,
    low_bit: u32,
    high_word: u32,
    high_bit: u32,
    high_len: u32, // bits
    first_block: u32, // of positions, among those of all layers
    positions: u32,
    window: u32, // of the image that is written: all of it
    window_len: u32,
}

// When and where.
struct Moment {
    step: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
    world: u32,
    image: u32, // words of what one rank sends
    layers: u32,
    feedback: u32, // whether there are residuals
    halves: u32, // whether sums travel as bf16
    source: u32, // what the means that are made come of: payloads, sums or factors
    kept: u32, // values that TopK keeps of a rank
    settles: u32, // whether it is about layers whose cuts are lost
    level: u32, // by which these are settled
}

const DENSE = 0u;
const QSGD = 1u;
const TOP_K = 2u;
const POWER_SGD = 3u;

@group(0) @binding(0) var<uniform> moment: Moment;
// Of QSGD's buckets, and behind them what is counted of layers under TopK.
@group(0) @binding(2) var<storage, read_write> extremes: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> words: array<u32>;
@group(0) @binding(5) var<storage, read> layers: array<Params>;
// Of each workgroup the layer.
@group(0) @binding(6) var<storage, read> layer_of: array<u32>;
@group(0) @binding(7) var<storage, read> residual: array<u32>;
@group(0) @binding(8) var<storage, read_write> offered: array<u32>;
@group(0) @binding(9) var<storage, read_write> sums: array<u32>;
@group(0) @binding(11) var<storage, read_write> means: array<u32>;
@group(0) @binding(12) var<storage, read_write> totals: array<u32>;
@group(0) @binding(13) var<storage, read_write> positions: array<u32>;

var<private> params: Params;

// Makes the layer the one that is worked on.
fn begin(number: u32) {
    params = layers[number];
    params.step = moment.step;
    params.rank = moment.rank;
    params.seed_low = moment.seed_low;
    params.seed_high = moment.seed_high;
}

// The same for a workgroup, whose first value of the layer is returned; of another method the layer has no values from there on.
// Where lanes wait for each other, none may leave, whatever its layer is.
fn begin_if(method: u32, group: u32) -> u32 {
    begin(layer_of[group]);
    let first = group * PER_GROUP - params.start;
    if (params.method != method) {
        params.count = first;
    }
    return first;
}

// residual + gradient.
fn sum_with_residual(i: u32) -> u32 {
    let x = value(i);
    if (moment.feedback != 0u) {
        return sum(residual[params.start + i], x);
    }
    return x;
}

// The same, which is looked at.
fn offered_value(i: u32) -> u32 {
    let x = sum_with_residual(i);
    if (!is_finite(x)) {
        fault(0u, i);
    }
    return x;
}

// What layers offer that are not whole, nor under TopK, with its extremes; what is not compressed goes into the sums,
// and of it `offered` keeps what rounding has kept from being sent. Of layers under TopK a sample is drawn.
@compute @workgroup_size(64)
fn offer(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    begin(layer_of[group.x]);
    clear_tops(lane);
    clear_shares(lane);
    workgroupBarrier();
    let first = group.x * PER_GROUP - params.start;
    let is_offered = params.whole == 0u && params.method != TOP_K;
    let end = select(0u, min(PER_GROUP, params.count - first), is_offered);
    for (var i = lane; i < end; i += 64u) {
        var x = offered_value(first + i);
        tile[in_tile(i)] = x;
        if (params.method == DENSE) {
            var sent = x;
            if (moment.halves != 0u) {
                sent = narrow_bf16(x) << 16u;
            }
            sums[params.sums + first + i] = sent;
            x = sum(x, sent ^ SIGN);
        }
        offered[params.start + first + i] = x;
    }
    if (params.method == TOP_K) {
        draw_sample(first, lane);
    }
    let is_shared = params.method == QSGD && params.whole == 0u;
    workgroupBarrier();
    if (is_shared) {
        find_extremes(first, lane);
    }
    workgroupBarrier();
    if (is_shared) {
        tell_extremes(first, lane);
    }
    if (params.method == TOP_K) {
        give_shares(SAMPLE, lane);
    }
}

// The grids of the buckets that a workgroup's values lie in, if they are few.
var<workgroup> held_grids: array<Grid, FEW>;
var<private> tile_buckets: vec2<u32>;

fn grid_at(bucket: u32) -> Grid {
    if (tile_buckets.y - tile_buckets.x < FEW) {
        return held_grids[bucket + params.first_bucket - tile_buckets.x];
    }
    return grid_of(bucket);
}

// The scales of a bucket into this rank's image.
fn send_scales(bucket: u32, grid: Grid) {
    if (params.min_max != 0u) {
        words[params.scales + 2u * bucket] = grid.low;
        words[params.scales + 2u * bucket + 1u] = grid.high;
    } else {
        words[params.scales + bucket] = grid.high;
    }
}

// What layers offer that are whole, and their scales and codes: gradients and residuals are read once.
@compute @workgroup_size(64)
fn offer_codes(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = begin_if(QSGD, group.x);
    if (params.whole == 0u) {
        params.count = first;
    }
    clear_tops(lane);
    let end = min(PER_GROUP, params.count - first);
    for (var i = lane; i < end; i += 64u) {
        let x = offered_value(first + i);
        tile[in_tile(i)] = x;
        offered[params.start + first + i] = x;
    }
    workgroupBarrier();
    if (end > 0u) {
        find_extremes(first, lane);
    }
    workgroupBarrier();
    if (end > 0u) {
        tile_buckets = buckets_of_tile(first);
        if (lane <= tile_buckets.y - tile_buckets.x) {
            let at = 3u * lane;
            let largest = atomicLoad(&tops[at]);
            var grid = Grid();
            if (is_finite(largest)) {
                grid = grid_from(largest, atomicLoad(&tops[at + 1u]), atomicLoad(&tops[at + 2u]));
                send_scales(tile_buckets.x + lane, grid);
            }
            held_grids[lane] = grid;
        }
    }
    workgroupBarrier();
    write_codes(params.codes, first, lane);
}

// Scales and codes of layers under QSGD that are not whole. `values` are what is offered. All lanes call it.
fn encode_codes(group: u32, lane: u32) {
    let first = begin_if(QSGD, group);
    if (params.whole != 0u) {
        params.count = first;
    }
    params.dtype = 0u;
    params.offset = params.start;
    load_tile(first, lane);
    if (first < params.count) {
        tile_buckets = buckets_of_tile(first);
        for (var bucket = tile_buckets.x + lane; bucket <= tile_buckets.y; bucket += 64u) {
            let at = bucket - params.first_bucket;
            var grid = Grid();
            if (is_finite(atomicLoad(&extremes[3u * at]))) {
                grid = grid_of(at);
                if (bucket * params.bucket >= first) {
                    send_scales(bucket, grid);
                }
            }
            if (tile_buckets.y - tile_buckets.x < FEW) {
                held_grids[bucket - tile_buckets.x] = grid;
            }
        }
    }
    workgroupBarrier();
    write_codes(params.codes, first, lane);
}

@compute @workgroup_size(64)
fn encode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    encode_codes(group.x, lane);
}

// The mean of value i, in f32, and this worker's contribution taken off what it has offered.
fn mean_of(i: u32) -> u32 {
    var total: u32;
    if (params.method == DENSE) {
        total = sums[params.sums + i];
    } else if (params.method == TOP_K || params.method == POWER_SGD) {
        total = totals[params.start + i];
    } else {
        let bucket = i / params.bucket;
        let ends = select(1u, 2u, params.min_max != 0u);
        for (var rank = 0u; rank < moment.world; rank++) {
            let image = rank * moment.image;
            let scale = image + params.scales + ends * bucket;
            let held = decoded(code_of(image + params.codes, i), words[scale], words[scale + ends - 1u]);
            if (rank == 0u) {
                total = held;
            } else {
                total = sum(total, held);
            }
            if (rank == moment.rank) {
                take_off(i, held);
            }
        }
    }
    var mean = total;
    // Of PowerSGD the factors are means.
    if (params.method != POWER_SGD) {
        mean = divide(total, moment.world);
    }
    if (!is_finite(mean)) {
        fault(1u, i);
    }
    return mean;
}

fn take_off(i: u32, held: u32) {
    if (moment.feedback == 0u) {
        return;
    }
    let left = sum(offered[params.start + i], held ^ SIGN);
    if (!is_finite(left)) {
        fault(3u, i);
    }
    offered[params.start + i] = left;
}

// The mean of value i as 16 bits.
fn half_of(i: u32) -> u32 {
    let mean = mean_of(i);
    var half = narrow_bf16(mean);
    var infinite = 0x7f80u;
    if (params.dtype == 1u) {
        half = narrow_f16(mean);
        infinite = 0x7c00u;
    }
    if ((half & 0x7fffu) >= infinite && is_finite(mean)) {
        fault(2u, i);
    }
    return half;
}

// Means in the layers' types, where the gradients were.
@compute @workgroup_size(64)
fn average(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    begin(layer_of[group.x]);
    let source = select(select(0u, 2u, params.method == POWER_SGD), 1u, params.method == DENSE);
    if (source != moment.source) {
        return;
    }
    let first = group.x * PER_GROUP - params.start;
    let end = min(first + PER_GROUP, params.count);
    if (params.dtype == 0u) {
        for (var i = first + lane; i < end; i += 64u) {
            means[params.start + i] = mean_of(i);
        }
        return;
    }
    for (var i = first + 2u * lane; i < end; i += 128u) {
        let at = params.start + (i >> 1u);
        // What comes behind an odd number of values is not the layer's.
        var upper = means[at] >> 16u;
        if (i + 1u < end) {
            upper = half_of(i + 1u);
        }
        means[at] = half_of(i) | (upper << 16u);
    }
}
