// What TopK sends: the kept values in order of position, and their positions as a bitmap or in Elias-Fano's code; and
// back. The formats are those of lgreco_core::compress::topk.

struct Params {
    u32 dtype;
    u32 count;
    u32 sent;     // type of the values in the payload
    u32 keep;
    u32 placement;  // 0: no positions, 1: bitmap, 2: Elias-Fano
    u32 low_bits;
    u32 low_bytes;
    u32 high_bytes;
    u32 records;
};

// Values that a warp goes through, and a block.
#define STRETCH 512
#define STEPS (STRETCH / 128)
#define TILE (STRETCH * WARPS)
// Bytes of ones that a block goes through, 8 per thread.
#define ONES (8 * BLOCK)

// 0x10000 for a value above the cut, 1 for one at it. Sums over a tile fit.
__device__ inline u32 above_or_tied(float value, u32 cut) {
    u32 magnitude = __float_as_uint(value) & MAGNITUDE;
    return (magnitude > cut ? 0x10000u : 0) + (magnitude == cut ? 1 : 0);
}

__device__ inline u32 warp_total(u32 value) {
    for (u32 reach = 16; reach > 0; reach >>= 1) {
        value += __shfl_xor_sync(FULL, value, reach);
    }
    return value;
}

// The sums over the lanes up to this one.
__device__ inline u32 warp_scan(u32 value) {
    for (u32 reach = 1; reach < 32; reach <<= 1) {
        u32 other = __shfl_up_sync(FULL, value, reach);
        value += threadIdx.x % 32 >= reach ? other : 0;
    }
    return value;
}

// The values of this lane in its warp's stretch, four per step, and how they compare with the cut.
struct Lane {
    float values[STEPS][4];
    u32 found[STEPS];
    u64 first;

    __device__ Lane(const Params& p, const void* all, u32 cut) {
        first = u64(blockIdx.x) * TILE + threadIdx.x / 32 * STRETCH + threadIdx.x % 32 * 4;
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u64 i = first + step * 128;
            u32 here = i < p.count ? load4(all, p.dtype, i, p.count, values[step]) : 0;
            found[step] = 0;
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                found[step] += k < here ? above_or_tied(values[step][k], cut) : 0;
            }
        }
    }

    __device__ u32 total() const {
        u32 sum = 0;
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            sum += found[step];
        }
        return sum;
    }
};

// records[block] = values above the cut, values at it.
extern "C" __global__ void count_kept(Params p, const void* values, const u32* magnitude_and_ties, uint2* records) {
    __shared__ u32 totals[WARPS];
    Lane lane(p, values, magnitude_and_ties[0]);
    u32 total = warp_total(lane.total());
    if (threadIdx.x % 32 == 0) {
        totals[threadIdx.x / 32] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (u32 warp = 0; warp < WARPS; warp++) {
            total += totals[warp];
        }
        records[blockIdx.x] = uint2{total >> 16, total & 0xffffu};
    }
}

// Each record becomes the sum of those before it; total[0] that of all. One block.
extern "C" __global__ void scan(Params p, uint2* records, u32* total) {
    __shared__ uint2 stretches[BLOCK];
    u64 start = u64(p.records) * threadIdx.x / BLOCK;
    u64 end = u64(p.records) * (threadIdx.x + 1) / BLOCK;
    uint2 sum = {0, 0};
    for (u64 i = start; i < end; i++) {
        sum.x += records[i].x;
        sum.y += records[i].y;
    }
    stretches[threadIdx.x] = sum;
    __syncthreads();
    sum = uint2{0, 0};
    for (u32 other = 0; other < threadIdx.x; other++) {
        sum.x += stretches[other].x;
        sum.y += stretches[other].y;
    }
    for (u64 i = start; i < end; i++) {
        uint2 own = records[i];
        records[i] = sum;
        sum.x += own.x;
        sum.y += own.y;
    }
    if (threadIdx.x == BLOCK - 1) {
        *total = sum.x;
    }
}

// Sets bits of words that begin as 0.
__device__ inline void put(u32* words, u64 at, u32 bits) {
    u32 shift = u32(at % 32);
    atomicOr(&words[at / 32], bits << shift);
    if (shift > 0 && bits >> (32 - shift) != 0) {
        atomicOr(&words[at / 32 + 1], bits >> (32 - shift));
    }
}

__device__ inline void write_one(const Params& p, u32 index, u32 position, float value, void* kept, u32* low,
                                 u32* high) {
    u32 bits = __float_as_uint(value);
    if (p.sent == 0) {
        static_cast<u32*>(kept)[index] = bits;
    } else {
        static_cast<u16*>(kept)[index] = u16(p.sent == 1 ? narrow_f16(bits) : narrow_bf16(bits));
    }
    if (p.placement == 1) {
        put(high, position, 1);
    } else if (p.placement == 2) {
        if (p.low_bits > 0) {
            put(low, u64(index) * p.low_bits, position & ((1u << p.low_bits) - 1));
        }
        put(high, u64(position >> p.low_bits) + index, 1);
    }
}

