// TopK's rows: the energy below the k largest magnitudes, for many k from one pass over the values. If bins are not
// precise enough, a second pass refines them. All layers share three launches.

// A bin is refined if it makes an error uncertain by more than this part of the error.
#define TOLERANCE (1.0 / 16384)
// Number of parts of a refined bin.
#define PARTS 256

// The cut for one k: the bin of the k-th largest value, this value's rank in the bin, and the error from all other
// bins.
struct Cut {
    u32 bin;
    u32 rank;
    double others;
};

// Sums over the bins of each exponent. Later, energies are replaced by the sums over all lower exponents, and errors by
// the sums over all higher ones.
struct Exponents {
    double energies[EXPONENTS];
    double errors[EXPONENTS];
    u32 reached[EXPONENTS + 1];  // number of values with this exponent or a higher one

    __device__ u32 count(u32 exponent) const {
        return reached[exponent] - reached[exponent + 1];
    }
};

// Counts the values that reach each exponent. Called by a warp.
__device__ inline void add_up_totals(const u32* totals, Exponents& exponents) {
    u32 lane = threadIdx.x % 32;
    u32 higher = 0;
#pragma unroll 1
    for (u32 turn = 0; turn < EXPONENTS; turn += 32) {
        u32 sum = warp_scan(turn + lane < EXPONENTS ? totals[EXPONENTS - 1 - turn - lane] : 0);
        if (turn + lane < EXPONENTS) {
            exponents.reached[EXPONENTS - 1 - turn - lane] = higher + sum;
        }
        higher += __shfl_sync(FULL, sum, 31);
    }
    if (lane == 0) {
        exponents.reached[EXPONENTS] = 0;
    }
}

// Replaces each number by the sum of those before it or, with `from_last`, after it. Called by a warp.
__device__ inline void add_up_others(double* numbers, bool from_last) {
    u32 lane = threadIdx.x % 32;
    double before = 0.0;
#pragma unroll 1
    for (u32 turn = 0; turn < EXPONENTS; turn += 32) {
        u32 place = turn + lane;
        u32 at = from_last ? EXPONENTS - 1 - place : place;
        double sum = warp_scan(place < EXPONENTS ? numbers[at] : 0.0);
        double own = __shfl_up_sync(FULL, sum, 1);
        if (place < EXPONENTS) {
            numbers[at] = before + (lane == 0 ? 0.0 : own);
        }
        before += __shfl_sync(FULL, sum, 31);
    }
}

// Loads four consecutive numbers of 8 bytes. Their address is a multiple of 16.
__device__ inline void load_four(const u64* numbers, u64* four) {
    const uint4* pairs = reinterpret_cast<const uint4*>(numbers);
#pragma unroll
    for (u32 pair = 0; pair < 2; pair++) {
        uint4 both = pairs[pair];
        four[2 * pair] = u64(both.y) << 32 | both.x;
        four[2 * pair + 1] = u64(both.w) << 32 | both.z;
    }
}

// A lane's four bins of an exponent. A warp has all bins of the exponent.
struct Four {
    u32 first;  // its first bin
    u32 counts[4];
    double energies[4];
    double errors[4];

    __device__ Four(const Params& p, const Bins& all, u32 exponent) : first(exponent * PER_EXPONENT + threadIdx.x % 32 * 4) {
        uint4 own = *reinterpret_cast<const uint4*>(all.counts + all.first + first);
        counts[0] = own.x;
        counts[1] = own.y;
        counts[2] = own.z;
        counts[3] = own.w;
        u64 lows[4];
        load_four(all.lows + all.first + first, lows);
        u64 sums[4] = {0, 0, 0, 0};
        if (p.rounds) {
            load_four(all.errors + all.first + first, sums);
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            energies[k] = energy_of(first + k, counts[k], lows[k]);
            errors[k] = p.rounds ? double(sums[k]) * error_unit(exponent, p.sent) : 0.0;
        }
    }
};

// The sum over the lanes before this one or, with `of_later`, after it.
template <class T>
__device__ inline T of_others(T own, bool of_later) {
    u32 place = of_later ? 31 - threadIdx.x % 32 : threadIdx.x % 32;
    T sum = own;
    for (u32 reach = 1; reach < 32; reach <<= 1) {
        T other = of_later ? __shfl_down_sync(FULL, sum, reach) : __shfl_up_sync(FULL, sum, reach);
        sum += place >= reach ? other : T(0);
    }
    T others = of_later ? __shfl_down_sync(FULL, sum, 1) : __shfl_up_sync(FULL, sum, 1);
    return place == 0 ? T(0) : others;
}

