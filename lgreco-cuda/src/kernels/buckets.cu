// QSGD's buckets, and the grids to which their values are rounded. The numerics are those of lgreco_compress::qsgd. A
// warp processes tiles of 512 consecutive values. A bucket of the usual size is one tile.

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

// Extremes of a bucket: the bits of the largest magnitude, the key of the largest value, and the complement of the
// smallest value's key. `ordered` makes keys.
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

// Numbers of values: a warp loads STRIP values at once, a warp's tile has TILE values, and the tiles of a block have
// SPAN values together.
#define STRIP 128
#define TILE 512
#define STRIPS (TILE / STRIP)
#define SPAN (TILE * WARPS)
// Largest number of buckets in a span. A bucket has at least 64 values, a power of two.
#define SLOTS (SPAN / 64)
#define FRACTION_BITS 23

// Maps the bits of an f32 to a key. Keys are in the order of the values.
__device__ inline u32 ordered(u32 bits) {
    return bits ^ (bits >= SIGN ? 0xffffffffu : SIGN);
}

__device__ inline u32 from_ordered(u32 key) {
    return key ^ (key >= SIGN ? SIGN : 0xffffffffu);
}

// Loads a lane's values of a tile: four consecutive values of each strip. `first` is the index of the lane's first
// value. Values beyond the layer's end are 0.
__device__ inline void load_tile(const void* all, u32 dtype, u64 count, u64 first, float (&values)[STRIPS][4]) {
    bool whole = (first / TILE + 1) * TILE <= count;
    if (whole && dtype == 0 && reinterpret_cast<u64>(all) % 16 == 0) {
        const uint4* quads = static_cast<const uint4*>(all) + first / 4;
        uint4 four[STRIPS];
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
            four[j] = quads[j * (STRIP / 4)];
        }
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
            values[j][0] = __uint_as_float(four[j].x);
            values[j][1] = __uint_as_float(four[j].y);
            values[j][2] = __uint_as_float(four[j].z);
            values[j][3] = __uint_as_float(four[j].w);
        }
    } else if (whole && dtype != 0 && reinterpret_cast<u64>(all) % 8 == 0) {
        const uint2* quads = static_cast<const uint2*>(all) + first / 4;
        uint2 four[STRIPS];
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
            four[j] = quads[j * (STRIP / 4)];
        }
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
            widen4(four[j], dtype, values[j]);
        }
    } else {
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                u64 i = first + j * STRIP + k;
                values[j][k] = i < count ? value(all, dtype, i) : 0.0f;
            }
        }
    }
}

// Reads values for `hold` from device memory.
struct Everywhere {
    const void* values;

    __device__ void load(const Params& p, u64 first, float (&own)[STRIPS][4]) const {
        load_tile(values, p.dtype, p.count, first, own);
    }
};

// Number of values that exist, among the four from index `i` on.
__device__ inline u32 there(const Params& p, u64 i) {
    return i >= p.count ? 0 : p.count - i < 4 ? u32(p.count - i) : 4;
}

// A span in shared memory. It consists of whole buckets, which are numbered from 0. In `visit`, all lanes of a warp
// move on to other buckets at the same time.
struct Held {
    // Number of pairs of strips that `encode_tile` encodes at once.
    static const u32 PAIRS = 1;
    uint4 values[SPAN / 4];
    Extremes extremes[SLOTS];
    Grid grids[SLOTS];

    // Loads four values that this thread has stored.
    __device__ void load(u64 i, u32, float (&four)[4]) const {
        uint4 bits = values[i % SPAN / 4];
        four[0] = __uint_as_float(bits.x);
        four[1] = __uint_as_float(bits.y);
        four[2] = __uint_as_float(bits.z);
        four[3] = __uint_as_float(bits.w);
    }

    __device__ static u32 log_bucket(const Params& p) {
        return 31 - __clz(p.bucket);
    }

    __device__ u32 bucket(const Params& p, u64 i) const {
        return u32(i) % SPAN >> log_bucket(p);
    }

    __device__ const Grid& grid(const Params& p, u64 i) const {
        return grids[bucket(p, i)];
    }
};

// Passes this thread's values of the warp's tile to `to.add`, in order. Calls `to.next` before values that are in
// another bucket than `to.bucket`. Four values from a multiple of 4 on are always in one bucket.
template <class To>
__device__ inline void visit(const Params& p, const Held& held, u64 tile, To& to) {
    for (u32 j = 0; j < STRIPS; j++) {
        u64 i = tile * TILE + j * STRIP + threadIdx.x % 32 * 4;
        float four[4];
        u32 here = there(p, i);
        held.load(i, j, four);
        u32 bucket = held.bucket(p, i);
        if (bucket != to.bucket) {
            to.next(bucket);
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (k >= here) {
                break;
            }
            to.add(four[k]);
        }
    }
}

// Collects the extremes of this thread's values in one bucket. Each group of `sharing` lanes sees the same buckets.
// `give` combines the lanes of a group and updates the bucket's extremes.
struct Seen {
    const Params& p;
    Extremes* extremes;
    u32 sharing;
    u32 bucket;
    Extremes own;

    __device__ Seen(const Params& p, Extremes* extremes, u32 sharing, u32 bucket)
        : p(p), extremes(extremes), sharing(sharing), bucket(bucket), own{0, 0, 0} {}

