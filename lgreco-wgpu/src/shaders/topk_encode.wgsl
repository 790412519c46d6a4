// TopK's payloads of a tensor: blocks of elements are counted, the counts added up, and what is kept written to its places.

@compute @workgroup_size(64)
fn count_block(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    let cut = state[params.first_keep].magnitude;
    let end = min((group.x + 1u) * PER_GROUP, params.count);
    var kept = Kept();
    for (var i = group.x * PER_GROUP + lane.index; i < end; i += 64u) {
        add_found(&kept, value(i), cut);
    }
    kept = kept_of(lane, kept);
    if (lane.index == 0u) {
        blocks[params.first_block + group.x] = kept.sum;
        if (params.bits != 0u) {
            widen_range(kept.lowest, kept.highest);
        }
    }
}

// In few bits: what is in each bin, and the means into the payload.
@compute @workgroup_size(64)
fn find_exponents(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    find_exponents_from(group.x * PER_GROUP, state[params.first_keep].magnitude, range(), lane);
}

@compute @workgroup_size(64)
fn add_to_bins(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    add_to_bins_from(group.x * PER_GROUP, state[params.first_keep].magnitude, range(), lane, 64u);
}

@compute @workgroup_size(128)
fn make_means(dispatch: Dispatch, @builtin(local_invocation_index) bin: u32) {
    if (begin(dispatch) && bin >> (params.bits - 1u) == 0u) {
        let cut = state[params.first_keep];
        put(params.values_word + bin, 0u, mean_of_bin(bin, cut.magnitude, cut.ties, range()));
    }
}

@compute @workgroup_size(256)
fn scan(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    scan_blocks(params.first_block, params.blocks, lane);
}

@compute @workgroup_size(64)
fn write_kept(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    let first = group.x * PER_GROUP;
    load_tile(first, lane.index);
    let cut = state[params.first_keep];
    written_range = range();
    write_tile(first, cut.magnitude, cut.ties, blocks[params.first_block + group.x], lane);
}
