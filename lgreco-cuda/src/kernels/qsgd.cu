// QSGD: rows of the error table, codes and back.

extern "C" __global__ void extreme_values(Params p, const void* values, Extremes* extremes) {
    u64 warps = u64(gridDim.x) * WARPS;
    for (u64 tile = u64(blockIdx.x) * WARPS + threadIdx.x / 32; tile * TILE < p.count; tile += warps) {
        Seen seen(p, extremes, 1, u32(tile * TILE / p.bucket));
        visit(p, Everywhere{values}, tile, seen);
        if (__all_sync(FULL, seen.bucket == __shfl_sync(FULL, seen.bucket, 0))) {
            seen.sharing = 32;
        }
        seen.give();
    }
}

// One thread per bucket.
extern "C" __global__ void make_grids(Params p, const Extremes* extremes, Grid* grids, u32* result) {
    u32 bucket = blockIdx.x * BLOCK + threadIdx.x;
    if (bucket >= p.buckets) {
        return;
    }
    grids[bucket] = make_grid(p, extremes[bucket], result);
}

// The square of 1 / s; a constant once loops are unrolled.
__device__ constexpr double squared_step(u32 log_levels) {
    return log_levels == 0 ? 0.0 : 1.0 / (double((1u << log_levels) - 1) * double((1u << log_levels) - 1));
}

// The squared errors of each width that a thread has seen: of one bucket in scaled units, and in all. With CLOSED, the
// closed form of the expectation, the sum of f (1 - f), holds in every bucket.
template <bool CLOSED>
struct Row {
    const Params& p;
    const Grid* grids;
    u32 bucket;
    bool closed;  // whether it holds in this one
    Grid grid;
    float in_bucket[8];
    double sums[8];

    __device__ Row(const Params& p, const Grid* grids) : p(p), grids(grids) {
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
        u32 position = position_on(grid, x);
        if (closed) {
#pragma unroll
            for (u32 w = 0; w < 8; w++) {
                u32 at = in_levels(position, w + 1 - p.sign_magnitude);
                float fraction = __uint_as_float((at & FRACTION) | ONE) - 1.0f;
                in_bucket[w] += fmaf(-fraction, fraction, fraction);
            }
            return;
        }
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            if (p.widths >> w & 1) {
                u32 log_levels = w + 1 - p.sign_magnitude;
                in_bucket[w] += residual(in_levels(position, log_levels), 1.0f / float((1u << log_levels) - 1), x);
            }
        }
    }

    // The squared distance of x from the point it is rounded to, or its expectation.
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

    // Adds the bucket's errors to all.
    __device__ void end() {
        // 1 / power, which is a power of two.
        u64 exponent = 1023 + 127 - u64(__float_as_uint(grid.power) >> FRACTION_BITS);
        double unit = __longlong_as_double(exponent << 52);
        if (closed) {
            unit *= double(grid.scaled_high - grid.scaled_low);
        }
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            if (p.widths >> w & 1) {
                double steps = p.sign_magnitude ? squared_step(w) : squared_step(w + 1);
                sums[w] += double(in_bucket[w]) * (unit * unit) * (closed ? steps : 1.0);
            }
            in_bucket[w] = 0.0f;
        }
    }

    // The sums over the block, for which all its threads must come.
    __device__ void give(double* partials) {
#pragma unroll
        for (u32 w = 0; w < 8; w++) {
            double sum = block_sum(sums[w]);
            if (threadIdx.x == 0) {
                partials[u64(blockIdx.x) * 8 + w] = sum;
            }
        }
    }
};

// The squared error of each width, summed over the values of a block, whose buckets have grids.
template <bool CLOSED>
__device__ inline void add_row(const Params& p, const void* values, const Grid* grids, double* partials) {
    Row<CLOSED> row(p, grids);
    u64 warps = u64(gridDim.x) * WARPS;
    for (u64 tile = u64(blockIdx.x) * WARPS + threadIdx.x / 32; tile * TILE < p.count; tile += warps) {
        row.begin(u32(tile * TILE / p.bucket));
        visit(p, Everywhere{values}, tile, row);
        row.end();
    }
    row.give(partials);
}

