// QSGD: grids of buckets, rows of the error table, codes and back. The numerics are those of lgreco_core::compress::qsgd.
// A warp works on tiles of 512 consecutive values, which a bucket of the usual size is.

struct Params {
    u32 dtype;
    u32 count;
    u32 bucket;
    u32 buckets;
    u32 sign_magnitude;
    u32 min_max;
    u32 nearest;
    u32 widths; // bit b - 1: whether width b is measured
    u32 bits;
    u32 log_levels;
    u32 step;
    u32 layer;
    u32 rank;
    u32 seed_low;
    u32 seed_high;
};

// Largest magnitude, largest value and complement of the smallest, the latter two by `ordered`.
struct Extremes {
    u32 largest;
    u32 high;
    u32 low;
};

struct Grid {
    float low;
    float high;
    float power;
    float scaled_low;
    float scaled_high;
    float inverse;
};

#define TILE 512
#define PER_CODER 8
#define FRACTION_BITS 23
#define FRACTION 0x007fffffu
#define HALF 0x00400000u
#define ONE 0x3f800000u

// Orders as the values do.
__device__ inline u32 ordered(u32 bits) {
    return bits ^ (bits >= SIGN ? 0xffffffffu : SIGN);
}

__device__ inline u32 from_ordered(u32 key) {
    return key ^ (key >= SIGN ? SIGN : 0xffffffffu);
}

// What a thread has seen of one bucket.
struct Seen {
    u32 bucket;
    Extremes extremes;

    __device__ void add(float value) {
        u32 bits = __float_as_uint(value);
        extremes.largest = max(extremes.largest, bits & MAGNITUDE);
        extremes.high = max(extremes.high, ordered(bits));
        extremes.low = max(extremes.low, ~ordered(bits));
    }

    __device__ void give(const Params& p, Extremes* to) {
        atomicMax(&to[bucket].largest, extremes.largest);
        if (p.min_max) {
            atomicMax(&to[bucket].high, extremes.high);
            atomicMax(&to[bucket].low, extremes.low);
        }
    }
};

extern "C" __global__ void extreme_values(Params p, const void* values, Extremes* extremes) {
    u32 lane = threadIdx.x % 32;
    u64 warps = u64(gridDim.x) * WARPS;
    for (u64 tile = u64(blockIdx.x) * WARPS + threadIdx.x / 32; tile * TILE < p.count; tile += warps) {
        Seen seen = {u32(tile * TILE / p.bucket), {0, 0, 0}};
        for (u32 j = 0; j < TILE / 128; j++) {
            u64 i = tile * TILE + j * 128 + lane * 4;
            if (i >= p.count) {
                break;
            }
            float four[4];
            u32 here = load4(values, p.dtype, i, p.count, four);
            u32 bucket = u32(i) / p.bucket;
            u32 left = p.bucket - u32(i) % p.bucket;
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (k >= here) {
                    break;
                }
                if (left == 0) {
                    bucket++;
                    left = p.bucket;
                }
                left--;
                if (bucket != seen.bucket) {
                    seen.give(p, extremes);
                    seen = Seen{bucket, {0, 0, 0}};
                }
                seen.add(four[k]);
            }
        }
        if (__all_sync(FULL, seen.bucket == __shfl_sync(FULL, seen.bucket, 0))) {
            seen.extremes.largest = warp_max(seen.extremes.largest);
            if (p.min_max) {
                seen.extremes.high = warp_max(seen.extremes.high);
                seen.extremes.low = warp_max(seen.extremes.low);
            }
            if (lane == 0) {
                seen.give(p, extremes);
            }
        } else {
            seen.give(p, extremes);
        }
    }
}

