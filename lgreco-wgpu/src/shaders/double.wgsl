// Positive f64 for norms and scales, in integers: m * 2^(e - 52) with m in [2^52, 2^53), low word first; or 0. All
// operations round to nearest even, and none leaves the range of exponents.

struct Double {
    m: vec2<u32>,
    e: i32,
}

const NO_DOUBLE = Double(vec2<u32>(0u, 0u), 0);

// x << shift; shift is 1 to 31.
fn shift_left(x: vec2<u32>, shift: u32) -> vec2<u32> {
    return vec2<u32>(x.x << shift, (x.y << shift) | (x.x >> (32u - shift)));
}

// x >> shift; shift is 1 to 31.
fn shift_right(x: vec2<u32>, shift: u32) -> vec2<u32> {
    return vec2<u32>((x.x >> shift) | (x.y << (32u - shift)), x.y >> shift);
}

// x >> shift, for a shift of 1 to 63. The lowest bit is set if a set bit is lost.
fn shift_sticky(x: vec2<u32>, shift: u32) -> vec2<u32> {
    if (shift >= 32u) {
        let lost = x.x | (x.y & ((1u << (shift - 32u)) - 1u));
        return vec2<u32>((x.y >> (shift - 32u)) | u32(lost != 0u), 0u);
    }
    let lost = x.x & ((1u << shift) - 1u);
    let shifted = shift_right(x, shift);
    return vec2<u32>(shifted.x | u32(lost != 0u), shifted.y);
}

fn is_at_least(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y > b.y || (a.y == b.y && a.x >= b.x);
}

fn sum_wide(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn difference_wide(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

// Rounds m, which has 53 bits, by the bits after it: `half_bit` is the next bit, and `sticky` says whether any later
// bit is set.
fn rounded(m: vec2<u32>, e: i32, half_bit: u32, sticky: bool) -> Double {
    let sum = sum_wide(m, vec2<u32>(half_bit & (u32(sticky) | (m.x & 1u)), 0u));
    if (sum.y == 0x00200000u) {
        return Double(vec2<u32>(0u, 0x00100000u), e + 1);
    }
    return Double(sum, e);
}

// The magnitude of an f32 as a Double.
fn double_of(magnitude: u32) -> Double {
    if (magnitude == 0u) {
        return NO_DOUBLE;
    }
    let x = unpack(magnitude);
    return Double(vec2<u32>(x.x << 29u, x.x >> 3u), i32(x.y) - 127);
}

// The square of an f32 magnitude, which is exact.
fn double_square(magnitude: u32) -> Double {
    if (magnitude == 0u) {
        return NO_DOUBLE;
    }
    let x = unpack(magnitude);
    let product = mul_wide(x.x, x.x);
    let wide = product.y >> 15u; // whether the product has 48 bits, not 47
    return Double(shift_left(product, 6u - wide), 2 * (i32(x.y) - 127) + i32(wide));
}

// The nearest f32.
fn single(a: Double) -> u32 {
    let lost = u32(clamp(-126 - a.e, 0, 26)); // bits lost by a subnormal result
    let bits = (u32(max(a.e + 127, 1) - 1) << 23u) + shift_wide_rounded(a.m, 29u + lost);
    return select(min(bits, INFINITY), INFINITY, a.e > 127);
}

fn double_sum(a: Double, b: Double) -> Double {
    if (a.m.y == 0u) {
        return b;
    }
    if (b.m.y == 0u) {
        return a;
    }
    var large = a;
    var small = b;
    if (b.e > a.e) {
        large = b;
        small = a;
    }
    let apart = u32(large.e - small.e);
    if (apart > 54u) {
        return large;
    }
    // The addition keeps three more bits, for rounding.
    var addend = shift_left(small.m, 3u);
    if (apart > 0u) {
        addend = shift_sticky(addend, apart);
    }
    var sum = sum_wide(shift_left(large.m, 3u), addend);
    var e = large.e;
    if (sum.y >= 0x01000000u) {
        sum = shift_sticky(sum, 1u);
        e += 1;
    }
    return rounded(shift_right(sum, 3u), e, (sum.x >> 2u) & 1u, (sum.x & 3u) != 0u);
}

fn double_product(a: Double, b: Double) -> Double {
    let x = shift_left(a.m, 11u);
    let y = shift_left(b.m, 11u);
    let low = mul_wide(x.x, y.x);
    let one = mul_wide(x.x, y.y);
    let other = mul_wide(x.y, y.x);
    let middle = sum_wide(sum_wide(vec2<u32>(one.x, 0u), vec2<u32>(other.x, 0u)), vec2<u32>(low.y, 0u));
    let upper = sum_wide(sum_wide(vec2<u32>(one.y, 0u), vec2<u32>(other.y, 0u)), vec2<u32>(middle.y, 0u));
    let high = sum_wide(mul_wide(x.y, y.y), upper);
    let wide = high.y >> 31u; // whether the product has 128 bits, not 127
    let spare = 10u + wide;
    let behind = high.x & ((1u << (spare - 1u)) - 1u);
    let half_bit = (high.x >> (spare - 1u)) & 1u;
    let sticky = (behind | middle.x | low.x) != 0u;
    return rounded(shift_right(high, spare), a.e + b.e + i32(wide), half_bit, sticky);
}

fn double_quotient(a: Double, b: Double) -> Double {
    var rest = a.m;
    var e = a.e - b.e;
    if (!is_at_least(rest, b.m)) {
        rest = shift_left(rest, 1u);
        e -= 1;
    }
    var quotient = vec2<u32>(0u, 0u); // it gets 54 bits
    for (var i = 0u; i < 54u; i++) {
        quotient = shift_left(quotient, 1u);
        if (is_at_least(rest, b.m)) {
            rest = difference_wide(rest, b.m);
            quotient.x |= 1u;
        }
        rest = shift_left(rest, 1u);
    }
    return rounded(shift_right(quotient, 1u), e, quotient.x & 1u, (rest.x | rest.y) != 0u);
}

fn double_root(a: Double) -> Double {
    // Each binary digit of the root consumes two digits of the number.
    var digits = shift_left(a.m, 10u + u32(a.e & 1));
    var rest = vec2<u32>(0u, 0u);
    var root = vec2<u32>(0u, 0u);
    for (var i = 0u; i < 53u; i++) {
        rest = shift_left(rest, 2u);
        rest.x |= digits.y >> 30u;
        digits = shift_left(digits, 2u);
        var least = shift_left(root, 2u);
        least.x |= 1u;
        root = shift_left(root, 1u);
        if (is_at_least(rest, least)) {
            rest = difference_wide(rest, least);
            root.x |= 1u;
        }
    }
    // The root is never halfway between two numbers.
    return rounded(root, a.e >> 1u, u32(!is_at_least(root, rest)), true);
}
