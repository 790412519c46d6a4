// The k largest of each layer under TopK: histograms of the magnitudes' upper 11 bits, of the next 10 of those at the bin that k
// divides, and of the last 10; then the payloads. Which bin that is every workgroup of the next dispatch finds for itself.

// Where the k largest of a layer end, as far as is known: the upper bits of the k-th largest magnitude, and its rank among those
// with these bits; at last also the range of what is kept, zeros aside.
struct Cut {
    magnitude: u32,
    rank: u32,
    low: u32,
    high: u32,
}

// Of each layer under TopK what is known after each level.
@group(0) @binding(15) var<storage, read_write> cuts: array<Cut>;
@group(0) @binding(16) var<storage, read_write> payload: array<atomic<u32>>;
// Per workgroup of values: those above the cut and those at it; after `scan`, of all of the layer's before.
@group(0) @binding(17) var<storage, read_write> blocks: array<vec2<u32>>;

// What is counted of a layer, among `extremes`: 2048 counts of the first level, 1024 of each other, sums of 64 shares of each level's
// counts, the complement of the smallest magnitude other than 0, and the largest one.
const COUNTED = 4290u;
const SHARES = 4096u;
const LOWEST = 4288u;
const HIGHEST = 4289u;

// Two counts of a workgroup's 2048 values in each word.
var<workgroup> pairs: array<atomic<u32>, 1024>;

// Bits of the magnitude below the level's, and how many bins the level has.
fn below(level: u32) -> u32 {
    return 20u - 10u * level;
}

fn level_bins(level: u32) -> u32 {
    return select(1024u, 2048u, level == 0u);
}

fn counted_of_layer() -> u32 {
    return moment.histograms + COUNTED * params.table;
}

fn level_start(level: u32) -> u32 {
    return counted_of_layer() + select(1024u + 1024u * level, 0u, level == 0u);
}

fn share_at(level: u32, share: u32) -> u32 {
    return counted_of_layer() + SHARES + 64u * level + share;
}

fn clear_counts(lane: u32) {
    for (var pair = lane; pair < 1024u; pair += 64u) {
        atomicStore(&pairs[pair], 0u);
    }
}

// Counts a magnitude if its upper bits are those of the cut.
fn count_magnitude(level: u32, cut: u32, magnitude: u32) {
    let bits = magnitude >> below(level);
    if (magnitude < INFINITY && (level == 0u || bits / level_bins(level) == cut)) {
        let bin = bits % level_bins(level);
        atomicAdd(&pairs[bin >> 1u], 1u << (16u * (bin & 1u)));
    }
}

// Brings a workgroup's counts to the layer's, of a share by each of 64 lanes.
fn give_counts(level: u32, lane: u32) {
    let share = level_bins(level) / 128u;
    var sum = 0u;
    for (var pair = lane * share; pair < (lane + 1u) * share; pair++) {
        let counts = atomicLoad(&pairs[pair]);
        for (var half = 0u; half < 2u; half++) {
            let count = (counts >> (16u * half)) & 0xffffu;
            if (count != 0u) {
                atomicAdd(&extremes[level_start(level) + 2u * pair + half], count);
                sum += count;
            }
        }
    }
    if (sum != 0u) {
        atomicAdd(&extremes[share_at(level, lane)], sum);
    }
}

// The range of all magnitudes of a layer in few bits, zeros aside: of a workgroup's in `tops`.
fn widen_range_by(magnitude: u32) {
    if (params.bits != 0u && magnitude > 0u) {
        atomicMax(&tops[0], ~magnitude);
        atomicMax(&tops[1], magnitude);
    }
}

fn give_range(lane: u32) {
    if (params.bits != 0u && lane < 2u) {
        atomicMax(&extremes[counted_of_layer() + LOWEST + lane], atomicLoad(&tops[lane]));
    }
}

var<workgroup> chosen: array<Cut, 1>;

