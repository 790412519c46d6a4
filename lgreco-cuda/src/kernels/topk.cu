// TopK: the energy below the k largest magnitudes, for many k from one pass over the values, and where the k largest end.
// What the bins do not tell, a second pass does.

// Part of a row up to which its cut bin's share may be off before the bin is refined.
#define TOLERANCE (1.0 / 16384)

// Where the k largest end: in which bin, and k's rank there. And what all other bins add to the row.
struct Cut {
    u32 bin;
    u32 rank;
    double others;
};

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
