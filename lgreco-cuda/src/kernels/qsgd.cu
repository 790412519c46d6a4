// QSGD: rows of the error table, encoding and decoding.

// A layer in a launch for many layers.
struct Layer {
    u64 values;  // address of its values
    u32 dtype;
    u32 count;
    u32 first_block;
    u32 blocks;  // number of blocks that work on it
};

// Size of a layer's results, in words of 8 bytes.
#define RESULT_WORDS 17

// This block's layer, and the block's place in it.
struct Share {
    Params p;
    const void* values;
    u64 block;   // number of this block among those of the layer
    u64 blocks;
    u32* result;

    __device__ Share(const Params& all, const Layer* layers, const u32* layer_of, u32* results) : p(all) {
        u32 number = layer_of[blockIdx.x];
        Layer layer = layers[number];
        p.dtype = layer.dtype;
        p.count = layer.count;
        values = reinterpret_cast<const void*>(layer.values);
        // The compiler does not know that this address, loaded from memory, is in global memory.
        __builtin_assume(__isGlobal(values));
        block = blockIdx.x - layer.first_block;
        blocks = layer.blocks;
        result = results + u64(number) * (2 * RESULT_WORDS);
    }
};

// The square of 1 / s. It is a constant once loops are unrolled.
__device__ constexpr double squared_step(u32 log_levels) {
    return log_levels == 0 ? 0.0 : 1.0 / (double((1u << log_levels) - 1) * double((1u << log_levels) - 1));
}

// Adds up eight values per thread over a block, in a fixed order. Thread k returns the sum of all values[k], for k
// below 8. All threads of the block must call it.
__device__ static inline double block_sums(double (&values)[8]) {
    __shared__ double sums[WARPS][8];
    u32 lane = threadIdx.x % 32;
    // Each shuffle halves the number of sums that a lane holds.
#pragma unroll
    for (u32 places = 4, reach = 16; places > 0; places /= 2, reach /= 2) {
        bool upper = (lane & reach) != 0;
#pragma unroll
        for (u32 k = 0; k < places; k++) {
            double own = upper ? values[k + places] : values[k];
            double other = upper ? values[k] : values[k + places];
            values[k] = own + __shfl_xor_sync(FULL, other, reach);
        }
    }
    double sum = values[0];
    sum += __shfl_xor_sync(FULL, sum, 2);
    sum += __shfl_xor_sync(FULL, sum, 1);
    if (lane % 4 == 0) {
        sums[threadIdx.x / 32][lane / 4] = sum;
    }
    __syncthreads();
    sum = 0.0;
    if (threadIdx.x < 8) {
        for (u32 warp = 0; warp < WARPS; warp++) {
            sum += sums[warp][threadIdx.x];
        }
    }
    return sum;
}

// Adds up a thread's squared errors for each width: within one bucket in scaled units, and over all buckets. Stochastic
// rounding of a value at the fraction f between two levels has the expected squared error f (1 - f). The sum of these
// is a quarter of the number of values minus the sum of (f - 1/2)^2. CLOSED says that all buckets can use this closed
// form.
template <bool CLOSED>
struct Row {
    const Params& p;
    const Grid* grids;
    u32 bucket;
    bool closed;  // whether this bucket can use the closed form
    Grid grid;
    float quarters;  // a quarter for each value of the bucket
    float in_bucket[8];
    double sums[8];

    __device__ Row(const Params& p, const Grid* grids) : p(p), grids(grids), quarters(0.0f) {
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            in_bucket[w] = 0.0f;
            sums[w] = 0.0;
        }
    }

    __device__ void begin(u32 next) {
        bucket = next;
        grid = grids[next];
        closed = CLOSED || (!p.nearest && grid.low <= 0.0f && grid.high >= 0.0f);
    }

    __device__ void next(u32 other) {
        end();
        begin(other);
    }

    __device__ void add(float value) {
        float x = scaled(p, grid, value);
        if (CLOSED || closed) {
            quarters += 0.25f;
            float part = part_of(grid, x);
            // In units of 2^-32, so that `in_levels` drops whole levels by overflow.
            u32 position = __float_as_uint(part) << (32 - FRACTION_BITS);
#pragma unroll
            for (u32 w = 0; w < 8; w++) {
                u32 log_levels = w + 1 - p.sign_magnitude;
                if (log_levels == 0) {
                    continue;  // codes of 1 bit have no sign and need another grid
                }
                // With one level above 0, the fraction is the position itself. At the upper end it is then 1 instead of
                // 0, which has the same (f - 1/2)^2.
                u32 at = in_levels(position, log_levels) >> (32 - FRACTION_BITS);
                float from_half = (log_levels == 1 ? part : __uint_as_float(at + ONE)) - 1.5f;
                in_bucket[w] = fmaf(from_half, from_half, in_bucket[w]);
            }
            return;
        }
        u32 position = position_on(grid, x);
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            if (p.widths >> w & 1) {
                u32 log_levels = w + 1 - p.sign_magnitude;
                in_bucket[w] += residual(in_levels(position, log_levels), 1.0f / float((1u << log_levels) - 1), x);
            }
        }
    }

    // The squared distance of x from the point to which it is rounded. With stochastic rounding, the expected squared
    // distance. `at` is the position in units of 2^-23 levels.
    __device__ float residual(u32 at, float step, float x) {
        if (p.nearest) {
            float away = point(float((at + HALF) >> FRACTION_BITS) * step) - x;
            return away * away;
        }
        float fraction = __uint_as_float((at & FRACTION) | ONE) - 1.0f;
        float level = float(at >> FRACTION_BITS);
        float below = point(level * step) - x;
        float above = point((level + 1.0f) * step) - x;
        return (1.0f - fraction) * (below * below) + fraction * (above * above);
    }

    __device__ float point(float part) {
        return grid.scaled_low * (1.0f - part) + grid.scaled_high * part;
    }

    // Adds the bucket's errors to those of all buckets.
    __device__ void end() {
        // 1 / power. It is a power of two.
        u64 exponent = 1023 + 127 - u64(__float_as_uint(grid.power) >> FRACTION_BITS);
        double unit = __longlong_as_double(exponent << 52);
        if (CLOSED || closed) {
            unit *= double(grid.scaled_high - grid.scaled_low);
        }
        unit *= unit;
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            if (CLOSED || closed) {
                double steps = CLOSED ? 1.0 : squared_step(w + 1 - p.sign_magnitude);
                sums[w] = fma(double(quarters - in_bucket[w]) * steps, unit, sums[w]);
            } else {
                sums[w] = fma(double(in_bucket[w]), unit, sums[w]);
            }
            in_bucket[w] = 0.0f;
        }
        quarters = 0.0f;
    }

    // Writes the block's sums. Sums of widths that are not measured are meaningless. All threads of the block must call
    // it.
    __device__ void give(double* partials) {
        double sum = block_sums(sums);
        if (threadIdx.x < 8) {
            sum *= CLOSED ? squared_step(threadIdx.x + 1 - p.sign_magnitude) : 1.0;
            partials[u64(blockIdx.x) * 8 + threadIdx.x] = sum;
        }
    }
};