// One thread per bucket. result[0] becomes at least the largest magnitude where it is not finite.
extern "C" __global__ void make_grids(Params p, const Extremes* extremes, Grid* grids, u32* result) {
    u32 bucket = blockIdx.x * BLOCK + threadIdx.x;
    if (bucket >= p.buckets) {
        return;
    }
    Extremes seen = extremes[bucket];
    if (seen.largest >= INFINITE) {
        atomicMax(result, seen.largest);
    }
    Grid grid;
    grid.high = __uint_as_float(seen.largest);
    grid.low = p.sign_magnitude ? 0.0f : -grid.high;
    if (p.min_max) {
        // Sends -0 as +0.
        grid.low = __uint_as_float(from_ordered(~seen.low)) + 0.0f;
        grid.high = __uint_as_float(from_ordered(seen.high)) + 0.0f;
    }
    u32 exponent = seen.largest >> FRACTION_BITS;
    grid.power = __uint_as_float((exponent >= 254 ? 1 : 254 - exponent) << FRACTION_BITS);
    grid.scaled_low = grid.low * grid.power;
    grid.scaled_high = grid.high * grid.power;
    float length = grid.scaled_high - grid.scaled_low;
    grid.inverse = length > 0.0f ? 1.0f / length : 0.0f;
    grids[bucket] = grid;
}

// The value on the grid's scale, or its magnitude.
__device__ inline float scaled(const Params& p, const Grid& grid, float value) {
    return (p.sign_magnitude ? fabsf(value) : value) * grid.power;
}

// Where a scaled value lies between the ends of its grid: 0 to 2^23.
__device__ inline u32 position_on(const Grid& grid, float scaled) {
    return __float_as_uint((scaled - grid.scaled_low) * grid.inverse + 1.0f) - ONE;
}

// position * s, in units of 2^-23 levels.
__device__ inline u32 in_levels(u32 position, u32 log_levels) {
    return (position << log_levels) - position;
}

// The square of 1 / s; a constant once loops are unrolled.
__device__ constexpr double squared_step(u32 log_levels) {
    return log_levels == 0 ? 0.0 : 1.0 / (double((1u << log_levels) - 1) * double((1u << log_levels) - 1));
}

// The squared errors of each width that a thread has seen: of one bucket in scaled units, and in all. With CLOSED, the closed
// form of the expectation, the sum of f (1 - f), holds in every bucket.
template <bool CLOSED>
struct Row {
    u32 bucket;
    bool closed; // whether it holds in this one
    Grid grid;
    float in_bucket[8];
    double sums[8];

    __device__ void begin(const Params& p, const Grid* grids, u32 next) {
        bucket = next;
        grid = grids[next];
        closed = CLOSED || (!p.nearest && grid.low <= 0.0f && grid.high >= 0.0f);
    }

    __device__ void add(const Params& p, float value) {
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
                in_bucket[w] += residual(p, in_levels(position, log_levels), 1.0f / float((1u << log_levels) - 1), x);
            }
        }
    }

    // The squared distance of x from the point it is rounded to, or its expectation.
    __device__ float residual(const Params& p, u32 at, float step, float x) {
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
    __device__ void end(const Params& p) {
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
};

// The squared error of each width, summed over the values of a block.
template <bool CLOSED>
__device__ inline void add_row(const Params& p, const void* values, const Grid* grids, double* partials) {
    Row<CLOSED> row;
#pragma unroll
    for (u32 w = 0; w < 8; w++) {
        row.in_bucket[w] = 0.0f;
        row.sums[w] = 0.0;
    }
    u64 warps = u64(gridDim.x) * WARPS;
    for (u64 tile = u64(blockIdx.x) * WARPS + threadIdx.x / 32; tile * TILE < p.count; tile += warps) {
        row.begin(p, grids, u32(tile * TILE / p.bucket));
        for (u32 j = 0; j < TILE / 128; j++) {
            u64 i = tile * TILE + j * 128 + threadIdx.x % 32 * 4;
            if (i >= p.count) {
                break;
            }
            float four[4];
            u32 here = load4(values, p.dtype, i, p.count, four);
            u32 bucket = u32(i) / p.bucket;
            u32 left = p.bucket - u32(i) % p.bucket;
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (k >= here) {
                    break;
                }
                if (left == 0) {
                    bucket++;
                    left = p.bucket;
                }
                left--;
                if (bucket != row.bucket) {
                    row.end(p);
                    row.begin(p, grids, bucket);
                }
                row.add(p, four[k]);
            }
        }
        row.end(p);
    }
#pragma unroll
    for (u32 w = 0; w < 8; w++) {
        double sum = block_sum(row.sums[w]);
        if (threadIdx.x == 0) {
            partials[u64(blockIdx.x) * 8 + w] = sum;
        }
    }
}

