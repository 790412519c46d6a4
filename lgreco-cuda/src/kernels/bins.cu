// TopK's bins: for each bin of magnitudes, the number of values, their sum, and the errors of rounding them.
//
// Magnitudes are replaced by keys, which have the same order. A key has an exponent for every binade, including those
// of subnormal numbers. A bin is a key's exponent and the upper 7 bits of its significand. All sums over values are
// sums of integers, so the order of additions does not matter.

struct Params {
    u32 sent;    // type of the values in the payload
    u32 rounds;  // whether that type changes values
    u32 chunks;  // number of chunks of all layers
};

// A layer whose row is measured.
struct Row {
    u64 values;   // address of its values
    u64 results;  // index of its results: the bits of the largest magnitude, then an error for each k
    u32 dtype;
    u32 count;
    u32 first_chunk;  // number of its first chunk among the chunks of all layers
    u32 chunks;
    u32 first_keep;  // index of its first k among the k of all layers
    u32 keeps;  // number of its k
};

__device__ inline const void* values_of(const Row& row) {
    const void* values = reinterpret_cast<const void*>(row.values);
    // The compiler does not know that this address, loaded from memory, is in global memory.
    __builtin_assume(__isGlobal(values));
    return values;
}

#define FRACTION_BITS 23
#define FRACTION 0x007fffffu
// Bits of a key below its bin.
#define COARSE 16
#define EXPONENTS 280
#define PER_EXPONENT 128
#define BINS (EXPONENTS * PER_EXPONENT)
// Elements of a layer in each array of `Bins`: one per bin, then one per exponent.
#define PLACES (BINS + EXPONENTS)
#define WIDTH (1.0f / PER_EXPONENT)
// Number of a key's lowest bits that sums leave out.
#define UNSUMMED 4
#define READERS 1024
#define CHUNK (READERS * 32)
// Largest number of chunks that a block adds up before it empties its shared memory. So no sum overflows.
#define TURNS 32
#define ROOM 8192

// The key of a magnitude.
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

// Number of significand bits that rounding to the type `sent` drops. `exponent` is that of the key.
__device__ inline u32 dropped_bits(u32 exponent, u32 sent) {
    int wanted = sent == 1 ? max(149 - int(exponent), 13) : max(40 - int(exponent), 16);
    return u32(min(wanted, 25));
}

// If sending drops more than 17 bits, squares of errors would overflow their sums. So the unit of such errors is
// coarser, by this number of bits.
__device__ inline u32 coarser(u32 dropped) {
    return dropped > 17 ? dropped - 17 : 0;
}

// The squared rounding error of a key, in units of `error_unit`.
__device__ inline u64 squared_error(u32 key, u32 sent) {
    u32 dropped = dropped_bits(key >> FRACTION_BITS, sent);
    u32 significand = (key & FRACTION) | (FRACTION + 1);
    u32 unit = 1u << dropped;
    u32 part = significand & (unit - 1);
    bool up = part > unit / 2 || (part == unit / 2 && (significand & unit) != 0);
    u32 error = up ? unit - part : part;
    u32 shift = coarser(dropped);
    if (shift != 0) {
        error = (error + (1u << shift >> 1)) >> shift;
    }
    return u64(error) * error;
}

// The unit of `squared_error` for keys of this exponent.
__device__ inline double error_unit(u32 exponent, u32 sent) {
    return power_of_two(2 * (int(exponent) - 173 + int(coarser(dropped_bits(exponent, sent)))));
}

// The unit of energies. In this unit, the energy of a value is the square of its significand, which is in [1, 2).
__device__ inline double energy_unit(u32 exponent) {
    return exponent == 0 ? 0.0 : power_of_two(2 * (int(exponent) - 150));
}

// Statistics of a layer's bins. The arrays have those of all layers, one after another.
struct Bins {
    u32* counts;  // number of values in each bin, then number for each exponent
    u64* lows;    // for each bin, sum of the upper 12 of the 16 key bits below the bin
    u64* errors;  // for each bin, sum of squared errors; only if values are rounded
    u32 first;    // index of the layer's first element in each array

    __device__ u32* totals() const {
        return counts + first + BINS;
    }
};

// 1 / x with a relative error below 2^-21, for a count x. Newton's method needs less code than a division, which also
// handles very large numbers.
__device__ inline float reciprocal(float x) {
    float y = __uint_as_float(0x7ef311c3u - __float_as_uint(x));
#pragma unroll
    for (u32 step = 0; step < 3; step++) {
        y *= 2.0f - x * y;
    }
    return y;
}

// Distance of a bin's mean from the bin's lower end. Both are significands.
__device__ inline float mean_of(u32 count, u64 low) {
    return float(low) * reciprocal(float(count)) * (1.0f / (1 << (FRACTION_BITS - UNSUMMED)));
}

__device__ inline float lower_end(u32 bin) {
    return 1.0f + bin % PER_EXPONENT * WIDTH;
}