// The squared error of each width, summed over the values of a block's spans.
template <bool CLOSED>
__device__ inline void add_fused_row(const Params& all, const Layer* layers, const u32* layer_of, Held& held,
                                     double* partials, u32* results) {
    Share share(all, layers, layer_of, results);
    const Params& p = share.p;
    Row<CLOSED> row(p, held.grids);
    hold_nothing(held);
    for (u64 span = share.block; span * SPAN < p.count; span += share.blocks) {
        hold(p, Everywhere{share.values}, span, held, share.result);
        u64 tile = span * WARPS + threadIdx.x / 32;
        row.begin(held.bucket(p, tile * TILE + threadIdx.x % 32 * 4));
        visit(p, held, tile, row);
        row.end();
    }
    row.give(partials);
}

// Rows for stochastic rounding if the grid of every bucket contains zero.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void fused_row(Params p, const Layer* layers, const u32* layer_of,
                                                                 double* partials, u32* results) {
    __shared__ Held held;
    add_fused_row<true>(p, layers, layer_of, held, partials, results);
}

// Rows in all other cases.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void fused_row_of_residuals(Params p, const Layer* layers,
                                                                              const u32* layer_of, double* partials,
                                                                              u32* results) {
    __shared__ Held held;
    add_fused_row<false>(p, layers, layer_of, held, partials, results);
}

// Rows in the usual case. Each warp has a bucket in registers.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void usual_row(Params all, const Layer* layers, const u32* layer_of,
                                                                 double* partials, u32* results) {
    Share share(all, layers, layer_of, results);
    Params p = usual(share.p);
    Row<true> row(p, nullptr);
    for (u64 tile = share.block * WARPS + threadIdx.x / 32; tile * TILE < p.count; tile += share.blocks * WARPS) {
        Bucket bucket(p, share.values, tile * TILE + threadIdx.x % 32 * 4, share.result);
        row.grid = bucket.own;
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                row.add(bucket.values[j][k]);
            }
        }
        row.end();
    }
    row.give(partials);
}

// Writes the buckets' scales and the codes.
extern "C" __global__ void fused_encode(Params p, const void* values, float* sent, u8* codes, u32* result) {
    __shared__ Held held;
    hold_nothing(held);
    for (u64 span = blockIdx.x; span * SPAN < p.count; span += gridDim.x) {
        hold(p, Everywhere{values}, span, held, result);
        u32 slot = own_slot(p);
        u64 bucket = (span * SPAN >> Held::log_bucket(p)) + slot;
        if (slot < SLOTS && bucket < p.buckets) {
            send(p, held.grids[slot], bucket, sent);
        }
        // Each warp encodes the tile that it loaded.
        encode_tile(p, held, span * WARPS + threadIdx.x / 32, codes, Nowhere());
    }
}

// Like `fused_encode`, but in the usual case. Each warp has a bucket in registers.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void usual_encode(Params all, const void* values, float* sent,
                                                                    u8* codes, u32* result) {
    Params p = usual(all);
    u32 lane = threadIdx.x % 32;
    u64 warps = u64(gridDim.x) * WARPS;
    for (u64 tile = u64(blockIdx.x) * WARPS + threadIdx.x / 32; tile * TILE < p.count; tile += warps) {
        Bucket bucket(p, values, tile * TILE + lane * 4, result);
        if (lane == 0) {
            send(p, bucket.own, tile, sent);
        }
        encode_tile(p, bucket, tile, codes, Nowhere());
    }
}

// Decodes a payload. `sent` has the scales of all buckets.
extern "C" __global__ void decode(Params p, const float* sent, const u8* codes, float* output) {
    u64 first = (u64(blockIdx.x) * BLOCK + threadIdx.x) * 4;
    float four[4];
    u32 here = decode_quad(p, sent, codes, first, four);
    u32 bits[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        bits[k] = k < here ? __float_as_uint(four[k]) : 0;
    }
    store4(output, 0, first, here, bits);
}
