// A tensor's values, as the trainer keeps them: f32 (0), f16 (1) or bf16 (2).

__device__ inline bool is_finite(float value) {
    return (__float_as_uint(value) & MAGNITUDE) < INFINITE;
}

__device__ inline float widen_f16(u32 half) {
    u32 sign = (half & 0x8000u) << 16;
    u32 magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    // Exponents differ by 112; the product is exact, also for subnormal numbers.
    float scaled = __uint_as_float(magnitude << 13) * __uint_as_float((127u + 112u) << 23);
    return __uint_as_float(sign | __float_as_uint(scaled));
}

__device__ inline float widen(u32 half, u32 dtype) {
    return dtype == 2 ? __uint_as_float(half << 16) : widen_f16(half);
}

__device__ inline float value(const void* values, u32 dtype, u64 i) {
    if (dtype == 0) {
        return static_cast<const float*>(values)[i];
    }
    return widen(static_cast<const u16*>(values)[i], dtype);
}

// Up to four values from i, a multiple of 4, on: as one load where they are aligned and all there. Returns how many.
__device__ inline u32 load4(const void* values, u32 dtype, u64 i, u64 count, float (&out)[4]) {
    u32 here = count - i < 4 ? u32(count - i) : 4;
    u64 align = dtype == 0 ? 16 : 8;
    if (here == 4 && reinterpret_cast<u64>(values) % align == 0) {
        if (dtype == 0) {
            uint4 four = static_cast<const uint4*>(values)[i / 4];
            out[0] = __uint_as_float(four.x);
            out[1] = __uint_as_float(four.y);
            out[2] = __uint_as_float(four.z);
            out[3] = __uint_as_float(four.w);
        } else {
            uint2 four = static_cast<const uint2*>(values)[i / 4];
            out[0] = widen(four.x & 0xffffu, dtype);
            out[1] = widen(four.x >> 16, dtype);
            out[2] = widen(four.y & 0xffffu, dtype);
            out[3] = widen(four.y >> 16, dtype);
        }
        return 4;
    }
    for (u32 k = 0; k < 4; k++) {
        out[k] = k < here ? value(values, dtype, i + k) : 0.0f;
    }
    return here;
}

// x >> shift, rounded to nearest even.
__device__ inline u32 shift_rounded(u32 x, u32 shift) {
    u32 quotient = x >> shift;
    u32 rest = x & ((1u << shift) - 1);
    u32 half = 1u << (shift - 1);
    return quotient + (rest > half || (rest == half && (quotient & 1) != 0) ? 1 : 0);
}

// The nearest f16; what is too large becomes infinity.
__device__ inline u32 narrow_f16(u32 bits) {
    u32 sign = (bits & SIGN) >> 16;
    u32 magnitude = bits & MAGNITUDE;
    u32 exponent = magnitude >> 23;
    if (magnitude >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (exponent >= 113) {
        return sign | (shift_rounded(magnitude, 13) - 0x1c000u);
    }
    if (exponent < 102) {
        return sign;
    }
    return sign | shift_rounded((magnitude & 0x007fffffu) | 0x00800000u, 126 - exponent);
}

__device__ inline u32 narrow_bf16(u32 bits) {
    return ((bits & SIGN) >> 16) | shift_rounded(bits & MAGNITUDE, 16);
}
