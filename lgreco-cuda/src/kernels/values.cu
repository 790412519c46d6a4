// Access to the values of tensors. Codes of types (`dtype`): 0 is f32, 1 is f16, 2 is bf16.

__device__ inline bool is_finite(float value) {
    return (__float_as_uint(value) & MAGNITUDE) < INFINITE;
}

// Converts f16 to f32, exactly unless it is NaN.
__device__ inline float widen_f16(u32 half) {
#ifndef CUDA_SHIM
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(u16(half)));
    return wide;
#else
    u32 sign = (half & 0x8000u) << 16;
    u32 magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    // The exponent biases of f32 and f16 differ by 112. The product is exact, also for subnormal numbers.
    float scaled = __uint_as_float(magnitude << 13) * __uint_as_float((127u + 112u) << 23);
    return __uint_as_float(sign | __float_as_uint(scaled));
#endif
}

__device__ inline float widen(u32 half, u32 dtype) {
    return dtype == 2 ? __uint_as_float(half << 16) : widen_f16(half);
}

// Converts four consecutive values of 16 bits to f32.
__device__ inline void widen4(uint2 four, u32 dtype, float (&out)[4]) {
    if (dtype == 2) {
        out[0] = __uint_as_float(four.x << 16);
        out[1] = __uint_as_float(four.x & 0xffff0000u);
        out[2] = __uint_as_float(four.y << 16);
        out[3] = __uint_as_float(four.y & 0xffff0000u);
    } else {
        out[0] = widen_f16(four.x & 0xffffu);
        out[1] = widen_f16(four.x >> 16);
        out[2] = widen_f16(four.y & 0xffffu);
        out[3] = widen_f16(four.y >> 16);
    }
}

__device__ inline float value(const void* values, u32 dtype, u64 i) {
    if (dtype == 0) {
        return static_cast<const float*>(values)[i];
    }
    return widen(static_cast<const u16*>(values)[i], dtype);
}

// Loads up to four values from index i on, a multiple of 4. Uses one load if they are aligned and all four exist.
// Returns the number of values that exist; the others are 0.
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
            widen4(static_cast<const uint2*>(values)[i / 4], dtype, out);
        }
        return 4;
    }
    for (u32 k = 0; k < 4; k++) {
        out[k] = k < here ? value(values, dtype, i + k) : 0.0f;
    }
    return here;
}

// Stores the bits of `here` values, at most four, from index i on, a multiple of 4. Uses one store if they are aligned
// and all four exist.
__device__ inline void store4(void* values, u32 dtype, u64 i, u32 here, const u32 (&bits)[4]) {
    u64 align = dtype == 0 ? 16 : 8;
    if (here == 4 && reinterpret_cast<u64>(values) % align == 0) {
        if (dtype == 0) {
            static_cast<uint4*>(values)[i / 4] = uint4{bits[0], bits[1], bits[2], bits[3]};
        } else {
            static_cast<uint2*>(values)[i / 4] = uint2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
        }
        return;
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        if (k >= here) {
            break;
        }
        if (dtype == 0) {
            static_cast<u32*>(values)[i + k] = bits[k];
        } else {
            static_cast<u16*>(values)[i + k] = u16(bits[k]);
        }
    }
}

#ifdef CUDA_SHIM
// x >> shift, rounded to nearest even.
__device__ inline u32 shift_rounded(u32 x, u32 shift) {
    u32 quotient = x >> shift;
    u32 rest = x & ((1u << shift) - 1);
    u32 half = 1u << (shift - 1);
    return quotient + (rest > half || (rest == half && (quotient & 1) != 0) ? 1 : 0);
}
#endif

// Rounds f32 to the nearest f16. Too large values and NaN become infinity.
__device__ inline u32 narrow_f16(u32 bits) {
    u32 sign = (bits & SIGN) >> 16;
#ifndef CUDA_SHIM
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(__uint_as_float(bits)));
    return sign | min(u32(half) & 0x7fffu, 0x7c00u);
#else
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
#endif
}

__device__ inline u32 narrow_bf16(u32 bits) {
    u32 magnitude = bits & MAGNITUDE;
    return (bits & SIGN) >> 16 | (magnitude + 0x7fffu + (magnitude >> 16 & 1)) >> 16;
}
