// TopK in few bits: statistics of each layer's bins, and the codes of kept values.
//
// The magnitudes of a bin are added up as integers, called digits. The unit of digits depends on the exponent of the
// bin's largest magnitude. The first read of the values records which exponents occur. So there are two candidates for
// the exponent of a bin's largest magnitude: the exponent at the bin's end, and the next smaller exponent that occurs.
// Sums are kept in the units of both exponents.

// Statistics of a layer's bins, filled step by step. All fields begin as zeros.
struct Bins {
    lowest: atomic<u32>, // complement of the smallest nonzero kept magnitude
    highest: atomic<u32>,
    exponents: array<vec2<u32>, 128>, // both exponents per bin, the larger first
    counts: array<atomic<u32>, 128>,
    with_larger: array<atomic<u32>, 128>, // number of magnitudes with the larger exponent
    // Sums of the digits of all magnitudes, in the unit of the larger exponent. The `other` sums are in the unit of the
    // other exponent, without the magnitudes that have the larger exponent.
    lower: array<atomic<u32>, 128>,
    upper: array<atomic<u32>, 128>,
    other_lower: array<atomic<u32>, 128>,
    other_upper: array<atomic<u32>, 128>,
}

@group(0) @binding(18) var<storage, read_write> bins_of: array<Bins>;

// A workgroup's own statistics, with the fields of `Bins`. In workgroup memory, the lower and the upper 16 bits of
// digits have separate sums.
const OWN = 6u;
const WITH_LARGER = 1u;
const LOWER = 2u;
const OTHER_LOWER = 4u;
var<workgroup> own_bins: array<atomic<u32>, 768>;

// Widens a layer's range by a workgroup's kept values. `highest` is their largest magnitude, and `lowest` is the
// complement of the smallest nonzero magnitude.
fn widen_range(lowest: u32, highest: u32) {
    atomicMax(&bins_of[params.bins].lowest, lowest);
    atomicMax(&bins_of[params.bins].highest, highest);
}

fn range() -> Range {
    let high = atomicLoad(&bins_of[params.bins].highest);
    // If only zeros are kept, no lowest magnitude is known.
    let low = min(~atomicLoad(&bins_of[params.bins].lowest), high);
    return Range(low, high - low + 1u, params.bits - 1u);
}

// The range of the magnitudes that are kept if `cut` is the k-th largest.
fn range_from(cut: Cut) -> Range {
    let kept = kept_range(cut);
    return Range(kept.x, kept.y - kept.x + 1u, params.bits - 1u);
}

// Writes the two exponents of each bin of `range`. All 64 lanes must call this function.
fn write_exponents(range: Range, lane: u32) {
    for (var bin = lane; bin >> range.log_count == 0u; bin += 64u) {
        let first = start_of_bin(range, bin);
        let larger = exponent_of(start_of_bin(range, bin + 1u) - 1u);
        var other = larger - 1u;
        while (other > exponent_of(first) && ((counted(OCTAVES + other / 32u) >> (other % 32u)) & 1u) == 0u) {
            other -= 1u;
        }
        bins_of[params.bins].exponents[bin] = vec2<u32>(larger, max(other, 1u));
    }
}

fn clear_own_bins(lane: u32) {
    for (var i = lane; i < OWN * MOST_BINS; i += 64u) {
        atomicStore(&own_bins[i], 0u);
    }
}

fn add_halves(at: u32, digits: u32) {
    atomicAdd(&own_bins[at], digits & 0xffffu);
    atomicAdd(&own_bins[at + 1u], digits >> 16u);
}

fn add_to_own_bin(bin: u32, magnitude: u32) {
    let exponents = bins_of[params.bins].exponents[bin];
    let own = OWN * bin;
    atomicAdd(&own_bins[own], 1u);
    add_halves(own + LOWER, digits_of(magnitude, exponents.x));
    if (exponent_of(magnitude) == exponents.x) {
        atomicAdd(&own_bins[own + WITH_LARGER], 1u);
    } else {
        add_halves(own + OTHER_LOWER, digits_of(magnitude, exponents.y));
    }
}

fn sum_of_halves(at: u32) -> vec2<u32> {
    let upper_halves = atomicLoad(&own_bins[at + 1u]);
    return plus_wide(vec2<u32>(atomicLoad(&own_bins[at]), upper_halves >> 16u), upper_halves << 16u);
}

// Adds the workgroup's bins to the layer's bins, after all values are added. All 64 lanes must call this function.
fn give_own_bins(lane: u32) {
    for (var bin = lane; bin < MOST_BINS; bin += 64u) {
        let own = OWN * bin;
        let count = atomicLoad(&own_bins[own]);
        if (count == 0u) {
            continue;
        }
        atomicAdd(&bins_of[params.bins].counts[bin], count);
        atomicAdd(&bins_of[params.bins].with_larger[bin], atomicLoad(&own_bins[own + WITH_LARGER]));
        let sum = sum_of_halves(own + LOWER);
        let before = atomicAdd(&bins_of[params.bins].lower[bin], sum.x);
        atomicAdd(&bins_of[params.bins].upper[bin], plus_wide(vec2<u32>(before, sum.y), sum.x).y);
        let others = sum_of_halves(own + OTHER_LOWER);
        let other_before = atomicAdd(&bins_of[params.bins].other_lower[bin], others.x);
        atomicAdd(&bins_of[params.bins].other_upper[bin], plus_wide(vec2<u32>(other_before, others.y), others.x).y);
    }
}

// The final mean of a bin.
fn mean_of_bin(bin: u32) -> u32 {
    let count = atomicLoad(&bins_of[params.bins].counts[bin]);
    if (count == 0u) {
        return 0u;
    }
    let exponents = bins_of[params.bins].exponents[bin];
    if (atomicLoad(&bins_of[params.bins].with_larger[bin]) != 0u) {
        let sum = vec2<u32>(atomicLoad(&bins_of[params.bins].lower[bin]), atomicLoad(&bins_of[params.bins].upper[bin]));
        return float_of(quotient(sum, count), exponents.x);
    }
    let sum = vec2<u32>(
        atomicLoad(&bins_of[params.bins].other_lower[bin]),
        atomicLoad(&bins_of[params.bins].other_upper[bin]),
    );
    return float_of(quotient(sum, count), exponents.y);
}

// The range of the written values.
var<private> written_range: Range;

// Writes a kept value as the payload has it: as a code, or in full.
fn put_kept(index: u32, bits: u32) {
    if (params.bits == 0u) {
        put_in_full(index, bits);
        return;
    }
    let magnitude = bits & MAGNITUDE;
    let bin = bin_of(written_range, magnitude);
    let code = bin | ((bits >> 31u) << (params.bits - 1u));
    let at = field(params.codes, 0u, index, params.bits);
    put(at.x, at.y, code);
    // Several passes, one per window, see the same value. Only the pass that writes the value also adds the value to
    // its bin.
    if (is_in_window(at.x)) {
        add_to_own_bin(bin, magnitude);
    }
}
