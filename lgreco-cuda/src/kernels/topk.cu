// TopK: the energy below the k largest magnitudes, for many k from one pass over the values, and where the k largest end.
//
// Magnitudes are compared by keys, which order as they do and have an exponent for every binade, those of subnormal
// numbers too. A bin is a key's exponent and the upper 7 bits of its significand. All sums over values are sums of
// integers, so the order of additions does not matter.

struct Params {
    u32 dtype;
    u32 count;
    u32 sent;      // type of the values in the payload
    u32 rounds;    // whether that type changes values
    u32 energies;  // whether rows are wanted, not only the cut
    u32 keeps;
    u32 fine_bits;  // of a bin's 16, by which `refine` divides bins
};

#define FRACTION_BITS 23
#define FRACTION 0x007fffffu
#define COARSE 16
#define EXPONENTS 280
#define PER_EXPONENT 128
#define WIDTH (1.0 / PER_EXPONENT)
// Bits of a key below its bin that are not summed.
#define UNSUMMED 4
#define READERS 1024
#define CHUNK (READERS * 32)
// Chunks that a block takes at most, so that no sum in shared memory overflows.
#define TURNS 32
#define ROOM 8192

// Part of a row up to which its cut bin's share may be off before the bin is refined.
#define TOLERANCE (1.0 / 16384)

// Where the k largest end: in which bin, and k's rank there. And what all other bins add to the row.
struct Cut {
    u32 bin;
    u32 rank;
    double others;
};

__device__ inline u32 key_of(u32 magnitude) {
    if (magnitude > FRACTION) {
        return magnitude + (23u << FRACTION_BITS);
    }
    if (magnitude == 0) {
        return 0;
    }
    u32 shift = __clz(magnitude) - 8;
    return ((24 - shift) << FRACTION_BITS) | ((magnitude << shift) & FRACTION);
}

__device__ inline u32 magnitude_of(u32 key) {
    u32 exponent = key >> FRACTION_BITS;
    if (exponent >= 24) {
        return key - (23u << FRACTION_BITS);
    }
    return key == 0 ? 0 : ((key & FRACTION) | (FRACTION + 1)) >> (24 - exponent);
}

__device__ inline double power_of_two(int exponent) {
    return __longlong_as_double(u64(1023 + exponent) << 52);
}

// Bits of the significand that sending drops, for a key's exponent.
__device__ inline u32 dropped_bits(u32 exponent, u32 sent) {
    int wanted = sent == 1 ? max(149 - int(exponent), 13) : max(40 - int(exponent), 16);
    return u32(min(wanted, 25));
}

// Squares of 17 bits and more would not fit their sums: the unit of errors grows instead, by this many bits.
__device__ inline u32 coarser(u32 dropped) {
    return dropped > 17 ? dropped - 17 : 0;
}

// The square of what sending changes, in units of `error_unit`.
__device__ inline u64 squared_error(u32 key, u32 sent) {
    u32 dropped = dropped_bits(key >> FRACTION_BITS, sent);
    u32 significand = (key & FRACTION) | (FRACTION + 1);
    u32 unit = 1u << dropped;
    u32 part = significand & (unit - 1);
    bool up = part > unit / 2 || (part == unit / 2 && (significand & unit) != 0);
    u32 error = up ? unit - part : part;
    u32 shift = coarser(dropped);
    error = (error + (1u << shift >> 1)) >> shift;
    return u64(error) * error;
}

// Of the squared errors of a key's exponent.
__device__ inline double error_unit(u32 exponent, u32 sent) {
    return power_of_two(2 * (int(exponent) - 173 + int(coarser(dropped_bits(exponent, sent)))));
}

// Of squares of significands in [1, 2).
__device__ inline double energy_unit(u32 exponent) {
    return exponent == 0 ? 0.0 : power_of_two(2 * (int(exponent) - 150));
}

// What is known of the values in each bin.
struct Bins {
    u32* counts;
    u64* lows;    // sums of the keys' upper 12 bits below the bin
    u64* errors;  // sums of squared errors

    // How far the mean of a bin, as a significand, is above its lower end.
    __device__ double mean(u32 bin) const {
        return double(lows[bin]) / double(counts[bin]) * (1.0 / (1 << (FRACTION_BITS - UNSUMMED)));
    }

