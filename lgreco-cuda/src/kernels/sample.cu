// Where a layer's k largest end, roughly, by a sample at random: a sixteenth of its values or, if these are more, SAMPLE. Of a layer of
// which nothing is gathered it is all values of up to SAMPLE. What comes after it is right whatever the sample, and is fast where
// `bound` is a little below the k-th largest magnitude, and the narrow bins, which span four powers of two, hold this.

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

// Finds what a sample's counts in shared memory tell, by one block: the bound, and where narrow bins begin.
__device__ inline void estimate(const Top& top, const u32* room, Cut* cut) {
    u32 least = sampled(top, -1.0f);
    Picked lower = pick(room, 1u << SAMPLE_BITS, sampled(top, 1.0f));
    Picked upper = pick(room, 1u << SAMPLE_BITS, least);
    u32 bound = lower.bin == NOWHERE ? 0 : min(lower.bin << SAMPLE_SHIFT, INFINITE);
    u32 end = min(upper.bin + 1 << SAMPLE_SHIFT, INFINITE);
    if (threadIdx.x == 0) {
        cut->bound = bound;
        cut->base = least > 0 && end > bound + NARROW ? end - NARROW : bound;
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
        u32 drawn = drawn_of(top);
        u32 draws = (drawn + DRAWN - 1) / DRAWN;
        u32 count = top.count;
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
                }
            }
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<SAMPLE_BITS>(room, counts, own, draws, &cuts[number])) {
            take_counts<SAMPLE_BITS>(room, counts);
            estimate(top, room, &cuts[number]);
            count_nothing<SAMPLE_BITS>(room);
        }
    }
}
