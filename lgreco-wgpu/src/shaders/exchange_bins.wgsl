// Bins of the layers under TopK in few bits, of all together.

// `begin_if` of TopK in few bits. `values` are what is offered.
fn begin_few(group: u32) -> u32 {
    let first = begin_if(TOP_K, group);
    params.dtype = 0u;
    params.offset = params.start;
    if (params.bits == 0u) {
        params.count = first;
    }
    return first;
}

@compute @workgroup_size(64)
fn find_exponents(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = begin_few(group.x);
    find_exponents_from(first, cuts[params.table].magnitude, lane);
}

@compute @workgroup_size(64)
fn add_to_bins(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = begin_few(group.x);
    add_to_bins_from(first, cuts[params.table].magnitude, lane);
}

// Means into this rank's image; a workgroup per layer under TopK.
@compute @workgroup_size(128)
fn make_means(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) bin: u32) {
    begin(layer_of[group.x]);
    if (params.bits != 0u && bin >> (params.bits - 1u) == 0u) {
        let cut = cuts[params.table];
        words[params.values_word + bin] = mean_of_bin(bin, cut.magnitude, cut.rank);
    }
}
