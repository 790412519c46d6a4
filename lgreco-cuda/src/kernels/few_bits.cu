// TopK in few bits: the bins of what is kept and their means, all in integers, as in
// lgreco_core::compress::quantised_topk.

// Most bins of a layer: those of 8 bits.
#define CODE_BINS 128

// Sums of the magnitudes in each bin, in units that `BinUnits` tells of, and their means.
struct Few {
    u64 sums[CODE_BINS];  // by `BinUnits::slot`, as `counts` are
    u32 exponents[CODE_BINS];
    u32 counts[CODE_BINS];
    u32 means[CODE_BINS];
};

// The range of magnitudes that a layer's bins divide evenly.
struct CodeBins {
    u32 low;
    u32 span;
    u32 log_count;

    __device__ CodeBins(const Top& top, const Cut& cut)
        : low(cut.low), span(cut.high - cut.low + 1), log_count(top.bits - 1) {}

    // Zeros, which `low` leaves out, are taken for it: they are in the first bin. Above the range are only values that were
    // written to meanwhile.
    __device__ u32 of(u32 magnitude) const {
        u64 bin = (u64(magnitude - min(magnitude, low)) << log_count) / span;
        return u32(min(bin, (1ull << log_count) - 1));
    }
};

// Numbers below the normal ones have the least normal ones' exponent.
__device__ inline u32 exponent_of(u32 magnitude) {
    return max(magnitude >> 23, 1u);
}

// A magnitude in units of 2^-31 of the power of two that the exponent is of, rounded down.
__device__ inline u64 digits_of(u32 magnitude, u32 exponent) {
    u32 implied = magnitude >> 23 > 0 ? 1u << 23 : 0;
    u32 shift = exponent - exponent_of(magnitude);
    return shift < 32 ? (magnitude & 0x007fffffu | implied) << 8 >> shift : 0;
}

// The bits of digits * 2^(exponent - 158), rounded down.
__device__ inline u32 float_of(u32 digits, u32 exponent) {
    if (digits == 0) {
        return 0;
    }
    u32 highest = 31 - __clz(digits);
    if (exponent + highest > 31) {
        u32 mantissa = highest >= 23 ? digits >> (highest - 23) : digits << (23 - highest);
        return (exponent + highest - 31) << 23 | (mantissa & 0x007fffffu);
    }
    return exponent <= 9 ? digits >> (9 - exponent) : digits << (exponent - 9);
}

// What sums of a layer's bins are in units of, which must not depend on who adds them up. At last they are those of the bin's
// largest magnitude, to which magnitudes are rounded down one by one. A single bin's is the layer's. Where bins span few powers
// of two, units of the least magnitude that a bin may have do until the largest is known: all its magnitudes are integers in them.
// Where they span many, of which there are 32 at most, each is added up in the units of several powers of two, the largest one
// that a bin may have and those below it.
struct BinUnits {
    // Powers of two that digits of magnitudes have room for.
    static const u32 ROOM = 8;
    static const u32 GUESSES = CODE_BINS / 32;
    CodeBins bins;

    // Whether magnitudes may be added up before it is known which is their bin's largest.
    __device__ bool at_once() const {
        return bins.log_count == 0 || bins.span >> bins.log_count < (ROOM - 1) << 23;
    }

    __device__ u32 least_exponent(u32 bin) const {
        return exponent_of(bins.low + u32((u64(bin) * bins.span) >> bins.log_count));
    }

    __device__ u32 most_exponent(u32 bin) const {
        return exponent_of(bins.low + u32(((bin + 1ull) * bins.span - 1) >> bins.log_count));
    }

    // Where a bin's count is, and its sum or the first of them.
    __device__ u32 slot(u32 bin) const {
        return at_once() ? bin : bin * GUESSES;
    }

    // Whether the exponent of a bin's largest magnitude is none of those that it is added up for.
    __device__ bool is_missed(u32 bin, u32 exponent) const {
        return !at_once() && exponent != 0 && exponent + GUESSES <= most_exponent(bin);
    }

