// EDEN's blocks: random signs, norms, the Walsh-Hadamard transform, grid points and scales. A block here is a vector of
// values, and a CUDA block processes one at a time. Every sum has the same order as in lgreco-compress/src/eden.

#define CHUNK 4096  // values of a full block; the rest of a tensor is divided into powers of two
#define SIGN_WORDS 128
#define LANES 64  // number of partial sums of a block

// The l2 norm of a block, and the factors that normalise it.
struct Norm {
    double norm;
    float power;    // usually 1; otherwise, it keeps products and the inverse norm in the range of f32
    float inverse;  // inverse norm of the values times `power`
};

// Shared memory of the threads that process a block.
struct Room {
    float values[CHUNK + CHUNK / 16];
    u32 signs[SIGN_WORDS];
    double partials[BLOCK / 2];
    Norm norm;
    float scale;
};

#define COUNT_OF(array) u32(sizeof(array) / sizeof(array[0]))

// Index of a block's value i in `values`. Its gaps put 16 consecutive values, and every 16th value, into different
// banks. If i and j have no bit in common, place(i + j) = place(i) + place(j).
__device__ constexpr u32 place(u32 i) {
    return i + i / 16;
}

// The length of the next block: the largest power of two that is at most `values`.
__device__ inline u32 block_len(u32 values) {
    return 1u << (31 - __clz(int(values)));
}

// Number of blocks of a tensor.
__device__ inline u32 blocks_of(u32 count) {
    return count / CHUNK + __popc(count % CHUNK);
}

// 1 / sqrt(len), rounded to f32. `len` is a power of two.
__device__ inline float inverse_root(u32 len) {
    u32 log = 31 - __clz(int(len));
    float power = __uint_as_float((127 - log / 2) << 23);
    return log % 2 == 0 ? power : power * 0.70710678118654752f;
}

// Draws the random signs of a chunk.
__device__ inline void draw_signs(Room& room, u32 chunk, u32 seed_low, u32 seed_high) {
    if (threadIdx.x < SIGN_WORDS / 4) {
        Words words = philox(chunk * (SIGN_WORDS / 4) + threadIdx.x, 0, 0, 0, seed_low, seed_high);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            room.signs[threadIdx.x * 4 + k] = words.word[k];
        }
    }
}

// `value`, with its sign flipped if the random sign of the chunk's value i is negative.
__device__ inline float signed_by(const Room& room, u32 i, float value) {
    return __uint_as_float(__float_as_uint(value) ^ room.signs[i % SIGN_WORDS] >> (i / SIGN_WORDS) << 31);
}

// Adds up the partial sums of each group of 64 threads. Their number is halved until eight are left, which are added in
// f64. The first thread of a group returns the result. All threads of the CUDA block must call it.
template <class T>
__device__ inline double total(Room& room, T sum) {
    u32 lane = threadIdx.x % LANES;
    double* partials = room.partials + threadIdx.x / LANES * (LANES / 2);
    __syncthreads();  // the sum before may still be read
    if (lane >= LANES / 2) {
        partials[lane - LANES / 2] = double(sum);
    }
    __syncthreads();
    double all = 0.0;
    if (lane < LANES / 2) {
        sum += T(partials[lane]);
        sum += __shfl_down_sync(FULL, sum, 16);
        sum += __shfl_down_sync(FULL, sum, 8);
        all = double(sum);
        all += __shfl_down_sync(FULL, all, 4);
        all += __shfl_down_sync(FULL, all, 1);
        all += __shfl_down_sync(FULL, all, 2);
    }
    return all;
}

// Loads the values of a block into `room`. `values.at(i)` is value i of the tensor. All threads must call it.
template <class Values>
__device__ inline void load(Room& room, const Values& values, u32 first, u32 len) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < len; i += BLOCK) {
        room.values[place(i)] = values.at(first + i);
    }
    __syncthreads();
}

// Computes `room.norm`. All threads must call it.
__device__ inline void find_norm(Room& room, u32 len) {
    double sum = 0.0;
    if (threadIdx.x < LANES) {
        for (u32 i = threadIdx.x; i < len; i += LANES) {
            double x = room.values[place(i)];
            sum = fma(x, x, sum);  // squares of f32 are exact in f64
        }
    }
    sum = total(room, sum);
    if (threadIdx.x == 0) {
        double norm = sqrt(sum);
        float power = norm > 0x1p100 ? 0x1p-60f : norm < 0x1p-100 ? 0x1p100f : 1.0f;
        room.norm = Norm{norm, power, norm > 0.0 ? float(1.0 / (norm * double(power))) : 0.0f};
    }
    __syncthreads();
}

