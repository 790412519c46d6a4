// TopK's payloads of all layers: `topk_cut.wgsl` in the exchange.

// Per workgroup of values its record, then the magnitudes that are gathered.
@group(0) @binding(15) var<storage, read_write> entries: array<u32>;
@group(0) @binding(16) var<storage, read_write> payload: array<atomic<u32>>;
// How many values are above the cut, and how many at it: of 256 workgroups' of a layer each, then of each.
@group(0) @binding(17) var<storage, read_write> blocks: array<atomic<u32>>;

fn counter(at: u32) -> u32 {
    return atomicLoad(&extremes[at]);
}

fn add_counter(at: u32, x: u32) -> u32 {
    return atomicAdd(&extremes[at], x);
}

fn max_with_counter(at: u32, x: u32) {
    atomicMax(&extremes[at], x);
}

fn add_bits_to_counter(at: u32, bits: u32) {
    atomicOr(&extremes[at], bits);
}

fn set_counter(at: u32, x: u32) {
    atomicStore(&extremes[at], x);
}

// Which of these workgroups' layers are under TopK.
var<workgroup> is_topk: array<u32, 1>;

// Begins a workgroup of a layer under TopK or, where lost cuts are settled, of one that has one; of others all lanes leave. `values` are
// gradients.
fn begin_topk(group: u32, lane: u32) -> bool {
    begin(layer_of[group]);
    if (lane == 0u) {
        is_topk[0] = u32(params.method == TOP_K && (moment.settles == 0u || counted(LOST) != 0u));
    }
    return workgroupUniformLoad(&is_topk[0]) != 0u;
}

// The same once `values` are what is offered.
fn begin_offered(group: u32, lane: u32) -> bool {
    let begins = begin_topk(group, lane);
    params.dtype = 0u;
    params.offset = params.start;
    return begins;
}

// The first of a workgroup's values in its layer.
fn first_of(group: u32) -> u32 {
    return group * PER_GROUP - params.start;
}

// A workgroup's part of the sample of its layer, of gradients and residuals.
fn draw_sample(first: u32, lane: u32) {
    let seed = mixed(moment.step) + mixed(~params.layer) + mixed(first);
    for (var draw = lane; draw < draws(); draw += 64u) {
        let i = first + drawn(draw, seed);
        if (i < params.count) {
            add_to_sample(sum_with_residual(i) & MAGNITUDE);
        }
    }
}

// What layers under TopK offer, and what of it is gathered: gradients and residuals are read once.
@compute @workgroup_size(64)
fn gather_offered(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    if (!begin_topk(group.x, lane.index)) {
        return;
    }
    begin_gathering(lane);
    let first = first_of(group.x);
    let end = min(first + PER_GROUP, params.count);
    for (var i = first + lane.index; i < end; i += 64u) {
        let x = offered_value(i);
        offered[params.start + i] = x;
        see(x & MAGNITUDE);
    }
    workgroupBarrier();
    end_gathering(group.x, first == 0u, lane.index);
}

@compute @workgroup_size(64)
fn refine(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    if (!begin_offered(group.x, lane.index)) {
        return;
    }
    let first = first_of(group.x);
    count_picked(group.x, first, first == 0u, lane);
}

// One of three dispatches that settle cuts that are lost.
@compute @workgroup_size(64)
fn settle(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    if (!begin_offered(group.x, lane.index)) {
        return;
    }
    let first = first_of(group.x);
    settle_block(moment.level, first, first == 0u, lane);
}

// How many there are above the cut and at it. All 64 lanes call it.
fn count_values(group: u32, lane: Lane) {
    if (!begin_offered(group, lane.index)) {
        return;
    }
    let first = first_of(group);
    let cut = find_cut(moment.settles != 0u, lane);
    let kept = sum_of(lane, 64u, count_found(group, first, cut.magnitude, lane.index));
    if (lane.index == 0u) {
        count_block_as(group, first / PER_GROUP, kept);
    }
    if (first != 0u) {
        return;
    }
    if (lane.index == 0u) {
        set_counter(params.counters + CUT, cut.magnitude);
        set_counter(params.counters + CUT + 1u, cut.ties);
        // Of a cut that was lost all dispatches have to know.
        if (moment.settles == 0u) {
            set_counter(params.counters + LOST, u32(is_lost(cut)));
        }
    }
    if (params.bits != 0u) {
        write_exponents(range_from(cut), lane.index);
    }
}

@compute @workgroup_size(64)
fn count_kept(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    count_values(group.x, lane);
}

// Where there are layers under QSGD, too.
@compute @workgroup_size(64)
fn encode_and_count(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    encode_codes(group.x, lane.index);
    count_values(group.x, lane);
}

fn put_position(word: u32, bit: u32, bits: u32) {
    put(word, bit, bits);
}

// Payloads of TopK into this rank's image, and what their means are made of. `values` are what is offered.
@compute @workgroup_size(64)
fn write_kept(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    if (!begin_offered(group.x, lane.index)) {
        return;
    }
    clear_own_bins(lane.index);
    let first = first_of(group.x);
    let cut = Cut(counted(CUT), counted(CUT + 1u));
    if (first == 0u && lane.index == 0u && is_lost(cut)) {
        fault(CUT_IS_LOST, 0u);
    }
    let before = known_before(group.x, first / PER_GROUP, lane);
    skip_unless_written(group.x, first, cut.magnitude, cut.ties, before);
    load_tile(first, lane.index);
    let end = min(PER_GROUP, params.count - first);
    for (var i = lane.index; i < end; i += 64u) {
        let magnitude = tile[in_tile(i)] & MAGNITUDE;
        // Whatever has the cut's magnitude is too large if the first of it is.
        if (magnitude >= max(params.largest, cut.magnitude)) {
            fault(4u, first + i);
        }
    }
    if (params.bits != 0u) {
        written_range = range_from(cut);
    }
    write_tile(first, cut.magnitude, cut.ties, before, lane);
    workgroupBarrier();
    if (params.bits != 0u) {
        give_own_bins(lane.index);
    }
}

// In few bits, the means of each layer's bins into this rank's image.
@compute @workgroup_size(64)
fn send_means(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    begin(layer_of[group.x]);
    for (var bin = lane; bin >> (params.bits - 1u) == 0u; bin += 64u) {
        put(params.values_word + bin, 0u, mean_of_bin(bin));
    }
}
