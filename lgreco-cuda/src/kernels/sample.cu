// Where a layer's k largest end, roughly, by a sample: all values of a layer that has no more than SAMPLE, or as many at
// random. What comes after it is right whatever the sample, and is fast where `bound` is a little below the k-th largest
// magnitude and the narrow bins, which span four powers of two, hold this.

#define SAMPLE 65536u
// Values that a block draws at once, and how often blocks do for a layer.
#define DRAWN (4 * BLOCK)
#define DRAWS (SAMPLE / DRAWN)
// Bits of a magnitude by which the sample is counted.
#define SAMPLE_BITS SECOND_BITS
#define SAMPLE_SHIFT (31 - SAMPLE_BITS)

__device__ inline u32 draws_of(const Top& top) {
    return top.count >= SAMPLE ? DRAWS : (top.count + DRAWN - 1) / DRAWN;
}

// How many of the values sampled reach the k-th largest magnitude: at most or, where `sign` is -1, at least. These are six standard
// deviations from what is expected, and some more, because few are not distributed normally.
__device__ inline u32 sampled(const Top& top, float sign) {
    if (top.count <= SAMPLE) {
        return top.keep;
    }
    float part = float(top.keep) / float(top.count);
    float expected = part * float(SAMPLE);
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
        }
    }
}

// Murmur's last step: all bits depend on all.
__device__ inline u32 mixed(u32 bits) {
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    return bits ^ bits >> 16;
}

extern "C" __global__ void sample(Params p, const Top* tops, const u32*, const Program* program, const void* gradients,
                                  float* residuals, Cut* cuts, u32* bins) {
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
        u32 draws = draws_of(top);
        u32 own = min(next, draws) - min(draw, draws);
        if (own == 0) {
            continue;
        }
        // Others in each step and layer.
        u32 seed = mixed(program->step) + mixed(~number);
        for (u32 stop = draw + own; draw < stop; draw++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                u32 i = draw * DRAWN + k * BLOCK + threadIdx.x;
                if (top.count > SAMPLE) {
                    i = u32(u64(mixed(seed ^ mixed(i))) * top.count >> 32);
                }
                if (i < top.count) {
                    u32 magnitude = __float_as_uint(offered.sum(i)) & MAGNITUDE;
                    atomicAdd(&room[magnitude >> SAMPLE_SHIFT], 1u);
                }
            }
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<SAMPLE_BITS>(room, counts, own, draws, &cuts[number])) {
            estimate(top, counts, &cuts[number]);
            forget_counts(counts);
        }
    }
}
