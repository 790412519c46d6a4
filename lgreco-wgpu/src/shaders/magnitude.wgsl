// The largest magnitude of a tensor, the position of the first magnitude that reaches a limit, and sums of squares.

struct Params {
    offset: u32,
    dtype: u32,
    first: u32,
    count: u32,
    least: u32,
    result: u32,
    record: u32,
}

@group(0) @binding(2) var<storage, read_write> results: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> records: array<u32>;

// Sets results[result] to the maximum of itself and the bits of the largest magnitude.
@compute @workgroup_size(64)
fn largest(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    var found = 0u;
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane.index;
        if (i < params.count) {
            found = max(found, value(i) & MAGNITUDE);
        }
    }
    found = largest_of(lane, 64u, found);
    if (lane.index == 0u) {
        atomicMax(&results[params.result], found);
    }
}

// Finds the position i of the first magnitude that reaches `least`. Sets results[result] to the maximum of itself and
// ~i, so 0 means that no magnitude reaches `least`.
@compute @workgroup_size(64)
fn position(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    for (var j = 0u; j < 32u; j++) {
        let i = group.x * 2048u + j * 64u + lane;
        if (i < params.count && (value(i) & MAGNITUDE) >= params.least) {
            atomicMax(&results[params.result], ~(params.first + i));
            return;
        }
    }
}

// Writes eight sums of squares to a record, each over 256 of a workgroup's 2048 values. Sets results[result] to the
// maximum of itself and the bits of the largest magnitude.
@compute @workgroup_size(64)
fn squares(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    var found = 0u;
    for (var w = 0u; w < 8u; w++) {
        var sum = Wide(0.0, 0);
        for (var j = 0u; j < 4u; j++) {
            let i = group.x * 2048u + (4u * w + j) * 64u + lane.index;
            if (i < params.count) {
                let magnitude = value(i) & MAGNITUDE;
                found = max(found, magnitude);
                sum = plus(sum, square(magnitude));
            }
        }
        put_sum(w * 64u + lane.index, sum);
    }
    add_lanes(lane.index);
    found = largest_of(lane, 64u, found);
    if (lane.index == 0u) {
        atomicMax(&results[params.result], found);
        for (var w = 0u; w < 8u; w++) {
            let at = (params.record + group.x) * 16u + w;
            records[at] = bitcast<u32>(mantissas[w * 64u]);
            records[at + 8u] = bitcast<u32>(exponents[w * 64u]);
        }
    }
}