// The energy of a bin. The variance of its values is between 0 and mean * (WIDTH - mean), where the mean is relative to
// the bin's lower end. A third of the upper limit is right for evenly spread values. For other values, the relative
// error of the energy is at most 2/3 * 2^-16. Computing in f32 adds a smaller error, and is much cheaper than f64 on
// most GPUs.
__device__ inline double energy_of(u32 bin, u32 count, u64 low) {
    if (count == 0) {
        return 0.0;
    }
    float above = mean_of(count, low);
    float x = lower_end(bin) + above;
    float spread = above * max(WIDTH - above, 0.0f) * (1.0f / 3.0f);
    return double(float(count) * (x * x + spread)) * energy_unit(bin / PER_EXPONENT);
}

__device__ inline u32 bits_of(float value) {
    return __float_as_uint(value) & MAGNITUDE;
}

// Adds to a bin in device memory.
template <bool ERRORS>
__device__ inline void give(const Bins& all, u32 bin, u32 count, u32 low, u64 error) {
    atomicAdd(&all.counts[all.first + bin], count);
    atomicAdd(&all.lows[all.first + bin], u64(low));
    if (ERRORS && error != 0) {
        atomicAdd(&all.errors[all.first + bin], error);
    }
}

// Bins in shared memory: those around the largest exponent of the block's first values. Subnormal numbers have no bins
// here. Other values are rare, and are added to device memory directly.
//
// Without errors, a bin's count and its sum share a word, so that a value takes one atomic. Each half of the block has
// its own words. A thread that finds HELD values in a word empties it before it adds another value. So a word has at
// most HELD + READERS / 2 = 1023 values, and their sum is below 2^22.
template <bool ERRORS>
struct Window {
    static const u32 SIZE = ROOM / (ERRORS ? 4 : 2);
    static const u32 SUM_BITS = 22;
    static const u32 HELD = 1023 - READERS / 2;

    u32* room;
    u32 bottom;

    __device__ Window(u32* shared, u32 largest_key) : room(shared) {
        u32 top = ((largest_key >> FRACTION_BITS) + 2) * PER_EXPONENT;
        bottom = max(top, 24 * PER_EXPONENT + SIZE) - SIZE;
    }

    // Adds a value to its bin, unless it is 0. Returns whether it is 0.
    __device__ bool add(const Params& p, const Bins& all, u32 magnitude) {
        if (!ERRORS) {
            return add_exact(all, magnitude);
        }
        u32 key = magnitude + (23u << FRACTION_BITS);
        u32 at = (key >> COARSE) - bottom;
        if (at < SIZE) {
            atomicAdd(&room[at], 1u);
            atomicAdd(&room[SIZE + at], low_of(key));
            add_error(at, squared_error(key, p.sent));
            return false;
        }
        key = key_of(magnitude);
        if (key != 0) {
            give<true>(all, key >> COARSE, 1, low_of(key), squared_error(key, p.sent));
            atomicAdd(&all.totals()[key >> FRACTION_BITS], 1u);
        }
        return key == 0;
    }

    __device__ bool add_exact(const Bins& all, u32 magnitude) {
        u32 key = magnitude + (23u << FRACTION_BITS);
        u32 at = (key >> COARSE) - bottom;
        u32 count = 1;
        u32 low = low_of(key);
        if (at < SIZE) {
            u32* word = &room[threadIdx.x / (READERS / 2) * SIZE + at];
            if (atomicAdd(word, 1u << SUM_BITS | low) < HELD << SUM_BITS) {
                return false;
            }
            u32 both = atomicExch(word, 0u);
            count = both >> SUM_BITS;
            low = both & ((1u << SUM_BITS) - 1);
        } else {
            key = key_of(magnitude);
            if (key == 0) {
                return true;
            }
            low = low_of(key);
        }
        give<false>(all, key >> COARSE, count, low, 0);
        atomicAdd(&all.totals()[key >> FRACTION_BITS], count);
        return false;
    }

    __device__ static u32 low_of(u32 key) {
        return (key & 0xffffu) >> UNSUMMED;
    }

    __device__ void add_error(u32 at, u64 error) {
        if (error == 0) {
            return;
        }
        u32 before = atomicAdd(&room[2 * SIZE + at], u32(error));
        u32 upper = u32(error >> 32) + (before + u32(error) < before ? 1 : 0);
        if (upper != 0) {
            atomicAdd(&room[3 * SIZE + at], upper);
        }
    }

    // Adds all bins to those in device memory. Each warp takes one exponent at a time.
    __device__ void give_all(const Bins& all) {
        u32 lane = threadIdx.x % 32;
        for (u32 first = threadIdx.x / 32 * PER_EXPONENT; first < SIZE; first += READERS / 32 * PER_EXPONENT) {
            u32 total = 0;
#pragma unroll
            for (u32 part = 0; part < PER_EXPONENT; part += 32) {
                u32 at = first + part + lane;
                u32 sums = (1u << SUM_BITS) - 1;
                u32 count = ERRORS ? room[at] : (room[at] >> SUM_BITS) + (room[SIZE + at] >> SUM_BITS);
                if (count != 0) {
                    u32 low = ERRORS ? room[SIZE + at] : (room[at] & sums) + (room[SIZE + at] & sums);
                    u64 error = ERRORS ? u64(room[3 * SIZE + at]) << 32 | room[2 * SIZE + at] : 0;
                    give<ERRORS>(all, bottom + at, count, low, error);
                    total += count;
                }
            }
            total = warp_sum(total);
            if (lane == 0 && total != 0) {
                atomicAdd(&all.totals()[(bottom + first) / PER_EXPONENT], total);
            }
        }
    }
};

