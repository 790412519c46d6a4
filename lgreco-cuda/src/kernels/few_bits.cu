// TopK in few bits: the bins of what is kept and their means, all in integers, as in
// lgreco_core::compress::quantised_topk.

// Most bins of a layer: those of 8 bits.
#define CODE_BINS 128

// Sums of the magnitudes in each bin, in units of its largest one's, and their means.
struct Few {
    u64 sums[CODE_BINS];
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

    __device__ u32 of(u32 magnitude) const {
        return u32((u64(magnitude - min(magnitude, low)) << log_count) / span);
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

// The means of a layer's bins, with those at the cut that are kept, to `few` and the payload, by one block. Sums begin anew.
__device__ inline void make_means(const Top& top, const Cut& cut, const CodeBins& bins, Few* few, u32* words) {
    u32 bin = threadIdx.x;
    if (bin >= 1u << bins.log_count) {
        return;
    }
    u32 exponent = few->exponents[bin];
    u64 sum = atomicExch(&few->sums[bin], 0ull);
    u32 count = atomicExch(&few->counts[bin], 0u);
    if (bin == bins.of(cut.prefix)) {
        sum += digits_of(cut.prefix, exponent) * cut.rank;
        count += cut.rank;
    }
    u32 mean = count == 0 ? 0 : float_of(u32(sum / count), exponent);
    few->means[bin] = mean;
    few->exponents[bin] = 0;
    words[HEADER / 4 + bin] = mean;
}

// The means of all layers with codes.
extern "C" __global__ void sum_kept(Params p, const Top* tops, const u32* top_of, const Program* program,
                                    const void* gradients, float* residuals, Cut* cuts, const Kept* spans,
                                    const uint2* entries, Few* few, u8* message) {
    __shared__ u64 sums[CODE_BINS];
    __shared__ u32 counts[CODE_BINS];
    if (threadIdx.x < CODE_BINS) {
        sums[threadIdx.x] = 0;
        counts[threadIdx.x] = 0;
    }
    __syncthreads();
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        Top top = tops[top_of[at]];
        u32 begin = at;
        u32 stop = min(end, top.first_span + top.spans);
        if (top.bits == 0) {
            at = stop;
            continue;
        }
        Cut* cut = &cuts[top_of[at]];
        u32 prefix = cut->prefix;
        CodeBins bins(top, *cut);
        Few* own = &few[top.few];
        Offered offered(p, top, program, gradients, residuals);
        for (; at < stop; at++) {
            Choice choice(top, spans[at], offered, entries, at - top.first_span);
            for (u32 i = threadIdx.x; i < choice.size; i += BLOCK) {
                u32 magnitude = choice.at(i).y & MAGNITUDE;
                if (magnitude > prefix) {
                    u32 bin = bins.of(magnitude);
                    atomicAdd(&sums[bin], digits_of(magnitude, own->exponents[bin]));
                    atomicAdd(&counts[bin], 1u);
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < CODE_BINS && counts[threadIdx.x] != 0) {
            atomicAdd(&own->sums[threadIdx.x], sums[threadIdx.x]);
            atomicAdd(&own->counts[threadIdx.x], counts[threadIdx.x]);
            sums[threadIdx.x] = 0;
            counts[threadIdx.x] = 0;
        }
        if (is_last(&cut->done, at - begin, top.spans)) {
            make_means(top, *cut, bins, own, reinterpret_cast<u32*>(message + top.payload));
        }
    }
}
