// Encodes TopK's payloads. Blocks of values are counted, and kept values are written to their places. If the cut is not
// known yet, `topk_cut.wgsl` finds it.

fn counter(at: u32) -> u32 {
    return atomicLoad(&counters[at]);
}

fn add_counter(at: u32, x: u32) -> u32 {
    return atomicAdd(&counters[at], x);
}

fn max_with_counter(at: u32, x: u32) {
    atomicMax(&counters[at], x);
}

fn add_bits_to_counter(at: u32, bits: u32) {
    atomicOr(&counters[at], bits);
}

fn set_counter(at: u32, x: u32) {
    atomicStore(&counters[at], x);
}

// The workgroup's block of the tensor. Pieces have whole blocks.
fn own_block() -> u32 {
    return params.first / PER_GROUP + group.x;
}

@compute @workgroup_size(64)
fn sample(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    clear_shares(lane);
    workgroupBarrier();
    for (var draw = lane; draw < draws(); draw += 64u) {
        let i = group.x * PER_GROUP + drawn(draw, mixed(own_block()));
        if (i < params.count) {
            add_to_sample(value(i) & MAGNITUDE);
        }
    }
    workgroupBarrier();
    give_shares(SAMPLE, lane);
}

@compute @workgroup_size(64)
fn gather_values(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    begin_gathering(lane);
    let end = min((group.x + 1u) * PER_GROUP, params.count);
    for (var i = group.x * PER_GROUP + lane.index; i < end; i += 64u) {
        see(value(i) & MAGNITUDE);
    }
    workgroupBarrier();
    end_gathering(params.first_block + group.x, own_block() == 0u, lane.index);
}

@compute @workgroup_size(64)
fn refine(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    count_picked(params.first_block + group.x, group.x * PER_GROUP, own_block() == 0u, lane);
}

// If the sample has missed the cut: counts values by the bits of one of the three levels of the full search.
@compute @workgroup_size(64)
fn settle(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    settle_block(params.level, group.x * PER_GROUP, own_block() == 0u, lane);
}

// Counts each block's values above the cut, and its values equal to the cut.
@compute @workgroup_size(64)
fn count_kept(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    let cut = find_cut(params.settles != 0u, lane);
    let own = count_found(params.first_block + group.x, group.x * PER_GROUP, cut.magnitude, lane.index);
    let kept = sum_of(lane, 64u, own);
    if (lane.index == 0u) {
        count_block_as(params.first_block + group.x, own_block(), kept);
    }
    if (own_block() != 0u) {
        return;
    }
    if (lane.index == 0u) {
        state[params.first_keep].magnitude = cut.magnitude;
        state[params.first_keep].ties = cut.ties;
        atomicStore(&results[0], counted(HIGHEST));
        atomicStore(&results[1], cut.magnitude);
        atomicStore(&results[2], u32(is_lost(cut)));
    }
    if (params.bits != 0u) {
        let range = range_from(cut);
        widen_range(~range.low, range.low + range.span - 1u);
        write_exponents(range, lane.index);
    }
}

// Like `count_kept`, but for a known cut. In few bits, `count_block` also finds the range of the kept magnitudes.
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
        count_block_as(params.first_block + group.x, own_block(), kept.sum);
        if (params.bits != 0u) {
            widen_range(kept.lowest, kept.highest);
        }
    }
}

fn put_position(word: u32, bit: u32, bits: u32) {
    let lower = word - params.positions_window;
    if (lower < params.positions_len) {
        atomicOr(&position_words[lower], bits << bit);
    }
    if (bit > 0u && (bits >> (32u - bit)) != 0u && lower + 1u < params.positions_len) {
        atomicOr(&position_words[lower + 1u], bits >> (32u - bit));
    }
}

@compute @workgroup_size(64)
fn write_kept(dispatch: Dispatch, lane: Lane) {
    if (!begin(dispatch)) {
        return;
    }
    let first = group.x * PER_GROUP;
    let block = params.first_block + group.x;
    clear_own_bins(lane.index);
    let cut = state[params.first_keep];
    let before = known_before(block, own_block(), lane);
    skip_unless_written(block, first, cut.magnitude, cut.ties, before);
    load_tile(first, lane.index);
    if (params.bits != 0u) {
        written_range = range();
    }
    write_tile(first, cut.magnitude, cut.ties, before, lane);
    workgroupBarrier();
    if (params.bits != 0u) {
        give_own_bins(lane.index);
    }
}

// In few bits, writes the means to the payload.
@compute @workgroup_size(128)
fn make_means(dispatch: Dispatch, @builtin(local_invocation_index) bin: u32) {
    if (begin(dispatch) && bin >> (params.bits - 1u) == 0u) {
        put(params.values_word + bin, 0u, mean_of_bin(bin));
    }
}