struct Shared {
    u32 room[ROOM];
    u32 seen;  // key of the largest magnitude in the block's first values
    u32 largest;
    u32 zeros;
};

// Fills a layer's bins with the values of chunks `chunk` to `end`, at most TURNS chunks. Sets the first result to the
// maximum of itself and the largest magnitude. All READERS threads of the block must call it.
template <bool ERRORS>
__device__ inline void fill_bins(const Params& p, const Row& row, u32 chunk, u32 end, const Bins& all, u64* results,
                                 Shared& shared) {
    if (threadIdx.x == 0) {
        shared.seen = 0;
        shared.largest = 0;
        shared.zeros = 0;
    }
    for (u32 i = threadIdx.x; i < ROOM; i += READERS) {
        shared.room[i] = 0;
    }
    __syncthreads();
    const void* values = values_of(row);
    u64 start = u64(chunk - row.first_chunk) * CHUNK;
    u32 found = 0;
    if (start + threadIdx.x * 4 < row.count) {
        float four[4];
        load4(values, row.dtype, start + threadIdx.x * 4, row.count, four);
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
    Window<ERRORS> window(shared.room, shared.seen);
    u32 best = 0;
    u32 none = 0;
    for (; chunk < end; chunk++) {
        u32 begin = (chunk - row.first_chunk) * CHUNK;
        u32 left = min(row.count - begin, u32(CHUNK));
        // Number of values that are loaded in groups of four, without checks for the end.
        u32 whole = row.dtype == 0 && reinterpret_cast<u64>(values) % 16 == 0 ? left / 4 * 4 : 0;
        for (u32 i = threadIdx.x * 4; i < left; i += READERS * 4) {
            float four[4];
            if (i < whole) {
                uint4 bits = static_cast<const uint4*>(values)[(begin + i) / 4];
                four[0] = __uint_as_float(bits.x);
                four[1] = __uint_as_float(bits.y);
                four[2] = __uint_as_float(bits.z);
                four[3] = __uint_as_float(bits.w);
            } else if (row.dtype != 0) {
                // Missing values are loaded as zeros. `window.add` counts them, so they are subtracted here.
                none -= 4 - load4(values, row.dtype, begin + i, row.count, four);
            } else {
                u32 here = min(left - i, 4u);
                none -= 4 - here;
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    four[k] = k < here ? static_cast<const float*>(values)[begin + i + k] : 0.0f;
                }
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                best = max(best, bits_of(four[k]));
                none += window.add(p, all, bits_of(four[k])) ? 1 : 0;
            }
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
        atomicMax(reinterpret_cast<u32*>(results + row.results), shared.largest);
        if (shared.zeros != 0) {
            atomicAdd(&all.counts[all.first], shared.zeros);
            atomicAdd(&all.totals()[0], shared.zeros);
        }
    }
}

// Fills the bins of all layers.
template <bool ERRORS>
__device__ inline void count(const Params& p, const Row* rows, const u32* row_of, u32* counts, u64* lows, u64* errors,
                             u64* results, Shared& shared) {
    u32 end = share(p.chunks, blockIdx.x + 1);
    for (u32 chunk = share(p.chunks, blockIdx.x); chunk < end;) {
        u32 number = row_of[chunk];
        const Row& row = rows[number];
        Bins all = {counts, lows, errors, number * PLACES};
        u32 stop = min(min(end, row.first_chunk + row.chunks), chunk + TURNS);
        fill_bins<ERRORS>(p, row, chunk, stop, all, results, shared);
        // The next layer's bins reuse the shared memory.
        __syncthreads();
        chunk = stop;
    }
}

// Fills the bins of layers whose values are sent unchanged.
extern "C" __launch_bounds__(READERS, 2) __global__ void count_exact(Params p, const Row* rows, const u32* row_of,
                                                                     u32* counts, u64* lows, u64* errors,
                                                                     u64* results) {
    __shared__ Shared shared;
    count<false>(p, rows, row_of, counts, lows, errors, results, shared);
}

// Fills the bins of layers whose values are rounded before they are sent.
extern "C" __launch_bounds__(READERS, 2) __global__ void count_rounded(Params p, const Row* rows, const u32* row_of,
                                                                       u32* counts, u64* lows, u64* errors,
                                                                       u64* results) {
    __shared__ Shared shared;
    count<true>(p, rows, row_of, counts, lows, errors, results, shared);
}