// Whether all values of the block are finite.
__device__ inline bool is_finite(const Norm& norm) {
    return norm.norm < 0x1p1000;
}

// Whether scales and decoded values stay in the range of normal f32 numbers, or leave it only slightly.
__device__ inline bool is_moderate(const Norm& norm) {
    return norm.power == 1.0f;
}

// Four levels of the transform, for 16 values in registers.
template <bool DESCENDING>
__device__ inline void transform16(float (&values)[16]) {
#pragma unroll
    for (u32 level = 0; level < 4; level++) {
        u32 stride = DESCENDING ? 8 >> level : 1 << level;
#pragma unroll
        for (u32 k = 0; k < 16; k++) {
            if ((k & stride) == 0) {
                float a = values[k];
                float b = values[k | stride];
                values[k] = a + b;
                values[k | stride] = a - b;
            }
        }
    }
}

// The transform, level by level, of a block of fewer than 4096 values.
__device__ inline void transform_levels(Room& room, u32 len) {
    u32 levels = 31 - __clz(int(len));
#pragma unroll 1
    for (u32 level = 0; level < levels; level++) {
        // In blocks of 256 values or more, the first eight levels have descending strides.
        u32 bit = len >= 256 && level < 8 ? 7 - level : level;
        u32 stride = 1u << bit;
#pragma unroll 1
        for (u32 pair = threadIdx.x; pair < len / 2; pair += BLOCK) {
            u32 i = (pair >> bit << bit) + pair;
            float a = room.values[place(i)];
            float b = room.values[place(i + stride)];
            room.values[place(i)] = a + b;
            room.values[place(i + stride)] = a - b;
        }
        __syncthreads();
    }
}

// Reads or writes 16 values of `room`, at the indices first + STRIDE * k. In `first`, the four bits from the bit STRIDE
// on must be 0.
template <u32 STRIDE, bool WRITES>
__device__ inline void exchange(Room& room, u32 first, float (&own)[16]) {
    u32 at = place(first);
#pragma unroll
    for (u32 k = 0; k < 16; k++) {
        float& value = room.values[at + place(STRIDE * k)];
        if (WRITES) {
            value = own[k];
        } else {
            own[k] = value;
        }
    }
}

// Transforms a block that begins at value `at` of its chunk. Values are passed in arrays of 16, or of 1 for short
// blocks. `from(j, place, values)` fills an array: `values[k]` is value j + 16 k of the chunk, which may be read in
// `room` at place + place(16 k). `to(j, place, values)` receives an array: `values[k]` is coordinate j + 256 k, which
// may be written to `room` at place + place(256 k). Other places of `room` may be accessed only after a barrier. All
// threads must call it.
template <class From, class To>
__device__ inline void transform(Room& room, u32 at, u32 len, const From& from, const To& to) {
    if (len < CHUNK) {
        float own[1];
#pragma unroll 1
        for (u32 i = threadIdx.x; i < len; i += BLOCK) {
            from(at + i, place(i), own);
            room.values[place(i)] = own[0];
        }
        __syncthreads();
        transform_levels(room, len);
#pragma unroll 1
        for (u32 i = threadIdx.x; i < len; i += BLOCK) {
            own[0] = room.values[place(i)];
            to(at + i, place(i), own);
        }
        return;
    }
    // The indices of a thread's 16 values differ in bits 4 to 7, then in bits 0 to 3, then in bits 8 to 11.
    float own[16];
    u32 first = threadIdx.x / 16 * 256 + threadIdx.x % 16;
    from(first, place(first), own);
    transform16<true>(own);
    exchange<16, true>(room, first, own);
    __syncthreads();
    exchange<1, false>(room, threadIdx.x * 16, own);
    transform16<true>(own);
    exchange<1, true>(room, threadIdx.x * 16, own);
    __syncthreads();
    exchange<256, false>(room, threadIdx.x, own);
    transform16<false>(own);
    to(threadIdx.x, place(threadIdx.x), own);
}

// Divides the values of the block in `room` by the norm, multiplies them by their random signs, and transforms them.
template <class To>
__device__ inline void rotate(Room& room, u32 at, u32 len, const To& to) {
    float power = room.norm.power;
    float inverse = room.norm.inverse;
    auto from = [&](u32 j, u32 place_of_first, auto& values) {
#pragma unroll
        for (u32 k = 0; k < COUNT_OF(values); k++) {
            float x = room.values[place_of_first + place(16 * k)];
            values[k] = signed_by(room, j + 16 * k, x * power * inverse);
        }
    };
    transform(room, at, len, from, to);
}

