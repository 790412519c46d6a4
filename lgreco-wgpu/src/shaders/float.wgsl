// f32 arithmetic on bits, in integers: rounded to nearest even, with subnormal numbers. WGSL leaves four things to the
// driver: the rounding mode, contraction, flushing of subnormal numbers, and the error of a division. Integer
// arithmetic leaves no such choice, so all devices give the same bits. Arguments must be finite.

const SIGN = 0x80000000u;
const MAGNITUDE = 0x7fffffffu;
const INFINITY = 0x7f800000u;
const ONE = 0x3f800000u;

// The 64-bit product, low word first.
fn mul_wide(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let mid1 = al * bh;
    let mid2 = ah * bl;
    let mid = (low >> 16u) + (mid1 & 0xffffu) + (mid2 & 0xffffu);
    return vec2<u32>(a * b, ah * bh + (mid1 >> 16u) + (mid2 >> 16u) + (mid >> 16u));
}

// The magnitude x as significand * 2^(exponent - 150), with the significand in [2^23, 2^24); x is not 0.
fn unpack(x: u32) -> vec2<u32> {
    if (x >= 0x00800000u) {
        return vec2<u32>((x & 0x007fffffu) | 0x00800000u, x >> 23u);
    }
    let shift = countLeadingZeros(x) - 8u;
    return vec2<u32>(x << shift, 1u - shift);
}

fn nearest_even(quotient: u32, half: u32, sticky: bool) -> u32 {
    return quotient + (half & (u32(sticky) | (quotient & 1u)));
}

// x >> shift, rounded; shift is 0 to 31.
fn shift_rounded(x: u32, shift: u32) -> u32 {
    if (shift == 0u) {
        return x;
    }
    let half = (x >> (shift - 1u)) & 1u;
    return nearest_even(x >> shift, half, (x & ((1u << (shift - 1u)) - 1u)) != 0u);
}

// (x.y * 2^32 + x.x) >> shift, rounded; shift is 1 to 63 and the result has 32 bits.
fn shift_wide_rounded(x: vec2<u32>, shift: u32) -> u32 {
    if (shift > 32u) {
        let part = x.y & ((1u << (shift - 33u)) - 1u);
        return nearest_even((x.y >> (shift - 33u)) >> 1u, (x.y >> (shift - 33u)) & 1u, (part | x.x) != 0u);
    }
    if (shift == 32u) {
        return nearest_even(x.y, x.x >> 31u, (x.x << 1u) != 0u);
    }
    let half = (x.x >> (shift - 1u)) & 1u;
    return nearest_even((x.y << (32u - shift)) | (x.x >> shift), half, (x.x & ((1u << (shift - 1u)) - 1u)) != 0u);
}

fn multiply(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & SIGN;
    if ((a & MAGNITUDE) == 0u || (b & MAGNITUDE) == 0u) {
        return sign;
    }
    let x = unpack(a & MAGNITUDE);
    let y = unpack(b & MAGNITUDE);
    let product = mul_wide(x.x, y.x);
    let wide = product.y >> 15u; // whether the product has 48 bits, not 47
    let exponent = i32(x.y) + i32(y.y) - 127 + i32(wide);
    let lost = u32(max(1 - exponent, 0)); // bits lost by a subnormal result
    if (lost > 25u) {
        return sign;
    }
    let rounded = shift_wide_rounded(product, 23u + wide + lost);
    let bits = (u32(max(exponent, 1) - 1) << 23u) + rounded;
    return sign | select(min(bits, INFINITY), INFINITY, exponent > 254);
}

fn add(a: u32, b: u32) -> u32 {
    var x = a;
    var y = b;
    if ((a & MAGNITUDE) < (b & MAGNITUDE)) {
        x = b;
        y = a;
    }
    let x_field = (x >> 23u) & 255u;
    let y_field = (y >> 23u) & 255u;
    var large = ((x & 0x007fffffu) | select(0u, 0x00800000u, x_field > 0u)) << 6u;
    var small = ((y & 0x007fffffu) | select(0u, 0x00800000u, y_field > 0u)) << 6u;
    var exponent = max(x_field, 1u);
    let apart = exponent - max(y_field, 1u);
    if (apart > 30u) {
        small = u32(small != 0u);
    } else {
        small = (small >> apart) | u32((small & ((1u << apart) - 1u)) != 0u);
    }
    let same_sign = ((x ^ y) & SIGN) == 0u;
    var sum = select(large - small, large + small, same_sign);
    if (sum == 0u) {
        return select(0u, x & SIGN, same_sign);
    }
    let top = 31u - countLeadingZeros(sum);
    if (top == 30u) {
        sum = (sum >> 1u) | (sum & 1u);
        exponent += 1u;
    } else {
        let shift = min(29u - top, exponent - 1u);
        sum <<= shift;
        exponent -= shift;
    }
    let bits = ((exponent - 1u) << 23u) + shift_rounded(sum, 6u);
    return (x & SIGN) | min(bits, INFINITY);
}

// Sum of two numbers; infinity if one of them is not finite.
fn sum(a: u32, b: u32) -> u32 {
    if (max(a & MAGNITUDE, b & MAGNITUDE) >= INFINITY) {
        return INFINITY;
    }
    return add(a, b);
}

// 1 / x for a normal x > 0 whose reciprocal is normal.
fn reciprocal(x: u32) -> u32 {
    let divisor = (x & 0x007fffffu) | 0x00800000u;
    let exponent = x >> 23u;
    if (divisor == 0x00800000u) {
        return (254u - exponent) << 23u;
    }
    var rest = 0x00800000u;
    var quotient = 0u; // 2^48 divided by the divisor
    for (var i = 0u; i < 25u; i++) {
        rest <<= 1u;
        quotient <<= 1u;
        if (rest >= divisor) {
            rest -= divisor;
            quotient |= 1u;
        }
    }
    return ((252u - exponent) << 23u) + nearest_even(quotient >> 1u, quotient & 1u, rest != 0u);
}

fn widen_f16(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return sign | INFINITY | (magnitude << 13u);
    }
    if (magnitude >= 0x0400u) {
        return sign | ((magnitude << 13u) + 0x38000000u);
    }
    if (magnitude == 0u) {
        return sign;
    }
    let shift = countLeadingZeros(magnitude) - 21u;
    return sign | ((113u - shift) << 23u) | (((magnitude << shift) & 0x3ffu) << 13u);
}

// The nearest f16; numbers beyond its range become infinity.
fn narrow_f16(x: u32) -> u32 {
    let sign = (x & SIGN) >> 16u;
    let magnitude = x & MAGNITUDE;
    if (magnitude >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    let exponent = magnitude >> 23u;
    if (exponent >= 113u) {
        return sign | (shift_rounded(magnitude, 13u) - 0x1c000u);
    }
    if (exponent < 102u) {
        return sign;
    }
    return sign | shift_rounded((magnitude & 0x007fffffu) | 0x00800000u, 126u - exponent);
}

// The nearest bf16; numbers beyond its range become infinity.
fn narrow_bf16(x: u32) -> u32 {
    return ((x & SIGN) >> 16u) | shift_rounded(x & MAGNITUDE, 16u);
}