    // The energy of a bin. The spread about the mean is between 0 and mean * (WIDTH - mean); a third of that is right for
    // evenly spread values, and for any other off by 2/3 * 2^-16 of the energy at most.
    __device__ double energy(u32 bin) const {
        if (counts[bin] == 0) {
            return 0.0;
        }
        double above = mean(bin);
        double x = lower_end(bin) + above;
        double spread = above * max(WIDTH - above, 0.0) / 3.0;
        return double(counts[bin]) * (x * x + spread) * energy_unit(bin / PER_EXPONENT);
    }

    __device__ double error(const Params& p, u32 bin) const {
        return p.rounds ? double(errors[bin]) * error_unit(bin / PER_EXPONENT, p.sent) : 0.0;
    }

    __device__ static double lower_end(u32 bin) {
        return 1.0 + bin % PER_EXPONENT * WIDTH;
    }
};

__device__ inline u32 bits_of(float value) {
    return __float_as_uint(value) & MAGNITUDE;
}

// Adds to bins in device memory.
template <bool ENERGIES, bool ERRORS>
__device__ inline void give(const Bins& all, u32 bin, u32 count, u32 low, u64 error) {
    atomicAdd(&all.counts[bin], count);
    if (ENERGIES) {
        atomicAdd(&all.lows[bin], u64(low));
    }
    if (ERRORS && error != 0) {
        atomicAdd(&all.errors[bin], error);
    }
}

// Some of the bins in shared memory: those of the exponents about the largest that the block saw first, but none of
// subnormal numbers. What is outside of them is rare and goes to device memory.
template <bool ENERGIES, bool ERRORS>
struct Window {
    static const u32 BINS = ROOM / (ERRORS ? 4 : 2);

    u32* room;
    u32 bottom;

    __device__ Window(u32* shared, u32 largest_key) : room(shared) {
        u32 top = ((largest_key >> FRACTION_BITS) + 2) * PER_EXPONENT;
        bottom = max(top, 24 * PER_EXPONENT + BINS) - BINS;
    }

    // Returns whether the magnitude is 0, which is not counted.
    __device__ bool add(const Params& p, const Bins& all, u32 magnitude) {
        u32 key = magnitude + (23u << FRACTION_BITS);
        u32 at = (key >> COARSE) - bottom;
        if (at < BINS) {
            atomicAdd(&room[at], 1u);
            if (ENERGIES) {
                atomicAdd(&room[BINS + at], low_of(key));
            }
            if (ERRORS) {
                add_error(at, squared_error(key, p.sent));
            }
            return false;
        }
        key = key_of(magnitude);
        if (key != 0) {
            u64 error = ERRORS ? squared_error(key, p.sent) : 0;
            give<ENERGIES, ERRORS>(all, key >> COARSE, 1, low_of(key), error);
        }
        return key == 0;
    }

    __device__ static u32 low_of(u32 key) {
        return (key & 0xffffu) >> UNSUMMED;
    }

    __device__ void add_error(u32 at, u64 error) {
        if (error == 0) {
            return;
        }
        u32 before = atomicAdd(&room[2 * BINS + at], u32(error));
        u32 upper = u32(error >> 32) + (before + u32(error) < before ? 1 : 0);
        if (upper != 0) {
            atomicAdd(&room[3 * BINS + at], upper);
        }
    }

    __device__ void give_all(const Bins& all) {
        for (u32 at = threadIdx.x; at < BINS; at += READERS) {
            if (room[at] != 0) {
                u64 error = ERRORS ? u64(room[3 * BINS + at]) << 32 | room[2 * BINS + at] : 0;
                give<ENERGIES, ERRORS>(all, bottom + at, room[at], room[BINS + at], error);
            }
        }
    }
};

struct Shared {
    u32 room[ROOM];
    u32 chunk;
    u32 seen;  // key of the largest magnitude in the block's first values
    u32 largest;
    u32 zeros;
};