    // What a magnitude other than 0 adds where bins span few powers of two.
    __device__ u64 first_digits(u32 magnitude, u32 bin) const {
        if (bins.log_count == 0) {
            return digits_of(magnitude, exponent_of(bins.low + bins.span - 1));
        }
        u32 exponent = exponent_of(magnitude);
        return digits_of(magnitude, exponent) >> ROOM << (exponent - least_exponent(bin));
    }

    // A sum of these, once the exponent of the bin's largest magnitude is known.
    __device__ u64 last_digits(u64 sum, u32 bin, u32 exponent) const {
        return bins.log_count == 0 ? sum : sum << (ROOM - (exponent - least_exponent(bin)));
    }
};

// What a block has added up of a layer's bins.
struct BinSums {
    u64 sums[CODE_BINS];
    u32 exponents[CODE_BINS];  // of each bin's largest magnitude
    u32 counts[CODE_BINS];

    __device__ void clear() {
        if (threadIdx.x < CODE_BINS) {
            sums[threadIdx.x] = 0;
            exponents[threadIdx.x] = 0;
            counts[threadIdx.x] = 0;
        }
        __syncthreads();
    }

    // A magnitude from the cut on, at which one is kept at least. It is known later how many of those there are.
    __device__ void add(const BinUnits& units, u32 magnitude, u32 cut) {
        if (magnitude < cut) {
            return;
        }
        u32 bin = units.bins.of(magnitude);
        u32 exponent = exponent_of(magnitude);
        atomicMax(&exponents[bin], exponent);
        if (magnitude == cut) {
            return;
        }
        u32 slot = units.slot(bin);
        atomicAdd(&counts[slot], 1u);
        if (units.at_once()) {
            atomicAdd(&sums[slot], units.first_digits(magnitude, bin));
            return;
        }
        u32 most = units.most_exponent(bin);
        for (u32 guess = 0; guess < BinUnits::GUESSES && exponent + guess <= most; guess++) {
            atomicAdd(&sums[slot + guess], digits_of(magnitude, most - guess));
        }
    }

    // Gives it away. All threads of the block must come.
    __device__ void give(Few* few) {
        __syncthreads();
        u32 at = threadIdx.x;
        if (at < CODE_BINS) {
            if (exponents[at] != 0) {
                atomicMax(&few->exponents[at], exponents[at]);
            }
            if (sums[at] != 0) {
                atomicAdd(&few->sums[at], sums[at]);
            }
            if (counts[at] != 0) {
                atomicAdd(&few->counts[at], counts[at]);
            }
        }
        clear();
    }
};

// The means of a layer's bins, with those at the cut that are kept, to `few` and the payload, by the last block. Sums begin anew.
__device__ inline void make_means(const Top& top, const Cut& cut, const BinUnits& units, Few* few, u32* words) {
    u32 bin = threadIdx.x;
    if (bin >= 1u << units.bins.log_count) {
        return;
    }
    u32 exponent = atomicExch(&few->exponents[bin], 0u);
    u32 slot = units.slot(bin);
    u64 sum = atomicExch(&few->sums[slot], 0ull);
    u32 count = atomicExch(&few->counts[slot], 0u);
    if (units.at_once()) {
        sum = count != 0 ? units.last_digits(sum, bin, exponent) : 0;
    } else {
        // Where none is the exponent's, the first is made anew.
        u32 guess = units.is_missed(bin, exponent) ? 0 : units.most_exponent(bin) - exponent;
        for (u32 other = 1; other < BinUnits::GUESSES; other++) {
            u64 another = atomicExch(&few->sums[slot + other], 0ull);
            sum = other == guess ? another : sum;
        }
    }
    if (bin == units.bins.of(cut.prefix)) {
        sum += digits_of(cut.prefix, exponent) * cut.rank;
        count += cut.rank;
    }
    u32 mean = count == 0 ? 0 : float_of(u32(sum / count), exponent);
    few->means[bin] = mean;
    words[HEADER / 4 + bin] = mean;
}
