// TopK in few bits: the bins of kept values and their means, in integers only, as in lgreco_compress::quantised_topk.

// Largest number of bins of a layer, which codes of 8 bits need.
const MOST_BINS = 128u;

// A range of magnitudes, divided evenly into 2^log_count bins; `span` is at most 2^31.
struct Range {
    low: u32,
    span: u32,
    log_count: u32,
}

// The bin of a magnitude within the range: ((magnitude - low) << log_count) / span, one bit at a time.
fn bin_of(range: Range, magnitude: u32) -> u32 {
    var rest = magnitude - min(magnitude, range.low);
    var bin = 0u;
    for (var i = 0u; i < range.log_count; i++) {
        rest <<= 1u;
        bin <<= 1u;
        if (rest >= range.span) {
            rest -= range.span;
            bin |= 1u;
        }
    }
    return bin;
}

// The first magnitude of a bin. If `bin` is the number of bins, returns the first magnitude after the last bin.
fn start_of_bin(range: Range, bin: u32) -> u32 {
    let product = mul_wide(bin, range.span);
    if (range.log_count == 0u) {
        return range.low + product.x;
    }
    let part = product.x & ((1u << range.log_count) - 1u);
    return range.low + (product.y << (32u - range.log_count)) + (product.x >> range.log_count) + u32(part != 0u);
}

// The exponent field of a magnitude. Subnormal numbers get the exponent of the smallest normal numbers.
fn exponent_of(magnitude: u32) -> u32 {
    return max(magnitude >> 23u, 1u);
}

// A magnitude in units of 2^(exponent - 158), rounded down. `exponent` is an exponent field of f32. `exponent` must be
// at least the magnitude's own exponent field.
fn digits_of(magnitude: u32, exponent: u32) -> u32 {
    let shift = exponent - exponent_of(magnitude);
    if (shift > 31u) {
        return 0u;
    }
    let implied = select(0u, 0x00800000u, magnitude >= 0x00800000u);
    return (((magnitude & 0x007fffffu) | implied) << 8u) >> shift;
}

// sum / count, rounded down. The result must fit 32 bits.
fn quotient(sum: vec2<u32>, count: u32) -> u32 {
    var rest = sum.y;
    var bits = 0u;
    for (var bit = 32u; bit > 0u; bit--) {
        let carry = rest >> 31u;
        rest = (rest << 1u) | ((sum.x >> (bit - 1u)) & 1u);
        bits <<= 1u;
        if (carry != 0u || rest >= count) {
            rest -= count;
            bits |= 1u;
        }
    }
    return bits;
}

// The bits of digits * 2^(exponent - 158), rounded down.
fn float_of(digits: u32, exponent: u32) -> u32 {
    if (digits == 0u) {
        return 0u;
    }
    let highest = 31u - countLeadingZeros(digits);
    if (exponent + highest <= 31u) {
        if (exponent > 9u) {
            return digits << (exponent - 9u);
        }
        return digits >> (9u - exponent);
    }
    var mantissa = digits;
    if (highest >= 23u) {
        mantissa >>= highest - 23u;
    } else {
        mantissa <<= 23u - highest;
    }
    return ((exponent + highest - 31u) << 23u) | (mantissa & 0x007fffffu);
}

// Adds a word to a sum of 64 bits, low word first.
fn plus_wide(sum: vec2<u32>, word: u32) -> vec2<u32> {
    let lower = sum.x + word;
    return vec2<u32>(lower, sum.y + u32(lower < word));
}
