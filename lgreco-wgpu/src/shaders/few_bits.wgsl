// TopK in few bits, wherever tensors and payloads lie: what is known of each layer's bins, and the codes of what it keeps.

// Of a layer, found step by step. All of it begins as zeros.
struct Bins {
    lowest: atomic<u32>, // complement of the smallest magnitude that is kept, zeros aside
    highest: atomic<u32>,
    // Per bin the exponent of its largest magnitude, and of those above the cut how many there are and what their digits add up to.
    exponents: array<atomic<u32>, 128>,
    counts: array<atomic<u32>, 128>,
    lower: array<atomic<u32>, 128>,
    upper: array<atomic<u32>, 128>,
}

@group(0) @binding(18) var<storage, read_write> bins_of: array<Bins>;

var<workgroup> exponents: array<atomic<u32>, 128>;
var<workgroup> counted: array<atomic<u32>, 128>;
// Sums of digits' lower and upper 16 bits.
var<workgroup> lower_halves: array<atomic<u32>, 128>;
var<workgroup> upper_halves: array<atomic<u32>, 128>;

// Widens a layer's range by what a workgroup keeps: its largest magnitude, and the complement of its smallest other than 0.
fn widen_range(lowest: u32, highest: u32) {
    atomicMax(&bins_of[params.bins].lowest, lowest);
    atomicMax(&bins_of[params.bins].highest, highest);
}

fn range() -> Range {
    let high = atomicLoad(&bins_of[params.bins].highest);
    // Where zeros alone are kept, no lowest is known.
    let low = min(~atomicLoad(&bins_of[params.bins].lowest), high);
    return Range(low, high - low + 1u, params.bits - 1u);
}

// Of what is kept of a workgroup's values, from `first` on, finds each bin's largest exponent. All 64 lanes call it.
fn find_exponents_from(first: u32, cut: u32, range: Range, lane: u32) {
    for (var bin = lane; bin < MOST_BINS; bin += 64u) {
        atomicStore(&exponents[bin], 0u);
    }
    workgroupBarrier();
    let end = min(first + PER_GROUP, params.count);
    for (var i = first + lane; i < end; i += 64u) {
        let magnitude = value(i) & MAGNITUDE;
        if (magnitude >= cut) {
            atomicMax(&exponents[bin_of(range, magnitude)], exponent_of(magnitude));
        }
    }
    workgroupBarrier();
    for (var bin = lane; bin < MOST_BINS; bin += 64u) {
        let exponent = atomicLoad(&exponents[bin]);
        if (exponent != 0u) {
            atomicMax(&bins_of[params.bins].exponents[bin], exponent);
        }
    }
}

// Then adds up what is above the cut. All of so many lanes call it.
fn add_to_bins_from(first: u32, cut: u32, range: Range, lane: u32, lanes: u32) {
    for (var bin = lane; bin < MOST_BINS; bin += lanes) {
        atomicStore(&counted[bin], 0u);
        atomicStore(&lower_halves[bin], 0u);
        atomicStore(&upper_halves[bin], 0u);
    }
    workgroupBarrier();
    let end = min(first + PER_GROUP, params.count);
    for (var i = first + lane; i < end; i += lanes) {
        let magnitude = value(i) & MAGNITUDE;
        if (magnitude > cut) {
            let bin = bin_of(range, magnitude);
            let digits = digits_of(magnitude, atomicLoad(&bins_of[params.bins].exponents[bin]));
            atomicAdd(&counted[bin], 1u);
            atomicAdd(&lower_halves[bin], digits & 0xffffu);
            atomicAdd(&upper_halves[bin], digits >> 16u);
        }
    }
    workgroupBarrier();
    for (var bin = lane; bin < MOST_BINS; bin += lanes) {
        let count = atomicLoad(&counted[bin]);
        if (count != 0u) {
            let upper_half = atomicLoad(&upper_halves[bin]);
            let sum = plus_wide(vec2<u32>(atomicLoad(&lower_halves[bin]), upper_half >> 16u), upper_half << 16u);
            let before = atomicAdd(&bins_of[params.bins].lower[bin], sum.x);
            atomicAdd(&bins_of[params.bins].upper[bin], plus_wide(vec2<u32>(before, sum.y), sum.x).y);
            atomicAdd(&bins_of[params.bins].counts[bin], count);
        }
    }
}

// At last a bin's mean, with those at the cut that are kept.
fn mean_of_bin(bin: u32, cut: u32, ties: u32, range: Range) -> u32 {
    let exponent = atomicLoad(&bins_of[params.bins].exponents[bin]);
    var count = atomicLoad(&bins_of[params.bins].counts[bin]);
    var sum = vec2<u32>(atomicLoad(&bins_of[params.bins].lower[bin]), atomicLoad(&bins_of[params.bins].upper[bin]));
    if (bin_of(range, cut) == bin) {
        let tied = mul_wide(digits_of(cut, exponent), ties);
        sum = plus_wide(vec2<u32>(sum.x, sum.y + tied.y), tied.x);
        count += ties;
    }
    if (count == 0u) {
        return 0u;
    }
    return float_of(quotient(sum, count), exponent);
}

// Of what is written.
var<private> written_range: Range;

// A kept value as it is sent.
fn put_kept(index: u32, bits: u32) {
    if (params.bits == 0u) {
        put_in_full(index, bits);
        return;
    }
    let code = bin_of(written_range, bits & MAGNITUDE) | ((bits >> 31u) << (params.bits - 1u));
    let at = field(params.codes, 0u, index, params.bits);
    put(at.x, at.y, code);
}
