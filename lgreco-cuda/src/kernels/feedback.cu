// Error feedback: what is compressed, and what is remembered. The numbers are those of lgreco_core::feedback, bit for
// bit.
//
// A memory is f32 (0), bf16 (1), or int8 (2): a code per value, then an exponent for every GROUP of them.

struct Params {
    u32 dtype;
    u32 count;
    u32 storage;
    float gain;
    float keep; // 1 - gain
    u32 step;
    u32 layer;
    u32 rank;
    u32 seed_low;
    u32 seed_high;
};

// Values that share an exponent, and the share of a lane when a warp has them.
#define GROUP 512
#define QUADS (GROUP / 32 / 4)

__device__ inline float remembered(const Params& p, const void* memory, u64 i) {
    if (p.storage == 0) {
        return static_cast<const float*>(memory)[i];
    }
    if (p.storage == 1) {
        return widen(static_cast<const u16*>(memory)[i], 2);
    }
    const u8* bytes = static_cast<const u8*>(memory);
    float scale = __uint_as_float(u32(bytes[p.count + i / GROUP]) << 23);
    return float(static_cast<signed char>(bytes[i])) * scale;
}

// result becomes at least the bits of the largest magnitude of a warp's. All lanes must come.
__device__ inline void give_largest(u32 own, u32* result) {
    own = warp_max(own);
    if (threadIdx.x % 32 == 0) {
        atomicMax(result, own);
    }
}

// offered = memory + gradient. largest[0] and largest[1] become at least the bits of the largest magnitude of the
// gradient and of the sums.
extern "C" __global__ void offer(Params p, const void* values, const void* memory, float* offered, u32* largest) {
    u32 of_values = 0;
    u32 of_sums = 0;
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < p.count; i += stride) {
        float own = value(values, p.dtype, i);
        float sum = remembered(p, memory, i) + own;
        offered[i] = sum;
        of_values = max(of_values, __float_as_uint(own) & MAGNITUDE);
        of_sums = max(of_sums, __float_as_uint(sum) & MAGNITUDE);
    }
    give_largest(of_values, &largest[0]);
    give_largest(of_sums, &largest[1]);
}

// next = keep * memory + gain * (offered - next), where `next` begins as what the payload decodes to. largest[0]
// becomes at least the bits of its largest magnitude.
extern "C" __global__ void remember(Params p, const float* offered, const void* memory, float* next, u32* largest) {
    u32 found = 0;
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < p.count; i += stride) {
        float own = p.keep * remembered(p, memory, i) + p.gain * (offered[i] - next[i]);
        next[i] = own;
        found = max(found, __float_as_uint(own) & MAGNITUDE);
    }
    give_largest(found, &largest[0]);
}

__device__ inline Words words_of(const Params& p, u64 i) {
    return philox(u32(i / 4), p.step, p.layer, p.rank, p.seed_low, p.seed_high);
}

// memory = next, rounded at random to bf16.
extern "C" __global__ void store_bf16(Params p, const float* next, u16* memory) {
    u64 stride = u64(gridDim.x) * BLOCK * 4;
    for (u64 i = (u64(blockIdx.x) * BLOCK + threadIdx.x) * 4; i < p.count; i += stride) {
        Words draws = words_of(p, i);
        for (u32 k = 0; k < 4 && i + k < p.count; k++) {
            memory[i + k] = u16((__float_as_uint(next[i + k]) + (draws.word[k] >> 16)) >> 16);
        }
    }
}

// memory = next, rounded at random to codes of a byte, and the groups' exponents. A warp has a group.
extern "C" __global__ void store_int8(Params p, const float* next, u8* memory) {
    u32 groups = u32((u64(p.count) + GROUP - 1) / GROUP);
    u32 lane = threadIdx.x % 32;
    for (u64 group = u64(blockIdx.x) * WARPS + threadIdx.x / 32; group < groups; group += u64(gridDim.x) * WARPS) {
        u64 first = group * GROUP + lane * 4;
        float own[QUADS][4];
        u32 largest = 0;
#pragma unroll
        for (u32 quad = 0; quad < QUADS; quad++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                u64 i = first + quad * 128 + k;
                own[quad][k] = i < p.count ? next[i] : 0.0f;
                largest = max(largest, __float_as_uint(own[quad][k]) & MAGNITUDE);
            }
        }
        largest = warp_max(largest);
        // The least power of two from 2^-126 on of which 127 are no less than the largest magnitude.
        u32 exponent = max((largest + 0x1ffffu) >> 23, 7u) - 6;
        float inverse = __uint_as_float((254 - exponent) << 23);
        if (lane == 0) {
            memory[p.count + group] = u8(exponent);
        }
#pragma unroll
        for (u32 quad = 0; quad < QUADS; quad++) {
            u64 at = first + quad * 128;
            Words draws = words_of(p, at);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                // An odd multiple of 2^-16 in (-1/2, 1/2): leaves whole numbers whole.
                float dither = float(int(2 * (draws.word[k] >> 17) + 1)) * (1.0f / 65536.0f) - 0.5f;
                // 1.5 * 2^23 brings the rounded number into the low bits.
                u32 code = __float_as_uint(own[quad][k] * inverse + dither + 12582912.0f);
                if (at + k < p.count) {
                    memory[at + k] = u8(code);
                }
            }
        }
    }
}
