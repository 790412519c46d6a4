// The values of a span in the registers of a block, and the places of the gathered values.

// OF_WARP is the number of consecutive values of a span that a warp processes. The warp loads STRIP values at a time,
// STRIPS times.
#define OF_WARP (SPAN / WARPS)
#define STRIP 128
#define STRIPS (OF_WARP / STRIP)

__device__ inline bool has_fours(const void* values, u32 dtype) {
    return reinterpret_cast<u64>(values) % (dtype == 0 ? 16 : 8) == 0;
}

// A thread's values of a span, four from each strip: the gradient or, with error feedback, its sum with the residual.
// `load` stores these sums where the next residuals will be.
struct Strips {
    float values[STRIPS][4];
    u32 there;  // bit 4 * strip + k: whether value k of this strip exists

    // Loads values that are aligned and all exist. `first` is the index of this thread's first value.
    __device__ void load_simple(const Offered& offered, u64 first) {
        there = 0xffffu;
        if (offered.gradient_dtype == 0) {
            read(offered.gradient, first, values);
        } else {
            read_narrow(offered.gradient, offered.gradient_dtype, first, values);
        }
        if (offered.after == nullptr) {
            return;
        }
        float before[STRIPS][4];
        read(offered.before, first, before);
        uint4* to = reinterpret_cast<uint4*>(offered.after + first);
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                values[strip][k] = before[strip][k] + values[strip][k];
            }
            const float(&four)[4] = values[strip];
            to[strip * (STRIP / 4)] = uint4{__float_as_uint(four[0]), __float_as_uint(four[1]),
                                            __float_as_uint(four[2]), __float_as_uint(four[3])};
        }
    }

    __device__ static void read(const void* values, u64 first, float (&out)[STRIPS][4]) {
        const uint4* from = reinterpret_cast<const uint4*>(static_cast<const float*>(values) + first);
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++) {
            uint4 four = from[strip * (STRIP / 4)];
            out[strip][0] = __uint_as_float(four.x);
            out[strip][1] = __uint_as_float(four.y);
            out[strip][2] = __uint_as_float(four.z);
            out[strip][3] = __uint_as_float(four.w);
        }
    }

    __device__ static void read_narrow(const void* values, u32 dtype, u64 first, float (&out)[STRIPS][4]) {
        const uint2* from = reinterpret_cast<const uint2*>(static_cast<const u16*>(values) + first);
        uint2 fours[STRIPS];
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++) {
            fours[strip] = from[strip * (STRIP / 4)];
        }
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++) {
            widen4(fours[strip], dtype, out[strip]);
        }
    }

    // Loads any values. `count` is the number of values in the layer.
    __device__ void load(const Offered& offered, u64 first, u32 count) {
        there = 0;
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++) {
            u64 i = first + strip * STRIP;
            if (i >= count) {
                break;
            }
            u32 here = load4(offered.gradient, offered.gradient_dtype, i, count, values[strip]);
            there |= ((1u << here) - 1) << (4 * strip);
            if (offered.after != nullptr) {
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    if (k < here) {
                        values[strip][k] = offered.before[i + k] + values[strip][k];
                        offered.after[i + k] = values[strip][k];
                    }
                }
            }
        }
    }
};

// The sum of the lowest `end` bytes of a word.
__device__ inline u32 sum_of_bytes(u32 bytes, u32 end) {
    bytes &= u32((1ull << (8 * end)) - 1);
    u32 pairs = (bytes & 0x00ff00ffu) + (bytes >> 8 & 0x00ff00ffu);
    return (pairs & 0xffffu) + (pairs >> 16);
}

// Places of the values of a span that reach the bound, in order of position. All fields count such values.
struct Positions {
    u32 before;   // for each strip, a byte: number in the lanes before this one
    u32 of_warp;  // for each strip, a byte: number in all lanes
    u32 start;    // number in the warps before this one
    u32 all;      // number in the span

    // `mask` says which of this thread's values reach the bound, with bits as in `Strips`. All threads of the block
    // must call it.
    __device__ Positions(u32 mask, u32 (&totals)[WARPS]) : start(0), all(0) {
        u32 own = 0;
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++) {
            own |= u32(__popc(mask >> (4 * strip) & 0xfu)) << (8 * strip);
        }
        u32 sum = warp_scan(own);
        before = sum - own;
        of_warp = __shfl_sync(FULL, sum, 31);
        if (threadIdx.x % 32 == 0) {
            totals[threadIdx.x / 32] = sum_of_bytes(of_warp, STRIPS);
        }
        __syncthreads();
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            start += warp < threadIdx.x / 32 ? totals[warp] : 0;
            all += totals[warp];
        }
    }

    // The place of this lane's first value from a strip.
    __device__ u32 of(u32 strip) const {
        return start + sum_of_bytes(of_warp, strip) + (before >> (8 * strip) & 0xffu);
    }
};