// For stochastic rounding where every interval holds zero.
extern "C" __global__ void row(Params p, const void* values, const Grid* grids, double* partials) {
    add_row<true>(p, values, grids, partials);
}

// For all else.
extern "C" __global__ void row_of_residuals(Params p, const void* values, const Grid* grids, double* partials) {
    add_row<false>(p, values, grids, partials);
}

// What is sent of each bucket.
extern "C" __global__ void scales(Params p, const Grid* grids, float* sent) {
    u32 bucket = blockIdx.x * BLOCK + threadIdx.x;
    if (bucket >= p.buckets) {
        return;
    }
    if (p.min_max) {
        sent[2 * u64(bucket)] = grids[bucket].low;
        sent[2 * u64(bucket) + 1] = grids[bucket].high;
    } else {
        sent[bucket] = grids[bucket].high;
    }
}

// A thread codes 8 consecutive values, which are `bits` bytes.
extern "C" __global__ void encode(Params p, const void* values, const Grid* grids, u8* codes) {
    u64 first = (u64(blockIdx.x) * BLOCK + threadIdx.x) * PER_CODER;
    if (first >= p.count) {
        return;
    }
    u32 bucket = u32(first) / p.bucket;
    u32 left = p.bucket - u32(first) % p.bucket;
    Grid grid = grids[bucket];
    u64 packed = 0;
    u32 coded = 0;
    for (u32 half = 0; half < PER_CODER && first + half < p.count; half += 4) {
        float four[4];
        u32 here = load4(values, p.dtype, first + half, p.count, four);
        Words draws = {{HALF << 9, HALF << 9, HALF << 9, HALF << 9}};
        if (!p.nearest) {
            draws = philox(u32((first + half) / 4), p.step, p.layer, p.rank, p.seed_low, p.seed_high);
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (k >= here) {
                break;
            }
            if (left == 0) {
                bucket++;
                left = p.bucket;
                grid = grids[bucket];
            }
            left--;
            u32 at = in_levels(position_on(grid, scaled(p, grid, four[k])), p.log_levels);
            u32 code = (at + (draws.word[k] >> 9)) >> FRACTION_BITS;
            if (p.sign_magnitude) {
                code |= (__float_as_uint(four[k]) >> 31) << p.log_levels;
            }
            packed |= u64(code & 0xffu) << (coded * p.bits);
            coded++;
        }
    }
    u8* target = codes + first / PER_CODER * p.bits;
    for (u32 byte = 0; byte * 8 < coded * p.bits; byte++) {
        target[byte] = u8(packed >> (8 * byte));
    }
}

// The values that codes stand for; `sent` is what `scales` made.
extern "C" __global__ void decode(Params p, const float* sent, const u8* codes, float* output) {
    u64 first = (u64(blockIdx.x) * BLOCK + threadIdx.x) * PER_CODER;
    if (first >= p.count) {
        return;
    }
    u32 here = p.count - first < PER_CODER ? u32(p.count - first) : PER_CODER;
    const u8* source = codes + first / PER_CODER * p.bits;
    u64 packed = 0;
    for (u32 byte = 0; byte * 8 < here * p.bits; byte++) {
        packed |= u64(source[byte]) << (8 * byte);
    }
    float inverse = 1.0f / float((1u << p.log_levels) - 1);
    for (u32 k = 0; k < here; k++) {
        u32 code = u32(packed >> (k * p.bits)) & ((1u << p.bits) - 1);
        u32 bucket = u32(first + k) / p.bucket;
        u32 level = code & ((1u << p.log_levels) - 1);
        float part = float(level) * inverse;
        if (p.sign_magnitude) {
            float value = part * sent[bucket];
            output[first + k] = level != 0 && code > level ? -value : value;
        } else {
            float low = p.min_max ? sent[2 * u64(bucket)] : -sent[bucket];
            float high = p.min_max ? sent[2 * u64(bucket) + 1] : sent[bucket];
            output[first + k] = low * (1.0f - part) + high * part;
        }
    }
}
