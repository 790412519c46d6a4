// A span's values in the registers of a block, and where those of them go that may be among the k largest.

// Values of a span that a warp has, one after another; those that it reads at once, and how often it does.
#define OF_WARP (SPAN / WARPS)
#define STRIP 128
#define STRIPS (OF_WARP / STRIP)

__device__ inline bool has_fours(const void* values, u32 dtype) {
    return reinterpret_cast<u64>(values) % (dtype == 0 ? 16 : 8) == 0;
}

// A thread's values of a span, four of each strip: of the gradient or, where something is remembered, their sums, which go where
// the next residuals will be.
struct Strips {
    float values[STRIPS][4];
    u32 there;  // bit 4 * strip + number for each of them that there is

    // Of values from `first` on that are aligned and all there.
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

    // Of any.
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

// The sum of the bytes before byte `end`.
__device__ inline u32 sum_of_bytes(u32 bytes, u32 end) {
    bytes &= u32((1ull << (8 * end)) - 1);
    u32 pairs = (bytes & 0x00ff00ffu) + (bytes >> 8 & 0x00ff00ffu);
    return (pairs & 0xffffu) + (pairs >> 16);
}

// Where what reaches the bound goes: in order of strips, lanes and numbers.
struct Positions {
    u32 before;   // of each strip, in the lanes before this one: a byte each
    u32 of_warp;  // of each strip, in all lanes
    u32 start;    // of the warp's in the span
    u32 all;      // of the span

    // All threads of the block must come.
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

    // Of the first that this lane has of a strip.
    __device__ u32 of(u32 strip) const {
        return start + sum_of_bytes(of_warp, strip) + (before >> (8 * strip) & 0xffu);
    }
};
