// TopK's payloads of a tensor: blocks of elements are counted, the counts added up, and what is kept written to its places.

@compute @workgroup_size(64)
fn count_block(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let cut = state[0].magnitude;
    let end = min((group.x + 1u) * PER_GROUP, params.count);
    var sum = vec2<u32>(0u, 0u);
    for (var i = group.x * PER_GROUP + lane.index; i < end; i += 64u) {
        sum += found(value(i), cut);
    }
    sum = sum_of(lane, 64u, sum);
    if (lane.index == 0u) {
        blocks[params.first_block + group.x] = sum;
    }
}

@compute @workgroup_size(256)
fn scan(lane: Lane) {
    scan_blocks(0u, params.blocks, lane);
}

fn put_kept(index: u32, bits: u32) {
    put_in_full(index, bits);
}

@compute @workgroup_size(64)
fn write_kept(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let first = group.x * PER_GROUP;
    load_tile(first, lane.index);
    write_tile(first, state[0].magnitude, state[0].ties, blocks[params.first_block + group.x], lane);
}
