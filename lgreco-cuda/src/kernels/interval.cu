// Layers that keep so much that there is no room for what reaches a bound. Of these the sample tells an interval that has the
// k-th largest magnitude, from `bound` to `ceiling`. What is within it is gathered; what is above it, and what is at its ends,
// of which there may be any number, is counted.

// Of what a block has of a span, in fields of so many bits: how much is above the interval, at its upper end and at its lower one.
#define ENDS_BITS 10

// Takes out of `mask`, which tells of the values that reach the bound, those that need not be gathered. Returns how many they are.
__device__ inline u32 take_ends(const Strips& strips, u32& mask, const Cut* cut, u32& largest, u32& least) {
    u32 bound = fresh(cut->bound);
    u32 ceiling = fresh(cut->ceiling);
    u32 within = 0;
    u32 own = 0;
#pragma unroll
    for (u32 strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 bit = 1u << (4 * strip + k);
            u32 magnitude = __float_as_uint(strips.values[strip][k]) & MAGNITUDE;
            if ((mask & bit) != 0) {
                u32 end = magnitude == ceiling ? 1u << ENDS_BITS : magnitude == bound ? 1u << 2 * ENDS_BITS : 0;
                end = magnitude > ceiling ? 1 : end;
                own += end;
                within |= end == 0 ? bit : 0;
                largest = max(largest, magnitude);
                least = max(least, magnitude == 0 ? 0 : ~magnitude);
            }
        }
    }
    mask = within;
    return own;
}

// What a block has counted of a span.
struct Ends {
    u32 above;
    u32 upper;
    u32 lower;

    // What its warps have.
    __device__ explicit Ends(const u32 (&warps)[WARPS]) : above(0), upper(0), lower(0) {
        const u32 field = (1u << ENDS_BITS) - 1;
        for (u32 warp = 0; warp < WARPS; warp++) {
            above += warps[warp] & field;
            upper += warps[warp] >> ENDS_BITS & field;
            lower += warps[warp] >> 2 * ENDS_BITS;
        }
    }

    // As it is kept until the cut is known.
    __device__ explicit Ends(const Kept& kept)
        : above(kept.above), upper(kept.tied >> 16), lower(kept.tied & 0xffffu) {}

    __device__ u32 at_ends() const {
        return upper << 16 | lower;
    }
};

// Adds what a block has counted of a span to what is known of the layer and in bins and, where what lies between fits, of the span.
// By one thread.
__device__ inline void count_ends(const Ends& ends, bool fits, Cut* cut, u32* room, Kept* kept) {
    u32 base = cut->base;
    if (ends.above != 0) {
        atomicAdd(&cut->above, ends.above);
    }
    if (ends.upper != 0) {
        atomicAdd(&room[bin_of(fresh(cut->ceiling), base)], ends.upper);
    }
    if (ends.lower != 0) {
        atomicAdd(&room[bin_of(fresh(cut->bound), base)], ends.lower);
    }
    if (fits) {
        kept->above = ends.above;
        kept->tied = ends.at_ends();
    }
}

// Whether a value is finite, as it lies in memory.
__device__ inline bool lies_finite(const void* values, u32 dtype, u64 i) {
    u32 bits = dtype == 0 ? static_cast<const u32*>(values)[i] : static_cast<const u16*>(values)[i];
    u32 infinite = infinite_of(dtype);
    return (bits & infinite) != infinite;
}

// Says of a value that is not finite whether the gradient's is.
__device__ inline void note_infinite(Program* program, const Top& top, const Offered& offered, u64 i) {
    if (!lies_finite(offered.values, offered.dtype, i)) {
        bool good = lies_finite(offered.gradient, offered.gradient_dtype, i);
        note(&program->fault, good ? SUM_LEFT_F32 : NOT_FINITE, top.layer, top.start + i);
    }
}
