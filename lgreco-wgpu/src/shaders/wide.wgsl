// Sums of nonnegative numbers that neither overflow nor underflow. A number is m * 2^e with m in [1, 2), or 0. An
// addition errs by at most 2^-23 of the sum. So sums in the order of a tree of depth d err by at most d * 2^-23, even
// if the compiler contracts operations.

struct Wide {
    m: f32,
    e: i32,
}

// x * 2^e, x >= 0 and not subnormal.
fn wide(x: f32, e: i32) -> Wide {
    let bits = bitcast<u32>(x);
    if (bits < 0x00800000u) {
        return Wide(0.0, 0);
    }
    return Wide(bitcast<f32>((bits & 0x007fffffu) | ONE), e + i32(bits >> 23u) - 127);
}

// The square of a finite magnitude.
fn square(magnitude: u32) -> Wide {
    if (magnitude == 0u) {
        return Wide(0.0, 0);
    }
    let number = unpack(magnitude);
    let m = bitcast<f32>((number.x & 0x007fffffu) | ONE);
    return wide(m * m, 2 * (i32(number.y) - 127));
}

fn plus(a: Wide, b: Wide) -> Wide {
    if (a.m == 0.0) {
        return b;
    }
    if (b.m == 0.0) {
        return a;
    }
    let apart = abs(a.e - b.e);
    if (apart > 60) {
        if (a.e > b.e) {
            return a;
        }
        return b;
    }
    let scale = bitcast<f32>(u32(127 - apart) << 23u);
    if (a.e > b.e) {
        return wide(a.m + b.m * scale, a.e);
    }
    return wide(b.m + a.m * scale, b.e);
}