// Fills the bins. Blocks of READERS threads take chunks of the values from a counter, `next`, which begins at 0.
// result[0] becomes at least the largest magnitude.
template <bool ENERGIES, bool ERRORS>
__device__ inline void fill_bins(const Params& p, const void* values, u32* next, const Bins& all, u32* result,
                                 Shared& shared) {
    if (threadIdx.x == 0) {
        shared.chunk = atomicAdd(next, 1u);
        shared.seen = 0;
        shared.largest = 0;
        shared.zeros = 0;
    }
    for (u32 i = threadIdx.x; i < ROOM; i += READERS) {
        shared.room[i] = 0;
    }
    __syncthreads();
    u64 start = u64(shared.chunk) * CHUNK;
    if (start >= p.count) {
        return;
    }
    u32 found = 0;
    if (start + threadIdx.x * 4 < p.count) {
        float four[4];
        load4(values, p.dtype, start + threadIdx.x * 4, p.count, four);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            found = max(found, bits_of(four[k]));
        }
    }
    found = warp_max(found);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&shared.seen, key_of(found));
    }
    __syncthreads();
    Window<ENERGIES, ERRORS> window(shared.room, shared.seen);
    u32 best = 0;
    u32 none = 0;
    for (u32 turn = 1;; turn++) {
        // Asked for early, so that nobody waits for it.
        u32 later = threadIdx.x == 0 && turn < TURNS ? atomicAdd(next, 1u) : 0;
        u32 end = u32(min(start + CHUNK, u64(p.count)) - start);
        for (u32 i = threadIdx.x * 4; i < end; i += READERS * 4) {
            float four[4];
            u32 here = load4(values, p.dtype, start + i, p.count, four);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                best = max(best, bits_of(four[k]));
                if (window.add(p, all, bits_of(four[k])) && k < here) {
                    none++;
                }
            }
        }
        if (turn == TURNS) {
            break;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            shared.chunk = later;
        }
        __syncthreads();
        start = u64(shared.chunk) * CHUNK;
        if (start >= p.count) {
            break;
        }
    }
    if (none != 0) {
        atomicAdd(&shared.zeros, none);
    }
    best = warp_max(best);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&shared.largest, best);
    }
    __syncthreads();
    window.give_all(all);
    if (threadIdx.x == 0) {
        atomicMax(result, shared.largest);
        if (shared.zeros != 0) {
            atomicAdd(&all.counts[0], shared.zeros);
        }
    }
}

// For a cut: the counts alone.
extern "C" __launch_bounds__(READERS) __global__ void count(Params p, const void* values, u32* next, u32* counts,
                                                               u64* lows, u64* errors, u32* result) {
    __shared__ Shared shared;
    fill_bins<false, false>(p, values, next, Bins{counts, lows, errors}, result, shared);
}

// For rows of values that are sent as they are.
extern "C" __launch_bounds__(READERS) __global__ void count_exact(Params p, const void* values, u32* next,
                                                                     u32* counts, u64* lows, u64* errors,
                                                                     u32* result) {
    __shared__ Shared shared;
    fill_bins<true, false>(p, values, next, Bins{counts, lows, errors}, result, shared);
}

// For rows of values that are rounded before they are sent.
extern "C" __launch_bounds__(READERS) __global__ void count_rounded(Params p, const void* values, u32* next,
                                                                    u32* counts, u64* lows, u64* errors, u32* result) {
    __shared__ Shared shared;
    fill_bins<true, true>(p, values, next, Bins{counts, lows, errors}, result, shared);
}

// The sum over a warp in the order of a fixed tree, which every lane has.
__device__ inline double warp_sum(double value) {
    for (u32 reach = 16; reach > 0; reach >>= 1) {
        value += __shfl_xor_sync(FULL, value, reach);
    }
    return value;
}

// What the bins of each exponent add up to. A warp per exponent.
extern "C" __global__ void exponents(Params p, u32* counts, u64* lows, u64* errors, u32* exponent_counts,
                                     double* exponent_energies, double* exponent_errors) {
    u32 exponent = blockIdx.x * WARPS + threadIdx.x / 32;
    u32 lane = threadIdx.x % 32;
    Bins all = {counts, lows, errors};
    u32 count = 0;
    double energy = 0.0;
    double error = 0.0;
    for (u32 b = lane; b < PER_EXPONENT; b += 32) {
        u32 bin = exponent * PER_EXPONENT + b;
        count += counts[bin];
        if (p.energies) {
            energy += all.energy(bin);
            error += all.error(p, bin);
        }
    }
    if (__any_sync(FULL, count != 0)) {
        for (u32 reach = 16; reach > 0; reach >>= 1) {
            count += __shfl_xor_sync(FULL, count, reach);
        }
        if (p.energies) {
            energy = warp_sum(energy);
            error = warp_sum(error);
        }
    }
    if (lane == 0) {
        exponent_counts[exponent] = count;
        exponent_energies[exponent] = energy;
        exponent_errors[exponent] = error;
    }
}