// Writes the values above the cut and the first of those at it, and their positions into words that begin as 0.
extern "C" __global__ void write_kept(Params p, const void* values, const u32* magnitude_and_ties, const uint2* records,
                                      void* kept, u32* low, u32* high) {
    __shared__ u32 totals[WARPS];
    u32 cut = magnitude_and_ties[0];
    u32 ties = magnitude_and_ties[1];
    Lane lane(p, values, cut);
    u32 total = warp_total(lane.total());
    if (threadIdx.x % 32 == 0) {
        totals[threadIdx.x / 32] = total;
    }
    __syncthreads();
    u32 earlier = 0;
    for (u32 warp = 0; warp < threadIdx.x / 32; warp++) {
        earlier += totals[warp];
    }
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        u32 sum = warp_scan(lane.found[step]);
        u32 before = earlier + sum - lane.found[step];
        earlier += __shfl_sync(FULL, sum, 31);
        u32 above = records[blockIdx.x].x + (before >> 16);
        u32 tied = records[blockIdx.x].y + (before & 0xffffu);
        u64 first = lane.first + step * 128;
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (first + k >= p.count) {
                break;
            }
            u32 found = above_or_tied(lane.values[step][k], cut);
            u32 index = above + min(tied, ties);
            // More than k only when the values were written to meanwhile.
            if ((found > 1 || (found == 1 && tied < ties)) && index < p.keep) {
                write_one(p, index, u32(first) + k, lane.values[step][k], kept, low, high);
            }
            above += found >> 16;
            tied += found & 1;
        }
    }
}

// Up to 8 of `size` bytes, from `at` on.
__device__ inline u64 word_at(const u8* bytes, u64 size, u64 at) {
    u64 word = 0;
    for (u32 i = 0; i < 8 && at + i < size; i++) {
        word |= u64(bytes[at + i]) << (8 * i);
    }
    return word;
}

// records[block] = ones in its bytes, 0.
extern "C" __global__ void count_ones(Params p, const u8* high, uint2* records) {
    __shared__ u32 totals[WARPS];
    u64 at = u64(blockIdx.x) * ONES + threadIdx.x * 8;
    u32 total = warp_total(__popcll(word_at(high, p.high_bytes, at)));
    if (threadIdx.x % 32 == 0) {
        totals[threadIdx.x / 32] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (u32 warp = 0; warp < WARPS; warp++) {
            total += totals[warp];
        }
        records[blockIdx.x] = uint2{total, 0};
    }
}

// The positions that the ones stand for. status[0] becomes 1 when one is not what an encoder writes.
extern "C" __global__ void read_positions(Params p, const u8* low, const u8* high, const uint2* records, u32* positions,
                                          u32* status) {
    __shared__ u32 totals[WARPS];
    u64 at = u64(blockIdx.x) * ONES + threadIdx.x * 8;
    u64 ones = word_at(high, p.high_bytes, at);
    u32 own = __popcll(ones);
    u32 sum = warp_scan(own);
    if (threadIdx.x % 32 == 31) {
        totals[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    u32 index = records[blockIdx.x].x + sum - own;
    for (u32 warp = 0; warp < threadIdx.x / 32; warp++) {
        index += totals[warp];
    }
    for (; ones != 0; ones &= ones - 1, index++) {
        u64 position = at * 8 + __popcll((ones & (0 - ones)) - 1);
        if (index >= p.keep) {
            atomicMax(status, 1u);
            return;
        }
        if (p.placement == 2) {
            u64 bit = u64(index) * p.low_bits;
            u64 lower = word_at(low, p.low_bytes, bit / 8) >> (bit % 8) & ((1ull << p.low_bits) - 1);
            position = (position - index) << p.low_bits | lower;
        }
        if (position >= p.count) {
            atomicMax(status, 1u);
            return;
        }
        positions[index] = u32(position);
    }
}

// status[0] becomes 1 when positions do not ascend or a value is not finite.
extern "C" __global__ void check_kept(Params p, const void* kept, const u32* positions, u32* status) {
    u64 index = u64(blockIdx.x) * BLOCK + threadIdx.x;
    if (index >= p.keep) {
        return;
    }
    bool ascends = p.placement == 0 || index == 0 || positions[index] > positions[index - 1];
    if (!ascends || (__float_as_uint(value(kept, p.sent, index)) & MAGNITUDE) >= INFINITE) {
        atomicMax(status, 1u);
    }
}

// Puts the kept values in their places, if there is nothing wrong with them; status[1] is the number of positions.
extern "C" __global__ void scatter(Params p, const void* kept, const u32* positions, const u32* status, float* output) {
    u64 index = u64(blockIdx.x) * BLOCK + threadIdx.x;
    if (index >= p.keep || status[0] != 0 || (p.placement != 0 && status[1] != p.keep)) {
        return;
    }
    output[p.placement == 0 ? index : positions[index]] = value(kept, p.sent, index);
}