// Adds up the bins of an exponent that has values. For each k whose cut is in this exponent, finds the bin of the cut,
// and adds up the error from the exponent's other bins. Called by a warp.
__device__ inline void find_cuts(const Params& p, const Bins& all, u32 exponent, const u32* keeps, u32 size,
                                 Exponents& exponents, Cut* cuts) {
    u32 lane = threadIdx.x % 32;
    Four four(p, all, exponent);
    u32 own = four.counts[0] + four.counts[1] + four.counts[2] + four.counts[3];
    double energy = (four.energies[0] + four.energies[1]) + (four.energies[2] + four.energies[3]);
    double error = (four.errors[0] + four.errors[1]) + (four.errors[2] + four.errors[3]);
    u32 above = of_others(own, true);
    double lower = of_others(energy, false);
    double higher = of_others(error, true);
    if (lane == 31) {
        exponents.energies[exponent] = lower + energy;
    }
    if (lane == 0) {
        exponents.errors[exponent] = higher + error;
    }
    u32 reached = exponents.reached[exponent];
    u32 beyond = exponents.reached[exponent + 1];
#pragma unroll 1
    for (u32 turn = 0; turn < size; turn += 32) {
        u32 keep = turn + lane < size ? keeps[turn + lane] : 0;
        for (u32 rest = __ballot_sync(FULL, keep > beyond && keep <= reached); rest != 0; rest &= rest - 1) {
            u32 which = __ffs(rest) - 1;
            u32 rank = __shfl_sync(FULL, keep, which) - beyond;
            if (rank <= above || rank > above + own) {
                continue;
            }
            Cut cut = {PER_EXPONENT * EXPONENTS, rank - above, lower + higher};
#pragma unroll
            for (u32 later = 0; later < 4; later++) {
                u32 k = 3 - later;
                if (cut.bin < PER_EXPONENT * EXPONENTS) {
                    cut.others += four.energies[k];
                } else if (cut.rank <= four.counts[k]) {
                    cut.bin = four.first + k;
                } else {
                    cut.rank -= four.counts[k];
                    cut.others += four.errors[k];
                }
            }
            cuts[turn + which] = cut;
        }
    }
}

// The error from the bin of the cut, estimated from the bin's count and mean, and how far this estimate may be off.
struct Share {
    double value;
    double doubt;

    __device__ Share(const Params& p, const Bins& all, u32 bin, u32 rank) {
        u32 count = all.counts[all.first + bin];
        u32 exponent = bin / PER_EXPONENT;
        value = p.rounds ? double(all.errors[all.first + bin]) * error_unit(exponent, p.sent) : 0.0;
        doubt = 0.0;
        if (rank == count || exponent == 0) {
            return;
        }
        // The mean of the dropped values is between `least` and the mean of all values. It is `least` if all kept
        // values are at the bin's upper end.
        float kept = float(rank) / float(count);
        float part = float(count - rank) / float(count);
        float mean = mean_of(count, all.lows[all.first + bin]);
        float least = max((mean - kept * WIDTH) / part, 0.0f);
        float above = min(max(mean * part, least), mean);
        float x = lower_end(bin) + above;
        double unit = double(count - rank) * energy_unit(exponent);
        value = value * double(kept) + double(x * x + above * above * (1.0f / 3.0f)) * unit;
        doubt = double(2.0f * (lower_end(bin) + WIDTH) * max(mean - above, above - least)) * unit;
        if (p.rounds && coarser(dropped_bits(exponent, p.sent)) > 0) {
            // The rounding error of a single value may be as large as the value.
            doubt = value;
        }
    }
};

// Empties the bins of an exponent for the next rows. Called by a warp.
__device__ inline void empty(const Params& p, const Bins& all, u32 exponent) {
    u32 lane = threadIdx.x % 32;
    u32 first = all.first + exponent * PER_EXPONENT;
    uint4 zeros = uint4{0, 0, 0, 0};
    reinterpret_cast<uint4*>(all.counts + first)[lane] = zeros;
    for (u32 pair = lane; pair < PER_EXPONENT / 2; pair += 32) {
        reinterpret_cast<uint4*>(all.lows + first)[pair] = zeros;
        if (p.rounds) {
            reinterpret_cast<uint4*>(all.errors + first)[pair] = zeros;
        }
    }
    if (lane == 0) {
        all.totals()[exponent] = 0;
    }
}