// Which of `size` places holds number `rank`, counted from the last place's first; `rank` becomes its rank there. For a
// warp.
__device__ inline u32 find(const u32* counts, u32 size, u32& rank) {
    u32 lane = threadIdx.x % 32;
    for (u32 end = size;; end -= 32) {
        u32 own = lane < end ? counts[end - 1 - lane] : 0;
        u32 sum = own;
        for (u32 reach = 1; reach < 32; reach <<= 1) {
            u32 other = __shfl_up_sync(FULL, sum, reach);
            sum += lane >= reach ? other : 0;
        }
        u32 reached = __ballot_sync(FULL, sum >= rank);
        if (reached != 0 || end <= 32) {
            u32 first = min(u32(__ffs(reached)) - 1, end - 1);
            rank -= __shfl_sync(FULL, sum - own, first);
            return end - 1 - first;
        }
        rank -= __shfl_sync(FULL, sum, 31);
    }
}

// What the bin that k divides adds to a row, as far as its count and mean tell, and how far that may be off.
struct Share {
    double value;
    double doubt;

    __device__ Share(const Params& p, const Bins& all, u32 bin, u32 rank) {
        u32 count = all.counts[bin];
        u32 exponent = bin / PER_EXPONENT;
        value = all.error(p, bin);
        doubt = 0.0;
        if (rank == count || exponent == 0) {
            return;
        }
        // The mean of the values dropped lies between `least`, where those kept are at the upper end, and that of all.
        double part = double(count - rank) / double(count);
        double mean = all.mean(bin);
        double least = max((mean - (1.0 - part) * WIDTH) / part, 0.0);
        double above = min(max(mean * part, least), mean);
        double x = Bins::lower_end(bin) + above;
        double unit = double(count - rank) * energy_unit(exponent);
        value = value * (1.0 - part) + (x * x + above * above / 3.0) * unit;
        doubt = 2.0 * (Bins::lower_end(bin) + WIDTH) * max(mean - above, above - least) * unit;
        if (p.rounds && coarser(dropped_bits(exponent, p.sent)) > 0) {
            // Errors of single values may be as large as the values.
            doubt = value;
        }
    }
};

// The bin of each k, and its row unless that bin is to be refined. A warp per k. `wanted` becomes 1 when any bin is, and
// slots[bin] one more than the number of a k in it.
extern "C" __global__ void choose(Params p, const u32* keeps, u32* counts, u64* lows, u64* errors,
                                  const u32* exponent_counts, const double* exponent_energies,
                                  const double* exponent_errors, u32* slots, u32* wanted, Cut* cuts, double* rows) {
    u32 index = blockIdx.x * WARPS + threadIdx.x / 32;
    if (index >= p.keeps) {
        return;
    }
    u32 lane = threadIdx.x % 32;
    Bins all = {counts, lows, errors};
    Cut cut = {0, keeps[index], 0.0};
    u32 exponent = find(exponent_counts, EXPONENTS, cut.rank);
    cut.bin = exponent * PER_EXPONENT + find(counts + exponent * PER_EXPONENT, PER_EXPONENT, cut.rank);
    if (p.energies) {
        for (u32 other = lane; other < EXPONENTS; other += 32) {
            if (other != exponent) {
                cut.others += other < exponent ? exponent_energies[other] : exponent_errors[other];
            }
        }
        for (u32 bin = exponent * PER_EXPONENT + lane; bin < (exponent + 1) * PER_EXPONENT; bin += 32) {
            if (bin != cut.bin) {
                cut.others += bin < cut.bin ? all.energy(bin) : all.error(p, bin);
            }
        }
        cut.others = warp_sum(cut.others);
    }
    if (lane != 0) {
        return;
    }
    cuts[index] = cut;
    bool refine = exponent != 0;
    if (p.energies) {
        Share share(p, all, cut.bin, cut.rank);
        rows[index] = cut.others + share.value;
        refine = share.doubt > TOLERANCE * rows[index];
    }
    if (refine) {
        atomicMax(&slots[cut.bin], index + 1);
        atomicMax(wanted, 1u);
    }
}

