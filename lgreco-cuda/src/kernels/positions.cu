// Decoding of TopK's payloads. A payload has the kept values in order of position or, in few bits, bin means and codes.
// The positions are stored as a bitmap or in Elias-Fano coding. The formats are those of lgreco_compress::topk and
// quantised_topk. Below, ones are the set bits of the bitmap or of Elias-Fano's high bits.

struct Params {
    u32 count;
    u32 sent;     // type of the values in the payload
    u32 bits;     // bits of a code; 0 if values are sent in the type `sent`
    u32 keep;
    u32 placement;  // 0: no positions, 1: bitmap, 2: Elias-Fano
    u32 low_bits;
    u32 low_bytes;
    u32 high_bytes;
    u32 records;
};

// Bytes of the bitmap, or of Elias-Fano's high bits, that a block reads: 8 per thread.
#define ONES (8 * BLOCK)

// Replaces each record by the sum of the records before it, and writes the sum of all records to total[0]. Launched
// with one block.
extern "C" __global__ void scan(Params p, u32* records, u32* total) {
    __shared__ u32 stretches[BLOCK];
    u64 start = u64(p.records) * threadIdx.x / BLOCK;
    u64 end = u64(p.records) * (threadIdx.x + 1) / BLOCK;
    u32 sum = 0;
    for (u64 i = start; i < end; i++) {
        sum += records[i];
    }
    stretches[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (u32 other = 0; other < threadIdx.x; other++) {
        sum += stretches[other];
    }
    for (u64 i = start; i < end; i++) {
        u32 own = records[i];
        records[i] = sum;
        sum += own;
    }
    if (threadIdx.x == BLOCK - 1) {
        *total = sum;
    }
}

// Up to 8 bytes from index `at` on, as a little-endian word. `size` is the number of bytes.
__device__ inline u64 word_at(const u8* bytes, u64 size, u64 at) {
    u64 word = 0;
    for (u32 i = 0; i < 8 && at + i < size; i++) {
        word |= u64(bytes[at + i]) << (8 * i);
    }
    return word;
}

// Writes the number of ones in each block's bytes to records[block].
extern "C" __global__ void count_ones(Params p, const u8* high, u32* records) {
    __shared__ u32 totals[WARPS];
    u64 at = u64(blockIdx.x) * ONES + threadIdx.x * 8;
    u32 total = warp_sum(__popcll(word_at(high, p.high_bytes, at)));
    if (threadIdx.x % 32 == 0) {
        totals[threadIdx.x / 32] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (u32 warp = 0; warp < WARPS; warp++) {
            total += totals[warp];
        }
        records[blockIdx.x] = total;
    }
}

// Writes the positions of the ones. Sets status[0] to 1 if a position is too large or if there are more than `keep`
// positions.
extern "C" __global__ void read_positions(Params p, const u8* low, const u8* high, const u32* records, u32* positions,
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
    u32 index = records[blockIdx.x] + sum - own;
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

// Number of means in a payload; 0 without codes.
__device__ inline u32 means_of(const Params& p) {
    return p.bits != 0 ? 1u << (p.bits - 1) : 0;
}

// A kept value. `kept` begins with the means or, without codes, with the values.
__device__ inline float kept_value(const Params& p, const u8* kept, u64 index) {
    if (p.bits == 0) {
        return value(kept, p.sent, index);
    }
    const u8* codes = kept + 4 * means_of(p) + index * p.bits / 8;
    u32 shift = u32(index * p.bits % 8);
    u32 bytes = codes[0] | (shift + p.bits > 8 ? u32(codes[1]) << 8 : 0);
    return meaning_of(reinterpret_cast<const u32*>(kept), bytes >> shift & ((1u << p.bits) - 1), p.bits);
}

// Whether the last byte's bits from bit `end` on are zero.
__device__ inline bool is_padded(const u8* bytes, u64 end) {
    return end % 8 == 0 || bytes[end / 8] >> (end % 8) == 0;
}

// Sets status[0] to 1 if positions do not ascend, if a value or mean is not finite, or if a mean is negative. Padding
// bits that are not 0 have the same effect. There are at least as many threads as means.
extern "C" __global__ void check_kept(Params p, const u8* kept, const u8* low, const u32* positions, u32* status) {
    u64 index = u64(blockIdx.x) * BLOCK + threadIdx.x;
    bool good = index >= means_of(p) || reinterpret_cast<const u32*>(kept)[index] < INFINITE;
    if (index < p.keep) {
        bool ascends = p.placement == 0 || index == 0 || positions[index] > positions[index - 1];
        good = good && ascends && is_finite(kept_value(p, kept, index));
    }
    if (index == 0) {
        good = good && is_padded(kept + 4 * means_of(p), u64(p.keep) * p.bits) &&
               (p.placement != 2 || is_padded(low, u64(p.keep) * p.low_bits));
    }
    if (!good) {
        atomicMax(status, 1u);
    }
}

// Writes the kept values to their positions, unless a check has failed. status[1] is the number of positions found.
extern "C" __global__ void scatter(Params p, const u8* kept, const u32* positions, const u32* status, float* output) {
    u64 index = u64(blockIdx.x) * BLOCK + threadIdx.x;
    if (index >= p.keep || status[0] != 0 || (p.placement != 0 && status[1] != p.keep)) {
        return;
    }
    output[p.placement == 0 ? index : positions[index]] = kept_value(p, kept, index);
}
