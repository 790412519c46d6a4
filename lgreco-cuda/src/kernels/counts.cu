// Magnitudes counted in bins by all blocks of a launch, and the bin that the last block finds.

// Counts in shared memory begin.
template <u32 BITS>
__device__ inline void count_nothing(u32* room) {
#pragma unroll 4
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        room[bin] = 0;
    }
    __syncthreads();
}

// Gives away what was counted of `own` parts of a layer. Returns whether this is the last block. All threads of the block must
// come.
template <u32 BITS>
__device__ inline bool give_counts(u32* room, u32* bins, u32 own, u32 all, Cut* cut) {
    __syncthreads();
#pragma unroll 1
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        if (room[bin] != 0) {
            atomicAdd(&bins[bin], room[bin]);
            room[bin] = 0;
        }
    }
    return is_last(&cut->done, own, all);
}

// Takes a layer's counts, which begin anew, to shared memory, by the last block.
template <u32 BITS>
__device__ inline void take_counts(u32* room, u32* bins) {
#pragma unroll 4
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        room[bin] = atomicExch(&bins[bin], 0u);
    }
    __syncthreads();
}

struct Picked {
    u32 bin;   // NOWHERE if there are fewer
    u32 rank;  // there
};

// Where number `rank` from above is among so many bins in shared memory, up to 32 for each thread; 0 is in the first. All threads
// of the block must come.
__device__ static inline Picked pick(const u32* bins, u32 all, u32 rank) {
    u32 each = all / BLOCK;
    __shared__ u32 owner;
    __shared__ u32 before;
    __shared__ Picked found;
    u32 first = (BLOCK - 1 - threadIdx.x) * each;
    u32 sum = 0;
#pragma unroll 4
    for (u32 k = 0; k < each; k++) {
        // Lanes begin apart, in different banks.
        sum += bins[first + (k + threadIdx.x) % each];
    }
    if (threadIdx.x == 0) {
        owner = NOWHERE;
        found = Picked{rank == 0 ? 0 : NOWHERE, 0};
    }
    u32 above = u32(block_scan(sum).before);
    if (above < rank && rank - above <= sum) {
        owner = first;
        before = above;
    }
    __syncthreads();
    if (threadIdx.x < 32 && owner != NOWHERE) {
        u32 bin = owner + each - 1 - threadIdx.x;
        u32 own = threadIdx.x < each ? bins[bin] : 0;
        u32 reached = before + warp_scan(own);
        if (own > 0 && reached >= rank && reached - own < rank) {
            found = Picked{bin, rank - (reached - own)};
        }
    }
    __syncthreads();
    Picked own = found;
    __syncthreads();
    return own;
}

// Digits of a magnitude, the highest ones first, by which that of a rank is found.
struct Digits {
    u32 shift;
    u32 bits;

    // Of the lowest `known` bits.
    __device__ explicit Digits(u32 known) : shift(known), bits(0) {}

    __device__ bool next() {
        bits = min(shift, u32(SECOND_BITS));
        shift -= bits;
        return bits != 0;
    }

    // Counts a magnitude that begins with these bits by its next digit.
    __device__ void add(u32* room, u32 magnitude, u32 begins) const {
        if (u64(magnitude) >> (shift + bits) == begins) {
            atomicAdd(&room[magnitude >> shift & ((1u << bits) - 1)], 1u);
        }
    }

    // With the next digit, and the rank among those that have it. The room's counts begin anew. All threads of the block must come.
    __device__ Picked pick(u32* room, Picked found) const {
        __syncthreads();
        Picked digit = ::pick(room, 1u << SECOND_BITS, found.rank);
        count_nothing<SECOND_BITS>(room);
        return Picked{found.bin << bits | digit.bin, digit.rank};
    }
};

// Narrow bins have 2^SECOND_BITS magnitudes each, from `base` on. The first bin has what is below, the last one all that is
// above.
#define LAST_BIN ((1u << FIRST_BITS) - 1)
#define NARROW ((LAST_BIN - 1) << SECOND_BITS)

__device__ inline u32 bin_of(u32 magnitude, u32 base) {
    return magnitude < base ? 0 : min((magnitude - base >> SECOND_BITS) + 1, LAST_BIN);
}

// The least magnitude of a bin.
__device__ inline u32 start_of(u32 bin, const Cut& cut) {
    return bin == 0 ? cut.bound : cut.base + (bin - 1 << SECOND_BITS);
}