// The bin of a level in which the k-th largest lies; of magnitudes that are not finite nothing is kept. All 64 lanes call it.
fn choose(level: u32, lane: Lane) -> Cut {
    var cut = Cut(0u, params.keep, 0u, 0u);
    if (level > 0u) {
        cut = cuts[3u * params.table + level - 1u];
    }
    // The largest come first.
    let number = 63u - place(lane);
    let sum = atomicLoad(&extremes[share_at(level, number)]);
    var before = sum_before(lane, vec2<u32>(sum, 0u)).x;
    if (lane.index == 0u) {
        chosen[0] = Cut(INFINITY, 0u, 0u, 0u);
    }
    workgroupBarrier();
    if (before < cut.rank && before + sum >= cut.rank) {
        let share = level_bins(level) / 64u;
        for (var i = 0u; i < share; i++) {
            let bin = (number + 1u) * share - 1u - i;
            let count = atomicLoad(&extremes[level_start(level) + bin]);
            if (before + count >= cut.rank) {
                chosen[0] = Cut(cut.magnitude * level_bins(level) + bin, cut.rank - before, 0u, 0u);
                break;
            }
            before += count;
        }
    }
    workgroupBarrier();
    return chosen[0];
}

// For the dispatches after this, by the workgroup of the layer's first values.
fn keep_cut(level: u32, cut: Cut, first: u32, lane: u32) {
    if (params.method == TOP_K && first == 0u && lane == 0u) {
        cuts[3u * params.table + level] = cut;
    }
}

fn last_cut() -> Cut {
    return cuts[3u * params.table + 2u];
}

fn range_of(cut: Cut) -> Range {
    return Range(cut.low, cut.high - cut.low + 1u, params.bits - 1u);
}

// The cut of the level before, and the histogram of this one.
@compute @workgroup_size(64)
fn histogram(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let first = begin_if(TOP_K, group.x);
    clear_counts(lane.index);
    let cut = choose(moment.level - 1u, lane);
    keep_cut(moment.level - 1u, cut, first, lane.index);
    let end = min(first + PER_GROUP, params.count);
    for (var i = first + lane.index; i < end; i += 64u) {
        count_magnitude(moment.level, cut.magnitude, values[params.start + i] & MAGNITUDE);
    }
    workgroupBarrier();
    if (params.method == TOP_K) {
        give_counts(moment.level, lane.index);
    }
}

// How many there are above the cut and at it, and in few bits the largest exponents of bins. All 64 lanes call it.
fn count_values(group: u32, lane: Lane) {
    let first = begin_topk(group);
    var cut = choose(2u, lane);
    // The k-th largest is the smallest that is kept, but for zeros.
    cut.high = atomicLoad(&extremes[counted_of_layer() + HIGHEST]);
    cut.low = min(select(cut.magnitude, ~atomicLoad(&extremes[counted_of_layer() + LOWEST]), cut.magnitude == 0u), cut.high);
    keep_cut(2u, cut, first, lane.index);
    let end = min(first + PER_GROUP, params.count);
    var kept = vec2<u32>(0u, 0u);
    for (var i = first + lane.index; i < end; i += 64u) {
        kept += found(values[params.start + i], cut.magnitude);
    }
    kept = sum_of(lane, 64u, kept);
    if (params.method == TOP_K && lane.index == 0u) {
        blocks[group] = kept;
    }
    keep_few_bits_only(first);
    find_exponents_from(first, cut.magnitude, range_of(cut), lane.index);
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

// The counts of all workgroups before each, by a workgroup per layer; the others add up what is above the cut in the bins of layers
// in few bits.
@compute @workgroup_size(256)
fn scan(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    if (group.x < moment.tables) {
        begin(layer_of[group.x]);
        scan_blocks(params.start / PER_GROUP, (params.count + PER_GROUP - 1u) / PER_GROUP, lane);
    } else {
        begin(layer_of[group.x]);
        params.dtype = 0u;
        params.offset = params.start;
        let first = (group.x - moment.tables) * PER_GROUP - params.start;
        keep_few_bits_only(first);
        let cut = last_cut();
        add_to_bins_from(first, cut.magnitude, range_of(cut), lane.index, 256u);
    }
}

// Payloads of TopK into this rank's image. `values` are what is offered.
@compute @workgroup_size(64)
fn write_kept(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let first = begin_topk(group.x);
    load_tile(first, lane.index);
    let cut = last_cut();
    written_range = range_of(cut);
    if (params.method == TOP_K && first == 0u) {
        send_means(cut, lane.index);
    }
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
