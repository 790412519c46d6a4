// Counts of magnitudes in bins. All blocks of a launch count, and the last block finds the bin that contains the
// magnitude of a given rank.

// Sets the counts in shared memory to 0.
template <u32 BITS>
__device__ inline void count_nothing(u32* room) {
#pragma unroll 4
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        room[bin] = 0;
    }
    __syncthreads();
}

// Adds this block's counts to those in device memory, and sets its own to 0. They cover `own` of the layer's `all`
// parts. Returns whether this is the last block. All threads of the block must call it.
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

// Moves a layer's counts to shared memory, and sets those in device memory to 0. Called by the last block.
template <u32 BITS>
__device__ inline void take_counts(u32* room, u32* bins) {
#pragma unroll 4
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        room[bin] = atomicExch(&bins[bin], 0u);
    }
    __syncthreads();
}

// A value that was found by its rank.
struct Picked {
    u32 bin;   // its bin; NOWHERE if there are fewer values than the rank
    u32 rank;  // its rank in the bin
};

// Finds the bin of the value with this rank. Rank 1 is the largest value. For rank 0, returns bin 0. `bins` has `all`
// counts in shared memory, at most 32 per thread. All threads of the block must call it.
__device__ static inline Picked pick(const u32* bins, u32 all, u32 rank) {
    u32 each = all / BLOCK;
    __shared__ u32 owner;
    __shared__ u32 before;
    __shared__ Picked found;
    u32 first = (BLOCK - 1 - threadIdx.x) * each;
    u32 sum = 0;
#pragma unroll 4
    for (u32 k = 0; k < each; k++) {
        // Lanes begin at different offsets, to use different banks.
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

// Radix selection: finds the magnitude of a given rank by digits, the highest one first.
struct Digits {
    u32 shift;
    u32 bits;

    // Divides the lowest `known` bits into digits.
    __device__ explicit Digits(u32 known) : shift(known), bits(0) {}

    // Goes on to the next digit. Returns whether there is one.
    __device__ bool next() {
        bits = min(shift, u32(SECOND_BITS));
        shift -= bits;
        return bits != 0;
    }

    // Counts a magnitude by the current digit, if its higher bits equal `begins`.
    __device__ void add(u32* room, u32 magnitude, u32 begins) const {
        if (u64(magnitude) >> (shift + bits) == begins) {
            atomicAdd(&room[magnitude >> shift & ((1u << bits) - 1)], 1u);
        }
    }

    // Finds the current digit. Returns the bits up to this digit, and the rank among the magnitudes with these bits.
    // Sets the counts to 0. All threads of the block must call it.
    __device__ Picked pick(u32* room, Picked found) const {
        __syncthreads();
        Picked digit = ::pick(room, 1u << SECOND_BITS, found.rank);
        count_nothing<SECOND_BITS>(room);
        return Picked{found.bin << bits | digit.bin, digit.rank};
    }
};

// Bin 0 has the magnitudes below `base`. Narrow bins follow, of 2^SECOND_BITS magnitudes each. The last bin has all
// larger magnitudes. NARROW is the number of magnitudes in all narrow bins.
#define LAST_BIN ((1u << FIRST_BITS) - 1)
#define NARROW ((LAST_BIN - 1) << SECOND_BITS)

__device__ inline u32 bin_of(u32 magnitude, u32 base) {
    return magnitude < base ? 0 : min((magnitude - base >> SECOND_BITS) + 1, LAST_BIN);
}

// The smallest magnitude of a bin. In bin 0, that is `bound`, because smaller magnitudes are not counted.
__device__ inline u32 start_of(u32 bin, const Cut& cut) {
    return bin == 0 ? cut.bound : cut.base + (bin - 1 << SECOND_BITS);
}
