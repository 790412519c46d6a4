// Where a layer's k largest end, roughly, by a sample at random: a sixteenth of its values or, if these are more, SAMPLE. Of a layer of
// which nothing is gathered it is all values of up to SAMPLE. What comes after it is right whatever the sample, and is fast where
// `bound` is a little below the k-th largest magnitude, `ceiling` above it, and the narrow bins, which span four powers of two,
// hold this.

#define SAMPLE 65536u
// Values that a block draws at once, and how often blocks do for a layer.
#define DRAWN (4 * BLOCK)
#define DRAWS (SAMPLE / DRAWN)
// Bits of a magnitude by which the sample is counted.
#define SAMPLE_BITS SECOND_BITS
#define SAMPLE_SHIFT (31 - SAMPLE_BITS)

// Values that are drawn.
__device__ inline u32 drawn_of(const Top& top) {
    return min(top.room_size == 0 ? top.count : top.count / 16 + (top.count % 16 != 0), SAMPLE);
}

// How many of the values sampled reach the k-th largest magnitude: at most or, where `sign` is -1, at least. These are six standard
// deviations from what is expected, and some more, because few are not distributed normally.
__device__ inline u32 sampled(const Top& top, float sign) {
    u32 drawn = drawn_of(top);
    if (drawn == top.count) {
        return top.keep;
    }
    float part = float(top.keep) / float(top.count);
    float expected = part * float(drawn);
    return u32(max(expected + sign * (6.0f * sqrtf(expected * (1.0f - min(part, 1.0f))) + 10.0f), 0.0f));
}

// The magnitude found in a sample's counts, of which the lowest bits are found among all that were drawn. By one block; `room` has
// zeros.
__device__ inline u32 magnitude_of(Picked found, const u32* sample, u32 drawn, u32* room) {
    Digits digits(SAMPLE_SHIFT);
#pragma unroll 1
    while (digits.next()) {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < drawn; i += BLOCK) {
            digits.add(room, fresh(sample[i]), found.bin, 1);
        }
        found = digits.pick(room, found);
    }
    return found.bin;
}

// Finds what the counts of a sample tell, by one block: the bound and where narrow bins begin or, of a layer that keeps much or has so
// many ties that there is no room for what reaches the bound, but for a 32nd, an interval. Where bins that this ends in have so much
// that there might be no room, its ends are magnitudes of the sample, so that but for what is at them no more is in it than
// is expected of that many magnitudes.
__device__ inline void estimate(const Top& top, const u32* bins, const u32* sample, u32* room, Cut* cut) {
    u32 drawn = drawn_of(top);
    u32 most = 0;
    u32 least = 0;
    Picked lower = {0, 0};
    Picked upper = {0, 0};
#pragma unroll 1
    for (u32 end = 0; end < 2; end++) {
        u32 rank = sampled(top, end == 0 ? 1.0f : -1.0f);
        Picked found = pick(bins, 1u << SAMPLE_BITS, rank);
        most = end == 0 ? rank : most;
        lower = end == 0 ? found : lower;
        least = rank;
        upper = found;
    }
    bool is_open = lower.bin == NOWHERE;
    u32 reach = is_open ? drawn : most - lower.rank + fresh(bins[lower.bin]);
    u32 bound = is_open ? 0 : min(lower.bin << SAMPLE_SHIFT, INFINITE);
    u32 end = min(upper.bin + 1 << SAMPLE_SHIFT, INFINITE);
    // By chance the layer has more of them than the sample.
    u64 expected = u64(reach + 3 * u32(sqrtf(float(reach)))) * top.count;
    bool all_fit = top.room_size == 0 || top.room_size >= top.count;
    if (!top.wide && (all_fit || expected <= u64(drawn) * (top.room_size - top.room_size / 32))) {
        if (threadIdx.x == 0) {
            cut->bound = bound;
            cut->base = least > 0 && end > bound + NARROW ? end - NARROW : bound;
            cut->ceiling = NOWHERE;
        }
        return;
    }
    u32 within = reach - (least - upper.rank);
    u32 ceiling = least == 0 ? INFINITE : min(end - 1, INFINITE);
    if (top.keep == top.count) {
        // All but zeros are above it.
        bound = 0;
        ceiling = 0;
    } else if (u64(within) * top.count > u64(drawn) * (top.room_size - top.room_size / 8)) {
#pragma unroll 1
        for (u32 end = 0; end < 2; end++) {
            bool is_known = end == 0 ? is_open : least == 0;
            u32 magnitude = is_known ? 0 : magnitude_of(end == 0 ? lower : upper, sample, drawn, room);
            bound = end == 0 && !is_known ? min(magnitude, INFINITE) : bound;
            ceiling = end == 1 && !is_known ? min(magnitude, INFINITE) : ceiling;
        }
    }
    if (threadIdx.x == 0) {
        cut->bound = bound;
        cut->base = least > 0 && ceiling >= bound + NARROW ? ceiling + 1 - NARROW : bound;
        cut->ceiling = ceiling;
    }
}

// Murmur's last step: all bits depend on all.
__device__ inline u32 mixed(u32 bits) {
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    return bits ^ bits >> 16;
}

extern "C" __global__ void sample(Params p, const Top* tops, const u32*, const Program* program, const void* gradients,
                                  float* residuals, Cut* cuts, u32* bins, uint2* entries) {
    __shared__ u32 room[1u << SAMPLE_BITS];
    count_nothing<SAMPLE_BITS>(room);
    u32 end = share(p.layers * DRAWS, blockIdx.x + 1);
    for (u32 at = share(p.layers * DRAWS, blockIdx.x); at < end;) {
        u32 number = at / DRAWS;
        u32 draw = at % DRAWS;
        u32 next = min(draw + (end - at), DRAWS);
        at += next - draw;
        const Top& top = tops[number];
        Offered offered(p, top, program, gradients, residuals);
        u32 drawn = drawn_of(top);
        u32 draws = (drawn + DRAWN - 1) / DRAWN;
        u32 count = top.count;
        bool is_gathered = top.room_size != 0;
        // Where what is gathered will be.
        u32* kept = reinterpret_cast<u32*>(entries + top.room);
        u32 own = min(next, draws) - min(draw, draws);
        if (own == 0) {
            continue;
        }
        // Others in each step and layer.
        u32 seed = mixed(program->step) + mixed(~number);
        for (u32 stop = draw + own; draw < stop; draw++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                u32 drawing = draw * DRAWN + k * BLOCK + threadIdx.x;
                u32 i = drawing;
                if (count > drawn) {
                    i = u32(u64(mixed(seed ^ i)) * count >> 32);
                }
                if (drawing < drawn) {
                    u32 magnitude = __float_as_uint(offered.sum(i)) & MAGNITUDE;
                    atomicAdd(&room[magnitude >> SAMPLE_SHIFT], 1u);
                    if (is_gathered) {
                        kept[drawing] = magnitude;
                    }
                }
            }
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<SAMPLE_BITS>(room, counts, own, draws, &cuts[number])) {
            estimate(top, counts, kept, room, &cuts[number]);
            // All threads have read them.
            __syncthreads();
            forget_counts(counts);
        }
    }
}
