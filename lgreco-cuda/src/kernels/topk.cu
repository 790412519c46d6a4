// TopK: the energy below the k largest magnitudes, for many k from one pass over the values.
// What the bins do not tell, a second pass does. All layers take three launches together.

// Part of a row up to which its cut bin's share may be off before the bin is refined.
#define TOLERANCE (1.0 / 16384)
// Parts of a bin, where that is refined.
#define PARTS 256

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

// What the bins of each exponent add up to.
struct Exponents {
    double energies[EXPONENTS];
    double errors[EXPONENTS];
    u32 counts[EXPONENTS];
};

// A warp per exponent, by all READERS threads of a block.
__device__ inline void add_up(const Params& p, const Bins& all, Exponents& exponents) {
    u32 lane = threadIdx.x % 32;
    for (u32 exponent = threadIdx.x / 32; exponent < EXPONENTS; exponent += READERS / 32) {
        u32 count = 0;
        double energy = 0.0;
        double error = 0.0;
        for (u32 b = lane; b < PER_EXPONENT; b += 32) {
            u32 bin = exponent * PER_EXPONENT + b;
            count += all.counts[all.first + bin];
            energy += all.energy(bin);
            error += all.error(p, bin);
        }
        if (__any_sync(FULL, count != 0)) {
            for (u32 reach = 16; reach > 0; reach >>= 1) {
                count += __shfl_xor_sync(FULL, count, reach);
            }
            energy = warp_sum(energy);
            error = warp_sum(error);
        }
        if (lane == 0) {
            exponents.counts[exponent] = count;
            exponents.energies[exponent] = energy;
            exponents.errors[exponent] = error;
        }
    }
}