// One of the layers of a launch.
struct Layer {
    u64 values;  // their address
    u64 blocks;  // that work on it, of those there are
    u32 dtype;
    u32 count;
};

// Of 8 bytes, of a layer's results.
#define RESULT_WORDS 17

// The same, grids and all in one pass, for layer blockIdx.y.
template <bool CLOSED>
__device__ inline void add_fused_row(Params p, const Layer* layers, Held& held, double* partials, u32* results) {
    Layer layer = layers[blockIdx.y];
    partials += u64(blockIdx.y) * gridDim.x * 8;
    if (blockIdx.x >= layer.blocks) {
        if (threadIdx.x < 8) {
            partials[u64(blockIdx.x) * 8 + threadIdx.x] = 0.0;
        }
        return;
    }
    p.dtype = layer.dtype;
    p.count = layer.count;
    const void* values = reinterpret_cast<const void*>(layer.values);
    // An address that comes from memory could be of any kind.
    __builtin_assume(__isGlobal(values));
    u32* result = results + u64(blockIdx.y) * (2 * RESULT_WORDS);
    Row<CLOSED> row(p, held.grids);
    hold_nothing(held);
    for (u64 span = blockIdx.x; span * SPAN < p.count; span += layer.blocks) {
        hold(p, Everywhere{values}, span, held, result);
        u64 tile = span * WARPS + threadIdx.x / 32;
        row.begin(held.bucket(p, tile * TILE + threadIdx.x % 32 * 4));
        visit(p, held, tile, row);
        row.end();
    }
    row.give(partials);
}

// For stochastic rounding where every interval holds zero.
extern "C" __launch_bounds__(BLOCK, 2) __global__ void row(Params p, const void* values, const Grid* grids,
                                                           double* partials) {
    add_row<true>(p, values, grids, partials);
}

// For all else.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void row_of_residuals(Params p, const void* values,
                                                                        const Grid* grids, double* partials) {
    add_row<false>(p, values, grids, partials);
}

extern "C" __launch_bounds__(BLOCK, 4) __global__ void fused_row(Params p, const Layer* layers, double* partials,
                                                                 u32* results) {
    __shared__ Held held;
    add_fused_row<true>(p, layers, held, partials, results);
}

extern "C" __launch_bounds__(BLOCK, 3) __global__ void fused_row_of_residuals(Params p, const Layer* layers,
                                                                              double* partials, u32* results) {
    __shared__ Held held;
    add_fused_row<false>(p, layers, held, partials, results);
}

extern "C" __global__ void scales(Params p, const Grid* grids, float* sent) {
    u32 bucket = blockIdx.x * BLOCK + threadIdx.x;
    if (bucket < p.buckets) {
        send(p, grids[bucket], bucket, sent);
    }
}

extern "C" __global__ void encode(Params p, const void* values, const Grid* grids, u8* codes) {
    u64 first = (u64(blockIdx.x) * BLOCK + threadIdx.x) * PER_CODER;
    encode_eight(p, Everywhere{values}, grids, first, codes, Nowhere());
}

// The same, with grids and what is sent of them in one pass.
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
        // A warp codes its own tile.
        u64 tile = span * WARPS + threadIdx.x / 32;
        for (u32 in_tile = threadIdx.x % 32 * PER_CODER; in_tile < TILE; in_tile += 32 * PER_CODER) {
            encode_eight(p, held, held.grids, tile * TILE + in_tile, codes, Nowhere());
        }
        __syncwarp();
    }
}

// The values that codes stand for; `sent` is what `scales` made.
extern "C" __global__ void decode(Params p, const float* sent, const u8* codes, float* output) {
    u64 first = (u64(blockIdx.x) * BLOCK + threadIdx.x) * PER_CODER;
    float eight[PER_CODER];
    u32 here = decode_eight(p, sent, codes, first, eight);
    for (u32 k = 0; k < here; k++) {
        output[first + k] = eight[k];
    }
}
