// The k largest of each layer under TopK: histograms of the magnitudes' upper 11 bits, of the next 10 of those at the bin that k
// divides, and of the last 10; then the payloads.

// Where the k largest of a layer end, as far as is known: the upper bits of the k-th largest magnitude, and its rank among those
// with these bits.
struct Cut {
    magnitude: u32,
    rank: u32,
}

// Per layer under TopK 2048 counts of the first level, and 1024 of each other.
@group(0) @binding(14) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(15) var<storage, read_write> cuts: array<Cut>;
@group(0) @binding(16) var<storage, read_write> payload: array<atomic<u32>>;
// Per workgroup of values: those above the cut and those at it; after `scan`, of all of the layer's before.
@group(0) @binding(17) var<storage, read_write> blocks: array<vec2<u32>>;

var<workgroup> bins: array<atomic<u32>, 2048>;

// Bits of the magnitude below the level's, how many bins the level has, and where they are in `counts`.
fn below() -> u32 {
    return 20u - 10u * moment.level;
}

fn level_bins() -> u32 {
    return select(1024u, 2048u, moment.level == 0u);
}

fn level_start() -> u32 {
    return 4096u * params.table + select(1024u + 1024u * moment.level, 0u, moment.level == 0u);
}

@compute @workgroup_size(64)
fn histogram(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = begin_if(TOP_K, group.x);
    for (var bin = lane; bin < level_bins(); bin += 64u) {
        atomicStore(&bins[bin], 0u);
    }
    workgroupBarrier();
    let cut = cuts[params.table].magnitude;
    let end = min(first + PER_GROUP, params.count);
    for (var i = first + lane; i < end; i += 64u) {
        let magnitude = values[params.start + i] & MAGNITUDE;
        let bits = magnitude >> below();
        if (magnitude < INFINITY && (moment.level == 0u || bits / level_bins() == cut)) {
            atomicAdd(&bins[bits % level_bins()], 1u);
        }
    }
    workgroupBarrier();
    for (var bin = lane; bin < level_bins(); bin += 64u) {
        let count = atomicLoad(&bins[bin]);
        if (count != 0u) {
            atomicAdd(&counts[level_start() + bin], count);
        }
    }
}

// The bin in which the k-th largest lies; a workgroup per layer.
@compute @workgroup_size(256)
fn choose(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    begin(layer_of[group.x]);
    var cut = cuts[params.table];
    if (moment.level == 0u) {
        cut = Cut(0u, params.keep);
    }
    // The largest come first.
    let share = level_bins() / 256u;
    let last = level_start() + level_bins() - 1u - place(lane) * share;
    var sum = 0u;
    for (var i = 0u; i < share; i++) {
        sum += atomicLoad(&counts[last - i]);
    }
    var before = sum_before(lane, vec2<u32>(sum, 0u)).x;
    // All have read the cut before one of them writes it.
    storageBarrier();
    if (before >= cut.rank || before + sum < cut.rank) {
        return;
    }
    for (var i = 0u; i < share; i++) {
        let count = atomicLoad(&counts[last - i]);
        if (before + count >= cut.rank) {
            let bin = last - i - level_start();
            cuts[params.table] = Cut(cut.magnitude * level_bins() + bin, cut.rank - before);
            return;
        }
        before += count;
    }
}

// How many there are above the cut and at it, and of which magnitudes.
@compute @workgroup_size(64)
fn count_kept(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let first = begin_if(TOP_K, group.x);
    let cut = cuts[params.table].magnitude;
    let end = min(first + PER_GROUP, params.count);
    var kept = Kept();
    for (var i = first + lane.index; i < end; i += 64u) {
        add_found(&kept, values[params.start + i], cut);
    }
    kept = kept_of(lane, kept);
    if (lane.index == 0u) {
        blocks[group.x] = kept.sum;
        if (params.bits != 0u && params.method == TOP_K) {
            widen_range(kept.lowest, kept.highest);
        }
    }
}

@compute @workgroup_size(256)
fn scan(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    begin(layer_of[group.x]);
    scan_blocks(params.start / PER_GROUP, (params.count + PER_GROUP - 1u) / PER_GROUP, lane);
}

// Payloads of TopK into this rank's image. `values` are what is offered.
@compute @workgroup_size(64)
fn write_kept(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let first = begin_if(TOP_K, group.x);
    params.dtype = 0u;
    params.offset = params.start;
    load_tile(first, lane.index);
    let cut = cuts[params.table];
    let known = blocks[group.x];
    let end = min(PER_GROUP, params.count - first);
    for (var i = lane.index; i < end; i += 64u) {
        let magnitude = tile[in_tile(i)] & MAGNITUDE;
        // Whatever has the cut's magnitude is too large if the first of it is.
        if (magnitude >= max(params.largest, cut.magnitude)) {
            fault(4u, first + i);
        }
    }
    write_tile(first, cut.magnitude, cut.rank, known, lane);
}
