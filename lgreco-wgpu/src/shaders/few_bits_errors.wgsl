// Measures the rows of the error table for TopK in few bits. The payload has the mean of a bin in place of each
// magnitude in the bin. A row has the error of this replacement for each k and each number of bits.
//
// The bins for fewer bits are unions of the bins for 8 bits. So the bins for 8 bits are filled first, and then joined
// in pairs. The count of a bin's magnitudes, their sum and the sum of their squares are integers. So the error is exact
// even if the magnitudes are close together. With n magnitudes, n * (sum of squares) - sum^2 is n times the sum of
// their squared distances from the mean.

// Number of words for the sums of one bin, and of all 128 bins for 8 bits. A bin's sums are the count (32 bits), the
// sum (64 bits) and the sum of squares (96 bits).
const IN_BIN = 6u;
const IN_BINS = 768u;

// The sums of all bins, for each k of this batch.
@group(0) @binding(16) var<storage, read_write> bin_sums: array<atomic<u32>>;

var<workgroup> own_sums: array<atomic<u32>, 768>;

// The range that is divided into the bins for 8 bits, for the values that one k keeps. `cut` is this k's cut. `range`
// returns the range of the largest k.
fn range_of(cut: u32) -> Range {
    let all = range();
    let low = max(cut, all.low);
    return Range(low, all.low + all.span - low, 7u);
}

// The exponent that gives the unit of a bin's magnitudes: the exponent of the largest possible magnitude in the bin.
// The magnitudes lie within two binades, so no digit is lost.
fn exponent_in(range: Range, bin: u32) -> u32 {
    let before = mul_wide(bin + 1u, range.span);
    let end = (before.y << 25u) + (before.x >> 7u) + u32((before.x & 127u) != 0u);
    return exponent_of(range.low + end - 1u);
}

// Each column of workgroups handles one k: it adds the values above this k's cut to the k's sums. `few_bits_errors`
// adds the kept values at the cut.
@compute @workgroup_size(256)
fn add_to_sums(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    for (var i = lane; i < IN_BINS; i += 256u) {
        atomicStore(&own_sums[i], 0u);
    }
    workgroupBarrier();
    let cut = state[params.first_keep + group.x].magnitude;
    let range = range_of(cut);
    for (var i = group.y * 256u + lane; i < params.count; i += groups.y * 256u) {
        let magnitude = value(i) & MAGNITUDE;
        if (magnitude <= cut) {
            continue;
        }
        let bin = bin_of(range, magnitude);
        let digits = digits_of(magnitude, exponent_in(range, bin));
        let square = mul_wide(digits, digits);
        let at = IN_BIN * bin;
        atomicAdd(&own_sums[at], 1u);
        let before = atomicAdd(&own_sums[at + 1u], digits);
        if (before + digits < before) {
            atomicAdd(&own_sums[at + 2u], 1u);
        }
        let low_before = atomicAdd(&own_sums[at + 3u], square.x);
        let middle = square.y + u32(low_before + square.x < low_before);
        let middle_before = atomicAdd(&own_sums[at + 4u], middle);
        if (middle_before + middle < middle_before) {
            atomicAdd(&own_sums[at + 5u], 1u);
        }
    }
    workgroupBarrier();
    if (lane >= MOST_BINS || atomicLoad(&own_sums[IN_BIN * lane]) == 0u) {
        return;
    }
    let own = IN_BIN * lane;
    let at = IN_BINS * (params.first_sum + group.x) + own;
    atomicAdd(&bin_sums[at], atomicLoad(&own_sums[own]));
    let sum = atomicLoad(&own_sums[own + 1u]);
    let before = atomicAdd(&bin_sums[at + 1u], sum);
    atomicAdd(&bin_sums[at + 2u], atomicLoad(&own_sums[own + 2u]) + u32(before + sum < before));
    let low = atomicLoad(&own_sums[own + 3u]);
    let low_before = atomicAdd(&bin_sums[at + 3u], low);
    let upper = vec2<u32>(atomicLoad(&own_sums[own + 4u]), atomicLoad(&own_sums[own + 5u]));
    let carried = plus_wide(upper, u32(low_before + low < low_before));
    let middle_before = atomicAdd(&bin_sums[at + 4u], carried.x);
    atomicAdd(&bin_sums[at + 5u], carried.y + u32(middle_before + carried.x < middle_before));
}

// Sum of two 128-bit numbers, the lowest word first.
fn plus_128(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    var sum = a + b;
    var carry = vec4<u32>(sum < a);
    for (var i = 0u; i < 3u; i++) {
        carry = vec4<u32>(0u, carry.xyz);
        let next = sum + carry;
        carry = vec4<u32>(next < sum);
        sum = next;
    }
    return sum;
}

// Product of a 96-bit number and a word.
fn times(a: vec4<u32>, b: u32) -> vec4<u32> {
    let middle = mul_wide(a.y, b);
    return plus_128(vec4<u32>(mul_wide(a.x, b), mul_wide(a.z, b)), vec4<u32>(0u, middle, 0u));
}

// Square of a 64-bit number.
fn squared(a: vec4<u32>) -> vec4<u32> {
    let middle = vec4<u32>(0u, mul_wide(a.x, a.y), 0u);
    return plus_128(plus_128(vec4<u32>(mul_wide(a.x, a.x), mul_wide(a.y, a.y)), middle), middle);
}