// Counts the values of the bins that have a slot by the next `fine_bits` bits of their keys.
extern "C" __global__ void refine(Params p, const void* values, const u32* wanted, const u32* slots, u32* fine_counts,
                                  u64* fine_errors) {
    if (*wanted == 0) {
        return;
    }
    u64 stride = u64(gridDim.x) * BLOCK * 4;
    for (u64 i = (u64(blockIdx.x) * BLOCK + threadIdx.x) * 4; i < p.count; i += stride) {
        float four[4];
        u32 here = load4(values, p.dtype, i, p.count, four);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (k >= here) {
                break;
            }
            u32 key = key_of(bits_of(four[k]));
            u32 slot = slots[key >> COARSE];
            if (slot == 0) {
                continue;
            }
            u64 at = u64(slot - 1) << p.fine_bits | (key & 0xffffu) >> (COARSE - p.fine_bits);
            atomicAdd(&fine_counts[at], 1u);
            if (p.rounds) {
                atomicAdd(&fine_errors[at], squared_error(key, p.sent));
            }
        }
    }
}

// The rows of those k whose bins were refined. A warp per k.
extern "C" __global__ void refined_rows(Params p, const u32* wanted, const u32* slots, const u32* fine_counts,
                                        const u64* fine_errors, const Cut* cuts, double* rows) {
    u32 index = blockIdx.x * WARPS + threadIdx.x / 32;
    if (*wanted == 0 || index >= p.keeps || slots[cuts[index].bin] == 0) {
        return;
    }
    u32 lane = threadIdx.x % 32;
    Cut cut = cuts[index];
    u32 parts = 1u << p.fine_bits;
    u64 first = u64(slots[cut.bin] - 1) << p.fine_bits;
    u32 found = find(fine_counts + first, parts, cut.rank);
    u32 exponent = cut.bin / PER_EXPONENT;
    double squares = 0.0;
    double errors = 0.0;
    for (u32 part = lane; part < parts; part += 32) {
        double count = double(fine_counts[first + part]);
        double kept = part == found ? double(cut.rank) : part > found ? count : 0.0;
        // The middle of a part, which is at most 2^-15 wide.
        double x = Bins::lower_end(cut.bin) + (part + 0.5) * (WIDTH / parts);
        squares += (count - kept) * (x * x);
        if (p.rounds && count > 0.0) {
            errors += double(fine_errors[first + part]) * (kept / count);
        }
    }
    double share = squares * energy_unit(exponent);
    if (p.rounds) {
        share += errors * error_unit(exponent, p.sent);
    }
    share = warp_sum(share);
    if (lane == 0) {
        rows[index] = cut.others + share;
    }
}

// The k-th largest magnitude of the only k, and how many of that magnitude are among the k largest. One block; bins are
// refined by all 16 bits.
extern "C" __global__ void find_cut(Params p, const Cut* cuts, const u32* fine_counts, u32* magnitude_and_ties) {
    __shared__ u32 stretches[BLOCK];
    Cut cut = cuts[0];
    bool zero = cut.bin < PER_EXPONENT;
    u32 size = (1u << COARSE) / BLOCK;
    u32 sum = 0;
    for (u32 i = 0; i < size && !zero; i++) {
        sum += fine_counts[threadIdx.x * size + i];
    }
    stretches[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) {
        return;
    }
    u32 low = 0;
    if (!zero) {
        u32 stretch = find(stretches, BLOCK, cut.rank);
        low = stretch * size + find(fine_counts + stretch * size, size, cut.rank);
    }
    if (threadIdx.x == 0) {
        magnitude_and_ties[0] = magnitude_of(cut.bin << COARSE | low);
        magnitude_and_ties[1] = cut.rank;
    }
}