// Finds the bin of each k, and k's error unless this bin must be refined. Launched with one block per layer; each warp
// takes one exponent at a time. If a bin must be refined, wanted[layer] becomes 1. slots[bin] becomes one more than the
// number of a k whose cut is in the bin. All bins are empty afterwards. Bins of exponents without values are not
// accessed.
extern "C" __launch_bounds__(BLOCK) __global__ void choose(Params p, const Row* rows, const u32* all_keeps, u32* counts,
                                                           u64* lows, u64* all_errors, u32* all_slots, u32* wanted,
                                                           Cut* all_cuts, u64* results) {
    __shared__ Exponents exponents;
    const Row& row = rows[blockIdx.x];
    Bins all = {counts, lows, all_errors, blockIdx.x * PLACES};
    const u32* keeps = all_keeps + row.first_keep;
    Cut* cuts = all_cuts + row.first_keep;
    u32 warp = threadIdx.x / 32;
    if (warp == 0) {
        add_up_totals(all.totals(), exponents);
    }
    __syncthreads();
#pragma unroll 1
    for (u32 exponent = warp; exponent < EXPONENTS; exponent += WARPS) {
        if (exponents.count(exponent) != 0) {
            find_cuts(p, all, exponent, keeps, row.keeps, exponents, cuts);
        } else if (threadIdx.x % 32 == 0) {
            exponents.energies[exponent] = 0.0;
            exponents.errors[exponent] = 0.0;
        }
    }
    __syncthreads();
    if (warp < 2) {
        add_up_others(warp == 0 ? exponents.energies : exponents.errors, warp == 1);
    }
    __syncthreads();
    double* errors = reinterpret_cast<double*>(results + row.results + 1);
    for (u32 index = threadIdx.x; index < row.keeps; index += BLOCK) {
        Cut cut = cuts[index];
        u32 exponent = cut.bin / PER_EXPONENT;
        cut.others += exponents.energies[exponent] + exponents.errors[exponent];
        cuts[index].others = cut.others;
        Share share(p, all, cut.bin, cut.rank);
        errors[index] = cut.others + share.value;
        if (share.doubt > TOLERANCE * errors[index]) {
            atomicMax(&all_slots[all.first + cut.bin], index + 1);
            atomicMax(&wanted[blockIdx.x], 1u);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (u32 exponent = warp; exponent < EXPONENTS; exponent += WARPS) {
        if (exponents.count(exponent) != 0) {
            empty(p, all, exponent);
        }
    }
}

// Finds the count that contains the value of rank `rank`. Ranks begin in the last of the `size` counts. Sets `rank` to
// the value's rank within this count. Called by a warp.
__device__ inline u32 find(const u32* counts, u32 size, u32& rank) {
    u32 lane = threadIdx.x % 32;
    for (u32 end = size;; end -= 32) {
        u32 own = lane < end ? fresh(counts[end - 1 - lane]) : 0;
        u32 sum = warp_scan(own);
        u32 reached = __ballot_sync(FULL, sum >= rank);
        if (reached != 0 || end <= 32) {
            u32 first = min(u32(__ffs(reached)) - 1, end - 1);
            rank -= __shfl_sync(FULL, sum - own, first);
            return end - 1 - first;
        }
        rank -= __shfl_sync(FULL, sum, 31);
    }
}

// Writes the errors of those k whose bins were refined. Called by all READERS threads of a block.
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
            // The middle of a part. Parts are 2^-15 wide.
            double x = double(lower_end(cut.bin)) + (part + 0.5) * (WIDTH / PARTS);
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

// Empties refined bins for the next rows. Called by all READERS threads of a block.
__device__ inline void forget_refined(const Params& p, const Row& row, u32* slots, u32* fine_counts, u64* fine_errors,
                                      const Cut* cuts) {
    u32 lane = threadIdx.x % 32;
    for (u32 index = threadIdx.x / 32; index < row.keeps; index += READERS / 32) {
        for (u32 part = lane; slots[cuts[index].bin] == index + 1 && part < PARTS; part += 32) {
            fine_counts[index * PARTS + part] = 0;
            if (p.rounds) {
                fine_errors[index * PARTS + part] = 0;
            }
        }
    }
    __syncthreads();
    for (u32 index = threadIdx.x; index < row.keeps; index += READERS) {
        // Several k may have their cuts in the same bin.
        atomicExch(&slots[cuts[index].bin], 0u);
    }
}

// Counts the values of refined bins by the next bits of their keys. Skips layers without such bins. The last block of a
// layer writes its errors.
extern "C" __launch_bounds__(READERS) __global__ void refine(Params p, const Row* rows, const u32* row_of,
                                                             u32* slots, u32* wanted, u32* done,
                                                             u32* fine_counts, u64* fine_errors, const Cut* cuts,
                                                             u64* results) {
    for (u32 chunk = blockIdx.x; chunk < p.chunks; chunk += gridDim.x) {
        u32 number = row_of[chunk];
        if (wanted[number] == 0) {
            continue;
        }
        Row row = rows[number];
        const void* values = values_of(row);
        u32* own_slots = slots + number * PLACES;
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
            __syncthreads();
            forget_refined(p, row, own_slots, own_counts, own_errors, cuts + row.first_keep);
            if (threadIdx.x == 0) {
                wanted[number] = 0;
            }
        }
    }
}
