// A random sample of each layer, which estimates the k-th largest magnitude. The sample has a sixteenth of the values,
// at most SAMPLE. If a layer has no room for gathered values, the sample has all values, at most SAMPLE. Later launches
// give the same results for any sample. They are fast if `bound` is a little below the k-th largest magnitude, and if
// this magnitude is in a narrow bin. The narrow bins span four powers of two.

#define SAMPLE 65536u
// DRAWN is the number of values that a block draws at once. DRAWS is the largest number of such draws for a layer.
#define DRAWN (4 * BLOCK)
#define DRAWS (SAMPLE / DRAWN)
// The sample is counted by the highest SAMPLE_BITS bits of magnitudes.
#define SAMPLE_BITS SECOND_BITS
#define SAMPLE_SHIFT (31 - SAMPLE_BITS)

// Number of values in a layer's sample.
__device__ inline u32 drawn_of(const Top& top) {
    return min(top.room_size == 0 ? top.count : top.count / 16 + (top.count % 16 != 0), SAMPLE);
}

// Upper bound (lower bound if `sign` is -1) on the number of sampled values that reach the k-th largest magnitude. The
// margin is six standard deviations. It also has 10 more values, because small numbers are not normally distributed.
__device__ inline u32 sampled(const Top& top, float sign) {
    u32 drawn = drawn_of(top);
    if (drawn == top.count) {
        return top.keep;
    }
    float part = float(top.keep) / float(top.count);
    float expected = part * float(drawn);
    return u32(max(expected + sign * (6.0f * sqrtf(expected * (1.0f - min(part, 1.0f))) + 10.0f), 0.0f));
}

// Sets the bound and the start of the narrow bins from a sample's counts in shared memory. Called by one block.
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

// The finaliser of MurmurHash3: each bit of the result depends on all bits.
__device__ inline u32 mixed(u32 bits) {
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    return bits ^ bits >> 16;
}

// Samples all layers. The last block of a layer sets its bound.
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
        // The sample differs between steps and between layers.
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
