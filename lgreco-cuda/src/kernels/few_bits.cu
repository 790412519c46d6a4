// TopK in few bits: bins of the kept values and the bins' means, all in integers, as in
// lgreco_compress::quantised_topk.

// Largest number of bins, for 8 bits.
#define CODE_BINS 128

// Sums of the magnitudes in each bin, and their means. `BinUnits` has the units.
struct Few {
    u64 sums[CODE_BINS];  // indexed by `BinUnits::slot`, like `counts`
    u32 exponents[CODE_BINS];
    u32 counts[CODE_BINS];
    u32 means[CODE_BINS];
};

// Bins of equal width, which divide a layer's range of kept magnitudes.
struct CodeBins {
    u32 low;
    u32 span;
    u32 log_count;

    __device__ CodeBins(const Top& top, const Cut& cut)
        : low(cut.low), span(cut.high - cut.low + 1), log_count(top.bits - 1) {}

    // Zeros are below `low` and belong to the first bin. A value can be above the range only if the caller has changed
    // it since.
    __device__ u32 of(u32 magnitude) const {
        u64 bin = (u64(magnitude - min(magnitude, low)) << log_count) / span;
        return u32(min(bin, (1ull << log_count) - 1));
    }
};

// The exponent field of a magnitude. Subnormal numbers get the exponent field of the smallest normal numbers.
__device__ inline u32 exponent_of(u32 magnitude) {
    return max(magnitude >> 23, 1u);
}

// A magnitude in units of 2^(exponent - 158), rounded down. `exponent` is an exponent field.
__device__ inline u64 digits_of(u32 magnitude, u32 exponent) {
    u32 implied = magnitude >> 23 > 0 ? 1u << 23 : 0;
    u32 shift = exponent - exponent_of(magnitude);
    return shift < 32 ? (magnitude & 0x007fffffu | implied) << 8 >> shift : 0;
}

// The bits of digits * 2^(exponent - 158), rounded down to f32.
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

// Units for the sums of a layer's bins. They must not depend on which block adds which values. In the final sum of a
// bin, each magnitude is rounded down to the unit for the exponent of the bin's largest magnitude. This exponent is not
// known in advance, except for a single bin, whose range is that of the layer.
// * If bins span few powers of two, sums begin in the unit of the smallest magnitude that the bin may have. All
//   magnitudes of the bin are integers in this unit.
// * Otherwise, there are at most 32 bins. Each bin has GUESSES sums: one in the unit for the largest exponent that the
//   bin may have, and others in the units for the next smaller exponents.
struct BinUnits {
    // Number of powers of two that the digits of magnitudes can span.
    static const u32 ROOM = 8;
    // Number of sums of a bin, if bins span many powers of two.
    static const u32 GUESSES = CODE_BINS / 32;
    CodeBins bins;

    // Whether one sum per bin suffices, although the exponent of its largest magnitude is not known yet.
    __device__ bool at_once() const {
        return bins.log_count == 0 || bins.span >> bins.log_count < (ROOM - 1) << 23;
    }

    __device__ u32 least_exponent(u32 bin) const {
        return exponent_of(bins.low + u32((u64(bin) * bins.span) >> bins.log_count));
    }

    __device__ u32 most_exponent(u32 bin) const {
        return exponent_of(bins.low + u32(((bin + 1ull) * bins.span - 1) >> bins.log_count));
    }

    // The index of a bin's count, and of its only or first sum.
    __device__ u32 slot(u32 bin) const {
        return at_once() ? bin : bin * GUESSES;
    }

    // Whether the bin has no sum for its largest magnitude's exponent.
    __device__ bool is_missed(u32 bin, u32 exponent) const {
        return !at_once() && exponent != 0 && exponent + GUESSES <= most_exponent(bin);
    }

    // The amount that a nonzero magnitude adds to its bin's sum, if one sum suffices.
    __device__ u64 first_digits(u32 magnitude, u32 bin) const {
        if (bins.log_count == 0) {
            return digits_of(magnitude, exponent_of(bins.low + bins.span - 1));
        }
        u32 exponent = exponent_of(magnitude);
        return digits_of(magnitude, exponent) >> ROOM << (exponent - least_exponent(bin));
    }

    // Converts a sum of `first_digits` to the final unit, once the exponent of the bin's largest magnitude is known.
    __device__ u64 last_digits(u64 sum, u32 bin, u32 exponent) const {
        return bins.log_count == 0 ? sum : sum << (ROOM - (exponent - least_exponent(bin)));
    }
};

// The sums of a block for a layer's bins.
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

    // Adds a magnitude, unless it is below the cut. If it equals the cut, only its exponent counts here: at least one
    // such value is kept, but how many is known only later.
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

    // Adds the block's sums to those in device memory, and sets its own to 0. All threads of the block must call it.
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

// Writes the means of a layer's bins to `few` and to the payload. Kept values that equal the cut are included. Sets the
// sums to 0. Called by the last block.
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
        // If there was no sum for this exponent, `add_missed` has replaced the first sum.
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
