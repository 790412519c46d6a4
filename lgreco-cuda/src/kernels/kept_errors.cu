// Rows of the error table for TopK in few bits: the errors of sending bin means for the k largest values. Many k and
// all numbers of bits are measured at once.
//
// Values are counted in the bins of 8 bits. Pairs of bins are then joined, which gives the bins of fewer bits. The
// number of magnitudes in a bin of 8 bits, their sum, and the sum of their squares are integers. So no precision is
// lost, even if magnitudes are close together.

#define MOST_BITS 8

// Sums over the magnitudes of each bin. Magnitudes are in units of 2^(e - 31), where 2^e is the largest power of two
// that is not above the start of the next bin. A bin spans at most three powers of two, so no digit is lost.
struct BinSquares {
    u64 sums[CODE_BINS];
    u64 lows[CODE_BINS];  // sums of the lower halves of squares
    u64 highs[CODE_BINS];  // sums of their upper halves
    u32 counts[CODE_BINS];

    __device__ void clear() {
        if (threadIdx.x < CODE_BINS) {
            sums[threadIdx.x] = 0;
            lows[threadIdx.x] = 0;
            highs[threadIdx.x] = 0;
            counts[threadIdx.x] = 0;
        }
        __syncthreads();
    }

    __device__ void add(u32 bin, u64 digits) {
        u64 square = digits * digits;
        atomicAdd(&sums[bin], digits);
        atomicAdd(&lows[bin], square & 0xffffffffu);
        atomicAdd(&highs[bin], square >> 32);
        atomicAdd(&counts[bin], 1u);
    }

    // Adds the block's sums to those in device memory, and sets its own to 0. All threads of the block must call it.
    __device__ void give(BinSquares* all) {
        __syncthreads();
        u32 bin = threadIdx.x;
        if (bin < CODE_BINS && counts[bin] != 0) {
            atomicAdd(&all->sums[bin], sums[bin]);
            atomicAdd(&all->lows[bin], lows[bin]);
            atomicAdd(&all->highs[bin], highs[bin]);
            atomicAdd(&all->counts[bin], counts[bin]);
        }
        clear();
    }
};

// Statistics of numbers that are replaced by their mean. `squares` is the sum of squared distances from the mean.
struct Spread {
    double count;
    double mean;
    double squares;
};

// The statistics from sums over `count` digits, at least one. `low` and `high` are the sums of the squares' halves.
__device__ inline Spread spread_of(u32 count, u64 sum, u64 low, u64 high, u32 exponent) {
    u64 whole = sum / count;
    u64 rest = sum % count;
    // The sum of squared distances from `whole` is the sum of squares minus whole * (sum + rest).
    high += low >> 32;
    u64 lower = high << 32 | (low & 0xffffffffu);
    u64 upper = high >> 32;
    u64 less = whole * (sum + rest);
    upper -= __umul64hi(whole, sum + rest) + (lower < less);
    lower -= less;
    double unit = __longlong_as_double(u64(1023 + int(exponent) - 158) << 52);
    double part = double(rest) / double(count);
    double squares = double(upper) * 18446744073709551616.0 + double(lower) - double(rest) * part;
    return Spread{double(count), (double(whole) + part) * unit, squares * unit * unit};
}

// The statistics of the union of two sets (Chan, Golub and LeVeque, 1979).
__device__ inline Spread joined(const Spread& a, const Spread& b) {
    if (a.count == 0.0 || b.count == 0.0) {
        return a.count == 0.0 ? b : a;
    }
    double count = a.count + b.count;
    double apart = b.mean - a.mean;
    double share = b.count / count;
    return Spread{count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
}

// The squared error if the mean, rounded down to f32, is sent for each number.
__device__ inline double cost_of(const Spread& spread) {
    float sent = float(spread.mean);
    if (double(sent) > spread.mean) {
        sent = __uint_as_float(__float_as_uint(sent) - 1);
    }
    double off = spread.mean - double(sent);
    return spread.squares + spread.count * off * off;
}

// Writes the errors of one k for each number of bits. All threads of the block must call it.
__device__ static inline void write_costs(const Cut& cut, const BinUnits& units, const BinSquares* squares, double* errors) {
    __shared__ Spread spreads[CODE_BINS];
    u32 bin = threadIdx.x;
    if (bin < CODE_BINS) {
        u32 count = fresh(squares->counts[bin]);
        u64 sum = fresh(squares->sums[bin]);
        u64 low = fresh(squares->lows[bin]);
        u64 high = fresh(squares->highs[bin]);
        u32 exponent = units.least_exponent(bin + 1);
        if (bin == 0) {
            // Adds the kept values that equal the cut. They are in the first bin, because the cut is the smallest kept
            // magnitude, or 0.
            u64 digits = digits_of(cut.prefix, exponent);
            u64 square = digits * digits;
            count += cut.rank;
            sum += digits * cut.rank;
            low += (square & 0xffffffffu) * cut.rank;
            high += (square >> 32) * cut.rank;
        }
        spreads[bin] = count == 0 ? Spread{0.0, 0.0, 0.0} : spread_of(count, sum, low, high, exponent);
    }
    __syncthreads();
    for (u32 bits = MOST_BITS; bits > 0; bits--) {
        u32 count = 1u << (bits - 1);
        double all = block_sum(bin < count ? cost_of(spreads[bin]) : 0.0);
        if (bin == 0) {
            errors[bits - 1] = all;
        }
        Spread pair = {0.0, 0.0, 0.0};
        if (bin < count / 2) {
            pair = joined(spreads[2 * bin], spreads[2 * bin + 1]);
        }
        __syncthreads();
        if (bin < count / 2) {
            spreads[bin] = pair;
        }
        __syncthreads();
    }
}

// Writes the errors for each k of each layer and each number of bits. The cuts must be known. `Top::payload` says where
// a row's errors begin.
extern "C" __global__ void measure_kept(Params p, const Top* tops, const u32* top_of, const float* all, Cut* cuts,
                                        BinSquares* squares, double* errors) {
    __shared__ BinSquares own;
    own.clear();
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = top_of[at];
        Top top = tops[number];
        const float* values = all + top.first;
        Cut* cut = &cuts[number];
        u32 prefix = cut->prefix;
        CodeBins bins(top, *cut);
        BinUnits units{bins};
        u32 begin = at;
        at = min(end, top.first_span + top.spans);
        u64 stop = min(u64(at - top.first_span) * SPAN, u64(top.count));
        for (u64 i = u64(begin - top.first_span) * SPAN + threadIdx.x; i < stop; i += BLOCK) {
            u32 magnitude = __float_as_uint(values[i]) & MAGNITUDE;
            if (magnitude > prefix) {
                u32 bin = bins.of(magnitude);
                own.add(bin, digits_of(magnitude, units.least_exponent(bin + 1)));
            }
        }
        own.give(&squares[number]);
        if (is_last(&cut->done, at - begin, top.spans)) {
            write_costs(*cut, units, &squares[number], errors + top.payload);
        }
    }
}