// `magnitude` with the sign bit of `bits`.
__device__ inline float with_sign(float magnitude, u32 bits) {
    return __uint_as_float(__float_as_uint(magnitude) | (bits & SIGN));
}

// The grids of all widths: their levels, and the thresholds between levels.
struct Grids {
    float levels[256];
    float thresholds[256];
};

// Fills the grids. All threads must call it, and a barrier must follow.
__device__ inline void fill(Grids& grids) {
    u32 k = threadIdx.x;
    float level = k < 255 ? LEVELS[k] : 0.0f;
    float next = k < 254 ? LEVELS[k + 1] : 0.0f;
    grids.levels[k] = level;
    // The threshold after the last level of a grid is not used.
    grids.thresholds[k] = float((double(level) + double(next)) / 2.0);
}

// The grid of one width.
struct Grid {
    const float* levels;
    const float* thresholds;
    u32 bits;

    __device__ Grid(const Grids& grids, u32 bits)
        : levels(grids.levels + ((1u << (bits - 1)) - 1)),
          thresholds(grids.thresholds + ((1u << (bits - 1)) - 1)),
          bits(bits) {}

    // Numbers of the levels nearest to the magnitudes of `z`. A magnitude on a threshold belongs to the upper level.
    template <u32 COUNT>
    __device__ void nearest(const float* z, u32 (&numbers)[COUNT]) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            numbers[k] = 0;
        }
#pragma unroll 1
        for (u32 step = 1u << (bits - 1) >> 1; step > 0; step >>= 1) {
#pragma unroll
            for (u32 k = 0; k < COUNT; k++) {
                numbers[k] += fabsf(z[k]) >= thresholds[numbers[k] + step - 1] ? step : 0;
            }
        }
    }

    // The grid point of a code.
    __device__ float decoded(u32 code) const {
        u32 sign = code >> (bits - 1);
        return with_sign(levels[code & ((1u << (bits - 1)) - 1)], sign << 31);
    }
};

// Sums over a block's coordinates z and their grid points q, from which the block's scale is computed.
struct Sums {
    double product;  // inner product of z and q
    double square;   // squared norm of q

    // The factor that scales grid points to fit the coordinates.
    __device__ double relative_scale(bool least_squares, u32 len) const {
        return least_squares ? product / square : double(len) / product;
    }

    // The scale in the payload.
    __device__ float scale(const Norm& norm, bool least_squares, u32 len) const {
        double root_mean_square = norm.norm / (double(len) * double(inverse_root(len)));
        return float(root_mean_square * relative_scale(least_squares, len));
    }
};

// Computes the sums for the coordinates in `room`. `level_of(i)` is the magnitude of the grid point of coordinate i.
// Only thread 0 returns the result. All threads must call it.
template <class LevelOf>
__device__ inline Sums sums_of(Room& room, u32 len, const LevelOf& level_of) {
    float product = 0.0f;
    float square = 0.0f;
    if (threadIdx.x < LANES) {
        for (u32 i = threadIdx.x; i < len; i += LANES) {
            float level = level_of(i);
            product += fabsf(room.values[place(i)]) * level;
            square += level * level;
        }
    }
    double of_products = total(room, product);
    return Sums{of_products, total(room, square)};
}

// Decodes a block that begins at value `at` of its chunk. `point(j, place)` is the grid point of the chunk's coordinate
// j, whose index in `room` is `place`. `to(j, values)` receives arrays of 16 values, or of 1 for short blocks:
// `values[k]` is value j + 256 k of the chunk. All threads must call it.
template <class Point, class To>
__device__ inline void decode_block(Room& room, float scale, u32 at, u32 len, const Point& point, const To& to) {
    float root = inverse_root(len);
    auto from = [&](u32 j, u32 place_of_first, auto& values) {
#pragma unroll
        for (u32 k = 0; k < COUNT_OF(values); k++) {
            values[k] = point(j + 16 * k, place_of_first + place(16 * k));
        }
    };
    transform(room, at, len, from, [&](u32 j, u32, auto& values) {
#pragma unroll
        for (u32 k = 0; k < COUNT_OF(values); k++) {
            float x = signed_by(room, j + 256 * k, values[k] * root * scale);
            // If the scale is 0, all values are +0.
            values[k] = scale == 0.0f ? 0.0f : x;
        }
        to(j, values);
    });
}
