// EDEN's rows of the error table: squared errors of all widths, from one rotation of each block.

// A layer in a launch for many layers.
struct Layer {
    u64 values;  // address of its values
    u32 dtype;
    u32 count;
    u32 first_block;
    u32 blocks;  // number of CUDA blocks that work on it
    u32 seed_low;
    u32 seed_high;
};

// Size of a layer's results, in words of 8 bytes.
#define RESULT_WORDS 9
// Blocks with fewer values than FEW are measured by decoding. FEW must be a multiple of 256.
#define FEW 256

// Shared memory of a CUDA block, in addition to `Room`.
struct Row {
    double errors[8];  // for 1 to 8 bits
    u32 undecided;     // the result of `add_rounding`
};

// Adds the squared errors of rounding the coordinates in `room`. 64 threads process each width. With t = z - q and a
// scale s, the error is the sum of (t + (1 - s) q)^2. This form does not subtract nearly equal sums. Returns a mask of
// the widths whose error is too small to be distinguished from the rounding of f32. All threads must call it.
__device__ inline u32 add_rounding(Room& room, const Grids& grids, const Params& p, u32 len, Row& row) {
    if (threadIdx.x == 0) {
        row.undecided = 0;
    }
    double mean_square = room.norm.norm * room.norm.norm / double(len);
#pragma unroll 1
    for (u32 most = 4; most <= 8; most += 4) {
        if ((p.widths >> (most - 4) & 15) == 0) {
            continue;
        }
        u32 bits = most - 3 + threadIdx.x / LANES;
        bool asked = (p.widths >> (bits - 1) & 1) != 0;
        float squares = 0.0f;
        float products = 0.0f;
        if (asked) {
            Grid grid(grids, bits);
            for (u32 i = threadIdx.x % LANES; i < len; i += 4 * LANES) {
                float z[4];
                u32 numbers[4];
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    z[k] = room.values[place(i + k * LANES)];
                }
                grid.nearest(z, numbers);
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    float level = grid.levels[numbers[k]];
                    float residual = fabsf(z[k]) - level;
                    squares += residual * residual;
                    products += residual * level;
                }
            }
        }
        double square = total(room, squares);
        double product = total(room, products);
        if (asked && threadIdx.x % LANES == 0) {
            double points = double(len) - 2.0 * product - square;
            double away = 1.0 - Sums{points + product, points}.relative_scale(p.least_squares != 0, len);
            double error = square + 2.0 * away * product + away * away * points;
            if (error > square / 8.0 && error > double(len) * 1e-6) {
                row.errors[bits - 1] += error * mean_square;
            } else {
                atomicOr(&row.undecided, 1u << (bits - 1));
            }
        }
    }
    __syncthreads();
    return row.undecided;
}

// Adds the squared error of one width by decoding a block. The block's coordinates are in `room`. It begins at value
// `at` of its chunk, which begins at value `start` of the layer. Returns whether this thread's decoded values are
// finite. All threads must call it.
__device__ inline bool add_decoded(Room& room, const Grids& grids, const Params& p, u32 bits, const Layer& layer,
                                   u32 start, u32 at, u32 len, Row& row) {
    Grid grid(grids, bits);
    Sums sums = sums_of(room, len, [&](u32 i) {
        float z[1] = {room.values[place(i)]};
        u32 number[1];
        grid.nearest(z, number);
        return grid.levels[number[0]];
    });
    if (threadIdx.x == 0) {
        room.scale = sums.scale(room.norm, p.least_squares != 0, len);
    }
    __syncthreads();
    const void* values = reinterpret_cast<const void*>(layer.values);
    __builtin_assume(__isGlobal(values));
    bool fits = true;
    double sum = 0.0;
    auto point = [&](u32, u32 own_place) {
        float z[1] = {room.values[own_place]};
        u32 number[1];
        grid.nearest(z, number);
        return with_sign(grid.levels[number[0]], __float_as_uint(z[0]));
    };
    decode_block(room, room.scale, at, len, point, [&](u32 j, const auto& decoded) {
#pragma unroll
        for (u32 k = 0; k < COUNT_OF(decoded); k++) {
            u64 i = u64(start) + j + 256 * k;
            double error = double(value(values, layer.dtype, i)) - double(decoded[k]);
            fits = fits && is_finite(decoded[k]);
            sum += error * error;
        }
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        row.errors[bits - 1] += sum;
    }
    return fits;
}

// Adds up the squared error of each width over the chunks of a CUDA block. Sets the first word of a layer's results to
// infinity if a value is not finite. For a block that would not decode to finite values, the second word becomes the
// maximum of itself and ~i. Here i is the index of the block's first value. So the word tells the first such block, and
// 0 means none.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void rows(Params p, const Layer* layers, const u32* layer_of,
                                                            double* partials, u32* results) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ Row row;
    fill(grids);
    u32 number = layer_of[blockIdx.x];
    const Layer& layer = layers[number];
    u32* result = results + u64(number) * (2 * RESULT_WORDS);
    const void* values = reinterpret_cast<const void*>(layer.values);
    // The compiler does not know that this address, loaded from memory, is in global memory.
    __builtin_assume(__isGlobal(values));
    Own own{values, layer.dtype, result};
    if (threadIdx.x < 8) {
        row.errors[threadIdx.x] = 0.0;
    }
    for (u32 chunk = blockIdx.x - layer.first_block; chunk < chunks_of(layer.count); chunk += layer.blocks) {
        u32 here = chunk_len(layer.count, chunk);
        draw_signs(room, chunk, layer.seed_low, layer.seed_high);
        for (u32 at = 0, len; at < here; at += len) {
            len = block_len(here - at);
            u32 first = chunk * CHUNK + at;
            load(room, own, first, len);
            find_norm(room, len);
            const Norm& norm = room.norm;
            if (!is_finite(norm) && threadIdx.x == 0) {
                atomicMax(&result[0], INFINITE);
            }
            if (norm.norm == 0.0 || !is_finite(norm)) {
                continue;
            }
            bool closed = len >= FEW && is_moderate(norm);
            u32 undecided = p.widths;
            bool loaded = true;
            // Measures all widths at once, if possible. Then measures the widths for which decoding is necessary, one
            // by one.
#pragma unroll 1
            for (u32 bits = closed ? 0 : 1; bits <= 8; bits++) {
                if (bits > 0 && (undecided >> (bits - 1) & 1) == 0) {
                    continue;
                }
                if (!loaded) {
                    load(room, own, first, len);
                }
                loaded = false;
                rotate(room, at, len, [&](u32, u32 place_of_first, const auto& z) {
#pragma unroll
                    for (u32 k = 0; k < COUNT_OF(z); k++) {
                        room.values[place_of_first + place(256 * k)] = z[k];
                    }
                });
                __syncthreads();
                if (bits == 0) {
                    undecided = add_rounding(room, grids, p, len, row);
                } else if (!add_decoded(room, grids, p, bits, layer, chunk * CHUNK, at, len, row)) {
                    atomicMax(&result[1], ~first);
                }
            }
            __syncthreads();
        }
    }
    __syncthreads();
    if (threadIdx.x < 8) {
        partials[u64(blockIdx.x) * 8 + threadIdx.x] = row.errors[threadIdx.x];
    }
}
