// Where a layer's k largest end, roughly, by a sample: all values of a layer that has no more than SAMPLE, or as many at
// random; of one that keeps much a sixteenth, or as many. What comes after it is right whatever the sample, and is fast where
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
    return min(top.wide ? top.count / 16 : top.count, SAMPLE);
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

// Finds `bound` and `base` in the counts of a sample, by one block.
__device__ inline void estimate(const Top& top, const u32* bins, Cut* cut) {
    u32 bound = 0;
#pragma unroll 1
    for (float sign = 1.0f; sign >= -1.0f; sign -= 2.0f) {
        u32 rank = sampled(top, sign);
        Picked found = pick(bins, 1u << SAMPLE_BITS, rank);
        if (sign > 0.0f) {
            bound = found.bin == NOWHERE ? 0 : min(found.bin << SAMPLE_SHIFT, INFINITE);
        } else if (threadIdx.x == 0) {
            u32 end = min(found.bin + 1 << SAMPLE_SHIFT, INFINITE);
            cut->bound = bound;
            cut->base = rank > 0 && end > bound + NARROW ? end - NARROW : bound;
            cut->ceiling = NOWHERE;
        }
    }
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

// Finds the interval of a layer that keeps much in the counts of a sample, by one block. Where bins that it ends in have so much
// that there might be no room, its ends are magnitudes of the sample, so that but for what is at them no more is in it than
// is expected of that many magnitudes.
__device__ inline void estimate_interval(const Top& top, const u32* bins, const u32* sample, u32* room, Cut* cut) {
    u32 drawn = drawn_of(top);
    u32 most = sampled(top, 1.0f);
    u32 least = sampled(top, -1.0f);
    Picked lower = pick(bins, 1u << SAMPLE_BITS, most);
    bool is_open = lower.bin == NOWHERE;
    u32 reach = is_open ? drawn : most - lower.rank + fresh(bins[lower.bin]);
    Picked upper = pick(bins, 1u << SAMPLE_BITS, least);
    u32 within = reach - (least - upper.rank);
    u32 bound = is_open ? 0 : lower.bin << SAMPLE_SHIFT;
    u32 ceiling = least == 0 ? INFINITE : (upper.bin + 1 << SAMPLE_SHIFT) - 1;
    if (top.keep == top.count) {
        // All but zeros are above it.
        bound = 0;
        ceiling = 0;
    } else if (u64(within) * top.count > u64(drawn) * (top.room_size - top.room_size / 8)) {
#pragma unroll 1
        for (u32 end = 0; end < 2; end++) {
            bool is_known = end == 0 ? is_open : least == 0;
            u32 magnitude = is_known ? 0 : magnitude_of(end == 0 ? lower : upper, sample, drawn, room);
            bound = end == 0 && !is_known ? magnitude : bound;
            ceiling = end == 1 && !is_known ? magnitude : ceiling;
        }
    }
    if (threadIdx.x == 0) {
        bound = min(bound, INFINITE);
        ceiling = min(ceiling, INFINITE);
        cut->bound = bound;
        cut->base = ceiling >= bound + NARROW ? ceiling + 1 - NARROW : bound;
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
        bool is_wide = top.wide;
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
                    i = u32(u64(mixed(seed ^ mixed(i))) * count >> 32);
                }
                if (drawing < drawn) {
                    u32 magnitude = __float_as_uint(offered.sum(i)) & MAGNITUDE;
                    atomicAdd(&room[magnitude >> SAMPLE_SHIFT], 1u);
                    if (is_wide) {
                        kept[drawing] = magnitude;
                    }
                }
            }
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<SAMPLE_BITS>(room, counts, own, draws, &cuts[number])) {
            if (top.wide) {
                estimate_interval(top, counts, kept, room, &cuts[number]);
            } else {
                estimate(top, counts, &cuts[number]);
            }
            forget_counts(counts);
        }
    }
}