// Which of `size` places holds number `rank`, counted from the last place's first; `rank` becomes its rank there. For a
// warp.
__device__ inline u32 find(const u32* counts, u32 size, u32& rank) {
    u32 lane = threadIdx.x % 32;
    for (u32 end = size;; end -= 32) {
        u32 own = lane < end ? fresh(counts[end - 1 - lane]) : 0;
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
        u32 count = all.counts[all.first + bin];
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

// The bin of each k, and its error unless that bin is to be refined: a block of READERS threads for each layer, a warp for
// each k. `wanted` becomes 1 when any bin is, and slots[bin] one more than the number of a k in it.
extern "C" __launch_bounds__(READERS) __global__ void choose(Params p, const Row* rows, const u32* all_keeps, u32* counts,
                                                             u64* lows, u64* all_errors, u32* all_slots, u32* wanted,
                                                             Cut* all_cuts, u64* results) {
    __shared__ Exponents exponents;
    Row row = rows[blockIdx.x];
    Bins all = {counts, lows, all_errors, blockIdx.x * BINS};
    add_up(p, all, exponents);
    __syncthreads();
    const u32* keeps = all_keeps + row.first_keep;
    u32* slots = all_slots + all.first;
    Cut* cuts = all_cuts + row.first_keep;
    double* errors = reinterpret_cast<double*>(results + row.results + 1);
    u32 lane = threadIdx.x % 32;
    for (u32 index = threadIdx.x / 32; index < row.keeps; index += READERS / 32) {
        Cut cut = {0, keeps[index], 0.0};
        u32 exponent = find(exponents.counts, EXPONENTS, cut.rank);
        cut.bin = exponent * PER_EXPONENT + find(all.counts + all.first + exponent * PER_EXPONENT, PER_EXPONENT, cut.rank);
        for (u32 other = lane; other < EXPONENTS; other += 32) {
            if (other != exponent) {
                cut.others += other < exponent ? exponents.energies[other] : exponents.errors[other];
            }
        }
        for (u32 bin = exponent * PER_EXPONENT + lane; bin < (exponent + 1) * PER_EXPONENT; bin += 32) {
            if (bin != cut.bin) {
                cut.others += bin < cut.bin ? all.energy(bin) : all.error(p, bin);
            }
        }
        cut.others = warp_sum(cut.others);
        if (lane != 0) {
            continue;
        }
        cuts[index] = cut;
        Share share(p, all, cut.bin, cut.rank);
        errors[index] = cut.others + share.value;
        if (share.doubt > TOLERANCE * errors[index]) {
            atomicMax(&slots[cut.bin], index + 1);
            atomicMax(&wanted[blockIdx.x], 1u);
        }
    }
}

// The errors of those k of a layer whose bins were refined, by all READERS threads of a block.
__device__ inline void refined_row(const Params& p, const Row& row, const u32* slots, const u32* fine_counts,
                                   const u64* fine_errors, const Cut* cuts, double* errors) {
    u32 lane = threadIdx.x % 32;
    for (u32 index = threadIdx.x / 32; index < row.keeps; index += READERS / 32) {
        Cut cut = cuts[index];
        u32 slot = slots[cut.bin];
        if (slot == 0) {
            continue;
        }
        u32 first = (slot - 1) * PARTS;
        u32 found = find(fine_counts + first, PARTS, cut.rank);
        u32 exponent = cut.bin / PER_EXPONENT;
        double squares = 0.0;
        double rounding = 0.0;
        for (u32 part = lane; part < PARTS; part += 32) {
            double count = double(fresh(fine_counts[first + part]));
            double kept = part == found ? double(cut.rank) : part > found ? count : 0.0;
            // The middle of a part, which is at most 2^-15 wide.
            double x = Bins::lower_end(cut.bin) + (part + 0.5) * (WIDTH / PARTS);
            squares += (count - kept) * (x * x);
            if (p.rounds && count > 0.0) {
                rounding += double(fresh(fine_errors[first + part])) * (kept / count);
            }
        }
        double share = squares * energy_unit(exponent);
        if (p.rounds) {
            share += rounding * error_unit(exponent, p.sent);
        }
        share = warp_sum(share);
        if (lane == 0) {
            errors[index] = cut.others + share;
        }
    }
}

// Counts the values of the bins that have a slot by the next bits of their keys, in layers where that is wanted; the last
// block of each makes its row.
extern "C" __launch_bounds__(READERS) __global__ void refine(Params p, const Row* rows, const u32* row_of,
                                                             const u32* slots, const u32* wanted, u32* done,
                                                             u32* fine_counts, u64* fine_errors, const Cut* cuts,
                                                             u64* results) {
    for (u32 chunk = blockIdx.x; chunk < p.chunks; chunk += gridDim.x) {
        u32 number = row_of[chunk];
        if (wanted[number] == 0) {
            continue;
        }
        Row row = rows[number];
        const void* values = values_of(row);
        const u32* own_slots = slots + number * BINS;
        u32* own_counts = fine_counts + u64(row.first_keep) * PARTS;
        u64* own_errors = fine_errors + (p.rounds ? u64(row.first_keep) * PARTS : 0);
        u64 start = u64(chunk - row.first_chunk) * CHUNK;
        u64 end = min(start + CHUNK, u64(row.count));
        for (u64 i = start + threadIdx.x * 4; i < end; i += READERS * 4) {
            float four[4];
            u32 here = load4(values, row.dtype, i, row.count, four);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (k >= here) {
                    break;
                }
                u32 key = key_of(bits_of(four[k]));
                u32 slot = own_slots[key >> COARSE];
                if (slot == 0) {
                    continue;
                }
                u32 at = (slot - 1) * PARTS + (key & 0xffffu) / (0x10000u / PARTS);
                atomicAdd(&own_counts[at], 1u);
                if (p.rounds) {
                    atomicAdd(&own_errors[at], squared_error(key, p.sent));
                }
            }
        }
        if (is_last(&done[number], 1, row.chunks)) {
            refined_row(p, row, own_slots, own_counts, own_errors, cuts + row.first_keep,
                        reinterpret_cast<double*>(results + row.results + 1));
        }
    }
}
