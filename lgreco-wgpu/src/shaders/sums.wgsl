// Adds up records of eight sums. A workgroup adds at most 4096 records of a task.

struct Params {
    first: u32, // first record
    count: u32,
    target_record: u32,
}

@group(0) @binding(1) var<storage, read_write> records: array<u32>;
@group(0) @binding(2) var<storage, read_write> totals: array<u32>;

@compute @workgroup_size(64)
fn add_records(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    var sums: array<Wide, 8>;
    let end = min((group.x + 1u) * 4096u, params.count);
    for (var record = group.x * 4096u + lane; record < end; record += 64u) {
        for (var w = 0u; w < 8u; w++) {
            let at = (params.first + record) * 16u + w;
            sums[w] = plus(sums[w], Wide(bitcast<f32>(records[at]), bitcast<i32>(records[at + 8u])));
        }
    }
    for (var w = 0u; w < 8u; w++) {
        put_sum(w * 64u + lane, sums[w]);
    }
    add_lanes(lane);
    if (lane == 0u) {
        for (var w = 0u; w < 8u; w++) {
            let at = (params.target_record + group.x) * 16u + w;
            totals[at] = bitcast<u32>(mantissas[w * 64u]);
            totals[at + 8u] = bitcast<u32>(exponents[w * 64u]);
        }
    }
}