// Shifts a number to the right by `by` bits. Bits that leave the lowest word are lost.
fn down(a: vec4<u32>, by: u32) -> vec4<u32> {
    var words = a;
    for (var word = min(by, 128u) >> 5u; word > 0u; word--) {
        words = vec4<u32>(words.yzw, 0u);
    }
    let bits = by & 31u;
    if (bits == 0u) {
        return words;
    }
    return (words >> vec4<u32>(bits)) | (vec4<u32>(words.yzw, 0u) << vec4<u32>(32u - bits));
}

// Statistics of a bin's magnitudes. `exponent` is an exponent field of f32. `sum` is in units of 2^(exponent - 158),
// and `squares` in squares of this unit.
struct Among {
    count: u32,
    exponent: u32,
    sum: vec4<u32>,
    squares: vec4<u32>,
}

var<workgroup> among: array<Among, 128>;

fn joined(a: Among, b: Among) -> Among {
    if (a.count == 0u) {
        return b;
    }
    if (b.count == 0u) {
        return a;
    }
    // The upper bin's exponent is at least the lower bin's. The digits that the lower bin loses are negligible compared
    // with the distance between the two bins.
    let less = b.exponent - a.exponent;
    return Among(
        a.count + b.count,
        b.exponent,
        plus_128(down(a.sum, less), b.sum),
        plus_128(down(a.squares, 2u * less), b.squares),
    );
}

fn wide_of(a: vec4<u32>, exponent: i32) -> Wide {
    let lower = plus(wide(f32(a.x), exponent), wide(f32(a.y), exponent + 32));
    return plus(lower, plus(wide(f32(a.z), exponent + 64), wide(f32(a.w), exponent + 96)));
}

// The squared error of sending the mean for each magnitude; the mean is rounded down to an f32.
fn squared_error_of(bin: Among) -> Wide {
    if (bin.count == 0u) {
        return Wide(0.0, 0);
    }
    let count = f32(bin.count);
    let unit = 2 * (i32(bin.exponent) - 158);
    let spread = wide_of(plus_128(times(bin.squares, bin.count), plus_128(~squared(bin.sum), vec4<u32>(1u, 0u, 0u, 0u))), unit);
    let mean = quotient(bin.sum.xy, bin.count);
    let highest = 31 - i32(countLeadingZeros(mean | 1u));
    let lost = u32(max(max(highest - 23, 9 - i32(bin.exponent)), 0));
    let apart = f32(mean & ((1u << lost) - 1u)) + f32(bin.sum.x - mean * bin.count) / count;
    return plus(wide(spread.m / count, spread.e), wide(count * (apart * apart), unit));
}

// Computes the squared error for each k and each number of bits, without the error of dropped values. There is one
// workgroup per k.
@compute @workgroup_size(128)
fn few_bits_errors(dispatch: Dispatch, @builtin(local_invocation_index) lane: u32) {
    if (!begin(dispatch)) {
        return;
    }
    let cut = state[params.first_keep + group.x];
    let exponent = exponent_in(range_of(cut.magnitude), lane);
    let at = IN_BINS * (params.first_sum + group.x) + IN_BIN * lane;
    var own = Among(atomicLoad(&bin_sums[at]), exponent, vec4<u32>(0u), vec4<u32>(0u));
    own.sum = vec4<u32>(atomicLoad(&bin_sums[at + 1u]), atomicLoad(&bin_sums[at + 2u]), 0u, 0u);
    own.squares.x = atomicLoad(&bin_sums[at + 3u]);
    own.squares.y = atomicLoad(&bin_sums[at + 4u]);
    own.squares.z = atomicLoad(&bin_sums[at + 5u]);
    if (lane == 0u) {
        // The kept values at the cut are in bin 0, because the cut is the low end of the range, or zero.
        let digits = digits_of(cut.magnitude, exponent);
        own.count += cut.ties;
        own.sum = plus_128(own.sum, vec4<u32>(mul_wide(digits, cut.ties), 0u, 0u));
        own.squares = plus_128(own.squares, times(vec4<u32>(mul_wide(digits, digits), 0u, 0u), cut.ties));
    }
    among[lane] = own;
    for (var bits = 8u; bits > 0u; bits--) {
        let bins = 1u << (bits - 1u);
        if (lane < bins) {
            errors[lane] = squared_error_of(among[lane]);
        }
        workgroupBarrier();
        for (var reach = bins / 2u; reach > 0u; reach >>= 1u) {
            if (lane < reach) {
                errors[lane] = plus(errors[lane], errors[lane + reach]);
            }
            workgroupBarrier();
        }
        if (lane == 0u) {
            let to = params.result + 2u * (8u * group.x + bits - 1u);
            atomicStore(&results[to], bitcast<u32>(errors[0].m));
            atomicStore(&results[to + 1u], bitcast<u32>(errors[0].e));
        }
        var pair = Among();
        if (lane < bins / 2u) {
            pair = joined(among[2u * lane], among[2u * lane + 1u]);
        }
        workgroupBarrier();
        if (lane < bins / 2u) {
            among[lane] = pair;
        }
        workgroupBarrier();
    }
}
