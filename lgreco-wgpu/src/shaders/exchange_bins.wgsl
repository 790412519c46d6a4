// Bins of the layers under TopK in few bits, of all together.

// `begin_if` of TopK, in full or in few bits. `values` are what is offered.
fn begin_topk(group: u32) -> u32 {
    let first = begin_if(TOP_K, group);
    params.dtype = 0u;
    params.offset = params.start;
    return first;
}

// Of a layer that is not under TopK in few bits the workgroup has no values from now on.
fn keep_few_bits_only(first: u32) {
    if (params.method != TOP_K || params.bits == 0u) {
        params.count = first;
    }
}

// The means of bins into this rank's image, by 64 lanes.
fn send_means(cut: Cut, lane: u32) {
    if (params.bits == 0u) {
        return;
    }
    for (var bin = lane; bin >> (params.bits - 1u) == 0u; bin += 64u) {
        put(params.values_word + bin, 0u, mean_of_bin(bin, cut.magnitude, cut.rank, range_of(cut)));
    }
}
