// EDEN's blocks: signs, norms, the Walsh-Hadamard transform, grid points and scales. Every sum has the order of
// lgreco-compress/src/eden.

#define CHUNK 4096  // values of a full block; the rest of a tensor is cut into powers of two
#define SIGN_WORDS 128
#define LANES 64  // partial sums of a block

// The length of a block as a vector, and what brings it to 1.
struct Norm {
    double norm;
    float power;    // mostly 1, else what keeps products and the inverse norm in the range of f32
    float inverse;  // of the norm of values times `power`
};

// What the threads that work on a block share.
struct Room {
    float values[CHUNK + CHUNK / 16];
    u32 signs[SIGN_WORDS];
    double partials[BLOCK / 2];
    Norm norm;
    float scale;
};

#define COUNT_OF(array) u32(sizeof(array) / sizeof(array[0]))

// Where value i of a block lies in `values`: apart by so much that 16 values in a row, and every 16th, are in different banks.
// Where i and j have no bit in common, place(i + j) = place(i) + place(j).
__device__ constexpr u32 place(u32 i) {
    return i + i / 16;
}

// The largest power of two of at most `values`: the next block's length.
__device__ inline u32 block_len(u32 values) {
    return 1u << (31 - __clz(int(values)));
}

// Blocks of a tensor.
__device__ inline u32 blocks_of(u32 count) {
    return count / CHUNK + __popc(count % CHUNK);
}

// 1 / sqrt(len), of a power of two, rounded.
__device__ inline float inverse_root(u32 len) {
    u32 log = 31 - __clz(int(len));
    float power = __uint_as_float((127 - log / 2) << 23);
    return log % 2 == 0 ? power : power * 0.70710678118654752f;
}

// The signs of a chunk.
__device__ inline void draw_signs(Room& room, u32 chunk, u32 seed_low, u32 seed_high) {
    if (threadIdx.x < SIGN_WORDS / 4) {
        Words words = philox(chunk * (SIGN_WORDS / 4) + threadIdx.x, 0, 0, 0, seed_low, seed_high);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            room.signs[threadIdx.x * 4 + k] = words.word[k];
        }
    }
}

// `value` with the sign of value i of the chunk.
__device__ inline float signed_by(const Room& room, u32 i, float value) {
    return __uint_as_float(__float_as_uint(value) ^ room.signs[i % SIGN_WORDS] >> (i / SIGN_WORDS) << 31);
}

// The sum of the partial sums of 64 threads, halved until eight are left, which are added in f64. The first of every 64 threads has
// theirs. All threads must come.
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

// Brings a block's values to `room`; `values.at(i)` is value i of the tensor. All threads must come.
template <class Values>
__device__ inline void load(Room& room, const Values& values, u32 first, u32 len) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < len; i += BLOCK) {
        room.values[place(i)] = values.at(first + i);
    }
    __syncthreads();
}

// Fills `room.norm`. All threads must come.
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

// Whether all values of the block are.
__device__ inline bool is_finite(const Norm& norm) {
    return norm.norm < 0x1p1000;
}

// Whether neither scales nor decoded values can leave the range of normal f32 numbers by much.
__device__ inline bool is_moderate(const Norm& norm) {
    return norm.power == 1.0f;
}

// Four levels of the transform of 16 values.
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

// Level after level, of a block of fewer than 4096 values.
__device__ inline void transform_levels(Room& room, u32 len) {
    u32 levels = 31 - __clz(int(len));
#pragma unroll 1
    for (u32 level = 0; level < levels; level++) {
        // From 256 values on, the first eight levels descend.
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

// Reads or writes 16 values in `room`, whose indices are `first` and what differs from it in four bits from `STRIDE` on.
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

// The transform of a block that begins at value `at` of its chunk. All threads must come. Values are handed over in arrays of 16, or
// of 1 for short blocks. `from(j, place, values)` fills one: `values[k]` is value j + 16 k of the chunk, which may be read in `room`
// at place + place(16 k). `to(j, place, values)` takes one: `values[k]` is coordinate j + 256 k, which may be written to `room` at
// place + place(256 k). Other places of `room` may be touched behind a barrier.
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

// The same of a block's values in `room`, with their signs and divided by the norm.
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

// A magnitude with the sign of some bits.
__device__ inline float with_sign(float magnitude, u32 bits) {
    return __uint_as_float(__float_as_uint(magnitude) | (bits & SIGN));
}

// Grids of all widths: their levels, and what lies between these.
struct Grids {
    float levels[256];
    float thresholds[256];
};

// All threads must come; a barrier must follow.
__device__ inline void fill(Grids& grids) {
    u32 k = threadIdx.x;
    float level = k < 255 ? LEVELS[k] : 0.0f;
    float next = k < 254 ? LEVELS[k + 1] : 0.0f;
    grids.levels[k] = level;
    // What lies behind the last level of a grid is not read.
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

    // The numbers of the levels nearest to magnitudes; on a threshold it is the upper one's.
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

    // What a code stands for.
    __device__ float decoded(u32 code) const {
        u32 sign = code >> (bits - 1);
        return with_sign(levels[code & ((1u << (bits - 1)) - 1)], sign << 31);
    }
};

// What scales are made of, with coordinates z and grid points q.
struct Sums {
    double product;  // of z and q
    double square;   // of q

    // What brings grid points back to the length of the coordinates.
    __device__ double relative_scale(bool least_squares, u32 len) const {
        return least_squares ? product / square : double(len) / product;
    }

    // The scale that is sent.
    __device__ float scale(const Norm& norm, bool least_squares, u32 len) const {
        double root_mean_square = norm.norm / (double(len) * double(inverse_root(len)));
        return float(root_mean_square * relative_scale(least_squares, len));
    }
};

// The sums of the coordinates in `room`; `level_of(i)` is the magnitude of a grid point. Thread 0 has them. All threads must come.
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

// What grid points decode to, of a block that begins at value `at` of its chunk. `point(j, place)` is the grid point of the chunk's
// coordinate j, whose place in `room` is given. `to(j, values)` takes arrays of 16 values or, of short blocks, of 1: `values[k]` is
// value j + 256 k of the chunk. All threads must come.
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
            // By a scale of 0 all values are 0, none is -0.
            values[k] = scale == 0.0f ? 0.0f : x;
        }
        to(j, values);
    });
}