    __device__ void add(float value) {
        u32 bits = __float_as_uint(value);
        own.largest = max(own.largest, bits & MAGNITUDE);
        if (p.min_max) {
            own.high = max(own.high, ordered(bits));
            own.low = max(own.low, ~ordered(bits));
        }
    }

    __device__ void next(u32 other) {
        give();
        bucket = other;
        own = Extremes{0, 0, 0};
    }

    __device__ void give() {
        for (u32 reach = sharing / 2; reach > 0; reach >>= 1) {
            own.largest = max(own.largest, __shfl_xor_sync(FULL, own.largest, reach));
            if (p.min_max) {
                own.high = max(own.high, __shfl_xor_sync(FULL, own.high, reach));
                own.low = max(own.low, __shfl_xor_sync(FULL, own.low, reach));
            }
        }
        if ((threadIdx.x & (sharing - 1)) != 0) {
            return;
        }
        atomicMax(&extremes[bucket].largest, own.largest);
        if (p.min_max) {
            atomicMax(&extremes[bucket].high, own.high);
            atomicMax(&extremes[bucket].low, own.low);
        }
    }
};

// Makes a bucket's grid. If the largest magnitude is not finite, sets result[0] to the maximum of itself and the
// magnitude's bits.
__device__ inline Grid make_grid(const Params& p, const Extremes& seen, u32* result) {
    if (seen.largest >= INFINITE) {
        atomicMax(result, seen.largest);
    }
    Grid grid;
    grid.high = __uint_as_float(seen.largest);
    grid.low = p.sign_magnitude ? 0.0f : -grid.high;
    if (p.min_max) {
        // Adding +0 turns -0 into +0.
        grid.low = __uint_as_float(from_ordered(~seen.low)) + 0.0f;
        grid.high = __uint_as_float(from_ordered(seen.high)) + 0.0f;
    }
    u32 exponent = seen.largest >> FRACTION_BITS;
    grid.power = __uint_as_float((exponent >= 254 ? 1 : 254 - exponent) << FRACTION_BITS);
    grid.scaled_low = p.sign_magnitude ? 0.0f : grid.low * grid.power;
    grid.scaled_high = grid.high * grid.power;
    float length = grid.scaled_high - grid.scaled_low;
    grid.inverse = length > 0.0f ? 1.0f / length : 0.0f;
    return grid;
}

// The parameters of the usual case: a bucket per tile, max norm with a sign bit, and stochastic rounding.
__device__ inline Params usual(Params p) {
    p.bucket = TILE;
    p.sign_magnitude = 1;
    p.min_max = 0;
    p.nearest = 0;
    p.log_levels = p.bits - 1;
    return p;
}

// A bucket that fills a warp's tile, in registers.
struct Bucket {
    static const u32 PAIRS = STRIPS / 2;
    float values[STRIPS][4];
    Grid own;

    // Loads the values and makes the grid. All lanes have the same grid.
    __device__ Bucket(const Params& p, const void* all, u64 first, u32* result) {
        load_tile(all, p.dtype, p.count, first, values);
        u32 largest = 0;
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                largest = max(largest, __float_as_uint(values[j][k]) & MAGNITUDE);
            }
        }
        own = make_grid(p, Extremes{warp_max(largest), 0, 0}, result);
    }

    __device__ void load(u64, u32 strip, float (&four)[4]) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            four[k] = values[strip][k];
        }
    }

    __device__ const Grid& grid(const Params&, u64) const {
        return own;
    }
};

// Waits for all threads that share a bucket.
__device__ inline void meet(const Params& p) {
    if (p.bucket > TILE) {
        __syncthreads();
    } else {
        __syncwarp();
    }
}

// The bucket of the block's span whose grid this thread makes, or SLOTS if it makes none. One of the threads that share
// a bucket makes its grid.
__device__ inline u32 own_slot(const Params& p) {
    u32 in_tile = threadIdx.x % 32 * p.bucket;
    u32 first = threadIdx.x / 32 * TILE + in_tile;
    return in_tile < TILE && (first & (p.bucket - 1)) == 0 ? first >> Held::log_bucket(p) : SLOTS;
}

// Resets the extremes before the first `hold`. All threads of the block must call it.
__device__ inline void hold_nothing(Held& held) {
    if (threadIdx.x < SLOTS) {
        held.extremes[threadIdx.x] = Extremes{0, 0, 0};
    }
    __syncthreads();
}

// Loads a span's values into shared memory, and makes the grids of its buckets. All threads of the block must call it.
template <class Values>
__device__ inline void hold(const Params& p, const Values& values, u64 span, Held& held, u32* result) {
    u64 tile = span * WARPS + threadIdx.x / 32;
    u64 first = tile * TILE + threadIdx.x % 32 * 4;
    float own[STRIPS][4];
    values.load(p, first, own);
#pragma unroll
    for (u32 j = 0; j < STRIPS; j++) {
        held.values[(first + j * STRIP) % SPAN / 4] = uint4{__float_as_uint(own[j][0]), __float_as_uint(own[j][1]),
                                                            __float_as_uint(own[j][2]), __float_as_uint(own[j][3])};
    }
    Seen seen(p, held.extremes, min(p.bucket / 4, 32u), held.bucket(p, first));
    visit(p, held, tile, seen);
    seen.give();
    meet(p);
    u32 slot = own_slot(p);
    if (slot < SLOTS) {
        held.grids[slot] = make_grid(p, held.extremes[slot], result);
        held.extremes[slot] = Extremes{0, 0, 0};
    }
    meet(p);
}
